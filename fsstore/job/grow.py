"""`append`: making an array longer along a dimension: data first, then one write of its metadata.

An append holds the claim of its array from before it reads the length until it has written it, so appends follow each
other whatever their handles remember: each begins where the array ends as it is stored.  The metadata are written under
the condition that the array is still what it was then.  Readers see the old extent with its values or the new one with
all of its values.

An append is noted beside the array before it writes, and once more before it writes the metadata.  So the next one,
whichever it is, knows what a killed one has left:

* the array is as it was: the same call continues it, another one removes its data;
* the array has grown by it, but nobody was told: the same call, now or after others, is told so and appends nothing.

The same call is one along the same dimension with equal values, or, where it has one, with the same `append_id`.  An id
is kept beside the array for good; equal values without one are appended as often as calls end with success.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from os import PathLike
from typing import Any, Literal, TypeAlias

import numpy as np

from fsstore.arrays.layers import array as wrapped
from fsstore.arrays.protocols import source_array
from fsstore.arrays.store import TensorStore
from fsstore.arrays.store import open as open_array
from fsstore.chunk.regions import BoxSlabs, Region, Regions, cut
from fsstore.context.context import Context, context_of
from fsstore.dataset.group import Group
from fsstore.driver.cast import Cast, is_lossless
from fsstore.driver.chunked_array import ChunkedDriver
from fsstore.driver.contract import ResizeBounds, ResizeOptions, leaves_of
from fsstore.driver.metadata_entry import delete_outside
from fsstore.errors import FailedPreconditionError, StoreError
from fsstore.format.contract import ChunkedArray
from fsstore.index.transform import identity
from fsstore.job.array_copy import chunk_sides, is_whole
from fsstore.job.ends import check_apart, meaning_of, opened_source
from fsstore.job.passes import Order, box_pass, root_of, unsynced
from fsstore.job.plan import CopyReport, held_for, memory_of_tasks, parse_bytes
from fsstore.job.scratch import APPEND, Scratch
from fsstore.job.staging import fingerprint
from fsstore.job.work import work_on
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.spec_parse import OpenKv
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.task.claim import Claim, Journal, job_name
from fsstore.task.runner import Task, reporter_of, width_of
from fsstore.values.dtypes import dtype
from fsstore.values.json_value import same, show

_Described: TypeAlias = "list[Any]"
"""Where values are, or their shape, and what changes when they do."""
_UNTOLD, _KEPT = f"{APPEND}-", f"{APPEND}ed-"
"""Keys beside the array: of appends whose callers have not been told of their end, and of those that had an id."""


def append(
    target: Any,
    source: Any,
    dimension: int | str = 0,
    *,
    axis: int | str | None = None,
    dim: int | str | None = None,
    append_id: str | None = None,
    executor: Executor | None = None,
    max_memory: int | str = "512MB",
    progress: Any = None,
    context: Context | None = None,
) -> Future[CopyReport]:
    """Begin to append values, an array, or the array at a place, to an array along a dimension given by number or name.

    `axis` and `dim` mean the dimension, too, as in NumPy and xarray.
    The array grows from where it ends as it is stored.  Data are written first, and then the metadata, once.  An append
    that was killed is continued by the same call, and is there once however often that is called.  An append
    with the `append_id` of an earlier one does nothing, and its report says that it was skipped.

    Raises `FailedPreconditionError` if another job is changing the array, or if the attributes of an array give its
    values another meaning: units, scale, missing data.  Raises `TypeError` for values that the array cannot hold.

    >>> import fsstore as ts
    >>> store = ts.open("memory://a/|zarr3:", create=True, dtype="int16", shape=[2]).result()
    >>> print(append(store, [5, 6]).result().arrays)
    ('',)
    >>> store.resolve().result().shape
    (4,)
    """
    memory, chosen = parse_bytes(max_memory), context_of(context)

    async def run() -> CopyReport:
        driver, found = await _opened(target, chosen)
        values = await _source(source, found, chosen)
        along = _axis(found, axis, dim, dimension)
        place = driver.kvstore.as_directory()
        if await check_apart(values, place, in_place=True):
            raise FailedPreconditionError(
                f"{place.prefix.describe()} cannot be appended to itself; read its values, and append these"
            )
        described = await _described(values)
        name = {"id": append_id} if append_id is not None else {"values": described, "at": along}
        scratch = Scratch.of(place)
        async with scratch.claimed(f"an append to {place.prefix.describe()}") as claim:
            growth = _Growth(await _as_stored(driver, found), values, along, memory)
            growth.check()
            ledger = _Ledger(scratch, driver, claim, job_name(name), described, has_id=append_id is not None)
            report = await _append(growth, ledger, executor, progress)
        await scratch.clear(ledger.key)  # the caller is told now
        return report

    return execution.start(run())


@dataclass(frozen=True, slots=True)
class _Growth:
    """An array as it is stored, what is appended to it, and along which dimension."""

    array: TensorStore
    values: TensorStore
    axis: int
    memory: int

    @property
    def begin(self) -> int:
        return int(self.array.shape[self.axis])

    @property
    def end(self) -> int:
        return self.begin + int(self.values.shape[self.axis])

    @property
    def shape(self) -> tuple[int, ...]:
        return self._with(self.array.shape, self.end)

    @property
    def low(self) -> tuple[int, ...]:
        """Where what is appended begins."""
        return self._with((0,) * self.array.rank, self.begin)

    def check(self) -> None:
        """Raise unless the values have the shape of the array but for one dimension."""
        shape = self.values.shape
        if len(shape) != self.array.rank or self._with(shape, self.begin) != self.array.shape:
            raise FailedPreconditionError(
                f"Values of shape {shape} cannot be appended to an array of shape {self.array.shape} along dimension"
                f" {self.axis}; all other dimensions must be equal"
            )

    def _with(self, shape: Sequence[int], size: int) -> tuple[int, ...]:
        return (*shape[: self.axis], size, *shape[self.axis + 1 :])

    def parts(self, side: int) -> tuple[Region, Region]:
        """Return the region that ends a chunk of the array, and that of new chunks."""
        edge = min(self.end, -(-self.begin // side) * side)
        low = (0,) * self.array.rank
        return (
            Region(self._with(low, self.begin), self._with(self.shape, edge)),
            Region(self._with(low, edge), self.shape),
        )

    def pieces(self, longer: TensorStore, domain: Region) -> BoxSlabs:
        """Return the boxes of a region, in the pieces that tasks take."""
        sides, read = chunk_sides(longer), chunk_sides(self.values).read
        most = max(1, memory_of_tasks(self.memory) // width_of(None) // max(1, sides.itemsize))
        anchor = (0,) * self.array.rank
        boxes = cut(domain, sides.write, read, anchor, most, lambda each: held_for(each, read))
        return BoxSlabs.thinnest(boxes, sides.write, read)

    def at_once(self, boxes: Regions) -> int:
        """Return how many tasks the memory has room for."""
        sides = chunk_sides(self.values)
        return memory_of_tasks(self.memory) // (max(1, sides.itemsize) * held_for(boxes, sides.read))


@dataclass(frozen=True, slots=True)
class _Note:
    """An append as it is noted beside its array until its caller is told: from which shape to which, and how far."""

    before: list[int]
    after: list[int]
    journal: str
    stage: Literal["writes", "ends", "is there"] = "writes"
    """The metadata may be written from `ends` on."""


@dataclass(frozen=True, slots=True)
class _Ledger:
    """The notes of appends beside an array, as one of them that holds the claim sees them."""

    scratch: Scratch
    driver: ChunkedDriver
    claim: Claim
    name: str
    """The name of this append, in every call of it."""
    described: _Described
    has_id: bool

    @property
    def store(self) -> KvStore:
        """The directory of the notes."""
        return self.scratch.store

    @property
    def key(self) -> str:
        """The key of the note of this append, until its caller is told."""
        return _UNTOLD + self.name

    async def note(self, note: _Note) -> None:
        """Note how far this append is."""
        await self.store.write(self.key, json.dumps(asdict(note)))

    async def settle(self, growth: _Growth) -> tuple[_Note, bool]:
        """Return the note of this append, and whether an earlier call has begun it; see to what others have left."""
        entry, began = self.driver.entry, False
        known = {
            "name": self.name,
            "of": self.described,
            "shape": growth.array.shape,
            "generation": entry.generation.hex(),
        }
        own = _Note(list(growth.array.shape), list(growth.shape), job_name(known))
        for key in await self.store.list(KeyRange.prefix(_UNTOLD)):
            answer = await self.store.read(key)
            if answer.state != "value":
                continue
            note, is_own = self._parsed(answer.value, key.decode()), key == self.key.encode()
            if note.stage == "ends" and own.before == note.after:
                note = replace(note, stage="is there")
                await self.scratch.clear(f"{note.journal}/")
                await self._replace(key, json.dumps(asdict(note)), answer.stamp.generation)
            if note.stage == "ends" and own.before != note.before:
                raise FailedPreconditionError(
                    f"An append from {tuple(note.before)} to {tuple(note.after)} was killed while it wrote the"
                    f" metadata, and the array has been resized to {growth.array.shape} since; look whether its values"
                    f" are there, and then delete {self.store.prefix.describe(key.decode())}"
                )
            if is_own and (note.stage == "is there" or note.journal == own.journal):
                own, began = note, True
            elif note.stage != "is there":
                await self._undo(note)
                await self._replace(key, None, answer.stamp.generation)
        return own, began

    def _parsed(self, value: Any, key: str) -> _Note:
        try:
            return _Note(**json.loads(value))
        except (ValueError, TypeError):
            raise FailedPreconditionError(
                f"{self.driver.entry.describe()} is being appended to by another version of the program, which has left"
                f" {self.store.prefix.describe(key)}; wait until that has ended, or delete it if nothing runs"
            ) from None

    async def _undo(self, note: _Note) -> None:
        """Remove the data of an append that was killed: they are outside the array, but would be in it one day."""
        entry = self.driver.entry
        stored = await entry.reread(fresh_after=math.inf)
        await delete_outside(entry, entry.format.resized(stored, tuple(note.after)), stored)
        await self.scratch.clear(f"{note.journal}/")

    async def _replace(self, key: bytes, value: str | None, known: bytes) -> None:
        """Replace a note unless its append, or the same one called again, has changed it meanwhile."""
        features = self.store.prefix.driver.features
        guarded = features.conditional_write and (value is not None or features.conditional_delete)
        await self.store.write(key, value, if_equal=known if guarded else None)

    async def is_done(self, note: _Note, shape: Sequence[int]) -> bool:
        """Whether this append has ended before, and what it has appended is still there."""
        if self.has_id and note.stage == "is there":  # its call was killed before it could keep the name
            await self._keep(note)
        elif self.has_id:
            answer = await self.store.read(_KEPT + self.name)
            if answer.state == "value":
                note = self._parsed(answer.value, _KEPT + self.name)
        return note.stage == "is there" and all(now >= then for now, then in zip(shape, note.after, strict=True))

    async def commit(self, note: _Note, shape: Sequence[int]) -> None:
        """Write the metadata, if the array is still what it was, or what a write without an answer has made of it."""
        driver, ends = self.driver, replace(note, stage="ends")
        await self.note(ends)

        async def ask(stored: ChunkedArray) -> None:
            await self.claim.check()
            if list(stored.shape) not in (note.before, note.after) or not driver.entry.is_same(driver.array, stored):
                await self.note(note)
                raise FailedPreconditionError(
                    f"{driver.entry.describe()} was changed to shape {stored.shape} by somebody else while values were"
                    " appended to it; append them again"
                )

        bounds = ResizeBounds([None] * len(shape), list(shape))
        await driver.resize(await driver.resolve(identity(driver.domain())), bounds, ResizeOptions(ask=ask))
        if self.has_id:
            await self._keep(replace(ends, stage="is there"))

    async def _keep(self, note: _Note) -> None:
        await self.store.write(_KEPT + self.name, json.dumps(asdict(note)))


async def _opened(target: Any, context: Context) -> tuple[ChunkedDriver, TensorStore]:
    if isinstance(target, TensorStore) and target.writable:
        found = target
    else:
        opened = await opened_source(target, context)
        if not isinstance(opened, TensorStore):
            raise StoreError("Values are appended to an array; open one of the arrays of the group")
        found = await open_array(opened.spec(retain_context=True), context=context)
    driver = found._driver
    if not isinstance(driver, ChunkedDriver):
        raise StoreError(f"Values are appended to arrays of zarr and N5, and not to those of {driver.kind.id!r}")
    if found.transaction is not None:
        raise StoreError("An append is a step of its own; open the array outside of the transaction")
    return driver, found


async def _as_stored(driver: ChunkedDriver, found: TensorStore) -> TensorStore:
    """Return an array with the extent that it has now where it is stored."""
    stored = await driver.entry.reread(fresh_after=math.inf)
    driver.entry.check(driver.array, stored)
    bounds = zip(found.domain.implicit_upper_bounds, found.shape, stored.shape, strict=False)
    if not is_whole(found) or not all(implicit or shown == size for implicit, shown, size in bounds):
        raise StoreError("Values are appended to a whole array, and not to a view of it")
    return found._with(await driver.resolve(identity(driver.domain())))


async def _source(source: Any, found: TensorStore, context: Context) -> TensorStore:
    if not isinstance(source, TensorStore | Group | KvStore | str | Mapping | PathLike):
        source = wrapped(_values(source, found))
    opened = await opened_source(source, context)
    if not isinstance(opened, TensorStore):
        raise StoreError("What is appended is an array; open one of the arrays of the group")
    meant, wanted = [await execution.offload(meaning_of, each) for each in (opened, found)]
    for name in sorted(wanted | meant) if meant and wanted else ():
        one, other = meant.get(name), wanted.get(name)
        if not same(one, other):
            raise FailedPreconditionError(
                f"{name} of what is appended is {show(one)}, and of the array {show(other)}; convert the values, and"
                " append these instead of the array"
            )
    if not is_lossless(opened.dtype, found.dtype):
        raise TypeError(
            f"What is appended is {opened.dtype.name}, which is more than the {found.dtype.name} of the array can hold;"
            f' append `array.astype("{found.dtype.name}")` if values may change'
        )
    return opened if opened.dtype == found.dtype else opened.astype(found.dtype)


def _values(source: Any, found: TensorStore) -> Any:
    """Return values in memory with the type of an array, as assignment takes them; those in lists must not change."""
    try:
        with np.errstate(over="ignore"):
            values = source_array(source, found.dtype, found.rank)
    except TypeError as error:
        raise TypeError(f"{error}; convert what is appended, if values may change") from None
    given = np.asarray(source) if not hasattr(source, "__array__") and values.dtype.kind != "O" else values
    if given is not values and given.dtype.kind in "biufc":
        try:
            Cast(dtype(given.dtype), found.dtype, "same_kind").checked(given, (0,) * given.ndim)
        except FailedPreconditionError as error:
            raise TypeError(f"{error.message}; convert what is appended") from None
    return values


def _axis(found: TensorStore, *given: int | str | None) -> int:
    """Return the dimension that is given first, by number or name."""
    dimension = next(each for each in given if each is not None)
    if isinstance(dimension, str):
        if dimension not in found.domain.labels:
            raise StoreError(f"The array has no dimension {dimension!r}; it has {', '.join(found.domain.labels)}")
        return found.domain.labels.index(dimension)
    if not -found.rank <= dimension < found.rank:
        raise StoreError(f"An array of rank {found.rank} has no dimension {dimension}")
    return dimension % found.rank


async def _append(growth: _Growth, ledger: _Ledger, executor: Executor | None, progress: Any) -> CopyReport:
    note, began = await ledger.settle(growth)
    if growth.begin == growth.end or await ledger.is_done(note, growth.array.shape):
        await ledger.scratch.clear(f"{note.journal}/")
        return CopyReport((), 0, 0, 0, 0.0, skipped=("",))
    await ledger.note(note)
    writing = _Writing(growth, ledger.driver.kvstore.as_directory(), Journal(ledger.store, note.journal), began)
    report = await writing.run(executor, progress)
    if await _are_stored(growth.values) and await fingerprint(growth.values) != ledger.described[1]:
        raise FailedPreconditionError(
            f"What is appended to {ledger.driver.entry.describe()} was written meanwhile, and the array is as it was;"
            " append it again when nobody writes to it"
        )
    await ledger.commit(note, growth.shape)
    if report.tasks + report.resumed > 1:
        await ledger.scratch.clear(f"{note.journal}/")
    return report


@dataclass(frozen=True, slots=True)
class _Writing:
    """The data of an append on their way to where the array will reach; `began` says that an earlier call did so."""

    growth: _Growth
    place: OpenKv
    journal: Journal
    began: bool

    async def run(self, executor: Executor | None, progress: Any) -> CopyReport:
        """Write the data; in chunks that hold old values, too, they are durable before they replace these."""
        growth, journal = self.growth, self.journal
        quick = await unsynced(self.place)
        longer = await self._longer(quick or self.place)
        edge, rest = growth.parts(chunk_sides(longer).write[growth.axis] if quick is not None else 1)
        first, pieces, done = growth.pieces(longer, edge), await self._pieces(longer, rest), set[int]()
        if self.began:
            done = (await journal.finished()).get("box", done)
        order = Order(f"{journal.name}-{journal.run}", growth.values.translate_to[growth.low])
        item = longer.dtype.numpy_dtype.itemsize
        sizes = [item * math.prod(each.shape) for each in (edge, rest)]
        reporter = reporter_of(progress, "append", len(first) + len(pieces), sum(sizes))
        reporter.resumed(len(done), sizes[1] * len(done) // max(1, len(pieces)))

        def note(task: Task, _answers: Any) -> None:
            if len(pieces) > 1:
                journal.note(task.work, task.numbers)

        if len(first):
            safe = replace(order, name=f"{order.name}-edge", target=await self._longer(self.place))
            safe = replace(safe, targets=first.boxes, pieces=first)
            todo = box_pass("box", first, sizes[0])
            await work_on(safe, todo, executor, reporter, lambda *_: None, growth.at_once(first.boxes))
        order = replace(order, target=longer, targets=pieces.boxes, pieces=pieces)
        if quick is not None:
            order = replace(order, durable=KvStore.of(root_of(self.place)))
        try:
            todo = box_pass("box", pieces, sizes[1]).after(done)
            await work_on(order, todo, executor, reporter, note, growth.at_once(pieces.boxes))
        finally:
            await journal.settle()
        reporter.ended()
        state = reporter.state
        return CopyReport(("",), state.tasks, len(done), state.nbytes, state.elapsed_s, state.retries)

    async def _longer(self, place: OpenKv) -> TensorStore:
        """Return the array as it will be, in a store that may be one where writes wait for a sync."""
        spec = self.growth.array.spec().to_json()
        words = "dimensions" if spec["driver"] == "n5" else "shape"
        spec["metadata"] = {**spec["metadata"], words: list(self.growth.shape)}
        spec.pop("transform", None)
        spec["kvstore"] = place.effective_spec()
        return await open_array(spec, assume_metadata=True, open=True)

    async def _pieces(self, longer: TensorStore, domain: Region) -> BoxSlabs:
        """Return the pieces of new chunks: those that an earlier call has followed, or those that this one will."""
        plan = await self.journal.plan() if self.began else None
        pieces = self.growth.pieces(longer, domain)
        if plan is not None:
            return BoxSlabs(replace(pieces.boxes, step=tuple(plan["step"])), *plan["pieces"])
        if len(pieces) > 1:
            await self.journal.follow({"step": list(pieces.boxes.step), "pieces": [pieces.dimension, pieces.side]})
        return pieces


async def _described(values: TensorStore) -> _Described:
    """Return what tells these values from others: where they are, as written last, or a digest of those in memory."""
    if await _are_stored(values):
        return [values.spec().to_json(), await fingerprint(values)]
    data = np.ascontiguousarray(await values.read())
    content = data.tobytes() if not data.dtype.hasobject else repr(data.tolist()).encode()
    return [list(data.shape), hashlib.sha256(content).hexdigest()]


async def _are_stored(values: TensorStore) -> bool:
    leaves = await leaves_of(values._driver)
    return bool(leaves) and all(leaf.kvstore is not None for leaf in leaves)
