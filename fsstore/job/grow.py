"""`append`: making an array longer along a dimension: data first, then one write of its metadata.

Readers see the old extent with its values or the new one with all of its values.  An append claims the place first,
under a condition, so that two appends never write over each other; one that was killed is continued by the same call.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fsstore.arrays.opening import open as open_array
from fsstore.arrays.store import TensorStore
from fsstore.arrays.wrapping import array as wrapped
from fsstore.chunk.plan.regions import Region, Regions, cut
from fsstore.chunk.plan.slabs import BoxSlabs
from fsstore.context.context import Context, context_of
from fsstore.errors import FailedPreconditionError, StoreError, UnimplementedError
from fsstore.job.array_copy import chunk_sides
from fsstore.job.ends import meaning_of, opened_source
from fsstore.job.order import Order, root_of, unsynced
from fsstore.job.passes import box_pass
from fsstore.job.plan import held_for, memory_of_tasks, parse_bytes
from fsstore.job.report import CopyReport
from fsstore.job.scratch import Scratch
from fsstore.job.work import work_on
from fsstore.kvstore.contract.driver import NO_VALUE
from fsstore.kvstore.spec.opening import OpenKv
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.task.journal import Journal, job_name
from fsstore.task.progress import reporter_of
from fsstore.task.runner import Task, width_of
from fsstore.values.json_value import same, show

__all__ = ["append"]


def append(
    target: Any,
    source: Any,
    dimension: int | str = 0,
    *,
    executor: Executor | None = None,
    max_memory: int | str = "512MB",
    progress: Any = None,
    context: Context | None = None,
) -> Future[CopyReport]:
    """Begin to append values, an array, or the array at a place, to an array along a dimension given by number or name.

    Data are written first, and then the metadata, once.  Raises `FailedPreconditionError` if another append to the
    array is under way, or if the attributes of an array give its values another meaning: units, scale, missing data.

    >>> import fsstore as ts
    >>> store = ts.open("memory://a/|zarr3:", create=True, dtype="int16", shape=[2]).result()
    >>> print(append(store, [5, 6]).result().arrays)
    ('',)
    >>> store.resolve().result().shape
    (4,)
    """
    memory, chosen = parse_bytes(max_memory), context_of(context)

    async def run() -> CopyReport:
        found = await _opened(target, chosen)
        values = await _source(source, found, chosen)
        axis = _axis(found, dimension)
        return await _append(_Growth(found, values, axis, memory), executor, progress)

    return execution.start(run())


@dataclass(frozen=True, slots=True)
class _Growth:
    """An array, what is appended to it, and along which dimension."""

    array: TensorStore
    values: TensorStore
    axis: int
    memory: int

    @property
    def begin(self) -> int:
        return int(self.array.shape[self.axis])

    @property
    def shape(self) -> tuple[int, ...]:
        shape = list(self.array.shape)
        shape[self.axis] += self.values.shape[self.axis]
        return tuple(shape)

    @property
    def low(self) -> tuple[int, ...]:
        """Where what is appended begins."""
        return tuple(self.begin if number == self.axis else 0 for number in range(self.array.rank))

    def pieces(self, longer: TensorStore) -> BoxSlabs:
        """Return the boxes of what is appended, in the pieces that tasks take."""
        sides, read = chunk_sides(longer), chunk_sides(self.values).read
        most = max(1, memory_of_tasks(self.memory) // width_of(None) // max(1, sides.itemsize))
        domain, anchor = Region(self.low, self.shape), (0,) * self.array.rank
        boxes = cut(domain, sides.write, read, anchor, most, lambda each: held_for(each, read))
        return BoxSlabs.thinnest(boxes, sides.write, read)

    def at_once(self, boxes: Regions) -> int:
        """Return how many tasks the memory has room for."""
        sides = chunk_sides(self.values)
        return memory_of_tasks(self.memory) // (max(1, sides.itemsize) * held_for(boxes, sides.read))


async def _opened(target: Any, context: Context) -> TensorStore:
    if isinstance(target, TensorStore) and target.writable:
        found = target
    else:
        opened = await opened_source(target, context)
        if not isinstance(opened, TensorStore):
            raise StoreError("Values are appended to an array; open one of the arrays of the group")
        found = await open_array(opened.spec(retain_context=True), context=context)
    if found._driver.kvstore is None or found._driver.domain().shape != found.shape:
        raise StoreError("Values are appended to a whole array, and not to a view of it")
    return await found.resolve()


async def _source(source: Any, found: TensorStore, context: Context) -> TensorStore:
    if not isinstance(source, TensorStore | str) and not hasattr(source, "__fspath__"):
        source = wrapped(np.asarray(source, found.dtype.numpy_dtype))
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
    return opened if opened.dtype == found.dtype else opened.astype(found.dtype)


def _axis(found: TensorStore, dimension: int | str) -> int:
    if isinstance(dimension, str):
        if dimension not in found.domain.labels:
            raise StoreError(
                f"The array has no dimension {dimension!r}; it has {', '.join(found.domain.labels)}"
            )
        return found.domain.labels.index(dimension)
    if not -found.rank <= dimension < found.rank:
        raise StoreError(f"An array of rank {found.rank} has no dimension {dimension}")
    return dimension % found.rank


async def _append(growth: _Growth, executor: Executor | None, progress: Any) -> CopyReport:
    array, values, axis = growth.array, growth.values, growth.axis
    rest = [size for number, size in enumerate(array.shape) if number != axis]
    if values.rank != array.rank or rest != [
        size for number, size in enumerate(values.shape) if number != axis
    ]:
        raise FailedPreconditionError(
            f"Values of shape {values.shape} cannot be appended to an array of shape {array.shape} along"
            f" dimension {axis}"
        )
    store = array._driver.kvstore
    assert store is not None
    store = store.as_directory()
    scratch = Scratch.of(store)
    name = job_name({"append": await _described(values), "begin": growth.begin, "shape": list(growth.shape)})
    await scratch.begin()
    await _claim(scratch, growth, name)
    journal = Journal(scratch.store, name)
    reporter, before = await _write(growth, store, journal, executor, progress)
    newest = await array.resolve()
    if newest.shape != array.shape:
        raise FailedPreconditionError(
            f"{store.prefix.describe()} was resized to {newest.shape} while values were appended to it"
        )
    await newest.resize(exclusive_max=growth.shape)
    await scratch.clear()
    reporter.ended()
    state = reporter.state
    return CopyReport(("",), state.tasks, before, state.nbytes, state.elapsed_s, state.retries)


async def _claim(scratch: Scratch, growth: _Growth, name: str) -> None:
    key = f"append-{growth.axis}-{growth.begin}"
    try:
        stamp = await scratch.store.write(key, name, if_equal=NO_VALUE)
    except UnimplementedError:  # a store that takes no conditions takes no claims
        return
    if stamp.generation:
        return
    holder = bytes((await scratch.store.read(key)).value).decode(errors="replace")
    if holder != name:
        raise FailedPreconditionError(
            f"Something else is being appended at {growth.begin} to {scratch.store.url}, or was when it was killed;"
            f" finish it by the same call, or delete {key!r} there"
        )


async def _write(
    growth: _Growth, store: OpenKv, journal: Journal, executor: Executor | None, progress: Any
) -> tuple[Any, int]:
    array = growth.array
    quick = await unsynced(store)
    spec = array.spec().to_json()
    words = "dimensions" if spec["driver"] == "n5" else "shape"
    spec["metadata"] = {**spec["metadata"], words: list(growth.shape)}
    spec.pop("transform", None)
    spec["kvstore"] = (quick or store).effective_spec()
    longer = await open_array(spec, assume_metadata=True, open=True)
    pieces = growth.pieces(longer)
    stored = await journal.plan()
    if stored is not None:
        pieces = BoxSlabs(replace(pieces.boxes, step=tuple(stored["step"])), *stored["pieces"])
    await journal.follow({"step": list(pieces.boxes.step), "pieces": [pieces.dimension, pieces.side]})
    source = growth.values.translate_to[growth.low]
    order = Order(f"{journal.name}-{journal.run}", source, longer, targets=pieces.boxes, pieces=pieces)
    if quick is not None:
        order = replace(order, durable=KvStore.of(root_of(store)))
    nbytes = int(growth.values.size) * array.dtype.numpy_dtype.itemsize
    reporter = reporter_of(progress, "append", len(pieces), nbytes)
    done = (await journal.finished()).get("box", set())
    reporter.resumed(len(done), nbytes * len(done) // max(1, len(pieces)))
    left = box_pass("box", pieces, nbytes).after(done)

    def note(task: Task, _answers: Any) -> None:
        journal.note(task.work, task.numbers)

    try:
        await work_on(order, left, executor, reporter, note, growth.at_once(pieces.boxes))
    finally:
        await journal.settle()
    return reporter, len(done)


async def _described(values: TensorStore) -> Any:
    """Return what tells these values from others: where they are, or, of values in memory, a digest of them."""
    if values._driver.kvstore is not None:
        return values.spec().to_json()
    data = np.ascontiguousarray(await values.read())
    return hashlib.sha256(
        data.tobytes() if not data.dtype.hasobject else repr(data.tolist()).encode()
    ).hexdigest()
