"""Where opening happens (on this machine at once, elsewhere on the event loop), and what stands for a store."""

from __future__ import annotations

import json
import zipfile

import fsspec
import numpy as np
import pytest
from fsspec.implementations.dirfs import DirFileSystem

import fsstore
from fsstore.runtime import execution


@pytest.fixture
def stored(tmp_path):
    store = fsstore.open(f"file://{tmp_path}/a/|zarr3:", create=True, dtype="int32", shape=[3]).result()
    store.write([1, 2, 3]).result()
    return tmp_path / "a"


def test_detection_of_a_local_array_needs_no_event_loop(stored, monkeypatch):
    """An array on local disk whose format is detected is open when `open` returns: nothing had to wait."""
    monkeypatch.setattr(execution, "loop", lambda: pytest.fail("the event loop was asked for"))
    future = fsstore.open(f"file://{stored}/")
    assert future.done()
    assert future.result().read().result().tolist() == [1, 2, 3]


def test_detection_of_an_adapter_goes_on_on_the_event_loop(stored, tmp_path, monkeypatch):
    """A reference set on local disk may lead to a far store, so what is in it is opened on the loop; no archive does."""
    begun = []
    loop = execution.loop
    monkeypatch.setattr(execution, "loop", lambda: begun.append(True) or loop())
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in stored.rglob("*"):
            if path.is_file():
                archive.write(path, path.relative_to(stored))
    assert fsstore.open(f"file://{tmp_path}/a.zip").result().read().result().tolist() == [1, 2, 3]
    assert not begun
    references = {str(path.relative_to(stored)): [str(path)] for path in stored.rglob("*") if path.is_file()}
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": references}))
    assert fsstore.open(f"file://{tmp_path}/refs.json").result().shape == (3,)
    assert begun


@pytest.mark.parametrize("url", ["file://{}/base/|ocdbt:", "file://{}/base/|ocdbt:|zarr3:", "file://{}/a.zip|zip:"])
def test_archives_on_this_machine_open_without_an_event_loop(url, tmp_path, monkeypatch):
    """Databases and archives in local files, and arrays in them, are open when `open` returns."""
    place = url.format(tmp_path)
    fsstore.open(f"file://{tmp_path}/base/|ocdbt:|zarr3:", create=True, dtype="int8", shape=[3]).result()
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("key", b"value")
    monkeypatch.setattr(execution, "loop", lambda: pytest.fail("the event loop was asked for"))
    assert (fsstore.open if "zarr3" in url else fsstore.KvStore.open)(place).done()


def test_a_database_waits_where_its_manifest_may(tmp_path, monkeypatch):
    """A database whose manifest lies elsewhere is opened on the loop: that place may be far away."""
    begun = []
    loop = execution.loop
    monkeypatch.setattr(execution, "loop", lambda: begun.append(True) or loop())
    base = f"file://{tmp_path}/base/"
    fsstore.KvStore.open({"driver": "ocdbt", "base": base, "manifest": f"file://{tmp_path}/top/"}).result()
    assert begun


def test_failure_of_detection_is_in_the_future(tmp_path):
    """`open` itself does not raise when nothing is found: the future does."""
    future = fsstore.open(f"file://{tmp_path}/")
    with pytest.raises(fsstore.errors.StoreError, match="Failed to detect format"):
        future.result()


def test_coroutine_that_may_wait_is_begun_again_on_the_loop():
    """`start_here` runs what does not wait at once, and what says that it may wait on the loop."""
    ran = []

    async def work(waits):
        ran.append(execution.on_loop_thread())
        if waits and execution.must_not_wait():
            raise execution.MayWait
        return np.int64(7)

    assert execution.start_here(lambda: work(waits=False)).result() == 7
    assert execution.start_here(lambda: work(waits=True)).result() == 7
    assert ran == [False, False, True]


PLACES = {
    "filesystem": lambda place: DirFileSystem(place, fsspec.filesystem("file")),
    "mapper": fsspec.get_mapper,
    "store": lambda place: fsstore.KvStore.open(f"file://{place}/").result(),
}


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize(
    "open_at",
    [
        lambda place: fsstore.open({"driver": "zarr3"}, kvstore=place),
        lambda place: fsstore.open({"driver": "zarr3", "kvstore": place}),
        fsstore.open,
    ],
)
def test_stores_and_filesystems_stand_where_a_store_may(stored, name, open_at):
    """What is open already is a store as an argument, in a spec, and alone."""
    assert open_at(PLACES[name](str(stored))).result().shape == (3,)


def test_a_store_in_a_transaction_is_no_spec(stored):
    """As an argument it brings its transaction; in a spec that would be lost."""
    place = fsstore.KvStore.open(f"file://{stored}/").result()
    with fsstore.Transaction() as transaction:
        bound = place.with_transaction(transaction)
        assert fsstore.open({"driver": "zarr3"}, kvstore=bound).result().transaction is transaction
        with pytest.raises(ValueError, match="bound to a transaction"):
            fsstore.open({"driver": "zarr3", "kvstore": bound})
