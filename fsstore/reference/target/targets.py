"""From the URL of a reference to an opened store and a key in it.

A URL is rewritten (`rewrite`), resolved against the place of the set when relative, checked by the policy, and split
into a *root*, opened once, and a key.  The longest matching prefix in `targets` decides which root serves it and with
which options.  Options never reach a host outside the prefix they were given for: roots are opened per prefix, and a
prefix with options must name a host.

Opening itself is the caller's: `open_target(where, options)`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

from fsstore.context.context import Context
from fsstore.errors import JsonError, PermissionDeniedError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.engine.secret import reveal
from fsstore.kvstore.web.header import check_headers
from fsstore.redaction import redact_url
from fsstore.reference.target.policy import (
    Policy,
    has_prefix,
    join_relative,
    longest_prefix,
    normalize,
    normalize_prefix,
)
from fsstore.reference.target.target_url import Link, first_link, is_relative, replaced
from fsstore.reference.target.web_root import guarded_home, guarded_root, guarded_webhdfs, is_web
from fsstore.reference.tuning import PLACES_KEPT
from fsstore.values.json_value import quote

__all__ = ["OpenTarget", "TargetPlace", "Targets", "check_prefixes", "open_in", "open_with_spec"]

OpenTarget: TypeAlias = Callable[[Any, Mapping[str, Any] | None], "KvPrefix | Awaitable[KvPrefix]"]
"""Opens a URL or kvstore spec, with storage options or None."""

_CACHE_LINKS = ("simplecache", "filecache", "blockcache", "cached")


class TargetPlace(NamedTuple):
    """Where the bytes of a URL are: the name of a root, and the key in it."""

    root: str
    key: str


@dataclass(slots=True)
class Targets:
    """The stores a set reads from.

    `base` is the directory the set lies in, for relative URLs; `prefixes` maps normalized URL prefixes to kvstore
    specs, URLs, live filesystems or storage options; `rewrite` maps old prefixes of URLs to new ones.
    """

    open_target: OpenTarget
    policy: Policy
    base: KvPrefix | None = None
    prefixes: Mapping[str, Any] = field(default_factory=dict)
    rewrite: Mapping[str, str] = field(default_factory=dict)
    _roots: dict[str, KvPrefix] = field(default_factory=dict)
    _how: dict[str, tuple[Any, Mapping[str, Any] | None]] = field(default_factory=dict)
    _places: dict[str, TargetPlace] = field(default_factory=dict)

    def locate(self, url: str) -> TargetPlace:
        """Return the place of a URL as it stands in the set; raises if the policy refuses it."""
        place = self._places.get(url)
        if place is None:
            if len(self._places) >= PLACES_KEPT:
                self._places.clear()
            place = self._places[url] = self._locate(self.rewritten(url))
        return place

    def rewritten(self, url: str) -> str:
        """Return the URL with its longest prefix in `rewrite` replaced."""
        return replaced(url, self.rewrite)

    def _locate(self, url: str) -> TargetPlace:
        if is_relative(url):
            return self._relative(url)
        link = first_link(url)
        if link is not None:
            return self._chained(url, link)
        normal = self.policy.check(url)
        prefix = longest_prefix(normal, self.prefixes)
        if normal.startswith("file://"):
            self._check_links(normal)
        if prefix is not None:
            given = self.prefixes[prefix]
            if not _are_options(given):
                name = prefix if normal != prefix else f"{prefix} alone"
                self._how[name] = (given, None)
                return TargetPlace(name, normal[len(prefix) :].lstrip("/"))
        return self._rooted(normal, prefix)

    def _rooted(self, normal: str, prefix: str | None) -> TargetPlace:
        """Return the place of a URL below its host or bucket, opened with the options of a prefix."""
        scheme, _, rest = normal.partition("://")
        host, _, key = rest.partition("/")
        if scheme in ("http", "https"):
            root, key = (normal, "") if "?" in normal else (f"{scheme}://{host}/", unquote(key))
        elif scheme == "file":
            root = "file:///"
        elif scheme == "memory":
            root, key = "memory://", rest
        else:
            root = f"{scheme}://{host}/"
        name = root if prefix is None else f"{prefix} {root}"
        self._how[name] = (root, None if prefix is None else self.prefixes[prefix])
        return TargetPlace(name, key)

    def _relative(self, url: str) -> TargetPlace:
        base = self.base
        if base is None:
            return self._locate(os.path.abspath(url))  # noqa: PTH100  # textual: links are checked later
        if base.driver.id == "file":
            directory = os.path.abspath(base.path)  # noqa: PTH100  # textual: links are checked later
            return self._locate(join_relative(directory.rstrip("/") + "/", url))
        path = join_relative(base.path, url)
        home = self.policy.home
        if self.policy.allow is not None and not self._below_home(home, path):
            raise PermissionDeniedError(
                f"The reference target {quote(url)} lies outside the prefixes given as `allow`"
            )
        if "" not in self._roots:
            restricts = self.policy.restricts
            self._roots[""] = KvPrefix(
                guarded_home(base.driver, self.policy.check, self.policy.check_address)
                if restricts
                else base.driver
            )
        return TargetPlace("", path)

    def _below_home(self, home: str | None, path: str) -> bool:
        if home is None or self.base is None:
            return False
        allowed = (*(self.policy.allow or ()), *self.policy.granted)
        return longest_prefix(normalize(home.rstrip("/") + "/" + path), allowed) is not None

    def _chained(self, url: str, link: Link) -> TargetPlace:
        """Return the place of a chain such as `zip://member::s3://bucket/x.zip`."""
        if link.scheme in _CACHE_LINKS:
            return self._locate(link.inner)
        if link.scheme != "zip" or not link.path:
            raise UnimplementedError(
                f"The chained reference target {quote(redact_url(url))} has a link that is not zip"
            )
        below = self._locate(link.inner)
        name = f"{below.root} {below.key} zip"
        self._how[name] = (("zip", below), None)
        return TargetPlace(name, link.path.lstrip("/"))

    def _check_links(self, normal: str) -> None:
        """Check where a local path really leads, when only some paths are allowed."""
        if self.policy.allow is None:
            return
        real = normalize(os.path.realpath(normal[len("file://") :]))
        allowed = (*self.policy.allow, *self.policy.granted)
        roots = [
            normalize(os.path.realpath(p[len("file://") :])) for p in allowed if p.startswith("file:///")
        ]
        if not any(has_prefix(real, root) for root in (*allowed, *roots)):
            raise PermissionDeniedError(
                f"The reference target {quote(normal)} is a link that leaves the prefixes given as `allow`"
            )

    async def root(self, name: str) -> KvPrefix:
        """Return the opened root of a place."""
        opened = self._roots.get(name)
        if opened is None:
            where, options = self._how[name]
            if isinstance(where, tuple):
                kind, below = where
                base = await self.root(below.root)
                opened = await _settled(self.open_target((kind, base.join(below.key)), None))
            elif (own := self._own(where)) is not None:
                opened = own
            elif is_web(where) and (options or self.policy.restricts):
                bound = name.partition(" ")[0] if options else None
                check, judge = self.policy.check, self.policy.check_address
                opened = guarded_root(where, reveal(options) or {}, bound=bound, check=check, judge=judge)
            elif isinstance(where, str) and where.startswith("webhdfs://") and self.policy.restricts:
                opened = guarded_webhdfs(where, reveal(options) or {}, self.policy.check)
            else:
                opened = await _settled(self.open_target(reveal(where), reveal(options)))
                if name in self.prefixes and opened.path and not opened.path.endswith("/"):
                    opened = opened.join("/")
            self._roots[name] = opened
        return opened

    def _own(self, where: Any) -> KvPrefix | None:
        """Return the store of the set itself, where it serves a root as well: same context, same memory."""
        driver = None if self.base is None else self.base.driver
        if driver is not None and (where, driver.id) in (("file:///", "file"), ("memory://", "memory")):
            return KvPrefix(driver, "/" if driver.id == "file" else "")
        return None

    def local(self, url: str) -> bool:
        """Return whether a URL is surely read without waiting."""
        url = self.rewritten(url)
        if is_relative(url):
            return self.base is None or not self.base.driver.features.waits
        if first_link(url) is not None:
            return False
        normal = normalize(url)
        return normal.startswith("file://") and longest_prefix(normal, self.prefixes) is None


def check_prefixes(targets: Mapping[str, Any]) -> dict[str, Any]:
    """Return `targets` with normalized prefixes; options without a host to bind them to are refused."""
    out, problems = {}, []
    for prefix, value in targets.items():
        try:
            normal = normalize_prefix(prefix)
        except StoreError as error:
            problems.append(error.message)
            continue
        if _are_options(value):
            problems += _wrong_options(value, prefix, normal)
        out[normal] = value
    if problems:
        raise JsonError(problems)
    return out


def _wrong_options(options: Mapping[str, Any], prefix: str, normal: str) -> list[str]:
    """Return what is wrong with the options of a prefix."""
    problems = []
    if options and normal in ("http://", "https://"):
        problems.append(f"Options for {quote(prefix)} would go to every host; name one, as in https://host/")
    headers = reveal(options).get("headers")
    if is_web(normal) and headers is not None:
        try:
            check_headers(headers)
        except JsonError as error:
            problems += error.within(f"Error in options for {quote(prefix)}").problems
    return problems


def _are_options(value: Any) -> bool:
    return isinstance(value, Mapping) and "driver" not in value


async def _settled(opened: Any) -> KvPrefix:
    prefix: KvPrefix = await opened if inspect.isawaitable(opened) else opened
    return prefix


def open_in(context: Context | None) -> OpenTarget:
    """Return what opens targets through kvstore specs in a context; None asks for one of their own."""
    return partial(open_with_spec, context=context or Context())


async def open_with_spec(
    where: Any, options: Mapping[str, Any] | None, *, context: Context | None = None
) -> KvPrefix:
    """Open a target through kvstore specs.

    `where` is a URL, a spec, a live filesystem, or (kind, base) for an archive in a store.
    """
    from fsstore.kvstore.contract.driver import KvOpening
    from fsstore.kvstore.spec.opening import open_kv
    from fsstore.kvstore.spec.parse import kv_spec
    from fsstore.kvstore.spec.spec_value import kv_kind

    if isinstance(where, tuple):
        kind = kv_kind(where[0])
        if kind is None:
            raise UnimplementedError(f"The {where[0]} key-value store is not available")
        return KvPrefix(await kind.open(KvOpening(base=where[1], context=context)))
    if options:
        where = {"driver": "fsspec", "url": where, "storage_options": dict(options)}
    return (await open_kv(kv_spec(where), context or Context())).prefix
