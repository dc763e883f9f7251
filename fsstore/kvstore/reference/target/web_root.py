"""Web servers as roots whose redirects are authorised hop by hop.

A server a set may read can send the reader anywhere.  The roots made here ask `check` before each further hop, and when
they carry options (tokens in headers, usually) they refuse any hop that leaves the prefix the options belong to.  The
server a set came from is no exception: what lies beside the set may lead elsewhere, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urljoin

from fsstore.errors import PermissionDeniedError
from fsstore.kvstore.contract.driver import KvDriver, KvPrefix
from fsstore.kvstore.engine.secret import redact_url, reveal
from fsstore.kvstore.reference.target.policy import has_prefix, normalize
from fsstore.kvstore.web.header import headers_of

__all__ = ["guarded_home", "guarded_root", "is_web"]

Check = Callable[[str], Any]


def is_web(where: Any) -> bool:
    """Return whether a place is the URL of a web server."""
    return isinstance(where, str) and where.startswith(("http://", "https://"))


def guarded_home(driver: KvDriver, check: Check) -> KvDriver:
    """Return the store a set lies in; in place of a web server one that asks `check` before each further hop."""
    members = driver.spec()
    url = reveal(members.get("base_url") or members.get("url"))
    if not is_web(url):
        return driver
    options = dict(reveal(members.get("storage_options")) or {})
    home = "/".join(url.split("/")[:3]) if options else None
    lines = reveal(members.get("headers")) or []  # which our client sends to no other server
    if lines:
        options["headers"] = headers_of(lines)
    return guarded_root(url, options, bound=home, check=check).driver


def guarded_root(url: str, options: Mapping[str, Any], *, bound: str | None, check: Check) -> KvPrefix:
    """Return the store below `url`; `bound` is the prefix outside which `options` must not be sent."""
    from fsstore.kvstore.client.web import IDENTITY, HttpEngine
    from fsstore.kvstore.engine.contract import shared
    from fsstore.kvstore.engine.retry import Retry
    from fsstore.kvstore.root.web import HttpDriver, origin_of, root_of
    from fsstore.kvstore.web.client import HttpClient

    given = dict(options)
    headers = {str(name): str(value) for name, value in (given.pop("headers", None) or {}).items()}
    follow = _gate(check, bound if options else None)

    def make() -> HttpEngine:
        return HttpEngine(HttpClient({**IDENTITY, **headers}, Retry().idle_s, follow=follow))

    base, mark, query = url.partition("?")
    key = ("guarded", origin_of(base), check, bound, tuple(sorted(headers.items())))
    engine: Any = HttpEngine(_session(given, headers, follow)) if given else shared(key, make)
    driver = HttpDriver(
        engine.asking(mark + query), root_of(base), shown=base, members={"base_url": redact_url(url)}
    )
    return KvPrefix(driver)


def _gate(check: Check, bound: str | None) -> Check:
    """Return what refuses hops that lead out of `bound`, or to where `check` does."""

    def follow(url: str) -> None:
        target = normalize(url)
        if bound is not None and not has_prefix(target, bound):
            raise PermissionDeniedError(
                f'The redirect to "{redact_url(target)}" leaves "{bound}", for which the options were given'
            )
        check(target)

    return follow


def _session(given: dict[str, Any], headers: Mapping[str, str], follow: Check) -> Any:
    """Return the session of an `HTTPFileSystem` with options of its own, whose hops go through `follow`."""
    from fsstore.kvstore.client.web import Session
    from fsstore.kvstore.engine.driver import Home
    from fsstore.kvstore.root.open_engine import filesystem_class

    cls = filesystem_class("http")
    client = dict(given.pop("client_kwargs", {}))

    def make() -> Any:
        traces = [*client.get("trace_configs", ()), _trace(follow)]
        return cls(
            **given,
            client_kwargs={**client, "trace_configs": traces},
            asynchronous=True,
            skip_instance_cache=True,
            use_listings_cache=False,
        )

    return Session(Home(make), headers)


def _trace(follow: Check) -> Any:
    from aiohttp import TraceConfig

    async def on_redirect(_session: Any, _context: Any, params: Any) -> None:
        place = params.response.headers.get("Location") or params.response.headers.get("URI") or ""
        follow(urljoin(str(params.url), place))

    trace = TraceConfig()
    trace.on_request_redirect.append(on_redirect)
    return trace
