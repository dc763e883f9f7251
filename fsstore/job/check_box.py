"""Checking a box of an array: whether it can be read, and whether it says what another array does.

A box that is not right is looked at again chunk by chunk, so that the report names the chunks.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from fsstore.chunk.regions import Region, Regions
from fsstore.errors import StoreError
from fsstore.job.order import Order
from fsstore.runtime import execution
from fsstore.runtime.future import Future

__all__ = ["checked_box"]


async def checked_box(order: Order, box: Region) -> tuple[int, int, list[tuple[Any, ...]]]:
    """Return how many bytes were read, how many chunks are mere fill, and what is wrong: start, stop, what, kind."""
    values, other, failure = await _read(order, box)
    item = order.source.dtype.numpy_dtype.itemsize
    nbytes = int(np.prod(box.shape, dtype=np.int64)) * max(1, item)
    chunks = Regions(box.start, box.stop, order.sources.step, order.sources.anchor)
    if failure is None:
        fill, wrong = await execution.offload(_judged, order, box, chunks, (values, other))
        return nbytes, fill, wrong
    if len(chunks) == 1:
        return nbytes, 0, [(box.start, box.stop, str(failure), "damaged")]
    filled, found = 0, []
    del values, other
    for each in (chunks[at] for at in range(len(chunks))):
        values, other, failure = await _read(order, each)
        if failure is not None:
            found.append((each.start, each.stop, str(failure), "damaged"))
            continue
        one = Regions(each.start, each.stop, chunks.step, chunks.anchor)
        fill, wrong = await execution.offload(_judged, order, each, one, (values, other))
        filled += fill
        found += wrong
    return nbytes, filled, found


async def _read(order: Order, box: Region) -> tuple[Any, Any, StoreError | None]:
    """Return the values of both arrays, both read at once, and why those that are checked cannot be read."""
    begun: Future[Any] = await execution.offload(order.source[box.slices].read)
    other = None
    if order.target is not None:
        expected: Future[Any] = await execution.offload(order.target[box.slices].read)
        other = await expected
    try:
        return await begun, other, None
    except StoreError as error:
        return None, None, error


def _judged(
    order: Order, box: Region, chunks: Regions, both: tuple[Any, Any]
) -> tuple[int, list[tuple[Any, ...]]]:
    values, wanted = both
    fill = _of_fill(order.source.fill_value, values, box, chunks)
    if wanted is None:
        return fill, []
    differing = _differ(values, wanted)
    if not differing.any():
        return fill, []
    found = []
    for each in (chunks[at] for at in range(len(chunks))):
        inside = tuple(
            slice(low - start, high - start)
            for low, high, start in zip(each.start, each.stop, box.start, strict=True)
        )
        part = differing[inside]
        if part.any():
            what = _difference(each, part, values[inside], wanted[inside])
            found.append((each.start, each.stop, what, "differs"))
    return fill, found


def _of_fill(fill: Any, values: Any, box: Region, chunks: Regions) -> int:
    """Return how many chunks of a box hold the fill value only; those that are cut by the box do not count."""
    if fill is None or values.dtype.hasobject:
        return 0
    is_fill = ~_differ(values, np.broadcast_to(np.asarray(fill, values.dtype), values.shape))
    if not is_fill.any():
        return 0
    count = 0
    for each in (chunks[at] for at in range(len(chunks))):
        inside = tuple(
            slice(low - start, high - start)
            for low, high, start in zip(each.start, each.stop, box.start, strict=True)
        )
        count += bool(is_fill[inside].all())
    return count


def _difference(box: Region, differing: Any, values: Any, wanted: Any) -> str:
    first = np.unravel_index(int(np.argmax(differing)), differing.shape)
    where = tuple(int(at) + low for at, low in zip(first, box.start, strict=True))
    both = f"{_shown(values[first])}, not {_shown(wanted[first])}"
    return f"{int(np.count_nonzero(differing))} of {values.size} elements differ, first at {where}: {both}"


def _differ(values: Any, wanted: Any) -> Any:
    different = np.asarray(values != wanted)
    if values.dtype.kind in "fc":
        different &= ~(np.isnan(values) & np.isnan(wanted))
    return different


def _shown(value: Any) -> str:
    return json.dumps(value.item() if hasattr(value, "item") else value, default=str)
