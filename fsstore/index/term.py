"""The terms of a numpy-style index, parsed.

A term is an int, a slice of ints, `None` (a new dimension), `...`, or an array of int64 or bool.  Slices whose parts
are sequences stand for several slices.  Knows nothing of domains.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, NamedTuple, SupportsIndex, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fsstore.errors import InvalidIndexError
from fsstore.index.interval import INT64
from fsstore.index.output_map import index_array

__all__ = ["NumpyIndex", "NumpyIndexTerm", "NumpyIndexingSpec", "Term", "parse_index"]

NumpyIndexTerm: TypeAlias = (
    SupportsIndex
    | slice
    | EllipsisType
    | NDArray[Any]
    | Sequence[SupportsIndex]
    | Sequence[Sequence[SupportsIndex]]
    | None
)
"""The types of a term between the commas of `view[...]`, before it is parsed."""
NumpyIndexingSpec: TypeAlias = NumpyIndexTerm | tuple[NumpyIndexTerm, ...]
"""The types of an index in the brackets of `view[...]` as NumPy means it."""
Term: TypeAlias = "int | slice | EllipsisType | NDArray[Any] | None"
_INT64 = np.dtype(np.int64)
_NOT_INTEGERS = "Arrays used as indices must be of integer (or boolean) type"
_NOT_AN_INDEX = (
    "Only integers, slices (`:`), ellipsis (`...`), tensorstore.newaxis (`None`) and integer or boolean arrays are "
    "valid indices"
)


class NumpyIndex(NamedTuple):
    """The terms; `scalar` tells that one term was given alone, which then applies to all selected dimensions."""

    terms: tuple[Term, ...]
    scalar: bool

    def __str__(self) -> str:
        """Return the terms as they would be written between brackets."""
        text = ",".join(map(_term_text, self.terms))
        return f"{text}," if len(self.terms) == 1 and not self.scalar else text

    def same(self, other: NumpyIndex) -> bool:
        """Return whether the terms are equal, arrays by type, shape and value."""
        if self.scalar != other.scalar or len(self.terms) != len(other.terms):
            return False
        return all(map(_same_term, self.terms, other.terms))


def _same_term(a: Term, b: Term) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and bool((a == b).all())
    return type(a) is type(b) and a == b


def _term_text(term: Term) -> str:
    if term is None:
        return "None"
    if term is Ellipsis:
        return "..."
    if isinstance(term, slice):
        text = ":".join("" if end is None else str(end) for end in (term.start, term.stop))
        return text if term.step is None else f"{text}:{term.step}"
    return repr(term)


def parse_index(key: Any) -> NumpyIndex:
    """Return the terms of `key`; `InvalidIndexError` or `TypeError` when something is no index."""
    if not isinstance(key, tuple):
        terms = _parse_term(key)
        return NumpyIndex(terms, scalar=len(terms) == 1 and not _many(key))
    parsed: list[Term] = []
    for item in key:
        parsed += _parse_term(item)
    if [term is Ellipsis for term in parsed].count(True) > 1:
        raise InvalidIndexError("An index can only have a single ellipsis (`...`)")
    return NumpyIndex(tuple(parsed), scalar=False)


def _many(key: Any) -> bool:
    """Return whether one term may stand for several dimensions, or has dimensions of its own."""
    if isinstance(key, slice):
        return any(_is_vector(part) for part in (key.start, key.stop, key.step))
    return key is not None and (
        isinstance(key, bool | np.bool_ | np.ndarray) or not hasattr(type(key), "__index__")
    )


def _parse_term(item: Any) -> tuple[Term, ...]:
    if isinstance(item, np.ndarray):
        return (_parse_array(item),)
    if item is None or item is Ellipsis:
        return (item,)
    if isinstance(item, slice):
        return _parse_slice(item)
    if not isinstance(item, bool | np.bool_) and hasattr(type(item), "__index__"):
        number = operator.index(item)
        if -INT64 <= number < INT64:
            return (number,)
    return (_parse_array(item),)


def _parse_array(item: Any) -> NDArray[Any]:
    if isinstance(item, str | bytes):
        raise InvalidIndexError(_NOT_AN_INDEX)
    try:
        array = np.asarray(item)
    except (TypeError, ValueError, OverflowError):
        raise InvalidIndexError(_NOT_AN_INDEX) from None
    if array.dtype == np.bool_:
        return np.array(array)
    if array.dtype.kind not in "iu" and (array.size or isinstance(item, np.ndarray)):
        raise InvalidIndexError(_NOT_INTEGERS if isinstance(item, np.ndarray) else _NOT_AN_INDEX)
    if array.dtype != _INT64 and not np.can_cast(array.dtype, np.int64) and array.size:
        what = "array data" if array.ndim else "scalar"
        raise TypeError(
            f"Cannot cast {what} from {array.dtype!r} to dtype('int64') according to the rule 'safe'"
        )
    return index_array(array.astype(np.int64, copy=False))


def _is_vector(part: Any) -> bool:
    return isinstance(part, Sequence | np.ndarray) and not isinstance(part, str) and np.ndim(part) > 0


def _slice_int(part: Any) -> int | None:
    if part is None:
        return None
    if hasattr(part, "__index__"):
        number = operator.index(part)
        if -INT64 <= number < INT64:
            return number
    raise TypeError("slice indices must be integers or None or have an __index__ method")


def _parse_slice(item: slice) -> tuple[Term, ...]:
    parts = {"start": item.start, "stop": item.stop, "step": item.step}
    lengths = {name: len(part) for name, part in parts.items() if _is_vector(part)}
    if not lengths:
        if item.start is None and item.stop is None and item.step is None:
            return (item,)
        return (slice(*map(_slice_int, parts.values())),)
    first, length = next(iter(lengths.items()))
    for name, other in lengths.items():
        if other == length:
            first = name  # the message compares neighbours
        else:
            raise InvalidIndexError(
                f"{name}={_listed(parts[name])} (rank {other}) is incompatible with {first}={_listed(parts[first])} "
                f"(rank {length})"
            )
    columns = [part if name in lengths else [part] * length for name, part in parts.items()]
    return tuple(slice(*map(_slice_int, row)) for row in zip(*columns, strict=True))


def _listed(part: Any) -> str:
    return f"[{','.join(map(str, part))}]"
