"""Flat data: codecs of zarr v2 see elements in a row, or bytes; and the contract of codecs from other packages.

Most of those are read, never written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from fsstore.codec.contract import BoundCodec, ByteSpec, Kind, check_size
from fsstore.errors import FailedPreconditionError, JsonError, StoreError, UnimplementedError
from fsstore.values.json_value import Json, quote


@dataclass(frozen=True, slots=True)
class FlatSpec:
    """Flat data on its way through filters: `count` elements of `dtype`, or bytes where that is None.

    `shape` is that of the chunk as it lies in memory; `size` is the exact number of bytes where it is fixed.
    """

    dtype: np.dtype[Any] | None
    count: int
    shape: tuple[int, ...] = ()
    reverse: bool = False
    max_size: int | None = None

    @property
    def size(self) -> int | None:
        """The number of bytes, or None when it is not fixed."""
        if self.dtype is None or self.dtype.hasobject:
            return None
        return self.count * self.dtype.itemsize

    @property
    def as_bytes(self) -> ByteSpec:
        """The same as bytes."""
        return ByteSpec(self.size, 0 if self.dtype is None else self.dtype.itemsize, self.max_size)


def fixed_dtype(codec: str, value: Any) -> np.dtype[Any]:
    """Return the data type that an option of a codec names; raises `JsonError` unless elements have a fixed size."""
    try:
        found: np.dtype[Any] = np.dtype(value)
    except (TypeError, ValueError, SyntaxError) as error:  # NumPy runs Python's parser over text with commas
        raise JsonError(f"Invalid data type of codec {quote(codec)}: {error}") from None
    if found.hasobject or found.itemsize == 0:
        raise JsonError(f"Invalid data type of codec {quote(codec)}: elements must have a fixed size")
    return found


def octets(count: int) -> FlatSpec:
    """Return the description of a number of bytes."""
    return FlatSpec(np.dtype(np.uint8), count)


def size_of(data: Any) -> int:
    """Return the number of bytes of an array or buffer."""
    return int(data.nbytes) if isinstance(data, np.ndarray) else memoryview(data).nbytes


def as_array(data: Any, dtype: np.dtype[Any]) -> Any:
    """Return flat data as an array of `dtype`; only the bytes count, unless elements are objects."""
    if isinstance(data, np.ndarray):
        flat = data.reshape(-1)
        return flat if flat.dtype == dtype or dtype.hasobject or flat.dtype.hasobject else flat.view(dtype)
    return np.frombuffer(data, dtype)


# The contract of codecs that other packages bring into zarr v2, most of which are read, never written.


class ForeignCodec(Protocol):
    """A codec of another file format, as configured."""

    kind: ClassVar[Kind]

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        """Take a configuration; raises `JsonError` when it is malformed."""
        ...

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return the form that encoding `decoded` would give."""
        ...

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for data like `decoded`; raises `UnimplementedError` when its library is missing."""
        ...


@dataclass(frozen=True, slots=True)
class BoundReader:
    """A decoder between checks: what comes out has the size of `decoded`, and `failures` say that data is damaged."""

    name: str
    decoded: FlatSpec
    encoded: ByteSpec
    read: Callable[[Any], Any]
    failures: tuple[type[BaseException], ...]

    def encode(self, data: Any) -> Any:
        """Refuse: these encodings belong to files that something else writes."""
        raise UnimplementedError(f"Codec {quote(self.name)} can be read, not written")

    def decode(self, data: Any) -> Any:
        """Return the decoded array or buffer."""
        check_size(size_of(data), self.encoded.size)
        try:
            out = self.read(data)
        except StoreError:
            raise
        except self.failures as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise FailedPreconditionError(f"Invalid {self.name} data: {reason}") from None
        if not (isinstance(out, np.ndarray) and out.dtype.hasobject):
            check_size(size_of(out), self.decoded.size)
        return out


def fixed_size(name: str, decoded: FlatSpec) -> int:
    """Return the size of decoded data, or raise `StoreError` when it is not fixed."""
    if decoded.size is None:
        raise StoreError(f"Codec {quote(name)} requires data of a fixed size")
    return decoded.size
