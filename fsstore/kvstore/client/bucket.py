"""The engine of a bucket: an obstore store with the options that a root gives it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fsstore.kvstore.client.object_option import client_options
from fsstore.kvstore.client.object_store import ObstoreEngine
from fsstore.kvstore.contract.driver import Features
from fsstore.kvstore.engine.fault import translate
from fsstore.kvstore.engine.retry import Retry
from fsstore.values.json_value import quote

__all__ = ["bucket_engine"]


def bucket_engine(
    make: Callable[[dict[str, Any]], Any], shown: str, *, retry: Retry, concurrency: int | None, plain: bool
) -> ObstoreEngine:
    """Return the engine of a bucket.  `make` builds the store from client and retry options; `plain` allows HTTP."""

    def store(config: dict[str, Any], timeout_s: float) -> Any:
        client = client_options(retry, timeout_s, allow_http=plain)
        return make({"client_options": client, "retry_config": config})

    try:
        return ObstoreEngine(
            store,
            shown=shown,
            features=Features(waits=True, create_only=True, conditional_write=True, conditional_delete=False),
            retry=retry,
            concurrency=concurrency,
        )
    except Exception as error:  # noqa: BLE001  # the boundary: every foreign error is translated here
        failure = translate(error).within(f"Cannot open {quote(shown)}")
    raise failure
