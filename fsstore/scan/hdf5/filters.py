"""The filters of chunks as codecs, lengths of strings, and what is left to h5py."""

from __future__ import annotations

import bz2
import contextlib
import itertools
import json
import math
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

import numpy as np

from fsstore.errors import DataLossError
from fsstore.runtime.tuning import PIECE_BYTES
from fsstore.scan.hdf5.dataset import Dataset
from fsstore.scan.hdf5.layout import Filter, heap_value
from fsstore.scan.hdf5.structure import Reader
from fsstore.values.json_value import Json

# Filters as codecs of zarr v2, and chunks for which some of them were skipped.
#
# HDF5 skips an optional filter for a chunk that it would not make smaller, and stores chunks at the edge
# unfiltered if it is told to. No reference can say that, so such a chunk is made: filters that were applied
# are undone, and all of them are applied again in the form in which they change nothing, which every one of
# these encodings has: a stored block of zlib, a raw block of zstd, literals of LZF.
#
# HDF5 reads the chunks that no codec decodes (`codecs_of` returns None).

DEFLATE, SHUFFLE, FLETCHER32, SZIP, NBIT, SCALEOFFSET = 1, 2, 3, 4, 5, 6
BZIP2, LZF, BLOSC, LZ4, BITSHUFFLE, ZFP, ZSTD = 307, 32000, 32001, 32004, 32008, 32013, 32015

_PLAIN: dict[int, str] = {DEFLATE: "zlib", BZIP2: "bz2", LZF: "imagecodecs_lzf", BLOSC: "blosc", ZSTD: "zstd"}
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

# The length that a string of any length claims, checked before HDF5 makes room for it.
#
# In the place of such a string stands its length and where it is. HDF5 makes room for as much as is said,
# and finds out afterwards that it is not there. A long one is therefore looked up first. Chunks behind
# filters that are undone by HDF5 alone, and the few strings in a header, are not looked at. HDF5 2.0 puts
# some chunks of arrays that can grow along an inner dimension in wrong places when it is asked where they
# are, so it is not asked to read them from there.

Ints = Sequence[int]


def check_lengths(reader: Reader, opened: Any, dataset: Dataset, box: tuple[Ints, Ints]) -> None:
    """Raise `DataLossError` if a string or list in a box of a dataset, opened by h5py, is shorter than it claims."""
    size, width = dataset.element.size, 8 + reader.width
    for data in _places(reader, opened, dataset, box, size * max(1, math.prod(dataset.element.inner))):
        elements = np.frombuffer(data, np.uint8)[: len(data) // size * size].reshape(-1, size)
        for at, unit in dataset.element.heaped:
            _check_claims(reader, elements[:, at : at + width], unit)


def _check_claims(reader: Reader, places: Any, unit: int) -> None:
    claimed = places[:, :4].copy().view("<u4").ravel().astype("i8") * unit
    for row in np.flatnonzero(claimed > PIECE_BYTES).tolist():
        place = places[row].tobytes()
        address, number = reader.address(place, 4), int.from_bytes(place[-4:], "little")
        found = 0 if address in (0, reader.undefined) else len(heap_value(reader, address, number))
        if found < claimed[row]:
            raise DataLossError(f"an element of {claimed[row]} bytes, of which the file has {found}")


def _places(reader: Reader, opened: Any, dataset: Dataset, box: tuple[Ints, Ints], itemsize: int) -> Iterator[bytes]:
    """Yield what stands in the places of the strings of a box, where that is known."""
    start, stop = box
    if any(low >= high for low, high in zip(start, stop, strict=True)):
        return
    if dataset.layout == "contiguous" and dataset.offset is not None:
        first, last = (
            int(np.ravel_multi_index(tuple(each), dataset.shape)) if dataset.shape else 0
            for each in (start, [high - 1 for high in stop])
        )
        begin = dataset.offset - reader.base
        yield reader.read(begin + first * itemsize, (last + 1 - first) * itemsize)
    if dataset.layout == "chunked":
        sides = zip(start, stop, dataset.chunks, strict=True)
        origins = itertools.product(*(range(low // step * step, high, step) for low, high, step in sides))
        nbytes = math.prod(dataset.chunks) * itemsize
        yield from filter(None, (_chunk(reader, opened, dataset, each, nbytes) for each in origins))


def _chunk(reader: Reader, opened: Any, dataset: Dataset, origin: tuple[int, ...], nbytes: int) -> bytes | None:
    info = opened.get_chunk_info_by_coord(origin)
    if info.byte_offset is None:
        return None
    if info.size > reader.size:
        raise DataLossError(f"a chunk of {info.size} bytes in a file of {reader.size}")
    data = reader.read(info.byte_offset - reader.base, info.size)
    return undone(data, dataset.filters, info.filter_mask, nbytes)


def can_decode(code: int) -> bool:
    """Return whether HDF5 has a filter, that of a plug-in included."""
    from h5py import h5z

    if not h5z.filter_avail(code):
        with contextlib.suppress(ImportError):
            import hdf5plugin  # noqa: F401  # it registers its filters
    return bool(h5z.filter_avail(code))


def read_box(identifier: Any, reader: Reader, dataset: Dataset, box: tuple[Sequence[int], Sequence[int]]) -> Any:
    """Return the values in a box of a dataset, given the identifier of the file; `reader` reads its structures."""
    from h5py import h5o, h5s, h5t

    start, stop = box
    opened = h5o.open(identifier, dataset.path.encode("utf-8", "surrogateescape"))
    if dataset.element.heaped:
        check_lengths(reader, opened, dataset, box)
    space = opened.get_space()
    shape = tuple(low_high[1] - low_high[0] for low_high in zip(start, stop, strict=True))
    dtype = opened.dtype
    memory = h5t.py_create(dtype)
    values = np.zeros(shape, dtype)
    if shape:
        space.select_hyperslab(tuple(start), shape)
        within = h5s.create_simple(shape)
    else:
        within = h5s.create(h5s.SCALAR)
    if values.size or not shape:
        opened.read(within, space, values, memory)
    made = dataset.element.made
    return _names(opened, values) if made == "names" else _documents(values) if made else values


def _documents(values: Any) -> Any:
    """Return each element as JSON: lists, and records by the names of their fields."""
    out = np.empty(values.shape, object)
    for at in np.ndindex(values.shape):
        out[at] = json.dumps(_plain(values[at]), ensure_ascii=False)
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, np.void):
        return {name: _plain(value[name]) for name in value.dtype.names or ()}
    if isinstance(value, np.ndarray):
        return [_plain(each) for each in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    return value.item() if isinstance(value, np.generic) else value


def _names(opened: Any, references: Any) -> Any:
    """Return the path of the object that each reference is to; no text for what is to nothing."""
    from h5py import h5r

    names = np.empty(references.shape, object)
    for number, each in enumerate(references.ravel().tolist()):
        name = h5r.get_name(each, opened) if each else b""
        if name is None:
            raise DataLossError(f"a reference, number {number}, to an object that has no path")
        names.flat[number] = name
    return names


def encoded(values: Any, dataset: Dataset, chunk: Sequence[int]) -> bytes:
    """Return values as the chunk of a given shape, what is missing of it filled."""
    element = dataset.element
    whole = (*chunk, *element.inner)
    if element.text:
        texts = np.full(whole, dataset.fill, object)
        texts[_corner(values)] = values
        return _texts(texts)
    values = _by_name(values, element.dtype)
    if values.shape == whole and values.dtype == element.dtype:
        return bytes(values.tobytes())
    out = np.full(whole, dataset.fill, element.dtype)
    out[_corner(values)] = values
    return bytes(out.tobytes())


def _by_name(values: Any, dtype: np.dtype[Any]) -> Any:
    """Return records with their fields in the order of a type: NumPy copies fields by their place."""
    if dtype.names is None:
        return values
    out = np.empty(values.shape, dtype)
    for name in dtype.names:
        out[name] = _by_name(values[name], dtype[name].base)
    return out


def _corner(values: Any) -> Any:
    """Return the index of the part of a chunk that values fill."""
    return (..., *(slice(0, size) for size in values.shape))


def _texts(values: Any) -> bytes:
    """Return strings as the codec `vlen-utf8` writes them: their number, then each behind its length."""
    items = [_octets(value) for value in values.ravel().tolist()]
    parts = [struct.pack("<I", len(items))]
    for item in items:
        if len(item) >= 2**31:
            raise DataLossError(f"a string of {len(item)} bytes")
        parts += (struct.pack("<I", len(item)), item)
    return b"".join(parts)


def _octets(value: Any) -> bytes:
    """Return the UTF-8 of a string; bytes that are none are replaced."""
    if isinstance(value, bytes):
        try:
            value.decode("utf-8")
        except UnicodeDecodeError:
            return value.decode("utf-8", "replace").encode()
        return value
    return str(value).encode("utf-8", "replace")
