"""Memory and elements: scratch memory that is reused, copies between strided arrays, and the fill value.

Chunks and sub-chunks that hold nothing but the fill value are not stored.  Their bits decide, not their values, so
that negative zeros and the payloads of NaNs survive.
"""

from __future__ import annotations

import mmap
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from fsstore.codec.contract import Array
from fsstore.runtime.fork import OfProcess, OfThread
from fsstore.runtime.tuning import CACHE_BYTES, FLIGHT_BYTES, PIECE_BYTES

# The numbers that tune encoding and decoding, measured on two cores of 256 KiB of cache.
# bytes of a result: smaller ones are made and copied sooner than a stream writes them to their place
DIRECT_BYTES = CACHE_BYTES // 8
SHARD_PORTION_PARTS = 512  # sub-chunks written at once: half of what a system call takes
# elements or rows: looking at the layout of fewer takes as long as copying them one by one
ROWS_COPIED_FROM = 1024
ROW_BYTES = 512  # bytes of a row that is copied as one element; NumPy copies longer rows as quickly itself
# columns of a strip of a transposed copy: fewer cost more calls, more leave the cache before they are used
STRIP_ELEMENTS = 16


BLOCK_BYTES = 2 * PIECE_BYTES  # from which on memory is a block that threads share; each keeps smaller memory
CACHE_STRIDE = 512  # rows a multiple of this apart share lines of a cache, of which there are a power of two

# A forked child has memory of its own.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
_LARGE_PAGES: int | None = getattr(mmap, "MADV_HUGEPAGE", None)

_Octets = np.ndarray[Any, np.dtype[np.uint8]]

_pieces: OfThread[dict[int, _Octets]] = OfThread(dict)  # by step
_spare: OfProcess[list[mmap.mmap]] = OfProcess(list)  # the latest last


def scratch(size: int, step: int = 0) -> _Octets:
    """Return `size` bytes of any content, which the thread's next call for the same `step` may hand out again.

    Steps that are decoded one from another have memory each.
    """
    if size > BLOCK_BYTES:
        return block(size)
    pieces = _pieces.now
    piece = pieces.get(step)
    if piece is None or len(piece) < size:
        piece = pieces[step] = np.empty(size, np.uint8)
    return piece[:size]


def passing(size: int) -> _Octets:
    """Return `size` bytes of any content that are soon let go, and belong to their holder."""
    return block(size) if size > BLOCK_BYTES else np.empty(size, np.uint8)


def block(size: int) -> _Octets:
    """Return `size` bytes of any content, at the start of a page; when they are let go, others get them."""
    memory = _taken(size) or _mapped(size)
    octets = np.frombuffer(memory, np.uint8)
    weakref.finalize(octets, _give_back, memory).atexit = False
    return octets[:size]


def _mapped(size: int) -> mmap.mmap:
    """Return memory fresh from the system, in large pages where it has such: 16 MB take 2.5 ms instead of 10."""
    try:
        memory = mmap.mmap(-1, size, **_PRIVATE)
    except OSError as error:
        raise MemoryError(f"{size} bytes cannot be had: {error.strerror}") from error
    if _LARGE_PAGES is not None:
        with suppress(OSError):  # it is advice
            memory.madvise(_LARGE_PAGES)
    return memory


def _taken(size: int) -> mmap.mmap | None:
    """Return spare memory of about a size, if there is some; several threads may ask at once."""
    for number in reversed(range(len(_spare.now))):
        with suppress(IndexError, ValueError):
            memory = _spare.now[number]
            if size <= len(memory) <= 2 * size:
                _spare.now.remove(memory)
                return memory
    return None


def _give_back(memory: mmap.mmap) -> None:
    _spare.now.append(memory)
    with suppress(IndexError):
        while sum(map(len, _spare.now)) > FLIGHT_BYTES:
            del _spare.now[0]


# Copying elements from one strided array to another in the order that costs least.


def copy_elements(target: Array, source: Array) -> None:
    """Copy all elements of `source` to `target`, which has its shape, or one it broadcasts to, and its type.

    The byte order of the elements may differ.
    """
    size = source.itemsize
    if source.size >= ROWS_COPIED_FROM and target.dtype == source.dtype and target.shape == source.shape:
        to, apart = target.strides[-1], source.strides[-1]
        if to == apart or source.shape[-1] == 1:
            target, source = _as_rows(target, source)
        elif (
            to == size
            and not apart % CACHE_STRIDE
            and source.nbytes >= CACHE_BYTES // 2
            and not np.may_share_memory(target, source)  # a strip would change the next one
        ):
            _copy_in_strips(target, source)
            return
    np.copyto(target, source, casting="equiv")


def _as_rows(target: Array, source: Array) -> tuple[Array, Array]:
    """Return two arrays whose elements are the rows of these, if both have many, short and each in one piece."""
    size, shape, rank = source.itemsize, source.shape, source.ndim
    row = size
    while rank and (shape[rank - 1] == 1 or target.strides[rank - 1] == source.strides[rank - 1] == row):
        rank -= 1
        row *= shape[rank]
    if not size < row <= ROW_BYTES or source.nbytes < ROWS_COPIED_FROM * row or source.dtype.hasobject:
        return target, source
    if rank < source.ndim - 1:
        target, source = target.reshape((*shape[:rank], -1)), source.reshape((*shape[:rank], -1))
    element = np.dtype((np.void, row))
    return target.view(element), source.view(element)


def _copy_in_strips(target: Array, source: Array) -> None:
    """Copy what is transposed, some of its columns at a time."""
    for begin in range(0, source.shape[-1], STRIP_ELEMENTS):
        strip = (..., slice(begin, begin + STRIP_ELEMENTS))
        np.copyto(target[strip], source[strip], casting="equiv")


def missing_element(dtype: np.dtype[Any], fill: Any) -> Any:
    """Return the value of missing elements: the fill value; without one, zero, NaT for times, None for objects."""
    if fill is not None or dtype.hasobject:
        return fill
    return np.array("NaT", dtype)[()] if dtype.kind in "mM" else np.zeros((), dtype)[()]


def equals_fill(chunk: Array, fill: Any) -> bool:
    """Return whether every element has exactly the bits of the fill value."""
    if not chunk.size:
        return True
    if chunk.dtype.hasobject:
        return bool((chunk == fill).all())
    value = np.asarray(fill, chunk.dtype)
    if value.ndim:
        return _same_bits(chunk, value)
    if chunk[(slice(1),) * chunk.ndim or ...].tobytes() != value.tobytes():
        return False
    return all(_same_bits(part, value) for part in _halved(chunk))


def _halved(array: Array) -> Iterator[Array]:
    """Yield parts that are compared at once: the first that differs is the last, and few take memory."""
    if array.nbytes <= PIECE_BYTES or array.size == 1:
        yield array
        return
    axis = max(range(array.ndim), key=lambda at: (array.shape[at] > 1, abs(array.strides[at])))
    for half in np.array_split(array, 2, axis):
        yield from _halved(half)


def _same_bits(chunk: Array, value: Array) -> bool:
    size = chunk.dtype.itemsize
    if size in (1, 2, 4, 8) and value.ndim == 0:
        bits = np.dtype(f"u{size}")
        return bool((chunk.view(bits) == value.view(bits)).all())
    whole = np.ascontiguousarray(np.broadcast_to(value, chunk.shape)).reshape(-1).view(np.uint8)
    return bool((np.ascontiguousarray(chunk).reshape(-1).view(np.uint8) == whole).all())


def rows_equal_fill(rows: Array, fill: Any) -> npt.NDArray[np.bool_]:
    """Return for each row of `rows` whether all its elements are bitwise the fill value."""
    count = len(rows)
    if rows.nbytes > PIECE_BYTES:
        return np.array([equals_fill(rows[at, ...], fill) for at in range(count)], np.bool_)
    if rows.dtype.hasobject:
        return np.asarray((rows.reshape(count, -1) == fill).all(axis=1), np.bool_)
    one = np.asarray(fill, rows.dtype).reshape(1).view(np.uint8)
    octets = rows.reshape(count, -1).view(np.uint8)
    step = one.size
    width = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}.get(step)
    if width is None:
        return np.asarray((octets.reshape(count, -1, step) == one).all(axis=(1, 2)), np.bool_)
    elements, value = octets.view(width), one.view(width)[0]
    same: npt.NDArray[np.bool_] = (elements[:, :1] == value).all(axis=1)
    if same.all():
        return np.asarray((elements == value).all(axis=1), np.bool_)
    if same.any():  # hardly ever: the first element tells
        same[same] = (elements[same] == value).all(axis=1)
    return same
