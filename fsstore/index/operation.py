"""Operations on selected dimensions of a transform: label, translate, stride, transpose, diagonal, implicitness.

A selection is a tuple of ints, labels and slices, resolved against the labels of a domain; negative numbers count from
the end.  Each operation takes a transform, the selected input dimensions and an argument, and returns a new transform.
Where the dimensions may be None, all of them are selected.  The arguments are parsed by the `*_argument` functions,
which raise `TypeError`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, TypeVar

import numpy as np

from fsstore.errors import InvalidIndexError, OutOfRangeError, OutOfRangeIndexError, StoreError
from fsstore.index import interval as iv
from fsstore.index.compose import combined_maps, compose, intersection
from fsstore.index.interval import FAR, INF, INT64, MAX_FINITE, MIN_FINITE, Bounds
from fsstore.index.output_map import SINGLE, OutputMap, single_map
from fsstore.index.value import DomainValue, TransformValue, check_labels, check_rank
from fsstore.values.json_value import as_flag, quote

# The selected dimensions: numbers, labels and ranges, resolved against the labels of a domain.

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
    """Return the number of a dimension; a negative one counts from the end."""
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
            raise StoreError(f"Dimension exclusive stop index {stop} is outside valid range [{-rank - 1}, {rank}]")
        if stop < 0:
            stop += rank
    if (stop - start) * step < 0:
        shown = ":".join("" if end is None else str(end) for end in (part.start, part.stop))
        raise StoreError(f"{shown}{'' if part.step is None else f':{part.step}'} is not a valid range")
    return range(start, stop, step)


def resolve(specs: DimSpecs, labels: Sequence[str]) -> list[int]:
    """Return the numbers of the dimensions that `specs` selects, in their order, each at most once."""
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

    `are_new` returns, for a number of selected dimensions, which of them are new: a new dimension cannot have a label.
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
    """Return the numbers of dimensions that are all new, in the space of `rank` dimensions and the new ones."""
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
    """Return the number of dimensions in a range of new ones: both ends must count from the same side."""
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


T = TypeVar("T", bound=TransformValue)
Vector: TypeAlias = "int | tuple[int | None, ...] | None"


def labels_argument(labels: Any) -> tuple[str, ...]:
    """Return the labels given as one string or a sequence of strings."""
    if isinstance(labels, str):
        return (labels,)
    names = tuple(labels) if isinstance(labels, Iterable) and not isinstance(labels, Mapping) else (labels,)
    if not all(isinstance(name, str) for name in names):
        raise TypeError("labels must be a string or a sequence of strings")
    return names


def vector_argument(vector: Any) -> Vector:
    """Return one int or None, or a tuple of them."""
    if type(vector) is tuple:
        for item in vector:
            if type(item) is not int or not -FAR < item < FAR:
                return tuple(map(iv.int64_or_none, vector))
        return vector
    if vector is None or (hasattr(vector, "__index__") and not isinstance(vector, np.ndarray)):
        return iv.int64_or_none(vector)
    if isinstance(vector, str | bytes) or not isinstance(vector, Sequence | np.ndarray):
        raise TypeError(f"expected integers, not {type(vector).__name__}")
    return tuple([iv.int64_or_none(item) for item in vector])


def implicit_argument(implicit: Any) -> tuple[bool | None, bool | None]:
    """Return the marks of the lower and the upper side."""
    if isinstance(implicit, slice):
        if implicit.step is not None:
            raise TypeError("mark_bounds_implicit takes [lower:upper]")
        lower, upper = implicit.start, implicit.stop
    else:
        lower = upper = implicit
    for mark in (lower, upper):
        if isinstance(mark, str | bytes | list | tuple):
            raise TypeError(f"mark_bounds_implicit takes True, False or None, not {mark!r}")
    return _mark(lower), _mark(upper)


def _mark(value: Any) -> bool | None:
    return None if value is None else as_flag("mark_bounds_implicit", value)


def _spread(vector: Vector, count: int) -> tuple[int | None, ...]:
    if not isinstance(vector, tuple):
        return (vector,) * count
    if not vector:
        return (None,) * count
    if len(vector) != count:
        raise StoreError(f"Number of dimensions ({count}) does not match number of indices ({len(vector)})")
    return vector


def _with_domain(transform: T, domain: DomainValue, maps: Sequence[OutputMap] | None = None) -> T:
    return transform._of(domain, transform.maps if maps is None else tuple(maps))


def label(transform: T, dims: Sequence[int] | None, names: Sequence[str]) -> T:
    """Return `transform` with `names` on `dims`; labels stay unique."""
    dims = range(transform.input_rank) if dims is None else dims
    if len(dims) != len(names):
        raise StoreError(f"Number of dimensions ({len(dims)}) does not match number of labels ({len(names)}).")
    domain = transform._domain
    labels = list(domain._labels)
    for dim, name in zip(dims, names, strict=True):
        labels[dim] = name
    check_labels(labels)
    sides = domain._low, domain._high, domain._implicit_low, domain._implicit_high
    return _with_domain(transform, domain._of(*sides, tuple(labels)))


def translate_by(transform: T, dims: Sequence[int] | None, vector: Vector) -> T:
    """Return `transform` with the coordinates of `dims` increased; every point keeps its output."""
    return _moved(transform, dims, vector, 1)


def translate_backward_by(transform: T, dims: Sequence[int] | None, vector: Vector) -> T:
    """Return `transform` with the coordinates of `dims` decreased; every point keeps its output."""
    return _moved(transform, dims, vector, -1)


def _moved(transform: T, dims: Sequence[int] | None, vector: Vector, sign: int) -> T:
    shifts = [0] * transform._domain.rank
    dims = range(len(shifts)) if dims is None else dims
    offsets = _spread(vector, len(dims))
    for place, dim in enumerate(dims):
        shifts[dim] = sign * (offsets[place] or 0)
    return _translated(transform, shifts)


def translate_to(transform: T, dims: Sequence[int] | None, vector: Vector) -> T:
    """Return `transform` with new origins of `dims`, which must have lower bounds."""
    low = transform._domain._low
    shifts = [0] * len(low)
    dims = range(len(low)) if dims is None else dims
    origins = _spread(vector, len(dims))
    for place, dim in enumerate(dims):
        origin, first = origins[place], low[dim]
        if origin is not None:
            if first < MIN_FINITE or not MIN_FINITE <= origin <= MAX_FINITE:
                raise _no_origin(transform._domain, dim, origin)
            shifts[dim] = origin - first
    return _translated(transform, shifts)


def _no_origin(domain: DomainValue, dim: int, origin: int) -> StoreError:
    low = domain._low[dim]
    if low == -INF:
        return StoreError(f"Interval {iv.interval_text(low, domain._high[dim])} is not bounded below")
    limits = iv.interval_text(MIN_FINITE, MAX_FINITE + 1)
    return OutOfRangeError(f"Origin {origin} is outside valid range {limits}")


def _translated(transform: T, shifts: Sequence[int]) -> T:
    domain = transform._domain
    low, high = list(domain._low), list(domain._high)
    for dim, shift in enumerate(shifts):
        if shift:
            first, last = low[dim] + shift, high[dim] + shift
            if not (-FAR < shift < FAR and first > -FAR and last < FAR):
                first, last = iv.shift(low[dim], high[dim], shift)
            low[dim], high[dim] = first, last
    moved = domain._of(tuple(low), tuple(high), domain._implicit_low, domain._implicit_high, domain._labels)
    maps = list(transform._maps)
    for dim, output in enumerate(maps):
        method, offset, step, source, _, _ = output
        if method == SINGLE and shifts[source]:
            change = step * shifts[source]
            if not (-INT64 <= change < INT64 and -INT64 <= offset - change < INT64):
                raise StoreError(f"Integer overflow computing output offset for output dimension {dim}.")
            maps[dim] = single_map(source, offset - change, step)
    return transform._of(moved, tuple(maps))


def stride(transform: T, dims: Sequence[int], vector: Vector) -> T:
    """Return the view of the points whose coordinates in `dims` are multiples, divided by the strides."""
    domain = transform.domain
    bounds = [domain.bounds(dim) for dim in range(domain.rank)]
    maps = [single_map(dim) for dim in range(domain.rank)]
    for dim, step in zip(dims, _spread(vector, len(dims)), strict=True):
        place = f"Applying stride to input dimension {dim}"
        if not step:
            raise StoreError(f"{place}: Stride must be {'non-zero' if step == 0 else 'an integer'}")
        try:
            bounds[dim] = iv.inverse_affine(bounds[dim], 0, step)
        except StoreError as error:
            raise error.within(place) from None
        maps[dim] = single_map(dim, 0, step)
    inner = _with_domain(transform, domain._of_bounds(bounds, domain.labels), maps)
    return compose(inner, transform)


def reorder(transform: T, order: Sequence[int]) -> T:
    """Return `transform` with input dimension `order[i]` as its dimension `i`."""
    to = {old: new for new, old in enumerate(order)}
    maps = []
    for output in transform.maps:
        if output.method == SINGLE:
            maps.append(single_map(to[output.input_dimension], output.offset, output.stride))
        elif output.index_array is not None:
            maps.append(output._replace(index_array=output.index_array.transpose(order)))
        else:
            maps.append(output)
    return _with_domain(transform, transform._domain.dims(order), maps)


def permute(transform: T, specs: DimSpecs | None) -> T:
    """Return `transform` with its dimensions in the order `specs`, by number or label; None reverses them."""
    rank = transform.input_rank
    if specs is None:
        return reorder(transform, range(rank)[::-1])
    order: list[int] = []
    for part in specs:
        order += resolve((part,), transform.domain.labels)
    if sorted(order) != list(range(rank)):
        raise StoreError(
            f"Source dimension list {{{', '.join(map(str, order))}}} is not a valid dimension permutation "
            f"for rank {rank}"
        )
    return reorder(transform, order)


def diagonal(transform: T, dims: Sequence[int]) -> T:
    """Return the view in which `dims` are one dimension, the first, over the intersection of their intervals."""
    domain = transform.domain
    chosen = set(dims)
    rest = [dim for dim in range(domain.rank) if dim not in chosen]
    bounds: list[Bounds] = [intersection([domain.bounds(dim) for dim in dims]), *(domain.bounds(dim) for dim in rest)]
    labels = ["", *(domain.labels[dim] for dim in rest)]
    maps = [single_map(0 if dim in chosen else 1 + rest.index(dim)) for dim in range(domain.rank)]
    inner = _with_domain(transform, domain._of_bounds(bounds, labels), maps)
    return _with_domain(transform, inner.domain, combined_maps(inner, transform, inner.domain))


def mark_bounds_implicit(transform: T, dims: Sequence[int] | None, lower: bool | None, upper: bool | None) -> T:
    """Return `transform` with the bounds of `dims` marked; None leaves a side as it is."""
    domain = transform.domain
    dims = range(domain.rank) if dims is None else dims
    first, last = list(domain.implicit_lower_bounds), list(domain.implicit_upper_bounds)
    for dim in dims:
        if lower or upper:
            _check_unindexed(transform, dim)
        first[dim] = first[dim] if lower is None else lower
        last[dim] = last[dim] if upper is None else upper
    marked = domain._of(domain.inclusive_min, domain.exclusive_max, tuple(first), tuple(last), domain.labels)
    return _with_domain(transform, marked)


def _check_unindexed(transform: TransformValue, dim: int) -> None:
    for number, output in enumerate(transform.maps):
        if output.index_array is not None and output.index_array.shape[dim] != 1:
            raise StoreError(
                f"Cannot mark input dimension {dim} as having implicit bounds because it indexes the index array map "
                f"for output dimension {number}"
            )
