"""An open file, the walk over its objects and links, and the files to which links lead."""

from __future__ import annotations

import posixpath
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeVar

from fsstore.errors import DataLossError, NotFoundError, PermissionDeniedError, StoreError, UnimplementedError
from fsstore.reference.policy import is_relative
from fsstore.runtime import execution, fork
from fsstore.runtime.together import FirstTouch
from fsstore.runtime.tuning import ENTRIES_KEPT, KEPT, REQUESTS
from fsstore.scan.contract import HEADER_BYTES, Blocks, MissError, ScanSource
from fsstore.scan.hdf5.dataset import Dataset
from fsstore.scan.hdf5.layout import COLLECTION, ObjectLink, begin, ends
from fsstore.scan.hdf5.parsed import ParsedGroup, parsed_object
from fsstore.scan.hdf5.structure import Reader
from fsstore.values.json_value import Json

# An HDF5 file over cached blocks, parsed here; h5py opens it to read values that no codec can: a miss is
# an exception.
#
# HDF5 asks for a few hundred bytes at a time, one request after the other. Far away that is a round trip
# each, under a lock of the whole process. So the file object given to it never waits: a read of what is not
# cached raises, the HDF5 call fails cleanly, what it wanted is noted, and the work goes on with something
# else. All that was noted is fetched together, and what failed is tried again. Our own parser reads in the
# same way.
#
# Whether a call failed for want of a block is told by the note, never by the type of the error: HDF5 turns
# it into any.

T = TypeVar("T")


class _BlockFile:
    """The file object that HDF5 reads from.  `failure` is an error of the store, which must not be lost on the way."""

    def __init__(self) -> None:
        self.blocks: Blocks | None = None
        self.missed = False
        self.failure: StoreError | None = None
        self.width = 8  # of lengths in the file
        self._at = 0

    @property
    def size(self) -> int:
        """The size of the file."""
        return 0 if self.blocks is None else self.blocks.size

    @property
    def waits(self) -> bool:
        """Whether the file is far away."""
        return self.blocks is not None and self.blocks.source.waits

    def octets(self, start: int, stop: int) -> bytes:
        """Return the bytes `[start, stop)`; the end of the file ends them."""
        if self.blocks is None:
            raise OSError("the file is closed")
        try:
            return self.blocks.read(start, stop)
        except MissError:
            self.missed = True
            raise
        except StoreError as error:
            self.failure = error
            raise

    def ahead(self, start: int, stop: int) -> None:
        """Say that bytes will be read: of a file that is far away."""
        if self.blocks is not None and self.waits:
            self.blocks.want(start, stop)

    def describe(self, offset: int) -> str:
        """Return how messages call a place in the file."""
        return "it" if self.blocks is None else self.blocks.source.describe(offset)

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a place; the end is that of the file."""
        self._at = offset + (self._at if whence == 1 else self.size if whence == 2 else 0)
        return self._at

    def tell(self) -> int:
        """Return the place."""
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer; behind the end of the file are zeros."""
        view = memoryview(buffer).cast("B")
        data = self.octets(self._at, self._at + len(view))
        if data.startswith(COLLECTION) and not ends(data, self.width):
            self.failure = DataLossError(f"the global heap at offset {self._at} is damaged: a size leads nowhere")
            raise self.failure
        view[: len(data)] = data
        if len(data) < len(view):
            view[len(data) :] = bytes(len(view) - len(data))
        self._at += len(view)
        return len(view)

    def write(self, data: Any) -> int:
        """Refuse."""
        raise OSError("the file is read-only")

    def truncate(self, size: int | None = None) -> int:
        """Refuse."""
        raise OSError("the file is read-only")

    def flush(self) -> None:
        """Do nothing."""


class OpenHdf5:
    """One generation of an HDF5 file.

    `root` is the address of the root group.  `url` is what chunk tables call it: empty for the scanned file, as other
    files are called that it refers to.
    """

    def __init__(self, source: ScanSource, url: str = "") -> None:
        self.source, self.url = source, url
        self.root = 0
        self._reader: Reader | None = None
        self._file = _BlockFile()
        self._id: Any = None
        self._lock = fork.lock()

    async def run(self, job: Callable[[], T]) -> T:
        """Return what `job` returns, once nothing it reads is missing."""

        def work(blocks: Blocks) -> T:
            with self._lock:
                self._file.blocks = blocks
                try:
                    if self._reader is None:
                        self._reader, self.root = begin(self._file)
                        self._file.width = self._reader.lengths
                    return job()
                except Exception:
                    if self._file.failure is not None:
                        failure, self._file.failure = self._file.failure, None
                        raise failure from None
                    raise

        return await self.source.settle(work)

    @property
    def reader(self) -> Reader:
        """The reader of its structures, once a job has run."""
        assert self._reader is not None
        return self._reader

    def attempt(self, job: Callable[[], T]) -> tuple[bool, T | Exception]:
        """Return whether nothing that `job` needs was missing, and what came of it: a value or its error."""
        self._file.missed = False
        try:
            found: T | Exception = job()
        except Exception as error:  # HDF5 raises any; the caller notes it by object
            if self._file.failure is not None:
                raise
            found = error
        return not self._file.missed, found

    def expect(self, address: int) -> None:
        """Say that an object header at an address will be read."""
        start = self.reader.base + address
        if 0 <= start < self._file.size:
            self._file.ahead(start, min(start + 4 * HEADER_BYTES, self._file.size))

    def library(self) -> Any:
        """Return the file's identifier of h5py, in a job that runs."""
        if self._id is None:
            try:
                from h5py import h5f, h5fd, h5p
            except ImportError:
                raise UnimplementedError(
                    "Reading this needs h5py, which is not installed: pip install 'fsstore[hdf5]'"
                ) from None
            access = h5p.create(h5p.FILE_ACCESS)
            access.set_fileobj_driver(h5fd.fileobj_driver, self._file)
            access.set_fclose_degree(h5f.CLOSE_STRONG)
            try:
                self._id = h5f.open(b"fsstore", h5f.ACC_RDONLY, access)
            except OSError as error:
                if self._file.missed or self._file.failure is not None:
                    raise
                raise DataLossError(f"HDF5 cannot open it: {(str(error).splitlines() or ['OSError'])[0]}") from None
            # HDF5 must have closed the file before the interpreter is gone, for it calls the file object to do so
            weakref.finalize(self, _close, self._id)
        return self._id


def refused(error: Exception) -> StoreError:
    """Return the error to raise for one of HDF5."""
    if isinstance(error, StoreError):
        return error
    return DataLossError(f"HDF5 cannot read it: {' '.join(str(error).split())}")


def _close(identifier: Any) -> None:
    if identifier.valid:
        identifier.close()


_DEEPEST = 200
_MOST_LINKS = 2_000_000
_HOPS = 32


class FileLink(NamedTuple):
    """A link to an object in another file."""

    file: str
    path: str


@dataclass(slots=True)
class Objects:
    """Groups (attributes, and the names of those left out) and datasets by path; why other objects are left out.

    `links` lead to other files.
    """

    groups: dict[str, tuple[dict[str, Json], tuple[str, ...]]] = field(default_factory=dict)
    datasets: dict[str, Dataset] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    links: dict[str, FileLink] = field(default_factory=dict)


class _Awaited(NamedTuple):
    """An object to describe: its path, and the address of its header."""

    path: str
    address: int


class Walk:
    """The walk through a file; `step` is called until it is done."""

    def __init__(self, file: OpenHdf5) -> None:
        self._file = file
        self.found = Objects()
        self._pending: list[_Awaited] = []
        self._seen: dict[int, str] = {}
        self._soft: dict[str, str] = {}
        self._order: list[str] = []
        self._begun = False
        self._count = 0

    def step(self) -> Objects:
        """Go as far as what is cached allows; what is returned is complete if nothing was missing."""
        if not self._begun:
            self._pending.append(_Awaited("", self._file.root))
            self._begun = True
        waiting: list[_Awaited] = []
        while self._pending:
            link = self._pending.pop()
            whole, found = self._file.attempt(partial(self._visit, link))
            if not whole:
                waiting.append(link)
            elif isinstance(found, Exception):
                self._note(link.path, found)
        self._pending = waiting[::-1]
        if not self._pending:
            self._follow()
        return self.found

    def _note(self, path: str, error: Exception) -> None:
        why = error.message if isinstance(error, StoreError) else " ".join(str(error).split())
        if not path:
            raise DataLossError(f"its root group cannot be read: {why}")
        self.found.notes[path] = why or type(error).__name__

    def _visit(self, object_: _Awaited) -> None:
        path, address = object_
        found = parsed_object(self._file.reader, path, address)
        if isinstance(found, ParsedGroup):
            self._group(path, found)
        elif found is not None:
            self.found.datasets[path] = found

    def _group(self, path: str, group: ParsedGroup) -> None:
        self.found.groups[path] = (group.attributes, group.lost)
        self._count += len(group.links)
        if self._count > _MOST_LINKS or path.count("/") > _DEEPEST:
            raise StoreError("there are too many links, or groups lie too deep")
        for link in group.links:
            self._link(link, _joined(path, link.name))

    def _link(self, link: ObjectLink, path: str) -> None:
        self._order.append(path)
        if link.kind == "hard":
            self._hard(link.name, path, link.address)
        elif link.kind == "soft":
            self._soft[path] = _text(link.target)
        elif link.kind == "external":
            self.found.links[path] = FileLink(_text(link.file), _target("", "/" + _text(link.target)))
        else:
            self.found.notes[path] = "it is a link of a kind that nobody knows"

    def _hard(self, name: bytes, path: str, address: int) -> None:
        if b"/" in name or name in (b".", b"..", b""):
            self.found.notes[path] = "its name cannot be part of a path"
            return
        known = self._seen.setdefault(address, path)
        if known != path and known in self.found.groups:
            self.found.notes[path] = f"it is the group {known!r}, which is shown there"
            return
        if known != path and known in self.found.datasets:
            self.found.datasets[path] = self.found.datasets[known].at(path)
            return
        if any(link.address == address and link.path != path for link in self._pending):
            self._soft[path] = "/" + known
            return
        self._file.expect(address)
        self._pending.append(_Awaited(path, address))

    def _follow(self) -> None:
        """Show the datasets that soft links lead to."""
        for path in self._soft:
            target = path
            for _ in range(_HOPS):
                link = self._soft.get(target)
                if link is None:
                    break
                target = _target(target, link)
            dataset = self.found.datasets.get(target)
            if dataset is not None:
                self.found.datasets[path] = dataset.at(path)
            elif target in self.found.groups:
                self.found.notes[path] = f"it is a link to the group {target!r}, which is shown there"
            else:
                self.found.notes[path] = f"it is a link to {target!r}, which is not there"
        shown = self.found.datasets
        self.found.datasets = {path: shown[path] for path in self._order if path in shown}


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _joined(path: str, name: bytes) -> str:
    return f"{path}/{_text(name)}" if path else _text(name)


def _target(path: str, link: str) -> str:
    """Return the path a soft link leads to; HDF5 knows `.`, but takes `..` for a name."""
    head = "" if link.startswith("/") else path.rpartition("/")[0]
    return "/".join(_names(f"{head}/{link}"))


def dataset_at(file: OpenHdf5, path: str) -> Dataset:
    """Return the dataset at a path of a file, in a job that runs; soft links are followed."""
    names, address = _names(path), file.root
    for _ in range(_DEEPEST):
        found = parsed_object(file.reader, path, address)
        if isinstance(found, Dataset) and not names:
            return found
        links = found.links if isinstance(found, ParsedGroup) else ()
        link = next((each for each in links if names and _text(each.name) == names[0]), None)
        if link is None or link.kind not in ("hard", "soft"):
            break
        if link.kind == "hard":
            names, address = names[1:], link.address
            continue
        target = _text(link.target)
        names = [*_names(target), *names[1:]]
        address = file.root if target.startswith("/") else address
    raise NotFoundError(f"There is no dataset {path!r} in {file.source.describe()}")


def _names(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


# The HDF5 files that one refers to, each opened once.
#
# A relative name starts from the file that says it, as HDF5 has it. An absolute one that is not there, or
# may not be read, is looked for beside the file: such names are those of the machine on which it was
# written.


def beside(home: str, name: str) -> str:
    """Return the URL of a file that the file `home` calls `name`."""
    if not is_relative(name):
        return name
    return posixpath.normpath(posixpath.join(posixpath.dirname(home), name)) if "://" not in home else _far(home, name)


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


_MOST_LINKED = 8  # links behind links
_MOST_MOUNTS = 10_000


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
    for depth in range(_MOST_LINKED + 1):
        links = [link for mount in new for link in _links(mount)]
        if depth == _MOST_LINKED or len(out) + len(links) > _MOST_MOUNTS:
            for mount, path, _ in links:
                mount.notes[path] = "it lies behind too many links to other files"
            return out
        new = []
        for start in range(0, len(links), REQUESTS):
            some = links[start : start + REQUESTS]
            new += [each for each in await execution.gather(_mounted(files, *link, behind) for link in some) if each]
        out += new
        if not new:
            return out
    return out


def _links(mount: Mount) -> Iterator[tuple[Mount, str, FileLink]]:
    for path, link in mount.objects.links.items():
        shown = mount.shown_as(path)
        if shown is not None:
            yield mount, shown, link


async def _mounted(files: OtherFiles, mount: Mount, path: str, link: FileLink, behind: Behind) -> Mount | None:
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
    if link.path not in objects.datasets and link.path not in objects.groups and link.path not in objects.links:
        why = objects.notes.get(link.path, "it is not there")
        mount.notes[path] = f"it is a link to {link.path!r} in another file: {why}"
        return None
    behind[path] = (*behind[mount.path], here)
    return Mount(file, objects, path, link.path)
