"""How many requests are under way: what a user says, or what a far server bears."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from fsstore.errors import UnavailableError
from fsstore.kvstore.engine.contract import from_status
from fsstore.kvstore.engine.turns import RequestWindow, Turns, each, each_by_threads
from fsstore.runtime import execution
from fsstore.runtime.tuning import FAR_REQUESTS, FAR_S, FEWEST_REQUESTS, FLIGHT_BYTES, REQUESTS

LATE_S = 10 * FAR_S
MANY = 10_000


def grown(elapsed_s=LATE_S, nbytes=4000, waiting=MANY, answers=1000):
    """Return a window after many equal answers."""
    window = RequestWindow(None)
    for _ in range(answers):
        window.answered(elapsed_s, nbytes, waiting)
    return window


def test_the_number_of_a_user_never_changes():
    """Neither late answers nor refusals move it."""
    window = RequestWindow(5)
    assert not window.listens
    assert window.answered(LATE_S, 10, MANY) == 0
    assert window.refused(time.monotonic()) == 0
    assert window.limit == window.most == 5


def test_it_grows_for_small_late_answers_up_to_a_bound():
    """One for each answer, so that it doubles in a round, and no further than the most."""
    assert grown(answers=REQUESTS).limit == 2 * REQUESTS
    assert grown().limit == FAR_REQUESTS


def test_it_does_not_grow_where_that_would_not_help():
    """Near servers, large answers, few requests, and a server that is busy or a line that is full."""
    assert grown(elapsed_s=FAR_S / 2).limit == REQUESTS
    assert not grown(elapsed_s=FAR_S / 2).listens
    assert grown(nbytes=FLIGHT_BYTES // REQUESTS + 1).limit == REQUESTS
    assert grown(waiting=2 * REQUESTS).limit == REQUESTS
    window = RequestWindow(None)
    window.answered(LATE_S, 10, 0)
    for _ in range(100):
        window.answered(3 * LATE_S, 10, MANY)
    assert window.limit == REQUESTS


def test_a_quick_answer_takes_back_what_a_busy_machine_made_it_grow_to():
    """The server was near all the time: it gets the usual number, and costs nothing to listen to from then on."""
    window = grown()
    window.answered(FAR_S / 2, 4000, MANY)
    assert window.limit == REQUESTS
    assert not window.listens


@pytest.mark.parametrize("nbytes", [200_000, 500_000])
def test_what_is_in_flight_is_bounded(nbytes):
    """It stops growing where the answers fill the bound, and shrinks to that when larger ones come."""
    bound = FLIGHT_BYTES // nbytes
    assert abs(grown(nbytes=nbytes).limit - bound) <= 1
    window = grown()
    for _ in range(1000):
        window.answered(LATE_S, nbytes, 0)
    assert abs(window.limit - bound) <= 1
    for _ in range(1000):
        window.answered(LATE_S, FLIGHT_BYTES, 0)
    assert window.limit == REQUESTS


def test_refusals_halve_it_once_a_round_and_it_recovers_slowly():
    """Those of one round count once; afterwards one more request begins in a round of answers."""
    window, now = grown(), time.monotonic()
    for _ in range(FAR_REQUESTS):
        window.refused(now)
    assert window.limit == FAR_REQUESTS // 2
    for number in range(1, 20):
        window.refused(now + number)
    assert window.limit == FEWEST_REQUESTS
    answers = 0
    while window.limit < FEWEST_REQUESTS + 2:
        window.answered(LATE_S, 10, MANY)
        answers += 1
    assert answers > 2 * FEWEST_REQUESTS - 1


def test_a_near_server_that_refuses_gets_fewer_requests_and_later_all_again():
    """What it bears is found again, and then it is not listened to any more."""
    window = grown(elapsed_s=FAR_S / 2)
    window.refused(time.monotonic())
    assert window.limit == REQUESTS // 2
    assert window.listens
    for _ in range(REQUESTS * REQUESTS):
        window.answered(FAR_S / 2, 10, 0)
    assert window.limit == REQUESTS
    assert not window.listens


@pytest.mark.parametrize(("status", "busy"), [(429, True), (503, True), (500, False), (504, False)])
def test_which_answers_ask_for_fewer_requests(status, busy):
    """Those that say that there are too many."""
    error = from_status(status)
    assert isinstance(error, UnavailableError)
    assert error.within("there").busy == busy


class Server:
    """A server that answers late; it knows how many requests were under way at once."""

    def __init__(self):
        self.lock, self.under_way, self.most, self.late_s = threading.Lock(), 0, 0, LATE_S

    def begin(self):
        """Count a request."""
        with self.lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)

    def end(self):
        """Count its answer."""
        with self.lock:
            self.under_way -= 1

    async def ask(self, number):
        """Answer a task."""
        self.begin()
        if self.late_s:
            await asyncio.sleep(self.late_s)
        self.end()
        return number * 2

    def ask_blocking(self, number):
        """Answer a thread."""
        self.begin()
        time.sleep(self.late_s)
        self.end()
        return number * 2


def asked(server, turns, count, *, threads):
    """Return the answers to a batch."""
    if threads:
        call = each_by_threads(server.ask_blocking, range(count), turns, weigh=lambda _: 10)
    else:
        call = each(server.ask, range(count), turns, weigh=lambda _: 10)
    return execution.call(call)


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("limit", [None, 7])
def test_a_batch_uses_what_the_window_gives(threads, limit):
    """Far away a batch has more and more requests under way, and with the number of a user exactly so many."""
    server, turns, count = Server(), Turns(limit), 600 if limit is None else 30
    assert asked(server, turns, count, threads=threads) == [number * 2 for number in range(count)]
    assert server.under_way == 0
    if limit is not None:
        assert server.most == limit
    else:
        assert 2 * REQUESTS < server.most <= turns.window.limit <= FAR_REQUESTS


@pytest.mark.parametrize("threads", [False, True])
def test_a_batch_to_a_server_that_turns_out_to_be_near_goes_on_with_fewer_requests(threads):
    """Turns beyond the usual number end; every answer comes all the same."""
    turns = Turns(None)
    asked(Server(), turns, 600, threads=threads)
    assert turns.window.limit > 2 * REQUESTS
    near = Server()
    near.late_s = 0.0  # two hundred that sleep a moment would wake one another up late on a busy machine
    asked(near, turns, 600, threads=threads)
    after = Server()
    assert asked(after, turns, 200, threads=threads) == [number * 2 for number in range(200)]
    assert after.most <= turns.window.limit == REQUESTS


@pytest.mark.parametrize("threads", [False, True])
def test_a_refusal_holds_for_the_batches_that_follow(threads):
    """Turns that are owed end with the requests that have them."""
    server, turns = Server(), Turns(None)
    error = from_status(503)

    async def refuse():
        turns.failed(error)

    execution.call(refuse())
    assert asked(server, turns, 2 * REQUESTS, threads=threads) == [2 * n for n in range(2 * REQUESTS)]
    assert server.most <= REQUESTS // 2 + 4
    assert server.most >= FEWEST_REQUESTS


@pytest.mark.parametrize("threads", [False, True])
def test_the_first_error_of_a_batch_ends_it(threads):
    """It is raised, and little more is begun; the turns are free again."""
    turns, begun = Turns(4), []

    def blocking(number):
        begun.append(number)
        time.sleep(0.002)
        if number == 5:
            raise ValueError("five")
        return number

    async def waiting(number):
        begun.append(number)
        await asyncio.sleep(0.002)
        if number == 5:
            raise ValueError("five")
        return number

    call = each_by_threads(blocking, range(200), turns) if threads else each(waiting, range(200), turns)
    with pytest.raises(ValueError, match="five"):
        execution.call(call)
    assert len(begun) < 50
    server = Server()
    assert asked(server, turns, 8, threads=threads) == [0, 2, 4, 6, 8, 10, 12, 14]
    assert server.most == 4


def test_an_error_of_a_thread_that_was_hired_later_is_raised():
    """Those that began the batch are still at their first items when it fails; nothing is left out silently."""
    failed = threading.Event()

    def blocking(number):
        if number < FEWEST_REQUESTS:
            assert failed.wait(20)
        elif number == FEWEST_REQUESTS:
            threading.Timer(0.05, failed.set).start()
            raise ValueError("later")
        return number

    with pytest.raises(ValueError, match="later"):
        execution.call(each_by_threads(blocking, range(100), Turns(None)))
