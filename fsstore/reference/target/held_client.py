"""The client of fsspec's `HTTPFileSystem`, held to a policy: each redirect and each address is asked about first."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from fsstore.errors import PermissionDeniedError

if TYPE_CHECKING:
    from fsstore.kvstore.web.route import Judge

__all__ = ["held_options"]

Follow = Callable[[str], Any]


def held_options(given: Mapping[str, Any], follow: Follow, judge: Judge | None) -> dict[str, Any]:
    """Return options of an `HTTPFileSystem` that asks `follow` before a redirect and `judge` about addresses.

    A filesystem so made is never shared: it answers to one set.  A client that the caller makes is left as it is, but
    for the redirects.
    """
    client = dict(given.get("client_kwargs") or {})
    traces = [*client.get("trace_configs", ()), _trace(follow)]
    held = {**given, "client_kwargs": {**client, "trace_configs": traces}, "skip_instance_cache": True}
    if judge is not None and "get_client" not in given and "connector" not in client:
        held["get_client"] = _judging(judge)
    return held


def _trace(follow: Follow) -> Any:
    from aiohttp import TraceConfig

    async def on_redirect(_session: Any, _context: Any, params: Any) -> None:
        place = params.response.headers.get("Location") or params.response.headers.get("URI") or ""
        follow(urljoin(str(params.url), place))

    trace = TraceConfig()
    trace.on_request_redirect.append(on_redirect)
    return trace


def _judge_either(judge: Judge, host: str, address: str) -> None:
    """Ask about an address of a host; a resolver does not know whether it is for `http` or `https`."""
    try:
        judge(f"http://{host}", address)
    except PermissionDeniedError:
        judge(f"https://{host}", address)


def _judging(judge: Judge) -> Callable[..., Any]:
    """Return what makes a session whose names lead to addresses that were judged, and to no others."""

    async def get_client(**options: Any) -> Any:
        from aiohttp import ClientSession, TCPConnector, ThreadedResolver

        class Judged(ThreadedResolver):  # type: ignore[misc]  # aiohttp is not followed by the type checker
            async def resolve(self, host: str, *arguments: Any, **named: Any) -> Any:
                found = await super().resolve(host, *arguments, **named)
                for each in found:
                    _judge_either(judge, f"{host}:{each['port']}", each["host"])
                return found

        return ClientSession(connector=TCPConnector(resolver=Judged()), **options)

    return get_client
