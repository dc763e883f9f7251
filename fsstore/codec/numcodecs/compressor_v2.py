"""Compressor and filters of zarr v2 as one pipeline with the order of the chunk, and the blocks of N5.

TensorStore knows the compressors zlib, gzip, bz2, zstd and blosc, and no filters; their JSON is read and written as it
does, all members with their defaults.  Every other codec that numcodecs may run for us is accepted under its own
options, which stay as they were written.

Bound to a chunk a pipeline is a `BoundChain`: transposing for order F, filters, compressor.  Filters of bytes, such
as those of HDF5, are bytes codecs there unless a filter of elements follows.

A block of N5 is a header, then the elements, first dimension fastest, big-endian and perhaps compressed.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from fsstore.codec.blosc import CNAMES
from fsstore.codec.chain import BoundChain
from fsstore.codec.contract import (
    Array,
    BoundCodec,
    ByteSpec,
    ChunkSpec,
    Member,
    Members,
    abilities_of,
    check_size,
    read_options,
)
from fsstore.codec.numcodecs.filters import FlatSpec, as_array, size_of
from fsstore.codec.numcodecs.numcodecs_v2 import Numcodec
from fsstore.codec.zarr3 import BoundBytes, TransposeCodec
from fsstore.errors import FailedPreconditionError, JsonError, StoreError
from fsstore.schema.constraint import braced
from fsstore.values.json_value import (
    Fields,
    Json,
    array_of,
    boolean,
    expected,
    integer,
    one_of,
    optional,
    quote,
    show,
    string,
)

Order: TypeAlias = Literal["C", "F"]

_LEVEL = Member(integer(0, 9))
_KNOWN: Mapping[str, Members] = {
    "zlib": {"level": _LEVEL},
    "gzip": {"level": _LEVEL},
    "bz2": {"level": Member(integer(1, 9))},
    # numcodecs writes `checksum`, which TensorStore refuses
    "zstd": {"level": Member(integer(-131072, 22)), "checksum": Member(boolean)},
    "blosc": {
        "cname": Member(one_of(*CNAMES)),
        "clevel": Member(integer(0, 9)),
        "shuffle": Member(integer(-1, 2)),
        "blocksize": Member(integer(0)),
        "typesize": Member(optional(integer(1, 255))),
    },
}
_DEFAULTS: Mapping[str, Mapping[str, Json]] = {
    "zlib": {"level": 1},
    "gzip": {"level": 1},
    "bz2": {"level": 1},
    "zstd": {"level": 1},
    "blosc": {"blocksize": 0, "clevel": 5, "cname": "lz4", "shuffle": -1},
}
DEFAULT_COMPRESSOR = Numcodec("blosc", _DEFAULTS["blosc"])


def parse_compressor(value: Json) -> Numcodec | None:
    """Return the compressor of a `compressor` member; null is none.

    Raises `JsonError`, or `PermissionDeniedError` for codecs that run code.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise expected("object", value)
    if "id" not in value:
        raise JsonError('Error parsing object member "id": Expected string, but member is missing')
    found = Numcodec.from_json(value)
    members = _KNOWN.get(found.id)
    if members is None and not found.is_compressor:
        raise JsonError(f'Error parsing object member "id": {quote(found.id)} is a filter, not a compressor')
    if members is None:
        found.load()
        return found
    return Numcodec(found.id, {**_DEFAULTS[found.id], **read_options(members, found.options)})


def _parse_filter(value: Json) -> Numcodec:
    found = Numcodec.from_json(value) if isinstance(value, Mapping) else None
    if found is None:
        raise expected("object", value)
    found.load()
    return found


def parse_filters(value: Json) -> tuple[Numcodec, ...]:
    """Return the filters of a `filters` member; null and the empty list are none."""
    return () if value is None else tuple(array_of(_parse_filter)(value))


@dataclass(frozen=True)
class V2Pipeline:
    """How the chunks of a zarr v2 array are stored."""

    compressor: Numcodec | None = DEFAULT_COMPRESSOR
    filters: tuple[Numcodec, ...] = ()
    order: Order = "C"

    @classmethod
    def from_json(cls, compressor: Json, filters: Json = None, order: Json = "C") -> Self:
        """Return the pipeline of the members of `.zarray`, all problems reported at once."""
        members = {"compressor": compressor, "filters": filters, "order": order}
        fields = Fields(members)
        found = fields.take("compressor", parse_compressor)
        steps = fields.take("filters", parse_filters, default=())
        kind: Order = "F" if fields.take("order", one_of("C", "F")) == "F" else "C"
        fields.finish()
        return cls(found, steps, kind)

    def to_json(self) -> dict[str, Json]:
        """Return the members `compressor`, `filters` and `order` as stored."""
        compressor = None if self.compressor is None else self.compressor.to_json()
        filters: Json = [step.to_json() for step in self.filters] or None
        return {"compressor": compressor, "filters": filters, "order": self.order}

    def bind(self, chunk: ChunkSpec) -> BoundChain:
        """Return the pipeline for chunks like `chunk`, whose dtype is the stored one with its byte order."""
        arrays: list[BoundCodec] = []
        seen = chunk
        if self.order == "F" and len(chunk.shape) > 1:
            transpose = TransposeCodec("F").bind(chunk)
            arrays, seen = [transpose], transpose.encoded
        at = max((number for number, step in enumerate(self.filters, 1) if not step.takes_bytes), default=0)
        pack = _pack(seen, self.filters[:at], reverse=bool(arrays))
        whole = FlatSpec(seen.dtype, math.prod(seen.shape), seen.shape)
        flat = pack.flat if isinstance(pack, BoundFilters) else whole
        stages: list[BoundCodec] = []
        names = [f"codec {quote('filters' if at else 'bytes')}"]
        for kind, step in self._on_bytes(at):
            stages.append(step.bind(flat))
            flat = step.encoded(flat)
            names.append(f"{kind} {quote(step.id)}")
        return BoundChain(chunk, arrays, pack, stages, names)

    def _on_bytes(self, at: int) -> Iterator[tuple[str, Numcodec]]:
        """Yield the codecs from filter `at` on, and what they are called."""
        for step in self.filters[at:]:
            yield "filter", step
        if self.compressor is not None:
            yield "codec", self.compressor


def _pack(chunk: ChunkSpec, filters: Sequence[Numcodec], *, reverse: bool) -> BoundBytes | BoundFilters:
    if filters:
        return BoundFilters(chunk, filters, reverse=reverse)
    if chunk.dtype.hasobject:
        raise StoreError("An array of objects requires a filter that encodes them, such as vlen-utf8")
    return BoundBytes(chunk.dtype, chunk.dtype, chunk.shape)


class BoundFilters:
    """Filters of which the last takes elements, bound to chunks.

    An array is on one side, on the other the bytes of what `flat` describes.
    """

    __slots__ = ("_decode", "_encode", "chunk", "encoded", "flat", "scratch_size")

    def __init__(self, chunk: ChunkSpec, filters: Sequence[Numcodec], *, reverse: bool) -> None:
        self.chunk = chunk
        count = int(np.prod(chunk.shape, dtype=object))
        flat = FlatSpec(chunk.dtype, count, chunk.shape, reverse)
        bound: list[BoundCodec] = []
        self.scratch_size = 0
        for number, step in enumerate(filters):
            self.scratch_size += (flat.size or 0) if number else 0
            bound.append(step.bind(flat))
            self.scratch_size += abilities_of(bound[-1]).scratch_size
            flat = step.encoded(flat)
        self._encode = tuple(step.encode for step in bound)
        decoders = [(step.id, inverse.decode) for step, inverse in zip(filters, bound, strict=True)]
        self._decode = tuple(reversed(decoders))
        self.flat, self.encoded = flat, flat.as_bytes

    def encode(self, data: Array) -> Any:
        """Return the filtered elements as bytes."""
        flat: Any = np.ascontiguousarray(data, dtype=self.chunk.dtype).reshape(-1)
        for step in self._encode:
            flat = step(flat)
        if not isinstance(flat, np.ndarray):
            return flat
        if flat.dtype.hasobject:
            raise StoreError("The filters leave objects, which have no bytes; the last must encode them")
        return np.ascontiguousarray(flat).reshape(-1).view(np.uint8).data

    def decode(self, data: Any) -> Array:
        """Return the elements of filtered bytes."""
        for name, step in self._decode:
            try:
                data = step(data)
            except StoreError as error:
                error.blame(f"filter {quote(name)}")
                raise
        dtype, shape = self.chunk.dtype, self.chunk.shape
        if dtype.hasobject:
            if not isinstance(data, np.ndarray) or not data.dtype.hasobject:
                raise FailedPreconditionError("The filters do not decode to objects")
            return data.reshape(shape)
        if isinstance(data, np.ndarray) and data.dtype.hasobject:
            return _plain(data, dtype).reshape(shape)
        check_size(size_of(data), dtype.itemsize * int(np.prod(shape, dtype=object)))
        array: Array = as_array(data, dtype).reshape(shape)
        return array


def _plain(data: Array, dtype: np.dtype[Any]) -> Array:
    """Return objects as elements of a fixed size, as `categorize` and `json2` need for string arrays."""
    try:
        return data.astype(dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise FailedPreconditionError(f"Decoded elements are not of type {dtype}: {error}") from None


def merge_specs(left: Json, right: Json) -> dict[str, Json]:
    """Return the JSON of the `CodecSpec` that grants two of driver `zarr`.

    Either may leave out `compressor` and `filters`.  Raises `JsonError` when one is malformed, `StoreError` when they
    contradict each other.
    """
    a, b = _read_spec(left), _read_spec(right)
    merged = {"filters": None, **a, **b}
    for name in ("compressor", "filters"):
        if name in a and name in b and (a[name] or None) != (b[name] or None):
            raise StoreError(f"Cannot merge codec spec {show(a)} with {show(b)}: {quote(name)} does not match")
    return merged


def _read_spec(value: Json) -> dict[str, Json]:
    fields = Fields(value)
    fields.require("driver", one_of("zarr"))
    out: dict[str, Json] = {"driver": "zarr"}
    if "compressor" in fields:
        compressor = fields.take("compressor", parse_compressor)
        out["compressor"] = None if compressor is None else compressor.to_json()
    if "filters" in fields:
        filters = fields.take("filters", optional(array_of(_parse_filter)))
        out["filters"] = None if filters is None else [step.to_json() for step in filters]
    fields.finish()
    return out


# Blocks of the N5 format.

_NO_DEFAULT: Any = object()
_MEMBERS: Mapping[str, Mapping[str, tuple[Any, Any]]] = {
    "raw": {},
    "gzip": {"level": (integer(-1, 9), -1), "useZlib": (boolean, False)},
    "bzip2": {"blockSize": (integer(1, 9), 9)},
    "xz": {"preset": (integer(0, 9), 6)},
    "zstd": {"level": (integer(-131072, 22), 0)},
    "blosc": {
        "cname": (one_of(*CNAMES), _NO_DEFAULT),
        "clevel": (integer(0, 9), _NO_DEFAULT),
        "shuffle": (integer(0, 2), _NO_DEFAULT),
        "blocksize": (integer(0), 0),
    },
}


def _kind(value: Any) -> str:
    name = string(value)
    if name not in _MEMBERS:
        raise JsonError(f"{quote(name)} is not registered")
    return name


def parse_compression(value: Any) -> dict[str, Json]:
    """Return a `compression` member with the defaults of its type filled in."""
    fields = Fields(value)
    kind = fields.require("type", _kind)
    out: dict[str, Json] = {"type": kind}
    for name, (parser, default) in _MEMBERS.get(kind, {}).items():
        given = fields.require(name, parser) if default is _NO_DEFAULT else fields.take(name, parser, default=default)
        out[name] = given
    fields.finish()
    return dict(sorted(out.items()))


def default_compression(itemsize: int) -> dict[str, Json]:
    """Return the default compression of new datasets."""
    shuffle = 2 if itemsize == 1 else 1
    return {"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": shuffle, "blocksize": 0}


def merge_n5_specs(left: Json, right: Json) -> dict[str, Json]:
    """Return the JSON of the `CodecSpec` that grants two of driver `n5`.

    Either may leave out `compression`.  Raises `JsonError` when one is malformed, `StoreError` for a contradiction.
    """
    a, b = _read_n5_spec(left), _read_n5_spec(right)
    if "compression" in a and "compression" in b and a["compression"] != b["compression"]:
        raise StoreError(f'Cannot merge codec spec {show(a)} with {show(b)}: "compression" does not match')
    return {**a, **b}


def _read_n5_spec(value: Json) -> dict[str, Json]:
    fields = Fields(value)
    fields.require("driver", one_of("n5"))
    compression = fields.take("compression", parse_compression)
    fields.finish()
    return {"driver": "n5"} if compression is None else {"driver": "n5", "compression": compression}


def _compressor(json: Mapping[str, Any]) -> Numcodec | None:
    options = {name: value for name, value in json.items() if name != "type"}
    kind = json["type"]
    if kind == "gzip":
        level = 6 if options["level"] < 0 else options["level"]
        return Numcodec("zlib" if options["useZlib"] else "gzip", {"level": level})
    if kind == "bzip2":
        return Numcodec("bz2", {"level": options["blockSize"]})
    if kind == "xz":
        return Numcodec("lzma", {"format": 1, "check": -1, "preset": options["preset"], "filters": None})
    return None if kind == "raw" else Numcodec(kind, options)


def bind_block(dtype: np.dtype[Any], block_size: tuple[int, ...], compression: Mapping[str, Any]) -> BoundChain:
    """Return the chain of a dataset: what the chunk engine reads and writes blocks with."""
    block = BoundBlock(dtype, block_size, _compressor(compression))
    return BoundChain(ChunkSpec(dtype, block_size, dtype.type(0)), [], block, [])


class BoundBlock:
    """The codec of the blocks of one dataset."""

    __slots__ = ("_compressor", "_header", "_payload_of", "array_effort", "dtype", "encoded", "run_length", "shape")

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...], compressor: Numcodec | None) -> None:
        self.dtype, self.shape, self._compressor = dtype, shape, compressor
        self._header = _header(shape)
        self._payload_of = lru_cache(maxsize=64)(self._bind_payload)
        payload = self._payload_of(shape)  # says what is wrong with the compressor
        self.run_length, self.array_effort = payload.run_length, payload.effort / payload.decoded_size
        self.encoded = ByteSpec(itemsize=0)

    def _bind_payload(self, shape: tuple[int, ...]) -> BoundChain:
        stored = self.dtype.newbyteorder(">")
        return V2Pipeline(self._compressor, (), "F").bind(ChunkSpec(stored, shape))

    def encode(self, data: Array) -> bytes:
        """Return a whole block."""
        payload = self._payload_of(self.shape).encode(data.astype(self.dtype.newbyteorder(">"), copy=False))
        return b"".join((self._header, payload))

    def decode(self, data: Any) -> Array:
        """Return the elements of a block, padded with zeros to the size of the others."""
        shape, begin = self._read_header(memoryview(data))
        array = self._payload_of(shape).decode(memoryview(data)[begin:])
        if shape == self.shape:
            return array.astype(self.dtype, copy=False)
        out = np.zeros(self.shape, self.dtype)
        out[tuple(map(slice, shape))] = array
        return out

    def decode_run(self, parts: Sequence[Any]) -> Array | None:
        """Return the elements of several whole blocks; None if some are smaller, or must be taken one by one."""
        length = len(self._header)
        views = [memoryview(part) for part in parts]
        if any(view[:length] != self._header for view in views):
            return None
        return self._payload_of(self.shape).decode_run_to_scratch([view[length:] for view in views])

    def _read_header(self, data: memoryview) -> tuple[tuple[int, ...], int]:
        length = len(self._header)
        if len(data) < min(length, 4):
            raise FailedPreconditionError(f"Expected header of length {length}, but chunk has size {len(data)}")
        mode, rank = struct.unpack_from(">HH", data)
        if mode == 1:
            raise FailedPreconditionError("varlength chunks not supported")
        if mode != 0:
            raise FailedPreconditionError(f"Unexpected N5 chunk mode: {mode}")
        if rank != len(self.shape):
            raise FailedPreconditionError(f"Received chunk with {rank} dimensions but expected {len(self.shape)}")
        if len(data) < length:
            raise FailedPreconditionError(f"Expected header of length {length}, but chunk has size {len(data)}")
        shape = struct.unpack_from(f">{rank}I", data, 4)
        if any(size > limit for size, limit in zip(shape, self.shape, strict=True)):
            raise FailedPreconditionError(
                f"Received chunk of size {braced(shape)} which exceeds blockSize of {braced(self.shape)}"
            )
        return shape, length


def _header(shape: tuple[int, ...]) -> bytes:
    try:
        return struct.pack(f">HH{len(shape)}I", 0, len(shape), *shape)
    except struct.error:
        raise StoreError(f"blockSize of {braced(shape)} does not fit in the header of a block") from None
