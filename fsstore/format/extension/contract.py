"""The contracts of the extension points of zarr v3; what stands at one is a frozen dataclass of its configuration.

Metadata that name an extension with `"must_understand": false` are no exception: without a grid, a key encoding or a
data type nothing of the array can be read, so a name that nobody has registered is refused whatever it says.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np

from fsstore.chunk.plan.keys import ChunkKeys
from fsstore.errors import JsonError
from fsstore.values.json_value import Fields, Json, boolean, expected, obj, quote, string
from fsstore.values.registry import Registry

__all__ = [
    "ChunkGrid",
    "DataTypeExtension",
    "Extension",
    "ExtensionFactory",
    "KeyNaming",
    "extension_json",
    "read_extension",
]

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
    """How chunks are called: what stands at the `chunk_key_encoding` of metadata."""

    def keys(self) -> ChunkKeys:
        """Return what makes keys of the numbers of chunks, and numbers of keys."""
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
    """Return what an object of metadata, with a name and perhaps a configuration, stands for."""
    fields = Fields(value)

    def find(named: Any) -> ExtensionFactory[T]:
        found = registry.get(string(named))
        if found is None:
            raise expected(f"one of {', '.join(map(quote, registry.names()))}", named)
        return found

    factory = fields.require("name", find)
    fields.take("must_understand", boolean)  # what is known is understood
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
