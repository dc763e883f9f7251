"""Operations as spans of OpenTelemetry, for programs that have it at work.

Where a program has set a tracer provider before the first store is opened, every operation becomes a span of its
current trace; `FSSTORE_SPANS=0` forbids it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from fsstore.runtime.observer import Observation

__all__ = ["spans"]


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
