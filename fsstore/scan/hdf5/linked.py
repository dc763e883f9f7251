"""Files that a file refers to: external links, external storage."""

from __future__ import annotations

import math
import posixpath
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fsstore.errors import (
    DataLossError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    StoreError,
    UnimplementedError,
)
from fsstore.kvstore.contract.driver import Buffer, Read
from fsstore.reference.policy import is_relative
from fsstore.reference.table.keys import Grid
from fsstore.reference.table.table import Rows
from fsstore.runtime import execution
from fsstore.runtime.together import FirstTouch
from fsstore.runtime.tuning import ENTRIES_KEPT, KEPT, REQUESTS
from fsstore.scan.contract import MADE, ChunkTable, ScanSource
from fsstore.scan.hdf5.dataset import Dataset
from fsstore.scan.hdf5.walk import FileLink, Objects, OpenHdf5, Walk, dataset_at
from fsstore.scan.hierarchy import Columns, empty, run_chunks, run_strides
from fsstore.values.json_value import Json

# The HDF5 files that one refers to, each opened once.
#
# A relative name starts from the file that says it, as HDF5 has it. An absolute one that is not there, or
# may not be read, is looked for beside the file: such names are those of the machine on which it was
# written.


def beside(home: str, name: str) -> str:
    """Return the URL of a file that the file `home` calls `name`."""
    if not is_relative(name):
        return name
    return (
        posixpath.normpath(posixpath.join(posixpath.dirname(home), name))
        if "://" not in home
        else _far(home, name)
    )


def _far(home: str, name: str) -> str:
    scheme, _, path = home.partition("://")
    return f"{scheme}://" + posixpath.normpath(posixpath.join(posixpath.dirname(path), name))


class OtherFiles:
    """The files that `main` and those it refers to refer to, by their URLs."""

    def __init__(self, source: ScanSource, main: OpenHdf5) -> None:
        self._source = source
        self._kept: OrderedDict[str, OpenHdf5] = OrderedDict({"": main})
        self._datasets: dict[tuple[str, str], Dataset] = {}
        self._objects: dict[str, Objects] = {}
        self._first: FirstTouch[str, OpenHdf5] = FirstTouch()
        self._walked: FirstTouch[str, Objects] = FirstTouch()

    async def open(self, home: OpenHdf5, name: str) -> OpenHdf5:
        """Return the file that `home` calls `name`; raises if it is not there, or may not be read."""
        if name in ("", "."):
            return home
        url = beside(home.url, name)
        try:
            return await self._opened(url)
        except (NotFoundError, PermissionDeniedError):
            other = beside(home.url, posixpath.basename(name.replace("\\", "/")))
            if is_relative(name) or other == url:
                raise
            try:
                return await self._opened(other)
            except (NotFoundError, PermissionDeniedError):
                pass
            raise

    async def _opened(self, url: str) -> OpenHdf5:
        kept = self._kept.get(url)
        if kept is None:
            kept = (await self._first.all((url,), self._load))[url]
        return kept

    async def _load(self, urls: Sequence[str]) -> list[OpenHdf5]:
        out = []
        for url in urls:
            try:
                file = OpenHdf5(await self._source.other(url), url)
                await file.run(lambda: None)
            except StoreError as error:
                raise error.within(f"Error opening the file {url!r}, which it refers to") from error
            self._kept[url] = file
            while len(self._kept) > KEPT:
                self._kept.pop(next(each for each in self._kept if each))
            out.append(file)
        return out

    async def dataset(self, home: OpenHdf5, name: str, path: str) -> tuple[OpenHdf5, Dataset]:
        """Return a dataset of the file that `home` calls `name`."""
        file = await self.open(home, name)
        known = self._datasets.get((file.url, path))
        if known is None:
            known = await file.run(lambda: dataset_at(file, path))
            if len(self._datasets) >= ENTRIES_KEPT:
                self._datasets.clear()
            self._datasets[file.url, path] = known
        return file, known

    async def objects(self, file: OpenHdf5) -> Objects:
        """Return what a file holds."""

        async def load(_: Sequence[str]) -> list[Objects]:
            found = self._objects[file.url] = await file.run(Walk(file).step)
            return [found]

        known = self._objects.get(file.url)
        return known if known is not None else (await self._walked.all((file.url,), load))[file.url]


# Values of a dataset in raw files beside the HDF5 file: one after the other, each from an offset for a
# size.
#
# Pieces that lie in one of the files are ranges of it; those that reach from one into the next are put
# together here. Bytes that a file does not have are an error: HDF5 would show zeros in place of what is
# lost.


class ExternalStorage:
    """The pieces of a dataset whose values lie in raw files."""

    codecs: Sequence[Mapping[str, Json]] = ()

    def __init__(self, file: OpenHdf5, dataset: Dataset) -> None:
        self._file, self._dataset = file, dataset
        self._itemsize = dataset.element.dtype.itemsize * math.prod(dataset.element.inner)
        self.shape = dataset.shape
        self.chunks = run_chunks(dataset.shape, self._itemsize)
        self._length = self._itemsize * math.prod(self.chunks)
        self._need = self._itemsize * math.prod(self.shape)
        self._ends = np.cumsum([min(part.size, self._need) for part in dataset.external], dtype=np.int64)

    @property
    def _urls(self) -> list[str]:
        return [beside(self._file.url, part.name) for part in self._dataset.external]

    def _starts(self, coords: Any) -> Any:
        strides = np.array(run_strides(self.shape, self._itemsize, self.chunks), np.int64)
        return coords[:, : len(strides)] @ strides if len(strides) else np.zeros(len(coords), np.int64)

    async def table(self, grid: Grid) -> ChunkTable:
        """Return where the pieces are."""
        if not self._need:
            return empty()
        if not len(self._ends) or self._ends[-1] < self._need:
            raise DataLossError(f"its files hold {sum(self._ends[-1:])} bytes of the {self._need} it has")
        coords = np.stack(np.unravel_index(np.arange(grid.count), grid.shape), axis=1).astype(np.int64)
        start = self._starts(coords)
        part = np.searchsorted(self._ends, start, side="right")
        first = (
            self._ends[part] - np.array([min(each.size, self._need) for each in self._dataset.external])[part]
        )
        offset = np.array([each.offset for each in self._dataset.external], np.int64)[part] + start - first
        url = np.where(start + self._length > self._ends[part], MADE, part)
        return Columns(
            Rows(url.astype(np.int32), offset, np.full(len(start), self._length, np.int64)), urls=self._urls
        )

    async def make(self, coords: Sequence[Sequence[int]]) -> Sequence[Buffer]:
        """Return pieces that lie in several files, and the last one, padded."""
        starts = self._starts(np.array(coords, np.int64)).tolist()
        return await execution.gather(self._piece(start) for start in starts)

    async def _piece(self, start: int) -> bytes:
        found = await self.read(start, min(start + self._length, self._need))
        return found.ljust(self._length, b"\0")

    async def read(self, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)` of the values."""
        return b"".join(
            await execution.gather(
                self._read(number, low, high) for number, low, high in self._cut(start, stop)
            )
        )

    def _cut(self, start: int, stop: int) -> Iterator[tuple[int, int, int]]:
        """Yield the files that hold a range, and where in them."""
        first = 0
        for number, (part, end) in enumerate(zip(self._dataset.external, self._ends.tolist(), strict=True)):
            low, high = max(start, first), min(stop, end)
            if low < high:
                yield number, part.offset + low - first, part.offset + high - first
            first = end

    async def _read(self, number: int, low: int, high: int) -> bytes:
        source = self._file.source
        if source.reach is None:
            raise DataLossError("its values lie in another file, which cannot be reached")
        place = await source.reach(self._urls[number])
        try:
            [found] = await place.driver.read_many([Read(place.path, low, high)])
        except OutOfRangeError as error:
            raise DataLossError(
                f"{place.describe()}, which holds its values, is cut off: {error.message}"
            ) from error
        if found.state != "value":
            raise DataLossError(f"{place.describe()}, which holds its values, does not exist")
        return bytes(found.value)


_DEEPEST = 8  # links behind links
_MOST = 10_000


@dataclass(frozen=True, slots=True)
class Mount:
    """A file mounted at `path`: its objects at and below `root`.  `notes` say which of its links are left out."""

    file: OpenHdf5
    objects: Objects
    path: str = ""
    root: str = ""
    notes: dict[str, str] = field(default_factory=dict)

    def shown_as(self, path: str) -> str | None:
        """Return the path under which an object of the file is shown, or None if it is not below the root."""
        if path == self.root or not self.root:
            rest = path if not self.root else ""
        elif path.startswith(self.root + "/"):
            rest = path[len(self.root) + 1 :]
        else:
            return None
        return f"{self.path}/{rest}".strip("/")


Links = list[tuple[Mount, str, FileLink]]
Behind = dict[str, tuple[tuple[str, str], ...]]
"""By the path of a mount: the files and objects that lead to it."""


async def mounts_of(files: OtherFiles, file: OpenHdf5, found: Objects) -> list[Mount]:
    """Return a file, and what its links to other files lead to."""
    out = [Mount(file, found)]
    behind: Behind = {"": (("", ""),)}
    new = out
    for depth in range(_DEEPEST + 1):
        links = [link for mount in new for link in _links(mount)]
        if depth == _DEEPEST or len(out) + len(links) > _MOST:
            for mount, path, _ in links:
                mount.notes[path] = "it lies behind too many links to other files"
            return out
        new = []
        for start in range(0, len(links), REQUESTS):
            some = links[start : start + REQUESTS]
            new += [
                each
                for each in await execution.gather(_mounted(files, *link, behind) for link in some)
                if each
            ]
        out += new
        if not new:
            return out
    return out


def _links(mount: Mount) -> Iterator[tuple[Mount, str, FileLink]]:
    for path, link in mount.objects.links.items():
        shown = mount.shown_as(path)
        if shown is not None:
            yield mount, shown, link


async def _mounted(
    files: OtherFiles, mount: Mount, path: str, link: FileLink, behind: Behind
) -> Mount | None:
    """Return what a link leads to; None if it is left out, which the notes of its own file say."""
    try:
        file = await files.open(mount.file, link.file)
        objects = await files.objects(file)
    except (NotFoundError, PermissionDeniedError, UnimplementedError) as error:
        mount.notes[path] = f"it is a link to another file: {error.message}"
        return None
    except StoreError as error:
        mount.notes[path] = f"it is a link to another file, which cannot be opened: {error.message}"
        return None
    here = (file.url, link.path)
    if here in behind[mount.path] or (file.url == "" and not link.path):
        mount.notes[path] = "it is a link that leads back to where it came from"
        return None
    if (
        link.path not in objects.datasets
        and link.path not in objects.groups
        and link.path not in objects.links
    ):
        why = objects.notes.get(link.path, "it is not there")
        mount.notes[path] = f"it is a link to {link.path!r} in another file: {why}"
        return None
    behind[path] = (*behind[mount.path], here)
    return Mount(file, objects, path, link.path)
