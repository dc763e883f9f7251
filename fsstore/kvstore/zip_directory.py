"""The directory of a ZIP archive: from bytes to a table, without I/O.

An archive ends with an end record (with up to 64 KiB of comment).  Before it stands the central directory, one record
for each member.  Archives beyond the 32-bit limits have a second end record (ZIP64), found through a locator before the
first.  Offsets count from the start of the archive, which need not be the start of the file: programs put an unpacker
in front.  `shift` is the difference.

The table is columnar: finding the records is one cheap loop, because their lengths chain; everything else is numpy.
Names are raw bytes as text (`key_text`), as in TensorStore.  If members share a name, the last one counts: append-only
writers replace a member that way.

Refused as unreadable: several disks, bytes after the end record, records that do not chain.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from fsstore.errors import DataLossError, OutOfRangeError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import UNKNOWN, Buffer, KvPrefix, Read, now
from fsstore.kvstore.contract.request import KeyRange, key_bytes, key_text, keys_bytes, keys_texts
from fsstore.kvstore.dated_file import dated
from fsstore.runtime import execution
from fsstore.runtime.together import ChangedError, until_unchanged
from fsstore.values.detection import Detection
from fsstore.values.json_value import quote

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_LENGTHS = struct.Struct("<3H")
_RECORD = np.dtype(
    [
        ("signature", "<u4"),
        ("made_by", "<u2"),
        ("needs", "<u2"),
        ("flags", "<u2"),
        ("method", "<u2"),
        ("time", "<u4"),
        ("crc", "<u4"),
        ("packed", "<u4"),
        ("size", "<u4"),
        ("name_length", "<u2"),
        ("extra_length", "<u2"),
        ("comment_length", "<u2"),
        ("disk", "<u2"),
        ("internal", "<u2"),
        ("external", "<u4"),
        ("offset", "<u4"),
    ]
)
_SIGNATURE = 0x02014B50
_ONES = 0xFFFFFFFF  # means that the ZIP64 record holds the number

OVERLAPS = -1
"""The `slack` of a member that shares bytes with the next one, which no honest archive has."""

TAIL = 65535 + _END.size + _LOCATOR.size + _END64.size
"""Bytes at the end of the file that are sure to hold all end records."""


class DirectoryEnd(NamedTuple):
    """The end records: where the directory is (relative to the archive), and where the file must end."""

    entries: int
    directory_offset: int
    directory_size: int
    trailer: int
    """Bytes between the directory and the end of the file, given the positions of the end records."""
    comment: bytes = b""

    @property
    def expected_size(self) -> int:
        """The size of the file if the archive starts at its beginning."""
        return self.directory_offset + self.directory_size + self.trailer


class RawDirectory(NamedTuple):
    """The bytes of a directory at `start` of the file; its offsets count from `shift`."""

    data: bytes
    entries: int
    shift: int
    start: int
    comment: bytes
    known: bytes = b""
    """Bytes before the directory that the same read returned."""


class ArchiveMember(NamedTuple):
    """A member as the directory describes it; `offset` is the position of its local header in the file."""

    name: str
    offset: int
    packed: int
    size: int
    crc: int
    method: int
    flags: int
    slack: int
    """Bytes to read besides the packed data so that the local header is surely or very likely included; `OVERLAPS` if
    the member reaches into another one.
    """


_FIELDS = ArchiveMember._fields[1:]  # without the name


def find_end(tail: bytes) -> DirectoryEnd:
    """Return the end of the archive whose last bytes are `tail` (`TAIL` of them, or the whole file)."""
    at = _last_end(tail)
    fields = _END.unpack_from(tail, at)
    _, disk, start_disk, here, entries, size, offset, _ = fields
    locator = at - _LOCATOR.size
    if locator >= 0 and tail[locator : locator + 4] == b"PK\6\7":
        return _find_end64(tail, locator, _LOCATOR.unpack_from(tail, locator))._replace(comment=tail[at + _END.size :])
    if 0xFFFF in (here, entries) or _ONES in (size, offset):
        raise DataLossError("Failed to find ZIP64 EOCD locator")
    if disk or start_disk or here != entries:
        raise UnimplementedError("ZIP archives of several disks are not supported")
    return DirectoryEnd(entries, offset, size, len(tail) - at, tail[at + _END.size :])


def _last_end(tail: bytes) -> int:
    """Return the position of the last end record whose comment ends where the file does."""
    at = len(tail)
    while (at := tail.rfind(b"PK\5\6", 0, at)) >= 0:
        if at + _END.size <= len(tail) and at + _END.size + _END.unpack_from(tail, at)[7] == len(tail):
            return at
    raise DataLossError("Failed to find valid ZIP EOCD")


def _is_archive(head: bytes, tail: bytes) -> bool:  # noqa: ARG001  # the contract of `Detection.matches`
    try:
        return _last_end(tail) >= len(tail) - _END.size - 4096
    except DataLossError:
        return False


DETECT = Detection("zip", "store", matches=_is_archive, tail=_END.size + 4096 + 26, usual_head=b"PK")
"""An archive is recognised by its end record, unless its comment is longer than 4 KiB."""


def _find_end64(tail: bytes, locator: int, fields: tuple[Any, ...]) -> DirectoryEnd:
    _, disk, _, disks = fields
    at = tail.rfind(b"PK\6\6", 0, locator)
    if at < 0 or at + _END64.size > locator:
        raise DataLossError("Failed to find valid ZIP64 EOCD")
    _, length, _, _, this, start, here, entries, size, offset = _END64.unpack_from(tail, at)
    if at + 12 + length != locator:
        raise DataLossError("ZIP64 EOCD does not end at its locator")
    if disk or this or start or disks > 1 or here != entries:
        raise UnimplementedError("ZIP archives of several disks are not supported")
    return DirectoryEnd(entries, offset, size, len(tail) - at)


@dataclass(frozen=True, eq=False)
class Directory:
    """The members of an archive.  `index` maps names to rows of the table, whose columns are the fields of a member."""

    index: dict[str, int]
    table: npt.NDArray[np.int64]

    @cached_property
    def _ordered(self) -> list[bytes]:
        return sorted(keys_bytes(list(self.index)))

    def names(self, keys: KeyRange) -> list[bytes]:
        """Return the names in a range as bytes, sorted."""
        low, high = keys.inclusive_min, keys.exclusive_max
        start = bisect_left(self._ordered, low)
        stop = bisect_left(self._ordered, high) if high else None
        return self._ordered[start:stop]

    def member(self, name: str) -> ArchiveMember | None:
        """Return the member called `name`, or None."""
        row = self.index.get(name)
        if row is None:
            return None
        return ArchiveMember(name, *self.table[row].tolist())

    def sizes(self, names: Sequence[bytes]) -> list[int]:
        """Return the uncompressed sizes of members."""
        rows = [self.index[name] for name in keys_texts(names)]
        sizes: list[int] = self.table[rows, _FIELDS.index("size")].tolist()
        return sizes


def parse_directory(data: bytes, entries: int, *, shift: int, limit: int, known: bytes = b"") -> Directory:
    """Return the directory whose bytes are `data`.

    `shift` is added to offsets; `limit` is the start of the directory in the file, which no member may reach.  `known`
    are bytes before it, if available: local headers in them must have the same names as the directory.
    """
    starts = _record_starts(data, entries)
    block = np.frombuffer(data, np.uint8)[starts[:, None] + np.arange(_RECORD.itemsize)]
    records = np.ascontiguousarray(block).view(_RECORD).reshape(-1)
    if (records["signature"] != _SIGNATURE).any():
        raise DataLossError("ZIP central directory record has a wrong signature")
    names = _names(data, starts + _RECORD.itemsize, records["name_length"].astype(np.int64))
    columns = {name: records[name].astype(np.int64) for name in ("crc", "method", "flags", "packed", "size", "offset")}
    _widen(data, starts, records, columns)
    columns["offset"] += shift
    columns["slack"] = _slack(columns, records, limit)
    _compare_names(names, (columns["offset"] - (limit - len(known))).tolist(), known)
    hidden = {name for name in set(names) if is_hidden(name)}
    index = {name: row for row, name in enumerate(names) if name not in hidden} if hidden else _rows(names)
    return Directory(index, np.stack([columns[field] for field in _FIELDS], axis=1))


def _rows(names: list[str]) -> dict[str, int]:
    return dict(zip(names, range(len(names)), strict=True))


def _record_starts(data: bytes, entries: int) -> npt.NDArray[np.int64]:
    """Return the starts of the records; they must chain, fill `data`, and be `entries` in number."""
    starts: list[int] = []
    at, end, unpack = 0, len(data), _LENGTHS.unpack_from
    fixed = _RECORD.itemsize
    while at + fixed <= end:
        starts.append(at)
        name, extra, comment = unpack(data, at + 28)
        at += fixed + name + extra + comment
    if at != end or len(starts) != entries:
        raise DataLossError(f"ZIP central directory is damaged: {len(starts)} of {entries} records found")
    return np.array(starts, np.int64)


def _names(data: bytes, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> list[str]:
    bounds = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
    return [key_text(data[low:high]) for low, high in bounds]


def _compare_names(names: list[str], offsets: list[int], known: bytes) -> None:
    """Raise if a local header in `known` has another name than the directory: the key would be missing, and missing
    keys read as fill values.
    """
    fixed = 30
    for name, at in zip(names, offsets, strict=True):
        if at >= 0 and known.startswith(b"PK\3\4", at) and at + fixed <= len(known):
            start = at + fixed
            if not known.startswith(key_bytes(name), start):
                raise misnamed(name, known[start : start + int.from_bytes(known[at + 26 : at + 28], "little")])


def misnamed(name: str, local: bytes) -> DataLossError:
    """Return the error for a member whose local header has another name than the directory."""
    return DataLossError(
        f"the ZIP directory calls a member {quote(name)}, but its own header {quote(key_text(local))}; "
        "the archive is damaged: get an intact copy"
    )


def is_hidden(name: str) -> bool:
    """Return whether a name is not a key: directories, absolute names, and names that climb."""
    if not name or name.endswith("/") or name.startswith("/"):
        return True
    return ".." in name and ".." in name.replace("\\", "/").split("/")


def _widen(data: bytes, starts: Any, records: Any, columns: dict[str, npt.NDArray[np.int64]]) -> None:
    """Replace all-ones fields by the 64-bit values in the extra field 0x0001, which holds only those, in order."""
    large = {name: records[name] == _ONES for name in ("size", "packed", "offset")}
    for row in np.flatnonzero(np.any(list(large.values()), axis=0)).tolist():
        low = int(starts[row]) + _RECORD.itemsize + int(records["name_length"][row])
        names = [name for name, is_large in large.items() if is_large[row]]
        values = _zip64_values(data[low : low + int(records["extra_length"][row])])
        if len(values) < len(names) or max(values) >= 2**61:
            raise DataLossError("ZIP64 extra field lacks a value")
        for name, value in zip(names, values, strict=False):
            columns[name][row] = value


def _zip64_values(extra: bytes) -> list[int]:
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        body = extra[at + 4 : at + 4 + length]
        if kind == 1:
            return [int(value) for value in struct.unpack_from(f"<{len(body) // 8}Q", body)]
        at += 4 + length
    return []


def _slack(columns: dict[str, npt.NDArray[np.int64]], records: Any, limit: int) -> npt.NDArray[np.int64]:
    """Return the bytes to read besides the packed data of each member: up to the next member, if it is near.

    The local header may be longer than the directory tells.  A read up to the next header (or the directory) is sure to
    include it; if that is too far, a guess is made and checked later.
    """
    offset = columns["offset"]
    guess = 30 + records["name_length"].astype(np.int64) + records["extra_length"] + 64
    order = np.sort(offset)
    following = np.append(order, limit)[np.searchsorted(order, offset, side="right")]
    room = following - offset - columns["packed"]
    least = 30 + records["name_length"].astype(np.int64)
    slack = np.where(room <= guess + 4096, room, guess)
    shared = (room < least) | (np.searchsorted(order, offset, side="right") - np.searchsorted(order, offset) > 1)
    bounded: npt.NDArray[np.int64] = np.minimum(slack, limit - offset - columns["packed"])
    return np.where(shared, OVERLAPS, bounded)


# The file of a ZIP archive: ranges of it, and its directory, cached as long as the generation of the file stays.  Every
# range must come from the generation of the directory; otherwise `ChangedError` tells the caller to plan anew.  In a
# store without versions the date of the file stands in for its generation; without a date, too, the directory is read
# for every batch.


@dataclass(frozen=True, slots=True, eq=False)
class Archive:
    """The directory of one generation of the archive.  `starts` caches the positions of members' data."""

    directory: Directory
    generation: bytes
    time: float
    starts: dict[str, int]


class ZipSource:
    """The archive file at `base`, and its directory as last read (`archive`)."""

    def __init__(self, base: KvPrefix) -> None:
        self.base = base
        self.archive: Archive | None = None

    async def ranges(self, archive: Archive, spans: list[tuple[int, int]]) -> list[Buffer]:
        """Return ranges of the archive; raise `ChangedError` unless it still has the generation of the directory."""
        if not spans:
            return []
        try:
            results = await self.base.read_many([Read("", low, high) for low, high in spans])
        except OutOfRangeError as error:
            if not await self.is_current(archive, ()):
                raise ChangedError from None
            raise self._damaged(error) from error
        if any(result.generation != archive.generation for result in results):
            raise ChangedError
        return [result.value for result in results]

    def _damaged(self, error: StoreError) -> StoreError:
        return DataLossError(f"{self.base.describe()} is cut off: {error.message}")

    async def is_current(self, archive: Archive, reads: Sequence[Read]) -> bool:
        """Return whether the archive still has the directory's generation, or had it recently enough for `reads`."""
        if reads and max(read.staleness_bound for read in reads) <= archive.time:
            return True
        if archive.generation == UNKNOWN:
            return False
        found = (await self.base.read_many([Read("", 0, 1, archive.generation)]))[0]
        if found.state != "unspecified":
            return False
        if self.archive is archive:
            self.archive = Archive(archive.directory, archive.generation, now(), archive.starts)
        return True

    async def load(self, archive: Archive | None) -> Archive | None:
        """Return the current archive: `archive` if it is still current; None if there is no file."""
        if archive is not None and await self.is_current(archive, ()):
            return archive
        self.archive = await until_unchanged(self._load_once, self.base.describe, reads=True)
        return self.archive

    async def _load_once(self) -> Archive | None:
        stamped = now()
        tail = await self.base.read_up_to(-TAIL)
        whole = len(tail.value) < TAIL
        if tail.state == "missing":
            return None
        generation = tail.generation
        if generation == UNKNOWN:
            self.base, generation = await dated(self.base, tail.time)
        try:
            raw = await self._raw(bytes(tail.value), generation, whole=whole)
            directory = await execution.offload(
                lambda: parse_directory(raw.data, raw.entries, shift=raw.shift, limit=raw.start, known=raw.known)
            )
        except StoreError as error:
            raise error.within(f"Error reading {self.base.describe()}") from error
        return Archive(directory, generation, stamped, {})

    async def raw(self, archive: Archive) -> RawDirectory:
        """Return the directory of an archive as bytes; raise `ChangedError` if it was replaced."""
        tail = await self.base.read_up_to(-TAIL)
        whole = len(tail.value) < TAIL
        if tail.generation != archive.generation:
            raise ChangedError
        return await self._raw(bytes(tail.value), tail.generation, whole=whole)

    async def _raw(self, tail: bytes, generation: bytes, *, whole: bool) -> RawDirectory:
        end = find_end(tail)
        size = len(tail)
        if not whole:  # bytes after the expected end show that the archive does not start the file
            size = end.expected_size + len(await self._bytes(generation, end.expected_size, None))
        shift = size - end.expected_size
        start = size - end.trailer - end.directory_size
        if shift < 0 or start < 0:
            raise OutOfRangeError(f"ZIP directory at {end.directory_offset} does not fit into {size} bytes")
        first = start - (size - len(tail))
        if first >= 0:
            data = tail[first : first + end.directory_size]
        else:
            data = bytes(await self._bytes(generation, start, start + end.directory_size))
        return RawDirectory(data, end.entries, shift, start, end.comment, tail[: max(first, 0)])

    async def _bytes(self, generation: bytes, start: int, stop: int | None) -> Buffer:
        found = await self.base.read("", start, stop)
        if found.generation not in (UNKNOWN, generation):
            raise ChangedError
        return found.value
