"""Which dimensions are meant: numbers, labels and ranges, resolved against the labels of a domain.

A selection is a tuple of ints, labels and `slice`s.  Negative numbers count from the last dimension.  Knows
nothing of what is done with the dimensions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from fsstore.errors import InvalidIndexError, OutOfRangeError, OutOfRangeIndexError, StoreError
from fsstore.index.value import check_rank
from fsstore.values.json_value import quote

__all__ = [
    "DimSpecs",
    "in_expression",
    "indexing_error",
    "normal",
    "resolve",
    "resolve_new",
    "resolve_only_new",
]

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
    if len(dims) > len(labels):
        raise StoreError(f"Number of dimensions ({len(dims)}) exceeds input rank ({len(labels)}).")
    _check_once(dims)
    return dims


def _check_once(dims: Sequence[int]) -> None:
    twice = [dim for place, dim in enumerate(dims) if dims[:place].count(dim) == 1]
    if twice:
        raise StoreError(f"Input dimensions {{{', '.join(map(str, twice))}}} specified more than once")


def _labeled(label: str, labels: Sequence[str]) -> int:
    if not label:
        raise StoreError("Dimension cannot be specified by empty label")
    if label not in labels:
        raise StoreError(f"Label {quote(label)} does not match one of {{{', '.join(map(quote, labels))}}}")
    return labels.index(label)


def resolve_new(
    specs: DimSpecs, rank: int, labels: Sequence[str], are_new: Callable[[int], Sequence[bool]]
) -> list[int]:
    """Return the numbers of dimensions in a space of `rank` that has new ones between those with `labels`.

    `are_new` tells, of that many selected dimensions, which are the new ones: those cannot have a label.
    """
    chosen: list[int | str] = []
    for part in specs:
        if isinstance(part, str):
            _labeled(part, labels)
        chosen += _expanded(part, rank) if isinstance(part, slice) else [part]
    dims = [each if isinstance(each, str) else normal(each, rank) for each in chosen]
    _check_new_once([dim for dim in dims if not isinstance(dim, str)])
    new = {dim for dim, is_new in zip(dims, are_new(len(dims)), strict=True) if is_new}
    if any(isinstance(dim, str) for dim in new):
        raise StoreError("Dimensions specified by label cannot be used with newaxis")
    kept = [dim for dim in range(rank) if dim not in new]
    places = [kept[labels.index(dim)] if isinstance(dim, str) else dim for dim in dims]
    _check_new_once(places)
    return places


def _check_new_once(dims: Sequence[int]) -> None:
    for place, dim in enumerate(dims):
        if dim in dims[:place]:
            raise StoreError(f"Dimension {dim} specified more than once")


def resolve_only_new(specs: DimSpecs, rank: int) -> list[int]:
    """Return the numbers of dimensions that are all new, in the space that adding them to `rank` makes."""
    if any(isinstance(part, str) for part in specs):
        raise StoreError("New dimensions cannot be specified by label")
    rank += sum(_new_in(part) if isinstance(part, slice) else 1 for part in specs)
    check_rank(rank)
    dims: list[int] = []
    for part in specs:
        if not isinstance(part, str):
            dims += _expanded(part, rank) if isinstance(part, slice) else [normal(part, rank)]
    _check_once(dims)
    return dims


def _new_in(part: slice) -> int:
    """Return how many dimensions a range adds: both ends must count from the same side."""
    step = 1 if part.step is None else part.step
    if step == 0:
        raise StoreError("The step of a range of dimensions must not be 0")
    start = part.start if part.start is not None else 0 if step > 0 else -1
    if part.stop is not None:
        length = (part.stop - start) * (1 if step > 0 else -1)
        one_side = (start < 0) == (part.stop < 0)
    else:
        length = -start if step > 0 else start + 1
        one_side = (start < 0) == (step > 0)
    if length < 0 or not one_side:
        raise StoreError(f"`{_range_text(part)}` is not a valid specification for new dimensions")
    count: int = -(-length // abs(step))
    return count


def _range_text(part: slice) -> str:
    shown = ":".join("" if end is None else str(end) for end in (part.start, part.stop))
    return shown if part.step in (None, 1) else f"{shown}:{part.step}"
