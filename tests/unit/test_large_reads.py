"""One read of several large chunks, over a store that never waits: which threads make it, and how it fails."""

import threading

import numpy as np
import pytest

import fsstore
from fsstore.errors import StoreError
from fsstore.runtime import execution

SIDE = 2048
CHUNKS = 4


@pytest.fixture
def spec(tmp_path):
    """Return the spec of an array of four chunks of 4 MiB, of which a fourth is written."""
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/a/"}}
    layout = fsstore.ChunkLayout(chunk_shape=[1, SIDE, SIDE])
    shape = [CHUNKS, SIDE, SIDE]
    store = fsstore.open(spec, create=True, dtype="uint8", shape=shape, chunk_layout=layout).result()
    store[..., ::4] = np.arange(CHUNKS, dtype=np.uint8)[:, None, None]
    return spec


def part(store):
    """Return a small part of every chunk."""
    return store[:, ::512, ::4]


def test_workers_make_it(spec, decoding_threads):
    """Each chunk is decoded by a worker for itself, not by the thread that waits."""
    found = part(fsstore.open(spec).result()).read().result()
    assert (found == np.arange(CHUNKS)[:, None, None]).all()
    assert len(decoding_threads) == CHUNKS
    assert threading.current_thread() not in decoding_threads


def test_the_limit_of_workers_holds(spec, decoding_threads):
    """An array that may use one thread is decoded by one."""
    one = fsstore.Context({"data_copy_concurrency": {"limit": 1}})
    part(fsstore.open(spec, context=one).result()).read().result()
    assert len(decoding_threads) == CHUNKS
    assert len(set(decoding_threads)) == 1


def test_workers_may_wait_for_one(spec):
    """A read that every worker waits for at once is made all the same: by other threads and themselves."""
    store = fsstore.open(spec).result()
    together = threading.Barrier(execution.core_count())

    def wait():
        together.wait(60)
        return part(store).read().result()

    jobs = [execution.submit(wait) for _ in range(together.parties)]
    for job in jobs:
        assert (job.result(60) == np.arange(CHUNKS)[:, None, None]).all()


def test_a_damaged_chunk_fails_it(spec, tmp_path):
    """The error names the chunk."""
    (damaged,) = [path for path in tmp_path.glob("a/**/2/**/*") if path.is_file()]
    damaged.write_bytes(b"")
    future = part(fsstore.open(spec).result()).read()
    with pytest.raises(StoreError, match="c/2/0/0"):
        future.result()
