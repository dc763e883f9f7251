"""Filters as codecs of zarr v2, and chunks for which some of them were skipped.

HDF5 skips an optional filter for a chunk that it would not make smaller, and stores chunks at the edge unfiltered if it
is told to.  No reference can say that, so such a chunk is made: filters that were applied are undone, and all of them
are applied again in the form in which they change nothing, which every one of these encodings has: a stored block of
zlib, a raw block of zstd, literals of LZF.

HDF5 reads the chunks that no codec decodes (`codecs_of` returns None).
"""

from __future__ import annotations

import bz2
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from fsstore.errors import DataLossError
from fsstore.scan.hdf5.format.filter import Filter
from fsstore.values.json_value import Json

__all__ = ["codecs_of", "encoded_plainly", "undone"]

DEFLATE, SHUFFLE, FLETCHER32, SZIP, NBIT, SCALEOFFSET = 1, 2, 3, 4, 5, 6
BZIP2, LZF, BLOSC, LZ4, BITSHUFFLE, ZFP, ZSTD = 307, 32000, 32001, 32004, 32008, 32013, 32015

_PLAIN: dict[int, str] = {
    DEFLATE: "zlib",
    BZIP2: "bz2",
    LZF: "imagecodecs_lzf",
    BLOSC: "blosc",
    ZSTD: "zstd",
}
_OWN: dict[int, str] = {
    SZIP: "hdf5_szip",
    LZ4: "hdf5_lz4",
    SCALEOFFSET: "hdf5_scaleoffset",
    BITSHUFFLE: "hdf5_bitshuffle",
}
_BY_IMAGECODECS = (LZF, SZIP, BITSHUFFLE)
_KNOW_SIZE = frozenset((SHUFFLE, LZF, *_OWN))  # their codecs must know how many bytes they decode to
_BLOSC_NAMES = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")


def codecs_of(filters: Sequence[Filter], itemsize: int, nbytes: int) -> list[dict[str, Json]] | None:
    """Return the filters as codecs, in the order of writing; None if one of them has no codec.

    `nbytes` are those of a decoded chunk.
    """
    absent = _absent()
    out: list[dict[str, Json]] = []
    size: int | None = nbytes
    for step in filters:
        if size is None and step.id in _KNOW_SIZE:
            return None
        if step.id == SHUFFLE and size is not None:
            out.append(_shuffle(step.values[0] if step.values else itemsize, size))
            continue
        found = None if step.id in absent else _codec(step)
        if found is None:
            return None
        out.append(found)
        size = size + 4 if size is not None and step.id == FLETCHER32 else None
    return out


@cache
def _absent() -> tuple[int, ...]:
    """Return the filters whose codecs need a library that is not installed; HDF5 decodes them then."""
    return () if find_spec("imagecodecs") else _BY_IMAGECODECS


def _shuffle(width: int, size: int) -> dict[str, Json]:
    """Return the filter that sorts bytes; behind a checksum there may be some that fill no element."""
    if size % max(width, 1):
        return {"id": "hdf5_shuffle", "parameters": [width]}
    return {"id": "shuffle", "elementsize": width}


def _codec(step: Filter) -> dict[str, Json] | None:
    if step.id == FLETCHER32:
        return {"id": "fletcher32"}
    if step.id == DEFLATE:
        return {"id": "zlib", "level": min(step.values[0], 9) if step.values else 1}
    if step.id == BLOSC:
        return _blosc(step.values)
    if step.id == BZIP2:
        return {"id": "bz2", "level": step.values[0] if step.values and 1 <= step.values[0] <= 9 else 9}
    if step.id == ZSTD:
        return {"id": "zstd", "level": step.values[0] if step.values and step.values[0] <= 22 else 3}
    if step.id in _PLAIN:
        return {"id": _PLAIN[step.id]}
    if step.id in _OWN:
        return {"id": _OWN[step.id], "parameters": list(step.values)}
    return None


def _blosc(values: Sequence[int]) -> dict[str, Json]:
    number = values[6] if len(values) > 6 else 0
    return {
        "id": "blosc",
        "cname": _BLOSC_NAMES[number] if number < len(_BLOSC_NAMES) else "blosclz",
        "clevel": min(values[4], 9) if len(values) > 4 else 5,
        "shuffle": values[5] if len(values) > 5 and values[5] in (0, 1, 2) else 1,
        "blocksize": 0,
    }


def undone(data: bytes, filters: Sequence[Filter], mask: int, size: int) -> bytes | None:
    """Return what a chunk of `size` bytes decodes to, or None if HDF5 has to decode it."""
    for number in reversed(range(len(filters))):
        step = filters[number]
        if mask >> number & 1:
            continue
        if step.id == FLETCHER32:
            if len(data) < 4 or _fletcher32(data[:-4]) not in _either(data[-4:]):
                raise DataLossError(
                    "the checksum of a chunk is not that of its bytes; the file is damaged: get an intact copy"
                )
            data = data[:-4]
        elif step.id == SHUFFLE:
            data = _unshuffled(data, step.values[0] if step.values else 1)
        elif step.id == DEFLATE:
            data = _inflated(data, size + 64)
        else:
            return None
    return data


def _either(checksum: bytes) -> tuple[int, int]:
    """Return a checksum as this and as old versions of HDF5 wrote it, with bytes swapped in pairs."""
    a, b, c, d = checksum
    return int.from_bytes(checksum, "little"), int.from_bytes(bytes((b, a, d, c)), "little")


def _inflated(data: bytes, limit: int) -> bytes:
    engine = zlib.decompressobj()
    try:
        found = engine.decompress(data, limit + 1)
    except zlib.error as error:
        raise DataLossError(f"a chunk cannot be decompressed: {error}") from None
    if len(found) > limit or not engine.eof:
        raise DataLossError(f"a chunk does not decompress to the {limit - 64} bytes it has")
    return found


def _shuffled(data: bytes, width: int) -> bytes:
    count = len(data) // width * width
    planes = np.frombuffer(data, np.uint8)[:count].reshape(-1, width).T
    return planes.tobytes() + data[count:]


def _unshuffled(data: bytes, width: int) -> bytes:
    count = len(data) // width * width
    planes = np.frombuffer(data, np.uint8)[:count].reshape(width, -1).T
    return planes.tobytes() + data[count:]


def _fletcher32(data: bytes) -> int:
    """Return the checksum as HDF5 computes it: over pairs of bytes, big-endian."""
    padded = data + b"\0" * (len(data) % 2)
    low = high = 0
    words = np.frombuffer(padded, ">u2").astype(np.uint64)
    for start in range(0, len(words), 360):
        part = words[start : start + 360]
        steps = np.arange(len(part), 0, -1, dtype=np.uint64)
        high += low * len(part) + int((part * steps).sum())
        low += int(part.sum())
        low, high = (low & 0xFFFF) + (low >> 16), (high & 0xFFFF) + (high >> 16)
        low, high = (low & 0xFFFF) + (low >> 16), (high & 0xFFFF) + (high >> 16)
    low, high = (low & 0xFFFF) + (low >> 16), (high & 0xFFFF) + (high >> 16)
    return high << 16 | low


def encoded_plainly(data: bytes, filters: Sequence[Filter]) -> bytes:
    """Return a decoded chunk encoded by all filters, in the form that compresses nothing."""
    for step in filters:
        width = step.values[0] if step.values else 1
        data = _shuffled(data, width) if step.id == SHUFFLE else _FORMS[step.id](data)
    return data


def _stored_lzf(data: bytes) -> bytes:
    """Return literals: runs of at most 32 bytes, each behind its length less one."""
    full = len(data) // 32
    runs = np.empty((full, 33), np.uint8)
    runs[:, 0] = 31
    runs[:, 1:] = np.frombuffer(data, np.uint8)[: full * 32].reshape(full, 32)
    rest = data[full * 32 :]
    return runs.tobytes() + (bytes((len(rest) - 1,)) + rest if rest else b"")


def _stored_blosc(data: bytes) -> bytes:
    return struct.pack("<BBBBIII", 2, 1, 2, 1, len(data), len(data), len(data) + 16) + data


def _stored_zstd(data: bytes) -> bytes:
    """Return one frame of raw blocks."""
    out = [b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", len(data))]
    step = 2**17
    for start in range(0, max(len(data), 1), step):
        block = data[start : start + step]
        last = start + step >= len(data)
        out.append((len(block) << 3 | last).to_bytes(3, "little") + block)
    return b"".join(out)


def _marked(data: bytes) -> bytes:
    """Return bytes behind a mark that the codecs of this package know: no encoded chunk begins with it."""
    return b"\xff" * 8 + data


_FORMS: dict[int, Callable[[bytes], Any]] = {
    DEFLATE: lambda data: zlib.compress(data, 0),
    FLETCHER32: lambda data: data + _fletcher32(data).to_bytes(4, "little"),
    BZIP2: bz2.compress,
    LZF: _stored_lzf,
    BLOSC: _stored_blosc,
    LZ4: _marked,
    ZSTD: _stored_zstd,
    SZIP: _marked,
    SCALEOFFSET: _marked,
    BITSHUFFLE: _marked,
}
