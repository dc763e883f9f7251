"""The contract of scanners, and the file they read.

A scanner turns a source into the description of a file: its arrays and groups first, then the chunk table of an array
when the array is touched.  The source is a block cache over a key-value store, read in rounds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np

from fsstore.errors import AbortedError, DataLossError, NotFoundError, OutOfRangeError, UnimplementedError
from fsstore.kvstore.contract.driver import UNKNOWN, Buffer, KvPrefix, Read, ReadResult, now
from fsstore.kvstore.dated_file import dated
from fsstore.reference.table.keys import Grid
from fsstore.reference.table.table import Rows
from fsstore.runtime import execution, fork
from fsstore.runtime.tuning import CACHE_BYTES, FLIGHT_BYTES, KEPT_BYTES, PIECE_BYTES, SMALL_BYTES, TRUSTED_S
from fsstore.values.json_value import Fields, Json

# bytes that a scan reads at a time: requests against bytes that it does not need
SCAN_BLOCK_BYTES = 16 * 1024
# bytes of a header or directory in most files; sections of GRIB take two, objects of HDF5 four: another request
# against bytes in vain
HEADER_BYTES = 512


# The file a scanner reads: a block cache over a key-value store, in rounds.
#
# A round is a set of requests that are under way together; far away, rounds are what time goes into. So a
# scanner asks for all it knows it needs at once (`read`), or works through what is cached and lets what is
# missing be fetched together (`settle`): a function that meets a missing block raises, the block is noted,
# and the function runs again.
#
# Blocks are small (16 KiB): metadata are strewn between data, and every larger block fetches data with
# them. Every range comes from one generation of the file, or `FileChangedError` is raised, and the adapter
# scans anew.

T = TypeVar("T")

Span = tuple[int, int]
"""The bytes `[start, stop)`."""

Reach: TypeAlias = Callable[[str], Awaitable[KvPrefix]]
"""Gives the place of another file by its URL."""

_MOST_PASSES = 20_000  # of one `settle`: each fetches a block at least
_MOST_HELD = 2**31  # bytes that one `settle` may need together
_NOTHING: Mapping[int, bytes] = {}


class FileChangedError(AbortedError):
    """The file has another generation than when it was scanned."""


class MissError(Exception):
    """A block that is needed is not cached; it is noted and will be fetched."""


class _Cache:
    """The blocks in memory, the least recently used of which go first."""

    def __init__(self) -> None:
        self.kept: OrderedDict[int, bytes] = OrderedDict()
        self._lock = fork.lock()
        self._used = 0

    def get(self, first: int, stop: int, held: Mapping[int, bytes]) -> list[bytes] | None:
        """Return the blocks `[first, stop)`, or None if one is not there."""
        kept, found = self.kept, []
        with self._lock:
            for number in range(first, stop):
                block = kept.get(number)
                if block is not None:
                    kept.move_to_end(number)
                elif (block := held.get(number)) is None:
                    return None
                found.append(block)
        return found

    def put(self, blocks: Mapping[int, bytes]) -> None:
        """Keep blocks."""
        with self._lock:
            for number, data in blocks.items():
                self._used += len(data) - len(self.kept.pop(number, b""))
                self.kept[number] = data
            while self._used > FLIGHT_BYTES and len(self.kept) > 1:
                self._used -= len(self.kept.popitem(last=False)[1])


@dataclass(slots=True)
class ScanSource:
    """A file at `base` (with the key `""`), or the directory of that place.

    `size` and `generation` are known once `begin` has returned.  `reach` gives the places of files that this one refers
    to, by their URLs, those beside it by relative ones; the policy of reference sets is on it.  `checked` is when the
    file was last known to be of this generation.  `told` is the generation that the store itself tells: a date that
    stands in for it here means nothing to programs that compare generations later.
    """

    base: KvPrefix
    generation: bytes = UNKNOWN
    size: int = 0
    block: int = SCAN_BLOCK_BYTES
    reach: Reach | None = None
    checked: float = 0.0
    told: bytes = UNKNOWN
    _cache: _Cache = field(default_factory=_Cache)

    @property
    def waits(self) -> bool:
        """Whether reading may suspend."""
        return self.base.driver.features.waits

    async def begin(self) -> ScanSource:
        """Read the beginning of the file: its size, its generation and its first blocks; raises if there is none."""
        found = await self.base.read_up_to(SMALL_BYTES)
        if found.state != "value":
            raise NotFoundError(f"{self.base.describe()} does not exist")
        self.generation, self.told, self.checked = found.generation, found.generation, found.time
        await execution.gather((self._measure(found), self._date(found)))
        self._put(0, bytes(found.value))
        return self

    def head(self, size: int) -> bytes:
        """Return the first bytes of the file, at most `size`, once it is begun."""
        return self.cached(0, min(size, self.size)) or b""

    async def confirm(self) -> None:
        """Raise `FileChangedError` if the file is another one by now: of a far file that is asked once a second."""
        if now() - self.checked < (TRUSTED_S if self.waits else 0.0) or self.generation == UNKNOWN:
            return
        found = (await self.base.read_many([Read("", 0, 0, self.generation)]))[0]
        if found.generation != self.generation:
            raise FileChangedError(f"{self.describe()} changed after it was opened")
        self.checked = found.time

    async def other(self, url: str) -> ScanSource:
        """Return another file that this one refers to; raises if there is none, or it may not be read."""
        if self.reach is None:
            raise UnimplementedError(f"{self.describe()} refers to the file {url!r}, which cannot be reached")
        return await ScanSource(await self.reach(url), block=self.block, reach=self.reach).begin()

    async def _measure(self, first: ReadResult) -> None:
        """Note the size of the file, given its beginning."""
        if first.size is None and len(first.value) == SMALL_BYTES:
            first = await self.base.read("", 0, 0)
            first = await self.base.read() if first.size is None else first
        self.size = len(first.value) if first.size is None else first.size

    async def _date(self, first: ReadResult) -> None:
        """Take the date of the file for its generation where the store knows none."""
        if first.generation == UNKNOWN:
            self.base, self.generation = await dated(self.base, first.time)

    def describe(self, offset: int | None = None) -> str:
        """Return how messages call the file, or a place in it."""
        where = self.base.describe()
        return where if offset is None else f"{where} at offset {offset}"

    def check(self, start: int, stop: int) -> None:
        """Raise `DataLossError` for a span outside the file."""
        if not 0 <= start <= stop <= self.size:
            raise DataLossError(
                f"{self.describe()} is damaged: it refers to the bytes [{start}, {stop}), but has {self.size}"
            )

    async def fetch(self, spans: Sequence[Span]) -> list[Buffer]:
        """Return spans of the file past the cache, in one round: values of chunks."""
        for start, stop in spans:
            self.check(start, stop)
        wanted = [span for span in spans if span[0] < span[1]]
        answers = iter(await self._answers([Read("", start, stop) for start, stop in wanted]))
        return [next(answers).value if start < stop else b"" for start, stop in spans]

    async def read(self, spans: Sequence[Span]) -> list[bytes]:
        """Return spans of the file through the cache: what is missing is fetched in one round."""
        for start, stop in spans:
            self.check(start, stop)
            if stop - start > KEPT_BYTES:
                raise DataLossError(f"{self.describe(start)} claims {stop - start} bytes of metadata; refused")
        await self.load(number for span in spans for number in self.missing(*span))
        out = []
        for start, stop in spans:
            found = self.cached(start, stop)
            out.append(bytes((await self.fetch([(start, stop)]))[0]) if found is None else found)
        return out

    async def load(self, numbers: Iterable[int], held: dict[int, bytes] | None = None) -> None:
        """Fetch blocks by their numbers in one round, neighbours as one request; they are put into `held`, too."""
        wanted = sorted(set(numbers))
        if wanted and self.waits and self.size <= CACHE_BYTES:  # a far round costs more than the rest of a small file
            wanted = self.missing(0, self.size)
        runs: list[list[int]] = []
        for number in wanted:
            if runs and runs[-1][1] == number:
                runs[-1][1] = number + 1
            else:
                runs.append([number, number + 1])
        spans = [(first * self.block, min(last * self.block, self.size)) for first, last in runs]
        spans = [span for span in spans if span[0] < span[1]]
        for (start, _), value in zip(spans, await self.fetch(spans) if spans else (), strict=True):
            pieces = self._put(start, bytes(value))
            if held is not None:
                held.update(pieces)

    async def settle(self, work: Callable[[Blocks], T]) -> T:
        """Return what `work` returns once nothing it reads is missing; it runs on a worker thread, several times.

        `work` lets a `MissError` pass, or goes on with something else and returns anything: whatever it returned while
        it noted blocks is not believed.
        """
        blocks = Blocks(self)
        for _ in range(_MOST_PASSES):
            blocks.noted.clear()
            try:
                done = await execution.offload(work, blocks)
            except Exception:  # libraries turn a miss into errors of their own
                if not blocks.noted:
                    raise
            else:
                if not blocks.noted:
                    return done
            await self.load(blocks.noted, blocks.held)
        raise DataLossError(f"{self.describe()} does not come to an end: its metadata refer to each other")

    def missing(self, start: int, stop: int) -> list[int]:
        """Return the numbers of the blocks of a span that are not in memory."""
        kept = self._cache.kept
        return [number for number in range(start // self.block, -(-stop // self.block)) if number not in kept]

    def cached(self, start: int, stop: int, held: Mapping[int, bytes] = _NOTHING) -> bytes | None:
        """Return the bytes of a span inside the file, if all of them are in memory, or in `held`."""
        if start >= stop:
            return b""
        first, last = start // self.block, (stop - 1) // self.block
        pieces = self._cache.get(first, last + 1, held)
        if pieces is None:
            return None
        joined = pieces[0] if first == last else b"".join(pieces)
        return joined[start - first * self.block : stop - first * self.block]

    def _put(self, start: int, data: bytes) -> dict[int, bytes]:
        """Keep data that begin at a block; only the last block of the file may be shorter."""
        pieces = [(start + at, data[at : at + self.block]) for at in range(0, len(data), self.block)]
        whole = [each for each in pieces if len(each[1]) == self.block or each[0] + len(each[1]) == self.size]
        blocks = {at // self.block: piece for at, piece in whole}
        self._cache.put(blocks)
        return blocks

    async def _answers(self, reads: Sequence[Read]) -> Sequence[ReadResult]:
        try:
            found = await self.base.read_many(reads) if reads else []
        except OutOfRangeError as error:
            raise FileChangedError(f"{self.describe()} has become shorter while it was read") from error
        for answer in found:
            if answer.state != "value" or answer.generation != self.generation:
                raise FileChangedError(f"{self.describe()} changed while it was read")
        return found


class Blocks:
    """The blocks of a file, for functions that `ScanSource.settle` runs: missing ones are noted and raise `MissError`.

    Over a store that never waits they are read at once instead.
    """

    def __init__(self, source: ScanSource) -> None:
        self.source = source
        self.noted: set[int] = set()
        self.held: dict[int, bytes] = {}

    @property
    def size(self) -> int:
        """The size of the file."""
        return self.source.size

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)`; the end of the file ends them."""
        source, stop = self.source, min(stop, self.source.size)
        found = source.cached(start, stop, self.held)
        if found is not None:
            return found
        if source.waits:
            self.want(start, stop)
            raise MissError
        missing = source.missing(start, stop)
        if len(missing) * source.block > PIECE_BYTES:
            return bytes(execution.drive(source.fetch([(start, stop)]))[0])
        execution.drive(source.load(missing))
        found = source.cached(start, stop)
        return bytes(execution.drive(source.fetch([(start, stop)]))[0]) if found is None else found

    def want(self, start: int, stop: int) -> None:
        """Note a span inside the file that will be read, if it is not in memory."""
        if self.source.waits and len(self.held) * self.source.block > _MOST_HELD:
            raise DataLossError(f"{self.source.describe(start)} needs too much memory to be read")
        held = self.held
        self.noted.update(each for each in self.source.missing(start, stop) if each not in held)


SELF = ""
"""The URL of the scanned file itself, in the `urls` of a chunk table."""

MADE = -3
"""In the `url` column: the scanner makes the value of this chunk (`ScannedFile.make`)."""

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
"""Numbers of chunks in C order of the chunk grid."""


@dataclass(frozen=True, slots=True)
class ScanHierarchy:
    """The structure of a file.

    `documents` are zarr documents by key (`hierarchy` makes those of version 2); `grids` say by path which chunks an
    array may have.  `notes` say why an object is left out, by its path, and `lacking` what one that is shown lacks.
    `refers` tells that the structure, or values, are also those of other files.
    """

    documents: Mapping[str, bytes] = field(default_factory=dict)
    grids: Mapping[str, Grid] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, str] = field(default_factory=dict)
    refers: bool = False

    @property
    def shortcomings(self) -> dict[str, str]:
        """Notes for readers of the file, by path: why objects are left out, and what others lack."""
        return {**self.lacking, **self.notes}

    @property
    def nbytes(self) -> int:
        """Roughly the memory it takes."""
        return sum(len(key) + len(value) + 100 for key, value in self.documents.items()) + 500 * len(self.grids)


class ChunkTable(Protocol):
    """Where the chunks of one array are.  `chunk_table` has the usual implementations.

    Rows are those of reference tables: `url` is an index into `urls`, `ABSENT`, `INLINE` (the value is
    `inline[offset]`), or `MADE`, whose `length` may be 0 when it is unknown.
    URLs are `SELF`, relative to the place of the file, or absolute; all but `SELF` are subject to the policy of
    reference sets.
    """

    @property
    def urls(self) -> Sequence[str]:
        """The URLs that the numbers in `url` stand for."""
        ...

    @property
    def inline(self) -> Sequence[bytes]:
        """Values that the table itself holds."""
        ...

    @property
    def nbytes(self) -> int:
        """The memory of the table."""
        ...

    def find(self, numbers: Numbers) -> Rows:
        """Return the rows of chunks, in order."""
        ...

    def present(self, start: int, stop: int) -> Numbers:
        """Return which of the chunks `[start, stop)` exist, ascending."""
        ...


class ScannedFile(Protocol):
    """One generation of a file."""

    @property
    def hierarchy(self) -> ScanHierarchy:
        """The structure."""
        ...

    async def tables(self, paths: Sequence[str]) -> Sequence[ChunkTable]:
        """Return the chunk tables of arrays, all of them in shared rounds; they are kept by the caller."""
        ...

    async def make(self, path: str, numbers: Numbers) -> Sequence[Buffer]:
        """Return the values of `MADE` chunks of an array, encoded as its document says."""
        ...


class FileScanner(Protocol):
    """A file format.  Implementations are plain frozen objects, called `SCANNER` in their module.

    A class that names this one among its bases has no members of its own unless it says otherwise.
    """

    name: ClassVar[str]
    """The JSON name and URL scheme of the adapter."""
    title: ClassVar[str]
    """The words for a file of the format in messages: `an HDF5 file`."""

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the JSON members of its own from `fields`, and return them without defaults."""
        return {}

    async def scan(self, source: ScanSource, members: Mapping[str, Json]) -> ScannedFile:
        """Return the structure of the file; raises `StoreError` if it is none of the format."""
        ...
