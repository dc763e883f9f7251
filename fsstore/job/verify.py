"""`verify`: whether arrays can be read as they are, and whether a copy holds what its source does; and repairing it.

Four levels, each with those before it: what is stored, how large it is, whether it can be decoded, what it says.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from typing import Any, get_args
from uuid import uuid4

from fsstore.arrays.store import TensorStore
from fsstore.chunk.regions import BoxSlabs, Region, Regions, cut
from fsstore.context.context import Context, context_of
from fsstore.dataset.group import Group
from fsstore.driver.cast import Casting, checked_casting
from fsstore.errors import StoreError
from fsstore.job.ends import opened_source
from fsstore.job.order import Order
from fsstore.job.passes import box_pass
from fsstore.job.plan import parse_bytes
from fsstore.job.report import Finding, Level, Verdict
from fsstore.job.stored_keys import StoredChunks, stored_chunks
from fsstore.job.tuning import REPAIR_ROUNDS, VERIFIED_COPIES
from fsstore.job.work import work_on
from fsstore.kvstore.contract.driver import Write
from fsstore.kvstore.spec.parse import as_directory
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.task.progress import reporter_of
from fsstore.task.runner import Task, width_of

__all__ = ["verify"]

_MOST_FINDINGS = 1000  # more of them say nothing new


@dataclass(frozen=True, slots=True)
class _Check:
    """The wishes of a caller."""

    level: Level
    memory: int
    executor: Executor | None
    progress: Any
    casting: Casting

    @property
    def reads(self) -> bool:
        return self.level in ("decode", "values")


def verify(
    place: Any,
    against: Any = None,
    *,
    level: Level = "values",
    casting: Casting = "same_value",
    repair: bool = False,
    executor: Executor | None = None,
    max_memory: int | str = "256MB",
    progress: Any = None,
    context: Context | None = None,
) -> Future[Verdict]:
    """Begin to check an array, or all arrays below a group; the result is true if nothing is wrong.

    `keys` compares names, shapes and what is stored; `sizes` also how large it is; `decode` reads everything; `values`
    also compares with `against`, element by element, where not-a-number equals itself.  Without `against`, `values` is
    `decode`.  Keys and sizes are compared with `against` where both have the same layout.

    `repair` copies again from `against` what is damaged, missing or differs, deletes what is no part of the array, and
    checks once more.

    >>> import fsstore as ts
    >>> store = ts.open("memory://a/|zarr3:", create=True, dtype="int16", shape=[4]).result()
    >>> bool(verify(store).result())
    True
    """
    if level not in get_args(Level):
        raise ValueError(f'level is "keys", "sizes", "decode" or "values", not {level!r}')
    if repair and against is None:
        raise ValueError("A repair copies from `against`; say what that is")
    check = _Check(level, parse_bytes(max_memory), executor, progress, checked_casting(casting))
    chosen = context_of(context)

    async def run() -> Verdict:
        ours = await _arrays(await opened_source(place, chosen))
        theirs = {} if against is None else await _arrays(await opened_source(against, chosen))
        found = await _verdict(ours, theirs, check, compared=against is not None)
        repaired = 0
        for _ in range(REPAIR_ROUNDS if repair else 0):
            done = await _repaired(ours, theirs, found, chosen)
            if not done:
                break
            repaired += done
            found = replace(
                await _verdict(ours, theirs, check, compared=against is not None), repaired=repaired
            )
        return found

    return execution.start(run())


async def _verdict(
    ours: Mapping[str, TensorStore], theirs: Mapping[str, TensorStore], check: _Check, *, compared: bool
) -> Verdict:
    total = _Totals()
    for path, store in ours.items():
        await _checked(path, store, theirs.get(path), check, total)
    return Verdict(
        check.level,
        len(ours),
        total.nbytes,
        tuple(total.findings),
        tuple(sorted(set(theirs) - set(ours))),
        tuple(sorted(set(ours) - set(theirs))) if compared else (),
        total.stored.chunks if total.counted else None,
        total.stored.absent if total.counted else None,
        max(0, total.fill - total.stored.absent) if total.counted and check.reads else None,
    )


@dataclass(slots=True)
class _Totals:
    """The findings so far, in all arrays."""

    nbytes: int = 0
    fill: int = 0
    counted: bool = False
    stored: StoredChunks = field(default_factory=StoredChunks)
    findings: list[Finding] = field(default_factory=list)

    def add(self, findings: list[Finding]) -> None:
        self.findings += findings[: _MOST_FINDINGS - len(self.findings)]


async def _arrays(opened: TensorStore | Group) -> dict[str, TensorStore]:
    if isinstance(opened, TensorStore):
        return {"": opened}
    listed = await opened._place.listed(opened.path)
    for error in listed.damaged.values():
        raise error
    return {path: await opened.open(path) for path, node in listed.nodes.items() if node.kind == "array"}


async def _checked(
    path: str, store: TensorStore, other: TensorStore | None, check: _Check, total: _Totals
) -> None:
    if other is not None and store.shape != other.shape:
        what = f"its shape is {store.shape} and that of the other {other.shape}"
        domain = store.domain
        total.add([Finding(path, domain.inclusive_min, domain.exclusive_max, what, "shape")])
        return
    other = None if other is None else _beside(store, other)
    stored = await stored_chunks(path, store, other, sizes=check.level != "keys", most=_MOST_FINDINGS)
    if stored is not None:
        total.counted = True
        total.stored.chunks += stored.chunks
        total.stored.absent += stored.absent
        # what reading finds is told once
        total.add([each for each in stored.findings if each.kind == "extra" or not check.reads])
    if check.reads:
        compared = other if check.level == "values" else None
        await _read_all(path, store, compared, check, total)


async def _read_all(
    path: str, store: TensorStore, other: TensorStore | None, check: _Check, total: _Totals
) -> None:
    """Read an array box by box, and compare it with another."""
    itemsize = max(1, store.dtype.numpy_dtype.itemsize)
    sharing = width_of(None) if check.executor is None else 1
    memory = check.memory // sharing
    whole = Region(store.domain.inclusive_min, store.domain.exclusive_max)
    chunk, anchor = _write_chunk(store), (0,) * store.rank
    boxes = cut(whole, chunk, chunk, anchor, max(1, memory // (VERIFIED_COPIES * itemsize)))
    single = Regions(whole.start, whole.stop, chunk, anchor)
    pieces = BoxSlabs.thinnest(boxes, chunk, chunk)
    order = Order(
        f"verify-{uuid4().hex}",
        store,
        other,
        targets=boxes,
        sources=single,
        pieces=pieces,
        casting=check.casting,
    )
    name = f"verify {path}".strip()
    reporter = reporter_of(check.progress, name, len(pieces), int(store.size) * itemsize)

    def take(_task: Task, answers: Any) -> None:
        for nbytes, fill, wrong in answers:
            total.nbytes += nbytes
            total.fill += fill
            total.add([Finding(path, tuple(low), tuple(high), what, kind) for low, high, what, kind in wrong])

    await work_on(order, box_pass("check", pieces, 0), check.executor, reporter, take)
    total.findings.sort(key=lambda each: (each.array, each.start))
    reporter.ended()


def _beside(store: TensorStore, other: TensorStore) -> TensorStore:
    """Return another array as beginning where a store does: what was copied of a region begins elsewhere."""
    return other.translate_to[store.domain.origin] if store.rank else other


def _write_chunk(store: TensorStore) -> tuple[int, ...]:
    shape = store.chunk_layout.write_chunk.shape or (None,) * store.rank
    return tuple(side or max(1, size) for side, size in zip(shape, store.shape, strict=True))


async def _repaired(
    ours: Mapping[str, TensorStore], theirs: Mapping[str, TensorStore], found: Verdict, context: Context
) -> int:
    """Copy again what is wrong; return how many boxes and keys that were."""
    done = 0
    for each in found.findings:
        store, other = ours[each.array], theirs.get(each.array)
        if each.kind == "shape" or (other is None and each.kind != "extra"):
            continue
        writable = await _writable(store, context)
        if each.kind == "extra":
            opened = writable._driver.kvstore
            assert opened is not None
            await opened.at(as_directory(opened.path)).prefix.write_many([Write(each.key, None)])
        else:
            assert other is not None
            box = tuple(map(slice, each.start, each.stop))
            values = await _beside(store, other)[box].astype(store.dtype).read()
            # a damaged chunk cannot be written in part: whole ones are, which the box is
            await writable[box].write(values)
        done += 1
    return done


async def _writable(store: TensorStore, context: Context) -> TensorStore:
    if store.writable:
        return store
    from fsstore.arrays.opening import open as open_array

    if store._driver.kvstore is None:
        raise StoreError(f"{store!r} cannot be written, and so not repaired")
    return await open_array(store.spec(retain_context=True), context=context)
