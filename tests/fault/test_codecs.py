"""Damaged, truncated and hostile encodings: what is raised, in whose words, and how little memory it takes."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import struct
import sys
import tracemalloc
import zlib

import msgpack
import numcodecs
import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import fsstore
from fsstore.codec.chain import CodecChain
from fsstore.codec.chain_spec import ChainSpec, merge_specs, resolve
from fsstore.codec.contract import ByteSpec, ChunkSpec
from fsstore.codec.deflate import BoundDeflate, Inflater, bz2_stream, inflate, lzma_stream
from fsstore.codec.numcodecs import filters as object_list
from fsstore.codec.numcodecs import numcodecs_v2
from fsstore.codec.numcodecs.compressor_v2 import V2Pipeline, parse_compressor, parse_filters
from fsstore.codec.zstd import ZstdCodec
from fsstore.errors import (
    DataLossError,
    FailedPreconditionError,
    JsonError,
    PermissionDeniedError,
    ResourceExhaustedError,
    StoreError,
    UnimplementedError,
)
from fsstore.values import registry

GROWING = {
    "zlib": BoundDeflate(ByteSpec(), "zlib", 1),
    "gzip": BoundDeflate(ByteSpec(), "gzip", 1),
    "bz2": bz2_stream(ByteSpec(), 1),
    "lzma": lzma_stream(ByteSpec(), {"preset": 0}),
}
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
GZIP = {"name": "gzip", "configuration": {"level": 5}}
ZSTD = {"name": "zstd", "configuration": {"level": 3}}
CRC = {"name": "crc32c"}
BLOSC = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 4, "blocksize": 0},
}
DATA = np.arange(4, dtype="i4")
MISSING = 2**64 - 1


def bound(*chain, dtype="i4", shape=(4,)):
    return CodecChain.from_json([LITTLE, *chain]).bind(ChunkSpec(np.dtype(dtype), shape, 0))


def shard(index=(LITTLE,), **more):
    configuration = {"chunk_shape": [2], "codecs": [LITTLE], "index_codecs": list(index), **more}
    codec = {"name": "sharding_indexed", "configuration": configuration}
    return CodecChain.from_json([codec]).bind(ChunkSpec(DATA.dtype, (4,), 0))


def flip(position):
    def change(data):
        out = bytearray(data)
        out[position] ^= 1
        return bytes(out)

    return change


# every message was produced by tensorstore 0.1.86 from the same bytes, which then adds where in the stream it was
DAMAGE = [
    ((), lambda c: c[:-1], FailedPreconditionError, "Not enough data: expected at least 16 or 1 more; at byte 15"),
    ((), lambda c: c + b"x", FailedPreconditionError, "End of data expected; remaining length: 1; at byte 16"),
    ((), lambda c: b"", FailedPreconditionError, "Not enough data: expected at least 16 or 16 more; at byte 0"),
    ((CRC,), flip(0), DataLossError, "Digest mismatch, stored digest is 0x835b3dad but computed digest is 0x71573053"),
    ((CRC,), lambda c: c[:-1], DataLossError, "Unexpected end of input; at byte 16"),
    ((CRC,), lambda c: c[:10], FailedPreconditionError, "Not enough data: expected at least 16 or 6 more; at byte 10"),
    ((GZIP,), flip(0), FailedPreconditionError, "inflate() failed: incorrect header check; at byte 2; at uncompressed byte 0"),
    ((GZIP,), flip(-1), FailedPreconditionError, "inflate() failed: incorrect length check"),
    ((GZIP,), lambda c: c[:-1], FailedPreconditionError, "Truncated Zlib-compressed stream; at byte 33"),
    ((GZIP,), lambda c: gzip.compress(bytes(12)), FailedPreconditionError, "Not enough data: expected at least 16 or 4 more"),
    ((GZIP,), lambda c: gzip.compress(bytes(20)), FailedPreconditionError, "End of data expected"),
    ((ZSTD,), flip(0), FailedPreconditionError, "ZSTD_decompressStream() failed: Unknown frame descriptor"),
    ((ZSTD,), lambda c: c[:-1], FailedPreconditionError, "Truncated Zstd-compressed stream; at byte 24"),
    ((ZSTD,), lambda c: b"", FailedPreconditionError, "Truncated Zstd-compressed stream; at byte 0"),
    ((ZSTD,), lambda c: zstandard.compress(bytes(12)), FailedPreconditionError, "Not enough data: expected at least 16 or 4 more"),
    ((ZSTD,), lambda c: zstandard.compress(bytes(20)), FailedPreconditionError, "End of data expected"),
    ((BLOSC,), flip(0), FailedPreconditionError, "Invalid blosc-compressed data; at byte 0"),
    ((BLOSC,), lambda c: c[:-1], FailedPreconditionError, "Invalid blosc-compressed data; at byte 0"),
    ((BLOSC,), lambda c: c + b"x", FailedPreconditionError, "Invalid blosc-compressed data; at byte 0"),
    ((BLOSC,), lambda c: b"", FailedPreconditionError, "Invalid blosc-compressed data; at byte 0"),
]  # fmt: skip


@pytest.mark.parametrize(("chain", "damage", "kind", "message"), DAMAGE)
def test_damage_is_named_as_tensorstore_names_it(chain, damage, kind, message):
    """Each kind of damage raises TensorStore's status with its words, with and without a destination."""
    codec = bound(*chain)
    damaged = damage(bytes(codec.encode(DATA)))
    for out in (None, np.zeros(4, "i4")):
        with pytest.raises(kind) as caught:
            codec.decode(damaged, out)
        assert caught.value.prefix == kind.prefix
        assert message in str(caught.value)


@pytest.mark.parametrize(
    "chain", [(GZIP,), (ZSTD,), (CRC,), ({**ZSTD, "configuration": {"level": 3, "checksum": True}},)], ids=str
)
@pytest.mark.parametrize("shape", [(4,), (40000,)])
@pytest.mark.parametrize("junk", [b"j", b"junk", b"\0" * 100], ids=len)
def test_bytes_after_the_stream_are_refused(chain, shape, junk):
    """Bytes after the end of an encoding are damage (deliberate: TensorStore ignores them), in small and large chunks."""
    codec = bound(*chain, shape=shape)
    data = np.arange(shape[0], dtype="i4")
    for out in (None, np.zeros(shape, "i4")):
        with pytest.raises(FailedPreconditionError, match=f"End of data expected; remaining length: {len(junk)}"):
            codec.decode(bytes(codec.encode(data)) + junk, out)


@pytest.mark.parametrize("rate", [1, 3.5, 9, 16, 32])
@pytest.mark.parametrize("shape", [(1,), (4,), (5,), (3, 9), (4, 5, 6), (2, 3, 4, 5)])
def test_zfp_of_a_fixed_rate_is_as_long_as_it_says(shape, rate):
    """What numcodecs writes with a fixed rate is read, and more is refused, whatever the shape and the rate."""
    for dtype in ("f4", "f8", "i4", "i8"):
        codec = numeric({"id": "zfpy", "mode": 2, "rate": rate}, shape, dtype)
        if dtype in ("f4", "f8") and 4 ** len(shape) * rate < 12:  # zfp would write past the memory it takes
            with pytest.raises(StoreError, match=f'Codec "zfpy" cannot encode: the rate {rate} is less than 3'):
                codec.encode(np.ones(shape, dtype))
            continue
        good = bytes(codec.encode(np.ones(shape, dtype)))
        assert codec.decode(good).size == np.prod(shape)
        if 4 ** len(shape) * rate < 12:
            continue
        with pytest.raises(FailedPreconditionError, match="End of data expected"):
            codec.decode(good + bytes(8))


def one_chunk(compressor, size):
    """Return a new array of zarr v2 that is one chunk of a compressor."""
    metadata = {"chunks": [size], "compressor": {"id": compressor}}
    spec = {"driver": "zarr", "kvstore": "memory://", "metadata": metadata}
    return fsstore.open(spec, create=True, dtype="int32", shape=[size]).result()


@pytest.mark.parametrize("size", [4, 40000])
@pytest.mark.parametrize("times", [2, 3, 4, 6])
@pytest.mark.parametrize("name", ["zlib", "gzip", "bz2", "lzma", "zstd", "lz4", "blosc"])
def test_a_chunk_stored_several_times_is_refused(name, size, times):
    """Data that are the same again, as an appended file has them, are bytes after the end, under key and codec."""
    compressor = numcodecs.get_codec({"id": name})
    store = one_chunk(name, size)
    store.kvstore["0"] = bytes(compressor.encode(np.arange(size, dtype="i4"))) * times
    with pytest.raises(FailedPreconditionError, match='Error reading "0"') as found:
        store.read().result()
    assert str(found.value).endswith(f'; in codec "{name}"')


@pytest.mark.parametrize("size", [4, 40000])
@pytest.mark.parametrize("name", ["zlib", "gzip", "bz2", "lzma", "zstd"])
def test_bytes_after_a_compressor_of_zarr2_are_refused(name, size):
    """The same for the compressors of zarr v2; empty members and frames may follow."""
    compressor = numcodecs.get_codec({"id": name})
    store = one_chunk(name, size)
    data = np.arange(size, dtype="i4")
    encoded = bytes(compressor.encode(data))
    store.kvstore["0"] = encoded + b"junk"
    with pytest.raises(FailedPreconditionError, match='Error reading "0": End of data expected; remaining length: 4'):
        store.read().result()
    if name != "zlib":
        store.kvstore["0"] = encoded + bytes(compressor.encode(b""))
        assert (store.read().result() == data).all()


@pytest.mark.parametrize(
    ("start", "member", "keeps_tail"),
    [
        (lambda: zlib.decompressobj(31), gzip.compress(b"x"), True),
        (bz2.BZ2Decompressor, bz2.compress(b"x"), False),
        (lzma.LZMADecompressor, lzma.compress(b"x"), False),
    ],
    ids=["gzip", "bz2", "xz"],
)
def test_thousands_of_members_are_not_copied_for_each(start, member, keeps_tail):
    """A member is given little more than itself: what a library does not need of its input, it copies."""
    given_bytes = 0

    class Counted:
        def __init__(self):
            self.machine = start()

        def decompress(self, data, limit):
            nonlocal given_bytes
            given_bytes += len(data)
            return self.machine.decompress(data, limit)

        def __getattr__(self, name):
            return getattr(self.machine, name)

    inflater = Inflater(Counted, (OSError,), "inflate", "Counted", keeps_tail=keeps_tail)
    data = member * 2000
    assert inflate(data, inflater, 2000, 2000) == b"x" * 2000
    assert given_bytes <= len(data) + 2000 * 4096


def test_members_and_frames_continue():
    """Several gzip members or zstd frames make one chunk (deliberate: TensorStore reads only the first)."""
    raw = DATA.tobytes()
    joined = {
        "gzip": gzip.compress(raw[:5]) + gzip.compress(raw[5:]),
        "zstd": zstandard.compress(raw[:5]) + zstandard.compress(raw[5:]),
    }
    assert (bound(GZIP).decode(joined["gzip"]) == DATA).all()
    assert (bound(ZSTD).decode(joined["zstd"]) == DATA).all()


def test_zstd_frame_without_size():
    """Frames that do not state their size are decoded, bounded by the size of the chunk."""
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    assert (bound(ZSTD).decode(compressor.compress(DATA.tobytes())) == DATA).all()
    with pytest.raises(FailedPreconditionError, match="End of data expected"):
        bound(ZSTD).decode(compressor.compress(bytes(1 << 20)))


def test_truncated_zstd_checksum_is_noticed_in_large_chunks():
    """A frame without its whole checksum is refused also where the destination is written directly."""
    codec = bound({**ZSTD, "configuration": {"level": 3, "checksum": True}}, shape=(40000,))
    data = np.arange(40000, dtype="i4")
    with pytest.raises(FailedPreconditionError, match="Truncated"):
        codec.decode(bytes(codec.encode(data))[:-1], np.zeros_like(data))


@pytest.mark.parametrize("value", [2, 255])
def test_booleans_are_zero_or_one(value):
    """Any other byte is refused with its value and place, also in large compressed chunks."""
    for count in (4, 50000):
        raw = bytearray(count)
        raw[3] = value
        codec = CodecChain.from_json([{"name": "bytes"}, ZSTD]).bind(ChunkSpec(np.dtype(bool), (count,)))
        for out in (None, np.zeros(count, bool)):
            with pytest.raises(FailedPreconditionError, match=f"Invalid bool value: {value}; at byte 3"):
                codec.decode(zstandard.compress(bytes(raw)), out)


SHARD_INDEX = [
    ((0, 8, 48, 160), DataLossError, "Shard index entry 1 with byte range [48, 208) is invalid for shard of size 48"),
    ((0, 8, MISSING, 0), DataLossError, "Invalid shard index entry 1 with offset=18446744073709551615, length=0"),
    ((0, 8, MISSING - 1, 8), DataLossError, "Invalid shard index entry 1 with offset=18446744073709551614, length=8"),
    ((0, 8, 0, MISSING), DataLossError, "Invalid shard index entry 1 with offset=0, length=18446744073709551615"),
    ((0, 8, 2**63, 0), DataLossError, "Invalid shard index entry 1 with offset=9223372036854775808, length=0"),
    (
        (0, 8, 8, 7),
        FailedPreconditionError,
        "Error reading shard entry {1}/{2}: Not enough data: expected at least 8 or 1 more; at byte 7",
    ),
    (
        (0, 8, 8, 9),
        FailedPreconditionError,
        "Error reading shard entry {1}/{2}: End of data expected; remaining length: 1; at byte 8",
    ),
]


@pytest.mark.parametrize(("rows", "kind", "message"), SHARD_INDEX)
def test_bad_shard_index_is_named_as_tensorstore_names_it(rows, kind, message):
    """Rows of the index that cannot be are refused with TensorStore's words."""
    codec = shard()
    damaged = bytes(codec.encode(DATA + 1))[:16] + np.array(rows, "u8").tobytes()
    with pytest.raises(kind) as caught:
        codec.decode(damaged)
    assert message in str(caught.value)


def test_short_shard_and_bad_index_checksum():
    """A shard too short for its index and an index with a wrong checksum are data loss."""
    codec = shard((LITTLE, CRC))
    good = bytes(codec.encode(DATA + 1))
    with pytest.raises(DataLossError, match="Existing shard has size of 3 bytes, but expected at least 36 bytes"):
        codec.decode(good[:3])
    with pytest.raises(DataLossError, match="Error decoding shard index: Digest mismatch"):
        codec.decode(flip(-1)(good))


def test_index_is_checked_against_the_shard_only_where_its_size_is_known():
    """A reader that has only the index still gets impossible rows refused."""
    layout = shard().shard
    rows = layout.decode_index(np.array([0, 8, 48, 160], "u8").tobytes())
    assert rows.tolist() == [[0, 8], [48, 160]]
    with pytest.raises(DataLossError, match="Invalid shard index entry 0"):
        layout.decode_index(np.array([MISSING, 8, 48, 160], "u8").tobytes())


GIGABYTE = 1 << 30


def zeros(compressor):
    return compressor.compress(bytes(1 << 27)) + compressor.flush()


BOMBS = {
    "zlib": lambda: zeros(zlib.compressobj(1)),
    "gzip": lambda: zeros(zlib.compressobj(1, wbits=31)),
    "bz2": lambda: bz2.compress(bytes(1 << 24)) * 8,
    "lzma": lambda: lzma.compress(bytes(1 << 27), preset=0),
    "zstd": lambda: zstandard.compress(bytes(1 << 28)),
    "zstd-no-size": lambda: zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 28)),
    "lz4": lambda: struct.pack("<i", GIGABYTE) + bytes(4000),
    "blosc": lambda: struct.pack("<4B3I", 2, 1, 0x33, 1, GIGABYTE, 1 << 20, 5000) + bytes(4984),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_refused_before_memory_is_taken(name):
    """What would inflate far past the chunk is refused within little more memory than the chunk has."""
    bomb = BOMBS[name]()
    pipeline = V2Pipeline.from_json({"id": name.split("-")[0]})
    codec = pipeline.bind(ChunkSpec(np.dtype("u1"), (1000,)))
    tracemalloc.start()
    try:
        with pytest.raises(StoreError):
            codec.decode(bomb)
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()


def test_bombs_of_unknown_size_stop_at_the_limit():
    """Text has no fixed size; its compressed form may still not fill the memory."""
    codec = V2Pipeline.from_json({"id": "zstd"}, [{"id": "vlen-utf8"}]).bind(ChunkSpec(np.dtype(object), (2,)))
    with pytest.raises(ResourceExhaustedError, match="larger than the limit"):
        codec.decode(zstandard.compress(bytes(1 << 28)))
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(1 << 28))
    with pytest.raises(ResourceExhaustedError, match="larger than the limit"):
        ZstdCodec(3).bind(ByteSpec()).decode(unsized)


@pytest.mark.parametrize("name", GROWING)
def test_what_is_just_allowed_is_held_once(name):
    """A result of unknown size grows in place: inflating it takes little more memory than it has."""
    size = 60 << 20
    codec = GROWING[name]
    packed = codec.encode(bytes(size))
    tracemalloc.start()
    try:
        whole = codec.decode(packed)
        assert tracemalloc.get_traced_memory()[1] < size + (24 << 20)
    finally:
        tracemalloc.stop()
    assert bytes(whole) == bytes(size)


def test_bomb_behind_a_filter():
    """A filter that is itself a compressor is bounded like the compressor."""
    codec = V2Pipeline.from_json({"id": "zlib"}, [{"id": "zlib", "level": 9}]).bind(ChunkSpec(np.dtype("u1"), (1000,)))
    with pytest.raises(StoreError):
        codec.decode(zlib.compress(zlib.compress(bytes(1 << 26), 9), 9))


@pytest.mark.parametrize("length", [0x80000000, 0xFFFFFFFF, 0x7FFFFFFF, 100])
@pytest.mark.parametrize("name", ["vlen-utf8", "vlen-bytes", "vlen-array"])
def test_hostile_string_lengths(name, length):
    """Lengths beyond the data and negative ones are refused."""
    options = {"id": name, **({"dtype": "<i4"} if name == "vlen-array" else {})}
    codec = V2Pipeline.from_json(None, [options]).bind(ChunkSpec(np.dtype(object), (2,)))
    with pytest.raises(FailedPreconditionError):
        codec.decode(struct.pack("<III", 2, length, 0) + b"abcdefgh")
    with pytest.raises(FailedPreconditionError):
        codec.decode(struct.pack("<III", length, 0, 0))


@pytest.mark.parametrize("after", [b"x", bytes(4), bytes(8)])
@pytest.mark.parametrize("name", ["vlen-utf8", "vlen-bytes", "vlen-array"])
def test_bytes_after_the_last_string_are_refused(name, after):
    """As after any other chunk: numcodecs ignores them.  Lengths count bytes and not characters."""
    options = {"id": name, **({"dtype": "<i4"} if name == "vlen-array" else {})}
    codec = V2Pipeline.from_json(None, [options]).bind(ChunkSpec(np.dtype(object), (2,)))
    good = struct.pack("<II", 2, 4) + "éé".encode() + struct.pack("<I", 0)
    assert len(codec.decode(good)) == 2
    with pytest.raises(FailedPreconditionError, match=f"remaining length: {len(after)}; at byte 16"):
        codec.decode(good + after)


def test_json2_does_not_believe_its_shape():
    """The shape and dtype inside the text are not allocated."""
    codec = V2Pipeline.from_json(None, [{"id": "json2"}]).bind(ChunkSpec(np.dtype(object), (2,)))
    for text in (
        b'[1,"|O",[1000000000000]]',
        b'[1,"<i4",[2]]',
        b'[[1,2],"|O",[2]]',
        b"[" * 100000,
        b"{}",
        b"3",
        b'["a"]',
        b"\xff",
        b"",
    ):
        with pytest.raises(FailedPreconditionError, match="json2"):
            codec.decode(text)


def listed(text, *, count=2, shape=None):
    """Decode what a chunk of objects holds, under either notation."""
    name = "json2" if isinstance(text, str) else "msgpack2"
    data = text.encode() if isinstance(text, str) else text
    spec = ChunkSpec(np.dtype(object), shape or (count,))
    return V2Pipeline.from_json(None, [{"id": name}]).bind(spec).decode(data)


def packed(*items):
    return bytes([0x90 + len(items)]) + b"".join(items)


END = (msgpack.packb("|O"), msgpack.packb([2]))
MANY = 50_000


def packed_lists(count, item):
    return b"\xdc" + struct.pack(">H", count) + (b"\xdd" + struct.pack(">I", MANY) + item * MANY) * count


SWELLING = {
    "json lists": lambda: "[" + "[]," * (12 * MANY) + '1,"|O",[2]]',
    "json dicts": lambda: "[[" + ",".join(["{}"] * (8 * MANY)) + '],1,"|O",[2]]',
    "json full lists": lambda: "[[" + ",".join(["[0]"] * (8 * MANY)) + '],1,"|O",[2]]',
    "json short texts": lambda: "[[" + ",".join(['"ab"'] * (8 * MANY)) + '],1,"|O",[2]]',
    "json numbers": lambda: "[[" + ",".join(["1e9"] * (12 * MANY)) + '],1,"|O",[2]]',
    "msgpack lists": lambda: packed(packed_lists(6, b"\x90"), b"\xc0", *END),
    "msgpack dicts": lambda: packed(packed_lists(6, b"\x80"), b"\xc0", *END),
    "msgpack numbers": lambda: packed(packed_lists(32, b"\xcd\x40\x40"), b"\xc0", *END),
}


@pytest.mark.parametrize("name", SWELLING)
def test_lists_that_swell_are_refused(tune, name):
    """What a few bytes of text make of memory is limited, whatever they are; none takes much more than the limit."""
    free = 1 << 20
    tune("codec", FREE_BYTES=free)
    text = SWELLING[name]()
    limit = 4 * (free + len(text)) + 2 * 128
    tracemalloc.start()
    try:
        with pytest.raises(ResourceExhaustedError, match=f"larger than the limit of {limit} bytes"):
            listed(text)
        assert tracemalloc.get_traced_memory()[1] < limit + (4 << 20)
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "item",
    ["[]", "{}", "[0]", "[[1.5]]", '{"a":1.5}', '{"a":{"b":[]}}', '"ab"', "1e9", "123456", "null", '[1e9,"x",{}]'],
)
def test_what_swells_is_not_counted_too_low(item):
    """Objects take no more memory than what they are taken for when it is compared with the limit."""
    text = "[" + ",".join([item] * 20_000) + "]"
    tracemalloc.start()
    try:
        kept = json.loads(text)
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(kept) == 20_000
    assert taken <= object_list.parsed_size(text)


def test_lists_of_many_elements_are_read(tune):
    """The limit grows with the elements of a chunk, and signs of JSON within texts are no objects."""
    tune("codec.numcodecs", FREE_BYTES=0)
    count = 100_000
    words = [f"word {number}" for number in range(count)]
    whole = [*words, "|O", [count]]
    assert listed(json.dumps(whole), count=count).tolist() == words
    assert listed(msgpack.packb(whole), count=count).tolist() == words
    brackets = '{["\\' * count
    assert listed(json.dumps([brackets, 1, "|O", [2]])).tolist() == [brackets, 1]


@pytest.mark.parametrize("item", [
    b"\xd6\xff" + bytes(4), b"\xd7\xff" + bytes(8), b"\xc7\x0c\xff" + bytes(12), b"\xd4\x05a", b"\xc7\x00\x05", b"\x81\xd4\x05a\x01", b"\x91\xd6\xff" + bytes(4),
    b"\x81\x01\x02", b"\x91" * 3000 + b"\x01", b"\xdd\x7f\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", b"\xdb\x7f\xff\xff\xffab", b"\xa2\xff\xff", b"\xc1", b"",
], ids=lambda item: item[:8].hex())  # fmt: skip
def test_msgpack_takes_plain_values_only(item):
    """Extension types (timestamps among them), keys that are no text, damage, and lengths that lie are refused."""
    assert listed(packed(b"\xc0", b"\xc0", *END)).tolist() == [None, None]
    with pytest.raises(FailedPreconditionError, match="Invalid msgpack2 data"):
        listed(packed(item, b"\xc0", *END))
    with pytest.raises(FailedPreconditionError, match="Invalid msgpack2 data"):
        listed(packed(b"\xc0", b"\xc0", *END) + b"\xc0")


def test_msgpack_does_not_believe_its_shape():
    """The shape and dtype inside the data are not allocated."""
    for items in ([1, "|O", [10**12]], [1, "<i4", [2]], [[1, 2], "|O", [2]], [1], 3, {}, {"a": 1}):
        with pytest.raises(FailedPreconditionError, match="msgpack2"):
            listed(msgpack.packb(items))


@pytest.mark.parametrize(("name", "package"), [("msgpack2", "msgpack"), ("pcodec", "pcodec"), ("zfpy", "zfpy")])
def test_a_missing_package_is_named(monkeypatch, name, package):
    """An array whose codec needs a package that is not there says how to install it."""
    monkeypatch.setitem(sys.modules, package, None)
    metadata = {"filters": [{"id": name}], "compressor": None, "dtype": "|O" if name == "msgpack2" else "<f4"}
    metadata |= {"shape": [2], "chunks": [2], "fill_value": None, "order": "C", "zarr_format": 2}
    context = fsstore.Context()
    store = fsstore.KvStore.open("memory://", context=context).result()
    store[".zarray"] = json.dumps(metadata).encode()
    with pytest.raises(UnimplementedError, match=rf'"{name}" needs {package}.*fsstore\[codecs\]'):
        fsstore.open({"driver": "zarr", "kvstore": "memory://"}, context=context).result()


def test_versions_of_pcodec_that_damage_can_abort_are_refused(monkeypatch):
    """pcodec before 1.0.4 ends the process when damaged data ask for more memory than there is."""
    import pcodec

    monkeypatch.setattr(pcodec, "__version__", "0.3.6")
    with pytest.raises(UnimplementedError, match=r"pcodec 1\.0\.4 or newer"):
        parse_compressor({"id": "pcodec"})


NUMBERS = np.cumsum(np.random.default_rng(3).normal(size=(20, 30)), axis=1)


def numeric(options, shape=NUMBERS.shape, dtype="f8"):
    return V2Pipeline.from_json(options).bind(ChunkSpec(np.dtype(dtype), shape))


@pytest.mark.parametrize(
    "options",
    [
        {"id": "pcodec"},
        {"id": "zfpy"},
        {"id": "zfpy", "mode": 2, "rate": 9},
        {"id": "zfpy", "mode": 4, "tolerance": 0.01},
    ],
    ids=str,
)
def test_numbers_that_are_cut_off_or_of_another_chunk_are_refused(options):
    """Each cut, and data of more or fewer numbers or of another size, is an error; so is what follows pcodec's end."""
    codec = numeric(options)
    good = bytes(codec.encode(NUMBERS))
    for length in range(0, len(good), 7 if options["id"] == "pcodec" else 8):
        with pytest.raises(FailedPreconditionError):
            codec.decode(good[:length])
    with pytest.raises(FailedPreconditionError):
        codec.decode(good + b"junk")
    if options.get("mode") == 2:
        with pytest.raises(FailedPreconditionError, match="End of data expected; remaining length: 8;"):
            codec.decode(good + b"junkjunk")
    for shape, dtype in (((20, 31), "f8"), ((20, 29), "f8"), ((20, 30), "f4")):
        other = bytes(numeric(options, shape, dtype).encode(np.ones(shape, dtype)))
        with pytest.raises(FailedPreconditionError):
            codec.decode(other)


def test_bombs_of_numbers_are_refused_before_memory_is_taken():
    """A header that promises 2^48 numbers, or blocks of four dimensions for each, asks for no memory."""
    small = bytes(numeric({"id": "zfpy"}, (4,)).encode(np.ones(4)))
    huge = (1 << 48) - 1
    bits = int.from_bytes(small[4:12], "little")
    bomb = small[:4] + ((bits & 0b1111) | huge << 4 | bits >> 52 << 52).to_bytes(8, "little") + small[12:]
    many = bytes(numeric({"id": "pcodec"}, (1 << 22,)).encode(np.ones(1 << 22)))
    tracemalloc.start()
    try:
        with pytest.raises(FailedPreconditionError):
            numeric({"id": "zfpy"}, (4,)).decode(bomb)
        with pytest.raises(FailedPreconditionError):
            numeric({"id": "pcodec"}, (4,)).decode(many)
        thin = numeric({"id": "zfpy"}, (4000, 1, 1, 1))
        with pytest.raises(FailedPreconditionError):
            thin.decode(bytes(thin.encode(np.ones((4000, 1, 1, 1))))[:800])
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(StoreError, match="cannot encode"):
        numeric({"id": "zfpy"}, (100_000, 1, 1, 1)).encode(np.ones((100_000, 1, 1, 1)))


@pytest.mark.parametrize("options", [
    {"id": "pcodec", "level": 99}, {"id": "pcodec", "level": "x"}, {"id": "pcodec", "mode_spec": "none"}, {"id": "pcodec", "equal_pages_up_to": 0}, {"id": "pcodec", "extra": 1},
    {"id": "pcodec", "delta_encoding_order": 900}, {"id": "zfpy", "mode": 9}, {"id": "zfpy", "mode": 1}, {"id": "zfpy", "rate": "x", "mode": 2}, {"id": "zfpy", "extra": 1},
], ids=str)  # fmt: skip
def test_odd_options_of_codecs_of_numbers_are_refused(options):
    """What the packages do not take is said when the array is opened."""
    with pytest.raises(JsonError):
        parse_compressor(options)


@pytest.mark.parametrize(("name", "dtype", "shape"), [
    ("pcodec", ">i4", (4,)), ("pcodec", "u1", (4,)), ("pcodec", "?", (4,)), ("pcodec", "c8", (4,)), ("pcodec", "V4", (4,)), ("zfpy", "u4", (4,)), ("zfpy", ">f4", (4,)),
    ("zfpy", "f2", (4,)), ("zfpy", "f4", (2, 2, 2, 2, 2)),
])  # fmt: skip
def test_numbers_that_a_codec_does_not_know_are_refused_when_bound(name, dtype, shape):
    """Types, byte orders and ranks that numcodecs cannot encode raise before any data is seen."""
    with pytest.raises(StoreError, match="does not fit"):
        numeric({"id": name}, shape, dtype)


@pytest.mark.parametrize(
    "text", [b"AAAA!AAA", b"AAAA AAA", b"AAAAAAA", b"AAAAAAAAAAAA", b"AAAAAA==", b"=AAAAAAA", b"AAA\nAAAA"]
)
def test_base64_is_strict(text):
    """Other letters, missing ones and lengths that differ are damage; numcodecs leaves out what does not belong."""
    codec = V2Pipeline.from_json(None, [{"id": "base64"}]).bind(ChunkSpec(np.dtype("u1"), (6,)))
    assert bytes(codec.decode(b"AAAAAAAA")) == bytes(6)
    with pytest.raises(FailedPreconditionError):
        codec.decode(text)


@pytest.mark.parametrize("read", [parse_compressor, lambda value: parse_filters([value])], ids=["compressor", "filter"])
def test_codecs_that_run_code_are_refused(read):
    """Pickle is refused by name, others that are not on the list are unknown or unsupported."""
    with pytest.raises(PermissionDeniedError, match="runs code"):
        read({"id": "pickle"})
    with pytest.raises(UnimplementedError, match="not supported: it does not say the shape"):
        read({"id": "msgpack"})
    with pytest.raises(JsonError, match='"os.system" is not registered'):
        read({"id": "os.system"})
    with pytest.raises(StoreError, match="runs code"):
        CodecChain.from_json([LITTLE, {"name": "numcodecs.pickle"}])


@pytest.mark.parametrize("options", [
    {"id": "delta", "dtype": "|O"}, {"id": "astype", "encode_dtype": "|O", "decode_dtype": "<i4"}, {"id": "delta", "dtype": "<i8"}, {"id": "delta", "dtype": "nonsense"},
    {"id": "fixedscaleoffset", "dtype": "<f4", "astype": "S0", "scale": 1, "offset": 0}, {"id": "vlen-array", "dtype": "|O"}, {"id": "shuffle", "elementsize": "x"}, {"id": "quantize"},
    {"id": "lzma", "filters": [{"id": 33, "dict_size": 1 << 31}], "format": 3},
], ids=str)  # fmt: skip
def test_filters_that_do_not_fit_are_refused_when_bound(options):
    """Options that numcodecs or the chunk cannot agree with raise a `StoreError`, before any data is seen."""
    with pytest.raises(StoreError):
        V2Pipeline.from_json(None, [options]).bind(ChunkSpec(np.dtype("<i4"), (4,))).encode(DATA)


def test_damaged_filters():
    """Damage behind filters is found by size, checksum or content."""
    for filters, size in (
        ([{"id": "fletcher32"}], 20),
        ([{"id": "crc32"}], 20),
        ([{"id": "delta", "dtype": "<i4"}], 16),
    ):
        codec = V2Pipeline.from_json(None, filters).bind(ChunkSpec(DATA.dtype, (4,)))
        good = bytes(codec.encode(DATA))
        assert len(good) == size
        for bad in (good[:-1], good + b"x", b""):
            with pytest.raises(FailedPreconditionError):
                codec.decode(bad)
    checked = V2Pipeline.from_json(None, [{"id": "crc32"}]).bind(ChunkSpec(DATA.dtype, (4,)))
    with pytest.raises(FailedPreconditionError, match="crc32"):
        checked.decode(flip(6)(bytes(checked.encode(DATA))))


def test_bitrounding_integers_is_refused():
    """A filter that numcodecs cannot apply to the data raises when encoding."""
    codec = V2Pipeline.from_json(None, [numcodecs.BitRound(3).get_config()]).bind(ChunkSpec(DATA.dtype, (4,)))
    with pytest.raises(StoreError, match="cannot encode"):
        codec.encode(DATA)


def deep(levels):
    inner = [LITTLE]
    for _ in range(levels):
        inner = [
            {
                "name": "sharding_indexed",
                "configuration": {"chunk_shape": [4], "codecs": inner, "index_codecs": [LITTLE]},
            }
        ]
    return inner


@pytest.mark.parametrize("inner", ["crc32", "fletcher32", "adler32"])
@pytest.mark.parametrize("outer", ["zlib", "gzip"])
def test_damage_behind_a_filter(outer, inner):
    """A stream that a filter hands on as an array is checked to its end like one of bytes."""
    bound = V2Pipeline.from_json({"id": inner}, [{"id": outer}]).bind(ChunkSpec(np.dtype("u1"), (40,)))
    data = np.arange(40, dtype="u1")
    checksum = numcodecs.get_codec({"id": inner})
    encoded = bytes(checksum.decode(bytes(bound.encode(data))))
    assert bound.decode(bytes(checksum.encode(encoded))).tolist() == data.tolist()
    for damaged in (encoded[:-1] + bytes([encoded[-1] ^ 1]), encoded + b"j", encoded[:-3]):
        with pytest.raises(FailedPreconditionError):
            bound.decode(bytes(checksum.encode(damaged)))


@pytest.mark.parametrize(
    "filters",
    [
        [{"id": "zlib"}, {"id": "delta", "dtype": "u1"}],
        [{"id": "blosc"}, {"id": "astype", "encode_dtype": "u2", "decode_dtype": "u1"}],
    ],
    ids=str,
)
def test_filters_of_elements_after_a_compressor_are_refused(filters):
    """What is compressed has no elements: a filter that wants some would write what it cannot read."""
    with pytest.raises(StoreError, match="compressed bytes"):
        V2Pipeline.from_json(None, filters).bind(ChunkSpec(np.dtype("u1"), (40,)))


@pytest.mark.parametrize("levels", [20, 100, 150, 400, 3000])
def test_deeply_nested_shards_are_refused_or_work(levels):
    """However deep the shards nest, reading the chain gives a chain or a `JsonError`."""
    for read in (CodecChain.from_json, ChainSpec.from_json):
        try:
            chain = read(deep(levels))
        except JsonError as error:
            assert "nested too deeply" in str(error)
            continue
        assert chain.to_json() == deep(levels)
        if isinstance(chain, CodecChain):
            codec = chain.bind(ChunkSpec(DATA.dtype, (4,), 0))
            assert (codec.decode(codec.encode(DATA)) == DATA).all()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=4)
    | st.sampled_from(["<i4", "|O", "C", "little", "end", "bytes", "x" * 50]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "name", "configuration", "level", "order", "dtype", "codecs", "x"]),
            inner,
            max_size=3,
        )
    ),
    max_leaves=6,
)
MEMBERS = [
    "level", "checksum", "cname", "clevel", "shuffle", "typesize", "blocksize", "order", "endian", "chunk_shape", "codecs", "index_codecs", "index_location", "dtype",
    "astype", "elementsize", "digits", "keepbits", "offset", "scale", "encode_dtype", "decode_dtype", "labels", "format", "preset", "filters", "check", "acceleration", "location",
    "axis", "dist", "shape", "raw", "header", "tables", "index", "key", "var", "member", "indtypes", "outdtypes", "id_map",
]  # fmt: skip
NAMES = [
    *registry.codecs.names(),
    *sorted(numcodecs_v2.ARRAY_CODECS | numcodecs_v2.BYTES_CODECS | numcodecs_v2.OBJECT_CODECS),
    *registry.codecs_v2.names(),
]


@pytest.mark.parametrize("text", [",", "i4,,i4", "i4,?é", "(1,)0", "O", "V0", "nothing"])
@pytest.mark.parametrize(
    "options",
    [
        {"id": "imagecodecs_delta", "dtype": ...},
        {"id": "record_member", "member": "a", "dtype": ...},
        {"id": "fixedscaleoffset", "offset": 0, "scale": 1, "dtype": "<f4", "astype": ...},
    ],
    ids=lambda options: options["id"],
)
def test_data_types_that_are_none(options, text):
    """A codec whose option names no data type of a fixed size is refused, whatever NumPy makes of the text."""
    filled = {name: text if value is ... else value for name, value in options.items()}
    with pytest.raises(StoreError):
        V2Pipeline.from_json(None, [filled]).bind(ChunkSpec(np.dtype("<f4"), (4,)))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(NAMES), st.dictionaries(st.sampled_from(MEMBERS), JSON | st.integers(-3, 300), max_size=3), JSON)
def test_odd_configurations_give_codecs_or_store_errors(name, options, other):
    """Whatever the JSON, reading, binding and using a codec raises nothing but `StoreError`."""
    data = DATA.copy()

    def use(chain):
        codec = chain.bind(ChunkSpec(DATA.dtype, (4,)))
        codec.decode(bytes(codec.encode(data)))
        codec.decode(bytes(16))

    plain = name in registry.codecs.names() or name.startswith("imagecodecs_")
    v3 = {"name": name if plain else "numcodecs." + name, "configuration": options}
    for attempt in (
        lambda: use(CodecChain.from_json([v3, LITTLE])), lambda: use(CodecChain.from_json([LITTLE, v3])), lambda: CodecChain.from_json(other),
        lambda: ChainSpec.from_json([v3]), lambda: ChainSpec.from_json(other), lambda: resolve(ChainSpec.from_json([v3]), ChunkSpec(DATA.dtype, (4,))),
        lambda: use(V2Pipeline.from_json({"id": name, **options})), lambda: use(V2Pipeline.from_json(None, [{"id": name, **options}])),
        lambda: V2Pipeline.from_json(other, other, other), lambda: merge_specs({"driver": "zarr3", "codecs": [v3]}, other),
    ):  # fmt: skip
        try:
            attempt()
        except StoreError:
            pass
