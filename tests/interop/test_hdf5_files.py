"""HDF5 files of every layout, index, filter and type are read as h5py reads them."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
import xarray as xr
from h5py import h5d, h5p, h5s, h5t

import fsstore as ts
from fsstore.context.context import Context
from fsstore.errors import DataLossError
from fsstore.kvstore.spec_parse import kv_spec, open_kv
from fsstore.runtime import execution
from fsstore.scan.hdf5.scanner import Hdf5Scanner

sys.path.insert(0, str(Path(__file__).parent))
import hdf5_corpus
from hdf5_corpus import CORPUS
from hdf5_walks import assert_same

sys.path.pop(0)


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Give the directory of the corpus, made by a process of its own.

    Filters and low-level calls go wrong in a process in which netCDF4 has loaded another library of HDF5, and has
    named its own filters in the environment.
    """
    made = tmp_path_factory.mktemp("hdf5")
    clean = {name: value for name, value in os.environ.items() if name != "HDF5_PLUGIN_PATH"}
    subprocess.run([sys.executable, hdf5_corpus.__file__, str(made)], check=True, timeout=240, env=clean)
    return made


def stored(name, folder):
    """Return the path of a file, and what h5py reads of it by dataset."""
    found = pickle.loads((folder / f"{name}.pickle").read_bytes())
    if isinstance(found, Exception):
        raise AssertionError(f"{name} was not made") from found
    return folder / f"{name}.h5", found


def notes(path):
    """Return what is left out of a file, and why."""
    opened = execution.call(open_kv(kv_spec(f"file://{path}|hdf5:"), Context()))
    return execution.call(opened.driver.hierarchy()).notes


def read(path, name, **members):
    """Return the values of a dataset."""
    spec = {"driver": "zarr", "kvstore": f"file://{path}|hdf5:{name}/", **members}
    return np.asarray(ts.open(spec).result().read().result())


@pytest.mark.parametrize("name", [name for name in CORPUS if name not in ("structures", "links")])
def test_values_are_those_of_h5py(name, folder):
    """Every dataset of a file has the values that h5py reads, whatever its index, filters and type."""
    path, wanted = stored(name, folder)
    assert not notes(path)
    assert wanted
    for each, want in wanted.items():
        got = read(path, each)
        assert got.dtype == want.dtype.newbyteorder("=") or want.dtype.kind in "OVM"
        if want.dtype.kind in "fc":
            np.testing.assert_array_equal(got, want)
        else:
            assert got.tolist() == want.tolist(), each


@pytest.mark.parametrize("name", CORPUS)
def test_structures_are_those_of_h5py(name, folder):
    """Every object of a file is parsed to what h5py says of it."""
    assert_same(folder / f"{name}.h5")


def test_fields_of_records_are_those_of_h5py(folder):
    """Records are read by field, those with gaps between the fields and those never written too."""
    path, wanted = stored("structures", folder)
    assert wanted
    for name, fields in wanted.items():
        for field, want in fields.items():
            np.testing.assert_array_equal(read(path, name, field=field), want)


def test_links_are_followed_and_nothing_costs_the_file(folder):
    """Soft and hard links show what they lead to; cycles, dangling links and odd types leave out one object each."""
    path, _ = stored("links", folder)
    for name in ("g/h/x", "soft", "hard", "g/h/soft2", "chain"):
        assert read(path, name).tolist() == [0, 1, 2]
    left_out = notes(path)
    assert set(left_out) == {"nowhere", "away", "g/h/cycle", "loop", "empty"}
    assert read(path, "lists").tolist() == ["[1, 2, 3]", "[]"]
    assert "another file" in left_out["away"]
    assert read(path, "reference").item() in ("/hard", "/g/h/x")  # it has both paths


@pytest.mark.parametrize("numbered", [True, False])
@pytest.mark.parametrize("other", ["lat_hard", "a_hard"])
def test_a_scale_with_two_names(numbered, other, tmp_path):
    """Dimensions are called as netCDF4 calls them where a hard link gives a scale another name."""
    with h5py.File(tmp_path / "a.nc", "w") as file:
        file["lat"], file["v"] = np.arange(3.0), np.arange(3)
        file["lat"].make_scale("lat")
        file["v"].dims[0].attach_scale(file["lat"])
        if numbered:
            file["lat"].attrs["_Netcdf4Dimid"] = np.int32(0)
        file[other] = file["lat"]
    with netCDF4.Dataset(tmp_path / "a.nc") as file:
        want = {name: list(each.dimensions) for name, each in file.variables.items()}
    found = ts.list_arrays(f"file://{tmp_path}/a.nc")
    assert {each.path: each.attributes["_ARRAY_DIMENSIONS"] for each in found} == want


def test_the_corpus_is_large():
    """There are more than 200 files: a maker that fails would fail its test, not vanish."""
    assert len(CORPUS) > 200


def test_external_storage_is_read_under_the_policy(tmp_path):
    """Values in another file are read from there, unless `allow` forbids it."""
    np.arange(50, dtype="i4").tofile(tmp_path / "raw.bin")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("v", (10, 5), "i4", external=[(str(tmp_path / "raw.bin"), 0, 200)])
    assert read(path, "v").tolist() == np.arange(50).reshape(10, 5).tolist()
    kvstore = {"driver": "hdf5", "base": f"file://{path}", "path": "v/", "allow": ["file:///elsewhere"]}
    with pytest.raises(ts.errors.PermissionDeniedError, match="allow"):
        ts.open({"driver": "zarr", "kvstore": kvstore}).result().read().result()


ENGINES = ("h5netcdf", "netcdf4")
DIFFERENT = {("types-latest", "triples"), ("types", "triples")}
"""Variables whose elements are arrays: both engines drop the axis they add from the names of dimensions."""
# netCDF4 ends the process at one of the random files
ALL = [name for name in CORPUS if name not in ("links", "structures") and not name.startswith("any-")]
SOME = ALL[::10]


def shown_by(engine, folder, names):
    """Return what an engine shows of files, or why it refuses one."""
    target = folder / f"{engine}-{len(names)}.peer"
    if not target.exists():
        clean = {name: value for name, value in os.environ.items() if name != "HDF5_PLUGIN_PATH"}
        script = Path(hdf5_corpus.__file__).with_name("hdf5_peers.py")
        subprocess.run([sys.executable, script, engine, target, *names], check=True, timeout=500, env=clean)
    return pickle.loads(target.read_bytes())


def place_of(where, folder, name, object_server, moto_bucket):
    """Return the place of a file: here, on a web server, or in a bucket."""
    path = folder / f"{name}.h5"
    if where == "here":
        return f"file://{path}"
    if where == "web":
        object_server.put(f"corpus/{name}.h5", path.read_bytes())
        return f"{object_server.url}/corpus/{name}.h5"
    endpoint, bucket = moto_bucket
    root = {"driver": "s3", "bucket": bucket, "endpoint": endpoint, "aws_region": "us-east-1"}
    ts.KvStore.open(root).result().write(f"corpus/{name}.h5", path.read_bytes()).result()
    return {**root, "path": f"corpus/{name}.h5"}


@pytest.mark.usefixtures("s3_credentials")
@pytest.mark.parametrize("where", ["here", "web", "bucket"])
@pytest.mark.parametrize("names", [SOME, pytest.param(ALL, marks=pytest.mark.long)], ids=["some", "all"])
def test_datasets_are_those_of_the_other_engines(where, names, folder, object_server, moto_bucket):
    """`Dataset.identical` says that each file is what h5netcdf shows, and what netcdf4 shows, wherever the file lies."""
    peers = {engine: shown_by(engine, folder, names) for engine in ENGINES}
    compared = dict.fromkeys(ENGINES, 0)
    for name in names:
        place = place_of(where, folder, name, object_server, moto_bucket)
        got = xr.open_dataset({"driver": "hdf5", "base": place}, engine="fsstore", decode_cf=False).load()
        for engine, found in peers.items():
            want = found[name]
            if isinstance(want, str):
                continue
            left_out = [each for each in want.variables if (name, each) in DIFFERENT]
            assert got.drop_vars(left_out).identical(want.drop_vars(left_out)), (name, engine)
            compared[engine] += 1
    assert compared["h5netcdf"] >= len(names) - 3
    assert compared["netcdf4"] >= 0.5 * len(names)


def test_names_of_other_encodings(tmp_path):
    """A dataset whose name is not UTF-8 is listed and read; a set, whose documents are UTF-8, is said to lack it."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset(b"t\xe9mp", data=np.arange(10), chunks=(3,), compression="gzip")
        file.create_dataset("ok", data=np.arange(5))
    group = ts.open_group(tmp_path / "a.h5").result()
    assert list(group) == ["ok", "t\udce9mp"]
    assert group["t\udce9mp"].read().result().tolist() == list(range(10))
    with pytest.warns(UserWarning, match=r"lacks \"t\\xe9mp\": its name is not UTF-8"):
        refs = ts.references.scan(tmp_path / "a.h5")
    refs.save(str(tmp_path / "a.json"))
    assert list(ts.open_group(tmp_path / "a.json").result()) == ["ok"]


def test_fields_in_another_order_than_their_places_keep_their_values(tmp_path):
    """A record whose first field stands last in the file has each value under its own name."""
    kind = np.dtype({"names": ["a", "b", "c"], "formats": ["S5", "S10", "i4"], "offsets": [14, 4, 0]})
    values = np.zeros(2, kind)
    values["a"], values["b"], values["c"] = [b"aaaa", b"a"], [b"bbbb", b"b"], [1, 2]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        text = [h5t.C_S1.copy() for _ in "ab"]
        for each, size in zip(text, (5, 10), strict=True):
            each.set_size(size)
        made = h5t.create(h5t.COMPOUND, 19)
        made.insert(b"a", 14, text[0])
        made.insert(b"b", 4, text[1])
        made.insert(b"c", 0, h5t.STD_I32LE)
        found = h5d.create(file.id, b"r", made, h5s.create_simple((2,)))
        found.write(h5s.ALL, h5s.ALL, values, made)
    got = ts.open(f"file://{tmp_path}/a.h5|hdf5:r").result().read().result()
    for name in "abc":
        assert got[name].tolist() == values[name].tolist()


def test_a_name_with_a_line_break_is_left_out_by_name(tmp_path):
    """Chunks of it could not be found by their keys, so its values would be fill values."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a\nb"], file["c"] = np.arange(4), np.arange(3)
    with pytest.warns(UserWarning, match="its name has a line break"):
        assert [each.path for each in ts.list_arrays(f"file://{tmp_path}/a.h5")] == ["c"]


@pytest.mark.parametrize("size", [512, 1024, 2048])
def test_a_file_behind_a_block_of_the_user_is_recognised(size, tmp_path):
    """Nobody has to say that it is HDF5."""
    with h5py.File(tmp_path / "a.bin", "w", userblock_size=size) as file:
        file["a"] = np.arange(4)
    group = ts.open_group(f"file://{tmp_path}/a.bin").result()
    assert group["a"].read().result().tolist() == [0, 1, 2, 3]


@pytest.fixture
def scans(monkeypatch):
    """Count the scans of files."""
    counted = []
    scan = Hdf5Scanner.scan

    async def counting(self, source, members):
        counted.append(source.describe())
        return await scan(self, source, members)

    monkeypatch.setattr(Hdf5Scanner, "scan", counting)
    return counted


def settled(path):
    """Make a file one that was written a while ago."""
    os.utime(path, ns=(1, 1_700_000_000_000_000_000))
    return f"file://{path}|hdf5:"


def test_members_opened_one_after_the_other_share_one_scan(tmp_path, scans):
    """A local file is described once by its generation, whatever the context, and again once it is replaced."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        for number in range(20):
            file[f"a{number}"] = np.arange(number, number + 3)
    url = settled(path)
    for number in range(20):
        assert ts.open(f"{url}a{number}").result()[0].read().result() == number
    assert len(scans) == 1
    with h5py.File(path, "r+") as file:
        file["a0"][...] = 7
        file["more"] = 5
    assert ts.open(f"{url}more").result().read().result() == 5
    assert ts.open(f"{url}a0").result().read().result().tolist() == [7, 7, 7]


def test_a_file_that_has_just_been_written_is_not_remembered(tmp_path, scans):
    """The next writer could leave the same time of change; so could that of a file that this one refers to."""
    path, other = tmp_path / "a.h5", tmp_path / "b.h5"
    for value in range(20):
        with h5py.File(path, "w") as file:
            file["a"] = np.array([value])
        assert ts.open(f"file://{path}|hdf5:a").result().read().result().tolist() == [value]
    assert len(scans) == 20
    with h5py.File(path, "w") as file:
        file["a"] = h5py.ExternalLink("b.h5", "b")
    url = settled(path)
    for value in range(3):
        with h5py.File(other, "w") as file:
            file["b"] = np.arange(value + 1)
        settled(other)
        assert ts.open(f"{url}a").result().shape == (value + 1,)


def test_lists_and_records_of_any_length_are_json(tmp_path):
    """Each element is JSON that says what h5py reads, and an attribute says so; unwritten ones are empty."""
    record = [("a", "i4"), ("s", h5py.string_dtype()), ("b", h5py.vlen_dtype("i2")), ("t", "S3"), ("x", "f4", (2,))]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        lists = file.create_dataset("lists", (4,), h5py.vlen_dtype("f4"), chunks=(3,), compression="gzip")
        lists[0], lists[2] = [1, 2.5], [np.nan]
        rows = file.create_dataset("records", (2,), np.dtype(record))
        rows[0] = (1, "hé", np.array([1, -2], "i2"), b"ab", [3, 4.5])
        file.create_dataset("empty", (2, 3), h5py.vlen_dtype("i4"), chunks=(1, 3))
        file["one"] = np.array((1, b"x"), np.dtype(record[:2]))
    group = ts.open_group(f"file://{tmp_path}/a.h5").result()
    assert group["lists"].read().result().tolist() == ["[1.0, 2.5]", "[]", "[NaN]", "[]"]
    first, second = map(json.loads, group["records"].read().result())
    assert first == {"a": 1, "s": "hé", "b": [1, -2], "t": "ab", "x": [3, 4.5]}
    assert second == {"a": 0, "s": "", "b": [], "t": "", "x": [0, 0]}
    assert group["empty"].read().result().tolist() == [["[]"] * 3] * 2
    assert json.loads(group["one"].read().result().item()) == {"a": 1, "s": "x"}
    said = {each.path: each.attributes.get("_elements") for each in ts.list_arrays(f"file://{tmp_path}/a.h5")}
    assert set(said.values()) == {"JSON"}


@pytest.mark.parametrize("chunks", [None, (3,)])
@pytest.mark.parametrize("kind", ["list", "record"])
def test_a_list_that_claims_more_than_the_heap_has_is_damage(kind, chunks, tmp_path):
    """It is an error before anybody makes room for it."""
    lists = h5py.vlen_dtype("i4")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset(
            "v", (3,), lists if kind == "list" else np.dtype([("n", "i8"), ("l", lists)]), chunks=chunks
        )
        made[1] = [7] * 5 if kind == "list" else (1, np.array([7] * 5, "i4"))
        info = made.id.get_chunk_info(0).byte_offset if chunks else made.id.get_offset()
    data = bytearray((tmp_path / "a.h5").read_bytes())
    at = info + (16 if kind == "list" else 24 + 8)
    assert data[at : at + 4] == (5).to_bytes(4, "little")
    data[at : at + 4] = (2**30).to_bytes(4, "little")
    (tmp_path / "a.h5").write_bytes(data)
    with pytest.raises(DataLossError, match="an element of 4294967296 bytes, of which the file has 20"):
        ts.open(f"file://{tmp_path}/a.h5|hdf5:v").result().read().result()


def test_fill_values_that_are_not_stored_as_they_are_shown(tmp_path):
    """Records with gaps or in another order, lists in them, and texts that end at a NUL or a blank fill what is unwritten."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        gaps = np.dtype([("a", "i1"), ("b", ">f8"), ("c", "i2", (2,))], align=True)
        file.create_dataset("gaps", (3,), gaps, fillvalue=np.array((1, 2.5, [3, 4]), gaps), chunks=(2,))
        for name, padding in {"null": h5t.STR_NULLTERM, "blank": h5t.STR_SPACEPAD}.items():
            kind = h5t.C_S1.copy()
            kind.set_size(6)
            kind.set_strpad(padding)
            plist = h5p.create(h5p.DATASET_CREATE)
            plist.set_fill_value(np.array(b"ab", "S6"))
            h5d.create(file.id, name.encode(), kind, h5s.create_simple((3,)), plist)
    group = ts.open_group(f"file://{tmp_path}/a.h5").result()
    with h5py.File(tmp_path / "a.h5") as file:
        for name in file:
            got, want = group[name].read().result(), file[name][...]
            assert repr(got.tolist()) == repr(want.tolist())
            assert any(got[0].tobytes())
