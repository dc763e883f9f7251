"""The metadata of a set are found without its chunks: listings, datasets and grids of sets of any size."""

from __future__ import annotations

import json

import pytest
import xarray

import fsstore as ts
from fsstore import references
from fsstore.errors import ResourceExhaustedError
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.json_document import from_mapping
from fsstore.runtime import execution

NAMES = (".zarray", ".zattrs", ".zgroup", "zarr.json")


def _array(shape, chunks):
    return json.dumps(
        {"zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "|u1", "compressor": None, "filters": None}
        | {"order": "C", "fill_value": 0}
    )


def _gen(key, **dimensions):
    return {"key": key, "url": "s3://b/f", "offset": "0", "length": "1", "dimensions": dimensions}


@pytest.fixture
def huge():
    """Give a set of two arrays, one of which has a million times a million chunks."""
    stop = {"stop": 10**6}
    refs = {"x/.zarray": _array([10**6, 10**6], [1, 1]), "y/.zarray": _array([3], [3]), "y/0": "abc"}
    return references.open({"version": 1, "refs": refs, "gen": [_gen("x/{{i}}.{{j}}", i=stop, j=stop)]})


def test_arrays_of_a_set_that_nobody_can_list(huge):
    """What lists arrays and opens datasets needs no list of 10^12 keys; what does need one is refused at once."""
    store = references.store(huge)
    assert [entry.path for entry in ts.list_arrays(store)] == ["x", "y"]
    assert ts.tree(store).count("chunks of") == 2
    assert huge.arrays["x"].count == 10**12
    with xarray.open_dataset(store, engine="fsstore") as dataset:
        assert dataset["y"].values.tobytes() == b"abc"
        assert dataset["x"].shape == (10**6, 10**6)
    for needs_all in (huge.inspect, lambda: len(huge), lambda: huge.urls, lambda: references.verify(huge)):
        with pytest.raises(ResourceExhaustedError, match="Cannot list the 1000000000000 keys"):
            needs_all()


def test_documents_that_generators_make_are_found():
    """A generator whose keys may end in anything but a digit is looked through; others are not."""
    names = [".zarray", ".zattrs", "0"]
    gens = [
        _gen("a/{{name}}", name=names),
        _gen("{{v}}/.zgroup", v=["b", "c"]),
        _gen("d/{{i}}", i={"stop": 9}),
        _gen("e/{{i}}.0", i={"stop": 9}),
        _gen("f/{{2 * i}}", i={"stop": 9}),
    ]
    base = from_mapping({"version": 1, "gen": gens, "refs": {"g/zarr.json": "{}", "g/c/0": "x"}})
    everything = {key for page, _ in base.batches(KeyRange()) for key in page}

    async def found(keys):
        return {key async for page, _ in base.documents(keys) for key in page}

    documents = execution.call(found(KeyRange()))
    assert {key for key in everything if key.endswith(NAMES)} <= documents <= everything
    assert not any(key.startswith(("d/", "e/")) for key in documents)
    assert execution.call(found(KeyRange.prefix("a/"))) == {f"a/{name}" for name in names}


@pytest.mark.parametrize("form", ["json", "parquet"])
@pytest.mark.parametrize("prefix", ["", "g/"])
def test_every_document_of_a_stored_set_is_found(tmp_path, form, prefix):
    """What a set lists as documents holds every key that is one, new and deleted ones too, below any prefix."""
    refs = {".zgroup": '{"zarr_format": 2}', "g/.zgroup": '{"zarr_format": 2}'}
    for name in ("v", "g/w"):
        refs |= {f"{name}/.zarray": _array([100], [1]), f"{name}/.zattrs": "{}"}
        refs |= {f"{name}/{chunk}": ["s3://b/f", chunk, 1] for chunk in range(100)}
    references.open(refs).save(f"{tmp_path}/r.{form}")
    store = ts.KvStore.open(f"file://{tmp_path}/r.{form}|reference:").result()
    store["g/u/.zarray"] = _array([1], [1]).encode()
    if form == "json":
        del store["g/w/.zattrs"]
    place = KvPrefix(store.prefix.driver, prefix)

    async def keys(pages):
        return {entry.key async for page in pages for entry in page}

    everything, documents = (execution.call(keys(pages)) for pages in (place.scan(), place.documents()))
    wanted = {key for key in everything if key.endswith(NAMES)}
    assert wanted == {key for key in documents if key.endswith(NAMES)}
    assert ("u/.zarray" if prefix else "g/u/.zarray") in wanted
    assert len(documents) < 12 < len(everything)
