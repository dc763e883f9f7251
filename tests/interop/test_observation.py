"""Counters, traces, metrics, logs and spans: what went on is told, exactly and without secrets, and only when asked."""

from __future__ import annotations

import http.server
import logging
import subprocess
import sys
import threading
import xml.etree.ElementTree as ET
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorstore

import fsstore as ts
from fsstore.errors import StoreError
from fsstore.observation import lanes
from fsstore.runtime import observer
from fsstore.runtime.observer import Meter, Observation

CHUNKS = ts.ChunkLayout(chunk_shape=[10])


def array(kvstore, context=None):
    """Return a new array of ten chunks of ten bytes, without compression."""
    spec = {"driver": "zarr3", "kvstore": kvstore, "metadata": {"codecs": ["bytes"]}}
    made = ts.open(
        spec, create=True, dtype=ts.uint8, shape=[100], chunk_layout=CHUNKS, fill_value=255, context=context
    ).result()
    made[:] = np.arange(100, dtype="u1")
    return made


class _Flaky(http.server.BaseHTTPRequestHandler):
    """Answers `v` after as many failures as the server says."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        failing = self.server.failures > 0
        self.server.failures -= failing
        body = b"" if failing else b"value"
        self.send_response(503 if failing else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def flaky():
    """A server that may fail a few times."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Flaky) as server:
        server.failures = 0
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_requests_and_bytes_are_counted(kind, tmp_path):
    """Every read and write of a context's stores is counted, with its bytes, and nothing of other contexts."""
    context = ts.Context()
    store = array(f"{tmp_path.as_uri()}/a/" if kind == "file" else "memory://a/", context)
    before = context.statistics()[kind]
    assert before.writes == 11  # the chunks and the metadata
    assert before.bytes_written > 100
    store[5:35].read().result()
    store.kvstore.read("c/0").result()
    after = context.statistics()[kind]
    assert (after.reads - before.reads, after.bytes_read - before.bytes_read) == (4 + 1, 50)
    assert after.decodes - before.decodes == 4
    assert after.waiting_s > before.waiting_s
    store.kvstore.delete_range(ts.KvStore.KeyRange("c/", "c0")).result() if kind == "memory" else None
    assert ts.Context().statistics().stores == {}
    assert f"{kind}  " in repr(context)


def test_hits_are_counted():
    """What comes from a cache is a hit and no request."""
    context = ts.Context({"cache_pool": {"total_bytes_limit": 1000000}, "data_copy_concurrency": {}})
    store = array("memory://", context)
    store.read().result()
    once = context.statistics()
    assert (once.hits, once.misses) == (0, 10)
    reopened = ts.open(store.spec(), recheck_cached_data=False, context=context).result()
    reopened.read().result()
    reopened.read().result()
    assert context.statistics().hits >= 10


@pytest.mark.timeout(60)
def test_statistics_are_asked_which_stores_they_have():
    """Python would ask for the counts of the store 0, 1, 2, ... for ever: each is zero."""
    context = ts.Context()
    array("memory://", context)
    done = context.statistics()
    assert "memory" in done
    assert "s3" not in done
    assert list(done) == ["memory"]
    assert len(done) == 1


def test_threads_lose_no_counts():
    """Counts of many threads at once add up."""
    context = ts.Context()
    store = ts.KvStore.open("memory://", context=context).result()
    store["k"] = b"12345678"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: [store.read("k").result() for _ in range(500)], range(8)))
    found = context.statistics()["memory"]
    assert (found.reads, found.bytes_read) == (4000, 32000)


def test_retries_are_counted_and_logged(flaky, caplog):
    """A request that is tried again is counted as a retry, warned of once and then told as information."""
    context = ts.Context({"http_request_retries": {"initial_delay": "1ms", "max_delay": "1ms"}})
    flaky.failures = 3
    url = f"http://127.0.0.1:{flaky.server_port}/?token=s3cret"
    store = ts.KvStore.open(url, context=context).result()
    with ts.trace() as trace, caplog.at_level(logging.DEBUG, "fsstore"):
        assert store.read("k").result().value == b"value"
    found = context.statistics()["http"]
    assert (found.reads, found.retries, found.requests, found.bytes_read) == (1, 3, 4, 5)
    assert [each.what for each in trace.observations] == ["retry"] * 3 + ["read"]
    levels = [each.levelname for each in caplog.records if each.name == "fsstore.kvstore"]
    assert levels == ["WARNING", "INFO", "INFO"]
    assert [each.levelname for each in caplog.records if each.name == "fsstore.requests"] == ["DEBUG"] * 4
    assert "s3cret" not in caplog.text + str(trace) + trace.svg() + repr(context)


def test_failures_are_counted(flaky, tmp_path, caplog):
    """What ends with an error is counted as a failure and told, as it is of a store far away and of files."""
    context = ts.Context({"http_request_retries": {"max_retries": 2, "initial_delay": "1ms", "max_delay": "1ms"}})
    flaky.failures = 100
    store = ts.KvStore.open(f"http://127.0.0.1:{flaky.server_port}/?token=s3cret", context=context).result()
    with ts.trace() as trace, caplog.at_level(logging.DEBUG, "fsstore"), pytest.raises(StoreError):
        store.read("k").result()
    found = context.statistics()["http"]
    assert (found.reads, found.failures) == (0, 1)
    assert found.requests == found.retries + 1
    assert [each.what for each in trace.observations][-1] == "fail"
    assert "fail " in caplog.text
    assert "s3cret" not in caplog.text + str(trace) + trace.svg()
    (tmp_path / "plain").write_text("a file, and no directory")
    files = ts.KvStore.open(tmp_path.as_uri() + "/", context=context).result()
    with pytest.raises(StoreError):
        files.write("plain/k", b"").result()
    with pytest.raises(StoreError):
        files.read("plain" * 1000).result()
    assert context.statistics()["file"].failures == 2
    assert "failures" in repr(context)


def test_requests_of_a_batch_have_their_own_times(flaky):
    """In a trace of a remote store each request has the times of its own, within the block."""
    store = ts.KvStore.open(f"http://127.0.0.1:{flaky.server_port}/").result()
    with ts.trace() as trace:
        with ts.Batch() as batch:
            reads = [store.read(f"k{number}", batch=batch) for number in range(50)]
        assert all(each.result().value == b"value" for each in reads)
    spans = {(each.begin_ns, each.end_ns) for each in trace.observations}
    assert len(spans) > 25
    assert all(trace.begin_ns <= begin <= end for begin, end in spans)


def test_a_trace_tells_table_timeline_and_picture(tmp_path, capsys):
    """A trace prints what was asked, and its picture is well-formed, names no markup, and marks each operation."""
    store = array(f"{tmp_path.as_uri()}/%3Cscript%3E/")
    with ts.trace(show=True) as trace:
        store[:30].read().result()
        store[0] = 1
    out = capsys.readouterr().out
    assert "operations in" in out
    assert "busy ms" in out
    assert "rrr" in out or "r" in out.split("busy ms")[1]
    root = ET.fromstring(trace.svg())
    marks = [each for each in root.iter() if each.tag.endswith("title")]
    assert len(marks) == len(trace.observations)
    assert "<script>" in marks[0].text
    trace.save(tmp_path / "t.html")
    assert "<script>" not in (tmp_path / "t.html").read_text()
    trace.save(tmp_path / "t.svg")
    assert (tmp_path / "t.svg").read_text() == trace.svg()


def test_an_empty_trace():
    """A block that asks for nothing has a trace that says so."""
    with ts.trace() as trace:
        pass
    assert str(trace).startswith("0 operations")
    ET.fromstring(trace.svg())


def test_nobody_is_told_after_a_trace():
    """Watching ends with the block, also when it raises."""
    with pytest.raises(ZeroDivisionError), ts.trace() as trace:
        1 / 0
    array("memory://")
    assert trace.observations == []
    assert not observer.is_watched()


def test_lanes_do_not_overlap():
    """Operations in a row of the timeline never overlap, and none is left out."""
    r = np.random.default_rng(4)
    made = []
    for begin, size in r.integers(1, 1000, (300, 2)).tolist():
        made.append(Observation("read" if size % 2 else "write", "file", "", begin, begin + size, 0))
    rows = lanes(made)
    assert sum(map(len, rows)) == 300
    for row in rows:
        assert len({each.what for each in row}) == 1
        assert all(one.end_ns <= other.begin_ns for one, other in zip(row, row[1:], strict=False))


def test_metrics_are_those_of_tensorstore(tmp_path):
    """The functions of TensorStore tell the same counts of the same work, in the same form."""
    names = ["read", "bytes_read", "write", "bytes_written"]

    def counts(library, prefix):
        found = {
            each["name"].rpartition("/")[2]: each["values"][0].get("value")
            for each in library.experimental_collect_matching_metrics(f"{prefix}/kvstore/file/", True)
        }
        return np.array([found.get(name, 0) for name in names])

    ours, theirs = counts(ts, "/tensorstore"), counts(tensorstore, "/tensorstore")
    for library in (ts, tensorstore):
        store = library.KvStore.open(f"{tmp_path.as_uri()}/{library.__name__}/").result()
        for number in range(5):
            store.write(f"k{number}", b"x" * 100).result()
        for number in range(4):
            store.read(f"k{number}").result()
    assert (counts(ts, "/fsstore") - ours).tolist() == (counts(tensorstore, "/tensorstore") - theirs).tolist()
    assert (counts(ts, "/fsstore") - ours).tolist() == [4, 400, 5, 500]
    lines = ts.experimental_collect_prometheus_format_metrics("/fsstore/kvstore/file/bytes_read")
    assert lines[2].startswith("fsstore_kvstore_file_bytes_read ")


def test_counts_outlive_their_context():
    """What a context counted stays in the counts of the process when the context is gone."""
    meter = Meter("gone")
    meter.reads += 7
    assert observer.totals()["gone"]["reads"] == 7
    del meter
    assert observer.totals()["gone"]["reads"] == 7


class _Gateway(http.server.BaseHTTPRequestHandler):
    """Takes metrics as a push gateway does, and keeps them."""

    def do_PUT(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.taken.append((self.path, body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.parametrize("library", [ts, tensorstore], ids=["fsstore", "tensorstore"])
def test_metrics_are_pushed_as_tensorstore_does(library, tmp_path):
    """Metrics go to the group of a push gateway that TensorStore would put them into, as lines of the same form."""
    library.KvStore.open(f"{tmp_path.as_uri()}/").result().write("k", b"value").result()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Gateway) as server:
        server.taken, server.status = [], 202
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            push = library.experimental_push_metrics_to_prometheus
            prefix = f"/{library.__name__}/kvstore/file"
            assert push(f"{url}/", "night", "n-1", prefix).result() == 202
            assert push(url, "a b/c", "", "/none").result() == 202
            server.status = 503
            assert push(url, "night").result() == 503
            with pytest.raises(ValueError):
                push(url, "").result()
            with pytest.raises(ValueError):
                push("", "night").result()
        finally:
            server.shutdown()
            thread.join()
    (first, lines), (second, nothing), _ = server.taken
    assert (first, second, nothing) == ("/metrics/job/night/instance/n-1", "/metrics/job@base64/YSBiL2M", "")
    assert f"{library.__name__}_kvstore_file_write " in lines
    assert lines.startswith("# HELP") and lines.endswith("\n")


def test_a_gateway_that_is_not_there():
    """A gateway that cannot be reached is a failure that names it, without its password."""
    pushed = ts.experimental_push_metrics_to_prometheus("http://user:s3cret@127.0.0.1:1", "night")
    with pytest.raises(StoreError, match="127.0.0.1:1") as caught:
        pushed.result()
    assert "s3cret" not in str(caught.value)


def test_flags_of_tensorstore(caplog):
    """Flags of TensorStore are accepted: that of logging does it, others are logged, and those of programs are left."""
    try:
        with caplog.at_level(logging.INFO, "fsstore"):
            flags = ["--tensorstore_http_threads=4", "-v", "--other", "--tensorstore_verbose_logging", "file=1"]
            assert ts.parse_tensorstore_flags(["program", *flags, "--", "--tensorstore_zip_logging"]) is None
        assert observer.is_watched()
        assert [each.message for each in caplog.records] == [
            "the flag --tensorstore_http_threads of TensorStore changes nothing here"
        ]
        ts.parse_tensorstore_flags([])
    finally:
        ts.experimental_update_verbose_logging("", overwrite=True)


def test_verbose_logging(caplog):
    """Requests are logged when TensorStore's function asks for it, and not after it was taken back."""
    ts.experimental_update_verbose_logging("file=1,http")
    try:
        array("memory://")
        assert "write" in caplog.text
    finally:
        ts.experimental_update_verbose_logging("", overwrite=True)
    assert not observer.is_watched()


@pytest.mark.parametrize(("level", "printed"), [("debug", True), ("info", False), ("", False)])
def test_the_environment_asks_for_logs(level, printed):
    """`FSSTORE_LOG` has a program print what it asks for, without changing the program."""
    code = "import fsstore as ts; ts.KvStore.open('memory://').result().read('key').result()"
    environment = {"FSSTORE_LOG": level, "PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert ('DEBUG fsstore.requests: read "key"' in done.stderr) == printed
    assert printed or done.stderr == ""


@pytest.mark.parametrize("kind", ["file", "memory"])
@pytest.mark.parametrize(("setting", "calls"), [("0", 0), ("1", 2)], ids=["off", "on"])
def test_what_counting_does(kind, setting, calls, tmp_path, monkeypatch):
    """A read calls what counts twice, for the read and for the decoding, and not at all with `FSSTORE_STATISTICS=0`."""
    monkeypatch.setenv("FSSTORE_STATISTICS", setting)
    context = ts.Context()
    store = array(f"{tmp_path.as_uri()}/a/" if kind == "file" else "memory://a/", context)
    store[5].read().result()
    called = []

    def watch(frame, event, argument):
        if event == "call" and frame.f_code.co_filename == observer.__file__:
            called.append(frame.f_code.co_name)

    before = context.statistics()[kind].reads
    sys.setprofile(watch)
    try:
        store[5].read().result()
    finally:
        sys.setprofile(None)
    assert (len(called), context.statistics()[kind].reads - before) == (calls, calls // 2)


def test_spans_of_opentelemetry():
    """A program that has OpenTelemetry at work gets a span of each operation, below its own."""
    code = """
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter, provider = InMemorySpanExporter(), TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
import fsstore as ts
from fsstore.errors import StoreError
with trace.get_tracer("mine").start_as_current_span("work") as mine:
    store = ts.KvStore.open("memory://").result()
    store.write("k", b"12345").result()
spans = exporter.get_finished_spans()
assert [each.name for each in spans] == ["fsstore.write", "work"], spans
assert spans[0].parent.span_id == mine.get_span_context().span_id
assert dict(spans[0].attributes) == {"fsstore.store": "memory", "fsstore.place": '"k"', "fsstore.bytes": 5}
assert abs(spans[0].start_time - spans[1].start_time) < 60e9
"""
    environment = {"PATH": "", "PYTHONPATH": ":".join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
