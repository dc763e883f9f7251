"""What tasks found becomes one: packed, merged by tasks in a tree, and the same as one scan of all files."""

from __future__ import annotations

import json
import os
import signal
import struct
import sys
import zlib
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsstore import references
from fsstore.combine import many
from fsstore.combine.facts import FileBatch, batch_columns, joined
from fsstore.combine.many import ScanPart, ScanParts, merged, merged_bytes, packed, unpacked
from fsstore.combine.scanning import Wanted, scan_files_here
from fsstore.errors import JsonError, StoreError

sys.path.insert(0, str(Path(__file__).parent))

from many_files import FileOf, drifted, write

sys.path.pop(0)

pytestmark = pytest.mark.filterwarnings("ignore:.* are left out")  # one is no file of data
COUNT = 40


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Give files of which some drift, one lacks the variable, and one is none; and what is found in each alone."""
    folder = tmp_path_factory.mktemp("files")
    files = [FileOf(start=4 * number, extra={"step": number % 3}) for number in range(COUNT)]
    for at, changes in ((5, {"scale": 0.25}), (17, {"zlib": False}), (18, {"lacks": True}), (30, {"units": "degC"})):
        files = drifted(files, at, **changes)
    paths = [folder / f"{number:02}.nc" for number in range(COUNT)]
    for path, of in zip(paths, files, strict=True):
        write(path, of)
    paths[22].write_bytes(b"this is no file that can be scanned")
    urls = [str(path) for path in paths]
    return urls, [scan_files_here([url], Wanted(("time",))) for url in urls]


def _content(batch: FileBatch):
    header, columns = batch_columns(batch)
    return header, {name: list(column) for name, column in columns.items()}


def _document(combined, folder):
    combined.save(folder / "all.mosaic", overwrite=True)
    return (folder / "all.mosaic").read_bytes()


def _any_tree(made, data):
    _, each = made
    batches = [FileBatch() if one.failed else one for one in each]
    cuts = sorted(data.draw(st.sets(st.integers(1, COUNT - 1), min_size=3, max_size=COUNT - 1)))
    found = ScanParts()
    spans = data.draw(st.permutations(list(zip([0, *cuts], [*cuts, COUNT], strict=True))))
    runs: list[list[ScanPart]] = []

    def put(start, stop):
        at = np.array([number for number in range(start, stop) if batches[number].files], np.int64)
        some = joined(batches[start:stop])
        runs.extend(found.add(ScanPart(at, packed(some, [fact.url for fact in some.files]), (start, stop))))
        merge()

    def merge():
        while runs:
            run = runs.pop()
            assert [part.span[1] for part in run[:-1]] == [part.span[0] for part in run[1:]]
            if data.draw(st.sampled_from([True, True, True, False])):
                runs.extend(found.add(merged(run, merged_bytes([part.packed for part in run]))))
            else:
                found.put_back(run)

    for start, stop in spans:
        put(start, stop)
    while more := found.rest():
        runs.extend(more)
        merge()
    assert _content(found.whole()) == _content(joined(batches))


@given(st.data())
@settings(max_examples=8, deadline=None)
def test_any_tree_is_the_whole(made, data):
    """Parts of any sizes, arriving in any order, with merges that fail, join to what all batches join to."""
    _any_tree(made, data)


@pytest.mark.long
@given(st.data())
@settings(max_examples=200, deadline=None)
def test_more_trees_are_the_whole(made, data):
    """The same, more often."""
    _any_tree(made, data)


def test_few_parts_are_left_to_join():
    """However many tasks there were, sixteen parts at most are unpacked where the scan was called for."""
    found, left = ScanParts(), 0

    def take(part):
        nonlocal left
        left += 1
        for run in found.add(part):
            left -= len(run)
            take(merged(run, b"packed"))

    for at in range(1000):
        take(ScanPart(np.array([at]), b"packed", (at, at + 1)))
    assert left == 3 + 14 + 8  # three of the third level, and what is not full of the second and the first
    for run in found.rest():
        left -= len(run)
        take(merged(run, b"packed"))
    assert left <= 16
    assert found.rest() == []


def test_large_parts_are_not_sent(tune, made):
    """Parts that are more than a message should hold are joined where they are."""
    _, each = made
    tune("combine", BATCH_BYTES=100)
    found = ScanParts()
    for at in range(40):
        assert found.add(ScanPart(np.array([at]), packed(each[0], ["a"]), (at, at + 1))) == []
    assert found.rest() == []


def test_what_is_no_packed_batch(made):
    """Bytes that are none, lack the URLs, are cut, damaged, or larger than they say, are an error."""
    _, each = made
    good = packed(joined([one for one in each if not one.failed]), [url for url in made[0] if "22" not in url])
    assert len(unpacked(good)[0].files) == COUNT - 1
    with pytest.raises(JsonError, match="no packed batch"):
        unpacked(b"this is something else, and long enough")
    with pytest.raises(JsonError, match="by which URLs"):
        unpacked(packed(each[0], ["a", "b"]))
    random, refused = np.random.default_rng(0), 0
    for at in [0, 1, 19, 20, *random.integers(20, len(good), 200).tolist()]:
        with pytest.raises(StoreError):
            unpacked(good[:at])
        damaged = bytearray(good)
        damaged[at] ^= int(random.integers(1, 256))
        try:
            found = unpacked(bytes(damaged))
        except StoreError:
            refused += 1
        else:  # bits that say how hard the deflater tried
            assert _content(found[0]) == _content(unpacked(good)[0])
    assert refused >= 200
    with pytest.raises(StoreError, match="not whole"):
        unpacked(good + b"more")
    with pytest.raises(StoreError):
        unpacked(good[:12] + (2**32).to_bytes(8, "little") + good[20:])


def test_headers_that_lie(made):
    """Lengths that cannot be, and columns that are missing, are an error, within the memory of what was sent."""
    _, each = made

    def sent(change):
        mark, head, size = struct.unpack_from("<4sQQ", good)
        whole = zlib.decompress(good[20:])
        header = json.loads(whole[:head])
        change(header)
        text = json.dumps(header).encode()
        whole = text + whole[head:]
        return struct.pack("<4sQQ", mark, len(text), len(whole)) + zlib.compress(whole)

    def first_of(kind, value):
        def change(header):
            column = next(one for one in header["columns"] if isinstance(one[1], kind) and one[1])
            column[1] = value

        return change

    good = packed(each[0], ["a"])
    assert len(unpacked(sent(lambda header: None))[0].files) == 1
    for change in (
        first_of(int, -1), first_of(int, 2**40), first_of(int, 0), first_of(list, [-5]), first_of(list, [2**62, 2**62]),
        first_of(list, "text"), lambda header: header.pop("texts"), lambda header: header["texts"].pop("asked"),
        lambda header: header["columns"].pop(), lambda header: header.update(scan=[]),
        lambda header: header["scan"].update(kinds=[["O", [2**40]]]),
    ):  # fmt: skip
        with pytest.raises(StoreError):
            unpacked(sent(change))


def test_packed_columns_are_small(made):
    """A reference takes a few bytes when it is packed, and as many columns are there whatever the number of variables."""
    _, each = made
    batch = joined([one for one in each if not one.failed] * 50)
    count = sum(len(columns.number) for columns in batch.variables.values())
    assert len(packed(batch, [fact.url for fact in batch.files])) < 8 * count
    assert len(batch_columns(batch)[1]) == len(batch_columns(each[18])[1])


class _Recording(ThreadPoolExecutor):
    """An executor that knows what it was asked to do, and fails at merging if it is told to."""

    def __init__(self, fails: type[Exception] | None = None) -> None:
        super().__init__(2)
        self.asked: list[str] = []
        self.fails = fails

    def submit(self, call, /, *arguments, **options):
        """Do a task, or fail."""
        work = arguments[1]
        self.asked.append(work.__name__)
        if work is merged_bytes and self.fails is not None:
            failed: Future[object] = Future()
            failed.set_exception(self.fails("gone"))
            return failed
        return super().submit(call, *arguments, **options)


@pytest.mark.parametrize("fails", [None, OSError, BrokenExecutor])
def test_merging_is_work_of_the_executor(made, tmp_path, fails):
    """Tasks merge what tasks found; where that fails the whole is the same, and the same as without an executor."""
    urls, _ = made
    here = references.combine(urls, "time").result()
    with _Recording(fails) as executor:
        there = references.combine(urls, "time", executor=executor, batch=1).result()
    assert executor.asked.count("packed_scan") == COUNT
    assert executor.asked.count("merged_bytes") >= 2
    assert list(there.report.left_out) == [urls[22]]
    assert there.report == here.report
    assert _document(here, tmp_path) == _document(there, tmp_path)


def test_few_batches_are_not_merged(made):
    """A scan of few batches asks for no more than scans."""
    urls, _ = made
    with _Recording() as executor:
        references.combine(urls, "time", executor=executor, batch=4, dry_run=True).result()
    assert executor.asked == ["packed_scan"] * 10


def _merge_or_die(found):
    """Merge parts, but the first time the process is killed."""
    mark = Path(unpacked(found[0])[1][0]).parent / "died"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return merged_bytes(found)


@pytest.mark.parametrize("dies", [False, True])
def test_processes_merge(made, tmp_path, monkeypatch, dies):
    """Processes merge what processes found; one that is killed while it merges takes nothing with it."""
    urls, _ = made
    mark = Path(urls[0]).parent / "died"
    mark.unlink(missing_ok=True)
    monkeypatch.setattr(many, "merged_bytes", _merge_or_die if dies else merged_bytes)
    with ProcessPoolExecutor(2) as executor:
        there = references.combine(urls, "time", executor=executor, batch=1).result()
    assert mark.exists() is dies
    here = references.combine(urls, "time").result()
    assert there.report == here.report
    assert _document(here, tmp_path) == _document(there, tmp_path)


def test_a_journal_holds_what_tasks_answered(made, tmp_path, monkeypatch):
    """Batches are written down as they came, and a run that goes on with them and an executor gives the same whole."""
    urls, _ = made
    first: Executor
    with _Recording() as first:
        references.combine(urls[:30], "time", executor=first, batch=3, journal=tmp_path / "notes").result()
    with _Recording() as second:
        there = references.combine(urls, "time", executor=second, batch=1, journal=tmp_path / "notes").result()
    assert second.asked.count("packed_scan") == COUNT - 30 + 1  # and the one that fails always
    here = references.combine(urls, "time").result()
    assert there.report == here.report
    assert _document(here, tmp_path) == _document(there, tmp_path)
