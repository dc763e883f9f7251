"""The `http` root: `{"driver": "http", "base_url": ..., "headers": [...], "path": ...}`, and its drivers.

A URL `https://host/a/b?query` has the base `https://host?query` and the path `/a/b`.  The query is appended to every
request; if it or the headers hold credentials, JSON and messages do not show them.

The default client is fsstore's own: it fetches several small values in the time that others take for one, starts no
threads and survives a fork.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal
from urllib.parse import unquote, urlsplit

from fsstore.errors import JsonError, StoreError, UnimplementedError, UrlError
from fsstore.kvstore.contract.batch import limits_from
from fsstore.kvstore.contract.driver import Features, KindDefaults, KvOpening, take_engine
from fsstore.kvstore.engine.contract import Engine, Retry, retry_from, shared
from fsstore.kvstore.engine.driver import EngineDriver, Home, check_key
from fsstore.kvstore.engine.secret import guard, reveal
from fsstore.kvstore.root.option import (
    IDLE,
    OF_REQUESTS,
    Library,
    check_options,
    choose_engine,
    concurrency_from,
    take_options,
    with_storage_options,
)
from fsstore.kvstore.web.exchange import header_line, headers_of
from fsstore.runtime.tuning import CONNECTIONS_KEPT, FAR_REQUESTS
from fsstore.values.json_value import Fields, Json, array_of, expected, quote, string
from fsstore.values.registry import decode_path, encode_path


class HttpDriver(EngineDriver):
    """A read-only store over a web server.  A key may start with the slash after the host."""

    id: ClassVar[str] = "http"

    def _path(self, key: str) -> str:
        rest = key.removeprefix("/")
        if rest:
            check_key(rest)
        if not self.root:
            return rest
        return self.root.removesuffix("/") + "/" + rest if key else self.root

    def describe_key(self, key: str) -> str:
        """Return the quoted URL of the key, without query."""
        rest = key.removeprefix("/")
        return quote(self.shown.removesuffix("/") + "/" + rest if key else self.shown)


def _base_url(value: Any) -> str:
    url = string(value)
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise JsonError(f'Expected scheme of "http" or "https" but received: {quote(parts.scheme)}')
    if parts.fragment or "#" in url:
        raise JsonError("Fragment identifier not supported")
    if not parts.netloc:
        raise expected("URL with a host", value)
    return url


@dataclass(frozen=True)
class HttpKind(KindDefaults):
    """Web servers, read-only."""

    id: str = "http"
    schemes: tuple[str, ...] = ("http", "https")
    role: Literal["root"] = "root"
    resources: tuple[str, ...] = ("http_request_concurrency", "http_request_retries", "range_coalescing", "disk_cache")

    defaults: ClassVar[Mapping[str, Json]] = {"headers": []}

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take `base_url`, `headers`, `engine` and `storage_options`."""
        members: dict[str, Json] = {}
        url = fields.require("base_url", _base_url)
        if url is not None:
            members["base_url"] = guard(url)
        headers = fields.take("headers", array_of(header_line), default=[])
        if headers:
            members["headers"] = guard(headers)
        return {**members, **take_engine(fields, self.id), **take_options(fields)}

    def with_options(self, members: Mapping[str, Json], options: Mapping[str, Any]) -> dict[str, Json]:
        """Return the members with `headers`, and with `storage_options` for other options of the HTTP filesystem."""
        rest = dict(options)
        client = dict(rest.pop("client_kwargs", None) or {})
        given = {**(client.pop("headers", None) or {}), **(rest.pop("headers", None) or {})}
        rest |= {"client_kwargs": client} if client else {}
        check_options("http", rest, OF_REQUESTS)
        out = dict(members)
        if given:
            lines = [header_line(f"{name}: {value}") for name, value in given.items()]
            out["headers"] = guard([*reveal(members.get("headers", [])), *lines])
        return with_storage_options(out, rest)

    def from_url(self, scheme: str, rest: str) -> tuple[str, dict[str, Json]]:
        """Return the path, and the host and query as `base_url`."""
        if "#" in rest:
            raise UrlError("Fragment identifier not supported", rest, rest.find("#"))
        rest, mark, query = rest.partition("?")
        host, slash, path = rest.partition("/")
        if not host:
            raise UrlError("URL must have a host")
        return decode_path(slash + path), {"base_url": guard(f"{scheme}://{host}{mark}{query}")}

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:
        """Return the URL; headers are not part of it."""
        base, mark, query = str(members["base_url"]).partition("?")
        gap = "" if not path or path.startswith("/") or base.endswith("/") else "/"
        return base + gap + encode_path(path) + mark + query

    async def open(self, opening: KvOpening) -> HttpDriver:
        """Return the driver."""
        url = str(reveal(opening.members["base_url"]))
        headers = headers_of(reveal(opening.members.get("headers", [])))
        parts = urlsplit(url)
        if opening.path.startswith("/") and parts.path.strip("/"):
            raise StoreError(
                f"Cannot specify absolute path {quote(opening.path)} in conjunction with a base URL which already "
                f"includes the path component {quote(parts.path)}"
            )
        retry = retry_from(opening.resources, "http_request_retries")
        threads = concurrency_from(opening.resources, "http_request_concurrency")
        base = url.partition("?")[0]
        options = reveal(opening.members.get("storage_options", {}))

        def choose() -> tuple[Engine, str]:
            if not set(options) <= IDLE:
                return fsspec_engine(parts.query, headers, retry, threads, options), root_of(base)
            library = _library(opening.members, url, headers)
            if library == "obstore":
                return obstore_engine(base, headers, retry, threads), ""
            if library == "fsstore":
                return own_engine(url, headers, retry, threads), root_of(base)
            return fsspec_engine(parts.query, headers, retry, threads), root_of(base)

        limits = limits_from(opening.resources)
        return HttpDriver(*choose(), shown=base, members=opening.members, limits=limits, again=choose)


def root_of(base: str) -> str:
    """Return a URL without query as the start of paths: decoded, except for the user."""
    scheme, slashes, rest = base.partition("://")
    host, slash, path = rest.partition("/")
    return scheme + slashes + host + slash + unquote(path)


def _library(members: Mapping[str, Json], url: str, headers: Mapping[str, str]) -> Library:
    requested = members.get("engine")
    if requested in {None, "fsstore"}:
        from fsstore.kvstore.web.client import check_able

        try:
            check_able(url, headers)
        except UnimplementedError:
            if requested is not None:
                raise
        else:
            return "fsstore"
    parts = urlsplit(url)  # obstore encodes paths itself, and cannot handle queries and users
    plain = not parts.query and "@" not in parts.netloc and "%" not in parts.path
    return choose_engine(members, possible=plain)


def own_engine(url: str, headers: dict[str, str], retry: Retry, concurrency: int | None) -> Any:
    """Return the engine over fsstore's own client for a web server; the URL may have a query.

    All roots of a server share a client: a thousand signed URLs, each a root, would open a thousand connections.
    """

    def make() -> Engine:
        from fsstore.kvstore.client.web import IDENTITY, HttpEngine
        from fsstore.kvstore.web.client import HttpClient

        most = max(CONNECTIONS_KEPT, concurrency or FAR_REQUESTS)
        client = HttpClient({**IDENTITY, **headers}, retry.idle_s, most=most)
        return HttpEngine(client, retry=retry, concurrency=concurrency)

    base, mark, query = url.partition("?")
    key = ("own", origin_of(base), tuple(sorted(headers.items())), retry, concurrency)
    engine: Any = shared(key, make)
    return engine.asking(mark + query)


def origin_of(url: str) -> str:
    """Return the scheme and host of a URL.

    >>> origin_of("http://host:80/a/b")
    'http://host:80'
    """
    return "/".join(url.split("/", 3)[:3])


def obstore_engine(base: str, headers: dict[str, str], retry: Retry, concurrency: int | None) -> Any:
    """Return the obstore engine for a web server."""
    from obstore.store import HTTPStore

    from fsstore.kvstore.client.object_store import ObstoreEngine, client_options

    place = base.removesuffix("/")  # obstore adds a slash before the key

    def store(config: dict[str, Any], timeout_s: float) -> Any:
        options = client_options(retry, timeout_s, allow_http=True, headers=headers)
        return HTTPStore(place, client_options=options, retry_config=config)

    def make() -> ObstoreEngine:
        return ObstoreEngine(
            store,
            shown=place + "/",
            features=Features(waits=True, writable=False, listable=False),
            retry=retry,
            concurrency=concurrency,
        )

    return shared(("http", base, tuple(sorted(headers.items())), retry, concurrency), make)


def fsspec_engine(
    query: str, headers: dict[str, str], retry: Retry, concurrency: int | None, options: Mapping[str, Any] | None = None
) -> Any:
    """Return the engine over fsspec's HTTP filesystem, made with `options`."""
    from fsstore.kvstore.client.web import HttpEngine, Session
    from fsstore.kvstore.root.open_engine import filesystem_class

    cls = filesystem_class("http")
    given = {**(options or {}), "asynchronous": True, "skip_instance_cache": True, "use_listings_cache": False}
    home = Home(lambda: cls(**given))
    mark = f"?{query}" if query else ""
    session = Session(home, headers, retry.idle_s)
    return HttpEngine(session, query=mark, retry=retry, concurrency=concurrency)
