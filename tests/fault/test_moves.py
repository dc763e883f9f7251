"""Moves and deletions of members, killed and beside others: one name, whole; and no reader sees fill values for data."""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fsstore as ts
from fsstore import errors
from fsstore.chunk import open_chunks
from fsstore.dataset import place as consolidated
from tests.fault.test_job_deletions import QUICK, killed

sys.path.insert(0, str(Path(__file__).parent))
from job_bucket import FAST, FaultyBucket
from job_faults import Fault

MOVER = """
import sys, fsstore as ts
group = ts.open_group(sys.argv[1], context=ts.Context({"file_io_sync": False})).result()
sys.stdin.readline()
for number in range(int(sys.argv[2])):
    for old, new in (("x", "y"), ("y", "x")):
        try:
            group.move(old, new).result()
        except (ts.errors.NotFoundError, ts.errors.FailedPreconditionError, ts.errors.AlreadyExistsError):
            pass
"""


def made(folder: Path, *, collects: bool = False, context: ts.Context = QUICK) -> ts.Group:
    """Return a group with a group of arrays that hold fives, whose fill value is zero."""
    group = ts.open_group(folder / "g", mode="w", context=context).result()
    group.create_group("x").result()
    for path in ("x/a", "x/b/c"):
        group.create_array(path, shape=[6], dtype="i4", chunks=[2]).result()[:] = 5
    if collects:
        group.consolidate().result()
    return group


def seen(folder: Path, name: str) -> list[bool]:
    """Return which arrays are at a name, all of whose values are right."""
    found = []
    for path in ("a", "b/c"):
        try:
            values = ts.open(f"file://{folder}/g/{name}/{path}/|zarr3:", context=ts.Context()).result().read().result()
        except (errors.NotFoundError, errors.FailedPreconditionError):
            found.append(False)
        else:
            assert values.tolist() == [5] * 6
            found.append(True)
    return found


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder / "g")) for path in (folder / "g").rglob("*"))


def movers(folder: Path, count: int, rounds: int) -> list[subprocess.Popen]:
    begun = [
        subprocess.Popen([sys.executable, "-c", MOVER, f"{folder}/g", str(rounds)], stdin=subprocess.PIPE)
        for _ in range(count)
    ]
    for each in begun:
        each.stdin.close()  # all begin
    return begun


@pytest.mark.parametrize("collects", [False, True])
def test_a_move_that_was_killed_anywhere_is_continued(tmp_path, collects):
    """All arrays stay whole at one of the names, and the same call leaves them at the new one, and nothing at the old."""
    made(tmp_path, collects=collects).move("x", "y").result()
    whole = files(tmp_path)
    for number in itertools.count(1):
        shutil.rmtree(tmp_path / "g")
        group = made(tmp_path, collects=collects)
        more = killed(lambda group=group: group.move("x", "y").result(), number)
        old, new = seen(tmp_path, "x"), seen(tmp_path, "y")
        assert all(map(max, old, new)), number
        group = ts.open_group(tmp_path / "g", context=ts.Context({"file_io_sync": False})).result()
        try:
            group.move("x", "y").result()
        except errors.NotFoundError:  # it had nothing left to do but to give up its claims, and to answer
            assert (old, new) == ([False] * 2, [True] * 2), number
        else:
            assert files(tmp_path) == whole, number
        assert (seen(tmp_path, "x"), seen(tmp_path, "y")) == ([False] * 2, [True] * 2), number
        assert list(group) == ["y"], number
        if not more:
            break
    assert number > 20


def test_a_deletion_that_was_killed_anywhere_is_finished(tmp_path):
    """Readers see whole arrays or none; the same call deletes what is left, also of a group."""
    for number in itertools.count(1):
        group = made(tmp_path)
        more = killed(lambda group=group: group.delete("x").result(), number)
        seen(tmp_path, "x")
        if not more:
            break
        try:
            group.delete("x").result()
        except errors.NotFoundError:
            assert "x" not in group
        made(tmp_path)
        assert seen(tmp_path, "x") == [True, True]
        shutil.rmtree(tmp_path / "g")
    assert files(tmp_path) == ["zarr.json"]
    assert number > 15


@pytest.mark.parametrize("collects", [False, True])
def test_two_who_move_at_once_leave_one_whole_array(tmp_path, collects):
    """Two processes move a group to and fro; it ends under one name, whole, in documents and consolidated metadata."""
    made(tmp_path, collects=collects)
    assert [each.wait() for each in movers(tmp_path, 2, 15)] == [0, 0]
    found = {name: seen(tmp_path, name) for name in "xy"}
    assert sorted(found.values()) == [[False, False], [True, True]]
    name = next(name for name, each in found.items() if all(each))
    assert sorted(each.path for each in ts.list_arrays(tmp_path / "g")) == [f"{name}/a", f"{name}/b/c"]


def test_readers_beside_moves_see_values_or_an_error(tmp_path):
    """While another process moves arrays to and fro, each read is right or raises; some are right."""
    made(tmp_path)
    (mover,) = movers(tmp_path, 1, 25)
    right = 0
    while mover.poll() is None:
        right += sum(seen(tmp_path, "x"))
    assert right > 0


@pytest.mark.parametrize("driver", ["zarr", "zarr3", "n5"])
@pytest.mark.parametrize("base", ["memory://", "file://{folder}/"])
def test_a_deleted_array_does_not_read_as_fill_values(tmp_path, driver, base):
    """An open handle raises once its array is gone; chunks that were never written are fill values as ever."""
    place = {"driver": driver, "kvstore": f"{base.format(folder=tmp_path)}a/"}
    array = ts.open(place, create=True, dtype="int32", shape=[40]).result()
    assert array[5:9].read().result().tolist() == [0] * 4
    ts.delete(array.kvstore).result()
    for read in (array, array[3:5], array.vindex[[1, 7]]):
        with pytest.raises(errors.FailedPreconditionError, match="does not exist"):
            read.read().result()


def test_a_read_within_a_move_to_and_fro_is_made_again(tmp_path, monkeypatch):
    """Where chunks were away only for a moment, they are read again, since the metadata are new."""
    made(tmp_path)
    array = ts.open(f"file://{tmp_path}/g/x/a/").result()
    (tmp_path / "g/x/a").rename(tmp_path / "away")
    look = open_chunks.any_missing

    def back(answers):
        missing = look(answers)
        if missing and (tmp_path / "away").exists():
            shutil.copytree(tmp_path / "away", tmp_path / "g/x/a")
            shutil.rmtree(tmp_path / "away")
        return missing

    monkeypatch.setattr(open_chunks, "any_missing", back)
    assert array.read().result().tolist() == [5] * 6


def test_a_move_elsewhere_waits_for_a_killed_one(tmp_path):
    """What a killed move has begun is named by others that come across it, and is not written over."""
    for number in (6, 12):
        shutil.rmtree(tmp_path / "g", ignore_errors=True)
        group = made(tmp_path)
        assert killed(lambda group=group: group.move("x", "y").result(), number)
    with pytest.raises(errors.FailedPreconditionError, match="was killed; call that again"):
        group.move("x", "z").result()
    with pytest.raises(errors.AlreadyExistsError):
        group.create_array("y", shape=[1], dtype="i4").result()
    group.move("x", "y").result()
    group.move("y", "z").result()
    assert seen(tmp_path, "z") == [True, True]


def test_a_chunk_that_is_new_since_a_kill_is_not_lost(tmp_path):
    """Where a killed move left both places whole, a chunk that only the old one got since then refuses the same move."""
    tried = 0
    for number in itertools.count(1):
        shutil.rmtree(tmp_path / "g", ignore_errors=True)
        group = made(tmp_path)
        group.create_array("x/d", shape=[4], dtype="i4", chunks=[2]).result()[:2] = 5
        if not killed(lambda group=group: group.move("x", "y").result(), number):
            break
        if not all((tmp_path / "g" / path / "zarr.json").exists() for path in ("x", "x/d", "y", "y/d")):
            continue
        ts.open(f"file://{tmp_path}/g/x/d/|zarr3:", context=QUICK).result()[2:] = 7
        with pytest.raises(errors.FailedPreconditionError, match="was changed at one of them since"):
            group.move("x", "y").result()
        assert ts.open(f"file://{tmp_path}/g/x/d/", context=ts.Context()).result()[2:].read().result().tolist() == [
            7,
            7,
        ]
        tried += 1
    assert tried


def test_nothing_is_moved_or_deleted_beside_a_job(tmp_path, monkeypatch):
    """A member is not moved or deleted while an append to it, or to an array in it, is under way."""
    group, told = made(tmp_path), []
    from fsstore.job import grow

    write = grow.work_on

    async def beside(*arguments):
        for change in (group.move, group.delete):
            for names in (("x", "y"), ("x/a", "z")):
                with pytest.raises(errors.FailedPreconditionError, match="an append to") as refused:
                    await change(*names[: 2 if change == group.move else 1])
                told.append(str(refused.value))
        await write(*arguments)

    monkeypatch.setattr(grow, "work_on", beside)
    ts.append(group["x/a"], [5]).result()
    assert len(told) == 4
    assert group["x/a"].read().result().tolist() == [5] * 7
    assert list(group) == ["x"]


def test_only_what_belongs_to_arrays_and_groups_is_deleted(tmp_path):
    """A directory that is neither is refused, or, within a group, loses its arrays and keeps other files."""
    group = made(tmp_path)
    (tmp_path / "g/plain").mkdir()
    (tmp_path / "g/plain/thesis.txt").write_text("years of work")
    group.create_array("plain/deep/a", shape=[2], dtype="i4").result()
    for path in ("plain/zarr.json", "plain/deep/zarr.json"):
        (tmp_path / "g" / path).unlink()
    with pytest.raises(errors.FailedPreconditionError, match="neither an array nor a group"):
        ts.delete(tmp_path / "g/plain").result()
    assert (tmp_path / "g/plain/deep/a/zarr.json").exists()
    group.delete("plain").result()
    assert [path for path in files(tmp_path) if path.startswith("plain")] == ["plain", "plain/thesis.txt"]


def test_consolidated_metadata_know_what_is_made_meanwhile(tmp_path, monkeypatch):
    """A member that is made between the look at all others and the write is not left out."""
    group, change = made(tmp_path), consolidated.change_document

    async def late(*arguments):
        monkeypatch.setattr(consolidated, "change_document", change)
        await group.create_array("late", shape=[1], dtype="i4")
        return await change(*arguments)

    monkeypatch.setattr(consolidated, "change_document", late)
    group.consolidate().result()
    assert "late" in [each.path for each in ts.list_arrays(tmp_path / "g")]


@pytest.mark.parametrize("kind", ["lost", "dropped", "error"])
def test_a_move_in_a_bucket_with_a_lost_request_or_answer_is_ended_by_the_same_call(kind, s3_credentials):
    """Whichever request or answer is lost, the array is whole at one name; after the same call only at the new one."""
    bucket = FaultyBucket()
    place = {"driver": "s3", "bucket": "jobs", "path": "g/", "endpoint": bucket.url}

    def at(name: str) -> list[int] | None:
        spec = {"driver": "zarr3", "kvstore": {**place, "path": f"g/{name}/"}}
        try:
            return ts.open(spec, context=FAST).result().read().result().tolist()
        except errors.NotFoundError:
            return None

    try:
        for number in itertools.count(1):
            bucket.keep_only({})
            group = ts.open_group(place, mode="w", context=FAST).result()
            group.create_array("x", shape=[6], dtype="i4", chunks=[2]).result()[:] = 5
            bucket.aim(Fault(kind, number))
            for _ in range(2):
                try:
                    group.move("x", "y").result()
                    break
                except errors.StoreError:
                    bucket.aim(None)
                    assert [5] * 6 in (at("x"), at("y")), number
                    if at("x") is None and not [key for key in bucket.objects if "/x/" in key]:
                        break
            hit = bucket.hit
            bucket.aim(None)
            assert (at("x"), at("y")) == (None, [5] * 6), number
            if not hit:
                break
    finally:
        bucket.close()
    assert number > 20
