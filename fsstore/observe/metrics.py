"""The functions of TensorStore that tell what all stores of the process have done.

Metrics are called `/fsstore/kvstore/file/bytes_read`; a prefix may say `/tensorstore/` instead, for programs that were
written for it.
"""

from __future__ import annotations

import http.client
import logging
import os
import sys
import time
import urllib.error
import urllib.request
from base64 import urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

from fsstore.errors import StoreError, UnavailableError
from fsstore.redaction import redact
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.runtime.observer import Observation, totals
from fsstore.values.argument import as_flag, as_text

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
    """Return all metrics by name: a value, and what it is."""
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
    return execution.start(_pushed(url, body))


def _label(name: str, value: str) -> str:
    """Return a label in the path of a gateway: as it is, or in base64 where it has more than letters and digits."""
    if value.replace("_", "").replace("-", "").replace(".", "").isalnum() and value.isascii():
        return f"{name}/{value}"
    return f"{name}@base64/{urlsafe_b64encode(value.encode()).decode().rstrip('=')}"


async def _pushed(url: str, body: bytes) -> int:
    return await execution.offload(_push, url, body)


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


# Operations as spans of OpenTelemetry, for programs that have it at work.


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
