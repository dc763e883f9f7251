"""The length that a string of any length claims, checked before HDF5 makes room for it.

In the place of such a string stands its length and where it is.  HDF5 makes room for as much as is said, and finds out
afterwards that it is not there.  A long one is therefore looked up first.  Chunks behind filters that are undone by
HDF5 alone, and the few strings in a header, are not looked at.  HDF5 2.0 puts some chunks of arrays that can grow along
an inner dimension in wrong places when it is asked where they are, so it is not asked to read them from there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fsstore.errors import DataLossError
from fsstore.scan.hdf5.dataset import Dataset
from fsstore.scan.hdf5.filter_pipeline import undone
from fsstore.scan.hdf5.format.global_heap import heap_value
from fsstore.scan.hdf5.format.reader import Reader
from fsstore.scan.tuning import LONG_TEXT_BYTES

__all__ = ["check_lengths"]


Ints = Sequence[int]


def check_lengths(reader: Reader, opened: Any, dataset: Dataset, box: tuple[Ints, Ints]) -> None:
    """Raise `DataLossError` if a string in a box of a dataset, which h5py has opened, is not as long as it claims."""
    size = 8 + reader.width
    for data in _places(reader, opened, dataset, box, size * max(1, math.prod(dataset.element.inner))):
        places = np.frombuffer(data, np.uint8)[: len(data) // size * size].reshape(-1, size)
        claimed = places[:, :4].copy().view("<u4").ravel()
        for row in np.flatnonzero(claimed > LONG_TEXT_BYTES).tolist():
            place = places[row].tobytes()
            address, number = reader.address(place, 4), int.from_bytes(place[-4:], "little")
            found = 0 if address in (0, reader.undefined) else len(heap_value(reader, address, number))
            if found < claimed[row]:
                raise DataLossError(f"a string of {claimed[row]} bytes, of which the file has {found}")


def _places(
    reader: Reader, opened: Any, dataset: Dataset, box: tuple[Ints, Ints], itemsize: int
) -> Iterator[bytes]:
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


def _chunk(
    reader: Reader, opened: Any, dataset: Dataset, origin: tuple[int, ...], nbytes: int
) -> bytes | None:
    info = opened.get_chunk_info_by_coord(origin)
    if info.byte_offset is None:
        return None
    if info.size > reader.size:
        raise DataLossError(f"a chunk of {info.size} bytes in a file of {reader.size}")
    data = reader.read(info.byte_offset - reader.base, info.size)
    return undone(data, dataset.filters, info.filter_mask, nbytes)
