"""Commands that show pages and times: view, bench."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from typing import Any

from fsstore.command.output import columns, put, put_json
from fsstore.command.places import array_of, context_of, read_place_of
from fsstore.command.selection import selection
from fsstore.command.usage import UsageError

__all__ = ["bench", "view"]


def view(arguments: Namespace) -> int:
    """Serve the page of a place until it is interrupted."""
    from fsstore.viewer.door import page_server

    context = context_of(arguments) if arguments.context else None
    server = page_server(read_place_of(arguments), context=context, port=arguments.port)
    put(server.url)
    sys.stdout.flush()
    if sys.stdout.isatty() and not arguments.no_browser:
        import webbrowser

        webbrowser.open(server.url)
    with server:
        server.serve_forever()
    return 0


def bench(arguments: Namespace) -> int:
    """Time the reading of a selection: the first time alone, then the best of the others."""
    from fsstore.context.statistics import bytes_text
    from fsstore.observe.trace import trace

    if arguments.repeat < 1:
        raise UsageError("--repeat is how often the selection is read, at least once")
    view = array_of(arguments)[selection(arguments.selection)]
    times: list[float] = []
    with trace() as first:
        _timed(view, times)
    for _ in range(arguments.repeat - 1):
        _timed(view, times)
    nbytes = view.size * view.dtype.numpy_dtype.itemsize
    reads = [each for each in first.observations if each.what == "read"]
    decodes = [each for each in first.observations if each.what == "decode"]
    facts: dict[str, Any] = {
        "elements": view.size, "bytes": nbytes, "first_s": times[0], "best_s": min(times), "times_s": times,
        "bytes_per_s": nbytes / min(times), "requests": len(reads), "bytes_read": sum(each.nbytes for each in reads),
        "decoding_s": sum(each.end_ns - each.begin_ns for each in decodes) / 1e9,
    }  # fmt: skip
    if arguments.json:
        put_json(facts)
        return 0
    put(columns([
        ("elements", f"{facts['elements']:,}, {bytes_text(nbytes)}"),
        ("first", f"{times[0] * 1e3:.2f} ms, {facts['requests']:,} requests, {bytes_text(facts['bytes_read'])} read"),
        ("best", f"{min(times) * 1e3:.2f} ms of {len(times)}, {bytes_text(facts['bytes_per_s'])} a second"),
        ("decoding", f"{facts['decoding_s'] * 1e3:.2f} ms"),
    ]))  # fmt: skip
    put(f"\n{first}")
    return 0


def _timed(view: Any, times: list[float]) -> None:
    began = time.perf_counter()
    view.read().result()
    times.append(time.perf_counter() - began)
