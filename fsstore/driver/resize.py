"""Changing the shape of a chunked array, through a view of it.

The metadata document is replaced under a condition, so that two resizes never mix; chunks that lie outside the new
shape are deleted first, chunks partly outside stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable

from fsstore import _runtime
from fsstore.driver.contract import Bounds, ResizeOptions
from fsstore.driver.metadata_entry import MetadataEntry
from fsstore.driver.outside import delete_outside
from fsstore.errors import AbortedError, FailedPreconditionError, StoreError
from fsstore.format.contract import ChunkedArray
from fsstore.index import IndexTransform
from fsstore.index.output_map import ARRAY, SINGLE
from fsstore.kvstore.contract import UNKNOWN

__all__ = ["Resize"]

_ATTEMPTS = 100
_MAX_EXTENT = 2**62 - 2


class Resize:
    """One resize of one array."""

    def __init__(
        self, entry: MetadataEntry, current: Callable[[], ChunkedArray], options: ResizeOptions, *, fixed: int
    ) -> None:
        self._entry, self._current, self._options, self._fixed = entry, current, options, fixed

    async def run(self, transform: IndexTransform, bounds: Bounds) -> ChunkedArray:
        """Resize; return the new array."""
        shape = self.target_shape(transform, bounds)
        if any(size is not None for size in shape) and self._affects_fields():
            raise FailedPreconditionError(
                "Resize operation would affect other fields but `resize_tied_bounds` was not specified"
            )
        for attempt in range(_ATTEMPTS):
            old = await self._entry.read(fresh_after=float("inf"))
            if old is None:
                raise FailedPreconditionError(f"Metadata at {self._entry.describe()} does not exist")
            new_shape = tuple(a if b is None else b for a, b in zip(old.shape, shape, strict=True))
            self._check_direction(old.shape, new_shape)
            new = self._entry.format.resized(old, new_shape)
            if not self._options.resize_metadata_only:
                await delete_outside(self._entry.store, old, new_shape)
            stamp = await self._replace_document(new)
            if stamp is not None:
                self._entry.keep(new, *stamp)
                return new
            await _runtime.pause(0.001 * attempt)
        raise AbortedError(f"{self._entry.describe()} was changed by other writers at every attempt")

    async def _replace_document(self, new: ChunkedArray) -> tuple[bytes, float] | None:
        entry = self._entry
        conditional = entry.store.driver.features.conditional_write
        condition = entry.generation if conditional else UNKNOWN
        stamp = await entry.store.write(entry.key, entry.format.encode(new), condition)
        if conditional and stamp.generation == UNKNOWN:
            return None
        return stamp.generation, stamp.time

    def target_shape(self, transform: IndexTransform, bounds: Bounds) -> list[int | None]:
        """Return the new extent of each dimension of the array; None keeps it."""
        domain = transform.domain
        if len(bounds.inclusive_min) != domain.rank or len(bounds.exclusive_max) != domain.rank:
            raise StoreError(f"inclusive_min and exclusive_max must have rank {domain.rank}")
        shape: list[int | None] = [None] * transform.output_rank
        for dimension in range(domain.rank):
            low, high = bounds.inclusive_min[dimension], bounds.exclusive_max[dimension]
            if low is not None and low != domain.inclusive_min[dimension]:
                raise StoreError(
                    f"Invalid resize request for input dimension {dimension}: Cannot change explicit lower bound"
                )
            if high is None:
                continue
            if high > _MAX_EXTENT:
                raise StoreError(
                    f"Invalid resize request for input dimension {dimension}: new upper bound {high} is above"
                    f" {_MAX_EXTENT}"
                )
            if high < domain.inclusive_min[dimension]:
                raise StoreError(
                    f"Invalid resize request for input dimension {dimension}: new upper bound {high} is below the"
                    f" lower bound {domain.inclusive_min[dimension]}"
                )
            output = self._output_of(transform, dimension)
            if output >= transform.output_rank - self._fixed:
                raise StoreError(
                    f"Invalid resize request for input dimension {dimension}: Cannot change explicit upper bound"
                )
            shape[output] = high + transform.maps[output].offset
        return shape

    def _output_of(self, transform: IndexTransform, dimension: int) -> int:
        """Return the dimension of the array that an input dimension stands for, if it can be resized."""
        tied = self._options.resize_tied_bounds
        outputs = [
            number
            for number, output in enumerate(transform.maps)
            if output.method == SINGLE and output.input_dimension == dimension
        ]
        explicit = not transform.domain.implicit_upper_bounds[dimension]
        if not outputs or (explicit and not tied):
            raise StoreError(
                f"Invalid resize request for input dimension {dimension}: Cannot change explicit upper bound"
            )
        if len(outputs) > 1 and not tied:
            raise StoreError(
                f"Input dimension {dimension} corresponds to a diagonal but `resize_tied_bounds` was not specified"
            )
        output = transform.maps[outputs[0]]
        if output.stride != 1:
            raise StoreError(
                f"Output dimension {outputs[0]} depends on resized input dimension {dimension} with non-unit stride"
                f" of {output.stride}"
            )
        start = transform.domain.inclusive_min[dimension] + output.offset
        others = [n for n, o in enumerate(transform.maps) if o.method != SINGLE]
        if not tied and (start != 0 or any(transform.maps[n].method == ARRAY for n in others)):
            raise FailedPreconditionError(
                f"Resize operation would also affect output dimension {outputs[0]} over the interval [0, {start}) but"
                " `resize_tied_bounds` was not specified"
            )
        if not tied and others:
            raise FailedPreconditionError(
                f"Resize operation would also affect output dimension {others[0]} outside the view but"
                " `resize_tied_bounds` was not specified"
            )
        return outputs[0]

    def _check_direction(self, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        for dimension, (before, after) in enumerate(zip(old, new, strict=True)):
            change = f"output dimension {dimension} from [0, {before}) to [0, {after})"
            if after > before and self._options.shrink_only:
                raise FailedPreconditionError(
                    f"Resize operation would expand {change} but `shrink_only` was specified"
                )
            if after < before and self._options.expand_only:
                raise FailedPreconditionError(
                    f"Resize operation would shrink {change} but `expand_only` was specified"
                )

    def _affects_fields(self) -> bool:
        """Return whether other fields than the one shown would be resized, without leave."""
        model = self._current().model
        shared = model.component is not None and len(model.chain.chunk.dtype.names or ()) > 1
        return shared and not self._options.resize_tied_bounds

    def reset(self, transform: IndexTransform) -> IndexTransform:
        """Return the view with its upper bounds open again, to take the new ones."""
        if self._options.resize_tied_bounds:
            opened: IndexTransform = transform.mark_bounds_implicit[None:True]
            return opened
        return transform
