"""Large shards read part by part: what is read is of one version, and damage is told as when they are read at once."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

import fsstore as ts
from fsstore.chunk.read import reader as chunk_read
from fsstore.chunk.read import window as chunk_window
from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import Features
from fsstore.kvstore.memory import MemoryDriver

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def sharding(side, *codecs):
    """Return the configuration of shards with squares as sub-chunks, whose index has no checksum."""
    configuration = {"chunk_shape": [side] * 2, "codecs": list(codecs), "index_codecs": [LITTLE]}
    return {"name": "sharding_indexed", "configuration": configuration}


TRANSPOSE = {"name": "transpose", "configuration": {"order": [1, 0]}}
CHAINS = {
    "plain": [sharding(4, LITTLE)],
    "compressed": [sharding(4, LITTLE, {"name": "zstd", "configuration": {"level": 1}})],
    "transposed": [TRANSPOSE, sharding(4, TRANSPOSE, LITTLE)],
    "shards in shards": [sharding(8, sharding(4, LITTLE))],
    "large shards in shards": [sharding(16, sharding(4, LITTLE))],
}


@pytest.fixture(params=[0, 32])
def in_parts(request, tune):
    """Shards of more than 256 bytes are read in parts, by columns of entries or one by one."""
    tune("chunk", REQUEST_BYTES=256, INLINE_READ_BYTES=16, COLUMNS_FROM=request.param)


def opened(codecs, values, threads=2, cache_bytes=0):
    """Return an array of shards of 32² with values."""
    grid = {"name": "regular", "configuration": {"chunk_shape": [32, 32]}}
    metadata = {"shape": values.shape, "data_type": "int32", "codecs": codecs, "chunk_grid": grid}
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}
    spec["context"] = {"data_copy_concurrency": {"limit": threads}}
    spec["context"]["cache_pool"] = {"total_bytes_limit": cache_bytes}
    store = ts.open(spec, create=True).result()
    store.write(values).result()
    return store


def counted_reads(monkeypatch, then):
    """Have `then(number)` awaited after each batch that a store in memory answers; return what counts them."""
    plain, counted = MemoryDriver.read_many, SimpleNamespace(number=0)

    async def read_many(self, reads):
        answers = await plain(self, reads)
        counted.number += 1
        await then(counted.number)
        return answers

    monkeypatch.setattr(MemoryDriver, "read_many", read_many)
    return counted


@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
def test_parts_are_what_numpy_selects(codecs, in_parts):
    """All of several shards, some of which are missing or at the edge, and parts of them."""
    values = np.arange(70 * 60, dtype="i4").reshape(70, 60)
    values[40:62, 7:22] = values[:32, 32:] = 0
    store = opened(codecs, values)
    for part in (
        np.s_[:, :],
        np.s_[:32, :32],
        np.s_[3:66, 2:51],
        np.s_[:, 5],
        np.s_[::5, ::3],
        np.s_[60:3:-4, 50::-1],
        np.s_[::3, 40:],
        np.s_[33:62, 1:31],
    ):
        assert (store[part].read().result() == values[part]).all()


@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
def test_listed_positions_are_what_numpy_selects(codecs, in_parts):
    """Points, lists of each dimension and masks, in order or not, of shards some of which are missing."""
    random = np.random.default_rng(5)
    values = np.arange(70 * 60, dtype="i4").reshape(70, 60)
    values[40:62, 7:22] = values[:32, 32:] = 0
    store = opened(codecs, values)
    for count in (1, 5, 400):
        rows, columns = random.integers(0, 70, count), random.integers(0, 60, count)
        assert (store.vindex[rows, columns].read().result() == values[rows, columns]).all()
        assert (store.vindex[columns, rows[::-1] % 60].read().result() == values[columns, rows[::-1] % 60]).all()
        for lists in (np.sort(rows), np.sort(columns)), (rows, columns):
            assert (store.oindex[lists].read(order="F").result() == values[np.ix_(*lists)]).all()
        assert (store.oindex[rows, 7].read().result() == values[rows, 7]).all()
        mask = random.random(values.shape) < count / 500
        assert (store.vindex[mask].read().result() == values[mask]).all()


def test_listed_positions_read_an_index_once(in_parts):
    """However the sub-chunks of a shard are cut into windows, its index is read once, and each sub-chunk once."""
    store = opened(CHAINS["plain"], np.ones((64, 64), "i4"))
    rows = np.arange(0, 64, 3)
    recorded = []
    plain = MemoryDriver.read_many

    async def recording(self, reads):
        recorded.extend((each.key, each.start, each.stop) for each in reads)
        return await plain(self, reads)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(MemoryDriver, "read_many", recording)
        assert (store.oindex[rows, [3, 40]].read().result() == 1).all()
    assert len(recorded) == len(set(recorded))
    assert sum(start is not None and start < 0 for _, start, _ in recorded) == 4


@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize(("threads", "waits"), [(1, False), (2, False), (2, True)])
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_one_version_of_a_shard(codecs, threads, waits, listed, cache_bytes, in_parts, monkeypatch, tune):
    """A shard rewritten, deleted or written anew between the reads of its parts is read again, as a whole.

    Cached parts, too, are of the version that is there, since each read asks for it.
    """
    if waits:
        monkeypatch.setattr(MemoryDriver, "features", Features(create_only=True, conditional_write=True))
        tune("chunk", FLIGHT_BYTES=256)
    store = opened(codecs, np.full((64, 32), 1, "i4"), threads, cache_bytes)
    other = opened(codecs, np.full((64, 32), 2, "i4"))
    versions = [bytes(each.kvstore["c/0/0"]) for each in (store, other)] + [None]
    fetch, fetched = chunk_window.fetch, []

    async def changing(window):
        answers = await fetch(window)
        fetched.append(window)
        if len(fetched) in changes:
            await store.kvstore.write("c/0/0", versions[len(fetched) % 3])
        return answers

    monkeypatch.setattr(chunk_read, "fetch", changing)
    for first in range(1, 12, 2):
        for second in range(first, 15, 3):
            store.kvstore["c/0/0"] = versions[0]
            fetched.clear()
            changes = first, second
            found = (store.oindex[np.arange(64), np.arange(32)] if listed else store).read().result()
            assert (found[:32] == found[0, 0]).all()
            assert (found[32:] == 1).all()


@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("boxes", [2, 12])
def test_joint_reads_see_one_version_of_a_shard(codecs, waits, boxes, monkeypatch, tune):
    """A shard rewritten or deleted between the batches of reads that are made together is one version in each read."""
    if waits:
        monkeypatch.setattr(MemoryDriver, "features", Features(create_only=True, conditional_write=True))
    store = opened(codecs, np.full((64, 32), 1, "i4"))
    other = opened(codecs, np.full((64, 32), 2, "i4"))
    versions = [bytes(each.kvstore["c/0/0"]) for each in (store, other)] + [None]
    changing = []

    async def change(number):
        if number in changing:
            await store.kvstore.write("c/0/0", versions[number % 3])

    tune("chunk.read.queue", FLIGHT_BYTES=640)
    counted = counted_reads(monkeypatch, change)
    mixed = 0
    for first in range(1, 14, 2):
        store.kvstore["c/0/0"] = versions[0]
        changing[:], counted.number = [first, first + 2], 0
        reads = [store[number % 5 :, number:].read() for number in range(boxes)]
        changed_before = False
        for number, read in enumerate(reads):
            found = read.result()
            assert (found[: 32 - number % 5] == found[0, 0]).all()
            assert (found[32 - number % 5 :] == 1).all()
            changed_before |= found[0, 0] != 1
        mixed += changed_before
    assert mixed  # the changes came in the middle of the reads


@pytest.mark.parametrize("codecs", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("fetched_bytes", [640, 1 << 20])
def test_joint_reads_beside_damage_see_one_version_of_a_shard(codecs, waits, fetched_bytes, monkeypatch, tune):
    """Where a damaged sub-chunk fails the batch, the others are read again, still of one version of the shard."""
    if waits:
        monkeypatch.setattr(MemoryDriver, "features", Features(create_only=True, conditional_write=True))
    store = opened(codecs, np.full((64, 32), 1, "i4"))
    other = opened(codecs, np.full((64, 32), 2, "i4"))
    sound, version = [bytes(each.kvstore["c/0/0"]) for each in (store, other)]
    outside = np.array((len(sound) + 99, 64), np.uint64)  # the last entry of the shard
    damaged = sound[:-16] + outside.tobytes()
    changing = []

    async def change(number):
        if number in changing:
            await store.kvstore.write("c/0/0", version if number == changing[0] else sound)

    tune("chunk.read.queue", FLIGHT_BYTES=fetched_bytes)
    counted = counted_reads(monkeypatch, change)
    failed = seen = 0
    for first, then in ((2, 4), (3, 9), (4, 999), (7, 8), (12, 20), (30, 999), (60, 75), (200, 300), (999, 999)):
        store.kvstore["c/0/0"] = damaged
        changing[:], counted.number = [first, then], 0
        reads = [store[number % 5 : 32 - 16 * (number % 3 > 0), number:].read() for number in range(12)]
        for read in reads:
            try:
                found = read.result()
            except StoreError:
                failed += 1
                continue
            assert (found == found[0, 0]).all()
            seen |= int(found[0, 0])
    assert failed
    assert seen == 3  # both versions


def test_joint_reads_beside_damage_of_a_shard_never_at_rest(monkeypatch):
    """A damaged shard that is rewritten at each read is told as an error, and not mixed."""
    store = opened(CHAINS["plain"], np.full((64, 32), 1, "i4"))
    damaged = bytes(store.kvstore["c/0/0"])[:-16] + np.array((6000, 64), np.uint64).tobytes()
    store.kvstore["c/0/0"] = damaged
    busy = False

    async def change(_number):
        nonlocal busy
        if not busy:
            busy = True
            await store.kvstore.write("c/0/0", damaged)
            busy = False

    counted_reads(monkeypatch, change)
    reads = [store[: 16 * (number + 1), 1:].read() for number in range(3)]
    for read in reads[:2]:
        with pytest.raises(StoreError, match='"c/0/0" was changed by other writers at every attempt'):
            read.result()
    with pytest.raises(StoreError):
        reads[2].result()


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((6000, 64), "is invalid for shard of size|the shard is cut off"),
        ((2**64 - 1, 5), "Invalid shard index entry 63"),
        ((2**64 - 8, 16), "Invalid shard index entry 63"),
        ((1, 64), "Shard index entries .* overlap"),
    ],
)
def test_damaged_rows(row, message, in_parts):
    """Where all of a shard is read, all rows of its index are looked at, whichever part they are of."""
    store = opened(CHAINS["plain"], np.full((32, 32), 1, "i4"))
    damaged = bytearray(store.kvstore["c/0/0"])
    damaged[-16:] = np.array(row, np.uint64).tobytes()
    store.kvstore["c/0/0"] = bytes(damaged)
    with pytest.raises(StoreError, match=rf'DATA_LOSS: Error reading "c/0/0": .*({message})'):
        store.read().result()
    assert (store[:28].read().result() == 1).all()
