"""Scanning HDF5 with kerchunk so that what comes out is what the file holds, or is left out by name.

kerchunk 0.2.10 goes on after most that it does not understand, and leaves an array behind whose chunks have no
references: it reads as fill values.  Here such an array goes as a whole.  Values kept beside the chunks (compact
datasets, single texts) are embedded; attributes that JSON cannot hold are left out one by one; and HDF5 2.0.0 gives
wrong places of chunks where only an axis that is not the first can grow, so they are looked up by their place.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import h5py
import numcodecs
import numpy as np
from kerchunk import hdf

from fsstore.kvstore.reference.tools.left_out import LeftOutWarning, leave_out

__all__ = ["KerchunkHdf5"]


class KerchunkHdf5(hdf.SingleHdf5ToZarr):  # type: ignore[misc]  # a class of kerchunk has no types
    """kerchunk's scanner, which names what it leaves out."""

    def _translator(self, name: str, node: Any, *rest: Any) -> Any:
        why = _unreadable(node)
        if why is not None:
            leave_out(name, why)
            return None
        own = isinstance(node, h5py.Dataset) and (_is_compact(node) or _is_single_text(node))
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            found = None if own else super()._translator(name, node, *rest)
            if own:
                self._embed(name, node)
        for each in told:
            _, _, message = str(each.message).partition("quashed while traversing HDF5\n")
            if message:
                self._forget(name)
                leave_out(name, message.splitlines()[0])
            elif issubclass(each.category, LeftOutWarning):
                warnings.warn(str(each.message), LeftOutWarning, stacklevel=2)
        return found

    def _forget(self, name: str) -> None:
        """Remove what there is of an array: without all of its references it would be made of fill values."""
        below = f"{name.lstrip('/')}/"
        for key in [key for key in self.store_dict if key.startswith(below)]:
            del self.store_dict[key]

    def _embed(self, name: str, node: Any) -> None:
        """Keep the values of a small dataset in the document."""
        try:
            values, filters = np.asarray(node[()]), None
            if node.dtype.kind == "O":
                values = np.array([_text(each) for each in values.ravel()], object).reshape(values.shape)
                filters = [{"id": "vlen-utf8"}]
                data = bytes(numcodecs.VLenUTF8().encode(values))
            else:
                data = np.ascontiguousarray(values).tobytes()
            document = {
                "zarr_format": 2,
                "shape": list(node.shape),
                "chunks": [max(1, size) for size in node.shape],
                "dtype": "|O" if filters else _dtype_json(values.dtype),
                "fill_value": None if filters else _fill_json(node),
                "order": "C",
                "filters": filters,
                "compressor": None,
                "dimension_separator": ".",
            }
            attributes = {"_ARRAY_DIMENSIONS": self._get_array_dims(node)}
            array = SimpleNamespace(attrs=attributes)
            self._transfer_attrs(node, array)
            path = name.lstrip("/")
            self.store_dict[f"{path}/.zarray"] = json.dumps(document).encode()
            self.store_dict[f"{path}/.zattrs"] = json.dumps(attributes).encode()
            if values.size:
                self.store_dict[f"{path}/{'.'.join('0' * node.ndim) or '0'}"] = data
        except Exception as error:  # noqa: BLE001  # h5py and kerchunk raise whatever they meet
            self._forget(name)
            leave_out(name, f"{type(error).__name__}: {error}")

    def _transfer_attrs(self, h5obj: Any, zobj: Any) -> None:
        """Transfer the attributes that JSON can hold, one by one where kerchunk cannot transfer them together."""
        try:
            super()._transfer_attrs(h5obj, zobj)
        except Exception:  # noqa: BLE001  # whatever one attribute gave rise to
            self._transfer_one_by_one(h5obj, zobj)

    def _transfer_one_by_one(self, h5obj: Any, zobj: Any) -> None:
        for name in list(h5obj.attrs):
            try:
                one = SimpleNamespace(attrs={name: h5obj.attrs[name]}, name=h5obj.name)
                super()._transfer_attrs(one, zobj)
            except Exception as error:  # noqa: BLE001  # the same
                leave_out(h5obj.name.lstrip("/"), f"its attribute {name!r} ({error})")

    def _storage_info_and_adj_filters(self, dset: Any, filters: list[Any]) -> dict[Any, Any]:
        found: dict[Any, Any] = super()._storage_info_and_adj_filters(dset, filters)
        if not found or not _may_be_misplaced(dset):
            return found
        if any("data" in each for each in found.values()):
            raise hdf.Hdf5FeatureNotSupported(f"{dset.name}: the places of its chunks are not known")
        moved = {_placed(key, dset): each for key, each in found.items()}
        for places in (found, moved):
            if self._are_right(dset, places, [key for key in places if found.get(key) != moved.get(key)]):
                return places
        raise hdf.Hdf5FeatureNotSupported(f"{dset.name}: HDF5 gives wrong places of its chunks")

    def _are_right(self, dset: Any, places: Mapping[tuple[int, ...], Any], doubtful: Iterable[Any]) -> bool:
        """Return whether chunks are where `places` say, by the first of the doubtful ones that tells it."""
        for key in doubtful:
            corner = tuple(number * step for number, step in zip(key, dset.chunks, strict=True))
            if any(at >= size for at, size in zip(corner, dset.shape, strict=True)):
                return False
            _, data = dset.id.read_direct_chunk(corner)
            self.input_file.seek(places[key]["offset"])
            if self.input_file.read(places[key]["size"]) != data:
                return False
        return True


def _unreadable(node: Any) -> str | None:
    """Return why a dataset has no values that references could name, or None."""
    if not isinstance(node, h5py.Dataset):
        return None
    if node.is_virtual or node.external:
        return "its values lie in other files or datasets"  # of which kerchunk finds no chunks
    return "it has no dataspace" if node.shape is None else None


def _is_compact(node: Any) -> bool:
    """Return whether the values stand in the header of a dataset, where they have no place of their own."""
    compact: bool = node.id.get_create_plist().get_layout() == h5py.h5d.COMPACT
    return compact


def _is_single_text(node: Any) -> bool:
    return node.ndim == 0 and h5py.check_string_dtype(node.dtype) is not None and node.dtype.kind == "O"


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _dtype_json(native: np.dtype[Any]) -> Any:
    if native.hasobject or any(native[each].subdtype for each in native.names or ()):
        raise hdf.Hdf5FeatureNotSupported(f"elements of type {native}")
    return native.str if native.names is None else [[each, native[each].str] for each in native.names]


def _fill_json(node: Any) -> Any:
    """Return the value that marks missing data as metadata have it, or None."""
    marked = node.attrs.get("_FillValue")
    if marked is None or node.dtype.kind not in "biuf":
        return None
    value = np.asarray(marked).reshape(-1)[0].astype(node.dtype).item()
    if not isinstance(value, float) or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _may_be_misplaced(dset: Any) -> bool:
    """Return whether HDF5 2.0.0 may give wrong places when it lists chunks: one axis can grow, and it is not the first.

    The chunks of such a dataset may be numbered with the axis that grows first; the places are made of the numbers as
    if it were where it is.
    """
    growing = [axis for axis, size in enumerate(dset.maxshape) if size is None]
    return dset.chunks is not None and len(growing) == 1 and growing[0] > 0


def _placed(key: Sequence[int], dset: Any) -> tuple[int, ...]:
    """Return where the chunk is that HDF5 2.0.0 says is at `key`."""
    growing = list(dset.maxshape).index(None)
    counts = [-(-(most or 0) // step) for most, step in zip(dset.maxshape, dset.chunks, strict=True)]
    number = sum(at * math.prod(counts[axis + 1 :]) for axis, at in enumerate(key) if axis >= growing)
    place = [0] * len(counts)
    for axis in reversed(range(len(counts))):
        if axis != growing:
            number, place[axis] = divmod(number, counts[axis])
    place[growing] = number
    return tuple(place)
