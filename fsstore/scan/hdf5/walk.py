"""The objects of a file: links followed, groups and datasets described.

Objects are parsed here; h5py describes those with parts that this parser does not know.  Links are walked and objects
opened one by one, because h5py's visit of a whole file asks every dataset for the size of its chunk index, and so reads
it.  Each pass tries every object until none of the blocks that it needs is missing, and keeps the results.  A group is
shown once, under the first hard link to it, so that cycles of links end.  Soft links are followed after all else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from fsstore.errors import DataLossError, StoreError
from fsstore.scan.hdf5.attribute import attribute_names, attributes_of
from fsstore.scan.hdf5.dataset import Dataset
from fsstore.scan.hdf5.described import describe, links_of
from fsstore.scan.hdf5.format.link import ObjectLink
from fsstore.scan.hdf5.format.reader import UnknownError
from fsstore.scan.hdf5.open_file import OpenHdf5
from fsstore.scan.hdf5.parsed import ParsedGroup, parsed_object
from fsstore.values.json_value import Json

__all__ = ["FileLink", "Objects", "Walk"]

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
        reader = self._file.reader
        if reader is None:
            self._by_library(path, address)
            return
        try:
            found = parsed_object(reader, path, address)
        except UnknownError:
            self._by_library(path, address)
            return
        if isinstance(found, ParsedGroup):
            self._group(path, found)
        elif found is not None:
            self.found.datasets[path] = found

    def _by_library(self, path: str, address: int) -> None:
        from h5py import h5d, h5g, h5o

        name = path.encode("utf-8", "surrogateescape") or b"/"
        opened = h5o.open(self._file.library(), name)
        if isinstance(opened, h5d.DatasetID):
            self.found.datasets[path] = describe(opened, path, address)
        elif isinstance(opened, h5g.GroupID):
            attributes, lost = attributes_of(opened, attribute_names(opened))
            self._group(path, ParsedGroup(attributes, lost, links_of(opened)))

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
    return "/".join(part for part in f"{head}/{link}".split("/") if part not in ("", "."))
