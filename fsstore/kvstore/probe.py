"""One step of format detection: which requests it makes of a store, and what they find.

A path that may be a file is asked for its first and last bytes together; a file shorter than that is read whole.
Only a file that looks like a reference set is asked for more.  A file that exists hides a directory of the same name,
unless it is empty.  A directory is asked for the names that TensorStore looks for, and where none is there, for those
of groups, parquet reference sets and repositories.  No file is ever read whole that is not small.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from fsstore import registry
from fsstore._json import loads
from fsstore.compression import DETECT as COMPRESSED
from fsstore.detection import Detection, match_file, match_files, settle, sizes
from fsstore.errors import FailedPreconditionError, OutOfRangeError, StoreError
from fsstore.foreign_format import FOREIGN, IMAGES
from fsstore.kvstore.contract import KvPrefix, Read, ReadResult
from fsstore.kvstore.opened import OpenKv
from fsstore.kvstore.reference.detect import DETECT as REFERENCE
from fsstore.kvstore.reference.detect import is_parquet_index

__all__ = ["Found", "detections", "find", "looked_for"]

_LATER = ("repo", "refs/branch.main/ref.json")
_GROUPS = (".zgroup", ".zmetadata")


@dataclass(frozen=True, slots=True)
class Found:
    """The format of a place, and whether the place is a file."""

    detection: Detection
    is_file: bool

    @property
    def title(self) -> str:
        """What messages call the format."""
        return self.detection.title or self.detection.name

    def place(self, kvstore: OpenKv) -> str:
        """Return the path in the form the format wants: that of a directory ends with a slash."""
        path = kvstore.path
        return path if self.is_file or not path or path.endswith("/") else path + "/"


@dataclass(frozen=True, slots=True)
class _Known:
    """What every format looks like, and what has to be read to tell: first and last bytes, names in a directory."""

    formats: tuple[Detection, ...]
    head: int
    tail: int
    names: tuple[str, ...]


def detections() -> tuple[Detection, ...]:
    """Return what every format looks like, those of plug-ins included."""
    return _all_known().formats


def _all_known() -> _Known:
    return _known(tuple(registry.detections.names()))


@cache
def _known(names: tuple[str, ...]) -> _Known:
    formats = (*IMAGES, *FOREIGN, *COMPRESSED, *filter(None, map(registry.detections.get, names)))
    files = dict.fromkeys(name for each in formats for name in each.files if name not in _LATER)
    return _Known(formats, *sizes(formats), tuple(files))


def looked_for() -> str:
    """Return what detection looks for, for messages."""
    names = detections()
    files = sorted(f"{each.files[0]} ({each.name})" for each in names if each.files)
    signed = sorted({each.name for each in names if each.is_of_files})
    return (
        f"there is neither a file that begins or ends like {', '.join(signed)},"
        f" nor a directory with one of {', '.join(files)}"
    )


def _is_single(kvstore: OpenKv) -> bool:
    """Return whether a store shows a file under the empty path: what is compressed."""
    return not kvstore.path and getattr(kvstore.spec.kind, "single_file", False)


def _is_path_of_file(kvstore: OpenKv) -> bool:
    """Return whether the place may be a file: by its path, or by a root that names it."""
    if kvstore.path:
        return not kvstore.path.endswith("/")
    if _is_single(kvstore):
        return True
    url = kvstore.spec.members.get("url") if kvstore.spec.base is None else None
    return isinstance(url, str) and not url.partition("?")[0].endswith("/")


async def find(kvstore: OpenKv) -> Found | None:
    """Return the format of a place; None where no format fits a directory that has no file of one, or is a group.

    Raises `FailedPreconditionError` if a file is of no format, or if several formats fit.
    """
    known = _all_known()
    if _is_path_of_file(kvstore):
        matched = await _file(kvstore, known)
        if matched is not None or _is_single(kvstore):
            if not matched:
                raise FailedPreconditionError(
                    f"Failed to detect format for {kvstore.prefix.describe()}: {looked_for()}"
                )
            return Found(_single(matched, kvstore), is_file=True)
    place = Found(REFERENCE, is_file=False).place(kvstore) or ("/" if _is_path_of_file(kvstore) else "")
    matched = await _directory(kvstore.at(place).prefix, known)
    return Found(_single(matched, kvstore), is_file=False) if matched else None


def _single(matched: Sequence[Detection], kvstore: OpenKv) -> Detection:
    names = dict.fromkeys(
        each.name for each in sorted(matched, key=lambda each: (each.role == "store", each.name))
    )
    if len(names) > 1:
        raise FailedPreconditionError(
            f"Multiple possible formats detected for {kvstore.prefix.describe()}: {{{', '.join(names)}}};"
            " name the one that is meant in the URL"
        )
    return matched[0]


async def _file(kvstore: OpenKv, known: _Known) -> list[Detection] | None:
    """Return the formats that a file can be of; None if there is no file, or an empty one."""
    place = kvstore.prefix
    try:
        if getattr(kvstore.spec.kind, "sequential", False):
            first, last = await _ends_in_order(place, known)
        else:
            first, last = await _ends(place, known)
    except StoreError as error:
        raise error.within(f"Format auto-detection failed: Error reading {place.describe()}") from error
    if not first:
        return None
    matched = match_file(known.formats, first, last)
    wanted = max((each.confirm_head for each in matched), default=0)
    whole = first is last or len(first) < known.head
    return settle(matched, await _beginning(place, wanted) if wanted and not whole else first)


async def _ends(place: KvPrefix, known: _Known) -> tuple[bytes, bytes]:
    """Return the first and the last bytes of a file; all of it twice if it is shorter than either."""
    try:
        first, last = await place.read_many([Read("", 0, known.head), Read("", -known.tail)])
    except OutOfRangeError:
        whole = bytes((await place.read()).value)
        return whole, whole
    return bytes(first.value), bytes(last.value)


async def _ends_in_order(place: KvPrefix, known: _Known) -> tuple[bytes, bytes]:
    """Return the first bytes, and the last ones if some format that needs them begins like the file."""
    head = await _beginning(place, known.head)
    if any(each.tail and head.startswith(each.usual_head) for each in known.formats):
        return await _ends(place, known)
    return head, b""


async def _beginning(place: KvPrefix, size: int) -> bytes:
    """Return the first `size` bytes of a file, or all of a shorter one."""
    try:
        return bytes((await place.read("", 0, size)).value)
    except OutOfRangeError:
        return bytes((await place.read()).value)


async def _directory(place: KvPrefix, known: _Known) -> list[Detection]:
    """Return the formats that a directory can be of."""
    present = await _present(place, known.names)
    matched = match_files(known.formats, present)
    if matched:
        return matched
    present = await _present(place, [*_GROUPS, *_LATER])
    if ".zmetadata" in present and await _is_parquet_set(place):
        return [REFERENCE]
    if ".zgroup" in present:
        return []
    return match_files(known.formats, present)


async def _is_parquet_set(place: KvPrefix) -> bool:
    answer = await place.read(".zmetadata")
    try:
        return answer.state == "value" and is_parquet_index(loads(answer.value, lenient=True))
    except StoreError:
        return False


async def _present(place: KvPrefix, names: Sequence[str]) -> set[str]:
    """Return which of the keys exist, asked in one batch; one that cannot be read does not spoil the others."""
    try:
        answers: Sequence[ReadResult] = await place.read_many([Read(name, 0, 0) for name in names])
        return {name for name, answer in zip(names, answers, strict=True) if answer.state != "missing"}
    except StoreError as error:
        failure = error
    present = set()
    for name in names:
        try:
            if (await place.read(name, 0, 0)).state != "missing":
                present.add(name)
        except StoreError as error:
            failure = error
    if not present:
        raise failure.within(f"Format auto-detection failed: Error reading {place.describe()}") from failure
    return present
