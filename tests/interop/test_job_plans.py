"""Plans of copies keep their bounds, and copies over any shapes, chunks, codecs and regions are what NumPy says."""

from __future__ import annotations

import gc
import math
import subprocess
import sys
import tracemalloc

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import fsstore as ts
from fsstore.chunk.regions import Region, cut, most_covered
from fsstore.errors import PermissionDeniedError, ResourceExhaustedError, UnavailableError
from fsstore.job import work
from fsstore.job.plan import ChunkSides, plan_boxes
from fsstore.kvstore.contract.request import Read
from fsstore.kvstore.local.driver import LocalDriver

dimension = st.tuples(st.integers(1, 40), st.integers(1, 12), st.integers(1, 12))


@hypothesis.given(
    st.lists(dimension, min_size=1, max_size=3), st.sampled_from([64, 1000, 20_000, 10**6]), st.sampled_from([1, 4, 8])
)
def test_the_bounds_of_a_plan(dimensions, memory, itemsize):
    """Each byte is read at most twice, and no task holds more than its memory unless a single chunk does."""
    shape, read, write = zip(*dimensions, strict=True)
    plan = plan_boxes(shape, ChunkSides(read, write, itemsize), ChunkSides(write, write, itemsize), memory, spills=True)
    whole = int(np.prod(shape)) * itemsize
    assert plan.bytes_read <= 2 * whole
    single = 3 * itemsize * max(int(np.prod(read)), int(np.prod(write)))
    assert plan.held <= max(memory, single)
    assert plan.tasks >= 1
    one, other = plan.targets.step, plan.reads or plan.sources.step
    parts = [len({*range(0, size, a), *range(0, size, b)}) for size, a, b in zip(shape, one, other, strict=True)]
    chunks = [[len(range(0, size, side)) for size, side in zip(shape, sides, strict=True)] for sides in (read, write)]
    spilled = 0 if plan.sources is None else len(plan.sources) + np.prod(chunks[0])
    assert plan.requests == np.prod(parts) + np.prod(chunks[1]) + spilled


def test_the_requests_of_a_copy(tmp_path):
    """A copy makes the requests for chunks that its plan says, or a few less, where two tasks want a chunk at once.

    Questions for generations alone, by which it notices a source that is written, bring no bytes and are not counted.
    """
    group = ts.open_group(tmp_path / "a", mode="w").result()
    array = group.create_array("x", shape=[20, 12], dtype="i4", chunks=[2, 12]).result()
    array[:] = np.arange(1, 241, dtype="i4").reshape(20, 12)
    asked: list[int] = []  # by several threads

    def counted(real):
        async def call(self, requests):
            chunks = [each for each in requests if "/c/" in each.key or "/spill/" in each.key]
            asked.extend(1 for each in chunks if not isinstance(each, Read) or each.stop != 0)
            return await real(self, requests)

        return call

    for memory in ("3kB", "1kB"):
        schema, place = {"chunks": [20, 3], "codec": None}, tmp_path / memory
        plan = ts.plan_copy(array, place, schema=schema, max_memory=memory).result()
        with pytest.MonkeyPatch.context() as patch:
            for name in ("read_many", "write_many"):
                patch.setattr(LocalDriver, name, counted(getattr(LocalDriver, name)))
            asked.clear()
            ts.copy(array, place, schema=schema, max_memory=memory).result()
        assert 0.8 * plan.requests <= len(asked) <= plan.requests, memory


@hypothesis.given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 60), st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=2),
    st.sampled_from([20, 200, 10**4]),
)  # fmt: skip
def test_what_a_box_touches(dimensions, most):
    """No box of a plan touches more elements of whole chunks of the source than is said of all of them."""
    start, size, chunk, read = zip(*dimensions, strict=True)
    stop = tuple(low + length for low, length in zip(start, size, strict=True))
    boxes = cut(Region(start, stop), chunk, read, (0,) * len(start), most)
    bound = most_covered(boxes, read)
    for number in range(len(boxes)):
        box = boxes[number]
        touched = [
            min(-(-high // side) * side, max(end, high)) - low // side * side
            for low, high, side, end in zip(box.start, box.stop, read, stop, strict=True)
        ]
        assert np.prod(touched) <= bound


def test_chunks_that_do_not_fit_are_taken_one_at_a_time(tmp_path, monkeypatch):
    """Where a single chunk takes more than the memory, no second task holds another one meanwhile."""
    group = ts.open_group(tmp_path / "a", mode="w").result()
    array = group.create_array("x", shape=[8, 300, 300], dtype="f4", chunks=[1, 300, 300]).result()
    array[:] = 3
    real, now, most = work.WORK["box"], [0], [0]

    async def counted(order, box):
        now[0] += 1
        most[0] = max(most[0], now[0])
        try:
            return await real(order, box)
        finally:
            now[0] -= 1

    monkeypatch.setitem(work.WORK, "box", counted)
    ts.copy(array, tmp_path / "b", schema={"codec": "gzip"}, max_memory="100kB").result()
    assert most[0] == 1
    ts.copy(array, tmp_path / "c", schema={"codec": "gzip"}, max_memory="3500kB").result()
    assert most[0] == 2


def test_nothing_waits_for_the_garbage_collector(tmp_path):
    """A task lets its memory go when it ends: no circle of objects keeps it until a collector comes."""
    group = ts.open_group(tmp_path / "a", mode="w").result()
    array = group.create_array("x", shape=[32, 256, 256], dtype="f4", chunks=[1, 256, 256]).result()
    array[:] = 3

    def move(name):
        for number, schema in enumerate([{"chunks": [32, 16, 16]}, {"chunks": [4, 256, 256], "codec": "gzip"}, None]):
            place = tmp_path / f"{name}{number}"
            ts.copy(array, place, schema=schema, max_memory="6MB").result()
            assert ts.verify(place, array, level="values", max_memory="6MB").result()

    move("warm")  # imports, and what threads keep for codecs
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        move("b")
        kept, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert kept < 3_000_000  # of 25 MB that were moved
    assert most < 8_000_000


def test_a_plan_of_a_hundred_million_chunks():
    """Planning a petabyte takes no memory worth telling, and its last box is where the array ends."""
    shape = (10**6, 10**5, 10**3)
    tracemalloc.start()
    plan = plan_boxes(
        shape, ChunkSides((10, 100, 1000), (10, 100, 1000), 4), ChunkSides((1000, 100, 10), (1000, 100, 10), 4),
        512_000_000, spills=True,
    )  # fmt: skip
    last = plan.targets[len(plan.targets) - 1]
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert last.stop == shape
    assert np.prod([float(size) for size in shape]) / 10**6 >= 10**8
    assert most < 1_000_000


layouts = st.fixed_dictionaries({
    "chunks": st.tuples(st.integers(1, 9), st.integers(1, 9)),
    "codec": st.sampled_from(["zstd", "gzip", "blosc", None]),
})  # fmt: skip


@hypothesis.settings(max_examples=25)
@hypothesis.given(
    layouts, layouts, st.sampled_from([0, 2, 3]), st.sampled_from([2, 3]),
    st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 3)), st.sampled_from([900, 10**6]),
)  # fmt: skip
def test_copies_are_what_numpy_says(before, after, old, new, region, memory):
    """Any part of an array of any layout is copied to any other layout, in one pass or two, value for value."""
    values = np.random.default_rng(0).integers(0, 9, (20, 13)).astype("i2")
    context = ts.Context()
    group = ts.open_group("memory://a/", mode="w", zarr_format=old, context=context).result()
    array = group.create_array(
        "x", shape=values.shape, dtype="i2", fill_value=None if old == 0 else 0, **before
    ).result()
    array[:] = values
    low, high, step = min(region[:2]), max(region[:2]), region[2]
    part = (slice(low, high, step), slice(1, None))
    schema = {"zarr_format": new, **after}
    ts.copy(array, "memory://b/", region=part, schema=schema, max_memory=memory, context=context).result()
    made = ts.open(f"memory://b/|zarr{new}:", context=context).result()
    assert np.array_equal(made.read().result(), values[part])


_PEAK = """
import sys, threading, time
import numpy as np, fsstore as ts
folder, slabs, memory = sys.argv[1], int(sys.argv[2]), sys.argv[3]
group = ts.open_group(folder + "/a", mode="w").result()
array = group.create_array("x", shape=[slabs, 512, 512], dtype="f4", chunks=[2, 512, 512], codec=None).result()
for at in range(0, slabs, 2):
    array[at:at + 2] = np.float32(at)
def resident(name="VmRSS"):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1]) // 1024
options = {"schema": {"chunks": [slabs, 32, 32]}, "max_memory": memory}
ts.copy(array[:8, :64, :64], folder + "/warm", **options).result()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = resident()
plan = ts.plan_copy(array, folder + "/b", **options).result()
ts.copy(array, folder + "/b", **options).result()
print(resident("VmHWM") - before, plan.passes, ts.open("file://" + folder + "/b/").result()[::50, 3, 500].read().result().tolist())
"""


@pytest.mark.parametrize(
    ("slabs", "megabytes"), [(128, 48), pytest.param(256, 64, marks=pytest.mark.long)], ids=["134", "268"]
)
def test_memory_stays_within_what_was_given(tmp_path, slabs, megabytes):
    """Rechunking 134 MB within 48 MB, or 268 MB within 64 MB, takes two passes, and no more memory than that."""
    command = [sys.executable, "-c", _PEAK, str(tmp_path), str(slabs), f"{megabytes}MB"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=250)
    grown, passes, row = done.stdout.split(maxsplit=2)
    assert int(passes) == 2
    assert int(grown) * 1.048576 < megabytes  # of 1024 kB each
    assert row.strip() == str([float(at) for at in range(0, slabs, 50)])


@pytest.mark.parametrize(
    "failure",
    [ResourceExhaustedError("No space left on device"), PermissionDeniedError("The provided token has expired")],
    ids=["a full disk", "an expired token"],
)
def test_what_ends_a_job_loses_nothing(tmp_path, monkeypatch, failure, tune):
    """A job that ends because a disk is full or a token is too old continues with what is left."""
    group = ts.open_group(tmp_path / "a", mode="w").result()
    values = np.arange(400, dtype="i4").reshape(20, 20)
    array = group.create_array("x", shape=[20, 20], dtype="i4", chunks=[2, 20]).result()
    array[:] = values
    real = work.WORK["box"]

    calls = []

    async def full(order, box):
        calls.append(box)
        if len(calls) > 3:
            raise failure
        return await real(order, box)

    options = {"schema": {"chunks": [2, 4]}, "max_memory": "2kB"}
    with monkeypatch.context() as patch:
        patch.setitem(work.WORK, "box", full)
        tune("task", TASK_PAUSE_S=0.001)
        with pytest.raises(type(failure)):
            ts.copy(array, tmp_path / "b", **options).result()
    assert not (tmp_path / "b/zarr.json").exists()
    report = ts.copy(array, tmp_path / "b", **options).result()
    assert report.resumed >= 2
    assert np.array_equal(ts.open(f"file://{tmp_path}/b/").result().read().result(), values)


def test_failures_of_a_store_are_tried_again(tmp_path, monkeypatch, tune):
    """A task whose store fails for a while is done again, and the report says how often."""
    group = ts.open_group(tmp_path / "a", mode="w").result()
    array = group.create_array("x", shape=[20, 20], dtype="i4", chunks=[2, 20]).result()
    array[:] = 7
    real, failed = work.WORK["box"], set()

    async def flaky(order, box):
        if box not in failed:
            failed.add(box)
            raise UnavailableError("503 Slow Down")
        return await real(order, box)

    monkeypatch.setitem(work.WORK, "box", flaky)
    tune("task", TASK_PAUSE_S=0.001)
    options = {"schema": {"chunks": [2, 4]}, "max_memory": "2kB"}
    report = ts.copy(array, tmp_path / "b", **options).result()
    assert report.tasks == ts.plan_copy(array, tmp_path / "c", **options).result().tasks
    assert report.retries == len(failed) > 3
    assert np.array_equal(ts.open(f"file://{tmp_path}/b/").result().read().result(), np.full((20, 20), 7))


def test_the_simulation_of_a_cluster():
    """The runner keeps 32 simulated workers busy, though tasks fail and straggle, and tells the same each time."""
    from benchmarks.simulate_jobs import simulate

    outcome = simulate(300e9, 32)
    assert outcome == simulate(300e9, 32)
    assert outcome.efficiency > 0.8
    assert 1 < np.median(outcome.tasks_s) < 5


def test_the_simulation_with_long_stragglers():
    """Tasks that take 50 to 200 times as long are given up and done again, and many that fail do not end the job."""
    from benchmarks.simulate_jobs import Faults, simulate

    outcome = simulate(300e9, 16, faults=Faults(fails=0.05, straggles=0.01, slower=(50.0, 200.0)))
    assert outcome.efficiency > 0.8  # a third of that where they are waited for


@pytest.mark.parametrize("most", [8_000_000, 7_999_999, 1000])
def test_boxes_of_tiny_chunks_are_found_in_a_few_steps(most):
    """An array without boundaries is cut into boxes near the most that fits, after as many looks as the size has bits."""
    looks = []

    def held(regions):
        looks.append(regions)
        return math.prod(regions.step)

    found = cut(Region((0,), (14_784_408,)), (1,), (2_464_068,), (0,), most, held)
    assert most // 2 < found.step[0] <= most
    assert len(looks) < 1000
