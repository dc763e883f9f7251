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
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import unquote

import numpy as np

from fsstore.context.context import Context
from fsstore.errors import (
    DataLossError,
    JsonError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    StoreError,
    UnimplementedError,
)
from fsstore.kvstore.contract.ability import DatesValues, able
from fsstore.kvstore.contract.batch import AnswerColumns, Ints, Limits, coalesce
from fsstore.kvstore.contract.driver import UNKNOWN, KvDriver, KvPrefix, Read, ReadResult, StandsOver, now
from fsstore.kvstore.engine.secret import reveal
from fsstore.kvstore.web.exchange import check_headers
from fsstore.redaction import redact_url
from fsstore.reference.policy import (
    Link,
    Policy,
    first_link,
    guarded_home,
    guarded_root,
    guarded_webhdfs,
    has_prefix,
    is_relative,
    is_web,
    join_relative,
    longest_prefix,
    normalize,
    normalize_prefix,
    replaced,
)
from fsstore.reference.table.refset import Origins, common_origins
from fsstore.runtime import execution
from fsstore.runtime.tuning import ENTRIES_KEPT
from fsstore.values.json_value import quote

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
            if len(self._places) >= ENTRIES_KEPT:
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
            raise PermissionDeniedError(f"The reference target {quote(url)} lies outside the prefixes given as `allow`")
        if "" not in self._roots:
            restricts = self.policy.restricts
            self._roots[""] = KvPrefix(
                guarded_home(base.driver, self.policy.check, self.policy.check_address) if restricts else base.driver
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
        roots = [normalize(os.path.realpath(p[len("file://") :])) for p in allowed if p.startswith("file:///")]
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


async def open_with_spec(where: Any, options: Mapping[str, Any] | None, *, context: Context | None = None) -> KvPrefix:
    """Open a target through kvstore specs.

    `where` is a URL, a spec, a live filesystem, or (kind, base) for an archive in a store.
    """
    from fsstore.kvstore.contract.driver import KvOpening
    from fsstore.kvstore.spec_parse import kv_spec, open_kv
    from fsstore.kvstore.spec_value import kv_kind

    if isinstance(where, tuple):
        kind = kv_kind(where[0])
        if kind is None:
            raise UnimplementedError(f"The {where[0]} key-value store is not available")
        return KvPrefix(await kind.open(KvOpening(base=where[1], context=context)))
    if options:
        where = {"driver": "fsspec", "url": where, "storage_options": dict(options)}
    return (await open_kv(kv_spec(where), context or Context())).prefix


# Reading the bytes references point to: a batch becomes a few range reads per target.

REST = -(2**63)
_ZERO = np.zeros(1, np.int64)


class Asks(NamedTuple):
    """A list of requests: for each request its key, the number of its URL, and the range in the target.

    `stop` is `REST` for "to the end", and `start` may then be negative: the last bytes.  `offset` and `length` say
    where in the target the value lies that the range is of.  `whole`: it is all of the target.
    """

    keys: Sequence[str]
    url: np.ndarray[Any, np.dtype[np.int32]]
    start: Ints
    stop: Ints
    whole: np.ndarray[Any, np.dtype[np.bool_]]
    offset: Ints
    length: Ints

    def take(self, places: Ints) -> Asks:
        """Return some of the requests."""
        keys = [self.keys[place] for place in places.tolist()]
        url, start, stop, whole = self.url[places], self.start[places], self.stop[places], self.whole[places]
        return Asks(keys, url, start, stop, whole, self.offset[places], self.length[places])

    def generation(self, number: int, base: bytes) -> bytes:
        """Return the generation of a value, whatever range of it is read, from that of the target."""
        where = (int(self.offset[number]), int(self.length[number]))
        return b"%b@%d:%d" % (base, *where) if base != UNKNOWN else UNKNOWN


class Scanned(NamedTuple):
    """The state of a target when it was scanned, as far as it is known: its size, or -1, and its generation."""

    size: int = -1
    generation: bytes = UNKNOWN

    def change(self, now: ReadResult, driver: KvDriver) -> str:
        """Return how a target differs from that by an answer of its driver, nothing if it does not."""
        if self.size >= 0 and now.size not in (None, self.size):
            return f"it had {self.size} bytes when it was scanned, and has {now.size}"
        before, after = self.generation, now.generation
        if before == after or UNKNOWN in (before, after):
            return ""
        dates = able(driver, DatesValues)
        if dates is not None and dates.date_of(before) == dates.date_of(after):
            return ""
        return "it was written anew since it was scanned"


_UNSCANNED = Scanned()


@dataclass(frozen=True, slots=True)
class _Requests:
    """The requests to one root, and what their targets were when they were scanned.

    Columns, in parts: members of the batch, which of `reads` answers each, and how many bytes into that its own begin.
    """

    reads: list[Read] = field(default_factory=list)
    scanned: list[Scanned] = field(default_factory=list)
    members: list[Ints] = field(default_factory=list)
    where: list[Ints] = field(default_factory=list)
    offsets: list[Ints] = field(default_factory=list)

    def add(self, members: Ints, reads: Sequence[Read], where: Ints, offsets: Ints, scanned: Scanned) -> None:
        """Ask more of a target."""
        self.members.append(members)
        self.where.append(where + len(self.reads))
        self.offsets.append(offsets)
        self.reads.extend(reads)
        self.scanned.extend([scanned] * len(reads))

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Yield the number of a request and a member it answers, request by request."""
        where, members = np.concatenate(self.where), np.concatenate(self.members)
        order = np.argsort(where, kind="stable")
        yield from zip(where[order].tolist(), members[order].tolist(), strict=True)


@dataclass(frozen=True, slots=True)
class Fetcher:
    """Reads targets.  `scanned` says by URL what those were that have been scanned, and must still be."""

    targets: Targets
    limits: Limits
    described: str
    scanned: Mapping[str, Scanned] = field(default_factory=dict)

    async def fetch(self, asks: Asks, urls: Sequence[str]) -> Sequence[ReadResult]:
        """Return one answer to each request, in order: its state is "value", its generation that of the value."""
        if len(asks.keys) == 1:
            return [await self._fetch_one(asks, urls)]
        wanted: dict[str, _Requests] = {}
        for number, members in _by_url(asks.url):
            try:
                place = self.targets.locate(urls[number])
            except StoreError as error:
                raise error.within(self._place(asks, int(members[0]))) from error
            asked = wanted.setdefault(place.root, _Requests())
            self._plan(place.key, self.scanned.get(urls[number], _UNSCANNED), asks, members, asked)
        found = await execution.gather(self._read_root(root, asked, asks) for root, asked in wanted.items())
        return _answer_columns(asks, list(wanted.values()), found)

    async def _fetch_one(self, asks: Asks, urls: Sequence[str]) -> ReadResult:
        """Answer a single request without the fixed cost of columns."""
        start, stop = int(asks.start[0]), int(asks.stop[0])
        url = urls[int(asks.url[0])]
        try:
            place = self.targets.locate(url)
        except StoreError as error:
            raise error.within(self._place(asks, 0)) from error
        asked = _Requests()
        read = Read(place.key, start, None if stop == REST else stop)
        asked.add(_ZERO, [read], _ZERO, _ZERO, self.scanned.get(url, _UNSCANNED))
        answer = (await self._read_root(place.root, asked, asks))[0]
        size = answer.size if asks.whole[0] else int(asks.length[0])
        return answer._replace(generation=asks.generation(0, answer.generation), size=size)

    def _plan(self, key: str, scanned: Scanned, asks: Asks, members: Ints, out: _Requests) -> None:
        """Add what is wanted of one target to `out`: the rest of it as it is asked for, ranges merged."""
        ranged = asks.stop[members] != REST
        rest, members = members[~ranged], members[ranged]
        if len(rest):
            numbers = np.arange(len(rest))
            reads = [Read(key, start, None) for start in asks.start[rest].tolist()]
            out.add(rest, reads, numbers, np.zeros_like(numbers), scanned)
        if len(members):
            limits = self.limits
            spans = coalesce(asks.start[members], asks.stop[members], limits.max_gap, limits.max_size)
            pairs = zip(spans.starts.tolist(), spans.stops.tolist(), strict=True)
            reads = [Read(key, start, stop) for start, stop in pairs]
            out.add(members, reads, spans.where, spans.offset, scanned)

    async def _read_root(self, root: str, asked: _Requests, asks: Asks) -> Sequence[ReadResult]:
        store = None
        try:
            store = await self.targets.root(root)
            answers = await store.read_many(asked.reads)
        except StoreError as error:
            raise await self._explain(store, asked, asks, error) from error
        for number, (read, answer, scanned) in enumerate(zip(asked.reads, answers, asked.scanned, strict=True)):
            if answer.state != "value":
                why = "the target does not exist"
            elif scanned is not _UNSCANNED and (change := scanned.change(answer, store.driver)):
                why = f"{change}; scan it again"
            elif read.stop is not None and len(answer.value) != read.stop - read.start:
                why = f"{len(answer.value)} bytes came for {read.stop - read.start}"
            else:
                continue
            member = next(member for where, member in asked.pairs() if where == number)
            raise self._lost(asks, member, store, read.key, why)
        return answers

    async def _explain(self, store: KvPrefix | None, asked: _Requests, asks: Asks, error: StoreError) -> StoreError:
        """Return the error with the reference it belongs to, found by reading one of several at a time."""
        pairs = list(asked.pairs())
        for number, member in pairs if store is not None else ():
            assert store is not None
            read = asked.reads[number]
            start, stop = int(asks.start[member]), int(asks.stop[member])
            try:
                if len(pairs) == 1:
                    raise error
                await store.read_many([read if read.stop is None else Read(read.key, start, stop)])
            except (OutOfRangeError, NotFoundError) as found:
                if asks.whole[member] and isinstance(found, OutOfRangeError):  # the caller asked for too much
                    return found.within(self._place(asks, member))
                return self._lost(asks, member, store, read.key, found.message)
            except StoreError as found:
                return found.within(self._place(asks, member))
        return error.within(self._place(asks, pairs[0][1]))

    def _place(self, asks: Asks, member: int) -> str:
        return f"Error reading {quote(asks.keys[member])} in {self.described}"

    def _lost(self, asks: Asks, member: int, store: KvPrefix | None, key: str, why: str) -> DataLossError:
        start, stop = int(asks.start[member]), int(asks.stop[member])
        target = store.describe(key) if store is not None else quote(key)
        part = "all" if stop == REST else f"{stop - start} bytes at offset {start}"
        return DataLossError(f"{self._place(asks, member)}: the reference is {part} of {target}: {why}")


def _by_url(url: np.ndarray[Any, np.dtype[np.int32]]) -> Iterator[tuple[int, Ints]]:
    """Yield the numbers of the URLs that are asked for, and which requests ask for each."""
    if (url == url[0]).all():  # as nearly always
        yield int(url[0]), np.arange(len(url))
        return
    order = np.argsort(url, kind="stable")
    numbers, firsts = np.unique(url[order], return_index=True)
    bounds = [*firsts.tolist(), len(order)]
    for position, number in enumerate(numbers.tolist()):
        yield number, order[bounds[position] : bounds[position + 1]]


def _answer_columns(asks: Asks, asked: Sequence[_Requests], found: Sequence[Sequence[ReadResult]]) -> AnswerColumns:
    """Return the answers to requests as parts of what the roots answered."""
    sources: list[ReadResult] = []
    where, starts = np.empty_like(asks.start), np.empty_like(asks.start)
    for requests, answers in zip(asked, found, strict=True):
        members = np.concatenate(requests.members)
        where[members] = np.concatenate(requests.where) + len(sources)
        starts[members] = np.concatenate(requests.offsets)
        sources += answers
    stops = starts + asks.stop - asks.start
    for member in np.flatnonzero(asks.stop == REST).tolist():
        stops[member] = len(sources[where[member]].value)

    sizes = np.where(asks.whole, -1, asks.length)
    for member in np.flatnonzero(asks.whole).tolist():
        known = sources[where[member]].size
        sizes[member] = -1 if known is None else known

    def generation(number: int) -> bytes:
        return asks.generation(number, sources[where[number]].generation)

    return AnswerColumns(sources, where, starts, stops, sizes, np.arange(len(where)), generation, now())


# The policy of a set, given where it lies and the members of its spec.

_LOCAL_DRIVERS = ("file", "memory")


def _home(base: KvPrefix) -> str | None:
    url = base.driver.spec().get("base_url") or base.driver.spec().get("url")
    try:
        normal = normalize(url) if isinstance(url, str) else None
    except StoreError:
        return None
    return None if normal is None else "/".join(normal.split("/")[:3]) + "/"


def _is_local(driver: KvDriver) -> bool:
    """Return whether a store surely lies on this machine: itself, or what it is an adapter over."""
    if driver.id in _LOCAL_DRIVERS:
        return True
    if isinstance(driver, StandsOver):
        return _is_local(driver.base.driver)
    return str(driver.spec().get("url", "")).startswith(("file:", "local:", "memory:"))


def origins_of(base: KvPrefix | None) -> Origins:
    """Return the origins of a set that lies at `base`: None on this machine."""
    if base is None or _is_local(base.driver):
        return None
    home = _home(base)
    return () if home is None else (home,)


def policy_of(base: KvPrefix | None, members: Mapping[str, Any], saved: Origins = None) -> Policy:
    """Return what a set at `base` may read, given the members of its spec, and where it says that it was saved from.

    A document cannot widen by that what it may read where it lies.
    """
    origins, home = common_origins(origins_of(base), saved), None if base is None else _home(base)
    allow = reveal(members.get("allow"))
    granted = [*check_prefixes(members.get("targets") or {})]
    replacing = (reveal(members.get("rewrite")) or {}).values()
    granted += [normalize_prefix(new) for new in replacing if new.startswith("/") or "://" in new]
    return Policy(
        "local" if origins is None else "remote",
        home=home if origins is None or home in origins else None,
        allow=None if allow is None else tuple(normalize_prefix(prefix) for prefix in allow),
        granted=tuple(granted),
        origins=origins or (),
    )
