"""`verify`: whether arrays can be read as they are, and whether a copy is what its source is; and repairing it.

Four levels, each with those before it: what is stored, how large it is, whether it can be decoded, what it says.
Against another place, each level also compares which arrays and groups there are, their attributes, and the shape,
type, fill value and names of dimensions of arrays, as a copy of the other would have them in the format that is
checked: marks of missing data and names are written differently in each.  Chunks and codecs may differ.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, get_args
from uuid import uuid4

import numpy as np

from fsstore.arrays.store import TensorStore
from fsstore.arrays.store import open as open_array
from fsstore.chunk.model import ChunkModel
from fsstore.chunk.regions import BoxSlabs, Region, Regions, cut
from fsstore.context.context import Context, context_of
from fsstore.dataset.members import NewArray
from fsstore.driver.cast import Cast, Casting, checked_casting, conversion
from fsstore.driver.chunked_array import ChunkedDriver
from fsstore.errors import DataLossError, StoreError
from fsstore.format.attributes import ARRAY_DIMENSIONS, WORDS, words_of
from fsstore.job.array_copy import same_layout
from fsstore.job.ends import array_like, attributes_of, opened_source, wishes_of
from fsstore.job.passes import Order, box_pass, chunks_at
from fsstore.job.plan import COMPARED, Finding, Ignored, Level, Verdict, parse_bytes
from fsstore.job.work import differ, work_on
from fsstore.kvstore.contract.driver import KvPrefix, Read, Write
from fsstore.kvstore.spec_parse import as_directory
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.runtime.tuning import PAGE
from fsstore.task.runner import Task, reporter_of, width_of
from fsstore.values.json_value import same, show

# Checking what is stored of an array by its keys and sizes, without reading a value.
#
# Keys are compared as they are listed, a batch at a time, so the check of a hundred million chunks takes no
# memory.

_PLAIN = ("zarr3", "zarr", "n5")
_COPIES_OF_BOXES = 4  # in memory while they are compared: both arrays, and what comparing them takes
_MOST_ROUNDS = 100  # of repairs, each of as many findings as are reported


@dataclass(slots=True)
class StoredChunks:
    """How many chunks are stored, how many are not, and what is wrong with them."""

    chunks: int = 0
    absent: int = 0
    findings: list[Finding] = field(default_factory=list)
    compared: frozenset[str] = frozenset()
    """Whether `keys` and `sizes` were those of an array of the same layout."""


@dataclass(frozen=True, slots=True)
class _KeyGrid:
    path: str
    shape: tuple[int, ...]
    model: ChunkModel
    place: KvPrefix

    @property
    def count(self) -> int:
        sides = zip(self.model.axes, self.shape, strict=False)  # fields have dimensions that are not cut
        return prod(axis.chunk_of(size - 1) + 1 if size else 0 for axis, size in sides)

    def box(self, key: str) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Return where the chunk of a key begins and ends; None for keys that are none of the array's."""
        numbers = self.model.numbers(key)
        if numbers is None:
            return None
        low, high = [], []
        for number, axis, size in zip(numbers, self.model.axes, self.shape, strict=False):
            begin = axis.start(number)
            if begin >= size:
                return None
            low.append(begin)
            high.append(min(begin + axis.size(number), size))
        return tuple(low), tuple(high)

    def finding(self, key: str, what: str, kind: str) -> Finding:
        low, high = self.box(key) or ((), ())
        return Finding(self.path, low, high, what, kind, key)


async def stored_chunks(
    path: str, store: TensorStore, other: TensorStore | None, *, sizes: bool, most: int
) -> StoredChunks | None:
    """Return what the keys of an array say; None for a view, or an array of a format that has no keys of chunks."""
    grid = _grid_of(path, store)
    if grid is None:
        return None
    theirs = _grid_of(path, other) if other is not None and same_layout(store, other) else None
    found = StoredChunks()
    if theirs is not None:
        found.compared = frozenset(("keys", "sizes") if sizes else ("keys",))
    async for batch in chunks_at(grid.place):
        for entries in _portions(batch):
            keys = [key for key, _ in entries if grid.box(key) is not None]
            strangers = [key for key, _ in entries if grid.box(key) is None]
            found.chunks += len(keys)
            found.findings += [
                grid.finding(key, f"{key!r} is stored, and no part of the array", "extra") for key in strangers
            ]
            if sizes:
                found.findings += [each async for each in _wrong_sizes(grid, theirs, entries, keys)]
            del found.findings[most:]
    found.absent = max(0, grid.count - found.chunks)
    if theirs is not None:
        found.findings += [each async for each in _missing(grid, theirs)]
        del found.findings[most:]
    return found


def _grid_of(path: str, store: TensorStore) -> _KeyGrid | None:
    driver = store._driver
    if not isinstance(driver, ChunkedDriver) or driver.kind.id not in _PLAIN:
        return None
    if store.domain.shape != driver.domain().shape or not driver.kvstore.driver.features.listable:
        return None
    place = driver.kvstore.at(as_directory(driver.kvstore.path)).prefix
    return _KeyGrid(path, driver.array.shape, driver.array.model, place)


def _portions(batch: list[tuple[str, int]]) -> list[list[tuple[str, int]]]:
    return [batch[at : at + PAGE] for at in range(0, len(batch), PAGE)]


async def _wrong_sizes(
    grid: _KeyGrid, theirs: _KeyGrid | None, entries: list[tuple[str, int]], keys: Sequence[str]
) -> AsyncIterator[Finding]:
    listed = dict(entries)
    ours = await _sizes(grid.place, keys, listed)
    others = [None] * len(keys) if theirs is None else await _sizes(theirs.place, keys, {})
    for key, size, other in zip(keys, ours, others, strict=True):
        numbers = grid.model.numbers(key)
        chain = grid.model.chain_of(numbers) if numbers is not None else grid.model.chain
        wanted = chain.encoded_size
        if size is not None and wanted is not None and size != wanted:
            yield grid.finding(key, f"{key!r} has {size} bytes, not {wanted}", "damaged")
        elif size == 0 and wanted is None:
            yield grid.finding(key, f"{key!r} is empty", "damaged")
        elif size is not None and other is not None and size != other:
            yield grid.finding(key, f"{key!r} has {size} bytes, and {other} in the other array", "differs")


async def _sizes(place: KvPrefix, keys: Sequence[str], listed: dict[str, int]) -> list[int | None]:
    """Return the sizes of values, None for those that are missing or whose size is not told."""
    known = {key: listed[key] for key in keys if listed.get(key)}
    asked = [key for key in keys if key not in known]
    answers = await place.read_many([Read(key, 0, 0) for key in asked])
    told = {key: answer.size for key, answer in zip(asked, answers, strict=True) if answer.state == "value"}
    return [known.get(key, told.get(key)) for key in keys]


async def _missing(grid: _KeyGrid, theirs: _KeyGrid) -> AsyncIterator[Finding]:
    async for batch in chunks_at(theirs.place):
        for entries in _portions(batch):
            keys = [key for key, _ in entries if grid.box(key) is not None]
            for key in await _not_stored(grid.place, keys):
                yield grid.finding(key, f"{key!r} is not stored, and is in the other array", "missing")


async def _not_stored(place: KvPrefix, keys: Sequence[str]) -> list[str]:
    answers = await place.read_many([Read(key, 0, 0) for key in keys])
    return [key for key, answer in zip(keys, answers, strict=True) if answer.state == "missing"]


_MOST_FINDINGS = 1000  # more of them say nothing new
_SAID = ("dtype", "fill_value", "dimension_names", "attributes")  # the wishes for a copy that are compared
_MENDED = ("damaged", "missing", "differs")
_THEIRS = "What it is compared with: "


@dataclass(frozen=True, slots=True)
class _Check:
    """The wishes of a caller."""

    level: Level
    ignore: frozenset[str]
    schema: Mapping[str, Any]
    casting: Casting
    memory: int
    executor: Executor | None
    progress: Any
    compared: bool

    @property
    def reads(self) -> bool:
        return self.level in ("decode", "values")

    def asks(self, name: str) -> bool:
        """Whether something of the metadata is compared."""
        return self.compared and name not in self.ignore


def verify(
    place: Any,
    against: Any = None,
    *,
    level: Level = "values",
    ignore: Iterable[Ignored] = (),
    schema: Mapping[str, Any] | None = None,
    casting: Casting = "same_value",
    repair: bool = False,
    executor: Executor | None = None,
    max_memory: int | str = "256MB",
    progress: Any = None,
    context: Context | None = None,
) -> Future[Verdict]:
    """Begin to check an array, or all arrays below a group; the result is true if nothing is wrong.

    `keys` looks at what is stored; `sizes` also at how large it is; `decode` reads everything; `values` also compares
    with `against`, element by element and bit by bit.  Every level compares the metadata with those of `against`, and
    keys and sizes where both have the same layout.  The result says what was compared.

    `ignore` names what may differ: `attributes`, `dimension_names`, `fill_value`, `dtype`, arrays and groups that are
    `missing` or `extra`, or the `bits` of values that are equal as numbers, such as zeros.  `schema` and `casting` are
    those of the `copy` that is checked: `against` is then compared as it was to be copied.

    `repair` copies again from `against` the chunks that are damaged, missing or differ, deletes what is no part of the
    array, and checks once more.

    >>> import fsstore as ts
    >>> store = ts.open("memory://a/|zarr3:", create=True, dtype="int16", shape=[4]).result()
    >>> bool(verify(store).result())
    True
    """
    if repair and against is None:
        raise ValueError("A repair copies from `against`; say what that is")
    check = _Check(
        _checked_level(level), _names_of(ignore), wishes_of(schema), checked_casting(casting), parse_bytes(max_memory),
        executor, progress, against is not None,
    )  # fmt: skip
    return execution.start(_verified(place, against, check, context_of(context), repair=repair))


async def _verified(place: Any, against: Any, check: _Check, chosen: Context, *, repair: bool) -> Verdict:
    ours = await _tree(place, chosen)
    theirs = _Members() if not check.compared else await _tree(against, chosen)
    found, repaired = await _verdict(ours, theirs, check), 0
    for _ in range(_MOST_ROUNDS if repair else 0):
        before, done = found.findings, await _repaired(ours, theirs, found, check, chosen)
        repaired += done
        if not done:
            break
        found = replace(await _verdict(ours, theirs, check), repaired=repaired)
        if found.findings == before:
            break
    return found


def _checked_level(level: Level) -> Level:
    if level not in get_args(Level):
        raise ValueError(f'level is "keys", "sizes", "decode" or "values", not {level!r}')
    return level


def _names_of(ignore: Iterable[str]) -> frozenset[str]:
    ignored = frozenset((ignore,) if isinstance(ignore, str) else ignore)
    for name in sorted(ignored - set(get_args(Ignored))):
        raise ValueError(f"ignore names some of {', '.join(get_args(Ignored))}, not {name!r}")
    return ignored


@dataclass(frozen=True, slots=True)
class _Members:
    """The arrays and the attributes of groups below a place, by path, and why others could not be opened."""

    arrays: dict[str, TensorStore] = field(default_factory=dict)
    groups: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    damaged: dict[str, StoreError] = field(default_factory=dict)

    @property
    def paths(self) -> set[str]:
        return {*self.arrays, *self.groups, *self.damaged}


async def _tree(place: Any, context: Context) -> _Members:
    try:
        opened = await opened_source(place, context)
    except DataLossError as error:
        return _Members(damaged={"": error})
    if isinstance(opened, TensorStore):
        return _Members({"": opened})
    listed = await opened._place.listed(opened.path)
    tree = _Members(groups={"": await execution.offload(opened.attrs.asdict)}, damaged=dict(listed.damaged))
    for path, node in listed.nodes.items():
        above = path.split("/")[:-1]
        for depth in range(1, len(above) + 1):
            tree.groups.setdefault("/".join(above[:depth]), {})
        if node.kind == "group" and path:
            tree.groups[path] = dict(node.attributes)
        elif path:
            try:
                tree.arrays[path] = await opened.open(path)
            except StoreError as error:
                tree.damaged[path] = error
    return tree


@dataclass(slots=True)
class _Totals:
    """The findings so far, in all arrays, and what was compared."""

    nbytes: int = 0
    fill: int = 0
    counted: bool = False
    stored: StoredChunks = field(default_factory=StoredChunks)
    findings: list[Finding] = field(default_factory=list)
    compared: set[str] = field(default_factory=set)

    def add(self, findings: list[Finding]) -> None:
        self.findings += findings[: _MOST_FINDINGS - len(self.findings)]


async def _verdict(ours: _Members, theirs: _Members, check: _Check) -> Verdict:
    total = _Totals()
    total.add([Finding(path, (), (), str(error)) for path, error in ours.damaged.items()])
    total.add([Finding(path, (), (), f"{_THEIRS}{error}", "against") for path, error in theirs.damaged.items()])
    missing = theirs.paths - ours.paths if check.asks("missing") else set()
    extra = ours.paths - theirs.paths if check.asks("extra") else set()
    total.compared |= {name for name in ("missing", "extra") if check.asks(name)}
    for path, attributes in ours.groups.items():
        if path in theirs.arrays:
            total.add([Finding(path, (), (), "it is a group, and the other an array", "node")])
        elif path in theirs.groups:
            _compare_attributes(path, attributes, theirs.groups[path], check, total)
    for path, store in ours.arrays.items():
        if path in theirs.groups:
            total.add([Finding(path, (), (), "it is an array, and the other a group", "node")])
        await _checked(path, store, theirs.arrays.get(path), check, total)
    return Verdict(
        check.level,
        len(ours.arrays),
        total.nbytes,
        tuple(total.findings),
        tuple(sorted(missing)),
        tuple(sorted(extra)),
        total.stored.chunks if total.counted else None,
        total.stored.absent if total.counted else None,
        max(0, total.fill - total.stored.absent) if total.counted and check.reads else None,
        compared=tuple(name for name in COMPARED if name in total.compared),
        ignored=tuple(sorted(check.ignore)),
    )


async def _checked(path: str, store: TensorStore, other: TensorStore | None, check: _Check, total: _Totals) -> None:
    if other is not None:
        total.compared.add("shape")
        await execution.offload(_compare_metadata, path, store, other, check, total)
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
        total.compared |= stored.compared
        # what reading finds is told once
        total.add([each for each in stored.findings if each.kind == "extra" or not check.reads])
    if check.reads:
        compared = other if check.level == "values" else None
        await _read_all(path, store, compared, check, total)


def _compare_metadata(path: str, store: TensorStore, other: TensorStore, check: _Check, total: _Totals) -> None:
    """Compare an array with what a copy of the other would be in its format."""
    words = words_of(store._driver.kind.id)
    found, fill = array_like(store, words or WORDS[3], {}, attributes_of(store) or {})
    wishes = {name: value for name, value in check.schema.items() if name in _SAID}
    try:
        wanted, wanted_fill = array_like(other, words or WORDS[3], wishes, attributes_of(other) or {})
    except StoreError as error:
        total.add([Finding(path, (), (), f"{_THEIRS}{error}", "against")])
        return
    said: dict[str, Any] = {"dtype": (found.dtype, wanted.dtype, found.dtype == wanted.dtype)}
    if words is not None:
        names = [_names(each, store.rank) for each in (found, wanted)]
        said["dimension_names"] = (*names, names[0] == names[1])
    if words is not None and words.zarr_format:
        if wanted_fill is None and words.zarr_format == 3:  # where nothing was said
            wanted_fill = fill if store.dtype.numpy_dtype.hasobject else np.zeros((), store.dtype.numpy_dtype)
        is_same = found.dtype != wanted.dtype or _is_same_fill(store, fill, wanted_fill)
        said["fill_value"] = (fill, wanted_fill, is_same)
    for name, (ours, theirs, is_same) in said.items():
        if check.asks(name):
            total.compared.add(name)
            if not is_same:
                total.add([Finding(path, (), (), f"its {name} is {ours}, and not {theirs}", name)])
    if words is not None:
        # N5 names dimensions in an attribute
        ours, theirs = (
            {name: value for name, value in each.attributes.items() if words.zarr_format or name != "axes"}
            for each in (found, wanted)
        )
        _compare_attributes(path, ours, theirs, check, total)


def _names(array: NewArray, rank: int) -> list[str]:
    names = array.dimension_names or [None] * rank
    return [name or f"dim_{number}" for number, name in enumerate(names)]


def _is_same_fill(store: TensorStore, fill: Any, wanted: Any) -> bool:
    if fill is None or wanted is None:
        return fill is None and wanted is None
    both = np.empty((2, 1), store.dtype.numpy_dtype)
    both[0, 0], both[1, 0] = fill, wanted
    return not differ(both[0], both[1]).any()


def _compare_attributes(
    path: str, ours: Mapping[str, Any], theirs: Mapping[str, Any], check: _Check, total: _Totals
) -> None:
    if not check.asks("attributes"):
        return
    total.compared.add("attributes")
    for name in sorted({*ours, *theirs} - {ARRAY_DIMENSIONS}):
        if name not in ours:
            what = "is missing"
        elif name not in theirs:
            what = "is not one of the other"
        elif not same(ours[name], theirs[name]):
            what = f"is {show(ours[name])}, and not {show(theirs[name])}"
        else:
            continue
        total.add([Finding(path, (), (), f"the attribute {show(name)} {what}", "attributes")])


async def _read_all(path: str, store: TensorStore, other: TensorStore | None, check: _Check, total: _Totals) -> None:
    """Read an array box by box, and compare it with another."""
    if other is not None and conversion(other.dtype, store.dtype) is None:
        what = f"its values are of type {store.dtype.name}, and cannot be compared with {other.dtype.name}"
        total.add([Finding(path, (), (), what, "dtype")])
        other = None
    if other is not None:
        total.compared.add("values")
    itemsize = max(1, store.dtype.numpy_dtype.itemsize)
    sharing = width_of(None) if check.executor is None else 1
    memory = check.memory // sharing
    whole = Region(store.domain.inclusive_min, store.domain.exclusive_max)
    chunk, anchor = _write_chunk(store), (0,) * store.rank
    boxes = cut(whole, chunk, chunk, anchor, max(1, memory // (_COPIES_OF_BOXES * itemsize)))
    single = Regions(whole.start, whole.stop, chunk, anchor)
    pieces = BoxSlabs.thinnest(boxes, chunk, chunk)
    order = Order(
        f"verify-{uuid4().hex}", store, other, targets=boxes, sources=single, pieces=pieces, casting=check.casting,
        bitwise="bits" not in check.ignore,
    )  # fmt: skip
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


async def _repaired(ours: _Members, theirs: _Members, found: Verdict, check: _Check, context: Context) -> int:
    """Copy again what is wrong in chunks; return how many boxes and keys that were."""
    done = 0
    for each in found.findings:
        store, other = ours.arrays.get(each.array), theirs.arrays.get(each.array)
        if store is None:
            continue
        if each.kind == "extra":
            opened = (await _writable(store, context))._driver.kvstore
            assert opened is not None
            await opened.at(as_directory(opened.path)).prefix.write_many([Write(each.key, None)])
            done += 1
        elif each.kind in _MENDED and other is not None:
            box = tuple(map(slice, each.start, each.stop))
            try:
                values = await _beside(store, other)[box].read()
                values = Cast(other.dtype, store.dtype, check.casting).checked(np.asarray(values), each.start)
            except StoreError:
                continue  # what cannot be read or be written stays a finding
            # a damaged chunk cannot be written in part: whole ones are, which the box is
            await (await _writable(store, context))[box].write(values)
            done += 1
    return done


async def _writable(store: TensorStore, context: Context) -> TensorStore:
    if store.writable:
        return store
    if store._driver.kvstore is None:
        raise StoreError(f"{store!r} cannot be written, and so not repaired")
    return await open_array(store.spec(retain_context=True), context=context)
