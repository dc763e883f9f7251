"""Arrays and groups for those who never wait: NumPy's indexing, NumPy's arrays, and no futures.

    import fsstore.sync as fs

    group = fs.open_group("a.zarr", mode="a")
    t = group.create_array("t", shape=(4, 6), dtype="f4")
    t[-1] = 280.5
    t[:, ::-2].mean()

Indexing reads, and gives what it would give of a NumPy array: negative positions count from the end, slices end where
the array does, lists and masks select.  An assignment returns when the values are stored.  `tensorstore` is the array
as TensorStore's API has it, for reads that are begun together, views, transactions and `await`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Generic, Literal, SupportsIndex, TypeAlias, TypeVar, Unpack, overload

import numpy as np

from fsstore.arrays.protocols import Unread
from fsstore.arrays.spec_value import OpenOptions, SpecLike
from fsstore.arrays.store import TensorStore
from fsstore.arrays.store import open as open_tensorstore
from fsstore.context.context import Context
from fsstore.dataset.group import Group
from fsstore.dataset.group import open_group as open_any_group
from fsstore.driver.attributes import Attributes

__all__ = ["StoredArray", "StoredGroup", "open", "open_group", "save"]

S = TypeVar("S", bound=np.generic)
NDArray: TypeAlias = np.ndarray[Any, np.dtype[S]]
Positions: TypeAlias = Sequence[int] | Sequence[bool] | Sequence[Sequence[int]] | np.ndarray[Any, Any]
Part: TypeAlias = SupportsIndex | slice | EllipsisType | Positions | None
Key: TypeAlias = Part | tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class _Selection(Generic[S]):
    """A way to select: `oindex`, where lists of several dimensions make a grid, or `vindex`, where they make points."""

    array: StoredArray[S]
    way: Literal["oindex", "vindex"]

    def __getitem__(self, key: Key) -> NDArray[S]:
        view: TensorStore = getattr(self.array.tensorstore, self.way)[_from_zero(key, self.array.shape)]
        return view.read().result()

    def __setitem__(self, key: Key, value: Any) -> None:
        index = _from_zero(key, self.array.shape)
        getattr(self.array.tensorstore, self.way)[index] = _as_type(value, self.array.dtype)


class StoredArray(Unread, Generic[S]):
    """A stored array that reads and writes as a NumPy array does.

    >>> array = open("memory://", data=np.arange(12).reshape(3, 4))
    >>> array[-1, ::2]
    array([ 8, 10])
    >>> array[0] = 7
    >>> int(array[:2].sum())
    50
    """

    __slots__ = ("tensorstore",)
    _READING = "array[...]"

    def __init__(self, tensorstore: TensorStore) -> None:
        origin = tensorstore.origin
        self.tensorstore: TensorStore = tensorstore.translate_to[(0,) * len(origin)] if any(origin) else tensorstore

    # --- reading and writing

    @overload
    def __getitem__(self, key: SupportsIndex | tuple[SupportsIndex, ...]) -> Any: ...
    @overload
    def __getitem__(self, key: Key) -> NDArray[S]: ...
    def __getitem__(self, key: Key) -> Any:
        """Return values as NumPy would: an array, a scalar where all dimensions have positions and nothing is `...`."""
        index = _from_zero(key, self.shape)
        found = self.tensorstore[index].read().result()
        return found if any(part is Ellipsis for part in index) else found[()]

    def __setitem__(self, key: Key, value: Any) -> None:
        """Write values that broadcast to the selection, as the type of the array, and return when they are stored.

        Raises `OverflowError` for integers that the type cannot hold.
        """
        self.tensorstore[_from_zero(key, self.shape)] = _as_type(value, self.dtype)

    @property
    def oindex(self) -> _Selection[S]:
        """Selects along each dimension by itself: lists make a grid."""
        return _Selection(self, "oindex")

    @property
    def vindex(self) -> _Selection[S]:
        """Selects points: lists of all dimensions go together, and come first."""
        return _Selection(self, "vindex")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Read all of it."""
        return self.tensorstore.__array__(dtype)

    def __len__(self) -> int:
        """Return the size of the first dimension."""
        return len(self.tensorstore)

    def __iter__(self) -> Iterator[Any]:
        """Yield what stands at each position of the first dimension, read a row of chunks at a time."""
        step = (self.chunks or (1,))[0]
        for begin in range(0, len(self), step):
            yield from self[begin : begin + step]

    # --- what it is

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension, as it was when the array was opened or last changed from here."""
        return self.tensorstore.shape

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return self.tensorstore.rank

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.tensorstore.size

    @property
    def nbytes(self) -> int:
        """How many bytes the elements take in memory."""
        return self.tensorstore.nbytes

    @property
    def dtype(self) -> np.dtype[S]:
        """The type of the elements, NumPy's."""
        return self.tensorstore.dtype.numpy_dtype

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """The sides of a chunk."""
        return self.tensorstore.chunks

    @property
    def attrs(self) -> Attributes:
        """The attributes, as a mapping that writes what is assigned."""
        return self.tensorstore.attrs

    @property
    def info(self) -> Any:
        """The facts of the array as text: shape, type, chunks, size."""
        return self.tensorstore.info

    def __repr__(self) -> str:
        """Return the place, the shape, the type and the chunks in a line."""
        chunks = "" if self.chunks is None else f", chunks {self.chunks}"
        return f"<Array {self.tensorstore.url} {self.shape} {self.dtype}{chunks}>"

    # --- changing it

    def resize(self, shape: Sequence[int]) -> None:
        """Give the array another shape."""
        self.tensorstore = self.tensorstore.resize(exclusive_max=shape).result()

    def append(self, values: Any, axis: int | str = 0) -> tuple[int, ...]:
        """Write values behind the last ones along a dimension, the data first; return the new shape."""
        from fsstore.job.grow import append

        append(self.tensorstore, _as_type(values, self.dtype), axis).result()
        self.tensorstore = self.tensorstore.resolve().result()
        return self.shape


def _as_type(value: Any, dtype: np.dtype[Any]) -> Any:
    """Return numbers of another type as those of the array, where NumPy calls that the same kind."""
    if isinstance(value, TensorStore) or dtype.kind not in "iufc":
        return value
    values = np.asarray(value)
    if values.dtype.kind not in "biufc" or np.can_cast(values.dtype, dtype, "safe"):
        return value
    found = values.astype(dtype, casting="unsafe" if dtype.kind == "u" and values.dtype.kind == "i" else "same_kind")
    if dtype.kind in "iu" and not np.array_equal(found, values):
        raise OverflowError(f"Integers from {values.min()} to {values.max()} do not fit into {dtype}, the array's type")
    return found


def _from_zero(key: Key, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Return an index in coordinates: those of NumPy count negative positions from the end, and cut slices there."""
    parts: tuple[Any, ...] = key if isinstance(key, tuple) else (key,)
    known = [part if _is_simple(part) else _array_of(part) for part in parts]
    free = len(shape) - sum(_dimensions(part) for part in known)
    if free < 0:
        raise IndexError(f"{len(shape) - free} indices for an array of {len(shape)} dimensions")
    axis, out = 0, []
    for part in known:
        if part is Ellipsis:
            axis += free
        elif part is not None:
            part = _coordinates(part, axis, shape)  # noqa: PLW2901  # the same part in other words
            axis += _dimensions(part)
        out.append(part)
    return tuple(out)


def _is_simple(part: Any) -> bool:
    return part is None or part is Ellipsis or isinstance(part, slice | int | np.integer)


def _array_of(part: Any) -> NDArray[Any]:
    found = np.asarray(part)
    if found.dtype.kind in "iub":
        return found
    if found.size:
        raise IndexError(f"An array is indexed by integers, slices, lists of them and masks, not by {part!r}")
    return found.astype(np.intp)


def _dimensions(part: Any) -> int:
    """Return how many dimensions of an array an index takes."""
    if part is None or part is Ellipsis:
        return 0
    return part.ndim if isinstance(part, np.ndarray) and part.dtype == bool else 1


def _coordinates(part: Any, axis: int, shape: tuple[int, ...]) -> Any:
    size = shape[axis]
    if isinstance(part, slice):
        wanted = range(size)[part]
        end = wanted[-1] + (1 if wanted.step > 0 else -1) if wanted else 0
        return slice(wanted.start, end, wanted.step) if wanted else slice(0, 0)
    if isinstance(part, np.ndarray) and part.dtype == bool:
        if part.shape != shape[axis : axis + part.ndim]:
            raise IndexError(f"A mask of shape {part.shape} is not of the shape of the array, {shape}")
        return part
    outside = (part < -size) | (part >= size)
    if np.any(outside):
        wrong = np.asarray(part)[outside].flat[0]
        raise IndexError(f"index {wrong} is out of bounds for axis {axis} with size {size}")
    return np.where(part < 0, part + size, part) if isinstance(part, np.ndarray) else part % size


class StoredGroup:
    """A group of arrays and groups, a mapping of their names.

    >>> group = open_group("memory://", mode="a")
    >>> group["ocean/t"] = np.zeros((2, 3))
    >>> float(group.array("ocean/t")[0].sum()), list(group)
    (0.0, ['ocean'])
    """

    __slots__ = ("group",)

    def __init__(self, group: Group) -> None:
        self.group = group
        """The group as the API with futures has it."""

    @property
    def attrs(self) -> Attributes:
        """The attributes, as a mapping that writes what is assigned."""
        return self.group.attrs

    def __getitem__(self, path: str) -> Any:
        """Return an array or a group; raise `KeyError` if there is none.  `array` and `subgroup` say which is meant."""
        found = self.group[path]
        return StoredGroup(found) if isinstance(found, Group) else StoredArray(found)

    def array(self, path: str) -> StoredArray[Any]:
        """Return an array; raise `KeyError` if there is none, and `TypeError` if it is a group."""
        found = self[path]
        if not isinstance(found, StoredArray):
            raise TypeError(f"{path!r} is a group and no array; its members are {', '.join(found)}")
        return found

    def subgroup(self, path: str) -> StoredGroup:
        """Return a group; raise `KeyError` if there is none, and `TypeError` if it is an array."""
        found = self[path]
        if not isinstance(found, StoredGroup):
            raise TypeError(f"{path!r} is an array and no group")
        return found

    def __setitem__(self, path: str, data: Any) -> None:
        """Create an array with values; raise `AlreadyExistsError` if something is at the path."""
        self.group[path] = data

    def __delitem__(self, path: str) -> None:
        """Delete an array, or a group with everything in it; raise `KeyError` if there is none."""
        del self.group[path]

    def __contains__(self, path: object) -> bool:
        """Return whether there is an array or a group at a path."""
        return path in self.group

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the members, sorted."""
        return iter(self.group)

    def __len__(self) -> int:
        """Return how many members there are."""
        return len(self.group)

    def arrays(self) -> dict[str, StoredArray[Any]]:
        """Return the arrays directly in the group by name, opened together."""
        return {name: StoredArray(each) for name, each in self.group.arrays()}

    def groups(self) -> dict[str, StoredGroup]:
        """Return the groups directly in the group by name."""
        return {name: StoredGroup(each) for name, each in self.group.groups()}

    def tree(self) -> str:
        """Return the groups and arrays below as indented text, one a line."""
        return self.group.tree()

    def create_array(
        self, path: str, *, shape: Sequence[int] | None = None, dtype: Any = None, data: Any = None, **options: Any
    ) -> StoredArray[Any]:
        """Create an array, with values if there are `data`; `options` are those of `fsstore.Group.create_array`."""
        return StoredArray(self.group.create_array(path, shape=shape, dtype=dtype, data=data, **options).result())

    def require_array(self, path: str, *, shape: Sequence[int], dtype: Any, **options: Any) -> StoredArray[Any]:
        """Open an array, or create it if there is none; raise if it has another shape or type."""
        return StoredArray(self.group.require_array(path, shape=shape, dtype=dtype, **options).result())

    def create_group(self, path: str, *, attributes: Mapping[str, Any] | None = None) -> StoredGroup:
        """Create a group, and those on the way; raise `AlreadyExistsError` if there is something there."""
        return StoredGroup(self.group.create_group(path, attributes=attributes).result())

    def require_group(self, path: str) -> StoredGroup:
        """Open a group, or create it if there is none."""
        return StoredGroup(self.group.require_group(path).result())

    def move(self, source: str, target: str) -> None:
        """Move an array, or a group with everything in it, to another path of the group."""
        self.group.move(source, target).result()

    def consolidate(self) -> list[str]:
        """Write consolidated metadata; return the members of which they had said something else."""
        return self.group.consolidate().result()

    def __repr__(self) -> str:
        """Return the place and the format, and the names of the members."""
        return repr(self.group)


@overload
def open(  # noqa: A001  # TensorStore's name, and zarr's
    place: SpecLike, *, data: NDArray[S], context: Context | None = None, **options: Unpack[OpenOptions]
) -> StoredArray[S]: ...
@overload
def open(  # noqa: A001  # as below
    place: SpecLike, *, data: Any = None, context: Context | None = None, **options: Unpack[OpenOptions]
) -> StoredArray[Any]: ...
def open(  # noqa: A001  # as below
    place: SpecLike, *, data: Any = None, context: Context | None = None, **options: Unpack[OpenOptions]
) -> StoredArray[Any]:
    """Open or create an array; the arguments are those of `fsstore.open`.

    >>> open("memory://", mode="w", shape=(2, 3), dtype="f4")[-1].tolist()
    [0.0, 0.0, 0.0]
    """
    return StoredArray(open_tensorstore(place, data=data, context=context, **options).result())


@overload
def save(place: SpecLike, data: NDArray[S], **options: Unpack[OpenOptions]) -> StoredArray[S]: ...
@overload
def save(place: SpecLike, data: Any, **options: Unpack[OpenOptions]) -> StoredArray[Any]: ...
def save(place: SpecLike, data: Any, **options: Unpack[OpenOptions]) -> StoredArray[Any]:
    """Write values as a new array, and return it when they are stored; `mode="w"` replaces what is there.

    >>> save("memory://", [[1, 2], [3, 4]])[-1].tolist()
    [3, 4]
    """
    return open(place, data=data, **options)


def open_group(
    place: Any,
    *,
    mode: Literal["r", "r+", "a", "w", "w-"] = "r+",
    zarr_format: Literal[0, 2, 3] = 3,
    consolidated: bool = True,
    context: Context | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> StoredGroup:
    """Open or create a group; the arguments are those of `fsstore.open_group`."""
    opening = open_any_group(
        place, mode=mode, zarr_format=zarr_format, consolidated=consolidated, context=context,
        storage_options=storage_options,
    )  # fmt: skip
    return StoredGroup(opening.result())
