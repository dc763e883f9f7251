"""The chain of a precomputed chunk: dimensions x, y, z, channel reversed, an encoding, and gzip in some shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fsstore.codec.chain.bound_chain import BoundChain
from fsstore.codec.contract import BoundCodec, ByteSpec, ChunkSpec
from fsstore.codec.precomputed.image import BoundImage
from fsstore.codec.precomputed.segmentation import BoundSegmentation
from fsstore.codec.zarr3.deflate import BoundDeflate
from fsstore.codec.zarr3.endian import BoundBytes, stored_dtype
from fsstore.codec.zarr3.transpose import TransposeCodec
from fsstore.errors import FailedPreconditionError, JsonError, StoreError
from fsstore.values.json_value import Fields, Json, integer, one_of, show

__all__ = ["ENCODINGS", "bind_chunk", "merge_specs", "parse_codec"]

ENCODINGS = ("raw", "png", "jpeg", "compressed_segmentation")
_GZIP_LEVEL = 9  # TensorStore's
_DRIVERS = ("neuroglancer_precomputed", "neuroglancer-precomputed")


class _BoundRaw(BoundBytes):
    """Elements as they are; a chunk of another size is refused in the words of the format."""

    __slots__ = ()

    def _wrong_size(self, data: Any) -> FailedPreconditionError:
        length = memoryview(data).nbytes
        return FailedPreconditionError(
            f"Expected chunk length to be {self.size}, but received {length} bytes"
        )


def bind_chunk(
    scale: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...], *, gzip: bool
) -> BoundChain:
    """Return the chain of chunks of a scale that have a shape (x, y, z, channel)."""
    spec = ChunkSpec(dtype, shape, dtype.type(0))
    reverse = TransposeCodec([3, 2, 1, 0]).bind(spec)  # type: ignore[arg-type]  # any sequence will do
    pack = _pack(scale, dtype, shape[::-1])
    stages = [BoundDeflate(_bytes(pack), "gzip", _GZIP_LEVEL)] if gzip else []
    names = [f"codec {show(scale['encoding'])}", *['codec "gzip"' for _ in stages]]
    return BoundChain(spec, [reverse], pack, stages, names)


def _pack(scale: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> BoundCodec:
    encoding = scale["encoding"]
    if encoding == "raw":
        return _BoundRaw(dtype, stored_dtype(dtype, "little"), shape)
    if encoding == "compressed_segmentation":
        block = scale["compressed_segmentation_block_size"]
        return BoundSegmentation(dtype, shape, tuple(block))
    return BoundImage(encoding, dtype, shape, scale.get("png_level" if encoding == "png" else "jpeg_quality"))


def _bytes(pack: BoundCodec) -> ByteSpec:
    encoded = pack.encoded
    assert isinstance(encoded, ByteSpec)
    return encoded


def parse_codec(value: Json) -> dict[str, Json]:
    """Return the JSON of a codec spec of the driver, checked."""
    fields = Fields(value)
    fields.require("driver", one_of(*_DRIVERS))
    out: dict[str, Json] = {"driver": _DRIVERS[0]}
    for name, parser in (
        ("encoding", one_of(*ENCODINGS)),
        ("jpeg_quality", integer(0, 100)),
        ("png_level", integer(0, 9)),
        ("shard_data_encoding", one_of("raw", "gzip")),
    ):
        if name in fields:
            out[name] = fields.take(name, parser)
    fields.finish()
    for name, encoding in (("jpeg_quality", "jpeg"), ("png_level", "png")):
        if name in out and out.get("encoding") != encoding:
            raise JsonError(f'Error parsing object member "{name}": Only valid for "{encoding}" encoding')
    return out


def merge_specs(left: Json, right: Json) -> dict[str, Json]:
    """Return the JSON of the codec spec that grants two."""
    drivers = [json.get("driver") if isinstance(json, Mapping) else None for json in (left, right)]
    if None not in drivers and drivers[1] not in _DRIVERS:
        raise StoreError(f"Cannot merge codec spec {show(left)} with {show(right)}")
    a, b = parse_codec(left), parse_codec(right)
    for name in ("encoding", "jpeg_quality", "png_level", "shard_data_encoding"):
        if name in a and name in b and a[name] != b[name]:
            raise StoreError(f'Cannot merge codec spec {show(a)} with {show(b)}: "{name}" mismatch')
    return {**a, **b}
