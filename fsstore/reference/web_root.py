"""Web servers as roots whose redirects are authorised hop by hop.

A server a set may read can send the reader anywhere.  The roots made here ask `check` before each further hop, and when
they carry options (tokens in headers, usually) they refuse any hop that leaves the prefix the options belong to.  The
server a set came from is no exception: what lies beside the set may lead elsewhere, too, whatever filesystems of fsspec
stand in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

from fsstore.errors import PermissionDeniedError, StoreError
from fsstore.kvstore.contract.driver import KvDriver, KvPrefix
from fsstore.kvstore.engine.secret import reveal
from fsstore.kvstore.web.exchange import headers_of
from fsstore.redaction import redact_url
from fsstore.reference.policy import has_prefix, normalize

if TYPE_CHECKING:
    from fsstore.kvstore.client.web import Session
    from fsstore.kvstore.engine.contract import Engine
    from fsstore.kvstore.engine.driver import EngineDriver
    from fsstore.kvstore.web.route import Judge

# The client of fsspec's `HTTPFileSystem`, held to a policy: each redirect and each address is asked about
# first.

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
    """Return a factory of sessions that connect to judged addresses only."""

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


Check = Callable[[str], Any]


def is_web(where: Any) -> bool:
    """Return whether a place is the URL of a web server."""
    return isinstance(where, str) and where.startswith(("http://", "https://"))


def guarded_home(driver: KvDriver, check: Check, judge: Judge | None = None) -> KvDriver:
    """Return the store a set lies in; in place of a web server one that asks `check` before each further hop."""
    from fsstore.kvstore.engine.driver import EngineDriver

    members = driver.spec()
    url = reveal(members.get("base_url") or members.get("url"))
    options = dict(reveal(members.get("storage_options")) or {})
    if isinstance(driver, EngineDriver) and url is None:
        return _guarded_live(driver, check, judge)
    if not isinstance(url, str) or not isinstance(driver, EngineDriver):
        return driver
    if "::" in url or url.startswith("webhdfs://"):
        return _guarded_filesystem(driver, (url, options), check, judge)
    if not is_web(url):
        return driver
    home = "/".join(url.split("/")[:3]) if options else None
    lines = reveal(members.get("headers")) or []  # which our client sends to no other server
    if lines:
        options["headers"] = headers_of(lines)
    return guarded_root(url, options, bound=home, check=check, judge=judge).driver


def _guarded_live(driver: EngineDriver, check: Check, judge: Judge | None) -> KvDriver:
    """Return the store over a live `HTTPFileSystem`, over one like it that asks; others answer for themselves."""
    from fsstore.kvstore.client.web import HttpEngine, Session
    from fsstore.kvstore.engine.driver import Home
    from fsstore.kvstore.root.web import HttpDriver

    engine = driver.engine
    if not isinstance(engine, HttpEngine) or not isinstance(engine.client, Session):
        return driver
    live = engine.client.home.filesystem
    options = {name: value for name, value in live.storage_options.items() if name not in ("asynchronous", "loop")}
    held = held_options(options, _gate(check, None), judge)
    home = Home(lambda: type(live)(*live.storage_args, **held, asynchronous=True))
    session = Session(home, engine.client.headers)
    return HttpDriver(HttpEngine(session, query=engine.query), driver.root, limits=driver.limits)


def _guarded_filesystem(
    driver: EngineDriver, place: tuple[str, dict[str, Any]], check: Check, judge: Judge | None
) -> KvDriver:
    """Return the store of a chain or of WebHDFS, opened anew so that what it stands on asks."""
    from fsstore.kvstore.engine.driver import EngineDriver

    url, options = place
    scheme = url.rpartition("::")[2].partition("://")[0].lower()
    if scheme in ("http", "https"):
        options[scheme] = held_options(dict(options.get(scheme) or {}), _gate(check, None), judge)
    elif scheme != "webhdfs":
        return driver
    engine, root = _held(url, options, check)
    return EngineDriver(engine, root, members=driver.spec(), limits=driver.limits)


def guarded_webhdfs(url: str, options: Mapping[str, Any], check: Check) -> KvPrefix:
    """Return a store of WebHDFS, whose name nodes answer with redirects, that asks `check` before each of them."""
    from fsstore.kvstore.engine.driver import EngineDriver

    engine, root = _held(url, options, check)
    return KvPrefix(EngineDriver(engine, root, members={"url": redact_url(url)}))


def _held(url: str, options: Mapping[str, Any], check: Check) -> tuple[Engine, str]:
    """Return the engine of an fsspec URL, and the path in it; WebHDFS below it asks before redirects."""
    from fsstore.kvstore.client.generic import SyncEngine
    from fsstore.kvstore.root.open_engine import engine_for_url

    engine, root = engine_for_url(url, options)
    if isinstance(engine, SyncEngine):
        _hold_webhdfs(engine.filesystem, check)
    return engine, root


def _hold_webhdfs(filesystem: Any, check: Check) -> None:
    """Make the session of WebHDFS, below a filesystem or none, ask before it follows a redirect."""
    follow = _gate(check, None)

    def look(response: Any, **_: Any) -> None:
        if not response.is_redirect:
            return
        try:
            follow(urljoin(response.url, response.headers["location"]))
        except StoreError:
            response.close()  # its rest is not received, and it holds a socket
            raise

    while (below := getattr(filesystem, "fs", None)) is not None:
        filesystem = below
    if "webhdfs" in filesystem.protocol:
        filesystem.session.hooks["response"].append(look)


def guarded_root(
    url: str, options: Mapping[str, Any], *, bound: str | None, check: Check, judge: Judge | None = None
) -> KvPrefix:
    """Return the store below `url`; `bound` is the prefix outside which `options` must not be sent."""
    from fsstore.kvstore.client.web import IDENTITY, HttpEngine
    from fsstore.kvstore.engine.contract import Retry, shared
    from fsstore.kvstore.root.web import HttpDriver, origin_of, root_of
    from fsstore.kvstore.web.client import HttpClient

    given = dict(options)
    headers = {str(name): str(value) for name, value in (given.pop("headers", None) or {}).items()}
    follow = _gate(check, bound if options else None)

    def make() -> HttpEngine:
        client = HttpClient({**IDENTITY, **headers}, Retry().idle_s, follow=follow, judge=judge)
        return HttpEngine(client)

    base, mark, query = url.partition("?")
    key = ("guarded", origin_of(base), check, judge, bound, tuple(sorted(headers.items())))
    engine: Any = HttpEngine(_session(given, headers, follow, judge)) if given else shared(key, make)
    driver = HttpDriver(engine.asking(mark + query), root_of(base), shown=base, members={"base_url": redact_url(url)})
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


def _session(given: Mapping[str, Any], headers: Mapping[str, str], follow: Check, judge: Judge | None) -> Session:
    """Return the session of an `HTTPFileSystem` with options of its own, whose hops go through `follow`."""
    from fsstore.kvstore.client.web import Session
    from fsstore.kvstore.engine.driver import Home
    from fsstore.kvstore.root.open_engine import filesystem_class

    cls = filesystem_class("http")

    def make() -> Any:
        held = held_options(given, follow, judge)
        return cls(**held, asynchronous=True, use_listings_cache=False)

    return Session(Home(make), headers)
