"""Which dimensions are meant: numbers, labels and ranges, resolved against the labels of a domain.

A selection is a tuple of ints, labels and `slice`s.  Negative numbers count from the last dimension.  Knows
nothing of what is done with the dimensions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from fsstore.errors import InvalidIndexError, OutOfRangeError, OutOfRangeIndexError, StoreError
from fsstore.values.json_value import quote

__all__ = ["DimSpecs", "in_expression", "indexing_error", "normal", "resolve", "resolve_new"]

DimSpecs: TypeAlias = "tuple[int | str | slice, ...]"


def indexing_error(error: StoreError) -> StoreError:
    """Return `error` as the `IndexError` that an indexing expression raises."""
    if isinstance(error, IndexError):
        return error
    kind = OutOfRangeIndexError if isinstance(error, OutOfRangeError) else InvalidIndexError
    return kind(error.message)


@contextmanager
def in_expression() -> Iterator[None]:
    """Turn the `StoreError`s of the body into `IndexError`s."""
    try:
        yield
    except StoreError as error:
        raise indexing_error(error) from error.__cause__


def normal(index: int, rank: int) -> int:
    """Return the number of a dimension, negative ones counted from the end."""
    if not -rank <= index < rank:
        raise StoreError(f"Dimension index {index} is outside valid range [-{rank}, {rank})")
    return index + rank if index < 0 else index


def _expanded(part: slice, rank: int) -> range:
    step = 1 if part.step is None else part.step
    if step == 0:
        raise StoreError("The step of a range of dimensions must not be 0")
    first = 0 if step > 0 else rank - 1
    start = first if part.start is None else normal(part.start, rank)
    if part.stop is None:
        stop = rank if step > 0 else -1
    else:
        stop = part.stop
        if not -rank - 1 <= stop <= rank:
            raise StoreError(
                f"Dimension exclusive stop index {stop} is outside valid range [{-rank - 1}, {rank}]"
            )
        if stop < 0:
            stop += rank
    if (stop - start) * step < 0:
        shown = ":".join("" if end is None else str(end) for end in (part.start, part.stop))
        raise StoreError(f"{shown}{'' if part.step is None else f':{part.step}'} is not a valid range")
    return range(start, stop, step)


def resolve(specs: DimSpecs, labels: Sequence[str]) -> list[int]:
    """Return the numbers of the dimensions meant by `specs`, in their order, each at most once."""
    dims: list[int] = []
    for part in specs:
        if isinstance(part, str):
            dims.append(_labeled(part, labels))
        elif isinstance(part, slice):
            dims += _expanded(part, len(labels))
        else:
            dims.append(normal(part, len(labels)))
    if len(set(dims)) != len(dims):
        twice = sorted(dim for dim, count in Counter(dims).items() if count > 1)
        raise StoreError(f"Input dimensions {{{', '.join(map(str, twice))}}} specified more than once")
    return dims


def _labeled(label: str, labels: Sequence[str]) -> int:
    if not label:
        raise StoreError("Dimension cannot be specified by empty label")
    if label not in labels:
        raise StoreError(f"Label {quote(label)} does not match one of {{{', '.join(map(quote, labels))}}}")
    return labels.index(label)


def resolve_new(specs: DimSpecs, rank: int) -> list[int]:
    """Return the numbers of dimensions in a space of `rank` whose labels are not known yet."""
    dims: list[int] = []
    for part in specs:
        if isinstance(part, str):
            raise StoreError("New dimensions cannot be specified by label")
        dims += _expanded(part, rank) if isinstance(part, slice) else [normal(part, rank)]
    for dim, count in Counter(dims).items():
        if count > 1:
            raise StoreError(f"Dimension {dim} specified more than once")
    return dims
