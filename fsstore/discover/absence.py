"""The content of a place where no array was found, in a few words, for messages: nothing, a file, other things.

A failed open has asked enough already, so a store that waits is not asked again.  Local files and memory are: whether
something is there, and which name in the same directory is close to the one that is missing.
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import PurePosixPath

from fsstore.errors import StoreError
from fsstore.kvstore.contract.ability import ListsNames, able
from fsstore.kvstore.contract.driver import KvDriver, KvPrefix
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.spec.opening import as_directory
from fsstore.values import registry
from fsstore.values.detection import Detection, match_file, match_files, settle, sizes
from fsstore.values.json_value import quote

__all__ = ["UNKNOWN_FILE", "close_name", "instead_of_metadata", "no_array"]

UNKNOWN_FILE = (
    "the file begins like no format that is known here; name its driver in the URL if it has one, as in"
    ' "…|json:", or read its bytes with KvStore.open'
)
_CREATE = '; check the path, or name a format to create an array, as in "…|zarr3:"'

_GROUPS = (".zgroup", ".zmetadata", "zarr.json", "attributes.json")


async def no_array(place: KvPrefix, *, bare: bool) -> str:
    """Return what is at a place without an array; `bare` says that its store lists nothing there."""
    if place.driver.features.waits:
        if bare:
            return "nothing is stored under this path; check it, or list what is there with KvStore.open(…).list()"
        return "there is neither a file of a known format nor the metadata of an array; check the path"
    if place.path and not place.path.endswith("/"):
        answer = await place.read("", 0, 0)
        if answer.state != "missing":
            return "the file is empty" if answer.size == 0 else UNKNOWN_FILE
    path = as_directory(place.path)
    names = await _names(place.driver, path)
    if any(name in _GROUPS for name in names):
        return "it is a group without arrays"
    if names:
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        shown = ", ".join(map(quote, names[:3]))
        return f"it is a directory that holds {shown}{more}, but no array"
    if await _is_listed(place):
        return f"the directory is empty{_CREATE}"
    return f"there is nothing{await close_name(place) or _CREATE}"


async def instead_of_metadata(place: KvPrefix) -> str:
    """Return what stands at the directory of an array whose metadata are missing, to be added to the message."""
    if place.driver.features.waits or not place.path.endswith("/"):
        return ""
    names = await _names(place.driver, place.path)
    known = match_files(_registered(), set(names))
    if ".zgroup" in names:
        return "; it is a group, which open_group opens"
    if known:
        return f"; what is there is of {known[0].name}, and opens without a format in the URL"
    if names:
        return ""
    if await _is_listed(place):
        return "; its place is a file, whose format is found where the URL names none"
    return await close_name(place)


async def close_name(place: KvPrefix) -> str:
    """Return `; did you mean "a.zarr"?` if a name beside the missing one is close to it, else nothing.

    If directories of the path are missing too, the first missing name is compared.
    """
    if place.driver.features.waits:
        return ""
    path = place.path.rstrip("/")
    while path:
        parent, slash, name = path.rpartition("/")
        names = await _names(place.driver, parent + slash)
        if names:
            if name in names:
                return await _inside(place._replace(path=path), place.path[len(path) :].strip("/"))
            close = _closest(name, names)
            return f"; did you mean {quote(close)}?" if close else ""
        path = parent
    return ""


async def _inside(place: KvPrefix, rest: str) -> str:
    """Return how a path that goes on inside a file is written, if it is a file that it goes on in."""
    if not rest:
        return ""
    known = _registered()
    first = await place.read_up_to(max(sizes(known)[0], *[each.confirm_head for each in known]))
    if first.state == "missing":
        return ""
    file, head = place.path.rpartition("/")[2], bytes(first.value)
    stores = [each.name for each in settle(match_file(known, head, head), head) if each.role == "store"]
    if len(stores) != 1:
        return f"; {quote(file)} is a file, and no directory"
    shown = quote(f"{file}|{stores[0]}:{rest}")
    return f"; {quote(file)} is a file, whose format comes before the path inside it, as in {shown}"


def _registered() -> tuple[Detection, ...]:
    return tuple(filter(None, map(registry.detections.get, registry.detections.names())))


def _closest(name: str, names: list[str]) -> str | None:
    """Return the name that is closest without what follows the last dot, which all names of a directory may share.

    Names often share a few letters by chance, so one letter of four may differ; of shorter names, one letter.
    """
    stem = PurePosixPath(name).stem
    stems = {PurePosixPath(each).stem: each for each in reversed(names)}
    close = get_close_matches(stem, list(stems), n=1, cutoff=0.75 if len(stem) > 3 else 0.6)
    return stems[close[0]] if close else None


async def _is_listed(place: KvPrefix) -> bool:
    """Return whether the directory above a place lists its name."""
    parent, slash, name = place.path.rstrip("/").rpartition("/")
    return bool(name) and name in await _names(place.driver, parent + slash)


async def _names(driver: KvDriver, directory: str) -> list[str]:
    """Return the names directly in a directory, sorted; of a store that cannot tell them, those of one look."""
    lists = able(driver, ListsNames)
    if lists is not None:
        return sorted(await lists.names(directory))
    if not driver.features.listable:
        return []
    try:
        async for batch in driver.scan(KeyRange.prefix(directory)):
            return sorted({entry.key[len(directory) :].partition("/")[0] for entry in batch} - {""})
    except StoreError:  # a listing that fails has no names, and the message is about something else
        pass
    return []
