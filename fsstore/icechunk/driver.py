"""The `icechunk` store: its members, its URLs, and the driver over one branch, tag or snapshot of a repository.

`icechunk:path` is the newest snapshot of the branch `main`; `icechunk:@branch.NAME/path`, `icechunk:@tag.NAME/path` and
`icechunk:@SNAPSHOT/path` are others.  A path that begins with `@` is written `%40`.

version      "branch.NAME", "tag.NAME" or the identifier of a snapshot
checksums    false: virtual chunks are read although their objects may have changed
targets      {prefix: kvstore spec, URL or storage options} for virtual chunks, as in reference sets
rewrite      {old prefix: new prefix} of their URLs
allow        [prefix]: nothing else is read

A batch of reads sees one snapshot.  Documents are in it; the manifests of all arrays that the batch touches are read
together, once, and hold small chunks themselves; other chunks are read by one call of the base store and one round of
range reads of other places.  Listing documents reads nothing more; listing chunks reads manifests, never chunks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from fsstore.errors import DataLossError, JsonError, OutOfRangeError, StoreError
from fsstore.icechunk.document import ArrayChunks, ArrayManifest, ManifestRef, Reference, SnapshotNode
from fsstore.icechunk.repository import (
    DOCUMENT,
    MAIN,
    NAMED,
    Part,
    PinnedSnapshot,
    Repository,
    VirtualReader,
    array_of,
    parse_selector,
    urls_of,
)
from fsstore.kvstore.contract.ability import ListsDocuments
from fsstore.kvstore.contract.batch import limits_from
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    AdapterKind,
    Entry,
    Features,
    KvDriver,
    KvOpening,
    KvPrefix,
    Read,
    ReadOnly,
    ReadResult,
    now,
)
from fsstore.kvstore.contract.request import KeyRange, resolve_range
from fsstore.kvstore.spec_parse import as_directory
from fsstore.reference.kind import reach_members
from fsstore.reference.table.set_state import inline_generation
from fsstore.reference.targets import Fetcher, Targets, check_prefixes, open_in, policy_of
from fsstore.runtime.tuning import ROWS_AT_ONCE
from fsstore.values.json_value import Fields, Json, boolean, quote, string
from fsstore.values.registry import decode_path, encode_path, reject_query

# The chunks of an array that exist, by its manifests: keys and sizes, and where their references are.


class Page(NamedTuple):
    """Chunks of an array: keys, sizes (-1 where the reference is damaged), and the tables of their references."""

    names: list[str]
    lengths: list[int]
    tables: list[int]
    array: ArrayManifest


async def pages_of(repository: Repository, session: PinnedSnapshot, node: SnapshotNode) -> AsyncIterator[Page]:
    """Yield the chunks of an array inside its grid, manifest by manifest."""
    chunks, form = repository.chunks(session, node), repository.form(session, node)
    head, rank = f"{node.path}/" if node.path else "", len(chunks.counts)
    counts = np.maximum(np.array(chunks.counts, np.int64), 1)
    for manifest in chunks.manifests:
        if len(manifest.start) != rank:
            continue
        array = (await repository.manifests([manifest.id]))[manifest.id].arrays.get(node.id)
        if array is None:
            raise DataLossError(f"The manifest of {quote(node.path)} in {repository.described} has none of its chunks")
        try:
            columns = array.columns(rank)
        except StoreError as error:
            raise error.within(f"Error in the manifest of {quote(node.path)} in {repository.described}") from error
        rows = np.flatnonzero((columns.index < counts).all(axis=1))
        for begin in range(0, len(rows), ROWS_AT_ONCE):
            at = rows[begin : begin + ROWS_AT_ONCE]
            names = [head + form.name(index) for index in columns.index[at].tolist()]
            yield Page(names, columns.lengths[at].tolist(), columns.tables[at].tolist(), array)


# Reading chunks that lie outside the documents: objects of the repository, and ranges of objects elsewhere.


def stamp_of(reference: Reference) -> bytes:
    """Return the generation of a chunk by its reference; those of virtual chunks come with their bytes."""
    if reference.kind != "native":
        return UNKNOWN
    return f"{reference.place}@{reference.offset}:{reference.length}".encode()


@dataclass(frozen=True, slots=True)
class SnapshotChunks:
    """Reads parts of chunks: those in the repository with one call of its store, the others with one round."""

    repository: Repository
    virtual: VirtualReader

    async def read(self, parts: Sequence[Part]) -> list[ReadResult]:
        """Return the answers to parts, in order; a part of no bytes is not asked for."""
        results = [ReadResult("value", b"", stamp_of(part.reference), now(), part.reference.length) for part in parts]
        wanted = [number for number, part in enumerate(parts) if part.start < part.stop]
        native = [number for number in wanted if parts[number].reference.kind == "native"]
        virtual = [number for number in wanted if parts[number].reference.kind == "virtual"]
        for numbers, read in ((native, self._native), (virtual, self._virtual)):
            found = await read([parts[number] for number in numbers]) if numbers else []
            for number, answer in zip(numbers, found, strict=True):
                size = parts[number].reference.length
                results[number] = answer._replace(size=size)
        return results

    async def _virtual(self, parts: Sequence[Part]) -> Sequence[ReadResult]:
        named = any(part.reference.place.startswith(NAMED) for part in parts)
        return await self.virtual.read(parts, await self.repository.containers() if named else {})

    async def _native(self, parts: Sequence[Part]) -> Sequence[ReadResult]:
        base = self.repository.base
        reads = [_read(part) for part in parts]
        try:
            answers = await base.read_many(reads)
        except OutOfRangeError as error:
            raise DataLossError(f"A chunk in {self.repository.described} is cut off: {error.message}") from error
        out = []
        for part, read, found in zip(parts, reads, answers, strict=True):
            if found.state != "value" or len(found.value) != part.stop - part.start:
                short = f"has {len(found.value)} bytes for {part.stop - part.start} at offset {read.start}"
                why = "does not exist" if found.state != "value" else short
                where = f"Error reading {quote(part.key)} in {self.repository.described}"
                raise DataLossError(f"{where}: its object {base.describe(read.key)} {why}")
            out.append(ReadResult("value", found.value, stamp_of(part.reference), found.time))
        return out


def _read(part: Part) -> Read:
    place, offset = part.reference.place, part.reference.offset
    return Read(f"chunks/{place}", offset + part.start, offset + part.stop)


Wanted = dict[str, list[tuple[int, tuple[int, ...]]]]
"""By the path of an array: the places of keys in the batch, and the chunks they name."""


class IcechunkDriver(ReadOnly, ListsDocuments):
    """The chosen state of a repository; `members` are the JSON members it was opened with."""

    id: ClassVar[str] = "icechunk"

    def __init__(self, repository: Repository, chunks: SnapshotChunks, members: Mapping[str, Json]) -> None:
        self.repository, self.chunks = repository, chunks
        self._members = dict(members)
        waits = repository.base.driver.features.waits
        self.features = Features(waits=waits, writable=False, listable=True)

    def __eq__(self, other: object) -> bool:
        """Return whether `other` shows the same, opened in the same way."""
        return self is other or (isinstance(other, IcechunkDriver) and self._identity() == other._identity())

    def __hash__(self) -> int:
        """Return a hash that agrees with equality."""
        return hash(self.repository.base)

    def _identity(self) -> tuple[Any, ...]:
        return self.repository.base, self.repository.selector, self._members

    @property
    def described(self) -> str:
        """How messages call what is read."""
        return self.repository.described

    def describe_key(self, key: str) -> str:
        """Return the quoted key and where the repository is."""
        return f"{quote(key)} in {self.described}"

    def spec(self) -> Mapping[str, Json]:
        """Return the members, credentials hidden."""
        return self._members

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`, all of one snapshot."""
        if not reads:
            return []
        session = await self.repository.session(max([read.staleness_bound for read in reads]))
        results = [ReadResult("missing", b"", NO_VALUE, session.time)] * len(reads)
        wanted: Wanted = defaultdict(list)
        for place, read in enumerate(reads):
            node = _document_of(read.key, session)
            if node is not None:
                results[place] = self._held(read, bytes(node.document), session)
            elif (found := self._chunk_of(read.key, session)) is not None:
                wanted[found[0]].append((place, found[1]))
        if wanted:
            await self._read_chunks(reads, wanted, session, results)
        return results

    def _chunk_of(self, key: str, session: PinnedSnapshot) -> tuple[str, tuple[int, ...]] | None:
        found = array_of(key, session.snapshot.nodes)
        index = None if found is None else self.repository.form(session, found[0]).parse(found[1])
        return None if found is None or index is None else (found[0].path, index)

    async def _read_chunks(
        self, reads: Sequence[Read], wanted: Wanted, session: PinnedSnapshot, results: list[ReadResult]
    ) -> None:
        places: list[int] = []
        parts: list[Part] = []
        for place, reference in await self._references(wanted, session):
            read = reads[place]
            if reference.kind == "inline":
                results[place] = self._held(read, reference.value, session)
                continue
            stamp = stamp_of(reference)
            if stamp != UNKNOWN and stamp == read.if_not_equal:
                results[place] = ReadResult("unspecified", b"", stamp, session.time)
                continue
            start, stop = self._range(read, reference.length)
            places.append(place)
            parts.append(Part(read.key, reference, start, stop))
        for place, found in zip(places, await self.chunks.read(parts), strict=True):
            known = reads[place].if_not_equal
            same = known == found.generation != UNKNOWN
            results[place] = ReadResult("unspecified", b"", known, found.time) if same else found

    async def _references(self, wanted: Wanted, session: PinnedSnapshot) -> list[tuple[int, Reference]]:
        """Return the references of chunks that exist, with their places in the batch."""
        asked: list[tuple[SnapshotNode, ManifestRef, list[tuple[int, tuple[int, ...]]]]] = []
        for path, keys in wanted.items():
            node = session.snapshot.nodes[path]
            chunks = self.repository.chunks(session, node)
            asked += [(node, manifest, members) for manifest, members in _by_manifest(chunks, keys)]
        manifests = await self.repository.manifests(list({each.id: None for _, each, _ in asked}))
        out: list[tuple[int, Reference]] = []
        for node, manifest, members in asked:
            array = manifests[manifest.id].arrays.get(node.id)
            out += self._found(array, node, members)
        return out

    def _found(
        self, array: ArrayManifest | None, node: SnapshotNode, members: list[tuple[int, tuple[int, ...]]]
    ) -> Iterator[tuple[int, Reference]]:
        if array is None:
            raise DataLossError(f"{self.describe_key(node.path)}: the manifest of its chunks has none of this array")
        rank = len(members[0][1])
        index = np.array([index for _, index in members], np.int64).reshape(len(members), rank)
        try:
            tables = array.find(index).tolist()
            for (place, _), at in zip(members, tables, strict=True):
                if at >= 0:
                    yield place, array.reference(at)
        except StoreError as error:
            raise error.within(f"Error in the manifest of {self.describe_key(node.path)}") from error

    def _held(self, read: Read, value: bytes | memoryview, session: PinnedSnapshot) -> ReadResult:
        """Return the answer from a value that a document holds."""
        stamp = inline_generation(bytes(value))
        if read.if_not_equal == stamp:
            return ReadResult("unspecified", b"", stamp, session.time)
        start, stop = self._range(read, len(value))
        return ReadResult("value", value[start:stop], stamp, session.time, len(value))

    def _range(self, read: Read, size: int) -> tuple[int, int]:
        try:
            return resolve_range(read.start, read.stop, size)
        except StoreError as error:
            raise error.within(f"Error reading {self.describe_key(read.key)}") from error

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in the range with their sizes: documents, then the chunks of arrays by their manifests."""
        session = await self.repository.session()
        for batch in _documents(session, keys):
            yield batch
        for node in session.snapshot.nodes.values():
            if node.is_array and _may_hold(node.path, keys):
                async for page in pages_of(self.repository, session, node):
                    pairs = zip(page.names, page.lengths, strict=True)
                    yield [Entry(key, None if size < 0 else size) for key, size in pairs if keys.contains(key)]

    async def documents(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the documents in the range: no manifest is read."""
        for batch in _documents(await self.repository.session(), keys):
            yield batch


def _document_of(key: str, session: PinnedSnapshot) -> SnapshotNode | None:
    if key == DOCUMENT:
        return session.snapshot.nodes.get("")
    return session.snapshot.nodes.get(key[:-10]) if key.endswith("/" + DOCUMENT) and len(key) > 10 else None


def _by_manifest(
    chunks: ArrayChunks, keys: list[tuple[int, tuple[int, ...]]]
) -> Iterator[tuple[ManifestRef, list[tuple[int, tuple[int, ...]]]]]:
    """Yield manifests with the chunks asked for that lie in their boxes; others are missing."""
    found: dict[bytes, tuple[ManifestRef, list[tuple[int, tuple[int, ...]]]]] = {}
    last: ManifestRef | None = None
    for place, index in keys:
        if not chunks.inside(index):
            continue
        if last is None or not last.covers(index):
            last = chunks.manifest(index)
        if last is not None:
            found.setdefault(last.id, (last, []))[1].append((place, index))
    yield from found.values()


def _documents(session: PinnedSnapshot, keys: KeyRange) -> Iterator[list[Entry]]:
    batch = []
    for path, node in session.snapshot.nodes.items():
        key = f"{path}/{DOCUMENT}" if path else DOCUMENT
        if keys.contains(key):
            batch.append(Entry(key, len(node.document)))
        if len(batch) == ROWS_AT_ONCE:
            yield batch
            batch = []
    if batch:
        yield batch


def _may_hold(path: str, keys: KeyRange) -> bool:
    inside = KeyRange.prefix(f"{path}/" if path else "")
    low = max(inside.inclusive_min, keys.inclusive_min)
    return all(not end or low < end for end in (inside.exclusive_max, keys.exclusive_max))


async def references_of(driver: IcechunkDriver, prefix: str = "") -> dict[str, Any]:
    """Return the references below a path, by the rest of their keys, as a mapping that is a set of version 0.

    Documents and small chunks are inline.  Virtual chunks keep their URLs, with the names of containers expanded;
    chunks of the repository itself are relative to its directory.  Sets have no checksums of their targets.
    """
    repository = driver.repository
    session = await repository.session()
    out: dict[str, Any] = {}
    found: list[tuple[str, Reference]] = []
    for path, node in session.snapshot.nodes.items():
        head = f"{path}/" if path else ""
        if (head + DOCUMENT).startswith(prefix):
            out[(head + DOCUMENT)[len(prefix) :]] = bytes(node.document)
        if node.is_array and (head.startswith(prefix) or prefix.startswith(head)):
            async for page in pages_of(repository, session, node):
                pairs = zip(page.names, page.tables, strict=True)
                found += [(name, page.array.reference(at)) for name, at in pairs if name.startswith(prefix)]
    virtual = [each for _, each in found if each.kind == "virtual"]
    named = any(each.place.startswith(NAMED) for each in virtual)
    try:
        urls = iter(urls_of(virtual, await repository.containers() if named else {}))
    except StoreError as error:
        raise error.within(f"Error reading {repository.described}") from error
    for name, each in found:
        if each.kind == "inline":
            out[name[len(prefix) :]] = bytes(each.value)
        else:
            place = next(urls) if each.kind == "virtual" else f"chunks/{each.place}"
            out[name[len(prefix) :]] = [place, each.offset, each.length]
    return out


# How the store is opened.


def _version(value: Any) -> str:
    try:
        return str(parse_selector(string(value)))
    except JsonError:
        raise
    except StoreError as error:
        raise JsonError(error.message) from error


@dataclass(frozen=True, slots=True)
class IcechunkKind(AdapterKind):
    """The kind of `{"driver": "icechunk"}` and `icechunk:`."""

    id: str = "icechunk"
    schemes: tuple[str, ...] = ("icechunk",)
    resources: tuple[str, ...] = ("cache_pool", "range_coalescing")

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the members of the store."""
        version = fields.take("version", _version)
        checksums = fields.take("checksums", boolean)
        taken: dict[str, Json] = {}
        if version not in (None, MAIN):
            taken["version"] = version
        if checksums is False:
            taken["checksums"] = False
        return {**taken, **reach_members(fields)}

    def base_path(self, path: str) -> str:
        """Return the path of the repository directory, with a slash at the end."""
        return as_directory(path)

    def from_url(self, scheme: str, rest: str) -> tuple[str, dict[str, Json]]:  # one scheme only
        """Return path and version of `icechunk:<rest>`."""
        reject_query(rest)
        if not rest.startswith("@"):
            return decode_path(rest.removeprefix("/")), {}
        version, _, path = rest[1:].partition("/")
        selector = str(parse_selector(decode_path(version)))
        return decode_path(path), {} if selector == MAIN else {"version": selector}

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:  # options have no URL form
        """Return the URL component."""
        version = members.get("version")
        if version is None:
            return f"icechunk:{encode_path(path)}"
        return f"icechunk:@{encode_path(str(version)).replace('/', '%2F')}/{encode_path(path)}"

    async def open(self, opening: KvOpening) -> KvDriver:
        """Return the driver over the base; nothing is read before a key is asked for."""
        from fsstore.icechunk.repository import Repository, VirtualReader

        members: Mapping[str, Any] = opening.members
        base = KvPrefix(opening.below.driver, as_directory(opening.below.path))
        selector = parse_selector(str(members.get("version") or MAIN))
        repository = Repository(base, selector, opening.resources.get("cache_pool"))
        targets = Targets(
            open_in(opening.context),
            policy_of(base, members),
            base,
            check_prefixes(members.get("targets") or {}),
            members.get("rewrite") or {},
        )
        fetcher = Fetcher(targets, limits_from(opening.resources), repository.described)
        checked = members.get("checksums") is not False
        virtual = VirtualReader(fetcher, checked, base.driver.features.waits)
        return IcechunkDriver(repository, SnapshotChunks(repository, virtual), members)


KIND = IcechunkKind()
"""The kind of `{"driver": "icechunk"}`."""
