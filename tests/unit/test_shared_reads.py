"""Reads of up to four megabytes: made by the thread that asks, with a worker's help where decoding takes long."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import fsstore
from fsstore.chunk.read import reader as reading
from fsstore.codec.chain import CodecChain
from fsstore.codec.contract import ChunkSpec
from fsstore.errors import StoreError
from fsstore.runtime import execution

SIDE = 256
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
CRC = {"name": "crc32c"}
ZSTD = {"name": "zstd", "configuration": {"level": 1}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
LZ4 = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 2, "blocksize": 0},
}


def sharded(codecs):
    """Return the codecs of shards with sub-chunks of 128 KiB."""
    configuration = {"chunk_shape": [1, SIDE, SIDE], "codecs": codecs, "index_codecs": [LITTLE, CRC]}
    return [{"name": "sharding_indexed", "configuration": configuration}]


def stored(folder, codecs, chunk=1, shape=(16, SIDE, SIDE), **context):
    """Return an open array of two megabytes that counts, in chunks of so many planes of 128 KiB."""
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{folder}/a/"},
        "metadata": {
            "shape": list(shape),
            "data_type": "uint16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [chunk, SIDE, SIDE]}},
            "codecs": codecs,
        },
    }
    array = fsstore.open(spec, open=True, create=True, context=fsstore.Context(context)).result()
    array[...] = values(shape)
    return array


def values(shape=(16, SIDE, SIDE)):
    """Return elements of which no two planes are alike."""
    return np.arange(np.prod(shape), dtype=np.uint32).reshape(shape).astype(np.uint16)


@pytest.fixture
def threads(decoding_threads, monkeypatch):
    """Return the threads that decode, of two that this machine has."""
    monkeypatch.setattr(execution, "core_count", lambda: 2)
    return decoding_threads


def meet(count, threads, monkeypatch):
    """Let nobody decode his first window before as many threads decode one too."""
    meeting = threading.Barrier(count)
    decode = reading.decode

    def waiting(window, answers):
        if threading.current_thread() not in threads:
            meeting.wait(60)
        decode(window, answers)

    monkeypatch.setattr(reading, "decode", waiting)


@pytest.fixture
def together(threads, monkeypatch):
    """Let nobody decode his first window before somebody else decodes one too; return the threads that decode."""
    meet(2, threads, monkeypatch)
    return threads


@pytest.mark.parametrize(
    ("codecs", "chunk", "part"),
    [
        ([LITTLE, ZSTD], 1, np.s_[:]),
        ([LITTLE, ZSTD], 1, np.s_[:8, 3:]),
        ([LITTLE, ZSTD], 4, np.s_[::2, ::-1, 7]),
        ([LITTLE, GZIP], 1, np.s_[:4]),
        (sharded([LITTLE, ZSTD, CRC]), 16, np.s_[:]),
        (sharded([LITTLE, ZSTD]), 16, np.s_[1:12, 5:]),
        (sharded([LITTLE, GZIP]), 4, np.s_[:]),
    ],
)
def test_who_asks_and_a_worker_decode(tmp_path, together, codecs, chunk, part):
    """Chunks that take long to decode, of files or of shards, are decoded by the thread that waits and by another."""
    found = stored(tmp_path, codecs, chunk)[part].read().result()
    np.testing.assert_array_equal(found, values()[part])
    assert len(set(together)) == 2
    assert threading.current_thread() in together


@pytest.mark.parametrize(
    ("codecs", "part", "context"),
    [
        ([LITTLE], np.s_[:], {}),
        ([LITTLE, CRC], np.s_[:], {}),
        ([LITTLE, LZ4], np.s_[:], {}),
        (sharded([LITTLE]), np.s_[:], {}),
        ([LITTLE, ZSTD], np.s_[:4], {}),
        ([LITTLE, ZSTD], np.s_[:], {"data_copy_concurrency": {"limit": 1}}),
        ([LITTLE, ZSTD], np.s_[:], {"cache_pool": {"total_bytes_limit": 1 << 24}}),
    ],
)
def test_who_asks_decodes_alone(tmp_path, threads, codecs, part, context):
    """What takes no longer than waking a worker, what a cache may hold, and what is limited to a thread is not shared."""
    found = stored(tmp_path, codecs, **context)[part].read().result()
    np.testing.assert_array_equal(found, values()[part])
    assert set(threads) == {threading.current_thread()}


def test_as_many_threads_decode_as_were_asked_for(tmp_path, decoding_threads, monkeypatch):
    """A limit on threads that is lower than the number of cores is kept."""
    monkeypatch.setattr(execution, "core_count", lambda: 8)
    array = stored(tmp_path, [LITTLE, ZSTD], data_copy_concurrency={"limit": 3})
    meet(3, decoding_threads, monkeypatch)
    np.testing.assert_array_equal(array.read().result(), values())
    assert len(set(decoding_threads)) == 3


def test_busy_workers_are_not_waited_for(tmp_path, threads):
    """Where every worker is busy, the thread that asks does all of it."""
    array = stored(tmp_path, [LITTLE, ZSTD])
    free = threading.Event()
    busy = [execution.submit(free.wait, 60) for _ in range(2)]
    try:
        np.testing.assert_array_equal(array.read().result(), values())
        assert set(threads) == {threading.current_thread()}
    finally:
        free.set()
        for job in busy:
            job.result(60)


def test_workers_may_ask(tmp_path, threads):
    """Reads that all workers make at once are made, each by the worker that asks."""
    array = stored(tmp_path, [LITTLE, ZSTD])
    for job in [execution.submit(lambda: array.read().result()) for _ in range(6)]:
        np.testing.assert_array_equal(job.result(60), values())
    assert threading.current_thread() not in threads


@pytest.mark.parametrize(("codecs", "chunk"), [([LITTLE, GZIP], 1), (sharded([LITTLE, GZIP, CRC]), 16)])
@pytest.mark.parametrize("plane", [0, 9, 15])
def test_a_damaged_chunk_is_named(tmp_path, threads, codecs, chunk, plane):
    """The error says which chunk, whoever decodes it, and other chunks are read as before."""
    array = stored(tmp_path, codecs, chunk)
    if chunk == 1:
        path = tmp_path / f"a/c/{plane}/0/0"
        path.write_bytes(path.read_bytes()[:-9])
        place = f"c/{plane}/0/0"
    else:
        path = tmp_path / "a/c/0/0/0"
        data = bytearray(path.read_bytes())
        offset = int.from_bytes(data[-260 + 16 * plane :][:8], "little")
        data[offset + 100] ^= 0xFF
        path.write_bytes(data)
        place = f"{plane}, 0, 0"
    with pytest.raises(StoreError, match=place):
        array.read().result()
    others = np.s_[1:] if plane == 0 else np.s_[:plane]
    np.testing.assert_array_equal(array[others].read().result(), values()[others])


def test_missing_chunks_of_a_shared_read(tmp_path, together):
    """Chunks that are not there have the fill value, wherever they fall."""
    array = stored(tmp_path, [LITTLE, ZSTD])
    expected = values()
    for plane in (0, 5, 6, 15):
        (tmp_path / f"a/c/{plane}/0/0").unlink()
        expected[plane] = 0
    np.testing.assert_array_equal(array.read().result(), expected)


@pytest.mark.parametrize(
    ("codecs", "effort"),
    [([LITTLE], 0), ([LITTLE, ZSTD], 1), ([LITTLE, GZIP], 2.5), ([LITTLE, LZ4], 0.2), ([LITTLE, ZSTD, CRC], 1.1)],
)
def test_effort_counts_what_is_decoded(codecs, effort):
    """The effort of a chain is its bytes times what its codecs say; that of a shard is that of its sub-chunks."""
    spec = ChunkSpec(np.dtype("<u2"), (4, SIDE, SIDE))
    size = 2 * 4 * SIDE * SIDE
    assert CodecChain.from_json(codecs).bind(spec).effort == pytest.approx(effort * size)
    assert CodecChain.from_json(sharded(codecs)).bind(spec).effort == pytest.approx(effort * size)
