"""The points where zarr v3 is extended beside its codecs: chunk grids, chunk key encodings and data types.

Metadata name an extension, `{"name": …, "configuration": {…}}`.  A name is one registered class, ours and those of
other packages alike: a frozen dataclass of its configuration.

Metadata that mark an extension with `"must_understand": false` are no exception: without a grid, a key encoding or a
data type nothing of the array can be read, so a name that is not registered is always refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, Self, TypeVar

import numpy as np

from fsstore.chunk.model import Axis, ChunkKeys, KeyEncoding, RegularAxis, VariableAxis
from fsstore.errors import FailedPreconditionError, JsonError, StoreError
from fsstore.index.interval import MAX_FINITE
from fsstore.values import registry
from fsstore.values.json_value import Fields, Json, array_of, boolean, expected, integer, obj, one_of, quote, string
from fsstore.values.registry import Registry

_MAX_LISTED = 1 << 22  # chunks along a dimension: a few bytes in a document may stand for many


@dataclass(frozen=True, slots=True)
class RegularGrid:
    """Chunks of one shape."""

    chunk_shape: tuple[int, ...]

    name: ClassVar[str] = "regular"

    @classmethod
    def from_json(cls, configuration: Mapping[str, Json]) -> Self:
        """Return the grid of a configuration."""
        fields = Fields(configuration)
        shape = fields.require("chunk_shape", array_of(integer(1, MAX_FINITE)))
        fields.finish()
        return cls(tuple(shape))

    def to_json(self) -> dict[str, Json]:
        """Return the configuration."""
        return {"chunk_shape": list(self.chunk_shape)}

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.chunk_shape)

    def sizes(self, shape: Sequence[int]) -> Sequence[int]:
        """Return the size of the chunks along each dimension."""
        return self.chunk_shape


@dataclass(frozen=True, slots=True)
class RectilinearGrid:
    """Chunks whose sizes are listed along each dimension, with runs `[size, how often]`, or one size for all."""

    chunk_shapes: tuple[Any, ...]

    name: ClassVar[str] = "rectilinear"
    chunk_shape: ClassVar[None] = None

    @classmethod
    def from_json(cls, configuration: Mapping[str, Json]) -> Self:
        """Return the grid of a configuration."""
        fields = Fields(configuration)
        fields.take("kind", one_of("inline"))
        shapes = fields.require("chunk_shapes", array_of(_along))
        fields.finish()
        return cls(tuple(shapes))

    def to_json(self) -> dict[str, Json]:
        """Return the configuration."""
        return {"kind": "inline", "chunk_shapes": list(self.chunk_shapes)}

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.chunk_shapes)

    def sizes(self, shape: Sequence[int]) -> Sequence[int | Sequence[int]]:
        """Return the sizes of the chunks along each dimension, with runs written out."""
        return [sizes if isinstance(sizes, int) else _listed(sizes) for sizes in self.chunk_shapes]


def _run(value: Any) -> Json:
    if isinstance(value, list):
        return array_of(integer(1, MAX_FINITE), length=2)(value)
    return integer(1, MAX_FINITE)(value)


def _along(value: Any) -> Json:
    return array_of(_run)(value) if isinstance(value, list) else integer(1, MAX_FINITE)(value)


def _listed(sizes: Sequence[Any]) -> list[int]:
    runs = [(size, 1) if isinstance(size, int) else size for size in sizes]
    count = sum(repeats for _, repeats in runs)
    if count > _MAX_LISTED:
        raise FailedPreconditionError(f"A dimension of {count} chunks of listed sizes is not supported")
    return [size for size, repeats in runs for _ in range(repeats)]


# The chunk key encodings of zarr v3: `default` and `v2`.


@dataclass(frozen=True, slots=True)
class DefaultKeys:
    """Keys such as `c/1/2`."""

    separator: str

    name: ClassVar[str] = "default"
    usual: ClassVar[str] = "/"

    @classmethod
    def from_json(cls, configuration: Mapping[str, Json]) -> Self:
        """Return the encoding of a configuration."""
        fields = Fields(configuration)
        separator: str = fields.take("separator", one_of(".", "/"), default=cls.usual)
        fields.finish()
        return cls(separator)

    def to_json(self) -> dict[str, Json]:
        """Return the configuration, where it is not as by default."""
        return {} if self.separator == self.usual else {"separator": self.separator}

    def keys(self) -> KeyEncoding:
        """Return the encoding of keys."""
        return KeyEncoding("c", self.separator, "c")


class Version2Keys(DefaultKeys):
    """Keys such as `1.2`, as in zarr version 2."""

    __slots__ = ()

    name: ClassVar[str] = "v2"
    usual: ClassVar[str] = "."

    def keys(self) -> KeyEncoding:
        """Return the encoding of keys."""
        return KeyEncoding("", self.separator, "0")


# The contracts of the extension points of zarr v3.

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T", bound="Extension")


class Extension(Protocol):
    """The part that all extensions have in common."""

    @property
    def name(self) -> str:
        """The name in metadata."""
        ...

    def to_json(self) -> dict[str, Json]:
        """Return the configuration as stored; members that are as by default may be left out."""
        ...


class ExtensionFactory(Protocol[T_co]):
    """A registered name stands for one of these: a class of extensions, or an object that makes them."""

    @property
    def from_json(self) -> Callable[[Mapping[str, Json]], T_co]:
        """Read a configuration, empty where metadata have none, or raise `JsonError` with all problems."""
        ...


class ChunkGrid(Extension, Protocol):
    """How an array is cut into chunks, along each dimension by itself.

    Chunks count from zero, and the first begins at zero.  A chunk that reaches beyond the array is stored whole.
    """

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        ...

    @property
    def chunk_shape(self) -> tuple[int, ...] | None:
        """The shape of all chunks, whatever the shape of the array, or None where it depends."""
        ...

    def sizes(self, shape: Sequence[int]) -> Sequence[int | Sequence[int]]:
        """Return for each dimension the size of all its chunks, or the sizes of one after the other.

        Listed sizes add up to the extent at least; `StoreError` says that there are none for a shape.  Where an array
        grows, boundaries that were there before stay: chunks that are stored are not cut anew.
        """
        ...


class KeyNaming(Extension, Protocol):
    """The naming of chunks: an extension at the `chunk_key_encoding` of metadata."""

    def keys(self) -> ChunkKeys:
        """Return the encoding of the numbers of chunks as keys, and back."""
        ...


class DataTypeExtension(Extension, Protocol):
    """A data type: how its elements are held in memory, and how metadata write a fill value.

    The codecs of an array work with elements as they are held in memory; what packs them otherwise is a codec.
    """

    @property
    def native(self) -> np.dtype[Any]:
        """The NumPy type of elements, one that `fsstore.dtype` has a name for."""
        ...

    def fill_from_json(self, value: Json) -> Any:
        """Return a fill value as a scalar of the NumPy type, or raise `JsonError`."""
        ...

    def fill_to_json(self, value: Any) -> Json:
        """Return a scalar of the NumPy type as metadata have it."""
        ...


def read_extension(value: Any, registry: Registry[ExtensionFactory[T]]) -> T:
    """Return the extension that an object of metadata names, with its configuration if it has one."""
    fields = Fields(value)

    def find(named: Any) -> ExtensionFactory[T]:
        found = registry.get(string(named))
        if found is None:
            raise expected(f"one of {', '.join(map(quote, registry.names()))}", named)
        return found

    factory = fields.require("name", find)
    fields.take("must_understand", boolean)  # a known extension is understood
    configuration = fields.take("configuration", obj, default={})
    fields.finish()
    try:
        return factory.from_json(configuration)
    except JsonError as error:
        raise error.within('Error parsing object member "configuration"') from None


def extension_json(extension: Extension) -> dict[str, Json]:
    """Return an extension as metadata name it; a configuration without members is left out."""
    configuration = extension.to_json()
    return {"name": extension.name, **({"configuration": configuration} if configuration else {})}


# The chunk boundaries that the grid of metadata gives an array of a shape.


def axes_of(grid: Any, shape: Sequence[int]) -> tuple[Axis, ...]:
    """Return the chunk boundaries along each dimension."""
    parsed = read_extension(grid, registry.chunk_grids)
    if parsed.rank != len(shape):
        raise StoreError(f"chunk_grid has rank {parsed.rank}, but the array has rank {len(shape)}")
    sizes = parsed.sizes(shape) if parsed.chunk_shape is None else parsed.chunk_shape
    return tuple(_axis(along, extent) for along, extent in zip(sizes, shape, strict=True))


def first_chunk(axes: Sequence[Axis]) -> tuple[int, ...]:
    """Return the shape of the first chunk."""
    return tuple(axis.size(0) for axis in axes)


def is_same_grid(axes: Sequence[Axis], others: Sequence[Axis]) -> bool:
    """Return whether the first axes are those of the same regular grid as others."""
    return all(
        isinstance(axis, RegularAxis) and isinstance(other, RegularAxis) and axis.step == other.step
        for axis, other in zip(axes, others, strict=False)
    )


def _axis(sizes: int | Sequence[int], extent: int) -> Axis:
    if isinstance(sizes, int):
        return RegularAxis(sizes)
    covered = sum(sizes)
    if not len(sizes) or covered < extent:
        raise FailedPreconditionError(f"Chunk sizes of {covered} in all do not cover the extent {extent}")
    if covered > MAX_FINITE or min(sizes) < 1:
        raise FailedPreconditionError(f"Chunk sizes of {covered} in all, the least {min(sizes)}, make no grid")
    return VariableAxis(list(sizes))
