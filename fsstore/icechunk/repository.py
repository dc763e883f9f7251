"""The contents of a repository: its documents (root, snapshots, manifests), and the virtual chunks outside it.

Everything but the root is immutable and kept, in the pool of the context and in a few megabytes of its own.
A branch is looked up again as often as the staleness bound of reads says; of a far repository at most once a second.
An object that something refers to and that is not there is an error, never "missing".

The repository grants nothing: the policy of reference sets and the members `targets`, `rewrite` and `allow` say which
targets may be read, and with which credentials.  Ranges of one object are merged as those of reference sets.
"""

from __future__ import annotations

import json
import re
import string
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple
from urllib.parse import quote as percent_encode
from urllib.parse import unquote

import numpy as np

from fsstore.errors import DataLossError, FailedPreconditionError, NotFoundError, PermissionDeniedError, StoreError
from fsstore.icechunk.document import (
    ArrayChunks,
    ChunkManifest,
    HierarchySnapshot,
    Reference,
    Repo,
    SnapshotNode,
    decode_manifest,
    decode_repo,
    decode_snapshot,
)
from fsstore.icechunk.encoding import containers_of_yaml, decode_identifier, encode_identifier
from fsstore.kvstore.contract.ability import TellsModified, able
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvPrefix, Read, ReadResult, now
from fsstore.redaction import redact_url
from fsstore.reference.targets import Asks, Fetcher
from fsstore.runtime import execution
from fsstore.runtime.cache import CachePool
from fsstore.runtime.tuning import KEPT_BYTES, TRUSTED_S
from fsstore.values.json_value import loads, quote

# The name of what is read: `branch.NAME`, `tag.NAME`, or the 20 characters of a snapshot.

MAIN = "branch.main"


class Selector(NamedTuple):
    """A branch or tag by its name, or a snapshot by its identifier."""

    by: Literal["branch", "tag", "snapshot"]
    name: str

    def __str__(self) -> str:
        """Return the text it is parsed from."""
        return self.name if self.by == "snapshot" else f"{self.by}.{self.name}"


def parse_selector(text: str) -> Selector:
    """Return what a text names.

    >>> parse_selector("tag.v5")
    Selector(by='tag', name='v5')
    >>> str(parse_selector("1cechnkrep0f1rstcmt0"))
    '1CECHNKREP0F1RSTCMT0'
    """
    kind, dot, name = text.partition(".")
    if dot and name and kind == "branch":
        return Selector("branch", name)
    if dot and name and kind == "tag":
        return Selector("tag", name)
    if dot or len(text) != 20:
        raise StoreError(
            f'Expected "branch.NAME", "tag.NAME" or the 20 characters of a snapshot, but received: {quote(text)}'
        )
    return Selector("snapshot", encode_identifier(decode_identifier(text)))


# Which array and which chunk a key names.

DOCUMENT = "zarr.json"
_COORDINATE = re.compile(r"0|[1-9][0-9]{0,9}")


@dataclass(frozen=True, slots=True)
class KeyForm:
    """How the chunks of an array are called below its path: `c/0/1`, `c.0.1`, `0.1` or `0/1`."""

    prefixed: bool = True
    separator: str = "/"

    def parse(self, name: str) -> tuple[int, ...] | None:
        """Return the index of a chunk by its name, or None if it is the name of none.

        >>> KeyForm().parse("c/0/12"), KeyForm().parse("c"), KeyForm().parse("c/01")
        ((0, 12), (), None)
        """
        parts = name.split(self.separator)
        if self.prefixed:
            if parts[0] != "c":
                return None
            parts = parts[1:]
        if not all(map(_COORDINATE.fullmatch, parts)):
            return None
        index = tuple(map(int, parts))
        return index if max(index, default=0) < 2**32 else None

    def name(self, index: Sequence[int]) -> str:
        """Return the name of a chunk; a scalar is `c` or `0`."""
        parts = [*("c" for _ in range(self.prefixed)), *map(str, index)]
        return self.separator.join(parts) or "0"


def form_of(document: memoryview) -> KeyForm:
    """Return how an array calls its chunks, by its document; the usual way if that does not say."""
    try:
        encoding = loads(bytes(document)).get("chunk_key_encoding")
    except (StoreError, AttributeError):
        return KeyForm()  # what is wrong with it is said when the array is opened
    if isinstance(encoding, str):
        encoding = {"name": encoding}
    if not isinstance(encoding, Mapping):
        return KeyForm()
    inner = encoding.get("configuration")
    separator = inner.get("separator") if isinstance(inner, Mapping) else None
    plain = encoding.get("name") == "v2"
    return KeyForm(not plain, separator if separator in (".", "/") else "." if plain else "/")


def array_of(key: str, nodes: Mapping[str, SnapshotNode]) -> tuple[SnapshotNode, str] | None:
    """Return the array with the longest path that a key begins with, and the rest of the key."""
    at = len(key)
    while True:
        at = key.rfind("/", 0, at)
        node = nodes.get(key[: max(at, 0)])
        if node is not None:
            return (node, key[at + 1 :]) if node.is_array else None
        if at <= 0:
            return None


_ROOT = "repo"
_MOST_FORMS = 100_000
_UNENCODED = string.ascii_letters + string.digits + " !$&'()+,-.:;=@_"


@dataclass(slots=True)
class PinnedSnapshot:
    """A snapshot, which the ref named at `time`; `generation` is that of the object that said so."""

    snapshot: HierarchySnapshot
    generation: bytes
    time: float


@dataclass(slots=True)
class _Named:
    """The snapshot that a ref names, and the object at `key`, with its generation, that says so."""

    snapshot: bytes
    key: str = ""
    generation: bytes = UNKNOWN


class Repository:
    """The repository in the directory `base`, of which `selector` is read."""

    def __init__(self, base: KvPrefix, selector: Selector, pool: CachePool | None) -> None:
        self.base, self.selector = base, selector
        self._pool = pool
        self._own = CachePool(KEPT_BYTES)
        self._owner = ("icechunk", base.describe())
        self._session: PinnedSnapshot | None = None
        self._named: _Named | None = None
        self._newest: dict[bytes, ChunkManifest] = {}
        self._containers: Mapping[str, str] | None = None
        self._forms: dict[tuple[bytes, str], KeyForm] = {}

    @property
    def described(self) -> str:
        """How messages call what is read."""
        return f"Icechunk repository {self.base.describe()} at {self.selector}"

    def form(self, session: PinnedSnapshot, node: SnapshotNode) -> KeyForm:
        """Return how an array calls its chunks."""
        key = (session.snapshot.id, node.path)
        form = self._forms.get(key)
        if form is None:
            if len(self._forms) >= _MOST_FORMS:
                self._forms.clear()
            form = self._forms[key] = form_of(node.document)
        return form

    async def session(self, newest: float = float("inf")) -> PinnedSnapshot:
        """Return the snapshot that is named at `newest` or later."""
        last, named = self._session, self._named
        if last is not None and named is not None:
            trusted = TRUSTED_S if self.base.driver.features.waits else 0.0
            if self.selector.by != "branch" or last.time >= newest or now() - last.time < trusted:
                return last
            if await self._is_current(named):
                self._session = PinnedSnapshot(last.snapshot, last.generation, now())
                return self._session
        time = now()
        named = await self._resolve()
        if last is None or last.snapshot.id != named.snapshot:
            snapshot = await self._snapshot(named.snapshot)
        else:
            snapshot = last.snapshot
        self._named, self._session = named, PinnedSnapshot(snapshot, named.snapshot, time)
        return self._session

    async def _is_current(self, named: _Named) -> bool:
        if named.generation in (UNKNOWN, NO_VALUE):
            return False
        found = (await self.base.read_many([Read(named.key, 0, None, named.generation)]))[0]
        return found.state == "unspecified"

    async def _resolve(self) -> _Named:
        if self.selector.by == "snapshot":
            return _Named(decode_identifier(self.selector.name))
        if self._named is None or self._named.key == _ROOT:
            found = await self.base.read(_ROOT)
            if found.state == "value":
                return self._named_by_root(found)
        return await self._named_by_file()

    def _named_by_root(self, found: ReadResult) -> _Named:
        repo: Repo = self._decode(decode_repo, found.value, _ROOT)
        self._containers = repo.containers
        known = repo.branches if self.selector.by == "branch" else repo.tags
        if self.selector.name not in known:
            raise self._unknown(sorted(known))
        return _Named(known[self.selector.name], _ROOT, found.generation)

    async def _named_by_file(self) -> _Named:
        """Return what a ref of format version 1 names; a tag that was deleted has a mark beside it."""
        names = dict.fromkeys((_folder(self.selector), str(self.selector)))
        if any("/" in name or name in ("", ".", "..") for name in names):
            raise self._unknown(None)
        keys = [f"refs/{name}/ref.json" for name in names]
        marks = [f"{key}.deleted" for key in keys if self.selector.by == "tag"]
        found = await self.base.read_many([Read(key) for key in (*keys, *marks)])
        if any(answer.state == "value" for answer in found[len(keys) :]):
            raise self._unknown(None)
        for key, answer in zip(keys, found, strict=False):
            if answer.state == "value":
                return _Named(self._decode(_snapshot_of_ref, answer.value, key), key, answer.generation)
        if self.selector == ("branch", "main"):
            raise NotFoundError(f"There is no Icechunk repository at {self.base.describe()}")
        raise self._unknown(None)

    def _unknown(self, known: Sequence[str] | None) -> NotFoundError:
        listed = "" if known is None else f"; there are: {', '.join(map(quote, known[:20])) or 'none'}"
        name = f"{self.selector.by} {quote(self.selector.name)}"
        return NotFoundError(f"There is no {name} in the Icechunk repository {self.base.describe()}{listed}")

    async def _snapshot(self, identifier: bytes) -> HierarchySnapshot:
        key = f"snapshots/{encode_identifier(identifier)}"
        kept: HierarchySnapshot | None = self._get(key)
        if kept is not None:
            return kept
        found = await self.base.read(key)
        if found.state != "value":
            raise self._absent(key)
        snapshot: HierarchySnapshot = self._decode(partial(decode_snapshot, expected=identifier), found.value, key)
        self._put(key, snapshot, snapshot.nbytes)
        return snapshot

    def chunks(self, session: PinnedSnapshot, node: SnapshotNode) -> ArrayChunks:
        """Return where the chunks of an array of a snapshot are found."""
        key = f"snapshots/{session.snapshot.name} {node.path}"
        kept: ArrayChunks | None = self._get(key)
        if kept is None:
            kept = self._decode(lambda _: node.chunks(), b"", f"snapshots/{session.snapshot.name}")
            self._put(key, kept, 200 + 200 * len(kept.manifests))
        return kept

    async def manifests(self, identifiers: Sequence[bytes]) -> dict[bytes, ChunkManifest]:
        """Return manifests by their identifiers; those that are not kept are read together."""
        out: dict[bytes, ChunkManifest] = {}
        wanted: dict[bytes, str] = {}
        for identifier in identifiers:
            key = f"manifests/{encode_identifier(identifier)}"
            kept = self._newest.get(identifier) or self._get(key)
            if kept is None:
                wanted[identifier] = key
            else:
                out[identifier] = kept
        answers = await self.base.read_many([Read(key) for key in wanted.values()]) if wanted else []
        for (identifier, key), answer in zip(wanted.items(), answers, strict=True):
            if answer.state != "value":
                raise self._absent(key)
            made = self._decode(partial(decode_manifest, expected=identifier), answer.value, key)
            out[identifier] = made
            self._put(key, made, 2 * made.nbytes)  # columns may come
        if wanted:
            self._newest = {identifier: out[identifier] for identifier in identifiers}
        return out

    async def containers(self) -> Mapping[str, str]:
        """Return the URL prefixes of virtual chunk containers by their names."""
        if self._containers is None:
            root = await self.base.read(_ROOT)
            if root.state == "value":
                self._containers = self._decode(decode_repo, root.value, _ROOT).containers
            else:
                found = await self.base.read("config.yaml")
                text = bytes(found.value).decode("utf-8", "replace") if found.state == "value" else ""
                self._containers = containers_of_yaml(text)
        return self._containers

    def _decode(self, decode: Callable[[bytes], Any], value: Any, key: str) -> Any:
        try:
            return decode(bytes(value))
        except StoreError as error:
            raise error.within(f"Error reading {self.base.describe(key)}") from error

    def _absent(self, key: str) -> DataLossError:
        return DataLossError(
            f"{self.base.describe(key)} is referred to, but does not exist;"
            " if its snapshot has expired, open a newer one"
        )

    def _get(self, key: str) -> Any:
        found = self._own.get(key)
        return found if found is not None or self._pool is None else self._pool.get((*self._owner, key))

    def _put(self, key: str, value: Any, size: int) -> None:
        self._own.put(key, value, size)
        if self._pool is not None:
            self._pool.put((*self._owner, key), value, size)


def _folder(selector: Selector) -> str:
    """Return the folder of a ref as local repositories call it: most marks and all other letters percent-encoded."""
    return percent_encode(str(selector).encode("utf-8", "surrogateescape"), safe=_UNENCODED).replace("~", "%7E")


def _snapshot_of_ref(data: bytes) -> bytes:
    try:
        name = json.loads(data)["snapshot"]
    except (ValueError, KeyError, TypeError) as error:
        raise DataLossError('The object is no JSON with a member "snapshot"; at offset 0') from error
    if not isinstance(name, str):
        raise DataLossError("The name of the snapshot is no string; at offset 0")
    return decode_identifier(name)


# Virtual chunks: ranges of objects elsewhere.

_LOCAL = struct.Struct("<xQQq")  # how the driver of local files writes generations


class Expected(NamedTuple):
    """The checksum that a reference gives for the object at `key`, and the generation that its bytes came with."""

    store: KvPrefix
    key: str
    etag: str | None
    modified: int
    generation: bytes


Times = dict[tuple[str, bytes], float | None]
"""When objects were modified, by how they are called and their generation."""


async def check(expected: Sequence[Expected], times: Times) -> None:
    """Raise `DataLossError` if one of the objects has changed, `FailedPreconditionError` if its store cannot tell."""
    asked = [each for each in expected if each.modified and _name(each) not in times]
    unique = list({_name(each): each for each in asked}.values())
    for each, found in zip(unique, await execution.gather(map(_time, unique)), strict=True):
        times[_name(each)] = found
    for each in expected:
        if each.etag is not None:
            await _check_tag(each)
        elif each.modified:
            time = times[_name(each)]
            if time is None:
                raise _untold(each, "When it was modified")
            if time > each.modified:
                raise _changed(each)


def _name(each: Expected) -> tuple[str, bytes]:
    return each.store.describe(each.key), each.generation


async def _check_tag(each: Expected) -> None:
    tag, found = (each.etag or "").strip('"'), each.generation
    if tag == "*":
        return
    if each.store.driver.id == "file":
        size = (await each.store.read(each.key, 0, 0)).size
        _, inode, time = _LOCAL.unpack(found)
        known = f"{inode:x}-{time // 1000:x}-{size or 0:x}"
    elif found == UNKNOWN or found[:1] == b"\0" or found.startswith(b"date:"):
        raise _untold(each, "Its entity tag")
    else:
        known = found.partition(b"\n")[0].decode("latin-1").strip('"')
    if tag != known:
        raise _changed(each)


async def _time(each: Expected) -> float | None:
    driver = each.store.driver
    if driver.id == "file":
        return float(_LOCAL.unpack(each.generation)[2]) / 1e9
    telling = able(driver, TellsModified)
    return None if telling is None else await telling.modified(each.store.path + each.key)


def _changed(each: Expected) -> DataLossError:
    return DataLossError(f"{each.store.describe(each.key)} has changed since the virtual chunk was written")


def _untold(each: Expected, what: str) -> FailedPreconditionError:
    return FailedPreconditionError(
        f"Whether {each.store.describe(each.key)} has changed since the virtual chunk was written is not known."
        f'  {what} is not told by its store; "checksums": false reads it all the same'
    )


NAMED = "vcc://"
_URL = re.compile(r"([a-z][a-z0-9+.-]*)://(.*)\Z", re.DOTALL | re.IGNORECASE)


def expand(location: str, containers: Mapping[str, str]) -> str:
    """Return a location with the name of its container replaced by the prefix of that.

    >>> expand("vcc://era5/x.nc", {"era5": "s3://bucket/era5/"})
    's3://bucket/era5/x.nc'
    """
    if not location.startswith(NAMED):
        return location
    name, slash, rest = location.removeprefix(NAMED).partition("/")
    prefix = containers.get(name)
    if not slash or prefix is None:
        raise DataLossError(f"The configuration has no container for the virtual chunk at {quote(location)}")
    return prefix + rest


def target_of(url: str) -> str:
    """Return the URL of a target for the policy and the stores of reference sets, which decode only web addresses.

    >>> target_of("S3://bucket/a%20b")
    's3://bucket/a b'
    """
    match = _URL.match(url)
    if match is None:
        raise DataLossError(f"The location of a virtual chunk is no URL: {quote(redact_url(url)[:200])}")
    scheme, rest = match[1].lower(), match[2]
    authority, slash, path = rest.partition("/")
    decoded = unquote(re.split(r"[?#]", path, maxsplit=1)[0], errors="surrogateescape")
    odd = "@" in authority or any(char in decoded for char in "\0\\")
    if odd or ".." in decoded.split("/"):
        raise PermissionDeniedError(
            f"The location of a virtual chunk may not be read: {quote(redact_url(url)[:200])} has a user,"
            " a backslash, or climbs"
        )
    if scheme in ("http", "https"):
        return f"{scheme}://{rest}"
    return f"{scheme}://{authority}{slash}{decoded}"


@dataclass(frozen=True, slots=True)
class Part:
    """The bytes `[start, stop)` of the chunk that `reference` leads to, wanted for `key`."""

    key: str
    reference: Reference
    start: int
    stop: int


def urls_of(references: Sequence[Reference], containers: Mapping[str, str]) -> list[str]:
    """Return the URLs of virtual chunks as they are asked for; each location is looked at once."""
    known: dict[str, str] = {}
    for reference in references:
        if reference.place not in known:
            known[reference.place] = target_of(expand(reference.place, containers))
    return [known[reference.place] for reference in references]


@dataclass(frozen=True, slots=True)
class VirtualReader:
    """Reads parts of virtual chunks; with `checksums` the objects must be those that were referred to."""

    fetcher: Fetcher
    checksums: bool
    waits: bool
    _times: Times = field(default_factory=dict)

    async def read(self, parts: Sequence[Part], containers: Mapping[str, str]) -> Sequence[ReadResult]:
        """Return the answers to parts, in order."""
        try:
            urls = urls_of([part.reference for part in parts], containers)
        except StoreError as error:
            raise error.within(f"Error reading {quote(parts[0].key)} in {self.fetcher.described}") from error
        here = self.waits or not execution.must_not_wait()
        if here or all(map(self.fetcher.targets.local, dict.fromkeys(urls))):
            return await self._read(parts, urls)
        return execution.call(self._read(parts, urls))  # the repository never waits, but its targets do

    async def _read(self, parts: Sequence[Part], urls: Sequence[str]) -> Sequence[ReadResult]:
        numbers: dict[str, int] = {}
        for url in urls:
            numbers.setdefault(url, len(numbers))
        offset = np.array([part.reference.offset for part in parts], np.int64)
        start = np.array([part.start for part in parts], np.int64) + offset
        stop = np.array([part.stop for part in parts], np.int64) + offset
        length = np.array([part.reference.length for part in parts], np.int64)
        number = np.array([numbers[each] for each in urls], np.int32)
        asks = Asks([part.key for part in parts], number, start, stop, np.zeros(len(parts), np.bool_), offset, length)
        answers = await self.fetcher.fetch(asks, list(numbers))
        if self.checksums:
            await self._check(parts, urls, answers)
        return answers

    async def _check(self, parts: Sequence[Part], urls: Sequence[str], answers: Sequence[ReadResult]) -> None:
        targets = self.fetcher.targets
        wanted: dict[tuple[str, str | None, int, bytes], str] = {}
        for part, url, answer in zip(parts, urls, answers, strict=True):
            _, _, _, _, _, etag, modified = part.reference
            if etag is not None or modified:
                wanted.setdefault((url, etag, modified, answer.generation.rpartition(b"@")[0]), part.key)
        expected = []
        for url, etag, modified, generation in wanted:
            place = targets.locate(url)
            expected.append(Expected(await targets.root(place.root), place.key, etag, modified, generation))
        try:
            await check(expected, self._times)
        except StoreError as error:
            raise error.within(
                f"Error reading {quote(next(iter(wanted.values())))} in {self.fetcher.described}"
            ) from error
