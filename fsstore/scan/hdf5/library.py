"""Values that HDF5 itself reads, where no codec can: through cached blocks, in passes.

Chunks of strings of any length are encoded as `vlen-utf8`; all others are the bytes of elements, without compression.
Libraries of further filters (`hdf5plugin`) are loaded when a dataset needs one.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from fsstore.errors import DataLossError
from fsstore.scan.hdf5.dataset import Dataset
from fsstore.scan.hdf5.format.reader import Reader
from fsstore.scan.hdf5.text_length import check_lengths

__all__ = ["can_decode", "encoded", "read_box"]


def can_decode(code: int) -> bool:
    """Return whether HDF5 has a filter, that of a plug-in included."""
    from h5py import h5z

    if not h5z.filter_avail(code):
        with contextlib.suppress(ImportError):
            import hdf5plugin  # noqa: F401  # it registers its filters
    return bool(h5z.filter_avail(code))


def read_box(
    identifier: Any, reader: Reader | None, dataset: Dataset, box: tuple[Sequence[int], Sequence[int]]
) -> Any:
    """Return the values in a box of a dataset, given the identifier of the file; `reader` reads its structures."""
    from h5py import h5o, h5s, h5t

    start, stop = box
    opened = h5o.open(identifier, dataset.path.encode("utf-8", "surrogateescape"))
    if dataset.element.text and not dataset.element.named and reader is not None:
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
    return _names(opened, values) if dataset.element.named else values


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
    if values.shape == whole and values.dtype == element.dtype:
        return bytes(values.tobytes())
    out = np.full(whole, dataset.fill, element.dtype)
    out[_corner(values)] = values
    return bytes(out.tobytes())


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
