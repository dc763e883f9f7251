"""Shards within shards, read while they are rewritten: what is found is of one version, and indexes are read once."""

from __future__ import annotations

import numpy as np
import pytest

from fsstore._runtime import drive
from fsstore.chunk.source import ByteRange, ShardSource
from fsstore.codec.chain import CodecChain
from fsstore.codec.contract import ChunkSpec
from fsstore.errors import AbortedError, DataLossError, OutOfRangeError
from fsstore.kvstore.byte_range import resolve_range
from fsstore.kvstore.contract import ReadResult

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
INDEX = [LITTLE, {"name": "crc32c"}]


def sharding(side, *codecs):
    """Return the configuration of shards with sub-chunks of one size."""
    configuration = {"chunk_shape": [side], "codecs": list(codecs), "index_codecs": INDEX}
    return {"name": "sharding_indexed", "configuration": configuration}


CHAIN = CodecChain.from_json([sharding(16, sharding(4, LITTLE))]).bind(ChunkSpec(np.dtype("i4"), (256,), -1))
INNER = CHAIN.shard.inner


class Changing:
    """A base with one shard of shards, all of whose elements are the version, which grows after some calls.

    `lost`: how many elements are missing from later versions.
    """

    def __init__(self, *changes, lost=4):
        self.changes, self.calls, self.version, self.lost = changes, 0, 0, lost

    def remembering(self):
        return self

    def describe(self, identity):
        return f"key {identity}"

    async def read_many(self, ranges):
        # later versions lack sub-chunks, so that entries move
        array = np.full(256, self.version, "i4")
        array[: self.lost * (self.version % 5)] = -1
        data = bytes(CHAIN.encode(array))
        generation = str(self.version).encode()
        found = []
        for _, start, stop, _ in ranges:
            low, high = resolve_range(start, stop, len(data))
            found.append(ReadResult("value", data[low:high], generation, 0.0))
        self.calls += 1
        self.version += self.calls in self.changes or -1 in self.changes
        return found


def source(base):
    """Return the innermost sub-chunks over a base."""
    return ShardSource(ShardSource(base, CHAIN.shard), INNER.shard)


def test_the_outer_index_is_read_once():
    """Two sub-chunks of two inner shards cost three calls: the outer index, the inner indexes, the sub-chunks."""
    base = Changing()
    found = drive(source(base).read_many([ByteRange((("k", 1), 2)), ByteRange((("k", 0), 3))]))
    assert [np.frombuffer(answer.value, "i4").tolist() for answer in found] == [[0] * 4] * 2
    assert base.calls == 3


@pytest.mark.parametrize("change", range(1, 8))
def test_one_version(change):
    """A shard rewritten between any two calls is read again; every answer is of the version that it names."""
    base = Changing(change, change + 1)
    for answer in drive(source(base).read_many([ByteRange((("k", 3), 2)), ByteRange((("k", 2), 0))])):
        values = np.frombuffer(answer.value, "i4")
        assert values.tolist() == [int(answer.generation)] * 4


@pytest.mark.parametrize("change", range(1, 8))
def test_one_version_of_a_shard_that_shrinks(change):
    """A shard rewritten so short that an entry of before would begin beyond its end is read again."""
    base = Changing(change, lost=240)
    [answer] = drive(source(base).read_many([ByteRange((("k", 15), 3))]))
    assert np.frombuffer(answer.value, "i4").tolist() == [int(answer.generation)] * 4


class CutOff(Changing):
    """A base whose shard has an index and nothing before it."""

    async def read_many(self, ranges):
        if any(0 < each.start < 1000 or (each.start == 0 and each.stop) for each in ranges):
            raise OutOfRangeError("beyond the end")
        return await super().read_many(ranges)


def test_cut_off():
    """A shard that ends before an entry and was not rewritten is damaged; it is asked once whether it was."""
    base = CutOff()
    with pytest.raises(DataLossError, match="Error reading key k: the shard is cut off: beyond the end"):
        drive(ShardSource(base, CHAIN.shard).read_many([ByteRange(("k", 2))]))
    assert base.calls == 2


def test_never_at_rest():
    """A shard that changes with every call is given up."""
    with pytest.raises(AbortedError, match="again and again"):
        drive(source(Changing(-1)).read_many([ByteRange((("k", 3), 2))]))
