"""Writing a request: how its cells become windows, and who stores them (`writer`).

Windows of cells bound the memory, as in `read`.  A large chunk is encoded while it is written, where the store can do
that (`write_late`): its file is there before, and the disk works from the first megabyte on.  What is small and waits
for a disk is written together with what is begun beside it (`joint_write`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from fsstore import _runtime
from fsstore.chunk.encode import WriteRequest
from fsstore.chunk.joint_write import settle, write_small
from fsstore.chunk.plan import plan
from fsstore.chunk.writer import LATE_BYTES, Changed, Changes, Writer
from fsstore.codec.bound_chain import BoundChain
from fsstore.future import Future, ready

__all__ = ["write"]

_WINDOW_BYTES = 16 * 1024 * 1024
_WINDOW_CELLS = 64
_INLINE_BYTES = 256 * 1024
_IN_FLIGHT_BYTES = 3 * _WINDOW_BYTES
_WAITING_BYTES = 4 * 1024 * 1024  # far stores take many small windows sooner than a few large ones
_SYNC_WORKERS = 8  # waiting for the disk is most of a durable write, so more workers than cores
_BATCH_WORKERS = 4  # a window of several files waits for all at once: more workers fight for the interpreter
_WORKERS_BYTES = 28 * 1024 * 1024  # of chunks; what is encoded and allocated beside them is as much again
_TOGETHER_BYTES = 8 * 1024 * 1024  # of a request that is one window


def write(request: WriteRequest) -> Future[Any]:
    """Begin to write; the future is done when everything is stored as durably as the store promises."""
    model, driver = request.model, request.store.driver
    outline = plan(request.maps, request.values.shape, model.axes)
    cells = outline.cell_count
    if not cells:
        return ready(None)
    chunk_bytes = model.chain.decoded_size
    waits, is_bound = driver.features.waits, hasattr(driver, "modify")
    here = not waits and (cells == 1 or cells * chunk_bytes <= _INLINE_BYTES)
    if here and driver.features.slow_writes and not is_bound and _is_small(request, chunk_bytes):
        return write_small(request, outline)
    settle(request.store)
    if is_bound:  # to a transaction: the values are needed again at the commit
        request = replace(request, values=request.values.copy())
    changed = Changes(request, outline).window()
    threads = request.threads or _runtime.core_count()
    alone = not waits and not here and _is_one_window(cells, chunk_bytes)
    encoders = threads if waits else _encoders(model.chain, threads)
    writer = Writer(driver, encoders=encoders, alone=alone, threads=request.threads)
    if here:
        return _runtime.start(writer.store(list(changed)), waits=False)
    if alone:
        return _spread(writer, _batches(changed, cells), workers=1, kind="request")
    copies = 1 if model.chain.shard is None else 3  # a shard is split, encoded and put together
    share = math.ceil(cells / (4 * _SYNC_WORKERS))
    size = max(1, min(share, _WINDOW_CELLS, (_WAITING_BYTES if waits else _WINDOW_BYTES) // chunk_bytes))
    windows = _batches(changed, size)
    if waits:
        return _runtime.start(_write_waiting(writer, windows, copies * chunk_bytes))
    affordable = _WORKERS_BYTES // (copies * size * chunk_bytes)
    wanted = _SYNC_WORKERS if size == 1 else _BATCH_WORKERS
    return _spread(writer, windows, workers=min(cells, max(threads, min(wanted, affordable))), kind="io")


def _is_small(request: WriteRequest, chunk_bytes: int) -> bool:
    """Return whether the values may be copied, to be written later; the copy of an object shares what it holds."""
    return max(chunk_bytes, request.values.nbytes) < LATE_BYTES and not request.values.dtype.hasobject


def _is_one_window(cells: int, chunk_bytes: int) -> bool:
    """Return whether a request is read, encoded and written at once: a few small chunks.

    Windows of one would fight for the interpreter with system calls while others encode: parts of eight chunks of
    200 KB take 0.85 of the time together.
    """
    return cells <= _WINDOW_CELLS and chunk_bytes < LATE_BYTES and cells * chunk_bytes <= _TOGETHER_BYTES


def _encoders(chain: BoundChain, threads: int) -> int:
    """Return how many windows may be encoded at once.

    No more than there are cores, so that the first is on its way to the disk while the others are encoded; chunks that
    are encoded all at once reach the disk all at once.  A shard that uses every core by itself is encoded alone.
    """
    return 1 if chain.shard is not None and chain.shard.shares_cores else threads


def _batches(changed: Iterator[Changed], size: int) -> Iterator[list[Changed]]:
    while batch := list(islice(changed, size)):
        yield batch


def _spread(
    writer: Writer, windows: Iterator[list[Changed]], *, workers: int, kind: _runtime.PoolKind
) -> Future[None]:
    return _runtime.spread(
        lambda window: _runtime.drive(writer.store(window)), windows, workers=workers, kind=kind
    )


async def _write_waiting(writer: Writer, windows: Iterator[list[Changed]], cell_bytes: int) -> None:
    await _runtime.flow(
        writer.store, windows, cost=lambda window: len(window) * cell_bytes, budget=_IN_FLIGHT_BYTES
    )
