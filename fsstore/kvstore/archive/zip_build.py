"""Making ZIP archives: what stays of an old one, new members behind it, and the directory last.

An archive is planned without input or output: spans of the old file to keep, members to add, and the directory that
names them all.  Old members keep their bytes and what the directory says of them; only where they are changes.  The
same members give the same archive: there are no times in it.  Sizes and places beyond 32 bits, and more than 65,534
members, are written as ZIP64.

New members stand in the order in which readers of zarr want them: documents before chunks, those near the root first.
"""

from __future__ import annotations

import itertools
import lzma
import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

from fsstore.errors import DataLossError, StoreError
from fsstore.kvstore.archive.zip_directory import RawDirectory, is_hidden
from fsstore.kvstore.contract.driver import Buffer
from fsstore.kvstore.contract.request import key_bytes, key_text
from fsstore.values.json_value import quote

__all__ = ["PACKERS", "ArchivePlan", "check_name", "plan_archive"]

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_ONES, _MOST = 0xFFFFFFFF, 0xFFFF
_DAY = 0x21  # 1980-01-01, the first that the format knows
_UNIX, _FILE = 3 << 8, 0o100644 << 16
_UTF8 = 1 << 11
_DOCUMENTS = ("zarr.json", ".zgroup", ".zarray", ".zattrs", ".zmetadata", "attributes.json")


def _deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


def _zstd(data: bytes) -> bytes:
    import zstandard

    packed: bytes = zstandard.ZstdCompressor().compress(data)
    return packed


PACKERS: Mapping[str, tuple[int, Callable[[bytes], bytes] | None]] = MappingProxyType(
    {
        "store": (0, None),
        "deflate": (8, _deflated),
        "zstd": (93, _zstd),
        "xz": (95, lambda data: lzma.compress(data, lzma.FORMAT_XZ)),
    }
)
"""The method of new members by its name in specs, and what compresses them."""


class _Record(NamedTuple):
    """A record of the directory: its fixed fields without offset, its name, extra fields and comment."""

    fields: tuple[Any, ...]
    name: bytes
    extra: bytes
    comment: bytes
    packed: int
    size: int
    offset: int

    def moved(self, offset: int) -> bytes:
        """Return the record for another place of the member."""
        wide = [value for value in (self.size, self.packed, offset) if value >= _ONES]
        extra = self.extra
        if wide:
            extra = struct.pack(f"<2H{len(wide)}Q", 1, 8 * len(wide), *wide) + extra
        made_by, needs, flags, method, time, day, crc, internal, external = self.fields
        return (
            _CENTRAL.pack(
                b"PK\1\2", made_by, max(needs, 45) if wide else needs, flags, method, time, day, crc,
                min(self.packed, _ONES), min(self.size, _ONES), len(self.name), len(extra), len(self.comment), 0,
                internal, external, min(offset, _ONES),
            )
            + self.name
            + extra
            + self.comment
        )  # fmt: skip


def check_name(key: str) -> None:
    """Raise for a key that readers of archives would not find: directories, absolute names, names that climb."""
    if is_hidden(key) or len(key_bytes(key)) > _MOST:
        raise StoreError(f"A ZIP archive cannot hold a member called {quote(key[:200])}")


@dataclass
class ArchivePlan:
    """The members that an archive will be made of."""

    spans: list[tuple[int, int]]
    """Parts of the old file that come first, in order."""
    comment: bytes
    members: Sequence[tuple[str, Buffer]]
    method: str
    _records: list[bytes] = field(default_factory=list)
    _at: int = 0

    def new_members(self) -> Iterator[list[Buffer]]:
        """Yield each new member: its header and its data."""
        method, pack = PACKERS[self.method]
        for key, value in self.members:
            data = memoryview(value).cast("B")
            packed: Buffer = data if pack is None else pack(bytes(data))
            yield self._member(key_bytes(key), method, packed, (zlib.crc32(data), len(data)))

    def _member(self, name: bytes, method: int, packed: Buffer, told: tuple[int, int]) -> list[Buffer]:
        crc, size = told
        length = len(packed)
        wide = max(size, length) >= _ONES
        extra = struct.pack("<2H2Q", 1, 16, size, length) if wide else b""
        needs = 45 if wide else {0: 20, 8: 20}.get(method, 63)
        sizes = (_ONES, _ONES) if wide else (length, size)
        head = _LOCAL.pack(
            b"PK\3\4", needs, _flags(name), method, 0, _DAY, crc, *sizes, len(name), len(extra)
        )
        fields = (_UNIX | needs, needs, _flags(name), method, 0, _DAY, crc, 0, _FILE)
        self._records.append(_Record(fields, name, b"", b"", length, size, 0).moved(self._at))
        self._at += len(head) + len(name) + len(extra) + length
        return [head + name + extra, packed]

    def directory(self) -> bytes:
        """Return the directory and the end records, after all members were made."""
        data, count, at = b"".join(self._records), len(self._records), self._at
        size, end64 = len(data), b""
        if count >= _MOST or max(size, at) >= _ONES:
            end64 = _END64.pack(b"PK\6\6", _END64.size - 12, 45, 45, 0, 0, count, count, size, at)
            end64 += _LOCATOR.pack(b"PK\6\7", 0, at + size, 1)
        shown = min(count, _MOST)
        end = _END.pack(b"PK\5\6", 0, 0, shown, shown, min(size, _ONES), min(at, _ONES), len(self.comment))
        return data + end64 + end + self.comment


def _flags(name: bytes) -> int:
    """Return the flag that says that a name is UTF-8, where that needs saying and is true."""
    try:
        return 0 if name.isascii() or not name.decode() else _UTF8
    except UnicodeDecodeError:
        return 0


def _place(key: str) -> tuple[bool, int, bytes]:
    is_document = key.rpartition("/")[2] in _DOCUMENTS
    return not is_document, key.count("/") if is_document else 0, key_bytes(key)


def plan_archive(old: RawDirectory | None, changes: Mapping[str, Buffer | None], method: str) -> ArchivePlan:
    """Return the plan of an archive: the old one with keys added, replaced, or deleted (None)."""
    added = [(key, value) for key, value in changes.items() if value is not None]
    added.sort(key=lambda pair: _place(pair[0]))
    if old is None:
        return ArchivePlan([], b"", added, method)
    kept, spans = _kept(old, changes)
    lows = [low for low, _ in spans]
    ends = list(itertools.accumulate(high - low for low, high in spans))
    moves = [end - high for end, (_, high) in zip(ends, spans, strict=True)]
    records = [each.moved(each.offset + moves[bisect_right(lows, each.offset) - 1]) for each in kept]
    return ArchivePlan(spans, old.comment, added, method, records, ends[-1] if ends else 0)


def _kept(old: RawDirectory, changed: Collection[str]) -> tuple[list[_Record], list[tuple[int, int]]]:
    """Return the records that stay, in their order, and the parts of the file that they and the beginning take."""
    records = list(_records(old))
    last = {record.name: place for place, record in enumerate(records)}
    stays = [
        last[record.name] == place and key_text(record.name) not in changed
        for place, record in enumerate(records)
    ]
    spans: list[tuple[int, int]] = []
    ordered = sorted(range(len(records)), key=lambda place: records[place].offset)
    ends = [records[place].offset for place in ordered[1:]] + [old.start] * bool(ordered)
    first = records[ordered[0]].offset if ordered else 0
    if first:
        spans.append((0, first))
    for place, end in zip(ordered, ends, strict=True):
        record = records[place]
        if record.offset + _LOCAL.size + len(record.name) + record.packed > end:
            raise DataLossError(f"ZIP members overlap at {record.offset}, or reach into the directory")
        if not stays[place]:
            continue
        if spans and spans[-1][1] == record.offset:
            spans[-1] = spans[-1][0], end
        else:
            spans.append((record.offset, end))
    return [record for record, stay in zip(records, stays, strict=True) if stay], spans


def _records(old: RawDirectory) -> Iterator[_Record]:
    at, data = 0, old.data
    while at < len(data):
        (
            _, made_by, needs, flags, method, time, day, crc, packed, size, name_length, extra_length, comment_length,
            _, internal, external, offset,
        ) = _CENTRAL.unpack_from(data, at)  # fmt: skip
        at += _CENTRAL.size
        name, at = data[at : at + name_length], at + name_length
        extra, at = data[at : at + extra_length], at + extra_length
        comment, at = data[at : at + comment_length], at + comment_length
        wide, extra = _split_extra(extra)
        size = wide.pop(0) if size == _ONES and wide else size
        packed = wide.pop(0) if packed == _ONES and wide else packed
        offset = wide.pop(0) if offset == _ONES and wide else offset
        fields = (made_by, needs, flags, method, time, day, crc, internal, external)
        yield _Record(fields, name, extra, comment, packed, size, offset + old.shift)


def _split_extra(extra: bytes) -> tuple[list[int], bytes]:
    """Return the numbers of the ZIP64 field, and the other fields."""
    at, wide, others = 0, list[int](), b""
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<2H", extra, at)
        body = extra[at + 4 : at + 4 + length]
        if kind == 1:
            wide += struct.unpack(f"<{len(body) // 8}Q", body[: len(body) // 8 * 8])
        else:
            others += extra[at : at + 4 + length]
        at += 4 + length
    return wide, others
