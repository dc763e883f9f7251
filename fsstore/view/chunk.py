"""The bytes of the chunks of an array that is shown as zarr.

Where both versions of zarr have words for how chunks are encoded, a chunk is shown as it is stored.  Where not, but the
chunk shown is one that is stored, it is decoded and encoded plainly, without a detour over the array; its padding at
the end of the array stays what it was.  Everything else (parts of shards, images) is read through the array's driver.
A chunk that is not stored is one of fill values, so that whatever is listed can be read.
"""

from __future__ import annotations

import numpy as np

from fsstore.driver.contract import Array, ArrayDriver
from fsstore.index.transform import IndexTransform, identity
from fsstore.kvstore.contract.driver import Buffer
from fsstore.view.document import Presented

__all__ = ["absent", "read_through", "recoded"]


def recoded(shown: Presented, data: Buffer) -> bytes:
    """Return a stored chunk as it is shown; raises `StoreError` if it is damaged."""
    assert shown.model is not None
    return _plain(shown, shown.model.chain.decode(data))


def absent(shown: Presented) -> bytes:
    """Return a chunk that is not stored as it is shown."""
    if shown.verbatim:
        assert shown.model is not None
        chain = shown.model.chain
        return bytes(chain.encode(np.full(chain.chunk.shape, shown.fill, chain.chunk.dtype)))
    return _plain(shown, np.full(shown.chunk, shown.fill, shown.native))


async def read_through(shown: Presented, driver: ArrayDriver, position: tuple[int, ...]) -> bytes:
    """Return a chunk as it is shown, read by the array's driver."""
    region = tuple(
        slice(number * step, min((number + 1) * step, size))
        for number, step, size in zip(position, shown.chunk, shown.shape, strict=True)
    )
    transform: IndexTransform = identity(driver.domain())
    view = transform.translate_to[(0,) * len(shown.shape)][region] if region else transform
    return _plain(shown, np.asarray(await driver.read(view)))


def _plain(shown: Presented, values: Array) -> bytes:
    """Return values encoded plainly, padded to a whole chunk."""
    if values.shape != shown.chunk:
        whole = np.full(shown.chunk, shown.fill, values.dtype)
        whole[tuple(slice(size) for size in values.shape)] = values
        values = whole
    if shown.codec is not None:
        return bytes(shown.codec.encode(values))
    plain: Array = np.ascontiguousarray(values, shown.native)
    return plain.tobytes()
