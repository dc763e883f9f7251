"""Web servers as roots whose redirects are authorised hop by hop.

A server a set may read can send the reader anywhere.  The roots made here ask `check` before each further hop, and when
they carry options (tokens in headers, usually) they refuse any hop that leaves the prefix the options belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote, urljoin

from fsstore.errors import PermissionDeniedError
from fsstore.kvstore.contract import KvPrefix
from fsstore.kvstore.reference.policy import has_prefix, normalize
from fsstore.kvstore.secret import redact_url

__all__ = ["guarded_root"]

Check = Callable[[str], Any]


def guarded_root(url: str, options: Mapping[str, Any], *, bound: str | None, check: Check) -> KvPrefix:
    """Return the store below `url`; `bound` is the prefix outside which `options` must not be sent."""
    from fsstore.kvstore.fs import Home
    from fsstore.kvstore.fs_http import HttpEngine
    from fsstore.kvstore.fs_open import filesystem_class
    from fsstore.kvstore.root_http import HttpDriver

    cls = filesystem_class("http")
    given = dict(options)
    headers = {str(name): str(value) for name, value in dict(given.pop("headers", {})).items()}
    client = dict(given.pop("client_kwargs", {}))

    def make() -> Any:
        traces = [*client.get("trace_configs", ()), _trace(check, bound if options else None)]
        return cls(
            **given,
            client_kwargs={**client, "trace_configs": traces},
            asynchronous=True,
            skip_instance_cache=True,
            use_listings_cache=False,
        )

    base, mark, query = url.partition("?")
    engine = HttpEngine(Home(make), headers=headers, query=mark + query)
    return KvPrefix(HttpDriver(engine, unquote(base), shown=base, members={"base_url": redact_url(url)}))


def _trace(check: Check, bound: str | None) -> Any:
    from aiohttp import TraceConfig

    async def on_redirect(_session: Any, _context: Any, params: Any) -> None:
        place = params.response.headers.get("Location") or params.response.headers.get("URI") or ""
        target = normalize(urljoin(str(params.url), place))
        if bound is not None and not has_prefix(target, bound):
            raise PermissionDeniedError(
                f'The redirect to "{redact_url(target)}" leaves "{bound}", for which the options were given'
            )
        check(target)

    trace = TraceConfig()
    trace.on_request_redirect.append(on_redirect)
    return trace
