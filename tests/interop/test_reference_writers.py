"""Sets made by the writers people use, read exactly; sets we write, read by the readers people use.

The oracle is fsspec's `ReferenceFileSystem` where it is right, the source file through h5py where it is not.
"""

from __future__ import annotations

import json
import sys
import warnings

import dask
import fsspec
import h5py
import numpy as np
import pytest
from fsspec.implementations.reference import LazyReferenceMapper

import fsstore as ts
from fsstore import references
from fsstore.kvstore.contract.driver import KvPrefix, Read
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.reference.kind import open_reference
from fsstore.runtime import execution

pytestmark = pytest.mark.filterwarnings("ignore:.*fastparquet.*engine is deprecated")
RNG = np.random.default_rng(7)


def run(coroutine):
    """Return the result of a coroutine, on the event loop."""
    return execution.call(coroutine)


def contents(path, **members):
    """Return every key and value of the set at a path, read in one batch through the adapter."""
    driver = run(open_reference(KvPrefix(LocalDriver(), str(path)), members))

    async def keys():
        return [entry async for batch in driver.scan(KeyRange()) for entry in batch]

    entries = run(keys())
    results = run(driver.read_many([Read(entry.key) for entry in entries]))
    for entry, result in zip(entries, results, strict=True):
        assert entry.size in (None, len(result.value)), entry
    return {entry.key: bytes(result.value) for entry, result in zip(entries, results, strict=True)}


def oracle(fo, **options):
    """Return every key and value as fsspec reads them."""
    fs = fsspec.filesystem("reference", fo=fo, skip_instance_cache=True, remote_protocol="file", **options)
    return {key: fs.cat_file(key) for key in fs.references if not fs.isdir(key)}


@pytest.mark.parametrize(
    "dump",
    [json.dumps, lambda d: json.dumps(d, indent=2), lambda d: json.dumps(d["refs"])],
    ids=["v1", "indented", "v0"],
)
def test_kerchunk_hdf5(document, tmp_path, dump):
    """Every key of a kerchunk HDF5 set has the bytes that fsspec reads."""
    path = tmp_path / "r.json"
    path.write_text(dump(document))
    assert contents(path) == oracle(str(path))


def test_values_are_those_of_the_file(document, hdf5, tmp_path):
    """Chunks decoded through the stored filters are what h5py reads, missing chunks stay missing."""
    import numcodecs

    found = {key: value for key, value in references.open(document).items_of("holes")}
    assert {key for key in found if not key.rpartition("/")[2].startswith(".")} == {"holes/3", "holes/4"}
    store = references.store(document)
    meta = json.loads(store.read("temp/.zarray").result().value)
    filters = [numcodecs.get_codec(config) for config in meta["filters"]]
    with h5py.File(hdf5) as f:
        for where in f["temp"].iter_chunks():
            key = ".".join(str(part.start // step) for part, step in zip(where, meta["chunks"], strict=True))
            data = bytes(store.read(f"temp/{key}").result().value)
            for codec in reversed(filters):
                data = codec.decode(data)
            expected = f["temp"][where]
            chunk = np.frombuffer(data, meta["dtype"]).reshape(meta["chunks"])
            assert np.array_equal(chunk[tuple(map(slice, expected.shape))], expected)


def test_netcdf3(tmp_path):
    """Record variables, big-endian, of scipy's NetCDF 3 writer."""
    from kerchunk.netCDF3 import NetCDF3ToZarr
    from scipy.io import netcdf_file

    with netcdf_file(tmp_path / "a.nc", "w") as f:
        f.createDimension("t", None)
        f.createDimension("x", 50)
        v = f.createVariable("v", "f8", ("t", "x"))
        v[:] = np.arange(200.0).reshape(4, 50)
    document = NetCDF3ToZarr(str(tmp_path / "a.nc"), inline_threshold=0).translate()
    (tmp_path / "r.json").write_text(json.dumps(document))
    found = contents(tmp_path / "r.json")
    assert found == oracle(str(tmp_path / "r.json"))
    assert np.array_equal(np.frombuffer(found["v/2.0"], ">f8"), np.arange(100.0, 150))


@pytest.mark.parametrize("record_size", [3, 7, 10_000])
@pytest.mark.parametrize("engine", ["fastparquet", "pyarrow"])
def test_parquet_of_kerchunk(document, tmp_path, record_size, engine):
    """Parquet written by kerchunk with either engine and any partition size, missing chunks included.

    fsspec itself takes the nulls of pandas 3 for references, and empty columns of pyarrow for data.
    """
    refs = {key: value for key, value in document["refs"].items()}
    fs = LazyReferenceMapper.create(str(tmp_path / "r.parq"), record_size=record_size, engine=engine)
    for key in sorted(refs, key=lambda key: "/." not in f"/{key}"):
        value = refs[key]
        fs[key] = (
            value.encode()
            if isinstance(value, str) and "/." not in f"/{key}" and not value.startswith("base64:")
            else value
        )
    fs.flush()
    (tmp_path / "r.json").write_text(json.dumps(document))
    expected, found = contents(tmp_path / "r.json"), contents(tmp_path / "r.parq")
    documents = [key for key in expected if key.rpartition("/")[2].startswith(".")]
    assert {key: json.loads(found.pop(key)) for key in documents} == {
        key: json.loads(expected.pop(key)) for key in documents
    }
    found.pop(".zmetadata", None)
    assert found == expected


@pytest.mark.parametrize("threshold", [1, 10**9])
def test_refs_to_dataframe(document, tmp_path, threshold):
    """kerchunk's own converter, with and without dictionary-encoded URLs."""
    from kerchunk.df import refs_to_dataframe

    refs_to_dataframe(document, str(tmp_path / "r.parq"), record_size=5, categorical_threshold=threshold)
    (tmp_path / "r.json").write_text(json.dumps(document))
    expected, found = contents(tmp_path / "r.json"), contents(tmp_path / "r.parq")
    assert {k: v for k, v in found.items() if "/." not in f"/{k}"} == {
        k: v for k, v in expected.items() if "/." not in f"/{k}"
    }


def test_fastparquet_reads_for_us_too(document, tmp_path, monkeypatch):
    """Without pyarrow, fastparquet gives the same columns."""
    references.open(document).save(tmp_path / "r.parq", record_size=6)
    expected = contents(tmp_path / "r.parq")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    assert contents(tmp_path / "r.parq") == expected


@pytest.mark.parametrize("name", ["r.json", "r.json.zst", "r.json.zstd", "r.json.gz", "r0.json", "r.parq"])
def test_what_we_save_is_what_we_read(document, tmp_path, name):
    """Saving in any form and opening again gives every byte back, and the source's bytes are unchanged."""
    (tmp_path / "source.json").write_text(json.dumps(document))
    references.open(document).save(tmp_path / name, version=0 if "0" in name else 1)
    if name.endswith(("json", "zst", "zstd", "gz")):
        packed = {"zst": b"\x28\xb5\x2f\xfd", "zstd": b"\x28\xb5\x2f\xfd", "gz": b"\x1f\x8b"}
        assert (tmp_path / name).read_bytes().startswith(packed.get(name.rpartition(".")[2], b"{"))
    assert contents(tmp_path / name) == contents(tmp_path / "source.json")


def test_fsspec_reads_our_json(tmp_path, document):
    """fsspec reads the same bytes from a document we wrote, awkward inline values included."""
    refs = references.open(document).merge(
        references.open(
            {
                "a": b"\xff\0",
                "b": "base64:YmFzZTY0OmhlbGxv",
                "c": 'é\n"{{x}}',
                "d": b"1e10    ",
                "e": b"",
                "f": {"q": 1},
            }
        )
    )
    for version in (0, 1):
        refs.save(tmp_path / f"r{version}.json", version=version)
        assert oracle(str(tmp_path / f"r{version}.json")) == contents(tmp_path / f"r{version}.json")


def test_fsspec_reads_our_parquet(tmp_path, document):
    """fsspec's lazy mapper finds every reference we wrote, and nothing else, in parquet with holes."""
    references.open(document).save(tmp_path / "r.parq", record_size=4)
    ours = contents(tmp_path / "r.parq")
    theirs = fsspec.filesystem(
        "reference", fo=str(tmp_path / "r.parq"), remote_protocol="file", skip_instance_cache=True
    )
    for key, value in ours.items():
        got = theirs.cat_file(key)
        assert json.loads(got) == json.loads(value) if "/.z" in f"/{key}" else got == value, key
    for hole in ("holes/0", "holes/2", "holes/5", "holes/9", "grown/1.0"):
        with pytest.raises(FileNotFoundError):
            theirs.cat_file(hole)


def days(folder):
    """Write four HDF5 files with a day of values each; return their paths."""
    paths = [folder / f"{number}.h5" for number in range(4)]
    for number, path in enumerate(paths):
        with h5py.File(path, "w") as f:
            t = f.create_dataset("t", data=[float(number)])
            t.make_scale("t")
            v = f.create_dataset("v", data=RNG.random((1, 40)), chunks=(1, 20))
            v.dims[0].attach_scale(t)
            f.create_dataset(f"w{number}", data=np.arange(6) + number, chunks=(4,))
    return paths


def by_multizarr(combine, documents, paths):
    return combine.MultiZarrToZarr(documents, concat_dims=["t"], preprocess=only_days).translate()


def by_auto_dask(combine, documents, paths):
    from kerchunk.hdf import SingleHdf5ToZarr

    how = {"concat_dims": ["t"], "preprocess": only_days}
    with dask.config.set(scheduler="synchronous"):
        return combine.auto_dask([f"file://{path}" for path in paths], SingleHdf5ToZarr, {}, how, 2)


def by_merge_vars(combine, documents, paths):
    return combine.merge_vars(documents)


def by_concatenate_arrays(combine, documents, paths):
    return combine.concatenate_arrays(documents, path="v")


def only_days(references):
    """Leave out the arrays of which each file has one of its own."""
    return {key: value for key, value in references.items() if not key.startswith("w")}


@pytest.mark.parametrize("made", [by_multizarr, by_auto_dask, by_merge_vars, by_concatenate_arrays])
def test_kerchunks_combinations(tmp_path, scan_hdf5, made):
    """What each way of kerchunk to combine files makes is taken as it is."""
    combine = pytest.importorskip("kerchunk.combine")
    paths = days(tmp_path)
    combined = made(combine, [scan_hdf5(path) for path in paths], paths)
    (tmp_path / "r.json").write_text(json.dumps(combined))
    found = contents(tmp_path / "r.json")
    assert found == oracle(str(tmp_path / "r.json"))
    assert ("w3/0" if made is by_merge_vars else "v/3.1") in found


@pytest.mark.parametrize("version", [0, 1])
def test_tifffile(tmp_path, version, tiff_references):
    """tifffile's sets: version 0 and 1, indented metadata, an array at the root, templates, edge tiles."""
    data = RNG.integers(0, 60000, (100, 120), dtype="u2")
    tiff_references(tmp_path, data, version, tile=(32, 32))
    found = contents(tmp_path / "r.json")
    assert found == oracle(str(tmp_path / "r.json"))
    assert found["1.1"] == data[32:64, 32:64].tobytes()


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_virtualizarr(tmp_path, form, virtualize):
    """VirtualiZarr's exports, scalars under an empty chunk key included."""
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.create_dataset("v", data=np.arange(100.0), chunks=(10,))
        f.create_dataset("s", data=5.0) if form == "json" else None
    path = tmp_path / ("r.json" if form == "json" else "r.parquet")
    virtualize(tmp_path / "a.h5", path, form)
    driver = run(open_reference(KvPrefix(LocalDriver(), str(path)), {}))
    values = run(driver.read_many([Read(f"v/{n}") for n in range(10)]))
    assert b"".join(bytes(value.value) for value in values) == np.arange(100.0).tobytes()
    if form == "json":
        scalar = run(driver.read_many([Read("s/0"), Read("s/c")]))
        assert [np.frombuffer(bytes(value.value), "<f8").tolist() for value in scalar] == [[5.0], [5.0]]


def test_both_zarr_versions_and_separators_in_one_set(tmp_path):
    """v2 with dots and slashes, v3 with slashes and dots, scalars of both, pyramids: in JSON and in parquet."""
    (tmp_path / "t").write_bytes(bytes(range(256)) * 10)

    def v2(shape, chunks, separator):
        return {"zarr_format": 2, "shape": shape, "chunks": chunks, "dimension_separator": separator, "dtype": "|u1"}

    def v3(shape, chunks, **encoding):
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": shape,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
            **encoding,
        }

    dots = {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "."}}}
    old = {"chunk_key_encoding": {"name": "v2"}}
    documents = {
        "a/.zarray": v2([4, 4], [2, 2], "."), "b/.zarray": v2([4, 4], [2, 2], "/"), "s/.zarray": v2([], [], "."),
        "c/zarr.json": v3([4, 4], [2, 2]), "d/zarr.json": v3([4, 4], [2, 2], **dots), "e/zarr.json": v3([4, 4], [2, 2], **old),
        "t/zarr.json": v3([], []), "zarr.json": {"zarr_format": 3, "node_type": "group"},
        "p/0/.zarray": v2([4, 4], [2, 2], "/"), "p/1/.zarray": v2([2, 2], [2, 2], "/"), "p/10/.zarray": v2([4, 4], [2, 2], "."),
    }  # fmt: skip
    keys = ["s/0", "t/c", "p/1/0/0"]
    for i, j in np.ndindex(2, 2):
        keys += [
            f"a/{i}.{j}",
            f"b/{i}/{j}",
            f"c/c/{i}/{j}",
            f"d/c.{i}.{j}",
            f"e/{i}.{j}",
            f"p/0/{i}/{j}",
            f"p/10/{i}.{j}",
        ]
    refs = {key: [f"{tmp_path}/t", n * 3, 3] for n, key in enumerate(keys)}
    refs |= {key: json.dumps(value) for key, value in documents.items()}
    set_ = references.open({"version": 1, "refs": refs})
    set_.save(tmp_path / "r.json")
    set_.save(tmp_path / "r.parq", record_size=3)
    found = contents(tmp_path / "r.json")
    assert set(found) == set(refs)
    assert {key: found[key] for key in keys} == {
        key: (bytes(range(256)) * 2)[n * 3 : n * 3 + 3] for n, key in enumerate(keys)
    }
    assert contents(tmp_path / "r.parq") == found
    for name in ("r.json", "r.parq"):
        wrong = references.open(tmp_path / name).get_many(
            ["a/2.0", "a/0.2", "a/0", "b/0.0", "c/c/0", "c/0/0", "p/1/0/1", "p/2/0/0"]
        )
        assert wrong == [None] * 8


@pytest.mark.parametrize(
    "name", ["x/0.5", "x/3.0", "x/0", "x/0.0.0", "x/foo", "x/00.0", "x/-1.0", "x/0.", "y/0.0", "x/1.1"]
)
def test_keys_outside_the_grid_do_not_exist_in_parquet(tmp_path, name):
    """A key that would wrap to another chunk's row is absent, and so is an empty row."""
    array = {"zarr_format": 2, "shape": [6, 4], "chunks": [2, 2]}
    refs = {f"x/{i}.{j}": ["u", i * 10 + j, 1] for i, j in np.ndindex(3, 2) if (i, j) != (1, 1)}
    references.open({"x/.zarray": array, **refs}).save(tmp_path / "r.parq")
    assert references.open(tmp_path / "r.parq").get_many([name]) == [None]
    assert set(references.open(tmp_path / "r.parq")) == {"x/.zarray", *refs}


def test_growing_a_grid_moves_no_reference(tmp_path):
    """Changing the shape and saving again maps every reference to its new row."""

    def document(shape):
        return {"zarr_format": 2, "shape": shape, "chunks": [1, 1]}

    refs = {f"x/{i}.{j}": ["u", i * 10 + j, 1] for i, j in np.ndindex(2, 2)}
    references.open({"x/.zarray": document([2, 2]), **refs}).save(tmp_path / "a.parq")
    grown = references.open(tmp_path / "a.parq").merge(references.open({"x/.zarray": document([2, 3])}))
    grown.save(tmp_path / "b.parq")
    found = references.open(tmp_path / "b.parq")
    assert found.get_many(["x/0.2", "x/1.0", "x/1.1"]) == [None, ("u", 10, 1), ("u", 11, 1)]


def test_what_parquet_cannot_hold_is_refused_by_name(tmp_path):
    """Keys that are no chunk, chunks out of the grid, and metadata that is no document: one error names them all."""
    array = {"zarr_format": 2, "shape": [2], "chunks": [1]}
    with pytest.raises(ValueError, match=r'"x/7".*"zzz"') as caught:
        references.open({"x/.zarray": array, "x/7": ["u", 0, 1], "zzz": "text", "x/0": ["u", 0, 0]}).save(
            tmp_path / "r.parq"
        )
    assert "2 keys" in str(caught.value)
    with pytest.raises(ValueError, match="JSON object"):
        references.open({".zgroup": "[]"}).save(tmp_path / "r.parq")


def test_live_reference_filesystems(tmp_path, document):
    """A live `ReferenceFileSystem`, over a dictionary or parquet, is read like its document."""
    references.open(document).save(tmp_path / "r.parq")
    (tmp_path / "r.json").write_text(json.dumps(document))
    expected = contents(tmp_path / "r.json")
    for fo in (document, str(tmp_path / "r.json"), str(tmp_path / "r.parq")):
        live = fsspec.filesystem("reference", fo=fo, remote_protocol="file", skip_instance_cache=True)
        store = references.store(live)
        found = {key.decode(): bytes(store.read(key).result().value) for key in store.list().result()}
        assert {k: v for k, v in found.items() if "/." not in f"/{k}"} == {
            k: v for k, v in expected.items() if "/." not in f"/{k}"
        }


def test_other_protocols_through_live_filesystems():
    """Targets on fsspec's memory filesystem, reached through the filesystem object given for their prefix."""
    memory = fsspec.filesystem("memory")
    memory.pipe("/bucket-r/t", b"0123456789")
    try:
        store = references.store({"a": ["memory://bucket-r/t", 2, 3]}, targets={"memory://": memory})
        assert bytes(store.read("a").result().value) == b"234"
    finally:
        memory.rm("/bucket-r", recursive=True)


NESTED = {
    ".zgroup": {"zarr_format": 2},
    **{f"{path}/.zgroup": {"zarr_format": 2} for path in ("a", "a/aa", "b")},
    **{
        f"{path}/.zarray": {"zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "|u1", "compressor": None, "filters": None, "order": "C", "fill_value": 9}
        for path in ("a/aa/a", "a/x", "ab", "b/empty")
    },
    "a/x/.zattrs": {"_ARRAY_DIMENSIONS": ["n"]},
    "a/aa/a/0": b"\x01\x02", "a/x/1": b"\x03\x04", "ab/0": b"\x05\x06",
}  # fmt: skip


@pytest.mark.parametrize("name", ["r.json", "r.parq"])
def test_groups_of_a_set_are_found_by_name(tmp_path, name):
    """Names that repeat or begin alike, nested groups and arrays without chunks are listed and opened as they are."""
    import xarray
    import zarr

    refs = {key: json.dumps(value) if isinstance(value, dict) else value for key, value in NESTED.items()}
    references.open({"version": 1, "refs": refs}).save(tmp_path / name)
    found = references.open(tmp_path / name)
    assert len(found) == len(list(found)) == len(dict(found.items())) == len(NESTED)
    assert set(found) == set(NESTED)
    assert list(found.items_of("b/empty")) == [("b/empty/.zarray", found["b/empty/.zarray"])]
    fs = fsspec.filesystem("auto", fo=str(tmp_path / name))
    assert [entry["name"] for entry in fs.ls("b/empty", detail=True)] == ["b/empty/.zarray"]
    assert set(fs.ls("", detail=False)) == {".zgroup", "a", "ab", "b"}
    for asked, lead in (("a", ""), ("a/", ""), ("/a", "/"), ("/a/", "/")):
        assert set(fs.ls(asked, detail=False)) == {f"{lead}a/{name}" for name in (".zgroup", "aa", "x")}
    assert fs.ls("a/aa/a") and fs.find("a/aa") == ["a/aa/.zgroup", "a/aa/a/.zarray", "a/aa/a/0"]
    assert fs.find("ab") == ["ab/.zarray", "ab/0"]
    assert {entry["name"]: entry["size"] for entry in fs.ls("ab")}["ab/0"] == 2
    for url in (f"fsstore://file://{tmp_path}/{name}|reference:", f"zarr3::file://{tmp_path}/{name}"):
        root = zarr.open_group(url, mode="r", use_consolidated=False)
        assert sorted(root.keys()) == ["a", "ab", "b"]
        assert sorted(root["a"].keys()) == ["aa", "x"]
        assert root["a/aa/a"][:].tolist() == [1, 2, 9, 9]
        assert root["b/empty"][:].tolist() == [9, 9, 9, 9]
    dataset = xarray.open_dataset(f"file://{tmp_path}/{name}", engine="fsstore", group="a")
    assert list(dataset.variables) == ["x"]


@pytest.mark.parametrize("reader", ["fastparquet", "pyarrow"])
@pytest.mark.parametrize("engine", ["fastparquet", "pyarrow"])
def test_files_of_either_engine_are_read_by_either(tmp_path, monkeypatch, engine, reader):
    """Columns that are null throughout are no data, whoever wrote them and whoever reads them."""
    fs = LazyReferenceMapper.create(str(tmp_path / "r.parq"), record_size=3, engine=engine)
    fs["x/.zarray"] = json.dumps({"zarr_format": 2, "shape": [9], "chunks": [1]}).encode()
    fs["y/.zarray"] = json.dumps({"zarr_format": 2, "shape": [9], "chunks": [1]}).encode()
    for n in (0, 1, 4, 8):
        fs[f"x/{n}"] = ["u", n, 1]
        fs[f"y/{n}"] = b"inline"
    fs.flush()
    if reader == "fastparquet":
        monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    found = {key: value for key, value in references.open(tmp_path / "r.parq").items() if ".z" not in key}
    expected = {f"x/{n}": ("u", n, 1) for n in (0, 1, 4, 8)} | {f"y/{n}": b"inline" for n in (0, 1, 4, 8)}
    assert found == expected


def test_a_reference_in_place_of_another_leaves_nothing_of_it(tmp_path):
    """A range over inline bytes, a whole target over a range and the reverse, in parquet, as fsspec reads them."""
    (tmp_path / "t").write_bytes(bytes(range(20)))
    url = str(tmp_path / "t")
    array = {"zarr_format": 2, "shape": [4], "chunks": [1]}
    before = {"x/.zarray": array, "x/0": "old", "x/1": [url, 3, 4], "x/2": [url, 5, 6], "x/3": [url]}
    after = {"x/0": [url, 1, 2], "x/1": [url], "x/2": "new", "x/3": [url, 7, 1]}
    references.open(before).save(tmp_path / "a.parq")
    references.open(tmp_path / "a.parq").merge(references.open(after)).save(tmp_path / "b.parq")
    expected = {"x/0": bytes([1, 2]), "x/1": bytes(range(20)), "x/2": b"new", "x/3": bytes([7])}
    found = contents(tmp_path / "b.parq")
    theirs = fsspec.filesystem(
        "reference", fo=str(tmp_path / "b.parq"), remote_protocol="file", skip_instance_cache=True
    )
    for key, value in expected.items():
        assert found[key] == value
        assert theirs.cat_file(key) == value


def test_templates_generators_and_objects_in_parquet(tmp_path):
    """Parquet has none of them: URLs are written out, generated keys too, and metadata given as objects are documents."""
    document = {
        "version": 1,
        "templates": {"u": "s3://b/k"},
        "gen": [{"key": "x/{{i}}", "url": "{{u}}", "offset": "{{i * 4}}", "length": "4", "dimensions": {"i": {"stop": 3}}}],
        "refs": {"x/.zarray": {"zarr_format": 2, "shape": [4], "chunks": [1]}, "x/3": ["{{u}}/tail", 1, 2]},
    }  # fmt: skip
    references.open(document).save(tmp_path / "r.parq")
    theirs = LazyReferenceMapper(str(tmp_path / "r.parq"), fsspec.filesystem("file"))
    expected = [["s3://b/k", 0, 4], ["s3://b/k", 4, 4], ["s3://b/k", 8, 4], ["s3://b/k/tail", 1, 2]]
    assert [theirs[f"x/{n}"] for n in range(4)] == expected
    assert json.loads(theirs["x/.zarray"])["shape"] == [4]


def test_chunks_under_keys_of_their_own_have_rows_in_parquet(tmp_path):
    """A scalar under `name/` and a matrix of one chunk under `name/0`, as some writers have them, are saved and read."""
    base = {"zarr_format": 2, "dtype": "|u1", "compressor": None, "filters": None, "order": "C", "fill_value": 9}
    refs = {
        "s/.zarray": {**base, "shape": [], "chunks": []}, "s/": b"\x07",
        "n/.zarray": {**base, "shape": [2, 2], "chunks": [2, 2]}, "n/0": b"\x01\x02\x03\x04",
    }  # fmt: skip
    references.open(refs).save(tmp_path / "r.parq")
    theirs = LazyReferenceMapper(str(tmp_path / "r.parq"), fsspec.filesystem("file"))
    assert [theirs["s/0"], theirs["n/0.0"]] == [refs["s/"], refs["n/0"]]
    url = f"file://{tmp_path}/r.parq|reference:"
    assert ts.open(f"{url}s/").result().read().result() == 7
    assert ts.open(f"{url}n/").result().read().result().tolist() == [[1, 2], [3, 4]]


def test_version_0_suits_the_simplest_readers(tmp_path):
    """Texts, and lists of one or three: no templates, no generators, no braces, as GDAL and others want."""
    document = {
        "version": 1,
        "templates": {"u": "s3://b/k", "f": "{{u}}.{{c}}"},
        "gen": [{"key": "x/{{i}}", "url": "{{u}}.{{i}}", "dimensions": {"i": [0, 1]}}],
        "refs": {".zgroup": {"zarr_format": 2}, "y/0": ["{{f(c='z')}}", 0, 1], "n": None},
    }
    references.open(document).save(tmp_path / "r.json", version=0)
    found = json.loads((tmp_path / "r.json").read_text())
    assert json.loads(found.pop(".zgroup")) == {"zarr_format": 2}
    assert found == {"x/0": ["s3://b/k.0"], "x/1": ["s3://b/k.1"], "y/0": ["s3://b/k.z", 0, 1]}


def test_virtualizarr_reads_what_we_save(hdf5, document, tmp_path):
    """VirtualiZarr's parsers open our JSON and parquet, and read the values of the file.

    (They know no array whose last chunks are missing.)
    """
    import xarray
    from obspec_utils.registry import ObjectStoreRegistry
    from obstore.store import LocalStore
    from virtualizarr.parsers import KerchunkJSONParser, KerchunkParquetParser

    refs = references.open(document)
    wanted = {".zgroup", *(key for name in ("temp", "big") for key, _ in refs.items_of(name))}
    attributes = {
        f"{name}/.zattrs": {"_ARRAY_DIMENSIONS": dims}
        for name, dims in (("temp", ["t", "y", "x"]), ("big", ["a", "b"]))
    }
    chosen = {key: list(value) if isinstance(value, tuple) else value for key, value in refs.items() if key in wanted}
    chosen = {
        key: [f"file://{value[0]}", *value[1:]] if isinstance(value, list) else value for key, value in chosen.items()
    }
    part = references.open({"version": 1, "refs": chosen | {k: json.dumps(v) for k, v in attributes.items()}})
    registry = ObjectStoreRegistry({"file://": LocalStore()})
    for name, parser in (("r.json", KerchunkJSONParser()), ("r.parquet", KerchunkParquetParser())):
        part.save(tmp_path / name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            store = parser(f"file://{tmp_path}/{name}", registry)
            found = xarray.open_zarr(store, consolidated=False, zarr_format=3, mask_and_scale=False, chunks=None)
            with h5py.File(hdf5) as f:
                assert np.array_equal(found["temp"].values, f["temp"][()])
                assert np.array_equal(found["big"].values, f["big"][()])
