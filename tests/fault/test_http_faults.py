"""Servers that misbehave: the engines answer exactly, or say what went wrong, and never pass wrong bytes on."""

import asyncio
import functools
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fsstore.errors import (
    FailedPreconditionError,
    OutcomeUnknownError,
    OutOfRangeError,
    PermissionDeniedError,
    StoreError,
    UnavailableError,
)
from fsstore.kvstore.client.object_store import bucket_engine
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvOpening, KvPrefix, Read, Write
from fsstore.kvstore.engine.contract import Retry
from fsstore.kvstore.engine.driver import EngineDriver
from fsstore.kvstore.root.cloud import HTTP, S3
from fsstore.kvstore.root.option import s3_reach
from fsstore.kvstore.root.web import HttpDriver, fsspec_engine, obstore_engine, own_engine
from fsstore.runtime import execution

FAST = Retry(max_retries=4, initial_delay_s=0.001, max_delay_s=0.002, deadline_s=10, idle_s=1)
RETRIES = {"initial_delay": "1ms", "max_delay": "2ms", "max_retries": 4}
DATA = bytes(range(100))


def run(coroutine):
    """Run a coroutine on the loop of the runtime."""
    return execution.call(coroutine)


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    """Give the environment of S3 clients."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def http_store(server, engine, retry=FAST):
    """Return a store over the object server with a fast retry policy."""
    if engine == "obstore":
        return KvPrefix(HttpDriver(obstore_engine(server.url, {}, retry, 8), ""), "/d/")
    engine = own_engine(server.url, {}, retry, 8) if engine == "fsstore" else fsspec_engine("", {}, retry, 8)
    return KvPrefix(HttpDriver(engine, server.url), "/d/")


@functools.cache
def s3_driver(url, engine):
    """Return the driver of the bucket `d` of a server; a client of S3 takes half a second to make."""
    members = {"bucket": "d", "endpoint": url, "aws_region": "us-east-1", "engine": engine}
    return run(S3.open(KvOpening(members, {"s3_request_retries": RETRIES})))


def s3_store(server, engine):
    """Return a store over the bucket `d` of the object server."""
    return KvPrefix(s3_driver(server.url, engine))


@pytest.fixture(params=["http-fsstore", "http-fsspec", "http-obstore", "s3-fsspec", "s3-obstore"])
def store(request, object_server):
    """Give a store over the object server, through each engine."""
    kind, engine = request.param.split("-")
    object_server.put("d/x", DATA)
    return (http_store if kind == "http" else s3_store)(object_server, engine)


def answer(status, body=b"", **headers):
    """Return a scripted answer."""
    return lambda handler, path, received: handler.reply(status, body, **headers)


def reset(handler, path, received):
    """Break the connection without an answer."""
    handler.connection.shutdown(socket.SHUT_RDWR)
    handler.close_connection = True


def cut(handler, path, received):
    """Announce more than is sent, then break the connection."""
    handler.reply(200, DATA[:50], length=100)
    handler.wfile.flush()
    reset(handler, path, received)


def test_ranges_are_exact(store):
    """Every form of range gives its bytes and the generation."""
    reads = [
        Read("x"),
        Read("x", 5, 9),
        Read("x", 90),
        Read("x", -7),
        Read("x", 3, 3),
        Read("x", 100),
        Read("x", 0, 100),
    ]
    for read in reads:
        result = run(store.read_many([read]))[0]
        assert result.state == "value"
        assert bytes(result.value) == DATA[read.start : read.stop]
        if read.start != 100:
            assert result.generation not in (UNKNOWN, NO_VALUE)


@pytest.mark.parametrize(
    "read", [Read("x", 5, 101), Read("x", 100, 101), Read("x", 101), Read("x", -101), Read("x", 200, 300)]
)
def test_a_range_outside_the_value_is_an_error(store, read):
    """Nothing is clipped."""
    with pytest.raises(OutOfRangeError, match="of size 100"):
        run(store.read_many([read]))


@pytest.mark.parametrize("read", [Read("no"), Read("no", 5, 9), Read("no", -3), Read("no", 2, 2), Read("no", 7)])
def test_a_missing_key_is_missing(store, read):
    """A key the server does not have is missing, however it is asked for."""
    result = run(store.read_many([read]))[0]
    assert (result.state, bytes(result.value), result.generation) == ("missing", b"", NO_VALUE)


def test_an_unchanged_value_is_not_sent_again(store):
    """A read under the current generation answers "unspecified"; under another one, the value."""
    generation = run(store.read("x")).generation
    first, second = (run(store.read_many([Read("x", 0, None, g)]))[0] for g in (generation, b'"other"'))
    assert first.state == "unspecified"
    assert bytes(second.value) == DATA


@pytest.mark.parametrize("status", [500, 502, 503, 429])
def test_a_passing_failure_is_tried_again(store, object_server, status):
    """A server that fails twice and then answers is not noticed."""
    object_server.fail("x", answer(status), answer(status))
    assert bytes(run(store.read("x")).value) == DATA


@pytest.mark.parametrize("fault", [reset, cut])
def test_a_broken_connection_is_tried_again(store, object_server, fault):
    """A reset, and a body cut off, are not taken for an answer."""
    object_server.fail("x", fault, fault)
    assert bytes(run(store.read("x")).value) == DATA


def test_a_lasting_failure_is_unavailable_and_names_the_key(store, object_server):
    """When the tries run out the error says which key and why, and the value is not called missing."""
    object_server.fail("x", *[answer(503)] * 50)
    with pytest.raises(UnavailableError, match="d/x.*503"):
        run(store.read("x"))
    assert object_server.count() <= 12


@pytest.mark.parametrize("status", [401, 403])
def test_a_refusal_is_permission_denied(store, object_server, status):
    """A server that does not say whether the key exists is not believed to say it is missing; nothing is retried."""
    object_server.fail("x", *[answer(status)] * 9)
    with pytest.raises(PermissionDeniedError):
        run(store.read("x"))
    assert object_server.count() == 1


@pytest.mark.parametrize("status", [400, 418])
def test_other_failures_are_errors_at_once(store, object_server, status):
    """A status that means nothing to us is an error, and is not retried."""
    object_server.fail("x", *[answer(status)] * 9)
    with pytest.raises(StoreError) as caught:
        run(store.read("x"))
    assert not caught.value.transient
    assert object_server.count() == 1


@pytest.mark.parametrize("reads", [(), (2, 4)])
def test_not_modified_is_no_answer_to_who_did_not_ask(store, object_server, reads):
    """A server, or a cache on the way, that says so unasked is an error: not a value, and not a missing one."""
    object_server.fail("x", *[answer(304)] * 9)
    with pytest.raises(StoreError):
        run(store.read("x", *reads))


def test_a_server_that_ignores_ranges_is_cut_to_size(store, object_server):
    """The whole value in place of a range: the range is taken out of it."""
    object_server.fail("x", *[answer(200, DATA)] * 4)
    assert bytes(run(store.read("x", 5, 9)).value) == DATA[5:9]
    object_server.fail("x", *[answer(200, DATA)] * 4)
    with pytest.raises(OutOfRangeError):
        run(store.read("x", 5, 200))


@pytest.mark.parametrize(
    ("body", "span"),
    [
        (DATA[5:7], "bytes 5-6/100"),
        (DATA[6:10], "bytes 6-9/100"),
        (DATA[5:9], None),
        (DATA[5:8], "bytes 5-8/100"),
        (DATA[5:9], "bytes x-y/z"),
        (DATA[5:9], "bytes 9-5/100"),
    ],
)
def test_a_wrong_range_is_never_passed_on(store, object_server, body, span):
    """Short answers, other ranges, no or absurd `Content-Range`: asked again, then an error."""
    headers = {"Content_Range": span} if span else {}
    object_server.fail("x", *[answer(206, body, **headers)] * 50)
    with pytest.raises(StoreError) as caught:
        run(store.read("x", 5, 9))
    assert not isinstance(caught.value, OutOfRangeError)


def test_a_wrong_range_once_is_asked_for_again(store, object_server):
    """A server that sends a short range once is asked again."""
    object_server.fail("x", answer(206, DATA[5:7], Content_Range="bytes 5-6/100"))
    assert bytes(run(store.read("x", 5, 9)).value) == DATA[5:9]


@pytest.mark.parametrize("engine", ["fsstore", "fsspec", "obstore"])
def test_a_silent_server_does_not_hang_the_reader(object_server, engine):
    """A server that accepts and says nothing is given up after the idle time."""
    store = http_store(object_server, engine, Retry(max_retries=0, idle_s=1.0))
    object_server.fail("x", lambda handler, path, body: object_server.released.wait(30))
    with pytest.raises(UnavailableError):
        run(store.read("x"))


@pytest.mark.parametrize("engine", ["fsstore", "fsspec", "obstore"])
def test_an_unreachable_server_is_unavailable(engine):
    """Nobody listening is a failure that may pass, not a missing key."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"

    class Nobody:
        pass

    server = Nobody()
    server.url = url
    with pytest.raises(UnavailableError):
        run(http_store(server, engine).read("x"))


@pytest.fixture(params=["fsspec", "obstore"])
def bucket_store(request, object_server):
    """Give a writable store, through each engine."""
    return s3_store(object_server, request.param)


@pytest.mark.parametrize("condition", [UNKNOWN, NO_VALUE, "current"])
@pytest.mark.parametrize("fault", [answer(500), reset])
def test_a_lost_reply_is_not_a_conflict(bucket_store, object_server, condition, fault):
    """A write carried out whose reply was lost counts as done, under any condition."""
    if condition == "current":
        condition = run(bucket_store.write("k", b"old")).generation

    def commit(handler, path, body):
        object_server.keep(path, body, handler.headers)
        fault(handler, path, body)

    object_server.fail("/k", commit, method="PUT")
    stamp = run(bucket_store.write("k", b"new", condition))
    assert stamp.generation == run(bucket_store.read("k")).generation != UNKNOWN
    assert object_server.objects["/d/k"] == b"new"


@pytest.mark.parametrize("theirs", [b"theirs", b"ours"])
def test_a_conflict_after_a_failure_is_an_unknown_outcome(bucket_store, object_server, theirs):
    """After a failed first try an object of another writer proves nothing: his may have come before ours or after."""

    def other(handler, path, body):
        object_server.put(path, theirs, modified=time.time())
        handler.reply(500)

    object_server.fail("/k", other, method="PUT")
    with pytest.raises(OutcomeUnknownError, match="/k"):
        run(bucket_store.write("k", b"ours", NO_VALUE))
    assert object_server.objects["/d/k"] == theirs


def test_writes_refused_by_the_server_are_errors(bucket_store, object_server):
    """A write that is not allowed says so; it is not a failed condition."""
    object_server.fail("/k", *[answer(403)] * 9, method="PUT")
    with pytest.raises(PermissionDeniedError):
        run(bucket_store.write("k", b"x", NO_VALUE))


def test_a_large_value_may_take_its_time():
    """A line on which a value takes longer than a server may be silent is slow, and not dead.

    That is so through obstore; botocore counts the time of sending as silence.
    """
    taken = []

    class Slow(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            """Keep quiet."""

        def do_PUT(self):
            left = int(self.headers["Content-Length"])
            while left:
                taken.append(len(self.rfile.read(min(left, 256 * 1024))))
                left -= taken[-1]
                pause.wait(0.1)
            self.send_response_only(200)
            self.send_header("Content-Length", "0")
            self.send_header("ETag", '"new"')
            self.end_headers()

    pause = threading.Event()
    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        make = s3_reach("d", {"endpoint": url, "aws_region": "us-east-1"}, {}).store
        engine = bucket_engine(make, "s3://d/", retry=FAST, concurrency=None, plain=True)
        try:
            run(engine.write_many([Write("k", bytes(8 * 1024 * 1024))]))
        finally:
            pause.set()
            server.shutdown()
            thread.join()
    assert sum(taken) == 8 * 1024 * 1024


def not_deleted(code):
    """Return the answer that S3 gives when it could not delete an object of several."""
    failure = f"<Error><Key>a</Key><Code>{code}</Code><Message>no</Message></Error>"
    return answer(200, f"<DeleteResult>{failure}</DeleteResult>".encode(), Content_Type="application/xml")


@pytest.mark.parametrize("code", ["InternalError", "SlowDown", "ServiceUnavailable"])
def test_a_deletion_that_passing_trouble_stopped_is_tried_again(bucket_store, object_server, code):
    """Deletions of many objects are answered as a whole, and each may have failed."""
    object_server.put("d/a", b"v")
    object_server.fail("/d", not_deleted(code), method="POST")
    run(bucket_store.write_many([Write("a", None), Write("b", None)]))
    assert not object_server.objects


@pytest.mark.parametrize(
    ("engine", "code", "kind"),
    [("fsspec", "AccessDenied", PermissionDeniedError), ("fsspec", "Odd", FailedPreconditionError),
     ("obstore", "AccessDenied", StoreError), ("obstore", "Odd", StoreError)],
)  # fmt: skip
def test_a_deletion_that_the_server_refuses_is_an_error(object_server, engine, code, kind):
    """And is no refusal where it is none; obstore does not tell the code apart."""
    object_server.put("d/a", b"v")
    object_server.fail("/d", not_deleted(code), method="POST")
    with pytest.raises(kind, match=code):
        run(s3_store(object_server, engine).write_many([Write("a", None), Write("b", None)]))


def test_the_first_error_stops_a_batch(store, object_server):
    """When one key of a batch fails for good, the batch fails, and soon."""
    for number in range(200):
        object_server.put(f"d/n{number}", b"v")
    refused = threading.Event()

    def refuse(handler, path, received):
        handler.reply(403)
        handler.wfile.flush()
        refused.set()

    def wait(handler, path, received):
        refused.wait(10)
        handler.reply(200, b"v")

    object_server.fail("n0", *[refuse] * 9)
    object_server.fail("/n", *[wait] * 200)
    with pytest.raises(PermissionDeniedError):
        run(store.read_many([Read(f"n{number}") for number in range(200)]))
    assert object_server.count() < 200


@pytest.mark.parametrize("engine", ["fsstore", "fsspec"])
def test_cancelling_a_batch_stops_its_requests(object_server, engine):
    """A cancelled read leaves no request behind on the loop."""
    object_server.put("d/x", DATA)
    object_server.fail("x", *[lambda handler, path, body: object_server.released.wait(30)] * 4)
    store = http_store(object_server, engine)

    async def cancelled():
        task = asyncio.ensure_future(store.read_many([Read(f"x{n}") for n in range(4)]))
        while object_server.count() < 4:
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    assert run(cancelled())


def test_threads_of_a_cancelled_batch_take_no_more_of_it(object_server):
    """What a thread has begun it ends; the rest of the batch is dropped, of reads and of writes."""
    started = threading.Event()

    def hold(handler, path, body):
        started.set()
        object_server.released.wait(30)
        handler.reply(200, b"v")

    object_server.fail("/x", *[hold] * 200)
    reads = http_store(object_server, "obstore").read_many([Read(f"x{n}") for n in range(100)])
    writes = s3_store(object_server, "obstore").write_many([Write(f"x{n}", b"v") for n in range(100)])

    async def cancelled(batch):
        task = asyncio.ensure_future(batch)
        while not started.is_set():
            await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.sleep(0)  # it is told
        object_server.released.set()
        await asyncio.gather(task, return_exceptions=True)
        return task.cancelled()

    for batch, method in ((reads, "GET"), (writes, "PUT")):
        object_server.released.clear()
        started.clear()
        assert run(cancelled(batch))
        run(http_store(object_server, "obstore").read_many([Read(f"y{n}") for n in range(32)]))  # all have ended
        begun = [path for verb, path, _ in object_server.log if verb == method and "x" in path]
        assert len(begun) <= 32


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_errors_do_not_show_secrets(object_server, engine):
    """The query of a presigned URL, header values and credentials appear in no message."""
    members = {"base_url": object_server.url + "?X-Amz-Signature=s3cr3t", "headers": ["Authorization: Bearer s3cr3t"]}
    driver = run(HTTP.open(KvOpening(members, {"http_request_retries": RETRIES})))
    object_server.fail("hidden", answer(403, b"no"))
    with pytest.raises(PermissionDeniedError) as caught:
        run(KvPrefix(driver, "/d/").read("hidden"))
    assert "s3cr3t" not in str(caught.value) + repr(caught.value) + driver.describe_key("/d/hidden")
    bucket = s3_store(object_server, engine)
    object_server.fail("hidden", answer(403, b"<Error><Code>AccessDenied</Code></Error>"))
    with pytest.raises(PermissionDeniedError) as caught:
        run(bucket.read("hidden"))
    assert "very-secret" not in str(caught.value)


def test_the_query_reaches_the_server(object_server):
    """A presigned URL keeps its query on every request."""
    object_server.put("d/x", DATA)
    path, members = HTTP.from_url("http", object_server.url[7:] + "/d/x?sig=abc")
    driver = run(HTTP.open(KvOpening(members, {})))
    assert isinstance(driver, EngineDriver)
    assert bytes(run(KvPrefix(driver, path).read()).value) == DATA
    assert "abc" not in str(members) + HTTP.to_url(path, members)


@pytest.mark.parametrize("engine", ["fsstore", "fsspec"])
def test_servers_without_entity_tags_have_dated_generations(object_server, engine):
    """An old enough `Last-Modified` serves as generation."""
    object_server.put("d/x", DATA)
    object_server.etags = False
    result = run(http_store(object_server, engine).read("x"))
    assert result.generation.startswith(b"date:")
