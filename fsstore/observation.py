"""Observation, for people and for other tools: traces and metrics over the counters of the runtime.

Metrics are TensorStore's functions: what all stores of the process have done.  They are called
`/fsstore/kvstore/file/bytes_read`; a prefix may say `/tensorstore/` instead, for programs that were written for it.
Spans show operations to OpenTelemetry.  `trace` records what a block of code asks of its stores: a table, and a picture
of when.
"""

from __future__ import annotations

import heapq
import http.client
import logging
import os
import sys
import time
import urllib.error
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from os import PathLike
from pathlib import Path
from time import perf_counter_ns
from typing import Any
from urllib.parse import urlsplit

from fsstore.context.context import bytes_text, table
from fsstore.errors import StoreError, UnavailableError
from fsstore.redaction import plain, redact
from fsstore.runtime import execution, fork, observer
from fsstore.runtime.future import Future
from fsstore.runtime.observer import Observation, totals
from fsstore.values.json_value import as_flag, as_text

# Metrics, as TensorStore names and shapes them.

_log = logging.getLogger("fsstore")
_TIMEOUT_S = 60
_FLAG = "tensorstore_"

_NAMES = {
    "batches": ("batch", "reads and writes asked for together"), "reads": ("read", "reads"),
    "bytes_read": ("bytes_read", "bytes read"), "writes": ("write", "writes"),
    "bytes_written": ("bytes_written", "bytes written"), "deletes": ("delete", "deletions"),
    "listings": ("list", "pages of listings"), "retries": ("retries", "requests tried again"),
    "failures": ("failures", "batches that ended with an error"),
    "waiting_ns": ("waiting_ns", "time in requests"), "decodes": ("decode", "chunks decoded"),
    "decoding_ns": ("decoding_ns", "time in decoding"),
}  # fmt: skip
_CACHE = {"hits": ("hit_count", "values found in a cache"), "misses": ("miss_count", "values not in a cache")}


def _metrics() -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    for store, counts in sorted(totals().items()):
        is_cache = store == "cache_pool"
        where = "/fsstore/cache" if is_cache else f"/fsstore/kvstore/{store}"
        for name, (shown, text) in (_CACHE if is_cache else _NAMES).items():
            found[f"{where}/{shown}"] = (counts[name], text if is_cache else f"{store}: {text}")
    return found


def _matching(metric_prefix: str) -> dict[str, tuple[int, str]]:
    if as_text("metric_prefix", metric_prefix).startswith("/tensorstore"):
        metric_prefix = "/fsstore" + metric_prefix.removeprefix("/tensorstore")
    return {name: found for name, found in _metrics().items() if name.startswith(metric_prefix)}


def experimental_collect_matching_metrics(
    metric_prefix: str = "", include_zero_metrics: bool = False
) -> list[dict[str, Any]]:
    """Return the metrics whose names start with a prefix, as TensorStore does.

    >>> experimental_collect_matching_metrics("/fsstore/none")
    []
    """
    with_zeros = as_flag("include_zero_metrics", include_zero_metrics)
    return [
        {"name": name, "values": [{"value": value}]}
        for name, (value, _) in _matching(metric_prefix).items()
        if value or with_zeros
    ]


def experimental_collect_prometheus_format_metrics(metric_prefix: str = "") -> list[str]:
    """Return the same as lines of Prometheus' text format."""
    lines = []
    for name, (value, text) in _matching(metric_prefix).items():
        plain = name.lstrip("/").replace("/", "_").replace("-", "_")
        lines += [f"# HELP {plain} {text}", f"# TYPE {plain} counter", f"{plain} {value}"]
    return lines


def experimental_push_metrics_to_prometheus(
    pushgateway: str = "", job: str = "", instance: str = "", metric_prefix: str = ""
) -> Future[int]:
    """Send the metrics whose names start with a prefix to a push gateway of Prometheus; the result is its HTTP status.

    `job` and `instance` name the group of metrics there, which is replaced.
    """
    if urlsplit(pushgateway).scheme not in ("http", "https") or not urlsplit(pushgateway).hostname:
        raise StoreError(
            "A push gateway is an http URL, like http://localhost:9091/, which this is not: "
            + repr(redact(pushgateway))
        )
    if not job:
        raise StoreError("Metrics are pushed for a job, and none was named")
    url = f"{pushgateway.rstrip('/')}/metrics/{_label('job', job)}"
    if instance:
        url += f"/{_label('instance', instance)}"
    lines = experimental_collect_prometheus_format_metrics(metric_prefix)
    body = "".join(f"{line}\n" for line in lines).encode()
    return execution.start(execution.offload(_push, url, body))


def _label(name: str, value: str) -> str:
    """Return a label in the path of a gateway: as it is, or in base64 where it has more than letters and digits."""
    if value.replace("_", "").replace("-", "").replace(".", "").isalnum() and value.isascii():
        return f"{name}/{value}"
    return f"{name}@base64/{urlsafe_b64encode(value.encode()).decode().rstrip('=')}"


def _push(url: str, body: bytes) -> int:
    request = urllib.request.Request(url, body, {"Content-Type": "text/plain; version=0.0.4"}, method="PUT")  # noqa: S310  # the scheme was looked at
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310  # the same
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"Pushing metrics to {redact(url)} failed: {redact(str(error))}") from error


def parse_tensorstore_flags(argv: Sequence[str]) -> None:
    """Take the flags of TensorStore from a command line, as `sys.argv` has it: the program first.

    `--tensorstore_verbose_logging` does what `experimental_update_verbose_logging` does.  Other flags of TensorStore
    tune its own machinery; they are accepted and logged.  Other flags are left to the program.
    """
    if not isinstance(argv, list | tuple) or not all(isinstance(word, str) for word in argv):
        raise TypeError("argv must be a list of strings")
    words = iter(argv[1:])
    for word in words:
        if word == "--":
            return
        name, equals, value = word.lstrip("-").partition("=")
        if not word.startswith("-") or not name.startswith(_FLAG):
            continue
        if name == f"{_FLAG}verbose_logging":
            experimental_update_verbose_logging(value if equals else next(words, ""))
        else:
            _log.info("the flag --%s of TensorStore changes nothing here", name)


def experimental_update_verbose_logging(flags: str = "", overwrite: bool = False) -> None:
    """Log what goes on: `flags` is a list like `http=1,s3`, of which any that is on has requests logged.

    The names of TensorStore's parts are accepted; requests of all stores are logged by `fsstore.requests`.
    """
    on = [flag.partition("=") for flag in as_text("flags", flags).split(",") if flag.strip()]
    wanted = any(value not in ("0", "-1") for _, _, value in on)
    if as_flag("overwrite", overwrite) or wanted:
        logging.getLogger("fsstore.requests").setLevel(logging.DEBUG if wanted else logging.NOTSET)


# Operations as spans of OpenTelemetry, for programs that use it.


def spans() -> Callable[[Observation], None] | None:
    """Return what makes a span of each operation; None if the program has no OpenTelemetry at work."""
    api = sys.modules.get("opentelemetry.trace")
    if api is None or os.environ.get("FSSTORE_SPANS") == "0":
        return None
    provider = api.get_tracer_provider()
    if type(provider).__name__ == "ProxyTracerProvider":  # nobody has set one, so nobody takes spans
        return None
    tracer: Any = provider.get_tracer("fsstore")

    def tell(observation: Observation) -> None:
        shift = time.time_ns() - time.perf_counter_ns()  # spans are told in the time of day
        span = tracer.start_span(
            f"fsstore.{observation.what}",
            start_time=observation.begin_ns + shift,
            attributes={
                "fsstore.store": observation.store,
                "fsstore.place": observation.place,
                "fsstore.bytes": observation.nbytes,
            },
        )
        span.end(end_time=observation.end_ns + shift)

    return tell


# The operations of a trace as a picture: SVG, or characters for a terminal.

_COLOURS = {
    "read": "#2a7fb8", "write": "#c8622e", "delete": "#8a5a3c", "list": "#7a5ba6", "retry": "#d9a441",
    "decode": "#4c9a6a", "fail": "#c0392b",
}  # fmt: skip
_MARKS = {"read": "r", "write": "w", "delete": "x", "list": "l", "retry": "!", "decode": "d", "fail": "#"}
_MOST_LANES = 60
_LEFT, _RIGHT, _ROW, _TOP, _WIDTH = 76, 16, 13, 44, 920
_MOST_DRAWN = 4000


def lanes(observations: Sequence[Observation]) -> list[list[Observation]]:
    """Return operations in rows in which none overlaps another, each kind of operation in rows of its own."""
    rows: list[list[Observation]] = []
    for what in _COLOURS:
        free: list[tuple[int, int]] = []
        for each in sorted((one for one in observations if one.what == what), key=lambda one: one.begin_ns):
            if free and free[0][0] <= each.begin_ns:
                _, number = heapq.heappop(free)
                rows[number].append(each)
            else:
                number = len(rows)
                rows.append([each])
            heapq.heappush(free, (each.end_ns, number))
    return rows


def _ticks(span_ns: int) -> tuple[float, str]:
    """Return the distance of ticks in nanoseconds, and the unit in which they are written."""
    step = 1.0
    while span_ns / step > 8:
        step *= 2 if str(step)[0] in "15" else 2.5
    return step, "s" if step >= 1e9 else "ms" if step >= 1e6 else "\N{GREEK SMALL LETTER MU}s"


def svg(observations: Sequence[Observation], span: tuple[int, int]) -> str:
    """Return the picture; light and dark follow the reader."""
    begin, end = span
    rows = lanes(observations[:_MOST_DRAWN])[:_MOST_LANES]
    height, scale = _TOP + _ROW * max(1, len(rows)) + 30, (_WIDTH - _LEFT - _RIGHT) / max(1, end - begin)
    parts = [*_frame(end - begin, scale, height), *_legend(observations)]
    before = ""
    for number, row in enumerate(rows):
        y = _TOP + number * _ROW
        if row[0].what != before:
            before = row[0].what
            parts.append(f'<text x="{_LEFT - 8}" y="{y + 10}" text-anchor="end">{before}</text>')
        for each in row:
            x, width = (_LEFT + (each.begin_ns - begin) * scale, max(1.2, (each.end_ns - each.begin_ns) * scale))
            size = f", {bytes_text(each.nbytes)}" if each.nbytes else ""
            told = escape(f"{each.what} {each.place}{size}, {(each.end_ns - each.begin_ns) / 1e6:.3f} ms")
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 3}" rx="1.5"'
                f' fill="{_COLOURS[each.what]}"><title>{told}</title></rect>'
            )
    style = (
        "<style>.t{font:11px system-ui,sans-serif;color:#24313d}.t text{fill:currentColor}"
        ".t .rule{stroke:currentColor;opacity:.14}"
        "@media (prefers-color-scheme:dark){.t{color:#c9d3dc}}</style>"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="t" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}"'
        f' height="{height}" role="img">{style}{"".join(parts)}</svg>'
    )


def _frame(span_ns: int, scale: float, height: int) -> list[str]:
    step, unit = _ticks(max(1, span_ns))
    size = {"s": 1e9, "ms": 1e6}.get(unit, 1e3)
    parts, at = [], 0.0
    while at <= span_ns:
        x = _LEFT + at * scale
        parts.append(f'<line class="rule" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{height - 24}"/>')
        parts.append(f'<text x="{x:.1f}" y="{height - 9}" text-anchor="middle">{at / size:g} {unit}</text>')
        at += step
    return parts


def _legend(observations: Sequence[Observation]) -> list[str]:
    parts, x = [], float(_LEFT)
    for what, colour in _COLOURS.items():
        found = [each for each in observations if each.what == what]
        if found:
            nbytes = sum(each.nbytes for each in found)
            text = f"{len(found):,} {what}" + (f", {bytes_text(nbytes)}" if nbytes else "")
            parts.append(f'<rect x="{x:.0f}" y="11" width="11" height="11" rx="2" fill="{colour}"/>')
            parts.append(f'<text x="{x + 17:.0f}" y="21">{escape(text)}</text>')
            x += 40 + 6.3 * len(text)
    return parts


def text_timeline(observations: Sequence[Observation], span: tuple[int, int], *, rows: int, width: int = 72) -> str:
    """Return the timeline as characters: a letter for each moment in which an operation of a row was under way."""
    begin, end = span
    lines = []
    found = lanes(observations)
    for row in found[:rows]:
        line = [" "] * width
        for each in row:
            first = (each.begin_ns - begin) * width // max(1, end - begin)
            last = (each.end_ns - begin) * width // max(1, end - begin)
            for at in range(max(0, first), min(width, last + 1)):
                line[at] = _MARKS[each.what]
        lines.append(f"{row[0].what:>7} |{''.join(line)}|")
    if len(found) > rows:
        lines.append(f"{'':>7}  and {len(found) - rows} rows more")
    return "\n".join([*lines, f"{'':>7}  0{(end - begin) / 1e6:>{width - 4}.1f} ms"])


_MOST = 100_000  # operations that a trace keeps; it counts the others
_SHOWN = 20


class Trace:
    """The operations of a block of code, in the order in which they ended.

    `str` is a table with a timeline of characters; a notebook shows the same with a picture.
    """

    __module__ = "fsstore"
    __slots__ = ("_lock", "begin_ns", "end_ns", "left_out", "observations")

    def __init__(self) -> None:
        self.observations: list[Observation] = []
        self.left_out = 0
        self.begin_ns = self.end_ns = perf_counter_ns()
        self._lock = fork.lock()

    def take(self, observation: Observation) -> None:
        """Keep an operation."""
        with self._lock:
            if len(self.observations) < _MOST:
                self.observations.append(observation)
            else:
                self.left_out += 1

    @property
    def seconds(self) -> float:
        """How long the block took."""
        return (self.end_ns - self.begin_ns) / 1e9

    def summary(self) -> str:
        """Return a table: for each kind of operation of each store how many, how much, and for how long."""
        rows = []
        for store, what in sorted({(each.store, each.what) for each in self.observations}):
            found = [each for each in self.observations if (each.store, each.what) == (store, what)]
            times = sorted((each.end_ns - each.begin_ns) / 1e6 for each in found)
            rows.append((
                store, what, f"{len(found):,}", bytes_text(sum(each.nbytes for each in found)),
                f"{_busy_ms(found):.2f}", f"{times[len(times) // 2]:.2f}", f"{times[-1]:.2f}",
            ))  # fmt: skip
        return table(("store", "what", "count", "bytes", "busy ms", "median ms", "longest ms"), rows)

    def __str__(self) -> str:
        """Return the table and the timeline."""
        head = f"{len(self.observations):,} operations in {self.seconds * 1e3:.1f} ms"
        if not self.observations:
            return head
        more = f"\n{self.left_out:,} more were counted and not kept" if self.left_out else ""
        timeline = text_timeline(self.observations, (self.begin_ns, self.end_ns), rows=_SHOWN)
        return plain(f"{head}{more}\n\n{self.summary()}\n\n{timeline}")

    def svg(self) -> str:
        """Return a picture of the operations, one a row at the times when they ran."""
        return svg(self.observations, (self.begin_ns, self.end_ns))

    def save(self, path: str | PathLike[str]) -> None:
        """Write the picture to a file: SVG, or a page of HTML with the table if its name ends so."""
        is_page = str(path).lower().endswith((".html", ".htm"))
        page = f"<!doctype html><meta charset=utf-8><title>Trace</title>{self._repr_html_()}"
        Path(path).write_text(page if is_page else self.svg(), encoding="utf-8")

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self.summary())}</pre>{self.svg()}"


def _busy_ms(found: Sequence[Observation]) -> float:
    """Return for how long at least one of some operations was under way."""
    busy = until = 0
    for each in sorted(found, key=lambda one: one.begin_ns):
        busy += max(0, each.end_ns - max(until, each.begin_ns))
        until = max(until, each.end_ns)
    return busy / 1e6


@contextmanager
def trace(*, show: bool = False) -> Iterator[Trace]:
    """Watch all operations of the process while a block runs; `show` prints the table and the timeline at its end.

    >>> import fsstore
    >>> store = fsstore.open("memory://|zarr3:", create=True, dtype=fsstore.uint8, shape=[4]).result()
    >>> with fsstore.trace() as trace:
    ...     store[2] = 1
    >>> sorted({(each.store, each.what) for each in trace.observations})
    [('memory', 'read'), ('memory', 'write')]
    """
    taken = Trace()
    watcher: Any = taken.take
    observer.watch(watcher)
    try:
        yield taken
    finally:
        observer.unwatch(watcher)
        taken.end_ns = perf_counter_ns()
        if show:
            print(taken)  # noqa: T201  # that is what was asked for
