"""Memory that is used again: small by its thread, large by whoever asks next, and never by two at once."""

import gc
import mmap
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fsstore.chunk.request import new_array
from fsstore.codec import buffers as module
from fsstore.codec.buffers import BLOCK_BYTES, block, scratch
from fsstore.errors import ResourceExhaustedError

LARGE = BLOCK_BYTES + 4096


@pytest.fixture(autouse=True)
def nothing_spare(monkeypatch):
    """Begin without memory that others have let go."""
    monkeypatch.setattr(module._spare, "now", [])


def place(array):
    """Return where the elements of an array are."""
    return array.__array_interface__["data"][0]


def test_a_thread_keeps_small_memory_by_step():
    """Another step and another thread have their own."""
    first, other = scratch(1000), scratch(1000, 1)
    assert place(scratch(500)) == place(first) != place(other)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(lambda: place(scratch(1000))).result(30) not in (place(first), place(other))


def test_a_block_is_used_again_when_nobody_refers_to_it():
    """Neither by an array, nor by a view of one in another shape and data type, nor by its buffer."""
    octets = scratch(LARGE)
    assert place(octets) % mmap.PAGESIZE == 0
    at, view = place(octets), octets.view("<u2").reshape(2, -1).T
    del octets
    assert place(block(LARGE)) != at
    buffer = view[3:].data
    del view
    assert place(block(LARGE)) != at
    del buffer
    gc.collect()
    assert at in {place(one) for one in [block(LARGE), block(LARGE)]}


def test_a_block_serves_what_is_about_as_large():
    """Not what is larger, nor what would leave most of it unused."""
    at = place(block(4 * LARGE))
    others = [block(4 * LARGE + 1), block(LARGE)]
    assert at not in map(place, others)
    assert place(block(3 * LARGE)) == at
    assert len(block(3 * LARGE)) == 3 * LARGE


def test_no_more_is_spare_than_the_window_has_room_for():
    """What was let go first is given back to the system."""
    blocks = [block(8 << 20) for _ in range(9)]
    latest = place(blocks[-1])
    for one in range(9):
        blocks[one] = None
    assert sum(map(len, module._spare.now)) == 32 << 20
    assert place(block(8 << 20)) == latest
    block(64 << 20)
    assert not any(len(memory) > 32 << 20 for memory in module._spare.now)


def test_threads_never_have_the_same_block():
    """Each finds what it has put there."""
    start = threading.Barrier(4)

    def work(number):
        start.wait(30)
        for _ in range(200):
            mine = block(LARGE)
            mine[:: mmap.PAGESIZE] = number
            yield_to_others()
            assert (mine[:: mmap.PAGESIZE] == number).all()

    def yield_to_others():
        threading.Event().wait(0.0001)

    with ThreadPoolExecutor(4) as threads:
        for job in [threads.submit(work, number) for number in range(4)]:
            job.result(60)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_has_blocks_of_its_own():
    """What it decodes into the memory that was spare, or that its parent uses, its parent does not see."""
    used = block(LARGE)
    used[:] = 1
    at = place(block(LARGE))
    child = os.fork()
    if child == 0:
        try:
            used[:] = 2
            block(LARGE)[:] = 2
        finally:
            os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    spare = block(LARGE)
    assert place(spare) == at
    assert (used == 1).all()
    assert not spare.any()


def test_arrays_for_a_while_are_blocks():
    """In either memory order; those with objects are not, and small ones begin where all do."""
    for order in "CF":
        array = new_array((LARGE, 2), np.dtype("<u2"), order, passing=True)
        assert place(array) % mmap.PAGESIZE == 0
        assert array.flags[f"{order}_CONTIGUOUS"]
        at = place(array)
        del array
        assert place(block(4 * LARGE)) == at
    assert new_array((LARGE,), np.dtype(object), passing=True)[5] is None


@pytest.mark.parametrize("size", [2**46, 2**62, 2**70])
def test_memory_that_cannot_be_had(size):
    """It is the error that says how much was asked for."""
    with pytest.raises(ResourceExhaustedError, match=str(size)):
        new_array((size,), np.dtype("u1"), passing=True)
