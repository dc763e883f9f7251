"""The contract of a codec, and the values that describe its input and output.

A codec turns arrays into arrays (`array_to_array`), arrays into bytes (`array_to_bytes`) or bytes into bytes
(`bytes_to_bytes`).  A `Codec` is a frozen dataclass whose fields are its JSON configuration.  `bind` checks the
configuration against the data to be encoded and returns a `BoundCodec`, which never checks again, keeps no state
between calls, may be called from any number of threads at once, and releases the interpreter lock while it works.

* `decode` returns exactly the input of `encode`, or raises `DataLossError` / `FailedPreconditionError` that says what
  is wrong with the bytes; the layers above add the chunk and the key.
* If `ByteSpec.size` is known, `decode` never produces more bytes than that: decompression bombs are refused before
  memory is allocated for them.  A decoder of unknown size stops at a limit that grows with its input.
* Codecs see buffers and arrays, never keys, stores or selections.

`Abilities` lists the optional methods and attributes of bound codecs.  They are looked up only here, once for each
array that is opened; an ability that a codec lacks has its default.

A codec has one table of configuration members, read strictly (stored documents spell out every required member) or
partially (specs may leave any of them open).  The codec alone knows the default of a missing member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias

import numpy as np

from fsstore.errors import FailedPreconditionError, ResourceExhaustedError
from fsstore.values.json_value import Fields, Json, Parser

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Buffer: TypeAlias = bytes | bytearray | memoryview
Span: TypeAlias = tuple[int, int]
"""Elements of an encoding: the first, and the one after the last."""
Kind: TypeAlias = Literal["array_to_array", "array_to_bytes", "bytes_to_bytes"]


@dataclass(frozen=True, slots=True)
class ChunkSpec:
    """An array on its way through a chain: its type, shape and the value of missing elements."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fill_value: Any = None


@dataclass(frozen=True, slots=True)
class ByteSpec:
    """Bytes on their way through a chain: their exact size if it is fixed, and the size of their elements.

    `max_size` bounds a size that is not fixed, if a bound is known.  `itemsize` is the default element size for
    shuffling codecs, 0 if the bytes are no longer elements (compressed data, shards, text).
    """

    size: int | None = None
    itemsize: int = 1
    max_size: int | None = None


class BoundCodec(Protocol):
    """A codec checked against its input.  Stateless and thread-safe."""

    @property
    def encoded(self) -> ChunkSpec | ByteSpec:
        """The shape and type, or the bytes, that `encode` returns: the input of the next codec of the chain."""
        ...

    def encode(self, data: Any) -> Any:
        """Return the encoded array or buffer."""
        ...

    def decode(self, data: Any) -> Any:
        """Return the decoded array or buffer (a buffer may be a view of `data`)."""
        ...


class Codec(Protocol):
    """A codec as configured.  Implementations are frozen dataclasses; fields are the JSON configuration."""

    @property
    def name(self) -> str:
        """The name in metadata."""
        ...

    @property
    def kind(self) -> Kind:
        """The kind of value on each side of the codec."""
        ...

    def to_json(self) -> dict[str, Json]:
        """Return the configuration as stored."""
        ...

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundCodec:
        """Return the codec bound to its input, or raise a `StoreError` that says why they do not fit."""
        ...


class CodecFactory(Protocol):
    """The object behind a registered name: a class of codecs, or an object that makes them.

    `ability` lists what a factory may offer beyond this; partial codecs in specs need a table of members.
    """

    @property
    def name(self) -> str:
        """The name in metadata."""
        ...

    @property
    def kind(self) -> Kind:
        """The kind of value on each side of the codecs."""
        ...

    @property
    def from_json(self) -> Callable[[Mapping[str, Json]], Codec]:
        """Read a stored configuration, or raise `JsonError` with all problems."""
        ...


# Abilities of some bound codecs, and of some factories of codecs, beyond the contract.

_DType: TypeAlias = np.dtype[Any]


@dataclass(frozen=True, slots=True)
class Abilities:
    """The abilities of a bound codec, None or the default for those it lacks."""

    # of array codecs
    order: tuple[int, ...] | None = None
    """It is a transpose: dimension i of its output is dimension `order[i]` of its input."""

    # of codecs that make bytes of arrays
    flat_dtype: _DType | None = None
    """The encoding is the elements of this dtype in C order and nothing else."""
    view: Callable[[Any], Array] | None = None
    """Like `decode`, but elements may keep the byte order in which they are stored."""
    verify: Callable[[Array], None] | None = None
    """Raises if decoded elements have values that the type forbids."""
    mask: Any = None
    """Bits of elements that are not stored."""
    decode_array: Callable[[Any, Array], None] | None = None
    """Decodes into an array of the shape of the chunk."""
    shard: Any = None
    """The layout of the encoding, if it is a shard."""
    decode_run: Callable[[Any], Array | None] | None = None
    """Decodes several encodings along a new first dimension; the result is valid until the thread decodes others."""
    run_length: int = 1
    """How many encodings are best decoded at once."""
    array_effort: float = 1
    """How long decoding takes if the encoding is not flat: 1 is as long as zstd."""

    # of codecs between bytes: ways to decode into existing memory; False means that `decode` has to be called
    decode_into: Callable[[Any, Any], bool] | None = None
    """Decodes into bytes of the exact size."""
    decode_span: Callable[[Any, Any, Span], bool] | None = None
    """Decodes at least the bytes of a span, each to its place in a buffer for all bytes."""
    spans_from_start: bool = False
    """`decode_span` also decodes everything before the span."""
    decode_joined: Callable[[Sequence[Any], Any], bool] | None = None
    """Decodes parts of one known size, one after the other."""

    # of codecs between bytes that do not need all of them at once
    encode_pieces: Callable[[Any], Iterator[Buffer]] | None = None
    """Yields the result of `encode` piece by piece."""
    pass_pieces: Callable[[Iterable[Buffer]], Iterator[Buffer]] | None = None
    """Takes such pieces instead of one buffer, and yields its own."""

    # their costs and guarantees
    effort: float = 1
    """How long decoding takes: 1 is as long as zstd."""
    scratch_size: int = 0
    """How many bytes it needs in addition to its input and output."""
    is_exact: bool = False
    """Decoding returns its input bit by bit."""


@dataclass(frozen=True, slots=True)
class FactoryAbilities:
    """The abilities of a factory of codecs; only with `members` can its codecs be given partially in specs."""

    members: Mapping[str, Any] | None = None
    """The table of the members of a configuration."""
    complete: Callable[[Any, Any], Codec] | None = None
    """Makes a codec from options that may be partial, for a given input."""
    normalize: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """Returns options without those that have no effect because of others."""
    always: frozenset[str] = frozenset()
    """Members that are required even in a spec."""


def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((each.name, None if each.default is MISSING else each.default) for each in fields(kind))


_OF_CODECS, _OF_FACTORIES = _defaults(Abilities), _defaults(FactoryAbilities)


def abilities_of(codec: BoundCodec) -> Abilities:
    """Return the abilities of a bound codec."""
    return Abilities(*[getattr(codec, name, default) for name, default in _OF_CODECS])


def factory_abilities_of(factory: CodecFactory) -> FactoryAbilities:
    """Return the abilities of a factory."""
    return FactoryAbilities(*[getattr(factory, name, default) for name, default in _OF_FACTORIES])


# Codec configurations.


@dataclass(frozen=True, slots=True)
class Member:
    """One member of a configuration.  `stored` says that a stored document must have it."""

    parse: Parser[Any]
    stored: bool = False


Members: TypeAlias = Mapping[str, Member]
Options: TypeAlias = Mapping[str, Any]


def read_options(members: Members, configuration: Mapping[str, Json]) -> dict[str, Any]:
    """Return the members present, parsed.  Raises `JsonError` with every problem of the configuration."""
    fields = Fields(configuration)
    out: dict[str, Any] = {}
    for name, member in members.items():
        if name in fields:
            out[name] = fields.take(name, member.parse)
        elif member.stored:
            fields.require(name, member.parse)
    fields.finish()
    return out


class Configured:
    """The part of a codec whose fields are its configuration: a frozen dataclass with a table of its `members`."""

    __slots__ = ()

    members: ClassVar[Members] = {}

    @classmethod
    def from_json(cls, configuration: Mapping[str, Json]) -> Self:
        """Return the codec of a stored configuration."""
        return cls(**read_options(cls.members, configuration))

    def to_json(self) -> dict[str, Json]:
        """Return the configuration as stored; a member that is None is left out."""
        given = {name: getattr(self, name) for name in self.members}
        return {name: value for name, value in given.items() if value is not None}


# How many bytes an encoding may decode to, and the errors when it does not.

FREE_BYTES = 64 << 20  # that anything may decode to
_RATIO = 256  # times its own size that more may


def too_short(expected: int, actual: int) -> FailedPreconditionError:
    """Return the error of `actual` bytes where `expected` are needed."""
    missing = expected - actual
    return FailedPreconditionError(f"Not enough data: expected at least {expected} or {missing} more; at byte {actual}")


def too_long(expected: int, actual: int | None = None) -> FailedPreconditionError:
    """Return the error of bytes left over after `expected`; `actual` is the whole length where it is known."""
    rest = "" if actual is None else f" remaining length: {actual - expected};"
    return FailedPreconditionError(f"End of data expected;{rest} at byte {expected}")


def too_large(limit: int) -> ResourceExhaustedError:
    """Return the error of data of unknown size that grows past `limit` bytes."""
    return ResourceExhaustedError(f"Decoded data is larger than the limit of {limit} bytes; refused")


def check_size(actual: int, expected: int | None) -> None:
    """Raise `FailedPreconditionError` unless `actual` bytes are what was expected, if anything was."""
    if expected is not None and actual != expected:
        raise too_short(expected, actual) if actual < expected else too_long(expected, actual)


def output_limit(decoded: ByteSpec, encoded_size: int) -> int:
    """Return the largest result that decoding `encoded_size` bytes may have."""
    if decoded.size is not None:
        return decoded.size
    limit = max(FREE_BYTES, _RATIO * encoded_size)
    return limit if decoded.max_size is None else min(limit, decoded.max_size)


def encoded_bound(decoded: ByteSpec) -> int | None:
    """Return a generous bound of the size of an encoding, for compressors applied to compressed data."""
    size = decoded.size if decoded.size is not None else decoded.max_size
    return None if size is None else 2 * size + 4096
