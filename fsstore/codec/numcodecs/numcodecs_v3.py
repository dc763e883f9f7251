"""The `numcodecs.*` and `imagecodecs_*` names of zarr v3: the same codecs as in v2, each in its place of a chain.

zarr-python writes the former with the configuration that numcodecs stores, without the `id`.  tifffile writes the
latter; predictors have their shape and type from the chunk there, and the one for floats makes bytes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsstore.codec.contract import Array, BoundCodec, ByteSpec, ChunkSpec, Kind
from fsstore.codec.numcodecs.flat import FlatSpec, as_array
from fsstore.codec.numcodecs.numcodecs_v2 import ARRAY_CODECS, BYTES_CODECS, PACKING_CODECS, Numcodec
from fsstore.errors import JsonError, StoreError
from fsstore.values.json_value import Json
from fsstore.values.registry import codecs_v2

__all__ = ["PREFIX", "NumcodecsCodec", "NumcodecsFactory", "find"]

PREFIX = "numcodecs."
IMAGES = "imagecodecs_"


@dataclass(frozen=True, slots=True)
class NumcodecsFactory:
    """Makes the codecs of one name."""

    name: str
    kind: Kind

    def from_json(self, configuration: Mapping[str, Json]) -> NumcodecsCodec:
        """Return the codec of a stored configuration, or raise `JsonError` when numcodecs refuses it."""
        if "id" in configuration:
            raise JsonError('Object includes extra members: "id"')
        inner = Numcodec(self.name.removeprefix(PREFIX), dict(configuration))
        inner.load()
        return NumcodecsCodec(self.name, self.kind, inner)


def find(name: str) -> NumcodecsFactory | None:
    """Return the factory of a name, None for names that mean nothing in a chain.

    Raises for codecs that are refused on purpose.
    """
    short = Numcodec.check_name(name.removeprefix(PREFIX))
    if name.startswith(IMAGES):
        found, packs = codecs_v2.get(name), name == "imagecodecs_floatpred"
        return None if found is None else NumcodecsFactory(name, "array_to_bytes" if packs else found.kind)
    if short in ARRAY_CODECS:
        return NumcodecsFactory(name, "array_to_array")
    if short in PACKING_CODECS:
        return NumcodecsFactory(name, "array_to_bytes")
    return NumcodecsFactory(name, "bytes_to_bytes") if short in BYTES_CODECS else None


@dataclass(frozen=True)
class NumcodecsCodec:
    """A numcodecs codec in a chain."""

    name: str
    kind: Kind
    codec: Numcodec

    def to_json(self) -> dict[str, Json]:
        """Return the configuration as stored."""
        return dict(self.codec.options)

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundCodec:
        """Return the codec for arrays or bytes like `decoded`."""
        if isinstance(decoded, ByteSpec) != (self.kind == "bytes_to_bytes"):
            raise StoreError(
                f'"{self.name}" codec requires {"bytes" if self.kind == "bytes_to_bytes" else "an array"}'
            )
        if isinstance(decoded, ChunkSpec):
            codec = self.codec
            if self.name.startswith(IMAGES):
                of_chunk: dict[str, Json] = {"shape": list(decoded.shape), "dtype": decoded.dtype.str}
                codec = Numcodec(codec.id, {**codec.options, **of_chunk})
            return (_BoundArray if self.kind == "array_to_array" else _BoundPack)(codec, decoded)
        if decoded.size is None:
            return self.codec.bind(FlatSpec(None, 0, max_size=decoded.max_size))
        itemsize = decoded.itemsize or 1
        return self.codec.bind(FlatSpec(np.dtype(f"V{itemsize}"), decoded.size // itemsize))


class _BoundArray:
    """An array codec on chunks of one shape."""

    __slots__ = ("_bound", "decoded", "encoded")

    def __init__(self, codec: Numcodec, decoded: ChunkSpec) -> None:
        flat = FlatSpec(decoded.dtype, math.prod(decoded.shape))
        after = codec.encoded(flat)
        self.decoded, self._bound = decoded, codec.bind(flat)
        shape = decoded.shape if after.count == flat.count and codec.id != "packbits" else (after.count,)
        self.encoded = ChunkSpec(after.dtype or decoded.dtype, shape)

    def encode(self, data: Array) -> Array:
        """Return the encoded array."""
        flat = np.ascontiguousarray(data, dtype=self.decoded.dtype).reshape(-1)
        out: Array = as_array(self._bound.encode(flat), self.encoded.dtype)
        return out.reshape(self.encoded.shape)

    def decode(self, data: Array) -> Array:
        """Return the decoded array."""
        flat: Any = self._bound.decode(np.ascontiguousarray(data).reshape(-1))
        out: Array = as_array(flat, self.decoded.dtype)
        return out.reshape(self.decoded.shape)


class _BoundPack:
    """A codec from arrays to bytes, on chunks of one shape."""

    __slots__ = ("_bound", "decoded", "encoded")

    def __init__(self, codec: Numcodec, decoded: ChunkSpec) -> None:
        flat = FlatSpec(decoded.dtype, math.prod(decoded.shape), decoded.shape)
        self.decoded, self._bound = decoded, codec.bind(flat)
        self.encoded = codec.encoded(flat).as_bytes

    def encode(self, data: Array) -> Any:
        """Return the encoded bytes."""
        return self._bound.encode(data)

    def decode(self, data: Any) -> Array:
        """Return the decoded array."""
        out: Array = as_array(self._bound.decode(data), self.decoded.dtype)
        return out.reshape(self.decoded.shape)
