"""The `info` document of a volume, and the parts of it that a spec may give.

Members that are not of the format are kept.  All scales are checked, whichever is opened, as TensorStore does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fsstore.codec.precomputed import ENCODINGS
from fsstore.errors import DataLossError, FailedPreconditionError, JsonError, StoreError
from fsstore.index.interval import MAX_FINITE
from fsstore.kvstore.shard.uint64_layout import parse_sharding
from fsstore.values.json_value import (
    Fields,
    Json,
    Parser,
    array_of,
    dumps,
    expected,
    integer,
    loads,
    one_of,
    optional,
    quote,
    show,
    string,
)

__all__ = [
    "DATA_TYPES",
    "check_encoding",
    "chunk_bits",
    "dump_info",
    "parse_info",
    "parse_multiscale",
    "parse_scale",
    "unsupported",
]

DATA_TYPES = ("uint8", "uint16", "uint32", "int8", "int16", "int32", "uint64", "float32")
_KIND = "neuroglancer_multiscale_volume"
_INT32 = 2**31 - 1
_MOST_SCALES = 10_000


def unsupported(name: str) -> str:
    """Return the message about a data type that the format has not."""
    return f"{name} data type is not one of the supported data types: {', '.join(DATA_TYPES)}"


def _data_type(value: Any) -> str:
    from fsstore.values.dtypes import dtype_of  # needed by errors only

    name = string(value)
    if name in DATA_TYPES:
        return name
    try:
        known = dtype_of(name).name == name
    except StoreError:
        known = False
    raise JsonError(unsupported(name) if known else f"Unsupported data type: {quote(name)}")


def _float(value: Any) -> float:
    try:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            return float(value)
    except (ValueError, OverflowError):
        pass
    raise expected("64-bit floating-point number", value)


def _chunk_sizes(value: Any) -> list[list[int]]:
    sizes = array_of(_SHAPE)(value)
    if not sizes:
        raise JsonError("At least one chunk size must be specified")
    return sizes


_SHAPE = array_of(integer(1, MAX_FINITE), length=3)
_SCALE: Mapping[str, Parser[Any]] = {
    "key": string,
    "resolution": array_of(_float, length=3),
    "size": array_of(integer(0, MAX_FINITE), length=3),
    "voxel_offset": array_of(integer(-MAX_FINITE, MAX_FINITE), length=3),
    "chunk_sizes": _chunk_sizes,
    "chunk_size": _SHAPE,
    "encoding": one_of(*ENCODINGS),
    "jpeg_quality": integer(0, 100),
    "png_level": integer(0, 9),
    "compressed_segmentation_block_size": array_of(integer(1, _INT32), length=3),
    "sharding": optional(parse_sharding),
}
_REQUIRED = ("key", "resolution", "size", "chunk_sizes", "encoding")
_OF_ENCODING = {
    "jpeg_quality": "jpeg",
    "png_level": "png",
    "compressed_segmentation_block_size": "compressed_segmentation",
}


def parse_multiscale(value: Any) -> dict[str, Json]:
    """Return the member `multiscale_metadata` of a spec."""
    fields = Fields(value)
    out: dict[str, Json] = {}
    parsers: Mapping[str, Parser[Any]] = {
        "type": string,
        "data_type": _data_type,
        "num_channels": integer(1, _INT32),
    }
    for name, parser in parsers.items():
        if name in fields:
            out[name] = fields.take(name, parser)
    fields.finish()
    return out


def parse_scale(value: Any, data_type: str | None, channels: int | None, *, stored: bool) -> dict[str, Any]:
    """Return a scale, stored (with `chunk_sizes`) or as a spec constrains it (with one `chunk_size`)."""
    fields = Fields(value)
    out: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, parser in _SCALE.items():
        if name == ("chunk_size" if stored else "chunk_sizes"):
            continue
        if name in fields or (stored and name in _REQUIRED):
            out[name] = fields.require(name, parser)
    if stored:
        out.setdefault("voxel_offset", [0, 0, 0])
        if out.get("sharding") is None:
            out.pop("sharding", None)
        rest = fields.rest()
    fields.finish()
    _complete(out, stored=stored)
    check_encoding(out.get("encoding"), data_type, channels)
    return {**rest, **out} if stored else out


def _complete(out: dict[str, Any], *, stored: bool) -> None:
    """Check how members depend on each other, and fill in those that follow."""
    if "voxel_offset" in out and "size" not in out:
        raise JsonError('Error parsing object member "voxel_offset": cannot be specified without "size"')
    if "size" in out:
        out.setdefault("voxel_offset", [0, 0, 0])
        ends = [offset + size for offset, size in zip(out["voxel_offset"], out["size"], strict=True)]
        if any(abs(end) > MAX_FINITE for end in ends):
            raise JsonError(
                f'"size" of {show(out["size"])} and "voxel_offset" of {show(out["voxel_offset"])} do not specify a'
                " valid region"
            )
    encoding = out.get("encoding")
    if stored and encoding == "jpeg":
        out.setdefault("jpeg_quality", 75)
    if stored and encoding == "compressed_segmentation" and "compressed_segmentation_block_size" not in out:
        raise JsonError(
            'Error parsing object member "compressed_segmentation_block_size": Expected array, but member is missing'
        )
    for name, needed in _OF_ENCODING.items():
        if name in out and encoding != needed:
            raise JsonError(f'Error parsing object member "{name}": Only valid for "{needed}" encoding')
    _check_sharding(out)


def _check_sharding(scale: Mapping[str, Any]) -> None:
    sizes = scale.get("chunk_sizes", [scale["chunk_size"]] if "chunk_size" in scale else [])
    if scale.get("sharding") is None or not sizes:
        return
    if len(sizes) > 1:
        raise JsonError("Sharded format does not support more than one chunk size")
    if "size" in scale and sum(chunk_bits(scale["size"], sizes[0])) > 64:
        raise JsonError(
            f'"size" of {show(scale["size"])} with "chunk_size" of {show(sizes[0])} is not compatible with sharded'
            " format because the chunk keys would exceed 64 bits"
        )


def chunk_bits(size: Sequence[int], chunk: Sequence[int]) -> list[int]:
    """Return how many bits the number of a chunk has along each dimension."""
    return [max(0, -(-extent // step) - 1).bit_length() for extent, step in zip(size, chunk, strict=True)]


def check_encoding(encoding: str | None, data_type: str | None, channels: int | None) -> None:
    """Raise where an encoding cannot hold a data type or a number of channels."""
    if encoding == "png":
        if data_type not in (None, "uint8", "uint16"):
            raise JsonError(f'"png" encoding only supported for uint8 and uint16, not for {data_type}')
        if channels is not None and channels > 4:
            raise JsonError(f'"png" encoding only supports 1 to 4 channels, not {channels}')
    elif encoding == "jpeg":
        if data_type not in (None, "uint8"):
            raise JsonError(f'"jpeg" encoding only supported for uint8, not for {data_type}')
        if channels not in (None, 1, 3):
            raise JsonError(f'"jpeg" encoding only supports 1 or 3 channels, not {channels}')
    elif encoding == "compressed_segmentation" and data_type not in (None, "uint32", "uint64"):
        raise JsonError(
            f"compressed_segmentation encoding only supported for uint32 and uint64, not for {data_type}"
        )


def parse_info(data: bytes) -> dict[str, Any]:
    """Return a stored document: its members, with those of scales completed."""
    try:
        document = loads(data)
    except DataLossError as error:
        raise FailedPreconditionError(error.message) from None
    fields = Fields(document)
    if "@type" in fields:
        fields.require("@type", one_of(_KIND))
    out: dict[str, Any] = {"@type": _KIND}
    out["type"] = fields.require("type", string)
    out["data_type"] = data_type = fields.require("data_type", _data_type)
    out["num_channels"] = channels = fields.require("num_channels", integer(1, _INT32))
    out["scales"] = fields.require("scales", _scales(data_type, channels))
    rest = fields.rest()
    fields.finish()
    return {**rest, **out}


def _scales(data_type: str | None, channels: int | None) -> Callable[[Any], list[dict[str, Any]]]:
    def parse(value: Any) -> list[dict[str, Any]]:
        if isinstance(value, list) and len(value) > _MOST_SCALES:
            raise JsonError(f"{len(value)} scales are more than the {_MOST_SCALES} that a volume may have")
        return array_of(lambda scale: parse_scale(scale, data_type, channels, stored=True))(value)

    return parse


def dump_info(info: Mapping[str, Any]) -> bytes:
    """Return a document as stored."""
    return dumps({**info, "scales": [_plain(scale) for scale in info["scales"]]}).encode()


def _plain(scale: Mapping[str, Any]) -> dict[str, Any]:
    if not all(map(math.isfinite, scale["resolution"])):
        raise StoreError(
            f"The resolution {scale['resolution']} cannot be stored as JSON: give finite numbers"
        )
    return dict(scale)
