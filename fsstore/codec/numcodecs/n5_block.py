"""Blocks of the N5 format: a header, then the elements, first dimension fastest, big-endian and perhaps compressed.

The header says the shape, which may be smaller than the block size of the dataset: what is missing is zero.
Blocks are written whole.  Blocks of variable length (mode 1) hold objects, which an array has not; they are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from fsstore.codec.chain.bound_chain import BoundChain
from fsstore.codec.contract import Array, ByteSpec, ChunkSpec
from fsstore.codec.numcodecs.compressor_v2 import V2Pipeline
from fsstore.codec.numcodecs.numcodecs_v2 import Numcodec
from fsstore.codec.zarr3.blosc import CNAMES
from fsstore.errors import FailedPreconditionError, JsonError, StoreError
from fsstore.schema.constraint import braced
from fsstore.values.json_value import Fields, Json, boolean, integer, one_of, quote, show, string

__all__ = ["BoundBlock", "bind_block", "default_compression", "merge_specs", "parse_compression"]

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
        given = (
            fields.require(name, parser)
            if default is _NO_DEFAULT
            else fields.take(name, parser, default=default)
        )
        out[name] = given
    fields.finish()
    return dict(sorted(out.items()))


def default_compression(itemsize: int) -> dict[str, Json]:
    """Return what new datasets are compressed with."""
    shuffle = 2 if itemsize == 1 else 1
    return {"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": shuffle, "blocksize": 0}


def merge_specs(left: Json, right: Json) -> dict[str, Json]:
    """Return the JSON of the `CodecSpec` that grants two of driver `n5`.

    Either may leave out `compression`.  Raises `JsonError` when one is malformed, `StoreError` for a contradiction.
    """
    a, b = _read_spec(left), _read_spec(right)
    if "compression" in a and "compression" in b and a["compression"] != b["compression"]:
        raise StoreError(f'Cannot merge codec spec {show(a)} with {show(b)}: "compression" does not match')
    return {**a, **b}


def _read_spec(value: Json) -> dict[str, Json]:
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


def bind_block(
    dtype: np.dtype[Any], block_size: tuple[int, ...], compression: Mapping[str, Any]
) -> BoundChain:
    """Return the chain of a dataset: what the chunk engine reads and writes blocks with."""
    block = BoundBlock(dtype, block_size, _compressor(compression))
    return BoundChain(ChunkSpec(dtype, block_size, dtype.type(0)), [], block, [])


class BoundBlock:
    """The codec of the blocks of one dataset."""

    __slots__ = (
        "_compressor",
        "_header",
        "_payload_of",
        "array_effort",
        "dtype",
        "encoded",
        "run_length",
        "shape",
    )

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
        """Return the elements of a block, zero where the block is smaller than others."""
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
            raise FailedPreconditionError(
                f"Expected header of length {length}, but chunk has size {len(data)}"
            )
        mode, rank = struct.unpack_from(">HH", data)
        if mode == 1:
            raise FailedPreconditionError("varlength chunks not supported")
        if mode != 0:
            raise FailedPreconditionError(f"Unexpected N5 chunk mode: {mode}")
        if rank != len(self.shape):
            raise FailedPreconditionError(
                f"Received chunk with {rank} dimensions but expected {len(self.shape)}"
            )
        if len(data) < length:
            raise FailedPreconditionError(
                f"Expected header of length {length}, but chunk has size {len(data)}"
            )
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
