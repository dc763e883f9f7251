"""Claims: one job at a time changes a place, whichever process or thread it belongs to."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from contextlib import AsyncExitStack

import pytest

import fsstore as ts
from fsstore.errors import AbortedError, FailedPreconditionError, StoreError
from fsstore.runtime import execution
from fsstore.task import claim as module
from fsstore.task.claim import claimed

OTHER = """
import os, sys
import fsstore as ts
from fsstore.runtime import execution
from fsstore.task.claim import claimed

async def hold():
    async with claimed(ts.KvStore.open(sys.argv[1]).result(), "claim", "a copy of x"):
        print("held", flush=True)
        sys.stdin.read() or os._exit(9)

execution.start(hold()).result()
"""


@pytest.fixture(params=["memory", "file"])
def place(request, tmp_path):
    """A directory in a store."""
    url = "memory://claims/" if request.param == "memory" else f"file://{tmp_path}/jobs/"
    return ts.KvStore.open(url, context=ts.Context()).result()


@pytest.fixture
def quick(tune):
    """Leases of half a second."""
    tune("task", BEAT_S=0.05, LEASE_S=0.5)


def run(coroutine):
    """Return what a coroutine returns on the event loop."""
    return execution.start(coroutine).result(60)


def another(directory):
    """Return a process that holds the claim of a directory until its input ends, when it dies."""
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER, f"file://{directory}/"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout.readline() == b"held\n"
    return process


def end(process):
    """Have a process die with its claim."""
    process.stdin.close()
    process.wait()
    process.stdout.close()


async def holds(store, job="an append"):
    """Hold a claim for a moment."""
    async with claimed(store, "claim", job) as claim:
        await claim.check()


def altered(store, **members):
    """Change what the claim says."""
    said = json.loads(store.read("claim").result().value)
    store.write("claim", json.dumps({**said, **members})).result()


def test_a_second_job_is_told_of_the_first(place):
    """The error names the job, its beginning, its process and its host, and the key that it holds."""

    async def both():
        async with claimed(place, "claim", "a copy of memory://a/"):
            await holds(place)

    with pytest.raises(FailedPreconditionError, match=r"a copy of memory://a/, begun at \d{4}-.* UTC") as raised:
        run(both())
    assert f"process {os.getpid()} on " in str(raised.value)
    assert place.prefix.describe("claim") in str(raised.value)


def test_a_claim_is_given_up_at_the_end(place):
    """Also after an error and after a cancellation; nothing of it remains, nor the directory."""

    async def fails():
        async with claimed(place, "claim", "an append"):
            raise OSError("no space")

    async def waits():
        async with claimed(place, "claim", "an append"):
            await asyncio.sleep(60)

    run(holds(place))
    with pytest.raises(OSError, match="no space"):
        run(fails())
    future = execution.start(waits())
    while place.read("claim").result().state != "value":
        pass
    future.cancel()
    while place.list().result():
        pass
    run(holds(place))
    assert not place.list().result()


def test_of_many_threads_one_at_a_time_holds_it(place):
    """Threads of one process are claimants like any other: no two are ever inside."""
    inside, told, together = [], [], threading.Barrier(8)

    async def once(number):
        async with claimed(place, "claim", f"job {number}"):
            inside.append(number)
            assert inside == [number]
            await asyncio.sleep(0)
            inside.remove(number)

    def work(number):
        together.wait()
        try:
            run(once(number))
        except FailedPreconditionError:
            told.append("refused")
        else:
            told.append("held")

    for _ in range(10):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(told) == 80
    assert "held" in told
    assert not place.list().result()


def test_the_claim_of_a_process_that_died_is_taken_at_once(tmp_path):
    """While it lives there is an error; when it is gone nobody waits."""
    store, process = ts.KvStore.open(f"file://{tmp_path}/").result(), another(tmp_path)
    with pytest.raises(FailedPreconditionError, match=f"a copy of x, .* by process {process.pid} on "):
        run(holds(store))
    end(process)
    run(holds(store))


def test_a_process_that_nobody_has_waited_for_is_dead(tmp_path):
    """Its number is still taken, but it does nothing any more."""
    store, process = ts.KvStore.open(f"file://{tmp_path}/").result(), another(tmp_path)
    process.stdin.close()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    run(holds(store))
    process.wait()
    process.stdout.close()


def test_a_number_may_belong_to_another_process_by_now(tmp_path):
    """A claim is of the process that began when it says, and no other of that number stands in the way."""
    store, process = ts.KvStore.open(f"file://{tmp_path}/").result(), another(tmp_path)
    altered(store, started="1")
    run(holds(store))
    end(process)


def test_a_claim_that_this_process_could_not_give_up_is_free(place):
    """Nothing of this process holds it, so nobody waits."""

    async def keeps():
        async with claimed(place, "claim", "an append"):
            return bytes((await place.read("claim")).value)

    place.write("claim", run(keeps())).result()
    run(holds(place))


def test_a_job_elsewhere_is_over_when_nothing_is_heard_of_it(place, quick):
    """Its beats are watched, not its clock, which may say anything."""

    async def both():
        async with AsyncExitStack() as stack:
            claim = await stack.enter_async_context(claimed(place, "claim", "an append"))
            claim.holder = module.replace(claim.holder, machine="another", at=-1e9, since=4e9)
            await asyncio.sleep(0.2)
            with pytest.raises(FailedPreconditionError):  # it still beats
                await holds(place)
            claim.stop_beating()
            await asyncio.sleep(0.2)
            await holds(place)
            with pytest.raises(AbortedError, match="is gone"):
                await claim.check()

    run(both())


def test_a_torn_claim_is_free_when_it_stays_as_it_is(place, quick):
    """A crash may leave it so where writes are not whole."""
    place.write("claim", b'{"claim": "12').result()
    run(holds(place))


def test_whoever_lost_the_claim_is_told_by_whom(place, quick):
    """A process that was stopped for long finds another job at its place, and must not go on."""

    async def both():
        async with claimed(place, "claim", "an append") as claim:
            altered_ = json.loads((await place.read("claim")).value)
            await place.write("claim", json.dumps({**altered_, "claim": "another", "job": "a copy of y"}))
            with pytest.raises(AbortedError, match="was taken by a copy of y"):
                await claim.check()

    run(both())
    assert place.list().result() == [b"claim"]  # the other's


def test_a_store_without_conditions_takes_claims_one_after_the_other():
    """Its second job is refused too, but for two that begin in the same moment."""
    place = ts.KvStore.open(_Plain()).result()
    assert not place.prefix.driver.features.conditional_write

    async def both():
        async with claimed(place, "claim", "a copy of x"):
            await holds(place)

    with pytest.raises(FailedPreconditionError, match="a copy of x"):
        run(both())
    run(holds(place))
    assert not place.list().result()


class _Plain(dict):
    """A mapping of which only its own methods are known."""


def test_a_claim_that_cannot_be_written_is_an_error(tmp_path):
    """Nobody goes on without one."""
    (tmp_path / "jobs").write_text("a file")
    with pytest.raises(StoreError):
        run(holds(ts.KvStore.open(f"file://{tmp_path}/jobs/").result()))


def test_beats_never_write_over_the_claim_of_another(place, quick):
    """Who lost it stays silent, however often it would have told that it is alive."""

    async def both():
        async with claimed(place, "claim", "an append"):
            said = json.loads((await place.read("claim")).value)
            await place.write("claim", json.dumps({**said, "claim": "another"}))
            await asyncio.sleep(0.3)
            return json.loads((await place.read("claim")).value)["claim"]

    assert run(both()) == "another"
