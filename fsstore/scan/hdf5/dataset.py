"""A dataset as a value: its type in NumPy's words, its shape, dimensions and storage, the mapping of a virtual one."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import numpy as np

from fsstore.errors import UnimplementedError
from fsstore.scan.hdf5.layout import External, Filter, IndexPlace
from fsstore.scan.hdf5.structure import NonsenseError, UnknownError
from fsstore.values.json_value import Json

# The data types of HDF5 as those of NumPy, and which of them are stored as NumPy would store them.
#
# NumPy has a type for nearly every type of HDF5; that does not mean that the bytes in the file
# are such elements. Integers may have less precision than bytes, floats other fields, strings padding that
# is cut off when they are read, records gaps. Values that are not stored as shown are read by HDF5 itself
# (`as_stored` is false).

FLOATS = {  # sign, exponent and mantissa: their places and sizes
    2: (15, 10, 5, 0, 10),
    4: (31, 23, 8, 0, 23),
    8: (63, 52, 11, 0, 52),
    16: (79, 64, 15, 0, 64),  # of x87, where NumPy has it
}


@dataclass(frozen=True, slots=True)
class Element:
    """The elements of a dataset: their dtype in the array, the shape each adds to it, and how they are stored.

    `text` are strings, which chunks hold as `vlen-utf8`: those of the file, or `made` of references (the paths of the
    objects they are to) or of lists and records of any length (JSON).  `size` is that of an element in the file, and
    `heaped` says where in it stands how long something in the heap is, and of how many bytes its parts are.
    """

    dtype: np.dtype[Any]
    inner: tuple[int, ...] = ()
    as_stored: bool = True
    text: bool = False
    made: Literal["", "names", "json"] = ""
    size: int = field(default=0, compare=False)
    heaped: tuple[tuple[int, int], ...] = field(default=(), compare=False)


NAMED = Element(np.dtype(object), as_stored=False, text=True, made="names")


def element_from(dtype: np.dtype[Any], *, exact: bool) -> Element:
    """Return the elements that a dtype shows; `exact`: the bytes in the file are such elements."""
    plain = _without_metadata(dtype)
    if plain.itemsize == 0:
        raise UnimplementedError("its elements have no bytes")
    if plain.kind == "f" and plain.itemsize > 8:
        raise UnimplementedError(f"its elements are {plain}, which no array of zarr holds")
    packed = _packed(plain)
    return Element(packed, as_stored=exact and packed.itemsize == plain.itemsize)


def _without_metadata(dtype: np.dtype[Any]) -> np.dtype[Any]:
    if dtype.names is None:
        if dtype.subdtype is not None:
            base, shape = dtype.subdtype
            return np.dtype((_without_metadata(base), shape))
        return np.dtype(dtype.str)
    fields = [dtype.fields[name] for name in dtype.names]  # type: ignore[index]  # it has fields
    return np.dtype(
        {
            "names": list(dtype.names),
            "formats": [_without_metadata(field[0]) for field in fields],
            "offsets": [field[1] for field in fields],
            "itemsize": dtype.itemsize,
        }
    )


def _packed(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return a structure without gaps, as zarr stores it."""
    if dtype.names is None:
        if dtype.subdtype is not None:
            base, shape = dtype.subdtype
            return np.dtype((_packed(base), shape))
        return dtype
    fields: Any = dtype.fields
    return np.dtype([(name, _packed(fields[name][0])) for name in dtype.names])


def dtype_json(dtype: np.dtype[Any]) -> Json:
    """Return the `dtype` member of zarr v2."""
    if dtype.kind == "O":
        return "|O"
    if dtype.names is None:
        return dtype.str
    out: list[Json] = []
    for name in dtype.names:
        part = dtype.fields[name][0]  # type: ignore[index]  # it has fields
        base, shape = part.subdtype if part.subdtype is not None else (part, ())
        out.append([name, dtype_json(base), *([list(shape)] if shape else [])])
    return out


# Which part of a virtual dataset comes from which part of another one.
#
# HDF5 says it by two selections that hold equally many elements, in C order. Here both are hyperslabs:
# along each axis blocks at equal distances. Axes along which one element is selected do not count where the
# number of axes differs; the others must pair up, which is so whenever sources are stacked, joined or
# interleaved.

_MOST_PARTS = 1_000_000
_DEEPEST = 32
_BOXES, _ALL = 2, 3
_FILE_SHARED, _DATASET_SHARED, _SAME_FILE = 1, 2, 4


@dataclass(frozen=True, slots=True)
class AxisSelection:
    """A selection along an axis: `count` blocks, `stride` apart and no longer than that.

    A count below 0 is that of what there is.
    """

    start: int
    stride: int
    count: int
    block: int

    @property
    def size(self) -> int:
        """How many places are selected."""
        return self.count * self.block

    @property
    def end(self) -> int:
        """The place behind the last one that is selected."""
        return int(self.at(self.size - 1)) + 1 if self.size else 0

    @property
    def is_run(self) -> bool:
        """Whether the places are neighbours."""
        return self.count == 1 or self.stride == self.block

    def at(self, positions: Any) -> Any:
        """Return the places at positions in the selection."""
        return self.start + positions // self.block * self.stride + positions % self.block

    def before(self, place: int) -> int:
        """Return how many selected places are smaller than `place`."""
        if place <= self.start:
            return 0
        blocks, rest = divmod(place - self.start, self.stride)
        found = blocks * self.block + min(rest, self.block)
        return found if self.count < 0 else min(found, self.size)

    def ended(self, length: int) -> AxisSelection:
        """Return the selection in an axis of a length, if its own end is not said."""
        if self.count >= 0:
            return self
        return replace(self, count=self.before(length) // self.block)


def _all_of(length: int) -> AxisSelection:
    return AxisSelection(0, max(length, 1), 1, length)


class VirtualPart(NamedTuple):
    """A part of a virtual dataset: the file and the dataset it comes from, `""` and `"."` being this file.

    `origin` is None where all of the source is meant.
    """

    file: str
    dataset: str
    target: tuple[AxisSelection, ...]
    origin: tuple[AxisSelection, ...] | None

    @property
    def is_endless(self) -> bool:
        """Whether the part is as large as its source is."""
        return any(axis.count < 0 for axis in self.target)

    def within(self, shape: Sequence[int]) -> VirtualPart:
        """Return the part for a source of a shape; raises `UnimplementedError` if the selections do not fit."""
        origin = self.origin
        if origin is None:
            origin = tuple(_all_of(length) for length in shape)
        if len(origin) != len(shape):
            raise UnimplementedError(f"its source {self.dataset!r} has {len(shape)} dimensions")
        origin = tuple(axis.ended(length) for axis, length in zip(origin, shape, strict=True))
        target = self.target
        if self.is_endless:
            sizes = [axis.size for axis in origin if axis.size != 1]
            others = [axis.size for axis in target if axis.count >= 0 and axis.size != 1]
            for size in others:
                if size in sizes:
                    sizes.remove(size)
            free = sizes[0] if sizes else 1
            target = tuple(axis if axis.count >= 0 else replace(axis, count=free // axis.block) for axis in target)
        return self._replace(target=target, origin=origin)


def paired(part: VirtualPart) -> list[tuple[int, int]]:
    """Return the axes of the target and the source that belong together; raises `UnimplementedError` if they do not."""
    assert part.origin is not None
    if [each.size for each in part.target] == [each.size for each in part.origin]:
        return [(axis, axis) for axis in range(len(part.target))]
    target = [axis for axis, each in enumerate(part.target) if each.size != 1]
    origin = [axis for axis, each in enumerate(part.origin) if each.size != 1]
    if [part.target[axis].size for axis in target] != [part.origin[axis].size for axis in origin]:
        raise UnimplementedError("it reshapes its sources")
    return list(zip(target, origin, strict=True))


class _Mapping:
    """The mapping of a virtual dataset, taken from its beginning; `lengths` in it have so many bytes."""

    def __init__(self, data: bytes, lengths: int) -> None:
        self._data, self._lengths, self._at = data, lengths, 0

    def number(self, width: int) -> int:
        """Take a number."""
        return int.from_bytes(self._octets(width), "little")

    def _octets(self, count: int) -> bytes:
        self._at += count
        if self._at > len(self._data):
            raise NonsenseError("the mapping of a virtual dataset is cut off")
        return self._data[self._at - count : self._at]

    def _name(self, names: list[str], *, is_shared: bool) -> str:
        """Take a name, or the number of the part that has it too."""
        if is_shared:
            number = self.number(self._lengths)
            if number >= len(names):
                raise NonsenseError(f"a virtual dataset has no part {number} yet")
            return names[number]
        size = self._data.find(b"\0", self._at) + 1 - self._at
        return self._octets(max(size, 1))[:-1].decode("utf-8", "surrogateescape")

    def parts(self, shape: tuple[int, ...]) -> Iterator[VirtualPart]:
        """Take the parts of a dataset of a shape."""
        version, count = self.number(1), self.number(self._lengths)
        if version > 1:
            raise UnknownError
        if count > _MOST_PARTS:
            raise UnimplementedError(f"it is put together from {count} parts, which are too many")
        files: list[str] = []
        datasets: list[str] = []
        for _ in range(count):
            flags = self.number(1) if version else 0
            files.append("." if flags & _SAME_FILE else self._name(files, is_shared=bool(flags & _FILE_SHARED)))
            datasets.append(self._name(datasets, is_shared=bool(flags & _DATASET_SHARED)))
            origin, target = self._selection(), self._selection()
            if target is None:
                target = tuple(map(_all_of, shape))
            if len(target) != len(shape):
                raise NonsenseError("a part of a virtual dataset has other dimensions")
            if any(axis.count < 0 for axis in target) and "%b" in files[-1] + datasets[-1]:
                raise UnimplementedError("its sources are numbered, and nothing says how many there are")
            yield VirtualPart(files[-1], datasets[-1], target, origin)

    def _selection(self) -> tuple[AxisSelection, ...] | None:
        """Take what a selection has along each axis; None for all of it."""
        kind, version = self.number(4), self.number(4)
        if kind == _ALL:
            self._octets(8)
            return None
        if kind != _BOXES:
            raise UnimplementedError("its parts are no regular boxes")
        if version == 1:
            self._octets(8)
            is_regular, width = False, 4
        elif version == 2:
            is_regular, width = bool(self.number(1) & 1), 8
            self._octets(4)
        elif version == 3:
            is_regular, width = bool(self.number(1) & 1), self.number(1)
        else:
            raise UnknownError
        rank = self.number(4)
        if not 0 < rank <= _DEEPEST or width not in (2, 4, 8):
            raise NonsenseError(f"a selection of {rank} dimensions, in numbers of {width} bytes")
        if is_regular:
            return tuple(_axis(*(self.number(width) for _ in range(4)), endless=256**width - 1) for _ in range(rank))
        count = self.number(width)
        data = np.frombuffer(self._octets(2 * rank * count * width), f"<u{width}").astype(np.int64)
        return _regular(data.reshape(count, 2, rank))


def _axis(start: int, stride: int, count: int, block: int, *, endless: int) -> AxisSelection:
    if block == endless:
        return AxisSelection(start, 1, -1, 1)
    if count == endless:
        return AxisSelection(start, stride, -1, block)
    if not block or (count > 1 and stride < block):
        raise NonsenseError("the blocks of a selection lie in each other")
    return AxisSelection(start, max(stride, block) if count == 1 else stride, count, block)


def _regular(boxes: Any) -> tuple[AxisSelection, ...]:
    """Return the selection that has these boxes, first and last place of each."""
    found = []
    for axis in range(boxes.shape[2]):
        starts = np.unique(boxes[:, 0, axis])
        sizes, steps = np.unique(boxes[:, 1, axis] + 1 - boxes[:, 0, axis]), np.unique(np.diff(starts))
        if len(sizes) != 1 or len(steps) > 1 or sizes[0] < 1 or (len(steps) and steps[0] < sizes[0]):
            raise UnimplementedError("its parts are no regular boxes")
        step = int(steps[0] if len(steps) else sizes[0])
        found.append(AxisSelection(int(starts[0]), step, len(starts), int(sizes[0])))
    if math.prod(axis.count for axis in found) != len(boxes):
        raise UnimplementedError("its parts are no regular boxes")
    return tuple(found)


def parts_of(data: bytes, lengths: int, shape: tuple[int, ...]) -> tuple[VirtualPart, ...]:
    """Return the parts of a virtual dataset of a shape by its mapping, whose lengths have so many bytes."""
    return tuple(_Mapping(data, lengths).parts(shape))


def places(axis: AxisSelection, first: int, last: int) -> Any:
    """Return the places at the positions `[first, last)` of a selection."""
    return axis.at(np.arange(first, last, dtype=np.int64))


_NO_VARIABLE = "This is a netCDF dimension but not a netCDF variable."


@dataclass(frozen=True, slots=True)
class Scale:
    """The dimensions of a dataset, as its attributes tell them.

    `attached` are the addresses of the scales of each dimension, the last attached one; 0 is none.  `hidden`: it is a
    dimension without a variable.
    """

    is_scale: bool = False
    hidden: bool = False
    attached: tuple[int, ...] = ()
    dimid: int | None = None
    coordinates: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Dataset:
    """A dataset.  `address` is that of its header; `shape` and `maxshape` (0: unlimited) are those of HDF5.

    `index` is where its chunk index is, if that is known.  `by_library`: its values are read by HDF5 itself.
    """

    path: str
    address: int
    shape: tuple[int, ...]
    maxshape: tuple[int, ...]
    element: Element
    layout: Literal["compact", "contiguous", "chunked", "virtual"]
    chunks: tuple[int, ...] = ()
    index: IndexPlace | None = field(default=None, compare=False)
    filters: tuple[Filter, ...] = ()
    fill: Any = 0
    offset: int | None = None
    external: tuple[External, ...] = ()
    parts: tuple[VirtualPart, ...] = ()
    attributes: dict[str, Json] = field(default_factory=dict)
    lost_attributes: tuple[str, ...] = ()
    scale: Scale = field(default_factory=Scale)
    by_library: bool = False

    def at(self, path: str) -> Dataset:
        """Return the same dataset under another path."""
        return replace(self, path=path)

    def stacked(self, shape: tuple[int, ...], parts: tuple[VirtualPart, ...]) -> Dataset:
        """Return a virtual dataset whose shape and parts are known."""
        return replace(self, shape=shape, parts=parts)


def scale_from(names: Collection[str], value: Callable[[str], Any], attached: Callable[[], tuple[int, ...]]) -> Scale:
    """Return what a dataset says of dimensions: `value` gives that of an attribute, `attached` the scales it names."""
    is_scale = "CLASS" in names and _matches(value("CLASS"), "DIMENSION_SCALE")
    hidden = is_scale and "NAME" in names and _matches(value("NAME"), _NO_VARIABLE)
    scales = attached() if "DIMENSION_LIST" in names else ()
    dimid = value("_Netcdf4Dimid") if "_Netcdf4Dimid" in names else None
    coordinates: tuple[int, ...] = ()
    if "_Netcdf4Coordinates" in names:
        numbers = np.atleast_1d(np.asarray(value("_Netcdf4Coordinates")))
        coordinates = tuple(numbers.astype(int).tolist())
    return Scale(is_scale, hidden, scales, None if dimid is None else int(dimid), coordinates)


def _matches(value: Any, text: str) -> bool:
    return isinstance(value, str) and value.startswith(text)


# The names of dimensions, as NetCDF 4 means them.
#
# A dimension is called like the dataset that is its scale. A coordinate of several dimensions, which cannot
# have scales because it is one, numbers them instead. Where there is no scale, dimensions of a group are
# called `phony_dim_k`: one for each size, and one more where an array has the same size twice.
#
# A dimension without limit is as long as the longest variable along it: a shorter one has its fill value
# there.


def _scales(datasets: Mapping[str, Dataset]) -> dict[int, Dataset]:
    """Return the scales by address; of several names the first counts, or the last if NetCDF numbers it."""
    out: dict[int, Dataset] = {}
    for each in datasets.values():
        if each.scale.is_scale and (each.scale.dimid is not None or each.address not in out):
            out[each.address] = each
    return out


def _axes(dataset: Dataset, scales: Mapping[int, Dataset], by_id: Mapping[int, Dataset]) -> list[Dataset | None]:
    count, scale = len(dataset.shape), dataset.scale
    if scale.attached and len(scale.attached) == count:
        return [scales.get(address) for address in scale.attached]
    if scale.is_scale and count == 1:
        return [dataset if scale.dimid is None else scales.get(dataset.address, dataset)]
    if scale.coordinates and len(scale.coordinates) == count:
        return [by_id.get(number) for number in scale.coordinates]
    return [dataset if scale.is_scale and not axis else None for axis in range(count)]


def _resolved(datasets: Mapping[str, Dataset]) -> dict[str, list[Dataset | None]]:
    scales = _scales(datasets)
    by_id = {each.scale.dimid: each for each in scales.values() if each.scale.dimid is not None}
    return {path: _axes(dataset, scales, by_id) for path, dataset in datasets.items()}


def grown(datasets: Mapping[str, Dataset]) -> dict[str, Dataset]:
    """Return the datasets with the shapes that NetCDF gives them."""
    axes, lengths = _resolved(datasets), dict[int, int]()
    for path, dataset in datasets.items():
        for scale, length, most in zip(axes[path], dataset.shape, dataset.maxshape, strict=True):
            if scale is not None and most == 0:
                lengths[scale.address] = max(lengths.get(scale.address, 0), length)
    out = {}
    for path, dataset in datasets.items():
        shape = tuple(
            max(length, lengths.get(scale.address, 0)) if scale is not None and most == 0 else length
            for scale, length, most in zip(axes[path], dataset.shape, dataset.maxshape, strict=True)
        )
        out[path] = dataset if shape == dataset.shape else replace(dataset, shape=shape)
    return out


def dimension_names(datasets: Mapping[str, Dataset]) -> dict[str, list[str]]:
    """Return the names of the dimensions of each dataset."""
    axes, out = _resolved(datasets), {}
    phony: dict[str, dict[tuple[int, int], int]] = {}
    for path, dataset in datasets.items():
        known = phony.setdefault(path.rpartition("/")[0], {})
        times: dict[int, int] = {}
        names = []
        for scale, length in zip(axes[path], dataset.shape, strict=True):
            if scale is not None and _fits(scale, length):
                names.append(scale.path.rpartition("/")[2])
                continue
            nth = times[length] = times.get(length, -1) + 1
            names.append(f"phony_dim_{known.setdefault((length, nth), len(known))}")
        out[path] = names
    return out


def _fits(scale: Dataset, length: int) -> bool:
    """Return whether a scale is as long as the dimension: a shorter one would cut values off."""
    return len(scale.shape) != 1 or scale.scale.hidden or scale.shape[0] == length
