"""What jobs promise beyond copying: one commit, updates, copies inside the storage, checks by level, repairs."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import fsstore as ts
from fsstore.kvstore.contract.ability import TakesValues
from fsstore.kvstore.local.driver import LocalDriver

VALUES = np.random.default_rng(1).integers(1, 1000, (24, 20, 12)).astype("i4")


def made(place, **options):
    """Return an array with values at a place."""
    options = {"shape": VALUES.shape, "dtype": "i4", "chunks": (4, 10, 12), **options}
    group = ts.open_group(place, mode="w").result()
    array = group.create_array("a", **options).result()
    array.write(VALUES).result()
    return array


def read(place):
    return ts.open(place).result().read().result()


def versions(database):
    """Return the versions in which there is anything: a database begins with an empty one."""
    return [each for each in ts.ocdbt.versions(database).result() if each.num_keys]


def left_in(folder):
    return sorted(path.name for path in folder.rglob("*") if "fsstore-job" in path.name)


@pytest.mark.parametrize("schema", [{}, {"chunks": (24, 5, 5)}], ids=["untouched", "rechunked"])
def test_a_copy_into_a_database_is_one_version(tmp_path, schema):
    """An atomic copy adds one version, also over what was there, and its values lie where the workers wrote them."""
    array = made(tmp_path / "a")
    target = f"file://{tmp_path}/db/|ocdbt:x/"
    with ThreadPoolExecutor(2) as executor:
        ts.copy(array, target, schema=schema, atomic=True, executor=executor, max_memory="250kB").result()
    assert np.array_equal(read(f"{target}|zarr3:"), VALUES)
    database = f"file://{tmp_path}/db/|ocdbt:"
    first = versions(database)
    assert len(first) == 1
    ts.copy(array[:8], target, schema=schema, atomic=True, if_exists="replace").result()
    assert len(versions(database)) == 2
    assert np.array_equal(read(f"{target}|zarr3:"), VALUES[:8])
    assert np.array_equal(read(f"file://{tmp_path}/db/|ocdbt:@v{first[0].generation}/x/|zarr3:"), VALUES)
    assert ts.ocdbt.verify(database).result().ok
    assert left_in(tmp_path) == []


def test_a_hierarchy_in_one_commit(tmp_path):
    """All arrays and groups of a hierarchy appear in the same version."""
    made(tmp_path / "a")
    ts.open_group(tmp_path / "a").result().create_array("g/b", shape=[3], dtype="i1").result()[:] = [1, 2, 3]
    ts.copy(str(tmp_path / "a"), f"file://{tmp_path}/db/|ocdbt:", atomic=True).result()
    assert len(versions(f"file://{tmp_path}/db/|ocdbt:")) == 1
    assert read(f"file://{tmp_path}/db/|ocdbt:g/b/|zarr3:").tolist() == [1, 2, 3]
    assert bool(ts.verify(f"file://{tmp_path}/db/|ocdbt:", str(tmp_path / "a")).result())


@pytest.mark.parametrize("target", ["{}/b/", "{}/db/|ocdbt:x/"])
@pytest.mark.parametrize("version", [2, 3])
def test_consolidated_metadata_are_copied_too(tmp_path, target, version):
    """A copy has consolidated metadata if its source has them, true ones, and in the same commit."""
    group = ts.open_group(tmp_path / "a", mode="w", zarr_format=version).result()
    group.create_array("g/b", shape=[3], dtype="i1").result()[:] = [1, 2, 3]
    target, options = f"file://{target}".format(tmp_path), {"atomic": "ocdbt" in target}
    ts.copy(tmp_path / "a", target, **options).result()
    collected = {2: b".zmetadata", 3: b"zarr.json"}
    store = ts.KvStore.open(target).result()
    assert b'metadata"' not in store.read(collected[version]).result().value
    group.consolidate().result()
    ts.copy(tmp_path / "a", target, if_exists="replace", schema={"zarr_format": 5 - version}, **options).result()
    assert b'metadata"' in store.read(collected[5 - version]).result().value
    assert ts.open_group(target).result()["g/b"].read().result().tolist() == [1, 2, 3]
    if options["atomic"]:
        assert len(versions(f"file://{tmp_path}/db/|ocdbt:")) == 2
    ts.copy(target, tmp_path / "c").result()
    assert ts.open_group(tmp_path / "c").result()["g/b"].shape == (3,)


def test_a_copy_of_a_file_opens_at_once(tmp_path):
    """xarray finds consolidated metadata in the copy of a NetCDF file."""
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("netCDF4")
    given = xarray.Dataset({"a": (("x", "y"), VALUES[0])}, coords={"x": np.arange(20)})
    given.to_netcdf(tmp_path / "a.nc")
    ts.copy(tmp_path / "a.nc", tmp_path / "b").result()
    assert xarray.open_zarr(tmp_path / "b", consolidated=True).identical(given)


@pytest.mark.parametrize("schema", [None, {"chunks": [24, 4, 4]}], ids=["untouched", "rechunked"])
def test_a_copy_into_a_reference_set_is_one_document(tmp_path, schema):
    """An atomic copy refers to files beside the set, keeps what else is in it, and old data outlive a replacement."""
    array = made(tmp_path / "a")
    target = f"file://{tmp_path}/refs.json|reference:"
    small = ts.open_group(target, mode="w", zarr_format=3).result()
    small.create_array("other", shape=[3], dtype="i4", fill_value=0).result()[:] = [1, 2, 3]
    options = {"schema": schema, "atomic": True, "max_memory": "20kB"}
    ts.copy(array, f"{target}sea/", **options).result()
    before = ts.open(f"{target}sea/|zarr3:").result()
    assert np.array_equal(read(f"{target}sea/|zarr3:"), VALUES)
    array[:4] = 5
    ts.copy(array, f"{target}sea/", if_exists="replace", **options).result()
    assert (read(f"{target}sea/|zarr3:")[:4] == 5).all()
    assert np.array_equal(before.read().result(), VALUES)
    assert read(f"{target}other/|zarr3:").tolist() == [1, 2, 3]
    refs = ts.references.open(f"{tmp_path}/refs.json")
    assert all(url.startswith("fsstore-data/") for url in refs.urls)
    assert ts.references.verify(f"{tmp_path}/refs.json")
    assert left_in(tmp_path) == []


def test_a_data_type_that_does_not_exist_is_named(tmp_path):
    """A copy into a data type that nobody knows says so before anything is written."""
    source = ts.open(f"file://{tmp_path}/a/|zarr3:", create=True, dtype="int16", shape=[4]).result()
    with pytest.raises(TypeError, match="There is no data type 'int17'; name one of NumPy or fsstore"):
        ts.copy(source, tmp_path / "b.zarr", schema={"dtype": "int17"}).result()
    assert not (tmp_path / "b.zarr").exists()


def test_what_cannot_be_atomic_is_refused(tmp_path):
    """A plain directory takes no copy in one step; nothing is written."""
    array = made(tmp_path / "a")
    with pytest.raises(ts.errors.UnimplementedError, match="copy into an OCDBT database"):
        ts.copy(array, f"file://{tmp_path}/b/", atomic=True).result()
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_array_is_updated(tmp_path):
    """An update keeps the layout, grows where the source is larger, and takes values, absent chunks and attributes."""
    array = made(tmp_path / "a", attributes={"new": 1})
    ts.copy(array[:10], tmp_path / "b", schema={"chunks": (3, 20, 5), "attributes": {"old": 2}}).result()
    ts.copy(array, tmp_path / "b", if_exists="update").result()
    updated = ts.open(f"file://{tmp_path}/b/").result()
    assert np.array_equal(updated.read().result(), VALUES)
    assert updated.chunk_layout.write_chunk.shape == (3, 20, 5)
    assert dict(updated.attrs) == {"new": 1, "old": 2}
    same = made(tmp_path / "c")
    same[4:8] = 0
    ts.copy(same, tmp_path / "d").result()
    ts.copy(array, tmp_path / "d", if_exists="update").result()
    assert np.array_equal(read(f"file://{tmp_path}/d/"), VALUES)
    ts.copy(same, tmp_path / "d", if_exists="update").result()
    assert np.array_equal(read(f"file://{tmp_path}/d/")[4:8], np.zeros_like(VALUES[4:8]))
    with pytest.raises(ts.errors.FailedPreconditionError, match="smaller"):
        ts.copy(array[:5], tmp_path / "d", if_exists="update").result()
    assert left_in(tmp_path) == []


def test_files_are_copied_by_the_system(tmp_path, monkeypatch):
    """Chunks of the same layout move from file to file without being read."""
    array = made(tmp_path / "a")

    def refused(*_):
        raise AssertionError("a chunk was read")

    taken, seen = [], set()
    take = LocalDriver.take_values

    async def counted(self, other, pairs, *, unseen):
        taken.extend(pairs)
        seen.add(not unseen)
        return await take(self, other, pairs, unseen=unseen)

    monkeypatch.setattr(LocalDriver, "take_values", counted)
    report = ts.copy(array, tmp_path / "b").result()
    assert report.nbytes == sum(path.stat().st_size for path in (tmp_path / "b/c").rglob("*") if path.is_file())
    assert report.by_storage == 0  # the kernel is here
    assert len(taken) == 12
    assert seen == {False}
    ts.copy(array, tmp_path / "b", if_exists="update").result()
    assert seen == {False, True}  # in one step a value, since somebody may read it
    assert issubclass(LocalDriver, TakesValues)
    assert np.array_equal(read(f"file://{tmp_path}/b/"), VALUES)


def test_files_that_a_killed_copy_left_are_replaced(tmp_path, monkeypatch, tune):
    """A part of a chunk, under its name already, does not stay; a copy that fails leaves no part behind."""
    array = made(tmp_path / "a")
    part = tmp_path / "b/c/1/0/0"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"part")

    def full(source, target, count):
        os.write(target, b"part")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "copy_file_range", full)
        tune("task", TASK_PAUSE_S=0.001)
        with pytest.raises(ts.errors.ResourceExhaustedError, match="No space left"):
            ts.copy(array, tmp_path / "b").result()
    assert not part.exists()
    assert [path for path in (tmp_path / "b").rglob("c/**/*") if path.is_file()] == []
    ts.copy(array, tmp_path / "b").result()
    assert np.array_equal(read(f"file://{tmp_path}/b/"), VALUES)
    assert left_in(tmp_path) == []


def test_levels_of_a_check(tmp_path):
    """Each level finds what it looks at: strangers, empty chunks, damaged ones, and values that differ."""
    array = made(tmp_path / "a")
    ts.copy(array, tmp_path / "b", schema={"codec": None}).result()
    place, folder = str(tmp_path / "b"), tmp_path / "b/c"
    (folder / "9").mkdir()
    (folder / "9/0").mkdir()
    (folder / "9/0/0").write_bytes(b"x")
    found = ts.verify(place, level="keys").result()
    assert [each.kind for each in found.findings] == ["extra"]
    assert (found.chunks, found.absent) == (12, 0)
    (folder / "1/0/0").write_bytes(b"short")
    (folder / "2/0/0").unlink()
    found = ts.verify(place, level="sizes").result()
    assert [(each.kind, each.start) for each in found.findings if each.kind != "extra"] == [("damaged", (4, 0, 0))]
    assert found.absent == 1
    same = ts.verify(place, f"{tmp_path}/a/a", level="values").result()
    assert sorted((each.kind, each.start) for each in same.findings if each.kind != "extra") == [
        ("damaged", (4, 0, 0)),
        ("differs", (8, 0, 0)),
    ]
    assert "<table>" in same._repr_html_()
    assert same.to_json()["absent"] == 1


def test_missing_chunks_are_named_where_layouts_agree(tmp_path):
    """Without reading, a check against an array of the same layout names what is not stored."""
    array = made(tmp_path / "a")
    ts.copy(array, tmp_path / "b").result()
    (tmp_path / "b/c/2/1/0").unlink()
    found = ts.verify(str(tmp_path / "b"), array, level="keys").result()
    assert [(each.kind, each.start, each.stop) for each in found.findings] == [("missing", (8, 10, 0), (12, 20, 12))]


def test_chunks_of_mere_fill_are_counted(tmp_path):
    """Chunks that are stored though they hold the fill value are counted, and are not wrong."""
    array = made(tmp_path / "a")
    array[4:8] = 0
    ts.copy(array, tmp_path / "b").result()
    empty = tmp_path / "b/c/3/0/0"
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/b/", "store_data_equal_to_fill_value": True}
    ts.open(spec).result()[12:16, :10] = 0
    found = ts.verify(str(tmp_path / "b"), level="decode").result()
    assert bool(found)
    assert empty.exists()
    assert (found.chunks, found.absent, found.fill) == (10, 2, 1)


@pytest.mark.parametrize("level", ["sizes", "values"])
def test_a_copy_is_repaired(tmp_path, level):
    """Damaged, missing and strange chunks are mended from the source, and the report says how many."""
    array = made(tmp_path / "a")
    ts.copy(array, tmp_path / "b").result()
    folder = tmp_path / "b/c"
    (folder / "1/0/0").write_bytes(b"")
    (folder / "2/1/0").unlink()
    (folder / "2/7").mkdir()
    (folder / "2/7/0").write_bytes(b"x")
    assert not ts.verify(str(tmp_path / "b"), array, level=level).result()
    found = ts.verify(str(tmp_path / "b"), array, level=level, repair=True).result()
    assert bool(found)
    assert found.repaired == 3
    assert np.array_equal(read(f"file://{tmp_path}/b/"), VALUES)
    assert not (folder / "2/7/0").exists()
    with pytest.raises(ValueError, match="say what that is"):
        ts.verify(str(tmp_path / "b"), repair=True)


def test_a_copy_checks_itself(tmp_path):
    """`verify=` checks a copy against its source when it is done."""
    array = made(tmp_path / "a")
    report = ts.copy(array, tmp_path / "b", verify="values").result()
    assert report.arrays == ("",)


def test_tasks_travel_as_a_few_hundred_bytes(tmp_path):
    """What is sent for a task is a name and a number, whatever the arrays are."""
    from fsstore.job.passes import packed_keys
    from fsstore.job.work import run_task

    box = pickle.dumps((run_task, ("0" * 29, "gathered", 10**9, 8.8, None)))
    assert len(box) < 150
    keys = packed_keys([f"c/{number // 16}/{number % 16}/{number % 7}" for number in range(256)])
    assert len(pickle.dumps((run_task, ("0" * 29, "keys", keys, 8.8, None)))) < 1000


_INTERRUPTED = r"""
import os, signal, sys, threading, time
import fsstore as ts
from fsstore.job import work

calls = []

async def slow(order, box):
    import asyncio
    calls.append(box)
    if len(calls) > 3:
        print("ready\n", end="", flush=True)
        await asyncio.sleep(60)
    return await work._copy_box(order, box)

work.WORK["box"] = slow
signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell may have turned off
try:
    ts.copy(sys.argv[1], sys.argv[2], schema={"chunks": [4, 5, 5]}, max_memory="30kB").result()
except KeyboardInterrupt:
    print(f"interrupted {time.monotonic()} {time.process_time()}\n", end="", flush=True)
"""


def test_ctrl_c_stops_and_the_job_continues(tmp_path):
    """Ctrl-C ends a copy at once, though a task would take a minute, and the process; the next call continues.

    Of twenty runs at a load of nine the slowest had the exception after 9 ms and ended after 0.57 s.
    """
    import resource
    import signal

    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    made(tmp_path / "a")
    command = [sys.executable, "-c", _INTERRUPTED, str(tmp_path / "a/a"), str(tmp_path / "b")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        rest, errors = process.communicate(timeout=30)
    stopped = next(line for line in rest.splitlines() if line.startswith("interrupted"))
    at, used = map(float, stopped.split()[1:])
    assert at - sent < 1
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    whole = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    assert whole - used < 1  # processor time from there to the end: a loaded machine has no say in it
    assert errors == ""
    report = ts.copy(str(tmp_path / "a/a"), tmp_path / "b", schema={"chunks": [4, 5, 5]}, max_memory="30kB").result()
    assert report.resumed >= 1
    assert np.array_equal(read(f"file://{tmp_path}/b/"), VALUES)
    assert left_in(tmp_path) == []


def test_values_are_appended(tmp_path):
    """Appending makes an array longer along a dimension by number or name, in the middle of a chunk, too."""
    array = made(tmp_path / "a", dimension_names=["t", "y", "x"])
    ts.copy(array[:6], tmp_path / "b").result()
    ts.append(str(tmp_path / "b"), array[6:15], "t").result()
    ts.append(str(tmp_path / "b"), VALUES[15:], 0).result()
    assert np.array_equal(read(f"file://{tmp_path}/b/"), VALUES)
    ts.copy(array[:, :, :5], tmp_path / "c", schema={"zarr_format": 2}).result()
    ts.append(str(tmp_path / "c"), array[:, :, 5:], -1).result()
    assert np.array_equal(read(f"file://{tmp_path}/c/"), VALUES)
    with pytest.raises(ts.errors.FailedPreconditionError, match="cannot be appended"):
        ts.append(str(tmp_path / "c"), VALUES[:, :3], -1).result()
    assert left_in(tmp_path) == []


@pytest.mark.parametrize("version", [3, 2])
def test_a_pyramid(tmp_path, version):
    """Levels hold the means of blocks, and the metadata are those of OME-Zarr, written last."""
    group = ts.open_group(tmp_path / "p", mode="w", zarr_format=version).result()
    base = group.create_array(
        "0", shape=[2, 30, 20], dtype="f4", chunks=[1, 8, 8], dimension_names=["c", "y", "x"]
    ).result()
    values = np.random.default_rng(0).random((2, 30, 20), "f4")
    base[:] = values
    heard = []
    report = ts.build_pyramid(str(tmp_path / "p"), levels=3, progress=heard.append).result()
    assert report.arrays == ("1", "2")
    assert sum(each.ended for each in heard) == 2
    group = ts.open_group(tmp_path / "p").result()
    small = group["1"].read().result()
    assert small.shape == (2, 15, 10)
    assert np.allclose(small, values.reshape(2, 15, 2, 10, 2).mean((2, 4)))
    assert group["2"].shape == (2, 8, 5)
    found = group.attrs["ome"]["multiscales"] if version == 3 else group.attrs["multiscales"]
    assert [each["path"] for each in found[0]["datasets"]] == ["0", "1", "2"]
    assert found[0]["axes"] == [
        {"name": "c", "type": "channel"}, {"name": "y", "type": "space"}, {"name": "x", "type": "space"},
    ]  # fmt: skip
    assert found[0]["datasets"][2]["coordinateTransformations"] == [
        {"type": "scale", "scale": [1.0, 4.0, 4.0]}, {"type": "translation", "translation": [0.0, 1.5, 1.5]},
    ]  # fmt: skip
    with pytest.raises(ts.errors.AlreadyExistsError, match="replace"):
        ts.build_pyramid(str(tmp_path / "p"), levels=2).result()
    ts.build_pyramid(group, factors=[(1, 3, 2)], method="max", if_exists="replace").result()
    assert np.array_equal(group["1"].read().result(), values.reshape(2, 10, 3, 10, 2).max((2, 4)))


def test_everything_below_a_place_is_deleted(tmp_path):
    """Deleting takes an array or a hierarchy with its directories, tells how far it is, and knows what is not there."""
    made(tmp_path / "a")
    heard = []
    assert ts.delete(tmp_path / "a" / "a", progress=heard.append).result() == 13
    assert heard[-1].ended
    assert [path.name for path in (tmp_path / "a").rglob("*")] == ["zarr.json"]
    assert ts.delete(tmp_path / "a").result() == 1
    assert not (tmp_path / "a").exists()
    with pytest.raises(ts.errors.NotFoundError):
        ts.delete(tmp_path / "a").result()


def test_a_callback_of_fsspec_is_told_bytes(tmp_path):
    """A `Callback` hears how large the work is and how much is done, in the end all."""
    from fsspec.callbacks import Callback

    told = []
    callback = Callback(hooks={"hear": lambda size, value, **_: told.append((size, value))})
    array = made(tmp_path / "a")
    ts.copy(array, tmp_path / "b", schema={"codec": None}, progress=callback).result()
    assert callback.size == callback.value == VALUES.nbytes
    assert told[-1] == (VALUES.nbytes, VALUES.nbytes)


def test_a_bar_in_a_notebook(tmp_path, monkeypatch):
    """In a notebook without tqdm one bar is shown, and replaced as it grows."""
    from fsstore.task import runner

    shown, replaced = [], []

    class Handle:
        update = staticmethod(lambda html: replaced.append(html.data))

    def show(html, *, display_id):
        shown.append((html.data, display_id))
        return Handle

    monkeypatch.setattr(runner, "find_spec", lambda _: None)
    notebook, screen = ModuleType("IPython"), ModuleType("IPython.display")
    notebook.get_ipython = object
    screen.HTML, screen.display = (lambda text: SimpleNamespace(data=text)), show
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", screen)
    array = made(tmp_path / "a")
    ts.copy(array, tmp_path / "b", schema={"codec": None}, progress=True).result()
    assert len(shown) == 1
    assert shown[0][1] is True
    assert replaced[-1].startswith("<progress value='1.0000' max='1'></progress> copy: 100%")


def test_bars_of_tqdm(tmp_path, capsys):
    """`progress=True` shows a bar with what was moved."""
    array = made(tmp_path / "a")
    ts.copy(array, tmp_path / "b", schema={"codec": None}, progress=True).result()
    assert "100%" in capsys.readouterr().err


def test_a_line_of_text_without_tqdm(tmp_path, capsys, monkeypatch):
    """Without tqdm and notebook a line says how much is done, how fast it is and what is left."""
    from fsstore.task import runner

    monkeypatch.setattr(runner, "find_spec", lambda _: None)
    array = made(tmp_path / "a")
    ts.copy(array, tmp_path / "b", schema={"codec": None}, progress=True).result()
    assert "copy: 100%  23.0 kB of 23.0 kB" in capsys.readouterr().err


@pytest.mark.usefixtures("s3_credentials")
@pytest.mark.parametrize("engine", ["obstore", "fsspec"])
def test_chunks_are_copied_inside_a_bucket(moto_bucket, engine):
    """Inside a bucket the storage copies chunks itself, for a request each: none is read, and the report says so."""
    from fsstore.kvstore.engine.driver import EngineDriver

    endpoint, bucket = moto_bucket
    place = {"driver": "s3", "bucket": bucket, "endpoint": endpoint, "aws_region": "us-east-1", "engine": engine}
    source = {"driver": "zarr3", "kvstore": {**place, "path": f"{engine}/a/"}}
    array = ts.open(
        source, create=True, dtype="int32", shape=[12, 4], chunk_layout=ts.ChunkLayout(chunk_shape=[2, 4])
    ).result()
    array[:] = VALUES[:12, :4, 0]
    read_many, asked = EngineDriver.read_many, []

    async def counted(self, reads):
        asked.extend(each.key for each in reads if "/c/" in each.key and each.stop != 0)
        return await read_many(self, reads)

    target = ts.KvStore.open({**place, "path": f"{engine}/b/"}).result()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineDriver, "read_many", counted)
        report = ts.copy(array, target).result()
    assert asked == []
    stored = sum(len(array.kvstore.read(f"c/{row}/0").result().value) for row in range(6))
    assert (report.nbytes, report.by_storage) == (stored, stored)
    assert f"{stored} B of them by the storage itself" in str(report)
    made = ts.open({"driver": "zarr3", "kvstore": {**place, "path": f"{engine}/b/"}}).result()
    assert np.array_equal(made.read().result(), VALUES[:12, :4, 0])
    assert bool(ts.verify(made, array, level="keys").result())


@pytest.mark.parametrize("level", ["keys", "sizes", "decode", "values"])
def test_a_region_is_checked_where_it_lies(tmp_path, level):
    """A copy of a part, and the part itself, are compared by place within each: where they begin does not matter."""
    array = made(tmp_path / "a")
    part = (slice(3, 9), slice(None), slice(5, 11, 2))
    options = {"level": level}
    ts.copy(array, tmp_path / "b", region=part, verify=level).result()
    assert ts.verify(tmp_path / "b", array[part], **options).result()
    assert ts.verify(array[part], tmp_path / "b", **options).result()
    if level == "values":
        ts.open(f"file://{tmp_path}/b/").result()[2, 1, 1] = -5
        found = ts.verify(tmp_path / "b", array[part], **options).result()
        assert [each.kind for each in found.findings] == ["differs"]
        assert ts.verify(tmp_path / "b", array[part], repair=True, **options).result().repaired == 1
        assert np.array_equal(read(f"file://{tmp_path}/b/"), VALUES[part])


def test_a_region_beyond_the_array_is_refused(tmp_path):
    """A part that is not there is an error before anything is written, and says so."""
    array = made(tmp_path / "a")
    with pytest.raises(ts.errors.OutOfRangeError, match="is not contained within domain"):
        ts.copy(array, tmp_path / "b", region=(slice(0, 10**6),)).result()
    assert not (tmp_path / "b").exists()


def test_an_update_keeps_the_format(tmp_path):
    """An array of version 2 is updated from one with shards, which it cannot have."""
    array = made(tmp_path / "a", shards=(8, 10, 12))
    ts.copy(array[:4], tmp_path / "b", schema={"zarr_format": 2, "chunks": [5, 5, 5], "codec": "gzip"}).result()
    ts.copy(array, tmp_path / "b", if_exists="update").result()
    found = ts.open(f"file://{tmp_path}/b/").result()
    assert found.spec().to_json()["driver"] == "zarr"
    assert np.array_equal(found.read().result(), VALUES)


def test_an_update_keeps_the_type(tmp_path):
    """An array that is updated from one of another type keeps its own, and gets the values."""
    array = made(tmp_path / "a")
    ts.copy(array[:4], tmp_path / "b", schema={"dtype": "float64", "codec": "gzip"}).result()
    ts.copy(array, tmp_path / "b", if_exists="update").result()
    found = ts.open(f"file://{tmp_path}/b/").result()
    assert found.dtype.name == "float64"
    assert np.array_equal(found.read().result(), VALUES)


@pytest.mark.parametrize(("made", "wanted"), [(2, 2), (2, 3), (3, 2), (3, 3)])
@pytest.mark.parametrize("fill_value", [None, b"x\0"])
def test_strings_of_bytes_are_copied(made, wanted, fill_value):
    """A copy of byte strings keeps them and their fill value, also in another version of zarr."""
    context = ts.Context()
    group = ts.open_group("memory://from/", mode="w", zarr_format=made, context=context).result()
    given = {} if fill_value is None else {"fill_value": np.array(fill_value, object)}
    source = group.create_array("v", shape=[3], dtype="string", chunks=[2], **given).result()
    source[:2] = np.array([b"a", b"\xff\0"], object)
    ts.copy(source, "memory://to/", schema={"zarr_format": wanted, "chunks": [3]}, context=context).result()
    found = ts.open("memory://to/", context=context).result().read().result()
    assert found.tolist() == [b"a", b"\xff\0", fill_value or b""]
