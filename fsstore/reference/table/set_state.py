"""How many bytes a reference may sensibly have, so that no set makes its reader fetch without end.

An encoded chunk is hardly larger than the chunk: twice its bytes and a little are allowed.  Metadata documents are
small.  Small values are never looked at, so ordinary sets pay nothing; values that belong to no array known to the
set are not bounded.

The size of a whole target is asked for, not fetched: reading no bytes at an offset succeeds if the target reaches it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from fsstore.errors import NotFoundError, ResourceExhaustedError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvDriver, KvPrefix, Read, Stamp, Write, now
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.table.keys import check_key, is_document
from fsstore.reference.table.refset import Page, ReferenceSet, Resolved, TableBuilder, TableSet
from fsstore.reference.table.table import ABSENT, INLINE, Row, Rows
from fsstore.runtime import fork
from fsstore.runtime.together import ChangedError, CommitQueue, until_settled, until_unchanged

# Writing to a reference set: conditions, several writers, and what stands in memory until it is saved.

Changes = Mapping[str, bytes | None]
"""New values by key; None deletes."""


@dataclass(frozen=True, slots=True)
class State:
    """A set, the values that replace its own (None deletes), and the generation of its document.

    If the set does not exist, `missing` is the message that says so; otherwise it is empty.
    """

    base: ReferenceSet
    changes: Changes = field(default_factory=dict)
    generation: bytes = NO_VALUE
    missing: str = ""

    async def resolve(self, keys: Sequence[str]) -> Resolved:
        """Return the references of `keys`."""
        found = await self.base.resolve(keys)
        changed = [position for position, key in enumerate(keys) if key in self.changes]
        if not changed:
            return found
        rows = found.rows
        kept = np.flatnonzero(rows.url == INLINE)  # of all values only those asked for: the set may hold millions
        inline = [found.inline[number] for number in rows.offset[kept].tolist()]
        rows.offset[kept] = np.arange(len(kept))
        for position in changed:
            _put(rows, position, self.changes[keys[position]], inline)
        return found._replace(inline=inline)

    def scan(self, keys: KeyRange) -> AsyncIterator[Page]:
        """Yield the keys in a range, those of the set before the new ones."""
        return self._changed(self.base.scan(keys), keys)

    def documents(self, keys: KeyRange) -> AsyncIterator[Page]:
        """Yield the same without most of the chunks."""
        return self._changed(self.base.documents(keys), keys)

    async def _changed(self, pages: AsyncIterator[Page], keys: KeyRange) -> AsyncIterator[Page]:
        changes = dict(self.changes)  # as they are now: those of a set in memory may grow meanwhile
        async for names, found in pages:
            if changes and any(name in changes for name in names):
                kept = [position for position, name in enumerate(names) if name not in changes]
                yield [names[position] for position in kept], found._replace(rows=found.rows.take(kept))
            else:
                yield names, found
        new = {name: value for name, value in changes.items() if value is not None and keys.contains(name)}
        if new:
            rows = Rows.of([Row(INLINE, number, len(value)) for number, value in enumerate(new.values())])
            yield list(new), Resolved(rows, (), list(new.values()))


def _put(rows: Rows, position: int, value: bytes | None, inline: list[bytes]) -> None:
    if value is None:
        rows.url[position] = ABSENT
        return
    rows.url[position], rows.offset[position], rows.length[position] = INLINE, len(inline), len(value)
    inline.append(value)


class Saved(NamedTuple):
    """The answer of a document: the state as it is now, and the changes it holds, as it holds them."""

    state: State
    changes: Changes


@dataclass(frozen=True, slots=True)
class Taking:
    """A change of a set in one step: references, whose rows count `urls`, inline values, and ranges to be deleted."""

    references: Mapping[str, Row]
    urls: Sequence[str]
    writes: Mapping[str, bytes]
    deleted: Sequence[KeyRange]

    def deletes(self, key: str) -> bool:
        """Return whether a key is deleted."""
        return any(each.contains(key) for each in self.deleted)


class Document(Protocol):
    """Where a set is stored."""

    async def basis(self, state: State, keys: Sequence[str]) -> Any:
        """Return what changes of `keys` will be based on; it is taken before their conditions are judged."""
        ...

    async def save(self, state: State, changes: Changes, basis: Any) -> Saved:
        """Save changes of a state where nobody changed the basis; the others are missing in the answer."""
        ...

    async def reload(self, state: State, keys: Sequence[str]) -> State | None:
        """Return the state that is stored, or None if `keys` are as they were."""
        ...

    async def check(self, state: State, taking: Taking) -> None:
        """Raise if a set takes in several steps only what it is to take in one."""
        ...

    async def take(self, before: State, taking: Taking) -> State | None:
        """Return the set with what it takes, stored in one step; None if it was changed by somebody else."""
        ...


@dataclass(slots=True, eq=False)
class _Request:
    """A batch of writes that waits, and its answer."""

    writes: Sequence[Write]
    driver: KvDriver
    stamps: Mapping[str, Stamp] = field(default_factory=dict)
    error: StoreError | None = None


def _disjoint(requests: Sequence[_Request]) -> list[list[_Request]]:
    """Return requests in order, in groups in which no key is written twice."""
    groups: list[list[_Request]] = []
    seen: set[str] = set()
    for request in requests:
        keys = {write.key for write in request.writes}
        if not groups or keys & seen:
            groups.append([])
            seen = set()
        groups[-1].append(request)
        seen |= keys
    return groups


class Overlay:
    """The state of an opened set.  Without a document, changes stay in memory.

    A set that does not exist cannot be read, or a name that is misspelt would be an empty set: it is looked for again,
    and that it is not there is an error.  Only for who is about to make it (`begin_creating`) it is empty.
    """

    def __init__(self, state: State, document: Document | None, *, writable: bool) -> None:
        self._memory: dict[str, bytes | None] = {} if document else dict(state.changes)
        self.state = state if document else replace(state, changes=self._memory)
        self.writable = writable
        self.conditional = writable
        self.is_stored = document is not None
        self._document = document
        self._creating = False
        self._lock = fork.lock()
        self._queue: CommitQueue[_Request] | None = None

    async def resolve(self, keys: Sequence[str]) -> Resolved:
        """Return the references of `keys`."""
        state = await self._found() if self.state.missing else self.state
        return await state.resolve(keys)

    async def scan(self, keys: KeyRange) -> AsyncIterator[Page]:
        """Yield the keys in a range with their references."""
        state = await self._found() if self.state.missing else self.state
        async for page in state.scan(keys):
            yield page

    async def documents(self, keys: KeyRange) -> AsyncIterator[Page]:
        """Yield the same without most of the chunks."""
        state = await self._found() if self.state.missing else self.state
        async for page in state.documents(keys):
            yield page

    def begin_creating(self) -> None:
        """Take a set that does not exist for an empty one, because it is about to be written."""
        self._creating = True

    async def _found(self) -> State:
        before = self.state
        if self._creating or self._document is None:
            return before
        stored = await self._document.reload(before, [])
        if stored is None or stored.missing:
            raise NotFoundError(before.missing)
        self._swap(before, stored)
        return stored

    async def write(self, writes: Sequence[Write], driver: KvDriver) -> list[Stamp]:
        """Apply a batch of writes and save it; conditions are checked against what is saved."""
        self._check(writes, driver)
        self.begin_creating()
        with self._lock:
            if self._queue is None:
                self._queue = CommitQueue(self._commit, waits=driver.features.waits)
        request = _Request(writes, driver)
        await self._queue.submit(request)
        if request.error is not None:
            raise request.error
        return [request.stamps[write.key] for write in writes]

    async def _commit(self, requests: Sequence[_Request]) -> None:
        """Save requests, those of different keys together; where that fails, each by itself for its own error."""
        for group in _disjoint(requests):
            writes = [write for request in group for write in request.writes]
            try:
                stamps = await self._apply(writes, group[0].driver)
            except StoreError as error:
                if len(group) == 1:
                    group[0].error = error
                    continue
                for request in group:
                    await self._commit([request])
                continue
            for request in group:
                request.stamps = stamps

    async def _apply(self, writes: Sequence[Write], driver: KvDriver) -> dict[str, Stamp]:
        stamps: dict[str, Stamp] = {}

        async def attempt(waiting: list[Write]) -> list[Write]:
            stamps.update(await self._settle(waiting, driver))
            return [write for write in waiting if write.key not in stamps]

        await until_settled(attempt, list(writes), lambda _: driver.describe_key(""))
        return stamps

    async def check_taking(self, taking: Taking) -> None:
        """Raise if the set, as it is stored, takes in several steps only what it is to take in one."""
        if self._document is not None:
            await self._document.check(await self._reloaded(self._document), taking)

    async def take(self, taking: Taking, check: Callable[[], Awaitable[None]], driver: KvDriver) -> None:
        """Take references and values in one step; `check` may refuse the state that is about to be replaced."""
        document = self._document
        if document is None or not self.writable:
            raise UnimplementedError(f"Not all of {driver.describe_key('')} can be written in one step")
        self.begin_creating()

        async def attempt() -> None:
            before = await self._reloaded(document)
            await check()  # of this state, or of a newer one, which is not replaced
            after = await document.take(before, taking)
            if after is None:
                raise ChangedError
            self._swap(before, after)

        await until_unchanged(attempt, partial(driver.describe_key, ""))

    async def _reloaded(self, document: Document) -> State:
        """Return the state that is stored now, and show it."""
        before = self.state
        stored = await document.reload(before, [])
        if stored is None:
            return before
        self._swap(before, stored)
        return self.state

    def _check(self, writes: Sequence[Write], driver: KvDriver) -> None:
        if not self.writable:
            raise UnimplementedError(f"KeyValueStore does not support writing: {driver.describe_key('')}")
        for write in writes:
            why = check_key(write.key)
            if why is not None:
                raise StoreError(f"Error writing {driver.describe_key(write.key)}: {why}")

    async def _settle(self, writes: Sequence[Write], driver: KvDriver) -> dict[str, Stamp]:
        """Return the stamps of the writes that could be decided by what is stored now."""
        before, document = self.state, self._document
        basis = await document.basis(before, [write.key for write in writes]) if document else None
        held = await self._held(writes, driver)
        refused = [write.key for write, holds in zip(writes, held, strict=True) if not holds]
        if refused and document:
            stored = await document.reload(before, refused)
            if stored is not None:
                self._swap(before, stored)
                return {}
        changes = {write.key: _bytes(write) for write, holds in zip(writes, held, strict=True) if holds}
        kept = await self._save(before, changes, basis) if changes else {}
        stamps = {key: Stamp(UNKNOWN, now()) for key in refused}
        for key, value in kept.items():
            stamps[key] = Stamp(NO_VALUE if value is None else inline_generation(value), now())
        return stamps

    async def _held(self, writes: Sequence[Write], driver: KvDriver) -> list[bool]:
        conditional = [write for write in writes if write.if_equal != UNKNOWN]
        if not conditional:
            return [True] * len(writes)
        found = await driver.read_many([Read(write.key) for write in conditional])
        current = {write.key: result.generation for write, result in zip(conditional, found, strict=True)}
        return [write.if_equal == UNKNOWN or write.if_equal == current[write.key] for write in writes]

    async def _save(self, before: State, changes: Changes, basis: Any) -> Changes:
        """Return those of the changes that are saved."""
        if self._document is None:
            self._memory.update(changes)
            return changes
        saved = await self._document.save(before, changes, basis)
        self._swap(before, saved.state)
        return saved.changes

    def _swap(self, before: State, after: State) -> None:
        with self._lock:
            if self.state is before:
                self.state = after


def _bytes(write: Write) -> bytes | None:
    return None if write.value is None else bytes(write.value)


def inline_generation(value: bytes) -> bytes:
    """Return the generation of an inline value: what it is."""
    return b"inline:" + hashlib.blake2b(value, digest_size=16).digest()


# A set with many changes at once: what it keeps, and references and values that are new.


async def with_references(state: State, taking: Taking) -> State:
    """Return a set with what it takes."""
    builder = TableBuilder()
    async for names, found in state.scan(KeyRange()):
        kept = [at for at, name in enumerate(names) if not taking.deletes(name)]
        add_page(builder, [names[at] for at in kept], found._replace(rows=found.rows.take(np.array(kept, np.int64))))
    rows = Rows.of(list(taking.references.values()))
    add_page(builder, list(taking.references), Resolved(rows, taking.urls, ()))
    for key, value in taking.writes.items():
        builder.add_inline(key.encode(), value)
    made = TableSet(builder.finish())
    made.origins = state.base.origins
    return State(made, {}, state.generation)


def add_page(
    builder: TableBuilder, names: Sequence[str], found: Resolved, url: Callable[[str], str] | None = None
) -> None:
    """Add keys and their references to a table that is being made, with other URLs if `url` makes these."""
    rows = found.rows
    numbers, offset = rows.url.copy(), rows.offset.copy()
    used = np.unique(numbers[numbers >= 0])
    texts = [found.urls[number] for number in used.tolist()]
    ids = builder.url_ids([(text if url is None else url(text)).encode() for text in texts])
    numbers[numbers >= 0] = ids[np.searchsorted(used, numbers[numbers >= 0])]
    for position in np.flatnonzero(rows.url == INLINE).tolist():
        builder.inline.append(found.inline[int(rows.offset[position])])
        offset[position] = len(builder.inline) - 1
    builder.add_rows([name.encode() for name in names], Rows(numbers, offset, rows.length))


FREE = 64 * 2**20
"""References of up to this many bytes are never questioned."""
_OBJECTS = 2**30  # bytes of a chunk of objects, whose size its metadata do not say
_MOST = 2**34  # bytes of any chunk
_MORE = "more than the {} bytes that a chunk of the array can need; refused"


def chunk_bytes(metadata: Mapping[str, Any]) -> int | None:
    """Return the bytes of a decoded chunk of the array with this metadata, or None if that is unknown.

    >>> chunk_bytes({"zarr_format": 2, "chunks": [10, 10], "dtype": "<f8"})
    800
    """
    if metadata.get("zarr_format") == 3:
        grid = metadata.get("chunk_grid")
        inner = grid.get("configuration") if isinstance(grid, Mapping) else None
        sizes = inner.get("chunk_shape") if isinstance(inner, Mapping) else None
        kind = metadata.get("data_type")
    else:
        sizes, kind = metadata.get("chunks"), metadata.get("dtype")
    if not isinstance(sizes, list) or not all(type(size) is int and size > 0 for size in sizes):
        return None
    try:
        dtype = np.dtype([tuple(field) for field in kind] if isinstance(kind, list) else kind)
    except (TypeError, ValueError, SyntaxError):  # opening the array tells what is wrong with it
        return None
    if kind is None or dtype.hasobject:
        return None
    return math.prod(sizes) * dtype.itemsize


async def limits_of(overlay: Overlay, keys: Sequence[str]) -> list[int | None]:
    """Return for each key the largest number of bytes its reference may have; None: any."""
    known: dict[str, int | None] = {}
    out: list[int | None] = []
    for key in keys:
        if is_document(key):
            out.append(FREE)
            continue
        path = key.rpartition("/")[0]
        if path not in known:
            known[path] = await _limit_below(overlay, path)
        out.append(known[path])
    return out


async def _limit_below(overlay: Overlay, path: str) -> int | None:
    """Return the limit for chunks of the nearest array at or above a path."""
    while True:
        head = f"{path}/" if path else ""
        found = await overlay.resolve([f"{head}.zarray", f"{head}zarr.json"])
        for position in np.flatnonzero(found.rows.url == INLINE).tolist():
            size = _chunk_bytes_of(found.inline[int(found.rows.offset[position])])
            if size is not None:
                return size
        if not path:
            return None
        path = path.rpartition("/")[0]


def _chunk_bytes_of(document: bytes) -> int | None:
    """Return the limit that a metadata document sets; None for groups."""
    try:
        metadata = json.loads(document)
    except (ValueError, RecursionError):
        return None
    if not isinstance(metadata, dict) or not {"chunks", "chunk_grid"} & set(metadata):
        return None
    size = chunk_bytes(metadata)
    return _OBJECTS if size is None else min(_MOST, max(FREE, 2 * size + 2**20))


async def refuse_larger(store: KvPrefix, key: str, limit: int) -> None:
    """Raise if a value has more bytes than its limit.  Missing values and failures are left to who reads them."""
    try:
        answer = (await store.read_many([Read(key, limit + 1, limit + 1)]))[0]
    except StoreError:
        return
    if answer.state == "value":
        raise ResourceExhaustedError(f"{store.describe(key)} has {_MORE.format(limit)}")


def check_length(length: int, limit: int | None) -> None:
    """Raise if a range has more bytes than its limit."""
    if limit is not None and length > limit:
        raise ResourceExhaustedError(f"{length} bytes are {_MORE.format(limit)}")
