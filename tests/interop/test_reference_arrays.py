"""Arrays opened through reference sets have the values of the files the references point into.

The oracle is the file itself, read by h5py, netCDF4, scipy or tifffile.  Sets are made in the run, by the writers people
use and by hand, in every form, and stand beside their files on disk, on a web server or in a bucket.
"""

from __future__ import annotations

import json
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import h5py
import numpy as np
import pytest

import fsstore as ts
from fsstore import references

pytestmark = pytest.mark.filterwarnings("ignore:.*fastparquet.*engine is deprecated")


ARRAYS = ("temp", "plain", "big", "scalar", "zeros", "holes", "nan", "grown", "fixed", "empty", "g/deep/x", "names")


def pointed(document, url):
    """Return the document with every target replaced by one URL."""
    refs = {key: [url, *ref[1:]] if isinstance(ref, list) else ref for key, ref in document["refs"].items()}
    return {"version": 1, "refs": refs}


def assert_same(found, expected):
    """Assert equal values, shapes and types; the byte order of memory does not count, strings are text."""
    expected = np.asarray(expected)
    if expected.dtype.hasobject:
        expected = np.array([text.decode() for text in expected.ravel()], object).reshape(expected.shape)
        found = np.array([bytes(text).decode() if isinstance(text, bytes) else text for text in found.ravel()], object)
    else:
        assert found.dtype == expected.dtype.newbyteorder("=")
    assert found.shape == expected.shape
    assert np.array_equal(found, expected, equal_nan=expected.dtype.kind == "f")


def assert_arrays(kvstore, hdf5, names=ARRAYS, driver="zarr"):
    """Assert that arrays in a reference store read, whole and in part, what h5py reads."""
    with h5py.File(hdf5) as f:
        for name in names:
            array = ts.open({"driver": driver, "kvstore": {**kvstore, "path": f"{name}/"}}).result()
            assert array.shape == f[name].shape
            assert_same(array.read().result(), f[name][()])
            if array.rank and array.size:
                part = tuple(slice(size // 3, None, 2) for size in array.shape)
                whole = np.asarray(f[name][()])
                assert_same(array[part].read().result(), whole[part])


FORMS = {
    "r.json": lambda refs, path: refs.save(path),
    "r.json.zst": lambda refs, path: refs.save(path),
    "r0.json.gz": lambda refs, path: refs.save(path, version=0),
    "r3.parq": lambda refs, path: refs.save(path, record_size=3),
}


@pytest.mark.parametrize("name", FORMS)
def test_sets_in_every_form_on_disk(document, hdf5, tmp_path, name):
    """JSON of both versions, compressed, and parquet: all arrays of an HDF5 file, by spec."""
    FORMS[name](references.open(document), tmp_path / name)
    assert_arrays({"driver": "reference", "base": f"file://{tmp_path}/{name}"}, hdf5)


def test_one_url_opens_an_array(document, hdf5, tmp_path):
    """`<set>|reference:<array>/|zarr2:` in one string, and a batch of parts of several arrays."""
    (tmp_path / "r.json").write_text(json.dumps(document))
    with h5py.File(hdf5) as f:
        for scheme in ("reference", "kerchunk"):
            array = ts.open(f"file://{tmp_path}/r.json|{scheme}:temp/|zarr2:").result()
            assert_same(array[1:4, 3, ::5].read().result(), f["temp"][1:4, 3, ::5])
            assert array.url == f"file://{tmp_path}/r.json|reference:temp/|zarr2:"
        listed = array[ts.d[1].translate_to[100]].oindex[:, [101, 110, 101], 3:9].read().result()
        assert_same(listed, f["temp"][()][:, [1, 10, 1], 3:9])


@pytest.mark.parametrize("engine", ["fastparquet", "pyarrow"])
@pytest.mark.parametrize("record_size", [1, 4, 10_000])
def test_parquet_made_by_fsspec(document, hdf5, tmp_path, engine, record_size):
    """fsspec's parquet writer, with either engine and any partition size, holes and inline chunks included."""
    from fsspec.implementations.reference import LazyReferenceMapper

    fs = LazyReferenceMapper.create(str(tmp_path / "r.parq"), record_size=record_size, engine=engine)
    refs = document["refs"]
    for key in sorted(refs, key=lambda key: "/." not in f"/{key}"):
        inline = isinstance(refs[key], str) and "/." not in f"/{key}" and not refs[key].startswith("base64:")
        fs[key] = refs[key].encode() if inline else refs[key]
    fs.flush()
    assert_arrays({"driver": "reference", "base": f"file://{tmp_path}/r.parq"}, hdf5)


def test_parquet_made_by_kerchunk(document, hdf5, tmp_path):
    """kerchunk's own conversion."""
    from kerchunk.df import refs_to_dataframe

    (tmp_path / "r.json").write_text(json.dumps(document))
    refs_to_dataframe(str(tmp_path / "r.json"), str(tmp_path / "r.parq"), record_size=5)
    assert_arrays({"driver": "reference", "base": f"file://{tmp_path}/r.parq"}, hdf5)


@pytest.mark.parametrize("name", FORMS)
def test_sets_and_files_on_a_web_server(document, hdf5, tmp_path, object_server, name):
    """Absolute and relative targets beside a set on a web server."""
    object_server.put("d/a.h5", hdf5.read_bytes())
    for url in (f"{object_server.url}/d/a.h5", "../d/a.h5"):
        refs = references.open(pointed(document, url))
        shutil.rmtree(tmp_path / name) if (tmp_path / name).is_dir() else (tmp_path / name).unlink(missing_ok=True)
        FORMS[name](refs, tmp_path / name)
        files = (
            [tmp_path / name] if not name.endswith("parq") else [p for p in (tmp_path / name).rglob("*") if p.is_file()]
        )
        for file in files:
            object_server.put(f"set/{file.relative_to(tmp_path)}", file.read_bytes())
        base = f"{object_server.url}/set/{name}{'/' if name.endswith('parq') else ''}"
        assert_arrays({"driver": "reference", "base": base}, hdf5, ("temp", "holes", "g/deep/x", "big", "names"))


def test_whole_arrays_over_http_cost_a_request_or_two(document, hdf5, tmp_path, object_server):
    """Adjacent chunks of one file are one request, however many they are."""
    object_server.put("a.h5", hdf5.read_bytes())
    (tmp_path / "r.json").write_text(json.dumps(pointed(document, f"{object_server.url}/a.h5")))
    array = ts.open(f"file://{tmp_path}/r.json|reference:temp/|zarr2:").result()
    object_server.log.clear()
    array.read().result()
    assert object_server.count() == 1


def test_thousands_of_small_chunks_over_http_are_a_few_requests(tmp_path, object_server):
    """Two thousand chunks of 4 KB that lie side by side in a file are read by at most four requests."""
    values = np.arange(2000 * 1024, dtype="<i4")
    object_server.put("values.bin", values.tobytes())
    array = {
        "zarr_format": 2, "shape": [len(values)], "chunks": [1024], "dtype": "<i4", "order": "C",
        "compressor": None, "filters": None, "fill_value": None,
    }  # fmt: skip
    refs = {f"x/{n}": [f"{object_server.url}/values.bin", n * 4096, 4096] for n in range(2000)}
    (tmp_path / "r.json").write_text(json.dumps({"version": 1, "refs": {"x/.zarray": json.dumps(array), **refs}}))
    opened = ts.open(f"file://{tmp_path}/r.json|reference:x/|zarr2:").result()
    object_server.log.clear()
    assert np.array_equal(opened.read().result(), values)
    assert len(object_server.log) <= 4


def _bucket_options(endpoint):
    """Return what s3fs needs to reach a server of the test run."""
    return {"key": "a", "secret": "b", "client_kwargs": {"endpoint_url": endpoint, "region_name": "us-east-1"}}


@pytest.mark.parametrize("name", ["r.json.zst", "r3.parq"])
def test_sets_and_files_in_a_bucket(document, hdf5, tmp_path, moto_bucket, name):
    """Sets and targets on S3, with the options of each; the set local, the targets remote, too."""
    import s3fs

    endpoint, bucket = moto_bucket
    options = _bucket_options(endpoint)
    fs = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    fs.pipe_file(f"{bucket}/arrays/a.h5", hdf5.read_bytes())
    refs = references.open(pointed(document, f"s3://{bucket}/arrays/a.h5"))
    base = {"driver": "fsspec", "url": f"s3://{bucket}/arrays/{name}", "storage_options": options}
    refs.save(base, "parquet" if name.endswith("parq") else "json.zst", overwrite=True)
    FORMS[name](refs, tmp_path / name)
    targets = {f"s3://{bucket}/": options}
    for where in (base, f"file://{tmp_path}/{name}"):
        kvstore = {"driver": "reference", "base": where, "targets": targets}
        assert_arrays(kvstore, hdf5, ("temp", "holes", "scalar"))


def test_targets_of_every_protocol_in_one_set(tmp_path, object_server, moto_bucket):
    """Files however they are named, web servers, buckets, memory and archives serve chunks of one array, each its own."""
    import s3fs

    values = np.arange(90, dtype="u1").reshape(9, 10)
    endpoint, bucket = moto_bucket
    options = _bucket_options(endpoint)
    files = s3fs.S3FileSystem(**options, skip_instance_cache=True)
    files.pipe_file(f"{bucket}/of-every/t", values.tobytes())
    object_server.put("t", values.tobytes())
    (tmp_path / "t").write_bytes(values.tobytes())
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("t", values.tobytes())
    context = ts.Context()
    ts.KvStore.open("memory://t", context=context).result()[""] = values.tobytes()
    urls = [
        f"{tmp_path}/t",
        f"file://{tmp_path}/t",
        f"local://{tmp_path}/t",
        "t",
        f"{object_server.url}/t",
        f"s3://{bucket}/of-every/t",
        f"s3a://{bucket}/of-every/t",
        "memory://t",
        f"zip://t::{tmp_path}/a.zip",
    ]
    array = {
        "zarr_format": 2, "shape": [9, 10], "chunks": [1, 10], "dtype": "|u1", "order": "C",
        "compressor": None, "filters": None, "fill_value": None,
    }  # fmt: skip
    refs = {f"x/{n}.0": [url, 10 * n, 10] for n, url in enumerate(urls)}
    (tmp_path / "r.json").write_text(json.dumps({"x/.zarray": json.dumps(array), **refs}))
    base = {"driver": "reference", "base": f"file://{tmp_path}/r.json", "targets": {f"s3://{bucket}/": options}}
    spec = {"driver": "zarr", "kvstore": {**base, "path": "x/"}}
    assert np.array_equal(ts.open(spec, context=context).result().read().result(), values)


@pytest.mark.parametrize("name", ["r.json", "r0.json", "r.parq"])
def test_generated_references_are_read(tmp_path, name):
    """What templates and `gen` describe are chunks like any other, to us and, through us, to zarr-python."""
    import zarr

    values = np.arange(60, dtype="<i2")
    (tmp_path / "t").write_bytes(b"head" + values.tobytes())
    array = {
        "zarr_format": 2, "shape": [60], "chunks": [5], "dtype": "<i2", "order": "C",
        "compressor": None, "filters": None, "fill_value": -1,
    }  # fmt: skip
    entry = {
        "key": "x/{{i}}",
        "url": "{{f(c='t')}}",
        "offset": "{{4 + 10 * i}}",
        "length": "10",
        "dimensions": {"i": {"stop": 11}},
    }
    document = {
        "version": 1,
        "templates": {"f": "{{c}}"},
        "gen": [entry],
        "refs": {".zgroup": '{"zarr_format": 2}', "x/.zarray": json.dumps(array)},
    }
    (tmp_path / "s.json").write_text(json.dumps(document))
    references.open(tmp_path / "s.json").save(tmp_path / name, version=0 if "0" in name else 1)
    expected = np.where(np.arange(60) < 55, values, -1)
    found = ts.open(f"file://{tmp_path}/{name}|reference:x/").result()
    assert np.array_equal(found.read().result(), expected)
    assert np.array_equal(found[7:53:9].read().result(), expected[7:53:9])
    assert np.array_equal(zarr.open_group(f"zarr2::file://{tmp_path}/{name}", mode="r")["x"][:], expected)


def test_netcdf3(tmp_path):
    """Record and fixed variables of both NetCDF 3 variants, small ones inlined behind blosc."""
    from kerchunk.netCDF3 import NetCDF3ToZarr
    from scipy.io import netcdf_file

    for version in (1, 2):
        path = tmp_path / f"{version}.nc"
        with netcdf_file(path, "w", version=version) as f:
            f.createDimension("t", None)
            f.createDimension("x", 50)
            f.createVariable("v", "f8", ("t", "x"))[:] = np.arange(200.0).reshape(4, 50)
            f.createVariable("i", "i2", ("t",))[:] = [5, 0, -7, 9]
            f.createVariable("w", "f4", ("x",))[:] = np.arange(50)
            f.createVariable("one", "i4", ())[...] = 42
        for threshold in (0, 1000):
            document = NetCDF3ToZarr(str(path), inline_threshold=threshold).translate()
            (tmp_path / "r.json").write_text(json.dumps(document))
            with netcdf_file(path, "r", mmap=False) as f:
                for name, variable in f.variables.items():
                    array = ts.open(f"file://{tmp_path}/r.json|reference:{name}/|zarr2:").result()
                    assert_same(array.read().result(), np.asarray(variable[...]).reshape(array.shape))


def test_netcdf4(tmp_path, scan_hdf5):
    """A file by netCDF4: packed integers and times stay as stored, zeros and fill values included."""
    import netCDF4

    with netCDF4.Dataset(tmp_path / "a.nc", "w") as f:
        f.createDimension("t", None)
        f.createDimension("x", 30)
        packed = f.createVariable("packed", "i2", ("t", "x"), zlib=True, fill_value=-999, chunksizes=(2, 20))
        packed.scale_factor, packed.add_offset = 0.5, 10.0
        packed.set_auto_maskandscale(False)
        packed[:] = np.arange(150).reshape(5, 30) - 75
        packed[2] = -999
        f.createVariable("t", "f8", ("t",))[:] = np.arange(5)
        group = f.createGroup("model")
        group.createVariable("y", "u4", ("x",), compression="zlib", shuffle=True)[:] = np.arange(30)
    (tmp_path / "r.json").write_text(json.dumps(scan_hdf5(tmp_path / "a.nc", inline_threshold=0)))
    with netCDF4.Dataset(tmp_path / "a.nc") as f:
        f.set_auto_maskandscale(False)
        for name in ("packed", "t", "model/y"):
            array = ts.open(f"file://{tmp_path}/r.json|reference:{name}/|zarr2:").result()
            assert_same(array.read().result(), f[name][...])


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_virtualizarr(tmp_path, form, virtualize):
    """VirtualiZarr's exports of an HDF5 file, scalars included where its writer can."""
    rng = np.random.default_rng(3)
    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.create_dataset("v", data=rng.random((20, 30)), chunks=(6, 7), compression="gzip", shuffle=True)
        f.create_dataset("i", data=rng.integers(0, 5, 20, dtype="u2"), chunks=(6,), fillvalue=3)
        if form == "json":
            f.create_dataset("s", data=5.0)
    path = tmp_path / f"r.{form}"
    virtualize(tmp_path / "a.h5", path, form)
    names = ("v", "i", "s") if form == "json" else ("v", "i")
    assert_arrays({"driver": "reference", "base": f"file://{path}"}, tmp_path / "a.h5", names)


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("compression", [None, "zlib"])
def test_tifffile(tmp_path, version, compression, tiff_references):
    """tifffile's sets: the array at the root, edge tiles, templates."""
    data = np.random.default_rng(5).integers(0, 60000, (100, 120), dtype="u2")
    tiff_references(tmp_path, data, version, tile=(32, 32), compression=compression)
    array = ts.open(f"file://{tmp_path}/r.json|reference:|zarr2:").result()
    assert_same(array.read().result(), data)
    assert_same(array[30:70:3, 110:].read().result(), data[30:70:3, 110:])


def test_live_filesystems_are_read_as_the_sets_they_hold(document, hdf5, tmp_path, object_server):
    """A live `ReferenceFileSystem`, a mapper and a zarr store over it read whole arrays with one request."""
    import fsspec
    import zarr

    object_server.put("a.h5", hdf5.read_bytes())
    live = fsspec.filesystem(
        "reference",
        fo=pointed(document, f"{object_server.url}/a.h5"),
        remote_protocol="http",
        remote_options={"asynchronous": True},
        skip_instance_cache=True,
        asynchronous=True,
    )
    with h5py.File(hdf5) as f:
        for source in (live.get_mapper("temp"), zarr.storage.FsspecStore(live, read_only=True, path="temp")):
            object_server.log.clear()
            array = ts.open({"driver": "zarr", "kvstore": source}).result()
            assert_same(array.read().result(), f["temp"][()])
            assert object_server.count() == 1


def test_options_of_a_live_web_filesystem_are_not_lost(document, hdf5, object_server):
    """One whose web filesystem carries headers is read by its own code, which sends them."""
    import fsspec

    object_server.put("a.h5", hdf5.read_bytes())
    live = fsspec.filesystem(
        "reference",
        fo=pointed(document, f"{object_server.url}/a.h5"),
        remote_protocol="http",
        remote_options={"headers": {"X-Token": "hush"}},
        skip_instance_cache=True,
    )
    array = ts.open({"driver": "zarr", "kvstore": live.get_mapper("g/deep/x")}).result()
    with h5py.File(hdf5) as f:
        assert_same(array.read().result(), f["g/deep/x"][()])
    assert all(headers.get("X-Token") == "hush" for headers in object_server.headers_seen)


@pytest.mark.parametrize("name", ["r.json", "r.json.zst", "r3.parq"])
def test_detection_finds_arrays_inside_sets(document, hdf5, tmp_path, name):
    """`<set>|reference:<array>` without a format, and the set entered by `auto`, read the array."""
    FORMS[name](references.open(document), tmp_path / name)
    array = ts.open(f"file://{tmp_path}/{name}|reference:temp/").result()
    with h5py.File(hdf5) as f:
        assert_same(array[:, 5].read().result(), f["temp"][:, 5])
    with pytest.raises(ValueError, match='"temp"'):
        ts.open(f"file://{tmp_path}/{name}").result()


@pytest.mark.parametrize("name", ["r.json", "r.parq"])
def test_zarr_python_over_fsspec_reads_the_same(document, tmp_path, name):
    """Where zarr-python over a `ReferenceFileSystem` is right, values, attributes and fill values are the same."""
    import zarr

    whole = {
        key: ref for key, ref in document["refs"].items() if not key.startswith(("g/", "empty/", "holes/", "nan/"))
    }
    references.open({"version": 1, "refs": whole}).save(tmp_path / name)
    options = {"fo": str(tmp_path / name), "remote_protocol": "file"}
    group = zarr.open_group("reference://", mode="r", zarr_format=2, use_consolidated=False, storage_options=options)
    for array in ("temp", "plain", "big", "scalar", "zeros", "grown", "fixed", "names"):
        ours = ts.open(f"file://{tmp_path}/{name}|reference:{array}/|zarr2:").result()
        theirs = group[array]
        found, expected = ours.read().result(), np.asarray(theirs[...])
        assert found.shape == expected.shape == theirs.shape
        assert found.tolist() == expected.tolist(), array


def test_an_array_opened_again_shows_the_set_of_now(tmp_path):
    """An array opened again, in the context of a handle that is still open, shows what the set refers to by now."""
    ts.open_group(f"file://{tmp_path}/set.json|reference:", mode="a", zarr_format=2).result()
    url, context = f"file://{tmp_path}/set.json|reference:p/|zarr2:", ts.Context()
    made = ts.open(url, create=True, dtype="int32", shape=[2]).result()
    first = ts.open(url, context=context).result()
    assert first.read().result().tolist() == [0, 0]
    made[...] = [5, 6]
    assert ts.open(url, context=context).result().read().result().tolist() == [5, 6]


@pytest.mark.parametrize("threads", [None, 2])
@pytest.mark.parametrize("ending", ["json", "json.gz"])
def test_a_copy_makes_the_set(tmp_path, ending, threads):
    """A copy into a reference set that does not exist makes it, also where chunks reach beyond the array."""
    values = np.arange(63, dtype="i4").reshape(7, 9)
    source = ts.open_group(tmp_path / "source", mode="w").result().create_array(
        "v", shape=values.shape, dtype="i4", chunks=[3, 4]
    ).result()  # fmt: skip
    source[...] = values
    context, url = ts.Context(), f"file://{tmp_path}/made.{ending}|reference:p/|zarr2:"
    schema = {"zarr_format": 2, "chunks": [2, 2]}
    with ThreadPoolExecutor(threads) if threads else nullcontext() as executor:
        ts.copy(source, url, schema=schema, executor=executor, max_memory=2000, context=context).result()
    assert np.array_equal(ts.open(url, context=context).result().read().result(), values)
