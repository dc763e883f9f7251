"""A resize through a view, as a request to the array below: new extents, and what must not be changed unseen.

A view may show a part of the array, with explicit bounds.  Unless the caller allows it (`resize_tied_bounds`), a resize
must not change elements that the view does not show, so it is refused if there are any.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fsstore.driver.contract import ResizeBounds
from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.index import IndexDomain, IndexTransform
from fsstore.index.interval import MAX_FINITE
from fsstore.index.output_map import ARRAY, SINGLE

__all__ = ["ResizeTarget", "target_of"]


Interval = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class ResizeTarget:
    """The new extent of each dimension of the array, None where it stays; `shown` bounds what the view shows."""

    extents: tuple[int | None, ...]
    shown: tuple[Interval, ...]

    def check_hidden(self, shape: tuple[int, ...]) -> None:
        """Raise `FailedPreconditionError` where an array of this shape has elements that the view hides."""
        for dimension, ((low, high), extent) in enumerate(zip(self.shown, shape, strict=True)):
            hidden = None
            if low is not None and low > 0:
                hidden = f"[0, {low})"
            elif high is not None and high < extent:
                hidden = f"[{high}, {extent})"
            if hidden is not None:
                raise FailedPreconditionError(
                    f"Resize operation would also affect output dimension {dimension} over the interval {hidden} but"
                    " `resize_tied_bounds` was not specified"
                )


def target_of(
    transform: IndexTransform, bounds: ResizeBounds, *, tied: bool, fixed: int = 0
) -> ResizeTarget | None:
    """Return what new bounds of a view ask of the array; None if they ask for nothing.

    `tied` is the leave to change what the view hides; the last `fixed` dimensions of the array have their extent.
    Raises `StoreError` for bounds that cannot be changed.
    """
    domain = transform.domain
    if len(bounds.inclusive_min) != domain.rank or len(bounds.exclusive_max) != domain.rank:
        raise StoreError(f"inclusive_min and exclusive_max must have rank {domain.rank}")
    requests = list(zip(bounds.inclusive_min, bounds.exclusive_max, strict=True))
    for dimension, request in enumerate(requests):
        _check_request(domain, dimension, request)
    if all(bound is None for request in requests for bound in request):
        return None
    if not tied:
        _check_maps(transform, requests)
    extents: list[int | None] = []
    for number, output in enumerate(transform.maps):
        request = requests[output.input_dimension] if output.method == SINGLE else (None, None)
        extents.append(_extent(number, output, request))
        if extents[-1] is not None and number >= transform.output_rank - fixed:
            raise _refused(output.input_dimension, "Cannot change explicit upper bound")
    shown = [(None, None) if tied else _shown(domain, output) for output in transform.maps]
    return ResizeTarget(tuple(extents), tuple(shown))


def _refused(dimension: int, why: str) -> StoreError:
    return StoreError(f"Invalid resize request for input dimension {dimension}: {why}")


def _check_request(domain: IndexDomain, dimension: int, request: Interval) -> None:
    low, high = request
    if low is not None and not domain.implicit_lower_bounds[dimension]:
        raise _refused(dimension, "Cannot change explicit lower bound")
    if high is not None and not domain.implicit_upper_bounds[dimension]:
        raise _refused(dimension, "Cannot change explicit upper bound")
    if high is None:
        return
    if high > MAX_FINITE:
        raise _refused(dimension, f"new upper bound {high} is above {MAX_FINITE}")
    least = domain.inclusive_min[dimension] if low is None else low
    if high < least and (low is not None or not domain.implicit_lower_bounds[dimension]):
        raise _refused(dimension, f"new upper bound {high} is below the lower bound {least}")


def _check_maps(transform: IndexTransform, requests: list[Interval]) -> None:
    """Raise unless each dimension of the array follows a dimension of the view of its own, or is one place of it."""
    seen: set[int] = set()
    for number, output in enumerate(transform.maps):
        if output.method == ARRAY:
            raise StoreError(
                f"Output dimension {number} has index array map but `resize_tied_bounds` was not specified"
            )
        if output.method != SINGLE:
            continue
        dimension = output.input_dimension
        if output.stride not in (1, -1) and requests[dimension] == (None, None):
            raise StoreError(
                f"Output dimension {number} depends on input dimension {dimension} with non-unit stride of"
                f" {output.stride} but `resize_tied_bounds` was not specified"
            )
        if dimension in seen:
            raise StoreError(
                f"Input dimension {dimension} corresponds to a diagonal but `resize_tied_bounds` was not specified"
            )
        seen.add(dimension)


def _extent(number: int, output: Any, request: Interval) -> int | None:
    """Return the new extent of a dimension of the array; its lower bound is 0."""
    if request == (None, None):
        return None
    if output.stride not in (1, -1):
        raise StoreError(
            f"Output dimension {number} depends on resized input dimension {output.input_dimension} with non-unit"
            f" stride of {output.stride}"
        )
    low, high = _below(output, request)
    if low is not None and low != 0:
        raise FailedPreconditionError(
            f"Cannot change inclusive lower bound of output dimension {number}, which is fixed at 0, to {low}"
        )
    if high is not None and not 0 <= high <= MAX_FINITE:
        raise _refused(output.input_dimension, f"output dimension {number} would have the upper bound {high}")
    return high


def _below(output: Any, interval: Interval) -> Interval:
    """Return the bounds in the array of an interval of the view, under a stride of 1 or -1."""
    low, high = interval
    if output.stride < 0:
        low, high = (None if high is None else 1 - high), (None if low is None else 1 - low)
    offset = output.offset
    return (None if low is None else low + offset), (None if high is None else high + offset)


def _shown(domain: IndexDomain, output: Any) -> Interval:
    """Return the part of a dimension of the array that a view shows: bounds that are implicit hide nothing."""
    if output.method != SINGLE:
        return output.offset, output.offset + 1
    dimension = output.input_dimension
    low = None if domain.implicit_lower_bounds[dimension] else domain.inclusive_min[dimension]
    high = None if domain.implicit_upper_bounds[dimension] else domain.exclusive_max[dimension]
    return _below(output, (low, high))
