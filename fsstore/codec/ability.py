"""Abilities of some bound codecs, and of some factories of codecs, beyond the contract.

Each field of `Abilities` is one of them: a method or attribute of that name which a bound codec may have.  It is looked
up only here, once for each array that is opened; an ability that a codec lacks has its default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeAlias

import numpy as np

from fsstore.codec.contract import Array, BoundCodec, Buffer, Codec, CodecFactory, Span

__all__ = ["Abilities", "FactoryAbilities", "abilities_of", "factory_abilities_of"]

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
    """Return what a bound codec can do."""
    return Abilities(*[getattr(codec, name, default) for name, default in _OF_CODECS])


def factory_abilities_of(factory: CodecFactory) -> FactoryAbilities:
    """Return what a factory can do."""
    return FactoryAbilities(*[getattr(factory, name, default) for name, default in _OF_FACTORIES])
