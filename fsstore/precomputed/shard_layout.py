"""The shards of Neuroglancer: values by 64-bit numbers, many to a file, found in two steps.

A number is shifted and hashed; the lowest bits of that say which minishard it belongs to, the next which file.  A file
begins with an entry for each minishard, which says where its index is; an index holds the numbers of its values and
where they are.  All places count from the end of the entries.  Pure: bytes in, bytes out.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from fsstore.errors import FailedPreconditionError, ResourceExhaustedError, StoreError
from fsstore.kvstore.contract.driver import Buffer
from fsstore.values.detection import usual_limit
from fsstore.values.json_value import Fields, Json, integer, one_of

U64: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]
_ENTRY = 16
_LARGEST_INDEX = 24  # minishard bits of a file that is written: its entries take 256 MiB
_FARTHEST = 1 << 62


@dataclass(frozen=True, slots=True)
class Sharding:
    """How numbers are spread over files; the fields are the JSON members."""

    preshift_bits: int
    hash: str
    minishard_bits: int
    shard_bits: int
    data_encoding: str = "raw"
    minishard_index_encoding: str = "raw"

    @classmethod
    def of(cls, json: Mapping[str, Any]) -> Self:
        """Return the value of JSON that `parse_sharding` gave."""
        return cls(**{name: value for name, value in json.items() if name != "@type"})

    def to_json(self) -> dict[str, Json]:
        """Return the JSON form, with everything."""
        members = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return {"@type": "neuroglancer_uint64_sharded_v1", **members}

    @property
    def index_size(self) -> int:
        """The size of the entries at the beginning of a file."""
        return _ENTRY << self.minishard_bits

    def locate(self, ids: U64) -> tuple[U64, U64]:
        """Return the numbers of the files and of the minishards of values."""
        hashed = np.zeros_like(ids) if self.preshift_bits == 64 else ids >> np.uint64(self.preshift_bits)
        if self.hash != "identity":
            hashed = _murmur(hashed)
        minishards = hashed & np.uint64((1 << self.minishard_bits) - 1)
        shards = (hashed >> np.uint64(self.minishard_bits)) & np.uint64((1 << self.shard_bits) - 1)
        return shards, minishards

    def file_name(self, shard: int) -> str:
        """Return the name of a file."""
        return f"{shard:0{-(-self.shard_bits // 4)}x}.shard"

    def shard_of_name(self, name: str) -> int | None:
        """Return the number of the file that has a name, None for other names."""
        digits = name.removesuffix(".shard")
        if len(digits) > 16 or not digits or any(digit not in "0123456789abcdef" for digit in digits):
            return None
        shard = int(digits, 16)
        return shard if self.file_name(shard) == name and shard >> self.shard_bits == 0 else None


def parse_sharding(value: Any) -> dict[str, Json]:
    """Return the JSON of a sharding, checked and complete."""
    fields = Fields(value)
    fields.require("@type", one_of("neuroglancer_uint64_sharded_v1"))
    out: dict[str, Any] = {"@type": "neuroglancer_uint64_sharded_v1"}
    out["preshift_bits"] = fields.require("preshift_bits", integer(0, 64))
    out["hash"] = fields.require("hash", one_of("identity", "murmurhash3_x86_128"))
    out["minishard_bits"] = fields.require("minishard_bits", integer(0, 32))
    out["shard_bits"] = fields.require("shard_bits", integer(0, 64 - (out["minishard_bits"] or 0)))
    for name in ("data_encoding", "minishard_index_encoding"):
        out[name] = fields.take(name, one_of("raw", "gzip"), default="raw")
    fields.finish()
    return out


def _rotate(x: U64, bits: int) -> U64:
    return ((x << np.uint64(bits)) | (x >> np.uint64(32 - bits))) & np.uint64(0xFFFFFFFF)


def _mixed(x: U64) -> U64:
    low = np.uint64(0xFFFFFFFF)
    x = (x ^ (x >> np.uint64(16))) * np.uint64(0x85EBCA6B) & low
    x = (x ^ (x >> np.uint64(13))) * np.uint64(0xC2B2AE35) & low
    return x ^ (x >> np.uint64(16))


def _murmur(values: U64) -> U64:
    """Return the first half of MurmurHash3_x86_128, seed 0, of each number as eight bytes."""
    low = np.uint64(0xFFFFFFFF)
    k1 = _rotate((values & low) * np.uint64(0x239B961B) & low, 15) * np.uint64(0xAB0E9789) & low
    k2 = _rotate((values >> np.uint64(32)) * np.uint64(0xAB0E9789) & low, 16) * np.uint64(0x38B34AE5) & low
    eight = np.uint64(8)
    h1, h2 = k1 ^ eight, k2 ^ eight
    h1 = (h1 + h2 + eight + eight) & low
    h2, h3 = (h2 + h1) & low, (h1 + eight) & low
    h1, h2, h3 = _mixed(h1), _mixed(h2), _mixed(h3)
    h1 = (h1 + h2 + h3 + h3) & low
    return h1 | ((h2 + h1) & low) << np.uint64(32)


class Minishard(NamedTuple):
    """The index of a minishard: the numbers of its values, and where in the file they begin and end."""

    ids: U64
    starts: U64
    stops: U64

    def find(self, ids: U64) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return where in the index each number is first, -1 where it is not."""
        if not len(self.ids):
            return np.full(len(ids), -1)
        order = None
        known = self.ids
        if (known[1:] < known[:-1]).any():
            order = np.argsort(known, kind="stable")
            known = known[order]
        at = np.minimum(np.searchsorted(known, ids), len(known) - 1)
        found = at if order is None else order[at]
        return np.where(known[at] == ids, found, -1)


def decode_entry(sharding: Sharding, data: Buffer) -> tuple[int, int]:
    """Return where in the file the index of a minishard begins and ends; both are the same if there is none."""
    start, stop = (int(value) for value in np.frombuffer(data, "<u8", 2))
    if start > stop or stop > _FARTHEST:
        raise FailedPreconditionError(
            f"Error retrieving shard index entry: Shard index specified invalid byte range: [{start}, {stop})"
        )
    return sharding.index_size + start, sharding.index_size + stop


def decode_index(sharding: Sharding, data: Buffer) -> Minishard:
    """Return the index of a minishard."""
    if sharding.minishard_index_encoding == "gzip":
        data = gunzip(data)
    if len(data) % 24:
        raise FailedPreconditionError(f"Invalid minishard index length: {len(data)}")
    ids, gaps, sizes = np.frombuffer(data, "<u8").reshape(3, -1)
    if len(ids) and (int(gaps.max()) > _FARTHEST or int(sizes.max()) > _FARTHEST):
        raise FailedPreconditionError("Invalid minishard index: a value lies farther than any file reaches")
    stops = np.cumsum(gaps + sizes, dtype=np.uint64) + np.uint64(sharding.index_size)
    starts = stops - sizes
    if len(stops) and ((stops[1:] < stops[:-1]).any() or int(stops.max()) > _FARTHEST):
        raise FailedPreconditionError("Invalid minishard index: a value lies farther than any file reaches")
    return Minishard(np.cumsum(ids, dtype=np.uint64), starts, stops)


def entries_of(sharding: Sharding, data: Buffer) -> Iterator[tuple[int, Minishard]]:
    """Yield the minishards of a whole file that have values, with their numbers; everything is checked."""
    size = len(data)
    if size < sharding.index_size:
        raise FailedPreconditionError(f"Existing shard has size {size}, but expected at least: {sharding.index_size}")
    entries = np.frombuffer(data, "<u8", 2 << sharding.minishard_bits).reshape(-1, 2)
    view = memoryview(data)
    for number in np.flatnonzero(entries[:, 0] != entries[:, 1]).tolist():
        where = f"Error reading minishard {number}"
        try:
            start, stop = decode_entry(sharding, entries[number].tobytes())
            if stop > size:
                raise FailedPreconditionError(
                    f"Requested byte range [{start}, {stop}) is not valid for value of size {size}"
                )
            index = decode_index(sharding, view[start:stop])
        except StoreError as error:
            raise error.within(where) from None
        _check_index(number, index, size)
        yield number, index


def _check_index(number: int, index: Minishard, size: int) -> None:
    if len(np.unique(index.ids)) != len(index.ids):
        values, counts = np.unique(index.ids, return_counts=True)
        raise FailedPreconditionError(
            f"Chunk {values[counts > 1][0]} occurs more than once in the minishard index for minishard {number}"
        )
    outside = np.flatnonzero(index.stops > np.uint64(size))
    if len(outside):
        at = outside[0]
        raise FailedPreconditionError(
            f"Invalid existing byte range for chunk {index.ids[at]} in minishard {number}: [{index.starts[at]},"
            f" {index.stops[at]}) is not valid for value of size {size}"
        )


def build_shard(sharding: Sharding, values: Mapping[int, Mapping[int, Buffer]]) -> bytes:
    """Return a file of encoded values, by minishard and number."""
    if sharding.minishard_bits > _LARGEST_INDEX:
        raise StoreError(
            f"A shard of 2^{sharding.minishard_bits} minishards is too large to be written; use at most"
            f" {_LARGEST_INDEX} minishard_bits"
        )
    entries = np.zeros((1 << sharding.minishard_bits, 2), "<u8")
    parts: list[Buffer] = []
    end = 0
    for number in sorted(values):
        if not values[number]:
            continue
        ids = np.array(sorted(values[number]), np.uint64)
        chosen = [values[number][int(one)] for one in ids]
        parts += chosen
        index = np.zeros((3, len(ids)), "<u8")
        index[0] = np.diff(ids, prepend=np.uint64(0))
        index[1, 0] = end
        index[2] = [len(part) for part in chosen]
        end += int(index[2].sum())
        stored = index.tobytes()
        if sharding.minishard_index_encoding == "gzip":
            stored = gzip(stored)
        entries[number] = end, end + len(stored)
        parts.append(stored)
        end += len(stored)
    return b"".join([entries.tobytes(), *parts])


def gzip(data: Buffer) -> bytes:
    """Return data compressed as one gzip member, without a time."""
    made = zlib.compressobj(9, zlib.DEFLATED, 31)
    return made.compress(data) + made.flush()


def gunzip(data: Buffer) -> bytes:
    """Return what exactly one gzip member holds; what is longer than any such value is refused."""
    limit = usual_limit(len(data))
    made = zlib.decompressobj(31)
    try:
        out = made.decompress(data, limit)
    except zlib.error as error:
        raise FailedPreconditionError(f"Error decoding zlib-compressed data: {error}") from None
    if len(out) == limit and not made.eof:
        raise ResourceExhaustedError(f"Compressed data holds more than {limit} bytes; refused")
    if not made.eof or made.unused_data:
        raise FailedPreconditionError("Error decoding zlib-compressed data")
    return out
