"""The contract of a codec, and the values that describe what crosses it.

A codec turns arrays into arrays (`array_to_array`), arrays into bytes (`array_to_bytes`) or bytes into bytes
(`bytes_to_bytes`).  A `Codec` is a frozen dataclass whose fields are its JSON configuration.  `bind` checks the
configuration against the data to be encoded and returns a `BoundCodec`, which never checks again, keeps no state
between calls, may be called from any number of threads at once, and releases the interpreter lock while it works.

* `decode` returns exactly what `encode` was given, or raises `DataLossError` / `FailedPreconditionError` that says
  what is wrong with the bytes; the layers above add the chunk and the key.
* If `ByteSpec.size` is known, `decode` never produces more bytes than that: decompression bombs are refused before
  memory is allocated for them.
* Codecs see buffers and arrays, never keys, stores or selections.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from fsstore.values.json_value import Json

__all__ = ["Array", "BoundCodec", "Buffer", "ByteSpec", "ChunkSpec", "Codec", "CodecFactory", "Kind", "Span"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
Buffer: TypeAlias = bytes | bytearray | memoryview
Span: TypeAlias = tuple[int, int]
"""Elements of an encoding: the first, and the one after the last."""
Kind: TypeAlias = Literal["array_to_array", "array_to_bytes", "bytes_to_bytes"]


@dataclass(frozen=True, slots=True)
class ChunkSpec:
    """An array on its way through a chain: its type, shape and the value of missing elements."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    fill_value: Any = None


@dataclass(frozen=True, slots=True)
class ByteSpec:
    """Bytes on their way through a chain: their exact size if it is fixed, and the size of their elements.

    `max_size` bounds a size that is not fixed, if a bound is known.  `itemsize` is the default element size for
    shuffling codecs, 0 if the bytes are no longer elements (compressed data, shards, text).
    """

    size: int | None = None
    itemsize: int = 1
    max_size: int | None = None


class BoundCodec(Protocol):
    """A codec checked against its input.  Stateless and thread-safe."""

    @property
    def encoded(self) -> ChunkSpec | ByteSpec:
        """The shape and type, or the bytes, that `encode` returns: the input of the next codec of the chain."""
        ...

    def encode(self, data: Any) -> Any:
        """Return the encoded array or buffer."""
        ...

    def decode(self, data: Any) -> Any:
        """Return the decoded array or buffer (a buffer may be a view of `data`)."""
        ...


class Codec(Protocol):
    """A codec as configured.  Implementations are frozen dataclasses; fields are the JSON configuration."""

    @property
    def name(self) -> str:
        """The name in metadata."""
        ...

    @property
    def kind(self) -> Kind:
        """The kind of value on each side of the codec."""
        ...

    def to_json(self) -> dict[str, Json]:
        """Return the configuration as stored."""
        ...

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundCodec:
        """Return the codec bound to its input, or raise a `StoreError` that says why they do not fit."""
        ...


class CodecFactory(Protocol):
    """The object behind a registered name: a class of codecs, or an object that makes them.

    `ability` lists what a factory may offer beyond this; partial codecs in specs need a table of members.
    """

    @property
    def name(self) -> str:
        """The name in metadata."""
        ...

    @property
    def kind(self) -> Kind:
        """The kind of value on each side of the codecs."""
        ...

    @property
    def from_json(self) -> Callable[[Mapping[str, Json]], Codec]:
        """Read a stored configuration, or raise `JsonError` with all problems."""
        ...
