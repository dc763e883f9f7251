"""Compressor and filters of zarr v2, and the pipeline they make with the order of the chunk.

TensorStore knows the compressors zlib, gzip, bz2, zstd and blosc, and no filters; their JSON is read and written as it
does, all members with their defaults.  Every other codec that numcodecs may run for us is accepted under its own
options, which stay as they were written.

Bound to a chunk a pipeline is a `BoundChain`: transposing for order F, filters, compressor.  Filters of bytes, as
those of HDF5 are, are bytes codecs there unless one of elements follows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, TypeAlias

import numpy as np

from fsstore.codec.ability import abilities_of
from fsstore.codec.chain.bound_chain import BoundChain
from fsstore.codec.configuration import Member, Members, read_options
from fsstore.codec.contract import Array, BoundCodec, ChunkSpec
from fsstore.codec.numcodecs.flat import FlatSpec, as_array, size_of
from fsstore.codec.numcodecs.numcodecs_v2 import Numcodec
from fsstore.codec.size import check_size
from fsstore.codec.zarr3.blosc import CNAMES
from fsstore.codec.zarr3.endian import BoundBytes
from fsstore.codec.zarr3.transpose import TransposeCodec
from fsstore.errors import FailedPreconditionError, JsonError, StoreError
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
)

__all__ = ["DEFAULT_COMPRESSOR", "V2Pipeline", "merge_specs", "parse_compressor", "parse_filters"]

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
            raise StoreError(
                f"Cannot merge codec spec {show(a)} with {show(b)}: {quote(name)} does not match"
            )
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
