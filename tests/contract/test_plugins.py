"""The example plug-ins keep the contracts, and are found through entry points as those of other packages are."""

from __future__ import annotations

import importlib
import itertools
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

import fsstore as ts
from fsstore import plugin, references
from fsstore.driver.probe import looked_for
from fsstore.errors import JsonError, OutOfRangeError, StoreError
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.testing.kvstore_suite import CHECKS, filled

PLUGINS = Path(__file__).parents[2] / "examples" / "plugins"


@pytest.fixture(autouse=True)
def installed(monkeypatch):
    """The examples can be imported, and are registered for one test."""
    monkeypatch.syspath_prepend(str(PLUGINS))
    tables = (plugin.kvstores, plugin.codecs, plugin.drivers, plugin.detections, plugin.scanners)
    with ExitStack() as stack:
        for table in (*tables, plugin.chunk_grids, plugin.chunk_key_encodings, plugin.data_types):
            stack.enter_context(table.aside())
        add_examples()
        yield


def add_examples():
    """Register the examples."""
    plugin.kvstores.add("sqlite", "sqlite_store:KIND")
    plugin.codecs.add("example.mask", "mask_codec:MaskCodec")
    plugin.chunk_grids.add("example.growing", "zarr3_extensions:GrowingGrid")
    plugin.chunk_key_encodings.add("example.suffixed", "zarr3_extensions:SuffixedKeys")
    plugin.data_types.add("example.rgb", "zarr3_extensions:RgbType")


def new_array(shape, **members):
    """Create an array in memory; return it and the names of what is stored."""
    metadata = {"shape": shape, "data_type": "int32", **members}
    store = ts.open({"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}, create=True).result()
    return store, lambda: sorted(key.decode() for key in store.kvstore.list().result())


def opened_again(store):
    """Open an array by what is stored alone, in a context where nothing is cached."""
    kvstore = ts.KvStore.open("memory://", context=ts.Context()).result()
    for key in store.kvstore.list().result():
        kvstore[key] = store.kvstore[key]
    return ts.open({"driver": "zarr3", "kvstore": kvstore.spec(retain_context=True)}).result()


GROWING = {"name": "example.growing", "configuration": {"first": 2, "factor": 3}}


@pytest.mark.parametrize("codecs", [["bytes"], [{"name": "sharding_indexed", "configuration": {"chunk_shape": [2]}}]])
def test_a_grid_of_another_package_cuts_arrays(codecs):
    """Chunks have the sizes that it lists, in shards too; arrays grow and shrink along its boundaries."""
    store, keys = new_array([20], chunk_grid=GROWING, codecs=codecs)
    model = np.arange(1, 21, dtype="i4")
    store[...] = model
    assert keys() == ["c/0", "c/1", "c/2", "zarr.json"]  # of 2, 6 and 18
    store[7:9], model[7:9] = -1, -1
    again = opened_again(store)
    assert again.read().result().tolist() == model.tolist()
    assert again[19:1:-4].read().result().tolist() == model[19:1:-4].tolist()
    assert again.vindex[[0, 8, 3]].read().result().tolist() == model[[0, 8, 3]].tolist()
    grown = store.resize(exclusive_max=[60]).result()
    grown[26:] = 5
    assert keys() == ["c/0", "c/1", "c/2", "c/3", "zarr.json"]
    assert grown.read().result().tolist() == [*model.tolist(), *[0] * 6, *[5] * 34]
    assert store.resize(exclusive_max=[3]).result().read().result().tolist() == model[:3].tolist()
    assert keys() == ["c/0", "c/1", "zarr.json"]
    assert store.spec().to_json()["metadata"]["chunk_grid"] == GROWING


def test_mistakes_about_a_grid_are_located():
    """Its own parser speaks, in the place of the document; another rank is refused."""
    wrong = {"name": "example.growing", "configuration": {"first": 0}}
    with pytest.raises(JsonError, match=r'"chunk_grid": .*"configuration": .*"first": Expected integer'):
        new_array([20], chunk_grid=wrong)
    with pytest.raises(StoreError, match="rank"):
        new_array([20, 3], chunk_grid=GROWING)
    with pytest.raises(JsonError, match='"example.growing", "rectilinear", "regular", but received: "example.no"'):
        new_array([20], chunk_grid={"name": "example.no", "must_understand": False})


@pytest.mark.parametrize("configuration", [None, {"suffix": ".chunk"}])
def test_a_key_encoding_of_another_package_names_chunks(configuration):
    """Chunks are written, read, listed and deleted under the names that it makes."""
    encoding = {"name": "example.suffixed", **({"configuration": configuration} if configuration else {})}
    grid = {"name": "regular", "configuration": {"chunk_shape": [2, 3]}}
    store, keys = new_array([4, 5], chunk_grid=grid, chunk_key_encoding=encoding)
    model = np.arange(1, 21, dtype="i4").reshape(4, 5)
    store[...] = model
    suffix = ".bin" if configuration is None else ".chunk"
    assert keys() == [*(f"{number}{suffix}" for number in ("0-0", "0-1", "1-0", "1-1")), "zarr.json"]
    again = opened_again(store)
    assert again.read().result().tolist() == model.tolist()
    assert again[1:3, 2:4].read().result().tolist() == model[1:3, 2:4].tolist()
    assert store.storage_statistics(query_fully_stored=True).result().fully_stored
    assert store.spec().to_json()["metadata"]["chunk_key_encoding"] == encoding
    store.resize(exclusive_max=[4, 3]).result()
    assert keys() == [f"0-0{suffix}", f"1-0{suffix}", "zarr.json"]
    with pytest.raises(JsonError, match=r'"chunk_key_encoding": .*extra members: "suffx"'):
        new_array([3], chunk_key_encoding={"name": "example.suffixed", "configuration": {"suffx": 1}})


def test_a_data_type_of_another_package_holds_elements():
    """Elements are of its NumPy type, and metadata have its fill values."""
    store, keys = new_array([3], data_type="example.rgb", fill_value="#ff8000")
    assert json.loads(store.kvstore["zarr.json"])["data_type"] == "example.rgb"
    assert json.loads(store.kvstore["zarr.json"])["fill_value"] == "#ff8000"
    assert store.read().result().tolist() == [(255, 128, 0)] * 3
    store[1] = np.array((1, 2, 3), store.dtype.numpy_dtype)
    assert store.kvstore["c/0"] == b"\xff\x80\0\1\2\3\xff\x80\0"
    assert opened_again(store).read().result().tolist() == [(255, 128, 0), (1, 2, 3), (255, 128, 0)]
    store[1] = np.array((255, 128, 0), store.dtype.numpy_dtype)
    assert keys() == ["zarr.json"]
    place = {"driver": "zarr3", "kvstore": opened_again(store).kvstore.spec(retain_context=True)}
    assert ts.open({**place, "field": "r"}).result().read().result().tolist() == [255] * 3
    with pytest.raises(JsonError, match=r'"fill_value": Expected a colour'):
        new_array([3], data_type="example.rgb", fill_value="red")
    with pytest.raises(JsonError, match="example.rbg data type is not one of the supported"):
        new_array([3], data_type="example.rbg")


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_the_store_keeps_the_contract(check, tmp_path):
    """The battery for authors passes over the example."""
    numbers = itertools.count()
    driver = importlib.import_module("sqlite_store").SqliteDriver
    check(lambda contents: filled(KvPrefix(driver(f"{tmp_path}/{next(numbers)}.db"), "p/"), contents))


def test_arrays_live_in_the_store_under_the_codec(tmp_path):
    """A store and a codec of plug-ins work in specs and URLs like built-in ones, transactions included."""
    url = f"sqlite://{tmp_path}/keys.db/deep/"
    metadata = {"codecs": [{"name": "example.mask", "configuration": {"bits": 4}}, {"name": "bytes"}]}
    spec = {"driver": "zarr3", "kvstore": url, "metadata": metadata}
    with ts.Transaction() as transaction:
        array = ts.open(spec, create=True, dtype="uint8", shape=[4, 64], transaction=transaction).result()
        array[1] = np.arange(64, dtype="uint8")
    again = ts.open(url).result()
    assert again[1].read().result().tolist() == [value & 0xF0 for value in range(64)]
    assert again.kvstore.url == url
    assert again.spec().to_json()["kvstore"] == {"driver": "sqlite", "file": f"{tmp_path}/keys.db", "path": "deep/"}


def test_mistakes_are_reported_as_those_of_built_in_drivers(tmp_path):
    """The parsers of the door give located errors; the driver names its keys."""
    with pytest.raises(JsonError, match='"file"'):
        ts.KvStore.Spec({"driver": "sqlite", "fiel": "x"})
    with pytest.raises(StoreError, match="ends with"):
        ts.KvStore.Spec("sqlite:///a/b")
    store = ts.KvStore.open(f"sqlite://{tmp_path}/keys.db/").result()
    store["k"] = b"abc"
    with pytest.raises(OutOfRangeError, match=r'"k" in .*keys\.db'):
        store.read("k", byte_range=slice(1, 9)).result()


def test_entry_points_are_found(tmp_path):
    """A package that declares entry points needs no call: its names are known when they are first asked for."""
    info = tmp_path / "sqlite_store-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sqlite-store\nVersion: 1\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[fsstore.kvstores]\nsqlite = sqlite_store:KIND\n", encoding="utf-8")
    code = (
        "import fsstore as ts\n"
        f"store = ts.KvStore.open('sqlite://{tmp_path}/keys.db/').result()\n"
        "store['a'] = b'1'\n"
        "print(store.list().result())\n"
    )
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join([str(tmp_path), str(PLUGINS), root])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.stdout.strip() == "[b'a']", done.stderr


FORMAT = """
from fsstore import plugin, references
from fsstore.format.zarr3 import Zarr3


class Flat(Zarr3):
    id, scheme, document = "flat", "flat", "flat.json"


KIND = plugin.ChunkedKind(Flat())
DETECT = plugin.Detection("flat", "array", files=("flat.json",))
"""


def test_formats_of_plug_ins_are_detected(tmp_path, monkeypatch):
    """`auto` asks for the files of a plug-in's format in the same batch, and opens its driver."""
    (tmp_path / "flat_format.py").write_text(FORMAT, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin.drivers.add("flat", "flat_format:KIND")
    plugin.detections.add("flat", "flat_format:DETECT")
    url = f"file://{tmp_path}/array/"
    ts.open(f"{url}|flat:", create=True, dtype="int8", shape=[3]).result()[...] = 7
    found = ts.open(url).result()
    assert found.spec().to_json()["driver"] == "flat"
    assert found.read().result().tolist() == [7, 7, 7]
    assert "flat.json (flat)" in looked_for()


def test_built_in_names_cannot_be_taken():
    """A plug-in that claims a name in use is refused."""
    with pytest.raises(ValueError, match="already registered"):
        plugin.kvstores.add("file", "sqlite_store:KIND")


def test_a_scanner_shows_files_of_its_format(tmp_path, monkeypatch):
    """The scanner of the documentation, registered with its store, is opened by URL, and a set is made of its file."""
    page = Path(__file__).parents[2].joinpath("docs", "how-to", "plug-ins.md").read_text(encoding="utf-8")
    [code] = [each for each in page.split("```") if "class GridScanner" in each]
    (tmp_path / "grid_scanner.py").write_text(code.removeprefix("python\n"), encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    plugin.scanners.add("grid", "grid_scanner:SCANNER")
    plugin.kvstores.add("grid", "grid_scanner:KIND")
    rows = np.arange(6, dtype="<f4").reshape(2, 3)
    (tmp_path / "x.grid").write_bytes(b"GRID" + np.array([2, 3], "<u4").tobytes() + rows.tobytes())
    url = f"file://{tmp_path}/x.grid|grid:"
    array = ts.open(f"{url}values").result()
    np.testing.assert_array_equal(array.read().result(), rows)
    found = references.open(url)
    assert sorted(key for key in found if key[-1].isdigit()) == ["values/0.0", "values/1.0"]
    (tmp_path / "cut.grid").write_bytes((tmp_path / "x.grid").read_bytes()[:-1])
    with pytest.raises(StoreError, match=r"cut\.grid"):
        ts.open(f"file://{tmp_path}/cut.grid|grid:values").result()
