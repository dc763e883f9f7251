"""Output index maps: functions that compute one output coordinate from an input point.

A map is constant (`offset`), affine in one input dimension (`offset + stride * x[dim]`), or reads an index array
(`offset + stride * array[x - origin]`).  `OutputMap` is the light tuple that planners consume; `OutputIndexMap` and
`OutputIndexMaps` are its public forms.

Index arrays are read-only, of type int64, of the rank of the input space, with size 1 along each dimension they do not
depend on.  Only values within `index_range` are valid; they are checked when they are used, not before.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from fsstore.errors import InvalidIndexError, OutOfRangeError
from fsstore.index.interval import INF, Bounds, Dim, contains, interval_text

IndexArray: TypeAlias = "NDArray[np.int64]"
CONSTANT, SINGLE, ARRAY = 0, 1, 2
ANY_INDEX = (-INF, INF + 1)
_INT64 = np.dtype(np.int64)


class OutputMap(NamedTuple):
    """One output coordinate.  `method` is `CONSTANT`, `SINGLE` or `ARRAY`.

    `input_dimension` is -1 and `index_array` None where they have no meaning; `index_range` is half open.
    """

    method: int
    offset: int
    stride: int
    input_dimension: int
    index_array: IndexArray | None
    index_range: tuple[int, int]


def constant_map(offset: int) -> OutputMap:
    """Return the map to `offset`."""
    return tuple.__new__(OutputMap, (CONSTANT, offset, 0, -1, None, ANY_INDEX))


def single_map(dim: int, offset: int = 0, stride: int = 1) -> OutputMap:
    """Return the map to `offset + stride * x[dim]`."""
    return tuple.__new__(OutputMap, (SINGLE, offset, stride, dim, None, ANY_INDEX))


def array_map(
    array: IndexArray, offset: int = 0, stride: int = 1, index_range: tuple[int, int] = ANY_INDEX
) -> OutputMap:
    """Return the map to `offset + stride * array[x - origin]`."""
    return OutputMap(ARRAY, offset, stride, -1, array, index_range)


class OutputIndexMethod(enum.Enum):
    """How an output coordinate is computed."""

    __module__ = "fsstore"

    constant = CONSTANT
    single_input_dimension = SINGLE
    array = ARRAY

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)

    def __hash__(self) -> int:
        return int(self.value)


def array_text(array: NDArray[Any]) -> str:
    """Return the elements in nested braces."""
    if array.ndim == 0:
        return str(array[()])
    if array.ndim == 1:
        return "{" + ", ".join(map(str, array.tolist())) + "}"
    return "{" + ", ".join(map(array_text, array)) + "}"


def index_array(value: Any) -> IndexArray:
    """Return a read-only int64 copy of `value`; `TypeError` for anything but integers that fit."""
    array = np.asarray(value)
    out: IndexArray
    if array.dtype == _INT64 and 0 not in array.strides:  # nearly always so, and three times as fast
        out = array.copy()
        out.flags.writeable = False
        return out
    if array.size == 0 and not isinstance(value, np.ndarray):
        array = array.astype(np.int64)
    if array.dtype.kind not in "biu" or not np.can_cast(array.dtype, np.int64):
        raise TypeError(f"an index array must hold 64-bit integers, not {array.dtype}")
    repeated = tuple(
        slice(0, 1) if stride == 0 and size > 1 else slice(None)
        for stride, size in zip(array.strides, array.shape, strict=True)
    )
    out = np.array(array[repeated], dtype=np.int64, order="C")
    out.flags.writeable = False
    # a broadcast dimension stays broadcast: the array does not depend on it
    return out if out.shape == array.shape else np.broadcast_to(out, array.shape)


def check_values(array: IndexArray, limits: tuple[int, int], place: str = "") -> None:
    """Raise `OutOfRangeError` naming a value of `array` that lies outside `limits`."""
    if array.size == 0:
        return
    for value in (int(array.min()), int(array.max())):
        if not contains(*limits, value):
            raise OutOfRangeError(f"{place}Index {value} is outside valid range {interval_text(*limits)}")


def without_repeats(array: IndexArray) -> IndexArray:
    """Return `array` with size 1 along the dimensions it was broadcast over."""
    if 0 not in array.strides or array.size == 0:
        return array
    out: IndexArray = array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]
    return out


_OVERLOADS = (
    "OutputIndexMap() takes (offset), (input_dimension, offset, stride) or "
    "(index_array, offset, stride, index_range), offset, stride and input_dimension being 64-bit integers"
)


class OutputIndexMap:
    """One output index map, immutable.

    `OutputIndexMap(5)` is constant, `OutputIndexMap(input_dimension=1, offset=2, stride=3)` follows an input
    dimension, `OutputIndexMap([1, 4, 9], index_range=Dim(10))` reads an index array.

    >>> OutputIndexMap(input_dimension=1, offset=2)
    OutputIndexMap(offset=2, stride=1, input_dimension=1)
    """

    __module__ = "fsstore"
    __slots__ = ("_map",)
    __hash__ = None  # type: ignore[assignment]  # as in TensorStore

    def __init__(self, *args: Any, **options: Any) -> None:
        first = args[0] if args else 0
        scalar = hasattr(first, "__index__") and getattr(first, "ndim", 0) == 0
        if not scalar or options.keys() & {"index_array", "index_range"}:
            names: tuple[str, ...] = ("index_array", "offset", "stride", "index_range")
        elif "input_dimension" in options or (args and (len(args) > 1 or options)):
            names = ("input_dimension", "offset", "stride")
        else:
            names = ("offset",)
        given = dict(zip(names, args, strict=False))
        if len(args) > len(names) or given.keys() & options.keys() or not options.keys() <= set(names):
            raise TypeError(_OVERLOADS)
        self._map = _parsed({**given, **options})

    @classmethod
    def _of(cls, output: OutputMap) -> OutputIndexMap:
        made = object.__new__(cls)
        made._map = output
        return made

    @property
    def method(self) -> OutputIndexMethod:
        """How the coordinate is computed."""
        return OutputIndexMethod(self._map.method)

    @property
    def offset(self) -> int:
        """The constant term."""
        return self._map.offset

    @property
    def stride(self) -> int | None:
        """The factor; None for a constant map."""
        return None if self._map.method == CONSTANT else self._map.stride

    @property
    def input_dimension(self) -> int | None:
        """The input dimension that is followed, if one is."""
        return self._map.input_dimension if self._map.method == SINGLE else None

    @property
    def index_array(self) -> IndexArray | None:
        """The index array, read-only, if there is one."""
        return self._map.index_array

    @property
    def index_range(self) -> Dim | None:
        """The values of the index array that may be used, if there is an index array."""
        if self._map.method != ARRAY:
            return None
        return Dim._of(Bounds(*self._map.index_range, implicit_low=False, implicit_high=False))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, OutputIndexMap):
            return NotImplemented
        return same_map(self._map, other._map)

    def __repr__(self) -> str:
        if self._map.method == CONSTANT:
            return f"OutputIndexMap(offset={self.offset})"
        text = f"OutputIndexMap(offset={self.offset}, stride={self.stride}, "
        array = self._map.index_array
        if array is None:
            return f"{text}input_dimension={self._map.input_dimension})"
        return f"{text}index_array={array_text(array)}, index_range={interval_text(*self._map.index_range)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return OutputIndexMap._of, (self._map,)


def same_map(a: OutputMap, b: OutputMap) -> bool:
    """Return whether two maps are equal; index arrays must have the same shape."""
    if a[:4] != b[:4] or a.index_range != b.index_range:
        return False
    if a.index_array is None or b.index_array is None:
        return True
    return a.index_array.shape == b.index_array.shape and bool((a.index_array == b.index_array).all())


def _int64(value: Any) -> int:
    number = operator.index(value)
    if not -(2**63) <= number < 2**63:
        raise TypeError(_OVERLOADS)
    return number


def _parsed(given: dict[str, Any]) -> OutputMap:
    offset, stride = _int64(given.get("offset", 0)), _int64(given.get("stride", 1))
    if "index_array" in given:
        if given["index_array"] is None:
            raise TypeError(_OVERLOADS)
        index_range = given.get("index_range")
        if index_range is None:
            limits = ANY_INDEX
        elif isinstance(index_range, Dim):
            limits = (index_range.inclusive_min, index_range.exclusive_max)
        else:
            raise TypeError(_OVERLOADS)
        return array_map(without_repeats(index_array(given["index_array"])), offset, stride, limits)
    if "index_range" in given:
        raise TypeError(_OVERLOADS)
    if "input_dimension" in given:
        return single_map(_int64(given["input_dimension"]), offset, stride)
    return constant_map(offset)


class OutputIndexMaps:
    """The output index maps of a transform, a read-only sequence."""

    __module__ = "fsstore"
    __slots__ = ("_maps",)
    __hash__ = None  # type: ignore[assignment]  # as in TensorStore

    def __init__(self, maps: Iterable[OutputMap]) -> None:
        self._maps = tuple(maps)

    @property
    def rank(self) -> int:
        """The number of output dimensions."""
        return len(self._maps)

    def __len__(self) -> int:
        return len(self._maps)

    @overload
    def __getitem__(self, key: int) -> OutputIndexMap: ...
    @overload
    def __getitem__(self, key: slice) -> list[OutputIndexMap]: ...
    def __getitem__(self, key: int | slice) -> OutputIndexMap | list[OutputIndexMap]:
        """Return one map, or the list of the maps of a slice."""
        if isinstance(key, slice):
            return [OutputIndexMap._of(output) for output in self._maps[key]]
        index, rank = operator.index(key), len(self._maps)
        if not -rank <= index < rank:
            raise InvalidIndexError(f"Index {index} is outside valid range [-{rank}, {rank})")
        return OutputIndexMap._of(self._maps[index])

    def __iter__(self) -> Iterator[OutputIndexMap]:
        return map(OutputIndexMap._of, self._maps)

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is a sequence of equal maps."""
        if not isinstance(other, Iterable):
            return NotImplemented
        return list(self) == list(other)

    def __repr__(self) -> str:
        return repr(list(self))
