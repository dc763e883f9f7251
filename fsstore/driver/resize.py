"""Changing the shape of a chunked array, through a view of it.

The metadata document is replaced by a conditional write, so that two resizes never mix.  Only then are the chunks
outside the new shape deleted, so a resize that fails loses nothing.  If it is interrupted, it leaves chunks behind
that reappear when the array grows.  Chunks that are partly outside do not change.
"""

from __future__ import annotations

from collections.abc import Callable

from fsstore.chunk.write.request import finish
from fsstore.driver.collected import renew_collected
from fsstore.driver.contract import ResizeBounds, ResizeOptions
from fsstore.driver.metadata_entry import MetadataEntry
from fsstore.driver.resize_target import target_of
from fsstore.driver.trim_chunks import delete_outside
from fsstore.driver.tuning import METADATA_ATTEMPTS
from fsstore.errors import AbortedError, FailedPreconditionError
from fsstore.format.contract import ChunkedArray
from fsstore.index import IndexTransform
from fsstore.kvstore.contract.driver import UNKNOWN
from fsstore.runtime import execution

__all__ = ["Resize"]


class Resize:
    """One resize of one array."""

    def __init__(
        self, entry: MetadataEntry, current: Callable[[], ChunkedArray], options: ResizeOptions, *, fixed: int
    ) -> None:
        self._entry, self._current, self._options, self._fixed = entry, current, options, fixed

    async def run(self, transform: IndexTransform, bounds: ResizeBounds) -> ChunkedArray:
        """Resize; return the new array."""
        tied = self._options.resize_tied_bounds
        target = target_of(transform, bounds, tied=tied, fixed=self._fixed)
        if target is None:
            return self._current()
        if self._affects_fields():
            raise FailedPreconditionError(
                "Resize operation would affect other fields but `resize_tied_bounds` was not specified"
            )
        for attempt in range(METADATA_ATTEMPTS):
            old = await self._entry.read(fresh_after=float("inf"))
            if old is None:
                raise FailedPreconditionError(f"Metadata at {self._entry.describe()} does not exist")
            target.check_hidden(old.shape)
            new_shape = tuple(
                size if wanted is None else wanted
                for size, wanted in zip(old.shape, target.extents, strict=True)
            )
            self._check_direction(old.shape, new_shape)
            if self._options.ask is not None:
                await self._options.ask(old)
            new = self._entry.format.resized(old, new_shape)
            stamp = await self._replace_document(new)
            if stamp is not None:
                self._entry.stored(new, *stamp)
                await renew_collected(self._entry.store, self._entry.key)
                if not self._options.resize_metadata_only:
                    await finish(self._entry.store)  # what was begun in the larger shape
                    await delete_outside(self._entry, old, new)
                return new
            await execution.pause(0.001 * attempt)
        raise AbortedError(f"{self._entry.describe()} was changed by other writers at every attempt")

    async def _replace_document(self, new: ChunkedArray) -> tuple[bytes, float] | None:
        entry = self._entry
        conditional = entry.store.driver.features.conditional_write
        condition = entry.generation if conditional else UNKNOWN
        stamp = await entry.store.write(entry.key, entry.format.encode(new), condition)
        if conditional and stamp.generation == UNKNOWN:
            return None
        return stamp.generation, stamp.time

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
