"""One step of format detection: its requests to a store, its findings, and the message when nothing is found.

The first and last bytes of a path that may be a file are read together.  A shorter file is read whole, more is
read only of one that looks like a reference set.  A file that exists hides a directory of the same name, unless it is
empty or a page of HTML, which is what web servers send for directories.  In a directory, the names that TensorStore
looks for are read; if none exists, the marks of formats that TensorStore does not know, unless the store lists nothing
there.  Only small files and the metadata of an array are read whole: opening the array begins with the metadata, so
they are passed on and not read twice.

Answers stay valid for the rest of a detection: adapters on the way are not checked for changes again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from pathlib import PurePosixPath

from fsstore.errors import FailedPreconditionError, OutOfRangeError, StoreError
from fsstore.kvstore.contract.ability import ListsNames, able
from fsstore.kvstore.contract.driver import KvDriver, KvPrefix, Read, ReadResult, ReadUpTo
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.root.chain_url import names_file
from fsstore.kvstore.spec_parse import OpenKv, as_directory
from fsstore.values import registry
from fsstore.values.detection import DETECT as COMPRESSED
from fsstore.values.detection import FOREIGN, IMAGES, Detection, is_page, match_file, match_files, settle, sizes
from fsstore.values.json_value import loads, quote

UNKNOWN_FILE = (
    "the file begins like no format that is known here; name its driver in the URL if it has one, as in"
    ' "…|json:", or read its bytes with KvStore.open'
)
_CREATE = '; check the path, or create an array with mode="w", shape and dtype'
NOTHING = "there is nothing"

_GROUPS = (".zgroup", ".zmetadata", "zarr.json", "attributes.json")


async def no_array(place: KvPrefix, *, bare: bool) -> str:
    """Return, for the message, the contents of a place without an array; `bare`: its store lists nothing there."""
    if place.driver.features.waits:
        if bare:
            return f"{NOTHING}; check the path, or list what is there with KvStore.open(…).list()"
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
    return f"{NOTHING}{await close_name(place) or _CREATE}"


async def instead_of_metadata(place: KvPrefix) -> str:
    """Return the contents of the directory of an array without metadata, for the message."""
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
    """Return `; did you mean "a.zarr"?` if a name beside the missing one is similar, else nothing.

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
    """Return how to write a path that continues inside a file, if its first part is a file."""
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
    """Return the most similar name, compared without suffixes, which all names of a directory may share.

    Names often share a few letters by chance, so one letter of four may differ; in shorter names, one letter.
    """
    stem = PurePosixPath(name).stem
    stems = {PurePosixPath(each).stem: each for each in reversed(names)}
    close = get_close_matches(stem, list(stems), n=1, cutoff=0.75 if len(stem) > 3 else 0.6)
    return stems[close[0]] if close else None


async def _is_listed(place: KvPrefix) -> bool:
    parent, slash, name = place.path.rstrip("/").rpartition("/")
    return bool(name) and name in await _names(place.driver, parent + slash)


async def _names(driver: KvDriver, directory: str) -> list[str]:
    """Return the names directly in a directory, sorted; where a store cannot list a level, those of one page."""
    lists = able(driver, ListsNames)
    if lists is not None:
        return sorted(await lists.names(directory))
    if not driver.features.listable:
        return []
    try:
        async for batch in driver.scan(KeyRange.prefix(directory)):
            return sorted({entry.key[len(directory) :].partition("/")[0] for entry in batch} - {""})
    except StoreError:  # without a listing there are no names to suggest; the message is about another error
        pass
    return []


_INDEX, _GROUP = ".zmetadata", ".zgroup"
_LATER = ("repo", "refs/branch.main/ref.json")


@dataclass(frozen=True, slots=True)
class FoundFormat:
    """The format of a place, or None for a group or a directory of no format.

    `answers` are the known contents of the directory by key: whole values of metadata, and missing keys. A directory is
    `bare` if its store lists nothing in it.
    """

    detection: Detection | None
    is_file: bool
    answers: Mapping[str, ReadResult] = field(default_factory=dict)
    bare: bool = False

    @property
    def name(self) -> str | None:
        """The name of the format, or None."""
        return None if self.detection is None else self.detection.name

    @property
    def title(self) -> str:
        """The name of the format in messages."""
        return "of no format" if self.detection is None else self.detection.title or self.detection.name

    def place(self, kvstore: OpenKv) -> str:
        """Return the path in the form that the format requires: that of a directory ends with a slash."""
        return kvstore.path if self.is_file else as_directory(kvstore.path)


@dataclass(frozen=True, slots=True)
class _Known:
    """The signatures of all formats, and the reads they need: first and last bytes, names in a directory."""

    formats: tuple[Detection, ...]
    head: int
    tail: int
    reads: tuple[Read, ...]


def _sets(known: _Known) -> list[Detection]:
    return [each for each in known.formats if each.name == "reference"]


def _is_parquet_index(document: object) -> bool:
    """Return whether the document `.zmetadata` is that of a parquet directory, not consolidated zarr metadata."""
    return isinstance(document, dict) and "record_size" in document and isinstance(document.get("metadata"), dict)


def detections() -> tuple[Detection, ...]:
    """Return the signatures of all formats, including those of plug-ins."""
    return _all_known().formats


def _all_known() -> _Known:
    return _known(tuple(registry.detections.names()))


@cache
def _known(names: tuple[str, ...]) -> _Known:
    formats = (*IMAGES, *FOREIGN, *COMPRESSED, *filter(None, map(registry.detections.get, names)))
    files = dict.fromkeys(name for each in formats for name in each.files if name not in _LATER)
    whole = {name for each in formats if each.read_whole for name in each.files}
    reads = [Read(name) if name in whole else Read(name, 0, 0) for name in files]
    return _Known(formats, *sizes(formats), tuple(reads))


def looked_for() -> str:
    """Return the names and signatures that detection looks for, for messages."""
    names = detections()
    files = sorted(f"{each.files[0]} ({each.name})" for each in names if each.files)
    signed = sorted({each.name for each in names if each.is_of_files})
    return f"a file that begins or ends like {', '.join(signed)}; a directory with one of {', '.join(files)}"


def _undetected(error: StoreError, place: KvPrefix) -> StoreError:
    """Return the error of a failed read as one of detection; most stores have named the key already."""
    reading = f"Error reading {place.describe()}"
    said = error if error.message.startswith(f"{reading}: ") else error.within(reading)
    return said.within("Format auto-detection failed")


def _is_single(kvstore: OpenKv) -> bool:
    """Return whether a store has one file at the empty path, like compressed files."""
    return not kvstore.path and kvstore.spec.kind.single_file


def _is_path_of_file(kvstore: OpenKv) -> bool:
    """Return whether the place may be a file: by its path, or because the root of its store names a file."""
    if kvstore.path:
        return not kvstore.path.endswith("/")
    if _is_single(kvstore):
        return True
    url = kvstore.spec.members.get("url") if kvstore.spec.base is None else None
    return isinstance(url, str) and names_file(url)


async def find(
    kvstore: OpenKv, since: float = math.inf, prefer: str | None = None, *, beside: Sequence[str] = ()
) -> FoundFormat:
    """Return the format of a place; answers of its store that are as new as `since` are not requested again.

    If several formats fit and the array format `prefer` is among them, it is chosen. Documents `beside` are read with
    the other names; if they are those of a group of zarr v2, nothing else is read. Raises `FailedPreconditionError` if
    a file is of no format, or if several formats fit.
    """
    known = _all_known()
    if _is_path_of_file(kvstore):
        matched = await _file(kvstore, known)
        if matched is not None or _is_single(kvstore):
            if not matched:
                raise FailedPreconditionError(
                    f"Failed to detect format for {kvstore.prefix.describe()}: {UNKNOWN_FILE}"
                )
            return FoundFormat(_single(matched, kvstore), is_file=True)
    place = FoundFormat(None, is_file=False).place(kvstore) or ("/" if _is_path_of_file(kvstore) else "")
    known = replace(known, reads=(*known.reads, *map(Read, beside))) if beside else known
    return await _directory(kvstore.at(place), known, since, prefer)


def _single(matched: Sequence[Detection], kvstore: OpenKv, prefer: str | None = None) -> Detection:
    names = dict.fromkeys(each.name for each in sorted(matched, key=lambda each: (each.role == "store", each.name)))
    if len(names) > 1 and prefer in names:
        return next(each for each in matched if each.name == prefer)
    if len(names) > 1:
        raise FailedPreconditionError(
            f"Multiple possible formats detected for {kvstore.prefix.describe()}: {{{', '.join(names)}}};"
            " name the one that is meant in the URL"
        )
    return matched[0]


async def _file(kvstore: OpenKv, known: _Known) -> list[Detection] | None:
    """Return the formats that fit a file; None if the file is missing, empty, or the page of a directory."""
    place = kvstore.prefix
    try:
        if kvstore.spec.kind.sequential:
            first, last = await _ends_in_order(place, known)
        else:
            first, last = await _ends(place, known)
    except StoreError as error:
        raise _undetected(error, place) from error
    if not first:
        return None
    matched = match_file(known.formats, first, last)
    if not matched and is_page(first):
        return None
    wanted = max((each.confirm_head for each in matched), default=0)
    whole = first is last or len(first) < known.head
    return settle(matched, await _beginning(place, wanted) if wanted and not whole else first)


async def _ends(place: KvPrefix, known: _Known) -> tuple[bytes, bytes]:
    """Return the first and the last bytes of a file; of a shorter file, all bytes twice."""
    ends = [ReadUpTo(place.path, 0, known.head), ReadUpTo(place.path, -known.tail)]
    try:
        first, last = [bytes(end.value) for end in await place.driver.read_many(ends)]
    except OutOfRangeError:
        first = last = bytes((await place.read()).value)
    whole = first if len(first) < known.head else last if len(last) < known.tail else None
    return (first, last) if whole is None else (whole, whole)


async def _ends_in_order(place: KvPrefix, known: _Known) -> tuple[bytes, bytes]:
    """Return the first bytes, and the last ones if a format that needs them begins like the file."""
    head = await _beginning(place, known.head)
    if len(head) < known.head:
        return head, head
    if any(each.usual_head and head.startswith(each.usual_head) for each in known.formats):
        return await _ends(place, known)
    return head, b""


async def _beginning(place: KvPrefix, size: int) -> bytes:
    return bytes((await place.read_up_to(size)).value)


async def _directory(kvstore: OpenKv, known: _Known, since: float, prefer: str | None) -> FoundFormat:
    place = kvstore.prefix
    answers = await _ask(place, known.reads, since)
    matched = match_files(known.formats, _present(answers))
    if matched:
        chosen = _single(matched, kvstore, prefer)
        return FoundFormat(chosen, is_file=False, answers=_whole(answers, known.reads))
    reads = list(known.reads)
    if _present(answers).isdisjoint((_INDEX, _GROUP)):
        if kvstore.spec.base is None and await _is_bare(place):
            return FoundFormat(None, is_file=False, answers=_whole(answers, reads), bare=True)
        later = [*([] if _INDEX in answers else [Read(_INDEX)]), *(Read(name, 0, 0) for name in _LATER)]
        reads += later
        answers |= await _ask(place, later, since)
    is_set = _is_parquet_set(answers.get(_INDEX))
    matched = _sets(known) if is_set else match_files(known.formats, _present(answers))
    detection = _single(matched, kvstore) if matched else None
    return FoundFormat(detection, is_file=False, answers=_whole(answers, reads))


def _present(answers: Mapping[str, ReadResult]) -> set[str]:
    return {name for name, answer in answers.items() if answer.state != "missing"}


def _whole(answers: dict[str, ReadResult], reads: Sequence[Read]) -> dict[str, ReadResult]:
    """Return the answers without those of reads that asked for no bytes."""
    asked = {read.key for read in reads if read.stop is None}
    return {key: answer for key, answer in answers.items() if key in asked or answer.state == "missing"}


def _is_parquet_set(index: ReadResult | None) -> bool:
    try:
        return index is not None and index.state == "value" and _is_parquet_index(loads(index.value, lenient=True))
    except StoreError:
        return False


async def _is_bare(place: KvPrefix) -> bool:
    """Return whether a store lists nothing at a place, where a listing is cheaper than a request for every key."""
    features = place.driver.features
    if not (features.waits and features.listable):
        return False
    try:
        async for batch in place.scan():
            if batch:
                return False
    except StoreError:  # listing may not be allowed
        return False
    return True


async def _ask(place: KvPrefix, reads: Sequence[Read], since: float) -> dict[str, ReadResult]:
    """Return the answers by key, requested in one batch; keys that cannot be read have no answer."""
    asked = [Read(key, start, stop, known, since) for key, start, stop, known, _ in reads]
    try:
        found = await place.read_many(asked)
        return {read.key: answer for read, answer in zip(reads, found, strict=True)}
    except StoreError as error:
        failure = error
    answers = {}
    for read in asked:  # a failed read does not spoil the others
        try:
            answers[read.key] = (await place.read_many([read]))[0]
        except StoreError as error:
            failure = error
    if not _present(answers):
        raise _undetected(failure, place) from failure
    return answers
