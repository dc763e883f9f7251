"""Reads and policies in the terms of obstore, which is told to try each request once: see `object_store`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fsstore.kvstore.client.range_answer import entity_tag
from fsstore.kvstore.contract.driver import Read
from fsstore.kvstore.engine.retry import Retry

__all__ = ["client_options", "get_options", "retry_config"]


def retry_config(policy: Retry) -> dict[str, Any]:
    """Return a policy in obstore's terms."""
    return {
        "max_retries": policy.max_retries,
        "retry_timeout": timedelta(seconds=policy.deadline_s),
        "backoff": {
            "init_backoff": timedelta(seconds=policy.initial_delay_s),
            "max_backoff": timedelta(seconds=policy.max_delay_s),
            "base": 2,
        },
    }


def client_options(
    policy: Retry, timeout_s: float, *, allow_http: bool, headers: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return options of obstore's HTTP client.

    Its time limit is for a whole request.  A value that is not received by then is asked for from there on, but one
    that is not sent is lost: see `ObstoreEngine`.
    """
    options: dict[str, Any] = {
        "allow_http": allow_http,
        "timeout": timedelta(seconds=timeout_s),
        "connect_timeout": timedelta(seconds=min(policy.idle_s, 30.0)),
    }
    return {**options, "default_headers": headers} if headers else options


def get_options(read: Read) -> dict[str, Any]:
    """Return the range and the condition of a read."""
    options: dict[str, Any] = {}
    if read.start < 0:
        options["range"] = {"suffix": -read.start}
    elif read.stop is not None:
        options["range"] = (read.start, read.stop) if read.stop > read.start else (0, 1)
    elif read.start:
        options["range"] = {"offset": read.start}
    tag = entity_tag(read.if_not_equal.partition(b"\n")[0])
    return {**options, "if_none_match": tag} if tag is not None else options
