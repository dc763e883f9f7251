"""`copy`, `plan_copy` and `verify`: values against NumPy, between all formats, through any executor, killed and continued."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import hypothesis
import numpy as np
import pytest
import zarr
from hypothesis import strategies as st

import fsstore as ts
from fsstore.chunk.regions import Region, Regions, covered, cut
from fsstore.job.array_copy import ArrayCopy
from fsstore.job.plan import parse_bytes

FORMATS = {"zarr3": 3, "zarr2": 2, "n5": 0}
VALUES = np.random.default_rng(0).integers(0, 1000, (50, 60, 35)).astype("f4")


def source(place, version=3, shape=VALUES.shape, **options):
    """Return an array with values; the last fifth of the first dimension is not stored."""
    group = ts.open_group(place, mode="w", zarr_format=version).result()
    options = {"chunks": (5, 30, 35), "dimension_names": ["t", "y", "x"], "attributes": {"unit": "K"}, **options}
    array = group.create_array("a", shape=shape, dtype="f4", **options).result()
    array[:40] = VALUES[:40]
    return array


def expected(fill=0):
    return np.concatenate([VALUES[:40], np.full_like(VALUES[40:], fill)])


@pytest.mark.parametrize("target", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("version", FORMATS.values(), ids=FORMATS)
def test_every_format_to_every_format(tmp_path, version, target):
    """Values, attributes and names of dimensions arrive, and nothing of the job is left."""
    array = source(tmp_path / "a", version)
    report = ts.copy(array, tmp_path / "b", schema={"zarr_format": target}).result()
    made = ts.open(f"file://{tmp_path}/b/").result()
    assert np.array_equal(made.read().result(), expected())
    assert made.attrs["unit"] == "K"
    assert made.domain.labels == ("t", "y", "x")
    assert report.arrays == ("",)
    assert [path for path in (tmp_path / "b").iterdir() if "fsstore" in path.name] == []
    assert bool(ts.verify(str(tmp_path / "b"), array).result())


@pytest.mark.parametrize("memory", ["512MB", "250kB"])
@pytest.mark.parametrize(
    "schema",
    [
        {"chunks": (50, 5, 5)}, {"chunks": (5, 5, 5), "shards": (50, 30, 35)}, {"dtype": "float64", "codec": None},
        {"codec": "gzip", "chunks": (7, 11, 13)}, {"fill_value": 5, "chunks": (50, 60, 1)},
    ],
    ids=str,
)  # fmt: skip
def test_layouts_and_types(tmp_path, schema, memory):
    """Other chunks, shards, codecs, types and fill values hold the same values, in one pass and in two."""
    array = source(tmp_path / "a", fill_value=-1)
    ts.copy(array, tmp_path / "b", schema=schema, max_memory=memory).result()
    made = zarr.open_array(tmp_path / "b")
    assert np.array_equal(made[:], expected(-1))
    assert made.chunks == tuple(schema.get("chunks", (5, 30, 35)))
    assert [path for path in (tmp_path / "b").iterdir() if "fsstore" in path.name] == []


def test_plans_say_what_is_done(tmp_path):
    """The same layout moves untouched; transposed chunks take one pass with much memory and two with little."""
    array = source(tmp_path / "a")
    same = ts.plan_copy(array, tmp_path / "b").result()
    one = ts.plan_copy(array, tmp_path / "b", schema={"chunks": (50, 5, 5)}).result()
    two = ts.plan_copy(array, tmp_path / "b", schema={"chunks": (50, 5, 5)}, max_memory="250kB").result()
    assert (same.passes, one.passes, two.passes) == (0, 1, 2)
    assert "move untouched" in str(same)
    assert "one pass would decode every byte" in str(two)
    assert two.bytes_read == 2 * VALUES.nbytes
    assert "<table>" in two._repr_html_()
    assert same.requests < one.requests < two.requests
    assert f"requests {two.requests:,} at most" in str(two)
    assert not (tmp_path / "b").exists()


def test_untouched_chunks_are_the_same_bytes(tmp_path):
    """A copy of the same layout has the same files, and chunks that are not stored stay so."""
    source(tmp_path / "a")
    ts.copy(str(tmp_path / "a" / "a"), tmp_path / "b").result()
    ours = {p.relative_to(tmp_path / "b"): p.read_bytes() for p in (tmp_path / "b").rglob("*") if p.is_file()}
    theirs = {p.relative_to(tmp_path / "a/a"): p.read_bytes() for p in (tmp_path / "a/a").rglob("*") if p.is_file()}
    assert ours.keys() == theirs.keys()
    assert all(ours[name] == theirs[name] for name in ours if name.name != "zarr.json")


def test_regions_and_views(tmp_path):
    """A region, or a view as source, is copied as an array that begins at zero."""
    array = source(tmp_path / "a")
    part = (slice(10, 20), slice(None), slice(0, 35, 2))
    ts.copy(array, tmp_path / "b", region=part).result()
    ts.copy(array[10:20, :, ::2], tmp_path / "c").result()
    for name in ("b", "c"):
        made = ts.open(f"file://{tmp_path}/{name}/").result()
        assert made.origin == (0, 0, 0)
        assert np.array_equal(made.read().result(), VALUES[part])


def test_hierarchies(tmp_path):
    """All groups and arrays below a group are copied, with attributes, into another format, too."""
    root = ts.open_group(tmp_path / "a", mode="w").result()
    root.attrs["title"] = "T"
    root.create_group("empty", attributes={"e": 1}).result()
    for name in ("x/a", "x/y/b", "c"):
        root.create_array(name, shape=[5], dtype="i4", attributes={"n": name}).result()[:] = np.arange(5, dtype="i4")
    report = ts.copy(str(tmp_path / "a"), tmp_path / "b", schema={"zarr_format": 2}).result()
    assert set(report.arrays) == {"x/a", "x/y/b", "c"}
    made = zarr.open_group(tmp_path / "b", mode="r")
    assert made.metadata.zarr_format == 2
    assert dict(made.attrs) == {"title": "T"}
    assert dict(made["empty"].attrs) == {"e": 1}
    assert dict(made["x/y/b"].attrs) == {"n": "x/y/b"}
    assert made["x/a"][:].tolist() == [0, 1, 2, 3, 4]
    assert bool(ts.verify(str(tmp_path / "b"), str(tmp_path / "a")).result())


def test_what_is_there_is_kept(tmp_path):
    """An array at the target is an error, kept, or replaced, as the caller says."""
    array = source(tmp_path / "a")
    ts.copy(array[:5], tmp_path / "b").result()
    with pytest.raises(ts.errors.AlreadyExistsError, match='if_exists="replace" puts the copy in its place'):
        ts.copy(array, tmp_path / "b").result()
    assert ts.copy(array, tmp_path / "b", if_exists="skip").result().skipped == ("",)
    assert ts.open(f"file://{tmp_path}/b/").result().shape == (5, 60, 35)
    ts.copy(array, tmp_path / "b", if_exists="replace").result()
    assert np.array_equal(ts.open(f"file://{tmp_path}/b/").result().read().result(), expected())


@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("schema", [{}, {"chunks": (50, 5, 5)}], ids=["untouched", "two passes"])
def test_executors(tmp_path, kind, schema):
    """Threads and spawned processes of the caller do the tasks, in a directory of their own."""
    array = source(tmp_path / "a")
    if kind == "threads":
        executor = ThreadPoolExecutor(3)
    else:
        executor = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn"))
    with executor:
        ts.copy(array, tmp_path / "b", schema=schema, executor=executor, max_memory="250kB").result()
    assert np.array_equal(ts.open(f"file://{tmp_path}/b/").result().read().result(), expected())


_SLOW = """
import asyncio, sys
import fsstore as ts
from fsstore.job import passes, work
from fsstore.task import runner as pace

def slowed(function):
    async def run(*arguments):
        await asyncio.sleep(0.01)
        return await function(*arguments)
    return run

for kind in list(work.WORK):
    work.WORK[kind] = slowed(work.WORK[kind])
passes.PIECE_KEYS, pace.TASK_S = 1, 0.03  # many tasks
print("ready", flush=True)
report = ts.copy(sys.argv[1], sys.argv[2], schema=eval(sys.argv[3]), max_memory="250kB").result()
print("resumed", report.resumed, flush=True)
"""


@pytest.mark.parametrize("schema", [{}, {"chunks": [5, 10, 10]}, {"chunks": [50, 5, 5]}], ids=str)
def test_killed_and_continued(tmp_path, schema):
    """A copy that is killed at any moment shows no array, and the same call continues it to the same result."""
    source(tmp_path / "a")
    target = tmp_path / "b"
    command = [sys.executable, "-c", textwrap.dedent(_SLOW), str(tmp_path / "a/a"), str(target), repr(schema)]
    resumed = 0
    for pause in (0.02, 0.15, 0.3):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout.readline() == "ready\n"
        time.sleep(pause)  # a moment to be killed in; whichever it is, the promise holds
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        if (target / "zarr.json").exists():
            break
        with pytest.raises(ValueError, match="There is nothing|detect format|does not exist|no array"):
            ts.open(f"file://{target}/").result()
    if not (target / "zarr.json").exists():
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
        resumed = int(done.stdout.split()[-1])
    assert np.array_equal(ts.open(f"file://{target}/").result().read().result(), expected())
    leftovers = [path.name for path in target.iterdir() if "fsstore" in path.name]
    assert leftovers == [] or (target / "zarr.json").exists()
    assert resumed >= 0


def test_a_journal_is_of_one_job(tmp_path):
    """What one copy has noted is not taken for the work of another with the same target."""
    first = source(tmp_path / "a")
    second = source(tmp_path / "c")
    second[:40] = VALUES[:40] + 1
    real = ts.copy(first, tmp_path / "b", schema={"chunks": (5, 10, 10)})
    real.result()
    (tmp_path / "b" / "zarr.json").unlink()  # as if the first had been killed before its end
    ts.copy(second, tmp_path / "b", schema={"chunks": (5, 10, 10)}).result()
    assert np.array_equal(ts.open(f"file://{tmp_path}/b/").result()[:40].read().result(), VALUES[:40] + 1)


async def _killed(self):
    raise RuntimeError("killed")


def test_a_source_that_grew_is_copied_whole(tmp_path, monkeypatch):
    """Chunks that were stored since an earlier run ended too early are not left out by the next one."""
    array = source(tmp_path / "a")
    with monkeypatch.context() as patch:
        patch.setattr(ArrayCopy, "finish", _killed)  # after all tasks were noted
        with pytest.raises(RuntimeError, match="killed"):
            ts.copy(array, tmp_path / "b").result()
    assert (tmp_path / "b" / ".fsstore-job").exists()
    array[40:] = VALUES[40:]
    ts.copy(array, tmp_path / "b").result()
    assert np.array_equal(ts.open(f"file://{tmp_path}/b/").result().read().result(), VALUES)


def test_damage_is_found(tmp_path):
    """Damaged, missing and differing chunks are named by array and box, and the report is false."""
    array = source(tmp_path / "a")
    ts.copy(array, tmp_path / "b").result()
    assert bool(ts.verify(str(tmp_path / "b")).result())
    victim = tmp_path / "b/c/2/1/0"
    data = bytearray(victim.read_bytes())
    victim.write_bytes(bytes(data[: len(data) // 2]))
    (tmp_path / "b/c/0/0/0").unlink()
    damaged = ts.verify(str(tmp_path / "b")).result()
    assert not damaged
    assert [(each.start, each.stop) for each in damaged.findings] == [((10, 30, 0), (15, 60, 35))]
    both = ts.verify(str(tmp_path / "b"), array).result()
    assert [each.start for each in both.findings] == [(0, 0, 0), (10, 30, 0)]
    assert "elements differ, first at (0, 0, 0)" in both.findings[0].what
    assert both.to_json()["good"] is False


def test_verify_compares_hierarchies(tmp_path):
    """Arrays that only one side has are named; shapes are compared without reading."""
    for name in ("a", "b"):
        group = ts.open_group(tmp_path / name, mode="w").result()
        group.create_array("same", shape=[3], dtype="i1").result()
        group.create_array(f"only-{name}", shape=[3], dtype="i1").result()
        group.create_array("shape", shape=[3 if name == "a" else 4], dtype="i1").result()
    found = ts.verify(str(tmp_path / "a"), str(tmp_path / "b"), level="keys").result()
    assert (found.missing, found.extra) == (("only-b",), ("only-a",))
    assert [each.array for each in found.findings] == ["shape"]


def test_progress_is_told(tmp_path):
    """A function hears how much is done, the last time that all is."""
    array = source(tmp_path / "a")
    heard = []
    ts.copy(array, tmp_path / "b", schema={"chunks": (5, 10, 10)}, max_memory="400kB", progress=heard.append).result()
    assert heard[-1].tasks == heard[-1].total > 1
    assert heard[-1].nbytes == heard[-1].total_bytes == VALUES.nbytes
    assert "100%" in str(heard[-1])


def test_mistakes(tmp_path):
    """Wrong wishes, sizes and choices are named, with what was meant."""
    array = source(tmp_path / "a")
    with pytest.raises(TypeError, match="did you mean 'chunks'"):
        ts.copy(array, tmp_path / "b", schema={"chunk": (1, 1, 1)})
    with pytest.raises(ValueError, match="is no number of bytes"):
        ts.copy(array, tmp_path / "b", max_memory="lots")
    with pytest.raises(ValueError, match="if_exists is"):
        ts.copy(array, tmp_path / "b", if_exists="overwrite")
    with pytest.raises(ValueError, match="region is of one array"):
        ts.copy(str(tmp_path / "a"), tmp_path / "b", region=slice(3)).result()
    with pytest.raises(ValueError, match="none"):
        ts.copy(str(tmp_path / "none"), tmp_path / "b").result()
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(("text", "size"), [("512MB", 512_000_000), ("1.5 GiB", 1_610_612_736), (7, 7), ("9", 9)])
def test_sizes_are_read(text, size):
    """Sizes are numbers, or text with a unit of ten or of two."""
    assert parse_bytes(text) == size


sides = st.lists(
    st.tuples(st.integers(0, 9), st.integers(0, 30), st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=3
)


@hypothesis.given(sides, st.sampled_from([1, 10, 100, 1000, 10**6]))
def test_boxes_cover_a_domain_once(sides, most):
    """Boxes are whole chunks, cover every element once, and have at most the size asked for, or that of a chunk."""
    start, size, chunk, read = zip(*sides, strict=True)
    stop = tuple(low + length for low, length in zip(start, size, strict=True))
    regions = cut(Region(start, stop), chunk, read, (0,) * len(start), most)
    seen = np.zeros(stop, int)
    for number in range(len(regions)):
        box = regions[number]
        seen[box.slices] += 1
        assert np.prod(box.shape) <= max(most, np.prod(chunk))
        for low, high, side, first, last in zip(box.start, box.stop, chunk, start, stop, strict=True):
            assert low % side == 0 or low == first
            assert high % side == 0 or high == last
    assert np.all(seen[tuple(map(slice, start, stop))] == 1)
    assert seen.sum() == np.prod(size)


def test_a_plan_of_many_boxes_takes_no_memory():
    """The boxes of a petabyte are numbered without being made, and the last is where the domain ends."""
    regions = Regions((0, 0, 0), (10**6, 10**6, 10**3), (10, 100, 1000), (0, 0, 0))
    assert len(regions) == 10**9
    assert regions[10**9 - 1].stop == (10**6, 10**6, 10**3)
    assert covered(regions, (10, 100, 1000)) == 10**15


def test_writing_an_array_into_another_is_bounded(tmp_path):
    """Writing a store of 400 MB into one of other chunks takes little memory, and the values are right."""
    code = f"""
import numpy as np, fsstore as ts
def made(name, chunk):
    layout = ts.ChunkLayout(chunk_shape=chunk)
    return ts.open("file://{tmp_path}/" + name + "/|zarr3:", create=True, dtype="float32", shape=[100, 1000, 1000],
                   chunk_layout=layout).result()
a, b = made("a", [5, 1000, 100]), made("b", [100, 50, 50])
for at in range(0, 100, 5):
    a[at:at + 5] = np.float32(at)
def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) // 1024
b[:, :50, :50].write(a[:, :50, :50]).result()
before = peak()
b.write(a).result()
print(peak() - before, b[37, 999, 500].read().result(), b[::30, 3, 3].read().result().tolist())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=250)
    grown, value, row = done.stdout.split(maxsplit=2)
    assert int(grown) < 110
    assert float(value) == 35
    assert row.strip() == "[0.0, 30.0, 60.0, 90.0]"
