"""The functions of TensorStore that tell what all stores of the process have done.

Metrics are called `/fsstore/kvstore/file/bytes_read`; a prefix may say `/tensorstore/` instead, for programs that were
written for it.
"""

from __future__ import annotations

import logging
from typing import Any

from fsstore.runtime.observer import totals

__all__ = [
    "experimental_collect_matching_metrics", "experimental_collect_prometheus_format_metrics",
    "experimental_update_verbose_logging",
]  # fmt: skip

_NAMES = {
    "batches": ("batch", "reads and writes asked for together"), "reads": ("read", "reads"),
    "bytes_read": ("bytes_read", "bytes read"), "writes": ("write", "writes"),
    "bytes_written": ("bytes_written", "bytes written"), "deletes": ("delete", "deletions"),
    "listings": ("list", "pages of listings"), "retries": ("retries", "requests tried again"),
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
    if metric_prefix.startswith("/tensorstore"):
        metric_prefix = "/fsstore" + metric_prefix.removeprefix("/tensorstore")
    return {name: found for name, found in _metrics().items() if name.startswith(metric_prefix)}


def experimental_collect_matching_metrics(
    metric_prefix: str = "", include_zero_metrics: bool = False
) -> list[dict[str, Any]]:
    """Return the metrics whose names start with a prefix, as TensorStore does.

    >>> experimental_collect_matching_metrics("/fsstore/none")
    []
    """
    return [
        {"name": name, "values": [{"value": value}]}
        for name, (value, _) in _matching(metric_prefix).items()
        if value or include_zero_metrics
    ]


def experimental_collect_prometheus_format_metrics(metric_prefix: str = "") -> list[str]:
    """Return the same as lines of Prometheus' text format."""
    lines = []
    for name, (value, text) in _matching(metric_prefix).items():
        plain = name.lstrip("/").replace("/", "_").replace("-", "_")
        lines += [f"# HELP {plain} {text}", f"# TYPE {plain} counter", f"{plain} {value}"]
    return lines


def experimental_update_verbose_logging(flags: str = "", overwrite: bool = False) -> None:
    """Log what goes on: `flags` is a list like `http=1,s3`, of which any that is on has requests logged.

    The names of TensorStore's parts are accepted; requests of all stores are logged by `fsstore.requests`.
    """
    on = [flag.partition("=") for flag in flags.split(",") if flag.strip()]
    wanted = any(value not in ("0", "-1") for _, _, value in on)
    if wanted or overwrite:
        logging.getLogger("fsstore.requests").setLevel(logging.DEBUG if wanted else logging.NOTSET)
