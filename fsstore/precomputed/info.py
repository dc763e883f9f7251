"""The document `info` of a precomputed volume, the keys of its chunks, and the sharding of a scale.

A chunk is called by the box of voxels that it holds or, in shards, by a number.  Shards are boxes of chunks if a
chunk's number is not hashed and has no more bits than the sharding looks at.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsstore.chunk.model import WholeKeys
from fsstore.errors import DataLossError, FailedPreconditionError, JsonError, StoreError
from fsstore.index.interval import MAX_FINITE
from fsstore.kvstore.contract.request import key_bytes, key_text
from fsstore.precomputed.codec import ENCODINGS
from fsstore.precomputed.shard_layout import parse_sharding
from fsstore.schema.constraint import Vector
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
    parsers: Mapping[str, Parser[Any]] = {"type": string, "data_type": _data_type, "num_channels": integer(1, _INT32)}
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
        raise JsonError(f"compressed_segmentation encoding only supported for uint32 and uint64, not for {data_type}")


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
        raise StoreError(f"The resolution {scale['resolution']} cannot be stored as JSON: give finite numbers")
    return dict(scale)


# How chunks of a precomputed scale are called.

_KEY = re.compile(r"(-?\d{1,20})-(-?\d{1,20})_(-?\d{1,20})-(-?\d{1,20})_(-?\d{1,20})-(-?\d{1,20})", re.ASCII)


@dataclass(frozen=True, slots=True)
class VoxelKeys:
    """Keys such as `0-64_64-128_0-10`, with absolute bounds; `lead` is the directory."""

    offset: tuple[int, ...]
    chunk: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def is_joined(self) -> bool:
        """Keys are parts, one a dimension, joined."""
        return True

    def of_columns(self, columns: Sequence[Any]) -> list[str]:
        """Return the keys of many chunks."""
        return [self.key(numbers) for numbers in zip(*columns, strict=True)]

    def parts(self, numbers: Iterable[int], dimension: int) -> list[str]:
        """Return the bounds along one dimension; channels are never cut and have none."""
        if dimension > 2:
            return ["" for _ in numbers]
        lead = "_" if dimension else ""
        offset, step, size = self.offset[dimension], self.chunk[dimension], self.size[dimension]
        end = offset + size
        begins = [offset + number * step for number in numbers]
        return [f"{lead}{begin}-{min(end, begin + step)}" for begin in begins]

    def key(self, chunk: Iterable[int]) -> str:
        """Return the key of a chunk."""
        parts = []
        for number, offset, step, size in zip(chunk, self.offset, self.chunk, self.size, strict=False):
            low = int(number) * step
            high = min(size, low + step)
            parts.append(f"{offset + low}-{offset + high}")
        return "_".join(parts)  # channels are never cut and have none

    def numbers(self, key: str, rank: int) -> tuple[int, ...] | None:
        """Return the numbers of the chunk whose key this is, or None if it is none."""
        found = _KEY.fullmatch(key)
        if found is None:
            return None
        begins = map(int, found.groups()[::2])
        numbers = [
            (begin - offset) // step for begin, offset, step in zip(begins, self.offset, self.chunk, strict=True)
        ]
        return (*numbers, 0) if min(numbers) >= 0 and self.key(numbers) == key else None


@dataclass(frozen=True, slots=True)
class MortonKeys(WholeKeys):
    """Keys of eight bytes; `bits` is how many bits the number of a chunk has along x, y and z."""

    bits: tuple[int, ...]

    @property
    def order(self) -> list[tuple[int, int]]:
        """The dimension, and the bit of its number, that each bit of the key is, lowest first."""
        return [(axis, bit) for bit in range(64) for axis in range(3) if bit < self.bits[axis]]

    def of_columns(self, columns: Sequence[Any]) -> list[str]:
        """Return the keys of many chunks."""
        numbers = [np.asarray(column, np.uint64) for column in columns[:3]]
        codes = np.zeros(len(numbers[0]), np.uint64)
        for place, (axis, bit) in enumerate(self.order):
            codes |= ((numbers[axis] >> np.uint64(bit)) & np.uint64(1)) << np.uint64(place)
        octets = codes.astype(">u8").tobytes()
        return [key_text(octets[begin : begin + 8]) for begin in range(0, len(octets), 8)]

    def key(self, chunk: Iterable[int]) -> str:
        """Return the key of a chunk."""
        numbers, code = [int(number) for number in chunk], 0
        for place, (axis, bit) in enumerate(self.order):
            code |= (numbers[axis] >> bit & 1) << place
        return key_text(code.to_bytes(8, "big"))

    def numbers(self, key: str, rank: int) -> tuple[int, ...] | None:
        """Return the numbers of the chunk whose key this is, or None if it is none."""
        data = key_bytes(key)
        code, order = int.from_bytes(data, "big"), self.order
        if len(data) != 8 or code >> len(order):
            return None
        numbers = [0, 0, 0]
        for place, (axis, bit) in enumerate(order):
            numbers[axis] |= (code >> place & 1) << bit
        return (*numbers, 0)


def folder_of(path: str, key: str) -> str:
    """Return the prefix of the keys of the chunks of a scale, given the path of the volume and the scale's key.

    >>> folder_of("p/q/", "../x"), folder_of("p/", "k"), folder_of("", "")
    ('p/x/', 'p/k/', '')
    """
    path = path.removesuffix("/")
    if not path:
        return key + "/" if key else ""
    parts = path.split("/")
    for part in key.split("/"):
        if part == ".." and parts:
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts) + "/"


_PRESHIFT = 9  # bits of a number within a minishard, TensorStore's


def box_bits(bits: Sequence[int], count: int) -> list[int]:
    """Return how the lowest `count` bits of a chunk's number fall to the dimensions."""
    taken = [0, 0, 0]
    for bit in range(64):
        for axis in range(3):
            if bit < bits[axis] and sum(taken) < count:
                taken[axis] += 1
    return taken


def shard_chunks(scale: Mapping[str, Any], chunk: Sequence[int]) -> list[int] | None:
    """Return how many chunks a shard has along x, y and z; None where shards are no boxes."""
    sharding = scale["sharding"]
    bits = chunk_bits(scale["size"], chunk)
    within = sharding["preshift_bits"] + sharding["minishard_bits"]
    if sharding["hash"] != "identity" or sum(bits) > within + sharding["shard_bits"]:
        return None
    taken = box_bits(bits, min(within, sum(bits)))
    grid = [-(-size // step) for size, step in zip(scale["size"], chunk, strict=True)]
    return [min(cells, 1 << own) for cells, own in zip(grid, taken, strict=True)]


def values_in(scale: Mapping[str, Any], chunk: Sequence[int], shard: int) -> int | None:
    """Return how many chunks of the volume are in a shard; None where shards are no boxes."""
    shape = shard_chunks(scale, chunk)
    if shape is None:
        return None
    bits = chunk_bits(scale["size"], chunk)
    within = scale["sharding"]["preshift_bits"] + scale["sharding"]["minishard_bits"]
    order = [(axis, bit) for bit in range(64) for axis in range(3) if bit < bits[axis]][within:]
    corner = [0, 0, 0]
    for place, (axis, bit) in enumerate(order):
        corner[axis] |= (shard >> place & 1) << bit
    grid = [-(-size // step) for size, step in zip(scale["size"], chunk, strict=True)]
    sides = [
        max(0, min(first + length, cells) - first) for first, length, cells in zip(corner, shape, grid, strict=True)
    ]
    return int(math.prod(sides))


def _cost(current: Sequence[int], wanted: Vector[int], whole: Sequence[int]) -> float:
    total = 0.0
    for axis, size in enumerate(current):
        bound = None if wanted is None else wanted[axis]
        if bound is None:
            continue
        target, is_hard = bound
        target = whole[axis] if target == -1 else target
        if target != size and is_hard:
            return math.inf
        total += abs(size - target) / target
    return total


def choose_sharding(
    size: Sequence[int], chunk: Sequence[int], elements: int, wanted: Vector[int], codec: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the sharding of a new scale, None for none.

    `elements` and `wanted` are what is asked of write chunks; `codec` is the codec spec of the scale.
    """
    bits = chunk_bits(size, chunk)
    volume = math.prod(chunk)
    count = (elements + volume // 2) // volume
    target = 0
    while target < sum(bits) and 1 << target < count:
        target += 1
    if target and (1 << target) - count > count - (1 << (target - 1)):
        target -= 1
    whole = [step << own for step, own in zip(chunk, bits, strict=True)]
    current, taken = list(chunk), 0
    best, chosen = _cost(current, wanted, whole), 0
    for bit in range(64):
        for axis in range(3):
            if bit >= bits[axis]:
                continue
            current[axis], taken = current[axis] * 2, taken + 1
            cost = _cost(current, wanted, whole)
            if cost < best or (cost == best and taken <= target):
                best, chosen = cost, taken
    if best == math.inf:
        raise StoreError("Cannot satisfy write chunk shape constraint")
    encoding = codec.get("shard_data_encoding")
    if not chosen and encoding is None:
        return None
    preshift = min(chosen, _PRESHIFT)
    usual = "raw" if codec["encoding"] in ("jpeg", "png") else "gzip"
    return {
        "@type": "neuroglancer_uint64_sharded_v1",
        "preshift_bits": preshift,
        "hash": "identity",
        "minishard_bits": chosen - preshift,
        "shard_bits": sum(bits) - chosen,
        "data_encoding": encoding or usual,
        "minishard_index_encoding": "gzip",
    }
