"""The passes of a job: tasks that may be done in any order, made one by one as workers ask for them.

A task is a run of pieces, as long as the pace of the workers says.  Boxes are known by the numbers of their pieces.
Chunks that move untouched are listed as the store lists them and handed out by the batch, so that a hundred million of
them take no memory; a batch is known again by its keys.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from fsstore.chunk.regions import BoxSlabs, Region, Regions
from fsstore.driver.cast import Casting
from fsstore.format.attributes import DOCUMENTS, is_document
from fsstore.job.plan import PIECE_KEYS
from fsstore.job.scratch import is_of_job
from fsstore.kvstore.contract.ability import SweepsUnfinished, SyncsTogether, able
from fsstore.kvstore.contract.driver import KvPrefix, Read, Write
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.spec_parse import OpenKv, as_directory, open_adapter, open_bound
from fsstore.kvstore.spec_value import kv_kind
from fsstore.runtime.pool import keep, kept
from fsstore.runtime.tuning import HELD_BYTES, PAGE
from fsstore.task.runner import Pace, Task

# A job as its workers see it: opened stores and the boxes of its plan, sent to each worker once.
#
# A task is then a word and a number, or a handful of keys: it travels as a few hundred bytes.

_NOWHERE = Regions((), (), (), ())
_NOTHING = BoxSlabs(_NOWHERE)


@dataclass(frozen=True, slots=True)
class OwnDatabase:
    """A target that each worker writes into a database of its own, below the one that takes all of them at the end."""

    spec: Any
    """The spec of the target array, without its key-value store."""
    base: KvStore
    """Where databases of workers are."""
    path: str
    """The path of the array inside of each."""
    untouched: bool = False
    """Whether encoded chunks are written, and no array."""


@dataclass(frozen=True, slots=True)
class Order:
    """A job as workers know it.  `name` is another one in every run, so that nothing opened for one serves the next."""

    name: str
    source: Any = None
    target: Any = None
    scratch: KvStore | None = None
    targets: Regions = _NOWHERE
    sources: Regions = _NOWHERE
    pieces: BoxSlabs = _NOTHING
    """The boxes of the target as tasks take them."""
    together: int = 16
    """How many encoded chunks a worker holds at once."""
    casting: Casting = "same_value"
    """The change that values may take which are written as another type."""
    durable: KvStore | None = None
    """The store whose filesystem is synced at the end of each task; None where writes are durable by themselves."""
    bitwise: bool = True
    """Whether values that are checked differ where their bits do; else as numbers."""
    unseen: bool = False
    """Whether nobody reads the target before the job is done, since it has no metadata yet."""
    counted: bool = False
    """Whether answers say how many chunks were stored, too: those of mere fill are not."""

    async def opened(self) -> Order:
        """Return the job with a target that this process writes to, opened once."""
        if not isinstance(self.target, OwnDatabase):
            return self
        name = f"own {self.name}"
        found: Order = kept(name) or keep(name, await _with_own_database(self, self.target))
        return found


async def _with_own_database(order: Order, own: OwnDatabase) -> Order:
    from dataclasses import replace
    from uuid import uuid4

    from fsstore.arrays.store import open as open_array

    store = (await opened_database(own.base / f"{uuid4().hex[:16]}/")) / own.path
    if own.untouched:
        return replace(order, target=store)
    target = await open_array({**own.spec, "kvstore": store}, assume_metadata=True, open=True)
    return replace(order, target=target)


async def opened_database(directory: KvStore) -> KvStore:
    """Return the OCDBT database in a directory."""
    from fsstore.context.context import Context

    kind = kv_kind("ocdbt")
    assert kind is not None
    return KvStore.of(await open_adapter(kind, directory._open, directory._open.spec.bound_context or Context()))


def packed_keys(keys: Sequence[str]) -> bytes:
    """Return keys as few bytes: those of neighbouring chunks differ little."""
    return zlib.compress("\0".join(keys).encode("utf-8", "surrogateescape"), 6)


def keys_of(packed: bytes) -> list[str]:
    """Return the keys that were packed."""
    return zlib.decompress(packed).decode("utf-8", "surrogateescape").split("\0")


def root_of(store: OpenKv) -> OpenKv:
    """Return the store that all bytes of a store are in."""
    while store.base is not None:
        store = store.base
    return store


async def unsynced(store: OpenKv) -> OpenKv | None:
    """Return the same place where writes wait for a sync that covers many of them; None if it has no such thing."""
    root = root_of(store)
    if able(root.driver, SyncsTogether) is None or root.spec.live is not None:
        return None
    spec = _replaced_root(store.effective_spec())
    return (await open_bound(spec)).at(as_directory(store.path))


def _replaced_root(spec: Any) -> Any:
    from fsstore.context.context import Context

    if spec.base is not None:
        return spec.replace(base=_replaced_root(spec.base))
    context = Context({"file_io_sync": False}, spec.bound_context)
    others = {name: value for name, value in spec.resources.items() if name != "file_io_sync"}
    return spec.replace(resources=others).bound(context)


_LIKE_CHUNKS = re.compile(r"c|(?:c[/.])?[0-9]+(?:[/.][0-9]+)*", re.ASCII)
"""Keys of chunks in every version of zarr, and in N5."""
_LAST_OF_CHUNKS = r"(?:c|(?:c\.)?[0-9]+(?:\.[0-9]+)*)"
"""The part of such a key behind its last slash."""
_Made: TypeAlias = Callable[[Pace, frozenset[int]], AsyncIterator[Task]]
_Batch: TypeAlias = list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class Pass:
    """Tasks that may be done in any order, and the kind under which the journal knows their pieces."""

    kind: str
    pieces: int
    """How many there are, at most."""
    nbytes: int
    made: _Made
    held: int = 1
    """How many bytes a task holds at most."""
    done: frozenset[int] = field(default_factory=frozenset)
    """The pieces that an earlier run has finished."""

    def after(self, done: set[int]) -> Pass:
        """Return the pass without pieces that are finished."""
        return replace(self, done=frozenset(done))

    def tasks(self, pace: Pace) -> AsyncIterator[Task]:
        """Return the tasks for what is left, each made when it is asked for."""
        return self.made(pace, self.done)


def box_pass(kind: str, pieces: BoxSlabs, nbytes: int, held: int = 1, share: range | None = None) -> Pass:
    """Return the pass over boxes, or over a share of their pieces."""
    mine = range(len(pieces)) if share is None else share

    async def tasks(pace: Pace, done: frozenset[int]) -> AsyncIterator[Task]:
        begin, most = mine.start, mine.stop
        while begin < most:
            if begin in done:
                begin += 1
                continue
            limit = min(most, pieces.end(begin, pace.length()))
            end = next((each for each in range(begin, limit) if each in done), limit) if done else limit
            pace.taken(end - begin)
            yield Task(range(begin, end), kind, ((begin, end),))
            begin = end

    nbytes = nbytes * len(mine) // max(1, len(pieces))
    return Pass(kind, len(mine), nbytes, tasks, held)


async def chunks_at(place: KvPrefix) -> AsyncIterator[_Batch]:
    """Yield batches of the stored chunks of an array, with the sizes of their values where a listing has them."""
    async for batch in place.scan():
        found = [(each.key, each.size or 0) for each in batch if not is_of_job(each.key)]
        if found:
            yield found


def chunk_keys(array: Any, box: Region) -> list[str]:
    """Return the keys of the chunks in a box of an array."""
    model = array._driver.array.model
    numbers = [
        list(range(axis.chunk_of(low), axis.chunk_of(high - 1) + 1) if high > low else ())
        for low, high, axis in zip(box.start, box.stop, model.axes, strict=False)
    ]
    return list(model.keys_of_product(numbers))


def keys_in_piece(chunk_bytes: int) -> int:
    """Return how many keys a piece has."""
    return max(1, min(PIECE_KEYS, HELD_BYTES // max(1, chunk_bytes)))


async def key_pass(kind: str, place: KvPrefix, chunk_bytes: int, *, chunks: int, counted: bool) -> Pass:
    """Return the pass over stored keys, of which there are `chunks` at most.

    They are listed once more beforehand if they are to be `counted`.
    """
    most = keys_in_piece(chunk_bytes)

    async def tasks(pace: Pace, done: frozenset[int]) -> AsyncIterator[Task]:
        run: dict[int, _Batch] = {}
        length = pace.length()
        async for batch in _batches(place, most):
            if (number := _number(batch)) not in done:
                run[number] = batch
            if len(run) >= length:
                pace.taken(len(run))
                yield _task(kind, run)
                run, length = {}, pace.length()
        if run:
            yield _task(kind, run)

    nbytes = 0
    if counted:
        chunks = 0
        async for batch in chunks_at(place):
            chunks += len(batch)
            nbytes += sum(size or chunk_bytes for _, size in batch)
    return Pass(kind, -(-chunks // most), nbytes, tasks)


async def _batches(place: KvPrefix, most: int) -> AsyncIterator[_Batch]:
    waiting: _Batch = []
    async for batch in chunks_at(place):
        waiting += batch
        while len(waiting) >= most:
            yield waiting[:most]
            waiting = waiting[most:]
    if waiting:
        yield waiting


async def finished_keys(
    place: KvPrefix, chunk_bytes: int, done: set[int], all_stored: Callable[[list[str]], bool]
) -> set[int]:
    """Return those of finished pieces of a pass over keys of which all keys are stored at the target."""
    return {
        number
        async for batch in _batches(place, keys_in_piece(chunk_bytes))
        if (number := _number(batch)) in done and all_stored([key for key, _ in batch])
    }


def _number(batch: _Batch) -> int:
    text = "\0".join(f"{key}\1{size}" for key, size in batch).encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(text, digest_size=7).digest())


def _task(kind: str, run: dict[int, _Batch]) -> Task:
    listed = [(packed_keys([key for key, _ in batch]), sum(size for _, size in batch)) for batch in run.values()]
    return Task(tuple(run), kind, (listed,))


async def remove_chunks(place: KvPrefix) -> None:
    """Delete what a killed copy left at a place in whatever format: keys like those of chunks, and documents.

    The place need not be a directory of its own: other files in it are not ours to delete, nor arrays below it.
    """
    await place.write_many([Write(name, None) for name in sorted(DOCUMENTS)])
    folders, below = {""}, tuple([
        key.rpartition("/")[0] + "/"
        async for batch in place.documents()
        for key in batch.names
        if "/" in key and is_document(key)
    ])  # fmt: skip
    async for batch in chunks_at(place):
        keys = [key for key, _ in batch if _LIKE_CHUNKS.fullmatch(key) and not key.startswith(below)]
        await place.write_many([Write(key, None) for key in keys])
        folders |= {key[: key.rfind("/") + 1] for key in keys}
    sweeper = able(place.driver, SweepsUnfinished)
    if sweeper is not None:
        for folder in folders:
            await sweeper.sweep_unfinished(place.path + folder, _LAST_OF_CHUNKS)


async def remove_strangers(place: KvPrefix, source: KvPrefix) -> int:
    """Delete the chunks of a copy that its source has not, or has no more; return how many there were."""
    removed = 0
    async for batch in chunks_at(place):
        for at in range(0, len(batch), PAGE):
            keys = [key for key, _ in batch[at : at + PAGE]]
            answers = await source.read_many([Read(key, 0, 0) for key in keys])
            gone = [key for key, answer in zip(keys, answers, strict=True) if answer.state == "missing"]
            if gone:
                await place.write_many([Write(key, None) for key in gone])
            removed += len(gone)
    return removed
