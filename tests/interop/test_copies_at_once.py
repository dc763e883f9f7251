"""Copies in one commit into sets and datasets: what they take, what they refuse, and who changes what meanwhile."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fsstore as ts
from fsstore import references
from fsstore.job import copy as copy_module
from fsstore.job import staging
from fsstore.kvstore.contract.driver import UNKNOWN
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.runtime import execution

OLD = np.arange(60, dtype="i4").reshape(10, 6)
NEW = np.arange(1000, 1072, dtype="i4").reshape(12, 6)
SCHEMA = {"zarr_format": 2, "chunks": [2, 3], "attributes": {"old": 1}}
PARQUET = "file://{}/refs.parquet|reference:"
JSON = "file://{}/refs.json|reference:"


def read(place):
    return ts.open(place).result().read().result()


def put(values, place, **options):
    return ts.copy(ts.array(values), place, schema=SCHEMA, atomic=True, **options).result()


def made_anew(values, place):
    """Make another array at a place, as programs do that know nothing of jobs."""
    options = {"dtype": "int32", "shape": values.shape, "create": True, "delete_existing": True}
    ts.open(f"{place}|zarr2:", **options).result()[:] = values


def left_in(folder):
    return sorted(path.name for path in folder.rglob("*") if "fsstore-job" in path.name)


@pytest.fixture
def source(tmp_path):
    """Return an array with attributes, larger than the old one."""
    group = ts.open_group(tmp_path / "in", mode="w").result()
    array = group.create_array("new", shape=NEW.shape, dtype="i4", chunks=[5, 6], attributes={"new": 2}).result()
    array[:] = NEW
    return array


@pytest.fixture
def dataset(tmp_path):
    """Return a virtual dataset of two files that are packed in different ways."""
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4")
    for month, scale in enumerate([0.5, 0.25, 0.1]):
        time = np.arange(3) + 3 * month
        made = xarray.Dataset({"t": ("time", time * 1.0), "u": ("time", time * 1.0)}, {"time": time})
        packed = {"t": {"dtype": "i2", "_FillValue": -1, "scale_factor": scale}}
        made.to_netcdf(tmp_path / f"m{month}.nc", encoding=packed)
    place = tmp_path / "year.mosaic"
    references.combine([tmp_path / "m0.nc", tmp_path / "m1.nc"], "time").result().save(str(place))
    return place


def test_what_killed_workers_began_goes(tmp_path, source, monkeypatch):
    """Files that a worker had begun when it was killed, in a database that nobody opens again, go with the job."""
    commit = staging.Stage.commit

    async def killed_before(self, *arguments, **options):
        (stage,) = (tmp_path / "db/fsstore-data").iterdir()
        data = stage / "0123456789abcdef/d"
        data.mkdir(parents=True)
        (data / f"{'ab' * 16}.__lock").touch()
        (data.parent / "manifest.ocdbt.__lock").touch()
        await commit(self, *arguments, **options)

    monkeypatch.setattr(staging.Stage, "commit", killed_before)
    ts.copy(source, f"file://{tmp_path}/db/|ocdbt:x/", schema={"chunks": [2, 3]}, atomic=True).result()
    assert not list(tmp_path.rglob("*.__lock"))
    assert not list(tmp_path.rglob("0123456789abcdef"))
    assert np.array_equal(read(f"file://{tmp_path}/db/|ocdbt:x/"), NEW)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("place", [JSON, "file://{}/db/|ocdbt:"])
def test_an_update_in_one_commit(tmp_path, source, place, version):
    """An array keeps its layout, and gets the values, the attributes and the shape of the source, in one step."""
    target = f"{place.format(tmp_path)}x/"
    schema = {**SCHEMA, "zarr_format": version}
    ts.copy(ts.array(OLD), target, schema=schema, atomic=True).result()
    before = ts.open(target.replace("ocdbt:", "ocdbt:@v2/")).result()
    assert np.array_equal(before.read().result(), OLD)
    ts.copy(source, target, atomic=True, if_exists="update").result()
    made = ts.open(target).result()
    assert np.array_equal(made.read().result(), NEW)
    assert made.chunk_layout.write_chunk.shape == (2, 3)
    assert made.attrs.asdict() == {"old": 1, "new": 2}
    assert np.array_equal(before.read().result(), OLD)
    with pytest.raises(ts.errors.FailedPreconditionError, match="smaller"):
        ts.copy(ts.array(OLD), target, atomic=True, if_exists="update").result()
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("place", [JSON, "file://{}/db/|ocdbt:"])
def test_what_others_change_meanwhile_is_not_lost(tmp_path, source, place, monkeypatch):
    """Attributes that somebody sets during an update stay; another layout that somebody makes ends it with an error."""
    target = f"{place.format(tmp_path)}x/"
    put(OLD, target)
    real = copy_module.Stage.of

    def during(change):
        async def of(*given):
            monkeypatch.setattr(copy_module.Stage, "of", real)
            await execution.offload(change)
            return await real(*given)

        monkeypatch.setattr(copy_module.Stage, "of", of)

    during(lambda: ts.open(target).result().attrs.update({"mine": 3}))
    ts.copy(source, target, atomic=True, if_exists="update").result()
    assert ts.open(target).result().attrs.asdict() == {"old": 1, "mine": 3, "new": 2}
    during(lambda: made_anew(NEW[:7], target))
    with pytest.raises(ts.errors.AbortedError, match="changed by somebody else"):
        ts.copy(source, target, atomic=True, if_exists="update").result()
    monkeypatch.undo()
    assert np.array_equal(read(target), NEW[:7])
    ts.copy(source, target, atomic=True, if_exists="update").result()
    assert np.array_equal(read(target), NEW)
    assert left_in(tmp_path) == []


def test_new_arrays_appear_in_a_parquet_set(tmp_path):
    """Arrays that are new, in several files too, appear with one write of the metadata; fsspec finds them."""
    reference = pytest.importorskip("fsspec.implementations.reference")
    pytest.importorskip("pyarrow")
    place, root = PARQUET.format(tmp_path), tmp_path / "refs.parquet"
    put(OLD, f"{place}x/")
    metadata = json.loads((root / ".zmetadata").read_bytes())
    (root / ".zmetadata").write_text(json.dumps({**metadata, "record_size": 10}))
    put(NEW, f"{place}g/y/")
    assert np.array_equal(read(f"{place}x/"), OLD)
    assert np.array_equal(read(f"{place}g/y/"), NEW)
    assert sorted(path.name for path in (root / "g/y").iterdir()) == ["refs.0.parq", "refs.1.parq"]
    assert "fsstore_claim" not in (root / ".zmetadata").read_text()
    found = reference.LazyReferenceMapper(str(root), engine="pyarrow")["g/y/5.1"]
    assert (tmp_path / found[0]).is_file()
    assert bool(ts.references.verify(str(root)))
    assert left_in(tmp_path) == []


def test_a_plain_copy_into_a_parquet_set(tmp_path, source):
    """A set that holds no chunk before its metadata takes new arrays in one step; what is there goes first."""
    pytest.importorskip("pyarrow")
    place = PARQUET.format(tmp_path)
    for values, options in ((OLD, {}), (NEW, {"if_exists": "replace"})):
        ts.copy(ts.array(values), f"{place}x/", schema=SCHEMA, **options).result()
        assert np.array_equal(read(f"{place}x/"), values)
    ts.copy(tmp_path / "in", place.replace("refs", "all")).result()
    assert np.array_equal(read(f"{place.replace('refs', 'all')}new/"), NEW)
    assert left_in(tmp_path) == []


def test_an_array_of_one_file_is_replaced_in_a_parquet_set(tmp_path):
    """References of an array whose documents stay are replaced with its file; chunks that are gone are fill values."""
    pytest.importorskip("pyarrow")
    place = PARQUET.format(tmp_path)
    put(OLD, f"{place}x/")
    metadata = (tmp_path / "refs.parquet/.zmetadata").read_bytes()
    other = OLD + 100
    other[2:4, :3] = 0
    put(other, f"{place}x/", if_exists="replace")
    assert np.array_equal(read(f"{place}x/"), other)
    ts.copy(ts.array(OLD), f"{place}x/", atomic=True, if_exists="update").result()
    assert np.array_equal(read(f"{place}x/"), OLD)
    assert (tmp_path / "refs.parquet/.zmetadata").read_bytes() == metadata


def test_what_no_parquet_set_changes_in_one_step(tmp_path, source):
    """Other metadata, or references in several files, are refused before anything is written."""
    pytest.importorskip("pyarrow")
    place, root = PARQUET.format(tmp_path), tmp_path / "refs.parquet"
    put(OLD, f"{place}x/")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for options in ({"schema": {**SCHEMA, "chunks": [5, 6]}, "if_exists": "replace"}, {"if_exists": "update"}):
        with pytest.raises(ts.errors.UnimplementedError, match="gets other metadata.*copy to a path that is new"):
            ts.copy(source, f"{place}x/", atomic=True, **options).result()
    metadata = json.loads((root / ".zmetadata").read_bytes())
    (root / ".zmetadata").write_text(json.dumps({**metadata, "record_size": 5}))
    with pytest.raises(ts.errors.UnimplementedError, match="references in 2 files"):
        put(OLD + 1, f"{place}x/", if_exists="replace")
    after = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert {path for path in after if after[path] != before.get(path)} == {root / ".zmetadata"}
    assert before.keys() == after.keys()


MOMENTS = ["when it looks for changes", "before its files", "after its files"]


def meanwhile(monkeypatch, moment, action):
    """Have another writer act once, at a moment of a writer that has claimed its places in a set in parquet."""
    read_many, write_many = LocalDriver.read_many, LocalDriver.write_many

    async def act():
        monkeypatch.setattr(LocalDriver, "read_many", read_many)
        monkeypatch.setattr(LocalDriver, "write_many", write_many)
        await action()

    async def reading(driver, reads):
        if any(each.key.endswith(".zmetadata") and each.if_not_equal != UNKNOWN for each in reads):
            await act()
        return await read_many(driver, reads)

    async def writing(driver, writes):
        if not any(each.key.endswith(".parq") for each in writes):
            return await write_many(driver, writes)
        if moment == MOMENTS[1]:
            await act()
        stamps = await write_many(driver, writes)
        if moment == MOMENTS[2]:
            await act()
        return stamps

    if moment == MOMENTS[0]:
        monkeypatch.setattr(LocalDriver, "read_many", reading)
    else:
        monkeypatch.setattr(LocalDriver, "write_many", writing)


@pytest.mark.parametrize("moment", MOMENTS)
def test_two_writers_of_one_new_array(tmp_path, moment, monkeypatch):
    """The one that comes first has the claim, and the other is told: the array has the references of one writer."""
    pytest.importorskip("pyarrow")
    place, came = f"{PARQUET.format(tmp_path)}x/", []

    async def other():
        came.append(moment)
        with pytest.raises(ts.errors.FailedPreconditionError, match="is being changed by a copy of"):
            await ts.copy(ts.array(NEW[:10]), place, schema=SCHEMA, atomic=True)

    meanwhile(monkeypatch, moment, other)
    put(OLD, place)
    assert came == [moment]
    assert np.array_equal(read(place), OLD)
    assert bool(ts.references.verify(str(tmp_path / "refs.parquet")))


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_writer_whose_claim_is_lost(tmp_path, moment, monkeypatch):
    """A set that was changed after the claim is claimed anew, and what was changed stays."""
    pytest.importorskip("pyarrow")
    place, came = PARQUET.format(tmp_path), []
    put(OLD, f"{place}first/")

    async def other():
        came.append(moment)
        await ts.copy(ts.array(NEW), f"{place}other/", schema={**SCHEMA, "chunks": [3, 3]}, atomic=True)

    meanwhile(monkeypatch, moment, other)
    put(OLD + 1, f"{place}x/")
    assert came == [moment]
    for name, values in {"first": OLD, "other": NEW, "x": OLD + 1}.items():
        assert np.array_equal(read(f"{place}{name}/"), values)


def test_a_virtual_dataset_takes_copies(dataset, tmp_path):
    """New arrays stand beside those of the files, also after files were added; arrays of layers are replaced."""
    place = f"file://{dataset}|mosaic:"
    put(OLD, f"{place}extra/")
    opened = ts.open(f"{place}t").result()
    references.append(str(dataset), tmp_path / "m2.nc").result()
    assert np.array_equal(read(f"{place}extra/"), OLD)
    assert np.allclose(read(f"{place}t"), np.arange(9))
    assert np.allclose(read(f"{place}u"), np.arange(9))
    put(NEW, f"{place}t/", if_exists="replace")
    assert np.array_equal(read(f"{place}t"), NEW)
    assert np.allclose(opened.read().result(), np.arange(6))
    assert np.allclose(read(f"{place}u"), np.arange(9))
    assert bool(ts.references.verify(str(dataset)))
    with pytest.raises(ts.errors.FailedPreconditionError, match='"t" was replaced by a copy'):
        references.drop(str(dataset), "m2.nc").result()
    assert left_in(tmp_path) == []


def test_a_layered_array_is_updated(dataset, tmp_path):
    """An array of layers that is updated becomes one of references, of the type and the chunks that it had."""
    place = f"file://{dataset}|mosaic:"
    shown = ts.open(f"{place}t").result()
    ts.copy(ts.array(np.arange(8.0) / 4), f"{place}t/", atomic=True, if_exists="update").result()
    made = ts.open(f"{place}t").result()
    assert made.dtype == shown.dtype
    assert np.array_equal(made.read().result(), (np.arange(8.0) / 4).astype(made.dtype.numpy_dtype))
    assert made.chunk_layout.write_chunk == shown.chunk_layout.write_chunk
    assert left_in(tmp_path) == []


def test_a_dataset_in_memory_takes_nothing(dataset, tmp_path):
    """A dataset that is saved nowhere has no document to replace."""
    combined = references.combine([tmp_path / "m0.nc"], "time").result()
    with pytest.raises(ts.errors.UnimplementedError, match="cannot take a copy in one step"):
        ts.copy(ts.array(OLD), combined.store / "x/", atomic=True).result()
