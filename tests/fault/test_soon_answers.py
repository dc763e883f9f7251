"""Reads that the thread which waits for them makes itself, while a server answers soon: its promises are all kept."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import obstore
import pytest

import fsstore as ts
from fsstore.errors import UnavailableError
from fsstore.kvstore.engine.turns import Turns
from fsstore.kvstore.web.client import HttpClient
from fsstore.runtime import execution


class Site(ThreadingHTTPServer):
    """A server of values that tests may make late, silent or unwilling; it counts what is under way."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Answer)
        self.values: dict[str, bytes] = {}
        self.late: list[float] = []  # seconds by which the next answers are late
        self.refusals: list[int] = []  # statuses of the next answers
        self.crowd = 1  # requests that must be under way before one is answered
        self.requests = self.under_way = self.most = 0
        self.engine = ""  # the client that it is asked by
        self.news = threading.Condition()


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # one packet an answer
    server: Site

    def do_GET(self):
        """Answer."""
        site = self.server
        with site.news:
            site.requests += 1
            site.under_way += 1
            site.most = max(site.most, site.under_way)
            late = site.late.pop(0) if site.late else 0
            status = site.refusals.pop(0) if site.refusals else 200
            site.news.notify_all()
            site.news.wait_for(lambda: site.most >= site.crowd, timeout=5)
        time.sleep(late)
        value = site.values.get(self.path.strip("/"))
        with site.news:
            site.under_way -= 1
        with contextlib.suppress(OSError):
            self.send_response(404 if value is None else status)
            body = (value or b"") if status == 200 else b""
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def finish(self):
        """End the connection: of one that its client has left, closing a file fails, and the next must be closed too."""
        for file in (self.wfile, self.rfile):
            with contextlib.suppress(OSError):
                file.close()

    def log_message(self, *args):
        """Say nothing."""


MOMENT_S = 0.3


@pytest.fixture(params=["obstore", "fsstore"])
def site(tune, request):
    """A server that runs, and is near however busy this machine is, and the client that it is asked by."""
    tune("kvstore", SOON_S=0.25, MOMENT_S=MOMENT_S)
    tune("runtime", ASKED_SOON_S=0.25)
    with Site() as made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        made.values, made.engine = {"a": b"alpha", "b": b"beta"}, request.param
        yield made
        made.crowd = 0
        made.shutdown()


@pytest.fixture
def asking(monkeypatch):
    """The threads that made requests, by their numbers."""
    threads = []

    def noting(get):
        def noted(*args, **options):
            threads.append(threading.get_ident())
            return get(*args, **options)

        return noted

    for where in (obstore, HttpClient):
        monkeypatch.setattr(where, "get", noting(where.get))
    return threads


def opened(site, context=None, **more):
    """Return a store of the server."""
    spec = {"driver": "http", "engine": site.engine, "base_url": f"http://127.0.0.1:{site.server_port}", **more}
    return ts.KvStore.open(spec, context=ts.Context(context or {})).result()


def used(store, rounds=3):
    """Return a store whose reads have been asked for one by one, so that the next may be made here."""
    for _ in range(rounds):
        assert store.read("a").result().value == b"alpha"
    return store


def test_one_by_one_is_asked_here(site, asking):
    """The first answer shows that the server is near; what is asked for at once from then on takes no other thread."""
    used(opened(site), 6)
    mine = threading.get_ident()
    assert asking[0] != mine
    assert asking[-3:] == [mine] * 3


def test_answers_are_the_same(site):
    """Values, parts of them, what is missing and what is refused are told alike."""
    store = used(opened(site))
    assert store["b"] == b"beta"
    assert store.read("missing").result().state == "missing"
    site.refusals = [403]
    with pytest.raises(ts.errors.PermissionDeniedError, match="/a"):
        store.read("a").result()
    assert used(store)["a"] == b"alpha"


def test_errors_show_no_secret(site):
    """Headers and queries may be credentials, whichever thread they are sent by."""
    store = used(opened(site, headers=["Authorization: s3cret"]), 6)
    for status in (403, 400):
        site.refusals = [status]
        with pytest.raises(ts.errors.StoreError) as caught:
            store.read("a").result()
        assert "s3cret" not in "".join(traceback.format_exception(caught.value))
        used(store, 6)


def test_what_is_begun_together_is_under_way_together(site):
    """A caller that begins several is not made to wait for one after the other, whatever it did before."""
    store = used(opened(site), 6)
    site.most, site.crowd = 0, 4
    begun = [store.read("a") for _ in range(4)]
    assert [each.result().value for each in begun] == [b"alpha"] * 4
    assert site.most == 4


def test_await_and_time_limits_wait_elsewhere(site, asking):
    """What must hear of other things meanwhile leaves the request to the event loop."""
    store = used(opened(site), 6)
    asking.clear()

    async def awaited():
        return (await store.read("a")).value

    assert asyncio.run(awaited()) == b"alpha"
    assert store.read("a").result(timeout=20).value == b"alpha"
    assert threading.get_ident() not in asking
    used(store)
    site.late = [3.0]
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        store.read("a").result(timeout=0.05)
    assert time.monotonic() - began < 2.5


def test_an_answer_that_comes_late_is_waited_for_elsewhere(site, asking):
    """After a moment the request is made again, with all the time that there is."""
    store = used(opened(site), 6)
    site.requests = 0
    asking.clear()
    site.late = [4 * MOMENT_S, 4 * MOMENT_S]
    assert store.read("a").result().value == b"alpha"
    assert site.requests == 2
    assert asking[0] == threading.get_ident() != asking[1]


def test_ctrl_c_is_heard_within_a_moment(site):
    """A server that falls silent does not hold the main thread."""
    store = used(opened(site), 6)
    site.late = [4.0, 4.0]
    timer = threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT))
    began = time.monotonic()
    try:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            store.read("a").result()
    finally:
        timer.cancel()
    assert time.monotonic() - began < 3
    assert used(store)["b"] == b"beta", "nothing is left taken"


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers that send signals")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # Ctrl-C came before its await
def test_ctrl_c_at_any_moment(site):
    """It leaves no turn taken, no connection open, and no answer behind that the next request would get."""
    store = used(opened(site, http_request_concurrency={"limit": 1}), 6)

    def interrupt(*_):
        raise KeyboardInterrupt

    heard, before = 0, signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(60):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-4 + number * 2e-5)
                assert store.read("ab"[number % 2]).result().value == (b"alpha", b"beta")[number % 2]
                signal.setitimer(signal.ITIMER_REAL, 0)
            except KeyboardInterrupt:
                heard += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert heard
    assert used(store)["b"] == b"beta"


def test_failures_that_pass_are_tried_again(site):
    """As often as the policy says, and not at all without retries."""
    store = used(opened(site), 6)
    site.refusals = [503, 500]
    assert store.read("a").result().value == b"alpha"
    strict = {"http_request_retries": {"max_retries": 0}}
    store = used(opened(site, **strict), 6)
    site.requests, site.refusals = 0, [503]
    with pytest.raises(UnavailableError):
        store.read("a").result()
    assert site.requests == 1


def test_the_number_of_requests_at_once_holds(site):
    """Threads that make requests themselves take turns like everybody."""
    store = used(opened(site, http_request_concurrency={"limit": 1}), 6)
    site.most = 0

    def read(_):
        return [store.read("a").result().value for _ in range(30)]

    with ThreadPoolExecutor(4) as pool:
        assert all(values == [b"alpha"] * 30 for values in pool.map(read, range(4)))
    assert site.most == 1


def test_a_turn_that_is_free_is_taken_and_given_back():
    """A thread drives in a free turn; event loops wait for it, and get it afterwards."""
    turns, held, order = Turns(1), threading.Event(), []

    async def take():
        await turns.take()
        order.append("loop")

    def call():
        waiting.append(execution.start(take()))
        held.wait(0.05)
        order.append("here")
        return 5

    waiting = []
    assert turns.drive(call) == 5
    waiting[0].result(timeout=10)
    assert order == ["here", "loop"]
    with pytest.raises(execution.MayWait):
        turns.drive(call)
    turns.give()
    with pytest.raises(ZeroDivisionError):
        turns.drive(lambda: 1 // 0)
    assert turns.drive(lambda: 6) == 6


@pytest.fixture
def array(site, tmp_path):
    """A far array of nine chunks, one of them missing, and its elements."""
    values = np.arange(900, dtype="int32").reshape(30, 30)
    values[:10, :10] = 0
    spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}/", "metadata": {"chunks": [10, 10]}}
    made = ts.open(spec, create=True, dtype="int32", shape=[30, 30]).result()
    made.write(values).result()
    site.values |= {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    place = {"driver": "http", "engine": site.engine, "base_url": f"http://127.0.0.1:{site.server_port}"}
    return ts.open({"driver": "zarr", "kvstore": place}, open=True).result(), values


def test_arrays_read_the_same(array, asking):
    """Elements, boxes of one chunk and of several, and what is missing, in any order."""
    opened_array, values = array
    random = np.random.default_rng(5)
    for _ in range(60):
        low = random.integers(0, 29, 2)
        high = low + 1 + random.integers(0, 12, 2)
        box = tuple(slice(int(a), int(min(b, 30))) for a, b in zip(low, high, strict=True))
        assert np.array_equal(opened_array[box].read().result(), values[box])
    assert threading.get_ident() in asking


def test_array_reads_begun_together(array, site):
    """Small reads of a far array that are begun together are made together, whatever the caller did before."""
    opened_array, values = array
    for _ in range(4):
        assert opened_array[15, 15].read().result() == values[15, 15]
    site.requests = 0
    begun = [opened_array[15, column].read() for column in range(10, 20)]
    assert [int(each.result()) for each in begun] == values[15, 10:20].tolist()
    assert site.requests < 6, "ten reads of one chunk: the event loop may begin before all of them are there"
    site.late = [4 * MOMENT_S]
    for _ in range(4):
        assert opened_array[25, 5].read().result() == values[25, 5]
    site.values = {key: value for key, value in site.values.items() if key.endswith(".zarray")}
    assert opened_array[25, 5].read().result() == 0, "a chunk that is gone"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_begins_anew(site):
    """A read that was begun before is told so, and one that the child begins has a client of its own, or none."""
    store = used(opened(site), 6)
    held = store.read("b")
    child = os.fork()
    if not child:
        good = False
        try:
            held.result()
        except ts.errors.UnimplementedError as error:
            good = "forked off" in str(error) and site.engine == "obstore"
        except ts.errors.FailedPreconditionError as error:
            good = "begin it again in the child" in str(error) and used(store, 6)["b"] == b"beta"
        finally:
            os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert held.result().value == b"beta"
