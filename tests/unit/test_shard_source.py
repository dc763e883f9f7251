"""Shards within shards, read while they are rewritten: what is found is of one version, and indexes are read once."""

from __future__ import annotations

import numpy as np
import pytest

from fsstore.chunk.open_chunks import ByteRange
from fsstore.chunk.shard_source import EntriesInParts, EntryRun, ShardSource
from fsstore.codec.chain import CodecChain
from fsstore.codec.contract import ChunkSpec
from fsstore.codec.sharding import NO_SIZE, are_sound
from fsstore.errors import AbortedError, DataLossError, OutOfRangeError
from fsstore.kvstore.contract.driver import ReadResult
from fsstore.kvstore.contract.request import resolve_range
from fsstore.runtime.execution import drive

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
    with pytest.raises(AbortedError, match="changed by other writers at every attempt"):
        drive(source(Changing(-1)).read_many([ByteRange((("k", 3), 2))]))


RUNS = [
    EntryRun.within(("k", 3), np.array([2, 0])),
    EntryRun.within(("k", 12), np.arange(4)),
    [(("k", 3), 2), (("k", 3), 0)],
    EntryRun([("k", 3), ("k", 12), ("k", 4)], np.array([0, 1, 1, 2, 0]), np.array([2, 3, 1, 0, 1])),
    [(("k", number % 3), number % 4) for number in range(12)],
]


@pytest.mark.parametrize("change", range(1, 8))
@pytest.mark.parametrize("lost", [4, 60, 200, 240])
@pytest.mark.parametrize("run", RUNS, ids=["run", "all", "list", "shards", "long list"])
def test_one_version_of_many_entries(run, lost, change):
    """The same for a run of entries, whose answers are columns."""
    base = Changing(change, change + 1, lost=lost)
    found = drive(source(base).read_whole(run))
    assert len(found) == len(run)
    values = {tuple(np.frombuffer(each.value, "i4")) for each in found if each.state == "value"}
    assert values <= {(int(each.generation),) * 4 for each in found if each.state == "value"}
    if len({shard for shard, _ in run}) == 1:
        assert len(values) < 2


class Counting(Changing):
    """A base that says how many ranges it was asked for."""

    asked = 0

    async def read_many(self, ranges):
        self.asked += len(ranges)
        return await super().read_many(ranges)


@pytest.mark.parametrize(("numbers", "ranges"), [((0, 1), 1), ((1, 0), 1), ((0, 2), 2), ((0,), 1)])
def test_neighbours_are_read_as_one(numbers, ranges):
    """Entries next to each other in the file are one range; each answer is its part."""
    base = Counting()
    two = ShardSource(base, CHAIN.shard)
    found = drive(two.read_whole(EntryRun.within("k", np.array(numbers))))
    assert base.asked == 1 + ranges
    expected = drive(two.read_many([ByteRange(("k", number)) for number in numbers]))
    assert [bytes(each.value) for each in found] == [bytes(each.value) for each in expected]
    assert [each[2:] for each in found] == [each[2:] for each in expected]


def test_cut_off_of_many_entries():
    """Damage is told in the same words."""
    with pytest.raises(DataLossError, match="Error reading key k: the shard is cut off: beyond the end"):
        drive(ShardSource(CutOff(), CHAIN.shard).read_whole(EntryRun.within("k", np.array([2, 3]))))
    with pytest.raises(AbortedError, match="changed by other writers at every attempt"):
        drive(source(Changing(-1)).read_whole(EntryRun.within(("k", 3), np.array([2]))))


def test_entries_in_parts():
    """The index of a shard is read once for all its parts, and again where it changed; generations are remembered."""
    base = Counting(4)
    parts = EntriesInParts(base, CHAIN.shard, complete=True)
    for begin, calls in ((0, 2), (4, 3), (8, 4), (12, 7)):
        found = drive(parts.read_whole(EntryRun.within("k", np.arange(begin, begin + 4))))
        assert base.calls == calls
        assert {each.generation for each in found} == {b"1" if begin == 12 else b"0"}
    assert parts.generations == {b"0", b"1"}
    assert base.asked == 7


class TwoKeys(Changing):
    """A base of shards that change independently: a key is its own version, times ten for each change of its own."""

    def __init__(self, *changes):
        super().__init__()
        self.of_key = {}
        self.changes = changes

    async def read_many(self, ranges):
        found = []
        for each in ranges:
            self.version = self.of_key.get(each.identity, 0)
            found += await super().read_many([each])
        if self.calls in self.changes:
            self.of_key["b"] = self.of_key.get("b", 0) + 1
        return found


def test_only_what_changed_is_read_again():
    """Of two shards of which one is rewritten in between, that one is read again; each is of one version."""
    base = TwoKeys(2)  # the calls count ranges: after both indexes
    layout = CHAIN.shard
    run = EntryRun(["a", "b"], np.array([0, 1, 0, 1]), np.array([0, 0, 5, 5]))
    found = drive(ShardSource(base, layout).read_whole(run))
    generations = [each.generation for each in found if each.state == "value"]
    assert generations == [b"0", b"1", b"0", b"1"]
    assert base.calls == 2 + 4 + 1 + 2


INDEXES = {
    "in order": ([[0, 4], [4, 4], [8, 4]], True),
    "missing": ([[0, 4], [2**64 - 1, 2**64 - 1], [8, 4]], True),
    "half missing": ([[0, 4], [2**64 - 1, 4], [8, 4]], False),
    "nonsense": ([[0, 4], [2**63, 2**63], [8, 4]], False),
    "outside": ([[0, 4], [4, 4], [18, 4]], False),
    "overlap": ([[0, 4], [2, 4], [8, 4]], False),
    "the same": ([[4, 4], [4, 4], [8, 4]], True),
}


@pytest.mark.parametrize(("rows", "sound"), INDEXES.values(), ids=INDEXES)
@pytest.mark.parametrize("other", [20, NO_SIZE])
def test_rows_of_several_shards_are_checked_together(rows, sound, other):
    """They are sound exactly if those of each shard pass by themselves, where its size is known."""
    layout = CHAIN.shard
    good = np.array([[0, 4], [4, 4]], np.uint64)
    entries = np.concatenate([good, np.array(rows, np.uint64)])
    owners = np.array([0, 0, 1, 1, 1])
    assert are_sound(entries, owners, [other, 20]) is sound
    if sound:
        layout.checked(entries[2:], range(3), 20)
    else:
        with pytest.raises(DataLossError):
            layout.checked(entries[2:], range(3), 20)


def test_a_run_is_a_sequence():
    """A run of identities has the length, the elements and the slices of the list."""
    run, pairs = EntryRun.within("k", np.arange(5) * 3), [("k", 0), ("k", 3), ("k", 6), ("k", 9), ("k", 12)]
    assert list(run) == pairs
    assert (len(run), run[1], run[-1]) == (5, pairs[1], pairs[-1])
    assert list(run[1:3]) == pairs[1:3]
