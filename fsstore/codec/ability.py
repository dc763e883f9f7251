"""Abilities of some bound codecs, and of some factories of codecs, beyond the contract.

Each field of `Abilities` is one of them: a method or attribute of that name which a bound codec may have.  It is looked
up here and nowhere else, once for each array that is opened; what a codec does not say is as the default has it.
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
    """The abilities of a bound codec, None or the default where it does not say."""

    # of array codecs
    order: tuple[int, ...] | None = None
    """It is a transpose: dimension i of what it gives is dimension `order[i]` of what it is given."""

    # of codecs that make bytes of arrays
    flat_dtype: _DType | None = None
    """The encoding is the elements of this dtype in C order and nothing else."""
    view: Callable[[Any], Array] | None = None
    """Like `decode`, but elements may keep the byte order in which they are stored."""
    verify: Callable[[Array], None] | None = None
    """Raises when decoded elements hold values that the type forbids."""
    mask: Any = None
    """Bits of elements that are not stored."""
    decode_array: Callable[[Any, Array], None] | None = None
    """Decodes into an array of the shape of the chunk."""
    shard: Any = None
    """The layout of the encoding, which is a shard."""
    decode_run: Callable[[Any], Array | None] | None = None
    """Decodes several encodings along a new first dimension, good until the thread decodes others."""
    run_length: int = 1
    """How many encodings are best decoded at once."""
    array_effort: float = 1
    """How long an encoding that is not flat decodes: 1 is as long as zstd."""

    # of codecs between bytes, ways into memory that is there already: False says that `decode` has to look
    decode_into: Callable[[Any, Any], bool] | None = None
    """Decodes into bytes of the exact size."""
    decode_span: Callable[[Any, Any, Span], bool] | None = None
    """Decodes at least the bytes of a span to their places in what the whole has room in."""
    spans_from_start: bool = False
    """`decode_span` also decodes all that is before the span."""
    decode_joined: Callable[[Sequence[Any], Any], bool] | None = None
    """Decodes parts of one known size, one after the other."""

    # of codecs between bytes that do not need all of them at once
    encode_pieces: Callable[[Any], Iterator[Buffer]] | None = None
    """Yields what `encode` would join, piece by piece."""
    pass_pieces: Callable[[Iterable[Buffer]], Iterator[Buffer]] | None = None
    """Takes such pieces in place of all in one, and yields its own."""

    # how much they take and keep
    effort: float = 1
    """How long it decodes: 1 is as long as zstd."""
    scratch_size: int = 0
    """How many bytes it takes beside what it is given and what it gives."""
    is_exact: bool = False
    """It gives back bit by bit whatever it was given."""


@dataclass(frozen=True, slots=True)
class FactoryAbilities:
    """The abilities of a factory of codecs; only with `members` can its codecs be given partially in specs."""

    members: Mapping[str, Any] | None = None
    """The table of the members of a configuration."""
    complete: Callable[[Any, Any], Codec] | None = None
    """Makes a codec of options that may be partial, for what it will be given."""
    normalize: Callable[[dict[str, Any]], dict[str, Any]] | None = None
    """Returns options without those that others make void."""
    always: frozenset[str] = frozenset()
    """Members that a codec cannot do without even in a spec."""


def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    return tuple((each.name, None if each.default is MISSING else each.default) for each in fields(kind))


_OF_CODECS, _OF_FACTORIES = _defaults(Abilities), _defaults(FactoryAbilities)


def abilities_of(codec: BoundCodec) -> Abilities:
    """Return what a bound codec can do."""
    return Abilities(*[getattr(codec, name, default) for name, default in _OF_CODECS])


def factory_abilities_of(factory: CodecFactory) -> FactoryAbilities:
    """Return what a factory can do."""
    return FactoryAbilities(*[getattr(factory, name, default) for name, default in _OF_FACTORIES])
