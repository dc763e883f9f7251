"""One file of many: its documents and references, the bytes of its chunks, and the values of its variables.

Large variables are compared by a fingerprint, without keeping their values."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np

from fsstore.combine.facts import Ints
from fsstore.combine.mosaic import FileFact
from fsstore.errors import DataLossError, JsonError, NotFoundError, StoreError
from fsstore.format.contract import ChunkedArray
from fsstore.kvstore.contract.driver import UNKNOWN, KvPrefix, Read
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.driver import driver_in_memory
from fsstore.reference.kind import Reading, load
from fsstore.reference.policy import beside
from fsstore.reference.table.keys import Grid, grid_of, is_document
from fsstore.reference.table.refset import TableSet
from fsstore.reference.table.set_state import State
from fsstore.reference.table.table import ABSENT, INLINE, WHOLE, Row, Rows, Table
from fsstore.reference.targets import Targets, open_with_spec, policy_of
from fsstore.runtime import execution
from fsstore.runtime.together import until_unchanged
from fsstore.runtime.tuning import AT_ONCE, CACHE_BYTES, HEAD_BYTES, PIECE_BYTES, REQUEST_BYTES
from fsstore.scan.as_references import format_of_head
from fsstore.scan.contract import MADE, SELF, FileChangedError, FileScanner, ScanSource
from fsstore.scan.driver import ScanDriver
from fsstore.values import registry
from fsstore.values.detection import is_text_of_json
from fsstore.values.json_value import loads

FINGERPRINT_ELEMENTS = CACHE_BYTES // 4  # elements hashed at once: intermediate results stay in the cache
TASK_FILES = 2000  # files of a task at most: its findings are sent back as one message
FINGERPRINT_READERS = 4  # files whose fingerprints are made at once: threads against what each holds
# packed parts of a scan merged by one task, or unpacked by the caller: tasks against memory
MERGED_PARTS = 16


# One file as combining sees it: documents, references of its arrays, and the bytes of chunks that are
# wanted now.

_PARSED = ".zarray"


@dataclass(frozen=True, slots=True)
class ArrayReferences:
    """The references of one array: chunk numbers, rows, and what these point into."""

    number: Ints
    rows: Rows
    urls: Sequence[str]
    inline: Sequence[bytes]


class ElsewhereError(StoreError):
    """Values that are wanted lie in another file than the one that was opened."""


class SourceFile(Protocol):
    """A file that was opened.

    `kind` is that of the store that holds it as zarr v2, by which fill values mark missing data; None if none does.
    """

    kind: str | None
    fact: FileFact
    documents: Mapping[str, bytes]
    grids: Mapping[str, Grid]
    notes: Mapping[str, str]

    async def references(self, paths: Sequence[str]) -> list[ArrayReferences]:
        """Return the references of arrays."""
        ...

    async def chunks(self, path: str, found: ArrayReferences) -> Sequence[Any]:
        """Return the encoded chunks that references name, in order."""
        ...


class ScannedSource:
    """A file of a scanned format."""

    def __init__(self, url: str, source: ScanSource, file: Any) -> None:
        self.kind: str | None = None
        generation = "" if source.told == UNKNOWN else source.told.hex()
        self.fact = FileFact(url, source.size, generation)
        self._source, self._file = source, file
        self.documents: Mapping[str, bytes] = file.hierarchy.documents
        self.grids: Mapping[str, Grid] = file.hierarchy.grids
        self.notes: Mapping[str, str] = file.hierarchy.shortcomings

    async def references(self, paths: Sequence[str]) -> list[ArrayReferences]:
        """Return the references of arrays; chunks that no range says are held by value."""
        out = []
        for path, table in zip(paths, await self._file.tables(paths), strict=True):
            number = table.present(0, self.grids[path].count)
            rows = table.find(number)
            inline: Sequence[bytes] = table.inline
            made = np.flatnonzero(rows.url == MADE)
            if len(made):
                values = [bytes(each) for each in await self._file.make(path, number[made])]
                rows.url[made], rows.offset[made] = INLINE, np.arange(len(made)) + len(inline)
                rows.length[made] = [len(value) for value in values]
                inline = [*inline, *values]
            urls = [self.fact.url if each == SELF else each for each in table.urls]
            out.append(ArrayReferences(number, rows, urls, inline))
        return out

    async def chunks(self, path: str, found: ArrayReferences) -> Sequence[Any]:
        """Return encoded chunks, through the blocks that scanning has read already."""
        here = found.rows.url >= 0
        if any(found.urls[at] != self.fact.url for at in np.unique(found.rows.url[here]).tolist()):
            raise ElsewhereError(f'The values of "{path}" lie in another file and cannot be used to place this one')
        spans = [(start, start + size) for start, size in zip(*_spans(found.rows, here), strict=True)]
        large = sum(stop - start for start, stop in spans) > PIECE_BYTES
        read: Iterator[Any] = iter(
            () if not spans else await (self._source.fetch if large else self._source.read)(spans)
        )
        return [
            next(read) if inside else found.inline[offset]
            for inside, offset in zip(here.tolist(), found.rows.offset.tolist(), strict=True)
        ]


def _spans(rows: Rows, here: Any) -> tuple[list[int], list[int]]:
    return rows.offset[here].tolist(), rows.length[here].tolist()


class ListedSource:
    """A hierarchy of zarr keys, or a reference set."""

    def __init__(self, fact: FileFact, state: State, place: KvPrefix | None, *, kind: str) -> None:
        self.fact, self._state = fact, state
        self.kind: str | None = kind
        self._store = driver_in_memory(state, {}, place)
        self._policed = None
        policy = policy_of(place, {}, state.base.origins)
        if kind == "reference" and policy.restricts:
            self._policed = Targets(open_with_spec, policy, place)
        self.documents: Mapping[str, bytes] = {}
        self.grids: Mapping[str, Grid] = {}
        self.notes: Mapping[str, str] = {}
        self._found: dict[str, tuple[list[int], list[Row], list[str], list[bytes]]] = {}

    async def listed(self) -> ListedSource:
        """Return the source once its documents are read and its keys sorted by array."""
        documents: dict[str, bytes] = {}
        async for names, found in self._state.documents(KeyRange()):
            wanted = [name for name in names if is_document(name) and not name.endswith(".zmetadata")]
            answers = await self._store.read_many([Read(name) for name in wanted])
            documents.update({n: bytes(a.value) for n, a in zip(wanted, answers, strict=True)})
            del found
        self.documents = documents
        grids = {}
        for key, value in documents.items():
            path, _, name = key.rpartition("/")
            if name in (_PARSED, "zarr.json"):
                grid = grid_of(path, loads(value, lenient=True))
                if grid is not None:
                    grids[path] = grid
        self.grids = grids
        async for names, found in self._state.scan(KeyRange()):
            for at, name in enumerate(names):
                self._sort(name, found, at)
        return self

    def _sort(self, name: str, found: Any, at: int) -> None:
        if is_document(name):
            return
        head, number = name, None
        while head:
            head, _, _ = head.rpartition("/")
            grid = self.grids.get(head)
            number = None if grid is None else grid.number(name[len(head) + 1 if head else 0 :])
            if number is not None:
                break
        if number is None:
            return
        url, offset, length = (int(column[at]) for column in found.rows)
        if url == ABSENT:
            return
        if url >= 0 and self._policed is not None:  # the whole is not to read what this set may not
            _ = self._policed.locate(found.urls[url])
        numbers, rows, urls, inline = self._found.setdefault(head, ([], [], [], []))
        numbers.append(number)
        if url >= 0:
            urls.append(found.urls[url])
            rows.append(Row(len(urls) - 1, offset, length))
        else:
            inline.append(bytes(found.inline[offset]))
            rows.append(Row(INLINE, len(inline) - 1, length))

    async def references(self, paths: Sequence[str]) -> list[ArrayReferences]:
        """Return the references of arrays."""
        out = []
        for path in paths:
            numbers, rows, urls, inline = self._found.get(path, ([], [], [], []))
            order = np.argsort(np.array(numbers, np.int64), kind="stable")
            out.append(ArrayReferences(np.array(numbers, np.int64)[order], Rows.of(rows).take(order), urls, inline))
        return out

    async def chunks(self, path: str, found: ArrayReferences) -> Sequence[Any]:
        """Return encoded chunks."""
        keys = self.grids[path].keys(found.number) if len(found.number) else []
        return [answer.value for answer in await self._store.read_many([Read(key) for key in keys])]


async def open_source(url: str, place: KvPrefix) -> SourceFile:
    """Return the file at a place, which references call `url`, opened."""
    if isinstance(place.driver, ScanDriver):
        return await _scanned(url.rpartition("|")[0], place.driver.base, place.driver.scanner)
    begun, failure = None, None
    if not url.endswith("/"):
        try:
            begun = await ScanSource(place).begin()
        except StoreError:
            begun = None  # a directory
    name = None if begun is None else format_of_head(begun.head(HEAD_BYTES))
    if name is not None:
        scanner: Any = registry.scanners.get(name)
        return await _scanned(url, place, scanner, begun)
    if not url.endswith(("/", ".zarr")):
        try:
            state = await load(place, Reading())
            return await ListedSource(FileFact(url), state, await beside(place), kind="reference").listed()
        except JsonError:
            raise
        except StoreError as error:
            failure = None if isinstance(error, NotFoundError) or _is_no_set(begun, error) else error
    try:
        found = await _hierarchy(url, place)
    except StoreError:
        if begun is None:
            raise
        found = None  # only a file, which has no keys below it
    if found is not None:
        return found
    if failure is not None:
        raise failure
    if begun is not None:
        raise StoreError(f"{place.describe()} begins like no format that can be combined")
    raise StoreError(f"There is no file and no zarr hierarchy at {place.describe()} that can be combined")


def _is_no_set(begun: ScanSource | None, error: StoreError) -> bool:
    """Return whether a file that could not be read as a reference set does not even begin like one."""
    if begun is None or not isinstance(error, DataLossError):
        return False
    return not is_text_of_json(begun.head(HEAD_BYTES), b"")


async def _scanned(url: str, place: KvPrefix, scanner: FileScanner, begun: ScanSource | None = None) -> SourceFile:
    async def attempt() -> SourceFile:
        nonlocal begun
        source, begun = begun or await ScanSource(place).begin(), None
        return ScannedSource(url, source, await scanner.scan(source, {}))

    return await until_unchanged(attempt, place.describe, changed=FileChangedError, reads=True)


async def _hierarchy(url: str, place: KvPrefix) -> SourceFile | None:
    """Return a hierarchy of zarr keys, each chunk of which is a value of its own."""
    base = place if place.path.endswith("/") or not place.path else place.join("/")
    head = url if url.endswith("/") else url + "/"
    urls: list[str] = []
    names: dict[str, int] = {}
    rows: list[Row] = []
    inline: list[bytes] = []
    async for entries in base.scan():
        documents = [entry.key for entry in entries if is_document(entry.key)]
        answers = await base.read_many([Read(key) for key in documents])
        read = {key: bytes(answer.value) for key, answer in zip(documents, answers, strict=True)}
        for entry in entries:
            names[entry.key] = len(rows)
            if entry.key in read:
                rows.append(Row(INLINE, len(inline), len(read[entry.key])))
                inline.append(read[entry.key])
            else:
                rows.append(Row(len(urls), 0, WHOLE if entry.size is None else entry.size))
                urls.append(head + entry.key)
    if not inline:
        return None
    table = Table(urls, inline, names, Rows.of(rows))
    state = State(TableSet(table))
    return await ListedSource(FileFact(url), state, await beside(place), kind=place.driver.id).listed()


# Fingerprints of values: whether large arrays of different files are equal, without keeping either.

Words: TypeAlias = np.ndarray[Any, np.dtype[np.uint64]]

_EXACT = 2.0**53
_SEEDS = (np.uint64(0x8A5CD789635D2DFF), np.uint64(0x121FD2155C472F96))
_STEP, _ONE, _TWO = map(np.uint64, (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
_FIRST, _SECOND, _THIRD = map(np.uint64, (30, 27, 31))
_NAN = np.array(np.nan).view(np.uint64)


class Fingerprint:
    """The fingerprint of an array of this shape and type, to which parts are added in any order, each once."""

    def __init__(self, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
        self._shape = tuple(shape)
        self._sums = np.zeros(2, np.uint64)
        if dtype.kind in "mM":  # their numbers mean something only with the unit
            unit = hashlib.blake2b(dtype.newbyteorder("<").str.encode(), digest_size=16).digest()
            self._sums += np.frombuffer(unit, "<u8")

    def add(self, origin: Sequence[int], values: Any) -> None:
        """Add the values that stand at `origin`."""
        flat = np.ascontiguousarray(values).reshape(-1)
        for start in range(0, flat.size, FINGERPRINT_ELEMENTS):
            words = _words(flat[start : start + FINGERPRINT_ELEMENTS])
            self._add(origin, values.shape, start, words)

    def add_fill(self, origin: Sequence[int], shape: Sequence[int], fill: Any) -> None:
        """Add a part of this shape that is all `fill`."""
        word = _words(np.asarray(fill).reshape(1))
        count = math.prod(shape)
        for start in range(0, count if word[0] else 0, FINGERPRINT_ELEMENTS):
            self._add(origin, shape, start, np.repeat(word, min(FINGERPRINT_ELEMENTS, count - start)))

    @staticmethod
    def counts(fill: Any, dtype: np.dtype[Any]) -> bool:
        """Return whether parts that are all `fill` change a fingerprint."""
        return bool(_words(np.asarray(fill, dtype).reshape(1))[0])

    def _add(self, origin: Sequence[int], shape: Sequence[int], start: int, words: Words) -> None:
        rest: Any = np.arange(start, start + len(words), dtype=np.uint64)
        place, stride = np.zeros(len(words), np.uint64), 1
        for size, whole, first in zip(reversed(shape), reversed(self._shape), reversed(origin), strict=True):
            rest, coord = np.divmod(rest, np.uint64(size))
            place += (coord + np.uint64(first)) * np.uint64(stride % 2**64)
            stride *= whole
        there = words != 0
        for number, seed in enumerate(_SEEDS):
            mixed = _mixed(_mixed(place * _STEP + seed) + words)
            self._sums[number : number + 1] += mixed[there].sum(dtype=np.uint64)  # of arrays, which wrap

    def value(self) -> Words:
        """Return the fingerprint: two numbers."""
        return self._sums.astype("<u8")


def fingerprint_of(values: Any) -> Words:
    """Return the fingerprint of values that are all there."""
    found = Fingerprint(values.shape, values.dtype)
    found.add((0,) * values.ndim, values)
    return found.value()


def _mixed(words: Words) -> Words:
    """Return words each bit of which depends on all bits of the given ones."""
    words = (words ^ words >> _FIRST) * _ONE
    words = (words ^ words >> _SECOND) * _TWO
    return words ^ words >> _THIRD


def _words(flat: Any) -> Words:
    """Return a word for each value: equal ones for equal values, whatever their type of number."""
    kind, size = flat.dtype.kind, flat.dtype.itemsize
    if kind in "biu":
        floats = flat.astype(np.float64)
        if size < 8:
            return _of_floats(floats)
        signed = np.where(flat < 0, _STEP, np.uint64(0))
        return np.where(np.abs(floats) < _EXACT, _of_floats(floats), _mixed(flat.astype(np.uint64) ^ signed))
    if kind == "f" and size <= 8:
        return _of_floats(flat.astype(np.float64))
    if kind == "c" and size <= 16:
        real, imaginary = _of_floats(flat.real.astype(np.float64)), _of_floats(flat.imag.astype(np.float64))
        return np.where(imaginary != 0, _mixed(imaginary + _STEP) + real, real)
    if kind == "O":
        return np.array([_of_object(each) for each in flat.tolist()], np.uint64)
    return _of_bytes(flat)


def _of_floats(floats: Any) -> Words:
    return np.where(np.isnan(floats), _NAN, (floats + 0.0).view(np.uint64))


def _of_object(value: Any) -> int:
    data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") if data else 0


def _of_bytes(flat: Any) -> Words:
    plain = np.ascontiguousarray(flat.astype(flat.dtype.newbyteorder("<"), copy=False))
    size = plain.dtype.itemsize
    padded = np.zeros((len(plain), -(-size // 8) * 8), np.uint8)
    padded[:, :size] = np.frombuffer(plain.tobytes(), np.uint8).reshape(len(plain), size)
    out = np.zeros(len(plain), np.uint64)
    for number, column in enumerate(padded.view("<u8").T):
        word = column.astype(np.uint64)
        out = np.where(word != 0, _mixed(out + word + np.uint64(number + 1)), out)
    return out


_MOST_FILL = 2**28  # elements of chunks that are not there, of a fill value other than zero


async def whole_of(array: ChunkedArray, path: str, source: SourceFile, found: ArrayReferences) -> Any:
    """Return the values of a variable."""
    return _whole(array, source.grids[path].shape, found, await source.chunks(path, found))


async def fingerprint_in(array: ChunkedArray, path: str, source: SourceFile, found: ArrayReferences) -> Any:
    """Return the fingerprint of a variable; None where its values cannot be compared."""
    grid, out = source.grids[path].shape, Fingerprint(array.shape, array.model.dtype)
    for at in _groups(found.rows.length):
        some = ArrayReferences(found.number[at], found.rows.take(at), found.urls, found.inline)
        try:
            chunks = await source.chunks(path, some)
        except ElsewhereError:
            return None
        await execution.offload(_add_chunks, out, array, grid, (some.number, chunks))
    return out.value() if await execution.offload(_add_fill, out, array, grid, found.number) else None


def _whole(array: ChunkedArray, grid: Sequence[int], found: ArrayReferences, chunks: Sequence[Any]) -> Any:
    out = np.full(array.shape, array.model.fill, array.model.dtype)
    for number, data in zip(found.number.tolist(), chunks, strict=True):
        values = array.model.chain.decode(data)
        sides = _sides(array, grid, number)
        inner = tuple(slice(0, side.stop - side.start) for side in sides)
        out[sides] = values[inner]
    return out.astype(str) if out.dtype.kind == "O" else out


def _sides(array: ChunkedArray, grid: Sequence[int], number: int) -> tuple[slice, ...]:
    """Return where a chunk lies, without what is outside the array."""
    place = np.unravel_index(number, grid) if array.shape else ()
    return tuple(
        slice(int(at) * step, min((int(at) + 1) * step, size))
        for at, step, size in zip(place, array.read_chunk, array.shape, strict=True)
    )


def _groups(lengths: Any) -> Iterator[slice]:
    """Yield chunks that are read together: few bytes, or one chunk."""
    start, held = 0, 0
    for at, length in enumerate(lengths.tolist()):
        size = max(length, REQUEST_BYTES // AT_ONCE)
        if at > start and held + size > REQUEST_BYTES:
            yield slice(start, at)
            start, held = at, 0
        held += size
    if start < len(lengths):
        yield slice(start, len(lengths))


def _add_chunks(out: Fingerprint, array: ChunkedArray, grid: Sequence[int], found: tuple[Any, Any]) -> None:
    numbers, chunks = found
    for number, data in zip(numbers.tolist(), chunks, strict=True):
        sides = _sides(array, grid, number)
        inner = tuple(slice(0, side.stop - side.start) for side in sides)
        out.add([side.start for side in sides], array.model.chain.decode(data)[inner])


def _add_fill(out: Fingerprint, array: ChunkedArray, grid: Sequence[int], present: Any) -> bool:
    """Add the chunks that are not there; return whether that can be done within bounds."""
    count, fill = math.prod(grid), array.model.fill
    if len(present) == count or not Fingerprint.counts(fill, array.model.dtype):
        return True
    if math.prod(array.shape) > _MOST_FILL:
        return False
    there = np.zeros(count, np.bool_)
    there[present] = True
    for number in np.flatnonzero(~there).tolist():
        sides = _sides(array, grid, number)
        shape = [side.stop - side.start for side in sides]
        out.add_fill([side.start for side in sides], shape, np.asarray(fill, array.model.dtype))
    return True
