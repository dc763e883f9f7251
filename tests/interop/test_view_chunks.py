"""Chunks of one version of zarr shown as the other: which are shown as they are stored, and that all read right."""

from __future__ import annotations

import numcodecs
import numpy as np
import pytest
import tensorstore
import zarr

import fsstore as ts
from fsstore.context.context import Context
from fsstore.errors import NotFoundError, StoreError
from fsstore.filesystem.place import live_kv
from fsstore.filesystem.view import open_view
from fsstore.kvstore.contract.driver import KvPrefix, Read, Write
from fsstore.kvstore.memory import MemoryDriver
from fsstore.runtime import execution
from fsstore.testing.doubles import Faulty, Recording

SHAPE, CHUNKS = (5, 7), (2, 3)
VALUES = np.arange(35).reshape(SHAPE)

SHARDS = {
    "chunk_shape": [1, 3],
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "index_codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "crc32c"}],
}
SAME_V2 = {
    "raw": {"compressor": None},
    "zstd": {"compressor": {"id": "zstd", "level": 3}},
    "gzip": {"compressor": {"id": "gzip", "level": 3}},
    "blosc": {"compressor": {"id": "blosc", "cname": "zstd", "clevel": 5, "shuffle": -1, "blocksize": 0}},
    "fortran": {"compressor": {"id": "zstd", "level": 1}, "order": "F"},
    "big-endian": {"compressor": {"id": "zstd", "level": 1}, "dtype": ">i4"},
    "big-endian, fortran, raw": {"compressor": None, "order": "F", "dtype": ">f8"},
    "bytes": {"compressor": {"id": "blosc"}, "dtype": "|u1"},
    "separator": {"compressor": None, "dimension_separator": "/"},
    "fill value": {"compressor": {"id": "zstd", "level": 1}, "fill_value": 7},
}
OTHER_V2 = {
    "zlib": {"compressor": {"id": "zlib", "level": 1}},
    "bz2": {"compressor": {"id": "bz2", "level": 1}},
    "shuffle": {"compressor": {"id": "zlib", "level": 1}, "filters": [{"id": "shuffle", "elementsize": 4}]},
    "delta": {"compressor": None, "filters": [{"id": "delta", "dtype": "<i4"}], "order": "F"},
    "bool": {"compressor": {"id": "zlib", "level": 1}, "dtype": "|b1", "fill_value": True},
}
BYTES = {"name": "bytes", "configuration": {"endian": "little"}}
SAME_V3 = {
    "raw": [BYTES],
    "big": [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "zstd", "configuration": {"level": 1}}],
    "gzip": [BYTES, {"name": "gzip", "configuration": {"level": 1}}],
    "blosc": [BYTES, {"name": "blosc", "configuration": {"cname": "lz4", "clevel": 1, "shuffle": "bitshuffle"}}],
    "reversed": [{"name": "transpose", "configuration": {"order": [1, 0]}}, BYTES],
}
OTHER_V3 = {
    "checksum": [BYTES, {"name": "crc32c"}],
    "twice": [BYTES, {"name": "gzip", "configuration": {"level": 1}}, {"name": "zstd", "configuration": {"level": 1}}],
}


def _stored_v2(options):
    dtype = np.dtype(options.get("dtype", "<i4"))
    metadata = {
        "shape": list(SHAPE), "chunks": list(CHUNKS), "dtype": "<i4", "order": "C", "filters": None,
        "fill_value": None, "zarr_format": 2, **options,
    }  # fmt: skip
    return _stored("zarr2", metadata, VALUES.astype(dtype))


def _stored_v3(codecs):
    grid = {"name": "regular", "configuration": {"chunk_shape": list(CHUNKS)}}
    metadata = {"shape": list(SHAPE), "data_type": "int32", "chunk_grid": grid, "codecs": codecs, "fill_value": 3}
    return _stored("zarr3", metadata, VALUES.astype("i4"))


def _stored(driver, metadata, values):
    """Return a store with an array of which the last row of chunks is not stored, and its values."""
    store = MemoryDriver()
    spec = {"driver": driver, "kvstore": live_kv(KvPrefix(store)).spec, "metadata": metadata}
    array = ts.open(spec, create=True).result()
    array[:4] = values[:4]
    return store, array.read().result()


def _shown(driver, zarr_format):
    recording = Recording(driver)
    view = execution.call(open_view(live_kv(KvPrefix(recording)), Context(), zarr_format=zarr_format))
    return recording, view


def _contents(prefix):
    """Return everything in a store by key: each key that is listed can be read."""

    async def collect():
        keys = [entry.key async for batch in prefix.scan() for entry in batch]
        answers = await prefix.read_many([Read(key) for key in keys])
        assert {answer.state for answer in answers} == {"value"}
        return {key: bytes(answer.value) for key, answer in zip(keys, answers, strict=True)}

    return execution.call(collect())


def _check(driver, values, *, zarr_format, same):
    recording, view = _shown(driver, zarr_format)
    contents = _contents(view.prefix)
    stored = _contents(KvPrefix(driver))
    chunks = {key: value for key, value in contents.items() if not key.endswith((".json", "y", "s", "a"))}
    assert len(chunks) == 9
    assert sum(value in stored.values() for value in chunks.values()) == (6 if same else 0)
    _check_readers(contents, values, zarr_format)
    return recording, view


def _check_readers(contents, values, zarr_format):
    make = zarr.core.buffer.default_buffer_prototype().buffer.from_bytes
    store = zarr.storage.MemoryStore({key: make(value) for key, value in contents.items()})
    assert np.array_equal(zarr.open_array(store, mode="r")[...], values)
    context = tensorstore.Context()
    theirs = tensorstore.KvStore.open("memory://", context=context).result()
    for key, value in contents.items():
        theirs[key] = value
    spec = {"driver": "zarr" if zarr_format == 2 else "zarr3", "kvstore": "memory://"}
    array = tensorstore.open(spec, context=context).result()
    assert np.array_equal(array.read().result(), values)


@pytest.mark.parametrize("name", SAME_V2)
def test_chunks_of_v2_are_shown_as_stored(name):
    """What both versions have words for is not decoded: v3 readers get the bytes of v2, and the right values."""
    _check(*_stored_v2(SAME_V2[name]), zarr_format=3, same=True)


@pytest.mark.parametrize("name", OTHER_V2)
def test_other_chunks_of_v2_are_encoded_plainly(name):
    """Filters and compressors that only v2 has are undone."""
    _check(*_stored_v2(OTHER_V2[name]), zarr_format=3, same=False)


@pytest.mark.parametrize("name", SAME_V3)
def test_chunks_of_v3_are_shown_as_stored(name):
    """The same from v3 to v2."""
    _check(*_stored_v3(SAME_V3[name]), zarr_format=2, same=True)


@pytest.mark.parametrize("name", OTHER_V3)
def test_other_chunks_of_v3_are_encoded_plainly(name):
    """Codecs that v2 has not are undone."""
    _check(*_stored_v3(OTHER_V3[name]), zarr_format=2, same=False)


@pytest.mark.parametrize("compressor", [{"id": "zstd", "level": 1}, {"id": "zlib", "level": 1}])
def test_a_batch_of_chunks_is_one_batch_below(compressor):
    """However chunks are shown, those of a batch are asked of the base together, and little else is."""
    driver, _ = _stored_v2({"compressor": compressor})
    recording, view = _shown(driver, 3)
    recording.reset()
    reads = [Read(f"c/{row}/{column}") for row in range(3) for column in range(3)]
    answers = execution.call(view.prefix.read_many([*reads, Read("c/9/9"), Read("zarr.json")]))
    assert [answer.state for answer in answers] == ["value"] * 9 + ["missing", "value"]
    # before and after, whether the array is the same: the document of the view and the chunks are of one array
    assert (recording.calls["read"], len(recording.reads)) == (3, 11)


def test_ranges_of_chunks():
    """Ranges of a chunk that is shown as stored are asked as such; those of others are cut from the whole."""
    for compressor in (None, {"id": "zlib", "level": 1}):
        driver, _ = _stored_v2({"compressor": compressor})
        recording, view = _shown(driver, 3)
        whole = bytes(execution.call(view.prefix.read("c/0/0")).value)
        recording.reset()
        assert bytes(execution.call(view.prefix.read("c/0/0", 4, 8)).value) == whole[4:8]
        assert (recording.reads[0].start, recording.reads[0].stop) == ((0, None) if compressor else (4, 8))


def test_a_damaged_chunk_is_an_error():
    """A chunk that cannot be decoded names the key it has in the store."""
    driver, _ = _stored_v2({"compressor": {"id": "zlib", "level": 1}})
    execution.drive(driver.write_many([Write("0.1", b"damaged")]))
    _, view = _shown(driver, 3)
    with pytest.raises(StoreError, match='Error reading "0.1"'):
        execution.call(view.prefix.read("c/0/1"))


def test_a_store_that_is_gone_is_an_error():
    """A chunk that is read through its array is not called missing when the whole store is: it would be fill values."""
    driver, _ = _stored_v3([{"name": "sharding_indexed", "configuration": SHARDS}])
    gone = []
    faulty = Faulty(driver, lambda _, key: NotFoundError(f"all of it, {key} too") if gone else None)
    view = execution.call(open_view(live_kv(KvPrefix(faulty)), Context(), zarr_format=2))
    assert execution.call(view.prefix.read("0.0")).state == "value"
    gone.append(True)
    with pytest.raises(NotFoundError, match="all of it"):
        execution.call(view.prefix.read("0.0"))


def test_views_of_stores_that_never_wait_never_wait():
    """A view of memory or local files works where the caller is, unless parts of shards are asked of drivers."""
    driver, _ = _stored_v2({"compressor": {"id": "zlib", "level": 1}})
    _, view = _shown(driver, 3)
    assert not view.driver.features.waits
    assert execution.drive(view.prefix.read("c/0/0")).state == "value"


def test_a_compressor_of_numcodecs(tmp_path):
    """What zarr-python writes as v2 with codecs of numcodecs arrives in v3."""
    array = zarr.create_array(
        tmp_path / "x", shape=SHAPE, chunks=CHUNKS, dtype="i4", zarr_format=2,
        compressors=numcodecs.LZ4(), filters=[numcodecs.Delta("i4")],
    )  # fmt: skip
    array[...] = VALUES
    assert np.array_equal(zarr.open_array(f"zarr3::file://{tmp_path}/x", mode="r")[...], VALUES)
