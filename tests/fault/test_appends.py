"""Appends beside others, and killed ones: each acknowledged row is there once, in the order of acknowledgement."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import fsstore as ts
from fsstore import errors
from fsstore.errors import FailedPreconditionError
from fsstore.job import grow
from tests.fault.test_job_deletions import QUICK, killed

sys.path.insert(0, str(Path(__file__).parent))
from job_bucket import FAST, FaultyBucket
from job_faults import Fault

APPENDER = """
import json, sys, numpy as np, fsstore as ts
place, first, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
context = ts.Context({"file_io_sync": False})
held = ts.open(place, context=context).result()
sys.stdin.readline()
for number in range(first, first + rounds):
    while True:
        target = (place, held)[number % 2]
        try:
            ts.append(target, np.full((1 + number % 3, 2), number, "i4"), context=context).result()
        except ts.errors.FailedPreconditionError:
            continue
        break
    print(number, flush=True)
"""


def made(folder: Path, length: int = 0, **options) -> str:
    """Return the place of an array of which rows hold their number."""
    place = f"file://{folder}/x/|zarr3:"
    options = {"dtype": "i4", "shape": [length, 2], "chunks": [2, 2], "context": QUICK} | options
    array = ts.open(place, create=True, **options).result()
    if length:
        array[...] = rows(0, length)
    return place


def rows(begin: int, end: int) -> np.ndarray:
    return np.stack([np.arange(begin, end, dtype="i4")] * 2, 1)


def found(place: str) -> list[int]:
    values = ts.open(place, context=ts.Context()).result().read().result()
    assert np.array_equal(values[:, 0], values[:, 1])
    return values[:, 0].tolist()


def left(folder: Path) -> list[str]:
    return [str(path) for path in folder.rglob("*") if "fsstore-job" in str(path) or "__lock" in path.name]


def is_told(folder: Path, rows: list[int]) -> bool:
    """Whether an append has ended with these rows, and had nothing left to do but to answer."""
    names = [path.rpartition("/")[2] for path in left(folder) if not path.endswith("__lock")]
    return found(f"file://{folder}/x/|zarr3:") == rows and names == [".fsstore-job"]


def appended_at_once(folder: Path, rounds: int) -> None:
    place = made(folder)
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", APPENDER, place, str(first), str(rounds)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for first in (0, 10**6)
    ]  # fmt: skip
    for each in workers:
        each.stdin.write("\n")
        each.stdin.flush()
    said = [list(map(int, each.communicate()[0].split())) for each in workers]
    assert [len(each) for each in said] == [rounds, rounds]
    there = [number for number, _ in itertools.groupby(found(place))]
    assert sorted(there) == sorted(itertools.chain(*said))
    assert len(found(place)) == sum(1 + number % 3 for number in there)
    for each in said:
        assert [number for number in there if number in set(each)] == each
    assert left(folder) == []


def test_rows_of_two_processes_are_there_once_in_their_order(tmp_path):
    """Two processes append to one array, by its place and by a handle that they keep: nothing is lost, torn or twice."""
    appended_at_once(tmp_path, 30)


@pytest.mark.long
def test_rows_of_a_thousand_appends_are_there_once(tmp_path):
    """The same, with a thousand appends."""
    appended_at_once(tmp_path, 500)


def test_an_append_begins_where_the_stored_array_ends(tmp_path):
    """Handles that remember a shorter array, also through a resized or fixed view, append behind what is there."""
    place = made(tmp_path)
    handles = [ts.open(place, context=context).result() for context in (None, ts.Context(), None)]
    handles.append(handles[0].resolve().result())
    for number, handle in enumerate([*handles, place, *handles]):
        ts.append(handle, rows(number, number + 1)).result()
    assert found(place) == list(range(9))
    with pytest.raises(ts.errors.StoreError, match="a view of it"):
        ts.append(handles[0][:4], rows(9, 10)).result()


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("uint8", np.array([300, -1, 256])), ("uint8", [1.5]), ("int32", np.array([1.9, np.nan, 1e300])),
        ("float32", np.array([1e300, 16777217.0])), ("float32", [1e300]), ("bool", [2]), ("int4", [9]),
        ("uint8", ts.array(np.array([1, 2], "i4"))),
    ],
)  # fmt: skip
def test_values_are_not_cast_silently(dtype, values):
    """What the type of the array cannot hold is refused before anything is written, as assignment does."""
    array = ts.open({"driver": "zarr3", "kvstore": "memory://"}, create=True, dtype=dtype, shape=[0]).result()
    before = array.kvstore.list().result()
    with pytest.raises((TypeError, OverflowError, ValueError)):
        ts.append(array, values).result()
    assert array.resolve().result().shape == (0,)
    assert array.kvstore.list().result() == before


def test_values_that_fit_are_appended(tmp_path):
    """Lists take the type of the array; a view of another type says that values may change."""
    place = made(tmp_path, dtype="float32")
    ts.append(place, [[0.5, 0.5], [1, 1]]).result()
    ts.append(place, np.array([[2, 2]], "i2")).result()
    ts.append(place, ts.array(np.array([[3.7, 3.7]])).astype("int16")).result()
    assert found(place) == [0.5, 1, 2, 3]


@pytest.mark.parametrize("length", [0, 3, 4])
def test_an_append_that_was_killed_anywhere_is_there_once(tmp_path, length):
    """Killed before each change of a directory, the same call ends it; the rows before stay readable, and nothing is left."""
    place = made(tmp_path, length)
    for number in itertools.count(1):
        shutil.rmtree(tmp_path / "x")
        made(tmp_path, length)
        more = killed(lambda: ts.append(place, rows(length, 9), max_memory="40B", context=QUICK).result(), number)
        if more:
            assert found(place) in ([*range(length)], [*range(9)]), number
        else:
            assert found(place) == [*range(9)]
            break
        if is_told(tmp_path, [*range(9)]):
            continue
        ts.append(place, rows(length, 9), max_memory="40B", context=QUICK).result()
        assert found(place) == [*range(9)], number
        assert left(tmp_path) == [], number
    assert number > 15


def test_the_name_of_an_append_that_was_killed_anywhere_is_kept(tmp_path):
    """However often it is called again afterwards: also if it was killed between its metadata and its name."""
    place = made(tmp_path, 4)

    def append():
        return ts.append(place, rows(4, 9), append_id="monday", context=QUICK).result()

    for number in itertools.count(1):
        shutil.rmtree(tmp_path / "x")
        made(tmp_path, 4)
        if not killed(append, number):
            break
        append()
        assert append().skipped == ("",), number
        assert found(place) == [*range(9)], number
    assert number > 9


def test_others_go_on_beside_a_killed_append(tmp_path):
    """After any kill another append succeeds; then the killed one, called again, is there once, before or behind it."""
    place = made(tmp_path, 3)
    for number in itertools.count(1):
        shutil.rmtree(tmp_path / "x")
        made(tmp_path, 3)
        if not killed(lambda: ts.append(place, rows(100, 105), max_memory="40B", context=QUICK).result(), number):
            break
        if is_told(tmp_path, [0, 1, 2, *range(100, 105)]):
            continue
        ts.append(place, rows(200, 202), context=QUICK).result()
        assert found(place) in ([0, 1, 2, 200, 201], [0, 1, 2, *range(100, 105), 200, 201]), number
        ts.append(place, rows(100, 105), max_memory="40B", context=QUICK).result()
        both = [[200, 201], [*range(100, 105)]]
        assert found(place) in ([0, 1, 2, *both[0], *both[1]], [0, 1, 2, *both[1], *both[0]]), number
        array = ts.open(place, context=QUICK).result()
        array.resize(exclusive_max=[16, 2]).result()
        assert found(place)[10:] == [0] * 6, number
    assert number > 15


def test_equal_rows_are_appended_as_often_as_calls_succeed(tmp_path):
    """An append of equal values is no repetition of one that succeeded; with its id it is, for good."""
    place = made(tmp_path)
    for number in (1, 2):
        ts.append(place, rows(7, 8)).result()
        assert found(place) == [7] * number
    assert ts.append(place, rows(8, 9), append_id="monday").result().skipped == ()
    ts.append(place, rows(9, 10), append_id="tuesday").result()
    assert ts.append(place, rows(8, 9) + 1, append_id="monday").result().skipped == ("",)
    assert found(place) == [7, 7, 8, 9]
    ts.delete(f"{tmp_path}/x").result()
    made(tmp_path)
    ts.append(place, rows(8, 9), append_id="monday").result()
    assert found(place) == [8]


def test_a_resize_beside_an_append_is_kept(tmp_path, monkeypatch):
    """Whoever resizes the array meanwhile keeps the shape; the append fails, and can be called again."""
    place = made(tmp_path, 2)
    write = grow.work_on

    async def resized(*arguments):
        await write(*arguments)
        monkeypatch.setattr(grow, "work_on", write)
        other = await ts.open(place, context=ts.Context())
        await other.resize(exclusive_max=[6, 2])

    monkeypatch.setattr(grow, "work_on", resized)
    with pytest.raises(FailedPreconditionError, match="append them again"):
        ts.append(place, rows(2, 3)).result()
    assert len(found(place)) == 6
    ts.append(place, rows(2, 3)).result()
    assert found(place)[6:] == [2]
    assert left(tmp_path) == []


def test_a_second_append_at_once_is_told_of_the_first(tmp_path):
    """While an append is under way another one is refused, with the name of the first."""
    place = made(tmp_path)
    told = []

    def slow(domain, values, parameters):
        if told:  # the first time values are looked at, to know them again
            with pytest.raises(FailedPreconditionError) as refused:
                ts.append(place, rows(5, 6)).result()
            told.append(str(refused.value))
        told.append("")
        values[...] = 1

    source = ts.virtual_chunked(slow, dtype="int32", shape=[2, 2])
    with ThreadPoolExecutor(1) as executor:
        ts.append(place, source, executor=executor).result()
    assert found(place) == [1, 1]
    assert f'an append to local file "{tmp_path}/x/"' in told[1]
    assert f"process {os.getpid()}" in told[1]


def test_an_unfinished_append_beside_a_resized_array_is_not_guessed_at(tmp_path):
    """Where the array was resized after a kill in the middle of the metadata, an error says what to look at."""
    place = made(tmp_path, 4)
    note = {"before": [2, 2], "after": [3, 2], "journal": "j", "stage": "ends"}
    store = ts.KvStore.open(f"file://{tmp_path}/x/.fsstore-job/").result()
    store["append-0"] = json.dumps(note).encode()
    with pytest.raises(FailedPreconditionError, match="look whether its values are there"):
        ts.append(place, rows(4, 5)).result()
    store["append-0"] = b"another"
    with pytest.raises(FailedPreconditionError, match="is being appended to"):
        ts.append(place, rows(4, 5)).result()
    del store["append-0"]
    ts.append(place, rows(4, 5)).result()
    assert found(place) == [*range(5)]


def test_a_source_that_was_written_anew_is_another_append(tmp_path):
    """A killed append is not continued with other values of its source, and nothing is appended to itself."""
    place, source = made(tmp_path, 2), tmp_path / "s"
    for values in (rows(2, 8), rows(12, 18)):
        (tmp_path / "new").mkdir()
        ts.open(made(tmp_path / "new", 6)).result()[...] = values
        shutil.rmtree(source, ignore_errors=True)
        (tmp_path / "new").rename(source)
        if values[0, 0] == 2:
            assert killed(lambda: ts.append(place, f"file://{source}/x/", max_memory="40B", context=QUICK).result(), 7)
            assert found(place) == [0, 1]
    ts.append(place, f"file://{source}/x/", max_memory="40B", context=QUICK).result()
    assert found(place) == [0, 1, *range(12, 18)]
    with pytest.raises(FailedPreconditionError, match="to itself"):
        ts.append(place, f"file://{tmp_path}/x/").result()


@pytest.mark.parametrize("kind", ["lost", "dropped", "error"])
def test_an_append_to_a_bucket_with_a_lost_request_or_answer_is_there_once(kind, s3_credentials):
    """Whichever request or answer is lost, the append succeeds, or the same call ends it: the rows are there once."""
    bucket = FaultyBucket()
    place = {"driver": "s3", "bucket": "jobs", "path": "x/", "endpoint": bucket.url}
    try:
        for number in itertools.count(1):
            bucket.keep_only({})
            spec = {"driver": "zarr3", "kvstore": place}
            options = {"dtype": "int32", "shape": [3, 2], "chunks": [2, 2], "context": FAST}
            ts.open(spec, create=True, **options).result()[...] = rows(0, 3)
            bucket.aim(Fault(kind, number))
            for _ in range(2):
                try:
                    ts.append(spec, rows(3, 6), context=FAST).result()
                    break
                except errors.StoreError:
                    bucket.aim(None)
            else:
                raise AssertionError(number)
            hit = bucket.hit
            bucket.aim(None)
            values = ts.open(spec, context=ts.Context()).result().read().result()
            assert values[:, 0].tolist() == [*range(6)], number
            assert not [key for key in bucket.objects if "fsstore-job" in key], number
            if not hit:
                break
    finally:
        bucket.close()
    assert number > 10
