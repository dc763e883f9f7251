"""Links to other files, as if what they lead to lay here.

A group that a link leads to is shown with all below it, the links in it included; a link that leads back to where it
came from is left out, and so is one to a file that is not there or may not be read: each says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from fsstore.errors import NotFoundError, PermissionDeniedError, StoreError, UnimplementedError
from fsstore.runtime import execution
from fsstore.scan.hdf5.open_file import OpenHdf5
from fsstore.scan.hdf5.walk import FileLink, Objects
from fsstore.scan.linked_hdf5.other_file import OtherFiles
from fsstore.scan.tuning import LINKED_AT_ONCE

__all__ = ["Mount", "mounts_of"]

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
        for start in range(0, len(links), LINKED_AT_ONCE):
            some = links[start : start + LINKED_AT_ONCE]
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
