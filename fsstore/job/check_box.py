"""Checking a box of an array: whether it can be read, and whether it says what another array does.

A box that is not right is looked at again chunk by chunk, so that the report names the chunks.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np

from fsstore.chunk.regions import Region, Regions
from fsstore.driver.cast import Cast, shown, unequal
from fsstore.driver.chunked_array import ChunkedDriver
from fsstore.errors import StoreError
from fsstore.job.order import Order
from fsstore.job.tuning import KEYS_ASKED, MANY_CHUNKS
from fsstore.kvstore.contract.driver import Read
from fsstore.runtime import execution
from fsstore.runtime import future as futures

__all__ = ["checked_box", "differ"]


async def checked_box(order: Order, box: Region) -> tuple[int, int, list[tuple[Any, ...]]]:
    """Return how many bytes were read, how many chunks are mere fill, and what is wrong: start, stop, what, kind."""
    nbytes = int(np.prod(box.shape, dtype=np.int64)) * max(1, order.source.dtype.numpy_dtype.itemsize)
    chunks = Regions(box.start, box.stop, order.sources.step, order.sources.anchor)
    both, failures = await _read(order, box)
    if failures and len(chunks) > 1:
        del both
        filled, found = 0, []
        for each in (chunks[at] for at in range(len(chunks))):
            one = Regions(each.start, each.stop, chunks.step, chunks.anchor)
            both, failures = await _read(order, each)
            fill, wrong = await execution.offload(_judged, order, each, one, both)
            filled += fill
            found += failures + wrong
        return nbytes, filled, found
    fill, wrong = await execution.offload(_judged, order, box, chunks, both)
    return nbytes, fill, failures + wrong


async def _read(order: Order, box: Region) -> tuple[tuple[Any, Any], list[tuple[Any, ...]]]:
    """Return the values of both arrays, both read at once, None for what cannot be read; and why it cannot."""
    arrays = ((order.source, "", "damaged"), (order.target, "What it is compared with: ", "against"))
    begun = [None if array is None else await _begun(array, box) for array, *_ in arrays]
    values: list[Any] = [None, None]
    failures = []
    for number, (future, (_, whose, kind)) in enumerate(zip(begun, arrays, strict=True)):
        try:
            values[number] = None if future is None else await future
        except StoreError as error:
            failures.append((box.start, box.stop, f"{whose}{error}", kind))
    return (values[0], values[1]), failures


async def _begun(array: Any, box: Region) -> Any:
    """Begin to read a box; very many sub-chunks of shards that are not stored are fill, and not read."""
    if await _is_absent(array, box):
        native = array.dtype.numpy_dtype
        fill = np.zeros((), native) if array.fill_value is None else np.asarray(array.fill_value, native)
        return futures.ready(np.broadcast_to(fill, box.shape))
    return await execution.offload(array[box.slices].read)


async def _is_absent(array: Any, box: Region) -> bool:
    """Whether a box has very many chunks, and none of the keys that they are stored under is there."""
    driver = array._driver
    sides = array.chunk_layout.read_chunk.shape or ()
    if (
        math.prod(-(-size // (side or size or 1)) for size, side in zip(box.shape, sides, strict=False))
        < MANY_CHUNKS
    ):
        return False
    if (
        not isinstance(driver, ChunkedDriver)
        or driver.domain() != array.domain
        or driver.array.dtype.numpy_dtype.names
    ):
        return False
    grid = driver.array.model
    ranges = [
        range(axis.chunk_of(low), axis.chunk_of(high - 1) + 1)
        for axis, low, high in zip(grid.axes, box.start, box.stop, strict=True)
    ]
    if math.prod(map(len, ranges)) > KEYS_ASKED:
        return False
    place = driver.kvstore.as_directory().prefix
    try:
        answers = await place.read_many([Read(grid.key(chunk), 0, 0) for chunk in product(*ranges)])
    except StoreError:
        return False  # reading says why
    return all(answer.state == "missing" for answer in answers)


def _judged(
    order: Order, box: Region, chunks: Regions, both: tuple[Any, Any]
) -> tuple[int, list[tuple[Any, ...]]]:
    """Return how many chunks are mere fill, and those that differ."""
    values, wanted = both
    if values is None:
        return 0, []
    fill = _of_fill(order.source.fill_value, values, box, chunks)
    if wanted is None:
        return fill, []
    cast = Cast(order.target.dtype, order.source.dtype, order.casting)
    if cast.source == cast.target:
        made, differing = wanted, (differ(values, wanted) if order.bitwise else unequal(values, wanted))
    else:
        made = cast.of(wanted)
        differing = unequal(values, made)
        differing |= cast.changed(wanted.reshape(-1), made.reshape(-1)).reshape(differing.shape)
    if not differing.any():
        return fill, []
    found = []
    for each in (chunks[at] for at in range(len(chunks))):
        inside = _inside(box, each)
        part = differing[inside]
        if part.any():
            what = _difference(each, part, values[inside], wanted[inside])
            found.append((each.start, each.stop, what, "differs"))
    return fill, found


def _inside(box: Region, part: Region) -> tuple[slice, ...]:
    return tuple(
        slice(low - start, high - start)
        for low, high, start in zip(part.start, part.stop, box.start, strict=True)
    )


def _of_fill(fill: Any, values: Any, box: Region, chunks: Regions) -> int:
    """Return how many chunks of a box hold the fill value only; those that are cut by the box do not count."""
    if fill is None or values.dtype.hasobject:
        return 0
    is_fill = ~differ(values, np.broadcast_to(np.asarray(fill, values.dtype), values.shape))
    if not is_fill.any():
        return 0
    return sum(bool(is_fill[_inside(box, each)].all()) for each in (chunks[at] for at in range(len(chunks))))


def _difference(box: Region, differing: Any, values: Any, wanted: Any) -> str:
    first = np.unravel_index(int(np.argmax(differing)), differing.shape)
    where = tuple(int(at) + low for at, low in zip(first, box.start, strict=True))
    texts = [shown(each[first]) for each in (values, wanted)]
    if texts[0] == texts[1] and not values.dtype.hasobject:
        texts = [
            f"{text} (0x{each[first].tobytes().hex()})"
            for text, each in zip(texts, (values, wanted), strict=True)
        ]
    both = f"{texts[0]}, not {texts[1]}"
    return f"{int(np.count_nonzero(differing))} of {values.size} elements differ, first at {where}: {both}"


def differ(values: Any, wanted: Any) -> Any:
    """Return which elements of two arrays of one type differ in any bit: the sign of zero and the kind of NaN count."""
    native = values.dtype
    if native.names is not None:
        parts = [differ(values[name], wanted[name]).reshape(*values.shape, -1) for name in native.names]
        return np.concatenate(parts, axis=-1).any(axis=-1)
    if native.hasobject:
        return np.asarray(np.frompyfunc(_is_other, 2, 1)(values, wanted), bool)
    if native.kind in "biu" or "int" in native.name:
        return np.asarray(values != wanted, bool)
    ours, theirs = (_bits(each) for each in (values, wanted))
    return (ours != theirs).any(axis=-1).reshape(values.shape)


def _bits(values: Any) -> Any:
    """Return the bits of elements as unsigned integers, a row for each element."""
    native = values.dtype
    width = next(each for each in (8, 4, 2, 1) if native.itemsize % each == 0)
    bits = np.ascontiguousarray(values).reshape(-1, 1).view(f"u{width}")
    if native.kind == "V" and "float" in native.name:
        from ml_dtypes import finfo

        bits = bits & ((1 << finfo(native).bits) - 1)  # type: ignore[no-untyped-call]  # ml_dtypes leaves it untyped
    return bits


def _is_other(one: Any, other: Any) -> bool:
    """Whether two elements that are Python objects differ: numbers of other types do, and NaN equals itself."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() != other.keys() or any(_is_other(one[name], other[name]) for name in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) != len(other) or any(map(_is_other, one, other))
    return type(one) is not type(other) or (
        repr(one) != repr(other) if isinstance(one, float) else one != other
    )
