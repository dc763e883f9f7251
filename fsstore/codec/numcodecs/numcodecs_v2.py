"""The numcodecs codecs that stored arrays may name: filters and compressors of zarr v2, `numcodecs.*` of v3.

Only names on the list here, and those of other file formats in `registry.codecs_v2`, are ever looked up.  Codecs that
run code found in the data (pickle) are refused, others are unknown.  Compressors and what has no fixed size run through
the bounded decoders of this package, everything else through numcodecs with the size of what goes in and comes out
checked, so that neither a configuration nor data can ask for more memory than the chunk has.  Whatever numcodecs
raises on damaged data becomes a `FailedPreconditionError`.

A codec here works on flat data: arrays of one dimension, or bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fsstore.codec.blosc import BoundBlosc
from fsstore.codec.contract import Array, BoundCodec, ByteSpec, ChunkSpec, Kind, check_size, encoded_bound
from fsstore.codec.deflate import BoundDeflate, bz2_stream, lzma_stream
from fsstore.codec.numcodecs.filters import (
    BLOCKS_BYTES,
    BoundBase64,
    BoundDelta,
    BoundLz4,
    BoundObjectList,
    BoundShuffle,
    FlatSpec,
    ForeignCodec,
    Json2,
    MsgPack2,
    as_array,
    fixed_dtype,
    in_blocks,
    is_elementwise,
    octets,
    size_of,
)
from fsstore.codec.zarr3 import BoundVlen
from fsstore.codec.zstd import BoundZstd
from fsstore.errors import FailedPreconditionError, JsonError, PermissionDeniedError, StoreError, UnimplementedError
from fsstore.values.json_value import Json, quote, string
from fsstore.values.registry import codecs_v2

ARRAY_CODECS = frozenset({"astype", "bitround", "categorize", "delta", "fixedscaleoffset", "packbits", "quantize"})
CHECKSUMS = frozenset({"adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3"})
COMPRESSORS = frozenset({"blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"})
BYTES_CODECS = CHECKSUMS | COMPRESSORS | {"base64", "shuffle"}
OBJECT_CODECS = frozenset({"json2", "msgpack2", "vlen-array", "vlen-bytes", "vlen-utf8"})
PACKING_CODECS = frozenset({"pcodec", "zfpy"})
_NUMCODECS = ARRAY_CODECS | BYTES_CODECS | OBJECT_CODECS
_EXECUTES_CODE = frozenset({"pickle"})
_MAX_DIGITS = 400  # decimal digits; a float has fewer on either side of its point
_REFUSED = {
    "msgpack": ": it does not say the shape of a chunk; numcodecs writes msgpack2 instead",
    "FITSVarBintable": ": rows hold arrays of any length, which no array of numbers can show",
}


@dataclass(frozen=True)
class Numcodec:
    """One allowed codec with its options as stored.  `id` is the numcodecs name."""

    id: str
    options: Mapping[str, Json]

    @classmethod
    def from_json(cls, value: Mapping[str, Json]) -> Numcodec:
        """Return the codec of a JSON object with `id` and options.  Raises when it is not allowed or malformed."""
        if not isinstance(value, Mapping):
            raise JsonError(f"Expected object, but received: {value!r}")
        options = {name: option for name, option in value.items() if name != "id"}
        return cls(cls.check_name(value.get("id")), options)

    @staticmethod
    def check_name(name: Any) -> str:
        """Return `name` if the codec is allowed, or raise the error that says why not."""
        place = 'Error parsing object member "id"'
        try:
            name = string(name)
        except JsonError as error:
            raise error.within(place) from None
        if name in _EXECUTES_CODE:
            raise PermissionDeniedError(f"{place}: codec {quote(name)} runs code that it finds in the data; refused")
        if name in _NUMCODECS or codecs_v2.get(name) is not None:
            return str(name)
        if name in _REFUSED or name.startswith("imagecodecs_"):
            raise UnimplementedError(f"{place}: codec {quote(name)} is not supported{_REFUSED.get(name, '')}")
        raise JsonError(f"{place}: {quote(name)} is not registered")

    def to_json(self) -> dict[str, Json]:
        """Return the JSON object as it was read."""
        return {"id": self.id, **self.options}

    @property
    def foreign(self) -> ForeignCodec | None:
        """The codec, if another file format brought it.  Raises `JsonError` when its options are malformed."""
        made = None if self.id in _NUMCODECS else codecs_v2.get(self.id)
        found: ForeignCodec | None = None if made is None else made(self.id, self.options)
        return found

    @property
    def is_compressor(self) -> bool:
        """Whether the codec may stand as the compressor: it turns something into bytes that are the last word."""
        foreign = self.foreign
        return self.id in BYTES_CODECS if foreign is None else foreign.kind != "array_to_array"

    @property
    def takes_bytes(self) -> bool:
        """Whether the codec turns bytes into bytes, whatever they are bytes of."""
        foreign = self.foreign
        return self.id in BYTES_CODECS if foreign is None else foreign.kind == "bytes_to_bytes"

    def load(self) -> Any:
        """Return the object that does the work, or raise `JsonError` when it refuses the options."""
        import numcodecs

        foreign = self.foreign
        if foreign is not None:
            return foreign
        if self.id == "msgpack2":
            MsgPack2.require()
        digits = self.options.get("digits", 0)
        if self.id == "quantize" and isinstance(digits, int) and abs(digits) > _MAX_DIGITS:
            # numcodecs computes ten to that power
            raise JsonError(f'Invalid options of codec "quantize": {digits} digits')
        try:
            return numcodecs.get_codec(self.to_json())
        except Exception as error:  # noqa: BLE001  numcodecs raises anything on odd options
            raise JsonError(f"Invalid options of codec {quote(self.id)}: {error}") from None

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return the form that encoding `decoded` gives."""
        foreign = self.foreign
        if foreign is not None:
            return foreign.encoded(decoded)
        if self.id == "packbits":
            return octets(1 + math.ceil(decoded.count / 8))
        if self.id in ARRAY_CODECS:
            return FlatSpec(self._encoded_dtype(decoded), decoded.count)
        size = decoded.size
        if self.id in CHECKSUMS and size is not None:
            return octets(size + 4)
        if self.id == "base64":
            text = BoundBase64(decoded.as_bytes).encoded
            return FlatSpec(None, 0, max_size=text.max_size) if text.size is None else octets(text.size)
        if self.id == "shuffle":
            return decoded
        limit = encoded_bound(decoded.as_bytes) if self.id in COMPRESSORS else None
        return FlatSpec(None, 0, max_size=limit)

    def _encoded_dtype(self, decoded: FlatSpec) -> np.dtype[Any]:
        name = {"astype": "encode_dtype", "bitround": ""}.get(self.id, "astype")
        value = self.options.get(name)
        if self.id == "categorize" and value is None:
            value = "u1"
        if value is None:
            value = self.options.get("dtype")
        if value is None or self.id == "bitround":
            if decoded.dtype is None:
                raise StoreError(f"Codec {quote(self.id)} requires an array")
            return decoded.dtype
        return fixed_dtype(self.id, string(value))

    def decoded_dtype(self, decoded: FlatSpec) -> np.dtype[Any] | None:
        """Return the dtype that decoding gives by the options, or the wanted one if they do not say."""
        value = self.options.get("decode_dtype" if self.id == "astype" else "dtype")
        if value is None or self.id in ("bitround", "packbits", "categorize"):
            return decoded.dtype
        return fixed_dtype(self.id, string(value))

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for data like `decoded`."""
        foreign = self.foreign
        if foreign is not None:
            return foreign.bind(decoded)
        if self.id in COMPRESSORS:
            return self._bind_compressor(decoded.as_bytes)
        if self.id in ("json2", "msgpack2"):
            notation = (Json2 if self.id == "json2" else MsgPack2).from_options(self.options)
            return BoundObjectList(decoded.shape, notation, reverse=decoded.reverse)
        if self.id == "base64":
            return BoundBase64(decoded.as_bytes)
        if self.id in ("vlen-utf8", "vlen-bytes"):
            return BoundVlen(self.id, (decoded.count,))
        if self.id == "vlen-array":
            return BoundVlen(self.id, (decoded.count,), fixed_dtype(self.id, string(self.options.get("dtype"))).str)
        width = self.options.get("elementsize", 4)
        if self.id == "shuffle" and isinstance(width, int) and width > 1 and decoded.size:
            if decoded.size % width:
                raise StoreError(f'Codec "shuffle" of {width} bytes does not fit chunks of {decoded.size} bytes')
            return BoundShuffle(decoded.as_bytes, width)
        if self.id == "delta" and (dtype := self._kept_number(decoded)) is not None:
            self.load()  # which says what is wrong with other options
            return BoundDelta(decoded, dtype)
        return BoundNumcodec(self, decoded)

    def _kept_number(self, decoded: FlatSpec) -> np.dtype[Any] | None:
        """Return the data type if numbers keep it."""
        dtype = decoded.dtype
        is_kept = dtype is not None and dtype.kind in "iuf" and self.decoded_dtype(decoded) == dtype
        return dtype if is_kept and self._encoded_dtype(decoded) == dtype else None

    def _bind_compressor(self, decoded: ByteSpec) -> BoundCodec:
        self.load()
        try:
            bound = _compressor(self.id, dict(self.options), decoded)
            if self.options.get("cname") != "snappy":
                bound.encode(bytes(8))  # the libraries look at levels and the like only when they compress
        except StoreError:
            raise
        except Exception as error:  # noqa: BLE001  each library has errors of its own for odd options
            raise JsonError(f"Invalid options of codec {quote(self.id)}: {error}") from None
        return bound


def _compressor(name: str, options: dict[str, Any], decoded: ByteSpec) -> BoundCodec:
    match name:
        case "zlib" | "gzip":
            return BoundDeflate(decoded, "zlib" if name == "zlib" else "gzip", int(options.get("level", 1)))
        case "zstd":
            checksum = bool(options.get("checksum", False))
            return BoundZstd(decoded, int(options.get("level", 0)), checksum=checksum)
        case "bz2":
            return bz2_stream(decoded, int(options.get("level", 1)))
        case "lzma":
            return lzma_stream(decoded, options)
        case "lz4":
            return BoundLz4(decoded, int(options.get("acceleration", 1)))
        case _:
            typesize = int(options.get("typesize") or decoded.itemsize or 1)
            typesize = typesize if 0 < typesize < 256 else 1
            shuffle = int(options.get("shuffle", 1))
            if shuffle < 0:  # chosen for the elements: bits of single bytes, else bytes
                shuffle = 2 if typesize == 1 else 1
            cname, clevel = str(options.get("cname", "lz4")), int(options.get("clevel", 5))
            layout = (typesize, int(options.get("blocksize", 0)))
            return BoundBlosc(decoded, cname, clevel, shuffle=shuffle, layout=layout)


class BoundNumcodec:
    """A numcodecs codec that is no compressor, with the sizes on both sides checked."""

    __slots__ = ("_codec", "_encoded", "_in_blocks", "_spec", "encoded", "id", "scratch_size")

    def __init__(self, codec: Numcodec, decoded: FlatSpec) -> None:
        self.id = codec.id
        if codec.id in ARRAY_CODECS and decoded.dtype is None and decoded.size is None:
            raise StoreError(f"Codec {quote(self.id)} requires elements, and not compressed bytes")
        self._codec = codec.load()
        self._encoded = codec.encoded(decoded)
        dtype = codec.decoded_dtype(decoded) if codec.id in ARRAY_CODECS else decoded.dtype
        if codec.id == "packbits":
            dtype = np.dtype(bool)
        self._spec = replace(decoded, dtype=dtype)
        if self._spec.size != decoded.size and decoded.dtype is not None:
            raise StoreError(f"Codec {quote(self.id)} does not fit data type {decoded.dtype}")
        self.encoded = self._encoded.as_bytes
        self._in_blocks = is_elementwise(codec.id, codec.options)
        wide = max(decoded.size or 0, self._encoded.size or 0)  # numcodecs may make one array from another
        self.scratch_size = BLOCKS_BYTES if self._in_blocks else wide * (codec.id in ARRAY_CODECS)

    def encode(self, data: Any) -> Any:
        """Return `data` encoded, a flat array or bytes."""
        if self.id in ARRAY_CODECS and self._spec.dtype is not None:
            data = as_array(data, self._spec.dtype)
        try:
            return self._applied(self._codec.encode, data, self._encoded.dtype)
        except Exception as error:
            raise StoreError(f"Codec {quote(self.id)} cannot encode: {error}") from error

    def decode(self, data: Any) -> Any:
        """Return `data` decoded, a flat array or bytes of the size that is due."""
        check_size(size_of(data), self._encoded.size)
        if self._encoded.dtype is not None:
            data = as_array(data, self._encoded.dtype)
        try:
            out = self._applied(self._codec.decode, data, self._spec.dtype)
        except Exception as error:  # noqa: BLE001  numcodecs raises anything on damaged data
            raise FailedPreconditionError(f"Invalid {self.id} data: {error}") from None
        if self._spec.dtype is not None and self._spec.dtype.hasobject:
            if not isinstance(out, np.ndarray) or out.size != self._spec.count:
                raise FailedPreconditionError(f"Expected {self._spec.count} elements; at byte 0")
            return out.reshape(-1)
        check_size(size_of(out), self._spec.size)
        return out

    def _applied(self, function: Callable[[Any], Any], data: Any, dtype: np.dtype[Any] | None) -> Any:
        if self._in_blocks and dtype is not None:
            return in_blocks(function, data, dtype)
        return function(data)


# The `numcodecs.*` and `imagecodecs_*` names of zarr v3.

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
            raise StoreError(f'"{self.name}" codec requires {"bytes" if self.kind == "bytes_to_bytes" else "an array"}')
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
