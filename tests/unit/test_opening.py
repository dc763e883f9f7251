"""Where opening happens: at once for what is on this machine, on the event loop for what may lead elsewhere."""

from __future__ import annotations

import json
import zipfile

import numpy as np
import pytest

import fsstore
from fsstore import _runtime


@pytest.fixture
def stored(tmp_path):
    store = fsstore.open(f"file://{tmp_path}/a/|zarr3:", create=True, dtype="int32", shape=[3]).result()
    store.write([1, 2, 3]).result()
    return tmp_path / "a"


def test_detection_of_a_local_array_needs_no_event_loop(stored, monkeypatch):
    """An array on local disk whose format is detected is open when `open` returns: nothing had to wait."""
    monkeypatch.setattr(_runtime, "loop", lambda: pytest.fail("the event loop was asked for"))
    future = fsstore.open(f"file://{stored}/")
    assert future.done()
    assert future.result().read().result().tolist() == [1, 2, 3]


def test_detection_of_an_adapter_goes_on_on_the_event_loop(stored, tmp_path, monkeypatch):
    """A reference set on local disk may lead to a far store, so what is in it is opened on the loop."""
    begun = []
    loop = _runtime.loop
    monkeypatch.setattr(_runtime, "loop", lambda: begun.append(True) or loop())
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for path in stored.rglob("*"):
            if path.is_file():
                archive.write(path, path.relative_to(stored))
    assert fsstore.open(f"file://{tmp_path}/a.zip").result().read().result().tolist() == [1, 2, 3]
    references = {str(path.relative_to(stored)): [str(path)] for path in stored.rglob("*") if path.is_file()}
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": references}))
    assert fsstore.open(f"file://{tmp_path}/refs.json").result().shape == (3,)
    assert len(begun) >= 2


def test_failure_of_detection_is_in_the_future(tmp_path):
    """`open` itself does not raise when nothing is found: the future does."""
    future = fsstore.open(f"file://{tmp_path}/")
    with pytest.raises(fsstore.errors.StoreError, match="Failed to detect format"):
        future.result()


def test_coroutine_that_may_wait_is_begun_again_on_the_loop():
    """`start_here` runs what does not wait at once, and what says that it may wait on the loop."""
    ran = []

    async def work(waits):
        ran.append(_runtime.on_loop_thread())
        if waits and _runtime.must_not_wait():
            raise _runtime.MayWait
        return np.int64(7)

    assert _runtime.start_here(lambda: work(waits=False)).result() == 7
    assert _runtime.start_here(lambda: work(waits=True)).result() == 7
    assert ran == [False, False, True]
