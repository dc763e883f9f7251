"""Which targets a reference set may read, and web servers as roots that are held to it.

A reference set is a program that makes its reader fetch things, written by whoever wrote the set.  So:

* A set on this machine may read any target of a known kind, unless it was saved from elsewhere: it says so, and keeps
  the rules of the place that it came from.
* A set from elsewhere reads remote targets only: no local file, no memory of this process, no loopback, link-local or
  unspecified address, however it is spelled.  Its own host is no exception made for it, but the place it came from is:
  what lies on the same host and port was already trusted with the set.
* It reads them through clients that can be held to that: web servers, and object stores whose servers a URL does not
  name.  Clients that look up names and follow servers as they please (`ftp`, `sftp`, `webhdfs`, ...) need permission.
* What the caller names is allowed: `targets`, the right sides of `rewrite`, and `allow`.
* With `allow` given, nothing else is.

URLs are compared in one spelling: scheme and host in lower case, hosts as IDNA prepares them for the resolver, `s3a` as
`s3`, bare paths as `file`, dot segments removed (`%2e` too where the scheme decodes it), default ports dropped.  A
prefix ends at a component boundary, so `https://host` never stands for `https://host.evil` or `https://host@evil`.

The policy is pure: no name is resolved, no link followed.  A server that a set may read can send the reader anywhere,
so the roots made here ask the policy before each further hop and each address, and when they carry options (tokens in
headers, usually) they refuse any hop that leaves the prefix the options belong to.  The server a set came from is no
exception: what lies beside the set may lead elsewhere, too, whatever filesystems of fsspec stand in between.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import urljoin, urlsplit

from fsstore.errors import AlreadyExistsError, PermissionDeniedError, StoreError, UrlError
from fsstore.kvstore.contract.driver import KvDriver, KvKind, KvOpening, KvPrefix
from fsstore.kvstore.engine.secret import guard, reveal
from fsstore.kvstore.web.exchange import headers_of
from fsstore.kvstore.web.route import is_internal, is_internal_address, is_plain, prepared
from fsstore.redaction import redact_url
from fsstore.values import registry
from fsstore.values.json_value import quote

if TYPE_CHECKING:
    from fsstore.kvstore.client.web import Session
    from fsstore.kvstore.engine.contract import Engine
    from fsstore.kvstore.engine.driver import EngineDriver
    from fsstore.kvstore.web.route import Judge

# The URLs of references as text: which are relative, which are chains, which are paths of another system.

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]*)://(.*)|(file|local):(/.*)", re.DOTALL | re.IGNORECASE)
_FOREIGN = re.compile(r"[A-Za-z]:(?:\\|/(?!/))|\\\\")
_LINK = re.compile(
    r"(zip|tar|libarchive|dir|reference|simplecache|filecache|blockcache|cached)(?:://(.*?))?::(.+)", re.DOTALL
)


class Link(NamedTuple):
    """The first link of a chain: its kind, the path in it, and the URL it stands on."""

    scheme: str
    path: str
    inner: str


def split_scheme(url: str) -> tuple[str, str] | None:
    """Return the scheme of a URL and what follows its slashes, or None; `file:/a` is `file:///a`."""
    match = _SCHEME.match(url)
    return None if match is None else (match[1] or match[3], match[2] if match[1] else match[4])


def first_link(url: str) -> Link | None:
    """Return the first link of a chain, or None for other URLs.

    >>> first_link("zip://m::s3://b/x.zip")
    Link(scheme='zip', path='m', inner='s3://b/x.zip')
    >>> first_link("http://[::1]/x") or first_link("/data/a::b")
    """
    match = _LINK.fullmatch(url)
    return None if match is None else Link(match[1], match[2] or "", match[3])


def last_link(url: str) -> str:
    """Return what a chain stands on, other URLs as they are."""
    while (link := first_link(url)) is not None:
        url = link.inner
    return url


def is_foreign(url: str) -> bool:
    r"""Return whether a URL is a path of Windows: `C:\data\x`, `D:/x`, `\\server\share`."""
    return _FOREIGN.match(url) is not None


def is_relative(url: str) -> bool:
    """Return whether a URL names a place relative to its document."""
    return not (url.startswith("/") or is_foreign(url) or split_scheme(url) is not None or first_link(url) is not None)


def replaced(url: str, changes: Mapping[str, str]) -> str:
    r"""Return a URL with the longest of its prefixes in `changes` replaced; paths of Windows get slashes.

    >>> replaced(r"C:\data\a\b", {"C:\\data\\": "/data/"})
    '/data/a/b'
    """
    old = max((prefix for prefix in changes if url.startswith(prefix)), key=len, default=None)
    if old is None:
        return url
    rest = url[len(old) :]
    return changes[old] + (rest.replace("\\", "/") if is_foreign(url) else rest)


_SLASHES = re.compile("//+")
_SAME = {"s3a": "s3", "s3n": "s3", "gcs": "gs", "local": "file", "abfss": "abfs", "wasbs": "wasb"}
_PORTS = {"http": ":80", "https": ":443"}
_LOCAL = frozenset({"file", "memory"})
HELD = frozenset({*("s3", "gs", "http", "https", "abfs", "az", "adl", "wasb", "hf", "github", "dropbox", "gdrive")})
"""Schemes whose clients connect where the policy says, or to servers that no URL names."""
NAMED = frozenset({"hdfs", "webhdfs", "ftp", "sftp", "webdav", "webdavs", "oci", "oss"})
"""Schemes of other places that are not this machine, whose clients connect wherever a name or a server leads them."""
_PORT = re.compile(r":[0-9]{0,5}\Z")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.]+(?:%[^\[\]]*)?\]|[^\[\]:]+)(?::[0-9]{0,5})?")
_MARKS = frozenset("?#\\")


def normalize(url: str) -> str:
    """Return an absolute URL in the spelling in which URLs are compared.

    >>> normalize("HTTP://Host:80/a/../b")
    'http://host/b'
    >>> normalize("/data//./x")
    'file:///data/x'
    """
    if url.startswith("/"):
        return "file://" + _without_dots(_SLASHES.sub("/", url))
    if is_foreign(url):
        raise UrlError(
            f"{quote(url)} is a path of Windows; say with `rewrite` where what begins so is on this machine", url
        )
    parts = split_scheme(url)
    if parts is None or any(ord(char) < 32 for char in url):
        raise _invalid(url)
    scheme, rest = parts
    scheme = _SAME.get(scheme.lower(), scheme.lower())
    if scheme == "file":
        host, slash, path = rest.partition("/")
        if host not in ("", "localhost"):
            raise UrlError(f"A file URL names another host: {quote(url)}", url)
        return "file://" + _without_dots(_SLASHES.sub("/", slash + path))
    if scheme in _PORTS:
        host, path, query = _web_parts(rest, url)
        path = re.sub("%2e", ".", path, flags=re.IGNORECASE)
        return f"{scheme}://{host.removesuffix(_PORTS[scheme])}{_without_dots(path) or '/'}{query}"
    host, slash, path = rest.partition("/")
    return f"{scheme}://{_authority(scheme, host, url)}{_without_dots(slash + path)}"


def _authority(scheme: str, host: str, url: str) -> str:
    """Return what stands for a server, bucket or account; marks at which clients cut it differently are refused."""
    if _MARKS & set(host) or host.count("@") > 1:
        raise _invalid(url)
    if scheme not in NAMED:
        return host
    user, at, name = host.rpartition("@")
    return user + at + _prepared(name, url)


def _prepared(host: str, url: str) -> str:
    try:
        return prepared(host)
    except ValueError:
        raise _invalid(url) from None


def _invalid(url: str) -> UrlError:
    return UrlError(f"Invalid URL of a reference target: {quote(redact_url(url))}", redact_url(url))


def _web_parts(rest: str, url: str) -> tuple[str, str, str]:
    """Return host with port, path and query of what follows `http://`; user information is refused."""
    rest = rest.partition("#")[0]
    head, mark, query = rest.partition("?")
    host, slash, path = head.partition("/")
    if "@" in host or "\\" in head or not _HOST.fullmatch(host):
        raise _invalid(url)
    name, colon, port = host.rpartition(":") if not host.endswith("]") and ":" in host else (host, "", "")
    return _prepared(name, url).rstrip(".") + colon + port, slash + path, mark + query


def _without_dots(path: str) -> str:
    """Return an absolute path without `.` and `..`; other empty components and the last slash stay."""
    if "/." not in path:
        return path
    out: list[str] = []
    for part in path.split("/")[1:]:
        if part == "..":
            del out[-1:]
        elif part != ".":
            out.append(part)
    ends = path.endswith(("/.", "/.."))
    return "/" + "/".join(out) + ("/" if ends and out else "")


def has_prefix(url: str, prefix: str) -> bool:
    """Return whether a normalized URL lies at or below a normalized prefix."""
    if not url.startswith(prefix):
        return False
    return len(url) == len(prefix) or prefix.endswith("/") or url[len(prefix)] in "/?"


def longest_prefix(url: str, prefixes: Iterable[str]) -> str | None:
    """Return the longest of `prefixes` at or above a URL, or None."""
    return max((prefix for prefix in prefixes if has_prefix(url, prefix)), key=len, default=None)


def normalize_prefix(prefix: str) -> str:
    """Return a prefix the caller gave, in the spelling of URLs; `s3://` means all buckets."""
    parts = split_scheme(prefix)
    if parts is not None and not parts[1]:
        return f"{_SAME.get(parts[0].lower(), parts[0].lower())}://"
    if parts is None and not prefix.startswith("/"):
        raise UrlError(f"A prefix of targets must be a URL or an absolute path: {quote(prefix)}", prefix)
    web = prefix.lower().startswith(("http://", "https://"))
    normal = normalize(prefix)
    return normal.removesuffix("/") if web and "/" not in prefix.split("://", 1)[1] else normal


@dataclass(frozen=True, slots=True)
class Policy:
    """The places that a set may read.  `home` is the prefix of the place it lies at, if it has a URL.

    `origins` are those that it was saved from, which it may go on to read.

    `allow` and `granted` are normalized prefixes; `allow=None` is the default rule.
    """

    origin: Literal["local", "remote"]
    home: str | None = None
    allow: tuple[str, ...] | None = None
    granted: tuple[str, ...] = ()
    origins: tuple[str, ...] = ()

    @property
    def restricts(self) -> bool:
        """Whether some targets of known kinds are refused."""
        return self.origin == "remote" or self.allow is not None

    def check(self, url: str) -> str:
        """Return the normalized URL, or raise `PermissionDeniedError` that says which option would allow it."""
        normal = normalize(url)
        if longest_prefix(normal, (*self.granted, *(self.allow or ()))) is not None:
            return normal
        if self.allow is not None:
            raise self._refusal(normal, "it lies outside the prefixes given as `allow`")
        if self._is_home(normal):
            return normal
        scheme, _, rest = normal.partition("://")
        if scheme not in HELD | NAMED | _LOCAL:
            raise self._refusal(normal, "no store is known for its scheme; name one in `targets`")
        if self.origin == "remote":
            self._check_remote(normal, scheme, re.split("[/?]", rest, maxsplit=1)[0])
        return normal

    def _is_home(self, url: str) -> bool:
        homes = self.origins if self.home is None else (self.home, *self.origins)
        return any(has_prefix(url, each) for each in homes)

    def _check_remote(self, url: str, scheme: str, host: str) -> None:
        """Refuse what a set from elsewhere may not read unless it is named."""
        if scheme in _LOCAL:
            raise self._refusal(url, "a set from a remote place reads nothing of this machine")
        if is_internal(host):
            raise self._refusal(url, "a set from a remote place reads no loopback or link-local address")
        if scheme in NAMED:
            raise self._refusal(url, f"where a client of {scheme} connects to cannot be checked")
        if scheme in _PORTS and not is_plain(_PORT.sub("", host)):
            raise self._refusal(url, "its host is no plain name")

    def check_address(self, origin: str, address: str) -> None:
        """Raise `PermissionDeniedError` if a server's name leads to this machine although nobody named that server."""
        if self.origin == "local" or not is_internal_address(address):
            return
        place = normalize(origin)
        host = place.partition("://")[2].rstrip("/")
        if self._is_home(place) and is_internal(host):
            return
        if any(has_prefix(each, place) or has_prefix(place, each) for each in (*self.granted, *(self.allow or ()))):
            return
        raise self._refusal(place, "its name leads to a loopback or link-local address")

    def _refusal(self, url: str, why: str) -> PermissionDeniedError:
        shown = quote(redact_url(url))
        return PermissionDeniedError(
            f"The reference target {shown} may not be read: {why} (to permit it, list its prefix in `allow`)"
        )


def join_relative(directory: str, relative: str) -> str:
    """Return the path a relative URL names below a directory path, dot segments removed.

    A path that climbs above the root is refused.
    """
    path = posixpath.normpath(posixpath.join("/" + directory, relative))
    depth = 0
    for part in (directory + "/" + relative).split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        if depth < 0:
            raise PermissionDeniedError(f"The reference target {quote(relative)} climbs out of the store of its set")
    return path[1:] if not directory.startswith("/") else "/" + path.lstrip("/")


def host_of(url: str) -> str:
    """Return the part of a normalized URL that names a machine, bucket or account, for reports."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


# Where a set lies: the directory beside it, and the directory it is.


def _root_url(base: KvPrefix) -> tuple[str, str] | None:
    """Return the member that holds the URL of a root, and the URL, if there is one without a chain."""
    members = base.driver.spec()
    for name in ("url", "base_url"):
        url = reveal(members.get(name))
        if isinstance(url, str) and "::" not in url:
            return name, url
    return None


def name_of(base: KvPrefix) -> str:
    """Return the path of a document, or of the root that names it."""
    root = None if base.path else _root_url(base)
    return base.path if root is None else root[1].partition("?")[0]


async def _root(base: KvPrefix, place: str) -> KvPrefix | None:
    """Return the root at `place`, opened as that of `base`; its query stays."""
    found, kind = _root_url(base), _kind(base)
    if found is None or kind is None:
        return None
    _, mark, query = found[1].partition("?")
    members = {**base.driver.spec(), found[0]: guard(place + mark + query)}
    return KvPrefix(await kind.open(KvOpening(members)))


def _kind(base: KvPrefix) -> KvKind | None:
    kind: KvKind | None = registry.kvstores.get(base.driver.id)
    return kind


async def beside(base: KvPrefix) -> KvPrefix:
    """Return the directory in which a document or parquet directory lies."""
    path = base.path.rstrip("/")
    if path:
        head, slash, _ = path.rpartition("/")
        return KvPrefix(base.driver, head + slash)
    head, slash, _ = name_of(base).rstrip("/").rpartition("/")
    opened = None if head.endswith(("/", ":")) or not head else await _root(base, head + slash)
    return KvPrefix(base.driver) if opened is None else opened


async def directory(base: KvPrefix) -> KvPrefix:
    """Return `base` as a directory: what ends with a slash is one."""
    name = name_of(base)
    if not name or name.endswith("/"):
        return base
    opened = None if base.path else await _root(base, name + "/")
    return base.join("/") if opened is None else opened


def already_there(base: KvPrefix) -> AlreadyExistsError:
    """Return the error of saving where something is."""
    return AlreadyExistsError(
        f"There is something at {base.describe()}; choose another name, or pass overwrite=True (--overwrite)"
    )


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
