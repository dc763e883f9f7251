"""Those who want the same thing at the same time share one read of it, on an event loop and in threads."""

from __future__ import annotations

import asyncio
import threading

import pytest

from fsstore.runtime import execution
from fsstore.runtime.together import FirstTouch


class Reads:
    """Counts what is loaded; a read under way ends when `release` is set."""

    def __init__(self):
        self.loaded, self.begun, self.release = [], asyncio.Event(), asyncio.Event()
        self.error = None

    async def load(self, keys):
        """Return the keys in capitals."""
        self.loaded.append(list(keys))
        self.begun.set()
        await self.release.wait()
        if self.error is not None:
            raise self.error
        return [key.upper() for key in keys]


async def under_way(reads, touch, *wanted):
    """Return tasks that want keys, all of them begun, and the first read under way."""
    tasks = [asyncio.ensure_future(touch.all(keys, reads.load)) for keys in wanted]
    await reads.begun.wait()
    for _ in range(5):
        await asyncio.sleep(0)  # each has gone as far as it can
    return tasks


def test_one_read_answers_all_who_wait():
    """Three who want the same key make one read; another key of theirs is read beside it."""

    async def run():
        reads, touch = Reads(), FirstTouch()
        tasks = await under_way(reads, touch, "a", "a", "ab")
        reads.release.set()
        assert await asyncio.gather(*tasks) == [{"a": "A"}, {"a": "A"}, {"a": "A", "b": "B"}]
        assert reads.loaded == [["a"], ["b"]]
        await touch.all("a", reads.load)
        assert reads.loaded == [["a"], ["b"], ["a"]]  # nothing is kept

    asyncio.run(asyncio.wait_for(run(), 20))


def test_an_error_is_that_of_all_who_wait():
    """A read that fails fails for all, each with an error of its own, and the next read begins anew."""

    async def run():
        reads, touch = Reads(), FirstTouch()
        tasks = await under_way(reads, touch, "a", "a")
        reads.error = ValueError("broken")
        reads.release.set()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [str(each) for each in found] == ["broken"] * 2
        assert found[0] is not found[1]
        reads.error = None
        assert await touch.all("a", reads.load) == {"a": "A"}

    asyncio.run(asyncio.wait_for(run(), 20))


def test_after_a_cancelled_read_the_next_one_reads():
    """Those who waited for a read that was cancelled are answered by another one."""

    async def run():
        reads, touch = Reads(), FirstTouch()
        first, second = await under_way(reads, touch, "a", "a")
        first.cancel()
        reads.release.set()
        assert await second == {"a": "A"}
        assert reads.loaded == [["a"], ["a"]]
        with pytest.raises(asyncio.CancelledError):
            await first

    asyncio.run(asyncio.wait_for(run(), 20))


def test_threads_wait_for_the_one_that_reads(monkeypatch):
    """Without an event loop a second thread waits for the read of the first, instead of making its own."""
    touch, loaded, waiting, begun = FirstTouch(), [], threading.Event(), threading.Event()
    from fsstore.runtime.future import Flag

    wait = Flag.wait

    def seen(self, timeout=None):
        waiting.set()
        return wait(self, timeout)

    async def load(keys):
        loaded.append(list(keys))
        begun.set()
        assert waiting.wait(20)
        return keys

    found = []

    def read():
        found.append(execution.drive(touch.all(["a"], load)))

    first = threading.Thread(target=read)
    first.start()
    assert begun.wait(20)
    monkeypatch.setattr(Flag, "wait", seen)
    second = threading.Thread(target=read)
    second.start()
    for thread in (first, second):
        thread.join(20)
    assert found == [{"a": "a"}] * 2
    assert loaded == [["a"]]


def test_a_nested_read_of_the_same_thread_does_not_wait_for_itself():
    """What runs in the middle of a read, as finalizers do, reads for itself."""
    touch = FirstTouch()

    async def outer(keys):
        assert execution.drive(touch.all(["a"], inner)) == {"a": "inner"}
        return ["outer"]

    async def inner(keys):
        return ["inner"]

    assert execution.drive(touch.all(["a"], outer)) == {"a": "outer"}
