"""The HDF5 files that one refers to, each opened once.

A relative name starts from the file that says it, as HDF5 has it.  An absolute one that is not there, or may not be
read, is looked for beside the file: such names are those of the machine on which it was written.
"""

from __future__ import annotations

import posixpath
from collections import OrderedDict
from collections.abc import Sequence

from fsstore.errors import NotFoundError, PermissionDeniedError, StoreError
from fsstore.reference.target.policy import is_relative
from fsstore.runtime.together import FirstTouch
from fsstore.scan.hdf5.dataset import Dataset
from fsstore.scan.hdf5.described import described_at
from fsstore.scan.hdf5.open_file import OpenHdf5, refused
from fsstore.scan.hdf5.walk import Objects, Walk
from fsstore.scan.source import ScanSource
from fsstore.scan.tuning import LINKED_DATASETS_KEPT, LINKED_FILES_KEPT

__all__ = ["OtherFiles", "beside"]


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
            while len(self._kept) > LINKED_FILES_KEPT:
                self._kept.pop(next(each for each in self._kept if each))
            out.append(file)
        return out

    async def dataset(self, home: OpenHdf5, name: str, path: str) -> tuple[OpenHdf5, Dataset]:
        """Return a dataset of the file that `home` calls `name`."""
        file = await self.open(home, name)
        known = self._datasets.get((file.url, path))
        if known is None:
            try:
                known = await file.run(lambda: described_at(file.library(), path.strip("/")))
            except KeyError:
                raise NotFoundError(f"There is no dataset {path!r} in {file.source.describe()}") from None
            except (OSError, RuntimeError, ValueError) as error:
                raise refused(error) from error
            if len(self._datasets) >= LINKED_DATASETS_KEPT:
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
