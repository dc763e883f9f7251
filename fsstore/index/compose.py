"""Composition of transforms, and the bounds it implies.

`compose(a_to_b, b_to_c)` maps points of `a` to `c`.  The bounds of `b` are carried back to `a`: an implicit bound of
`a` is replaced by what `b` implies, an explicit one must lie within the explicit bounds of `b`.  A constant
coordinate must lie within `b` too, unless there is no point that would use it.  Index arrays are combined by numpy,
never element by element; one that has shrunk to a single value becomes a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from fsstore.errors import OutOfRangeError, StoreError
from fsstore.index import interval as iv
from fsstore.index.interval import FAR, INF, UNBOUNDED, Bounds
from fsstore.index.output_map import (
    ARRAY,
    CONSTANT,
    SINGLE,
    IndexArray,
    OutputMap,
    array_map,
    check_values,
    constant_map,
    single_map,
)
from fsstore.index.value import DomainValue, TransformValue

D = TypeVar("D", bound=DomainValue)
T = TypeVar("T", bound=TransformValue)


def effective(domain: DomainValue, dim: int) -> tuple[int, int]:
    """Return the interval that indices must respect: an implicit bound counts as none."""
    low = -INF if domain.implicit_lower_bounds[dim] else domain.inclusive_min[dim]
    high = INF + 1 if domain.implicit_upper_bounds[dim] else domain.exclusive_max[dim]
    return low, high


def check_index(index: int, limits: tuple[int, int]) -> None:
    """Raise `OutOfRangeError` when `index` lies outside `limits`."""
    if not iv.contains(*limits, index):
        raise OutOfRangeError(f"Index {index} is outside valid range {iv.interval_text(*limits)}")


def propagate_bounds(base: DomainValue, maps: Sequence[OutputMap], domain: D) -> D:
    """Return `domain` with the bounds that `base` implies through `maps`, which map `domain` into `base`.

    Implicit bounds are replaced; explicit bounds outside the explicit bounds of `base` raise `OutOfRangeError`. Labels,
    and dimensions that no map follows, stay.
    """
    inferred: dict[int, Bounds] = {}
    for dim, output in enumerate(maps):
        if output.method != SINGLE:
            continue
        target = output.input_dimension
        try:
            bounds = iv.inverse_affine(base.bounds(dim), output.offset, output.stride)
        except StoreError as error:
            raise error.within(f"Propagating bounds from dimension {dim} to input dimension {target}") from None
        inferred[target] = iv.intersect_explicit(inferred[target], bounds) if target in inferred else bounds
    merged = [domain.bounds(dim) for dim in range(domain.rank)]
    unused = domain.explicitly_empty
    for dim, outer in inferred.items():
        merged[dim] = _resolved(dim, merged[dim], outer, unused=unused)
    low, high, implicit_low, implicit_high = zip(*merged, strict=True) if merged else ((), (), (), ())
    return domain._of(low, high, implicit_low, implicit_high, domain.labels)


def _resolved(dim: int, inner: Bounds, outer: Bounds, *, unused: bool) -> Bounds:
    """Return `inner` with implicit bounds replaced by those of `outer`; `unused` says that the domain has no points."""
    low, implicit_low = (outer.low, outer.implicit_low) if inner.implicit_low else (inner.low, False)
    high, implicit_high = (outer.high, outer.implicit_high) if inner.implicit_high else (inner.high, False)
    high = max(low, high)
    if inner.implicit_low and outer.low == outer.high and inner.low == inner.high == low + 1:
        low = high  # an empty dimension that is reversed ends one later than `inverse_affine` returns
    too_low = not outer.implicit_low and low < outer.low
    too_high = not outer.implicit_high and high > outer.high
    if low < high and (too_low or too_high) and not unused:
        raise OutOfRangeError(
            f"The indices {iv.interval_text(low, high)} along dimension {dim} of the view are out of bounds: "
            f"only {iv.interval_text(outer.low, outer.high)} exist.  "
            "Select a part of that, or resize an array that is to grow"
        )
    return Bounds(low, high, implicit_low, implicit_high)


def compose(a_to_b: TransformValue, b_to_c: T) -> T:
    """Return the transform that applies `a_to_b`, then `b_to_c`.

    `OutOfRangeError` when `a_to_b` certainly leaves the domain of `b_to_c`; `StoreError` when ranks differ or offsets
    overflow.
    """
    middle, inner = b_to_c.domain, a_to_b.maps
    if len(inner) != middle.rank:
        raise StoreError(
            f"Rank {b_to_c.input_rank} -> {b_to_c.output_rank} transform cannot be composed with rank "
            f"{a_to_b.input_rank} -> {a_to_b.output_rank} transform."
        )
    if _lies_within(a_to_b, middle):
        return b_to_c._of(a_to_b.domain, _settled(combined_maps(a_to_b, b_to_c, a_to_b.domain)))
    return _composed(a_to_b, b_to_c, propagate_bounds(middle, inner, a_to_b.domain))


def _lies_within(a_to_b: TransformValue, middle: DomainValue) -> bool:
    """Return whether all points certainly map into `middle`, so that bounds need not be carried back.

    True only for explicit bounds and affine maps, far from where integers overflow: nearly always.
    """
    domain = a_to_b._domain
    lows, highs = domain._low, domain._high
    if True in domain._implicit_low or True in domain._implicit_high:
        return False
    for (method, offset, stride, source, _, _), low, high in zip(a_to_b._maps, middle._low, middle._high, strict=True):
        if method == ARRAY or not (low > -FAR and high < FAR and -FAR < offset < FAR):
            return False
        first = last = offset
        if method == SINGLE:
            if lows[source] >= highs[source] or not -FAR < stride < FAR:
                return False
            first, last = offset + stride * lows[source], offset + stride * (highs[source] - 1)
        if not (low <= first < high and low <= last < high):
            return False
    return True


def compose_within(a_to_b: TransformValue, b_to_c: T) -> T:
    """Return `compose(a_to_b, b_to_c)` for an `a_to_b` whose bounds were made from those of `b_to_c`.

    The bounds are kept as they are: the preimage of an empty interval has no definite place, so carrying bounds back
    could only spoil them.
    """
    return _composed(a_to_b, b_to_c, a_to_b.domain)


def _composed(a_to_b: TransformValue, b_to_c: T, domain: DomainValue) -> T:
    if not a_to_b.domain.explicitly_empty:
        _check_constants(b_to_c.domain, a_to_b.maps)
    return b_to_c._of(domain, _settled(combined_maps(a_to_b, b_to_c, domain)))


def combined_maps(a_to_b: TransformValue, b_to_c: TransformValue, domain: DomainValue) -> list[OutputMap]:
    """Return the maps of `b_to_c` after `a_to_b`, over `domain`, whose bounds have been checked."""
    maps = []
    for dim, output in enumerate(b_to_c._maps):
        done = output
        if output[0] == SINGLE:
            done = _through_affine(output, a_to_b._maps[output[3]], b_to_c._domain, dim)
        elif output[0] == ARRAY and not domain.explicitly_empty:
            done = _through_array(output, a_to_b, domain, b_to_c._domain)
        maps.append(constant_map(0) if done[0] == ARRAY and domain.explicitly_empty else done)
    return maps


def _check_constants(middle: DomainValue, inner: Sequence[OutputMap]) -> None:
    for dim, output in enumerate(inner):
        if output.method == CONSTANT:
            limits = effective(middle, dim)
            if not iv.contains(*limits, output.offset):
                raise OutOfRangeError(
                    f"Checking bounds of constant output index map for dimension {dim}: "
                    f"Index {output.offset} is outside valid range {iv.interval_text(*limits)}"
                )


def _through_affine(output: OutputMap, inner: OutputMap, middle: DomainValue, dim: int) -> OutputMap:
    """Return `output`, affine in a dimension of the middle space, as a map of the first space."""
    _, offset, stride, _, _, _ = output
    if not offset and stride == 1 and inner[0] != ARRAY:
        return inner
    shown = f"output_strides[{dim}] = {stride} * {inner.stride}"
    offset = iv.check_int64(offset + stride * inner.offset, f"output offset for output dimension {dim}.")
    stride = iv.check_int64(stride * inner.stride, shown)
    if inner.method == CONSTANT:
        return constant_map(offset)
    if inner.method == SINGLE:
        return single_map(inner.input_dimension, offset, stride)
    assert inner.index_array is not None
    limits = _allowed(inner, effective(middle, output.input_dimension))
    return array_map(inner.index_array, offset, stride, limits)


def _allowed(inner: OutputMap, limits: tuple[int, int]) -> tuple[int, int]:
    """Return the values of the index array of `inner` whose images lie within `limits`."""
    allowed = iv.inverse_affine(Bounds(*limits, False, False), inner.offset, inner.stride)
    low, high = max(allowed.low, inner.index_range[0]), min(allowed.high, inner.index_range[1])
    return low, max(low, high)


def _through_array(output: OutputMap, a_to_b: TransformValue, domain: DomainValue, middle: DomainValue) -> OutputMap:
    """Return `output`, which reads an index array over the middle space, as a map of the first space."""
    array, rank = output.index_array, domain.rank
    assert array is not None
    positions: list[IndexArray | int | slice] = []
    order: list[int] = []
    affine: list[int] = []
    for dim, size in enumerate(array.shape):
        inner = a_to_b.maps[dim]
        origin = middle.inclusive_min[dim]
        if size == 1:
            positions.append(0)
        elif inner.method == CONSTANT:
            positions.append(inner.offset - origin)
        elif inner.method == SINGLE:
            positions.append(_steps(inner, domain, origin))
            affine.append(inner.input_dimension)
        else:
            positions.append(_looked_up(inner, effective(middle, dim), origin, dim))
            order.append(dim)
    if order or len(set(affine)) != len(affine):
        picked = _gathered(array, positions, a_to_b.maps, rank)
    else:
        picked = array[tuple(positions)].transpose(np.argsort(affine)) if affine else array[tuple(positions)]
        picked = picked.reshape([picked.shape[sorted(affine).index(d)] if d in affine else 1 for d in range(rank)])
    return array_map(frozen(picked), output.offset, output.stride, output.index_range)


def _steps(inner: OutputMap, domain: DomainValue, origin: int) -> slice:
    """Return the positions along one dimension of an index array that an affine map visits."""
    low, high = domain.inclusive_min[inner.input_dimension], domain.exclusive_max[inner.input_dimension]
    first = inner.offset + inner.stride * low - origin
    stop = first + inner.stride * (high - low)
    return slice(first, stop if stop >= 0 else None, inner.stride)


def _looked_up(inner: OutputMap, limits: tuple[int, int], origin: int, dim: int) -> IndexArray:
    """Return the positions that an index array gives, after checking them."""
    assert inner.index_array is not None
    check_values(inner.index_array, _allowed(inner, limits), f"In index array map for output dimension {dim}: ")
    return inner.index_array * inner.stride + (inner.offset - origin)


def _gathered(
    array: IndexArray, positions: list[IndexArray | int | slice], maps: Sequence[OutputMap], rank: int
) -> IndexArray:
    """Return `array` at `positions`, each spread over the dimensions of the first space that it depends on."""
    spread: list[IndexArray | int] = []
    for place, output, size in zip(positions, maps, array.shape, strict=True):
        if isinstance(place, slice):
            line = np.arange(*place.indices(size))
            shape = [1] * rank
            shape[output.input_dimension] = line.size
            spread.append(line.reshape(shape))
        else:
            spread.append(place)
    picked: IndexArray = array[tuple(spread)]
    return picked


def frozen(array: IndexArray) -> IndexArray:
    """Return `array`, made read-only."""
    if array.flags.writeable:
        array.flags.writeable = False
    return array


def settled(output: OutputMap) -> OutputMap:
    """Return `output`, as a constant when its index array holds a single value, which is then checked."""
    array = output.index_array
    if array is None or array.size != 1:
        return output
    value = int(array.reshape(-1)[0])
    check_index(value, output.index_range)
    return constant_map(iv.check_int64(output.offset + output.stride * value, "the offset of a constant index map"))


def _settled(maps: Sequence[OutputMap]) -> tuple[OutputMap, ...]:
    return tuple([settled(output) if output[0] == ARRAY else output for output in maps])


def intersection(bounds: Sequence[Bounds]) -> Bounds:
    """Return the intersection of all `bounds`; a side is implicit only if it is implicit in all of them."""
    if not bounds:
        return UNBOUNDED
    low, high = max(b.low for b in bounds), min(b.high for b in bounds)
    return Bounds(low, max(low, high), all(b.implicit_low for b in bounds), all(b.implicit_high for b in bounds))
