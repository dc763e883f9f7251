"""Memory for elements that are needed only for a while: used again and again.

Memory fresh from the system costs about a tenth of the time of decompressing into it, and more where codecs follow each
other: a variable of HDF5 of 256 MB, shuffled and deflated, took 0.16 million page faults and a third of its processor
time in the system.

Each thread keeps small pieces of its own.  Large ones are kept by all together, or every thread that ever took part
in a request would hold as much: the C library does not give back what it has freed if that is less than 32 MB.
"""

from __future__ import annotations

import mmap
import weakref
from contextlib import suppress
from typing import Any

import numpy as np

from fsstore.codec.tuning import SCRATCH_BLOCK_BYTES, SCRATCH_SPARE_BYTES
from fsstore.runtime.state import OfProcess, OfThread

__all__ = ["block", "passing", "scratch"]

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
    if size > SCRATCH_BLOCK_BYTES:
        return block(size)
    pieces = _pieces.now
    piece = pieces.get(step)
    if piece is None or len(piece) < size:
        piece = pieces[step] = np.empty(size, np.uint8)
    return piece[:size]


def passing(size: int) -> _Octets:
    """Return `size` bytes of any content that are soon let go, and belong to their holder."""
    return block(size) if size > SCRATCH_BLOCK_BYTES else np.empty(size, np.uint8)


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
        while sum(map(len, _spare.now)) > SCRATCH_SPARE_BYTES:
            del _spare.now[0]
