"""What arrays ask of their stores: the exact number of requests of every operation."""

import numpy as np
import pytest

import fsstore as ts
from fsstore.kvstore.memory import MemoryKind
from fsstore.testing.doubles import Recording

SHARD = {"name": "sharding_indexed", "configuration": {"chunk_shape": [4]}}
NESTED = {"name": "sharding_indexed", "configuration": {"chunk_shape": [16], "codecs": [SHARD]}}


class Requests:
    """All requests to memory stores since the last look."""

    def __init__(self):
        self.drivers = []

    def take(self):
        """Return the numbers of reads, writes, deletes and range deletes, and forget them."""
        reads = sum(len(driver.reads) for driver in self.drivers)
        writes = [write for driver in self.drivers for write in driver.writes]
        ranges = sum(len(driver.deleted) for driver in self.drivers)
        self.values = [bytes(write.value) for write in writes if write.value is not None]
        self.conditions = [bool(write.if_equal) for write in writes]
        self.bytes_read = sum(driver.bytes_read for driver in self.drivers)
        self.calls = sum(driver.calls["read"] for driver in self.drivers)
        for driver in self.drivers:
            driver.reset()
        return reads, len(self.values), len(writes) - len(self.values), ranges


@pytest.fixture
def requests(monkeypatch):
    """Record what memory stores are asked."""
    found = Requests()
    plain = MemoryKind.open

    async def opened(self, opening):
        driver = Recording(await plain(self, opening))
        found.drivers.append(driver)
        return driver

    monkeypatch.setattr(MemoryKind, "open", opened)
    return found


@pytest.fixture(params=["zarr3", "zarr"])
def spec(request):
    """Return the spec of an array of 10 elements in chunks of 4."""
    spec = {"driver": request.param, "kvstore": {"driver": "memory"}, "dtype": "int32"}
    layout = {"chunk_layout": {"chunk": {"shape": [4]}}, "fill_value": 0, "domain": {"shape": [10]}}
    return {**spec, "schema": layout}


@pytest.fixture
def documents(spec):
    """Return how many documents describe the array: zarr v2 has attributes beside the metadata."""
    return 2 if spec["driver"] == "zarr" else 1


def test_open_and_create(requests, spec, documents):
    """Creating costs one read and one write, or only a write; opening one read; deleting what exists one range."""
    context = ts.Context()
    ts.open(spec, context=context, create=True, open=True).result()
    assert requests.take() == (documents, 1, 0, 0)
    ts.open(spec, context=context).result()
    assert requests.take() == (documents, 0, 0, 0)
    assert requests.calls in (0, 1), "one batch"
    ts.open(spec, context=context, create=True, delete_existing=True).result()
    assert requests.take() == (0, 1, 0, 1)
    assert requests.conditions == [True]
    ts.open(spec, create=True).result()
    assert requests.take() == (0, 1, 0, 0)


def test_no_metadata_requests_when_assumed(requests, spec):
    """Assumed metadata are neither read nor written."""
    for option in ("assume_metadata", "assume_cached_metadata"):
        store = ts.open(spec, open=True, **{option: True}).result()
        store.read().result()
        assert requests.take() == (3, 0, 0, 0)


def test_reads_and_writes(requests, spec):
    """A whole chunk is one unconditional write, a part one read and one conditional write, three chunks three reads."""
    store = ts.open(spec, create=True).result()
    requests.take()
    store[0:4].write([1, 2, 3, 4]).result()
    assert requests.take() == (0, 1, 0, 0)
    assert requests.conditions == [False]
    store[1:3].write([7, 8]).result()
    assert requests.take() == (1, 1, 0, 0)
    assert requests.conditions == [True]
    store[8:10].write([1, 2]).result()
    assert requests.take() == (1, 1, 0, 0), "the last chunk reaches beyond the array"
    store[0:4].read().result()
    store[8:10].read().result()
    assert requests.take() == (2, 0, 0, 0)
    store.read().result()
    assert requests.take() == (4, 0, 0, 0), "one is missing: is the array still there?"
    assert requests.calls in (0, 2), "one batch, and the question"
    store[0:4].write(0).result()
    assert requests.take() == (0, 0, 1, 0), "what equals the fill value is deleted"
    store[8:10].write(0).result()
    assert requests.take() == (1, 0, 1, 0)
    store[0:0].read().result()
    store[0:0].write([]).result()
    assert requests.take() == (0, 0, 0, 0)


def test_resize(requests, spec, documents):
    """A resize reads and writes the metadata; then it looks for chunks outside, at the metadata again, and deletes."""
    store = ts.open(spec, create=True).result()
    store.write(np.arange(1, 11, dtype="i4")).result()
    requests.take()
    store = store.resize(exclusive_max=[5]).result()
    assert requests.take() == (2 * documents + 1, 1, 1, 0)
    store = store.resize(exclusive_max=[20]).result()
    assert requests.take() == (documents, 1, 0, 0)
    store.resize(exclusive_max=[1], resize_metadata_only=True).result()
    assert requests.take() == (documents, 1, 0, 0)


def test_statistics_read_nothing(requests, spec):
    """Asking what is stored costs a request a chunk and no data."""
    store = ts.open(spec, create=True).result()
    store[0:4].write([1, 2, 3, 4]).result()
    requests.take()
    found = store.storage_statistics(query_not_stored=True, query_fully_stored=True).result()
    assert (found.not_stored, found.fully_stored) == (False, False)
    assert requests.take() == (3, 0, 0, 0)
    assert requests.bytes_read == 0


@pytest.mark.parametrize("separator", [".", "/"])
def test_statistics_of_many_chunks_are_listed(requests, separator):
    """Of thousands of chunks the keys are listed and none is asked for, unless the listing is much longer than that."""
    name = {".": "v2", "/": "default"}[separator]
    encoding = {"name": name, "configuration": {"separator": separator}}
    metadata = {
        "shape": [60, 4000],
        "data_type": "int8",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, 2]}},
        "chunk_key_encoding": encoding,
    }
    store = ts.open({"driver": "zarr3", "kvstore": {"driver": "memory"}, "metadata": metadata}, create=True).result()
    store[:30, ::4] = 1
    requests.take()

    def shares(view):
        found = view.storage_statistics(query_not_stored=True, query_fully_stored=True).result()
        return found.not_stored, found.fully_stored, requests.take()[0]

    assert shares(store) == (False, False, 0)
    assert shares(store[:30, ::4]) == (False, True, 0)
    assert shares(store[30:, ::-4]) == (True, False, 0)
    assert shares(store[::-1, 2::4]) == (True, False, 0)
    assert shares(store[:1, ::4]) == (False, True, 1000)
    assert shares(store[:2, ::3])[:2] == (False, False)


def test_asking_ends_where_the_answer_is_known(requests):
    """Once one chunk is found stored and another is not, no more are asked for, in shards too."""
    store = sharded(SHARD, 64 * 4000)
    store[3] = 1
    requests.take()
    found = store.storage_statistics(query_not_stored=True, query_fully_stored=True).result()
    assert (found.not_stored, found.fully_stored) == (False, False)
    assert requests.take()[0] < 200


def sharded(codec, size=64):
    metadata = {
        "shape": [size],
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [64]}},
        "codecs": [codec],
    }
    spec = {"driver": "zarr3", "kvstore": {"driver": "memory"}, "metadata": metadata}
    return ts.open(spec, create=True).result()


def test_shards(requests):
    """A sub-chunk costs the index and itself; a whole shard one request; a changed part one read and one write."""
    store = sharded(SHARD)
    requests.take()
    values = np.arange(1, 65, dtype="i4")
    store.write(values).result()
    assert requests.take() == (0, 1, 0, 0)
    assert requests.conditions == [False]
    assert store[5:7].read().result().tolist() == [6, 7]
    assert requests.take() == (2, 0, 0, 0)
    assert requests.bytes_read == 16 * 16 + 4 + 16
    assert store[2:10].read().result().tolist() == list(range(3, 11))
    assert requests.take()[0] == 4, "the index and three entries; adjacent ranges are merged further down"
    assert requests.calls == 2
    store.read().result()
    assert requests.take() == (1, 0, 0, 0)
    store[5].write(0).result()
    assert requests.take() == (1, 1, 0, 0)
    assert requests.conditions == [True]
    store.write(0).result()
    assert requests.take() == (0, 0, 1, 0)


def test_nested_shards(requests):
    """A sub-chunk of a shard in a shard costs the outer index, the inner index and itself."""
    store = sharded(NESTED)
    values = np.arange(1, 65, dtype="i4")
    store.write(values).result()
    requests.take()
    assert store[21].read().result() == 22
    assert requests.take() == (3, 0, 0, 0)
    assert requests.bytes_read == (4 * 16 + 4) * 2 + 16
    assert store[3:33].read().result().tolist() == list(range(4, 34))
    assert requests.take()[0] == 1, "most shards in the shard: one read of all of it"
    store[21].write(0).result()
    assert requests.take() == (1, 1, 0, 0)
    values[21] = 0
    assert store.read().result().tolist() == values.tolist()


def test_cached_data(requests):
    """Kept chunks cost nothing when they need no recheck, and a request without data when they do."""
    for recheck, expected in ((False, (0, 0)), ("open", (0, 0)), (True, (3, 0))):
        context = ts.Context({"cache_pool": {"total_bytes_limit": 10**6}})
        metadata = {
            "shape": [10],
            "data_type": "int32",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        }
        spec = {"driver": "zarr3", "kvstore": {"driver": "memory"}, "metadata": metadata}
        store = ts.open(spec, create=True, context=context, recheck_cached_data=recheck).result()
        store.write(np.arange(10, dtype="i4")).result()
        store.read().result()
        requests.take()
        assert store.read().result().tolist() == list(range(10))
        assert (requests.take()[0], requests.bytes_read) == expected, recheck


def test_pool_limit(requests):
    """A pool keeps what fits its budget, the last used chunks first; arrays of one context share it."""
    context = ts.Context({"cache_pool": {"total_bytes_limit": 2 * (16 * 4 + 256)}})
    stores = []
    for path in "ab":
        metadata = {
            "shape": [64],
            "data_type": "int32",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [16]}},
        }
        spec = {"driver": "zarr3", "kvstore": {"driver": "memory", "path": f"{path}/"}, "metadata": metadata}
        stores.append(ts.open(spec, create=True, context=context, recheck_cached_data=False).result())
        stores[-1].write(np.arange(1, 65, dtype="i4")).result()

    def cost(store, chunk):
        requests.take()
        store[chunk * 16].read().result()
        return requests.take()[0]

    a, b = stores
    assert [cost(a, 0), cost(a, 1), cost(a, 0), cost(a, 1)] == [1, 1, 0, 0]
    assert cost(b, 0) == 1
    assert [cost(a, 1), cost(b, 0), cost(a, 0)] == [0, 0, 1]
    a[0].write(7).result()
    assert a[0].read().result() == 7


@pytest.mark.parametrize(("few", "ranges"), [(32, 6 + 16), (0, 4 + 8)])
def test_a_large_shard_is_read_in_windows(few, ranges, requests, tune):
    """Its index once and its sub-chunks a few at a time, all of them or some; what is missing is not asked for.

    Of many, those that lie next to each other are asked for as one.
    """
    # two sub-chunks at once, and more than four elements are read by workers
    tune("chunk", REQUEST_BYTES=32, INLINE_READ_BYTES=16, COLUMNS_FROM=few)
    grid = {"name": "regular", "configuration": {"chunk_shape": [64]}}
    metadata = {"shape": [128], "data_type": "int32", "chunk_grid": grid, "codecs": [SHARD]}
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}
    spec["context"] = {"data_copy_concurrency": {"limit": 1}}
    store = ts.open(spec, create=True).result()
    values = np.arange(1, 129, dtype="i4")
    values[20:60] = 0
    store.write(values).result()
    requests.take()
    for part in (slice(0, 128), slice(2, 127)):
        assert (store[part].read().result() == values[part]).all()
        assert requests.take()[0] == 2 * 1 + ranges
        assert requests.bytes_read == 2 * (16 * 16 + 4) + 4 * 4 * 22
