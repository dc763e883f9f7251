"""Writing ZIP archives: every change rewrites the archive, and replaces the old one under a condition.

The directory stands at the end of an archive, so a single key costs as much as all of them: changes belong together, in
one batch or, better, one transaction.  Stored members are copied byte by byte.  The condition is that the file is still
the one that was read, so no change of another writer is lost; if it is not, all is read and written again.

If the store can write while values are made, as local files can, the new archive is written in portions; otherwise it
is held in memory.
"""

from __future__ import annotations

import itertools
import lzma
import struct
import zlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from fsstore.errors import AbortedError, DataLossError, StoreError, UnimplementedError
from fsstore.kvstore.contract.ability import WritesAtOnce, WritesLate, able
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Buffer, Features, KvPrefix, LateWrite, Stamp, Write, now
from fsstore.kvstore.contract.request import KeyRange, key_bytes, key_text
from fsstore.kvstore.zip_directory import Archive, RawDirectory, ZipSource, is_hidden
from fsstore.runtime import execution
from fsstore.runtime.together import ChangedError, until_unchanged
from fsstore.runtime.tuning import BATCH_BYTES
from fsstore.values.json_value import quote

# Making ZIP archives: the kept part of an old one, new members behind it, and the directory last.  An archive is
# planned without I/O: spans of the old file to keep, members to add, and the directory of all of them.  Old members
# keep their bytes and their records except for the position.  There are no times, so the same members give the same
# archive.  Sizes and positions beyond 32 bits, and more than 65,534 members, are written as ZIP64.  New members stand
# in the order in which readers of zarr want them: documents before chunks, and those near the root first.

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_ONES, _MOST = 0xFFFFFFFF, 0xFFFF
_DAY = 0x21  # 1980-01-01, the first date of the format
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
"""Methods of new members by their name in specs, each with its compressor."""


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
        """Return the record for another position of the member."""
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
    """The contents of a new archive."""

    spans: list[tuple[int, int]]
    """Spans of the old file, which come first."""
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
            yield self._member(key_bytes(key), method, packed, zlib.crc32(data), len(data))

    def _member(self, name: bytes, method: int, packed: Buffer, crc: int, size: int) -> list[Buffer]:
        length = len(packed)
        wide = max(size, length) >= _ONES
        extra = struct.pack("<2H2Q", 1, 16, size, length) if wide else b""
        needs = 45 if wide else {0: 20, 8: 20}.get(method, 63)
        sizes = (_ONES, _ONES) if wide else (length, size)
        head = _LOCAL.pack(b"PK\3\4", needs, _flags(name), method, 0, _DAY, crc, *sizes, len(name), len(extra))
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
    """Return the UTF-8 flag for a name that is not ASCII but valid UTF-8, otherwise 0."""
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
    """Return the records that stay, in order, and the spans of the file that they and the bytes before the archive
    take.
    """
    records = list(_records(old))
    last = {record.name: place for place, record in enumerate(records)}
    stays = [
        last[record.name] == place and key_text(record.name) not in changed for place, record in enumerate(records)
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


def archive_features(below: Features) -> Features:
    """Return the features of an archive in a store; it is writable if writes can be guarded by a condition."""
    guarded = below.writable and below.conditional_write
    return Features(
        waits=below.waits,
        writable=guarded,
        create_only=guarded,
        conditional_write=guarded,
        atomic_transactions=guarded,
        sorted_scan=True,
        coarse_generations=below.coarse_generations,
        written_as_one=True,
        slow_writes=below.slow_writes,
    )


class ZipWriting(WritesAtOnce):
    """The writing half of the driver of archives."""

    base: KvPrefix
    source: ZipSource
    features: Features
    method: str

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply `writes` together, in one new archive."""
        stamps: list[Stamp] = []

        def decide(archive: Archive | None) -> dict[str, Buffer | None]:
            held = [_holds(archive, write) for write in writes]
            stamps[:] = [Stamp(NO_VALUE if hold else UNKNOWN, now()) for hold in held]
            return {write.key: write.value for write, hold in zip(writes, held, strict=True) if hold}

        stamp = await self._change(decide, writes)
        return [
            stamp if write.value is not None and own.generation == NO_VALUE else own
            for write, own in zip(writes, stamps, strict=True)
        ]

    async def write_atomic(
        self, writes: Sequence[Write], *, unchanged: Mapping[str, bytes], deleted: Sequence[KeyRange]
    ) -> list[str]:
        """Apply everything in one new archive, or nothing; return the keys whose condition does not hold."""
        failed: list[str] = []

        def decide(archive: Archive | None) -> dict[str, Buffer | None]:
            for key, generation in unchanged.items():
                if _generation(archive, key) != generation:
                    place = f"{quote(key)} in {self.base.describe()}"
                    raise AbortedError(f"Error reading {place}: Generation mismatch")
            failed[:] = [write.key for write in writes if not _holds(archive, write)]
            if failed:
                return {}
            found = [] if archive is None else map(archive.directory.names, deleted)
            gone = [key_text(name) for names in found for name in names]
            return {**dict.fromkeys(gone), **{write.key: write.value for write in writes}}

        await self._change(decide, writes)
        return failed

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete the keys of a range, in one new archive."""
        if not keys.empty:
            await self.write_atomic([], unchanged={}, deleted=[keys])

    async def _change(
        self, decide: Callable[[Archive | None], dict[str, Buffer | None]], writes: Sequence[Write]
    ) -> Stamp:
        """Rewrite the archive with the changes that `decide` returns for the current one, until no other writer
        interferes.
        """
        if not self.features.writable:
            raise UnimplementedError(
                f"KeyValueStore does not support writing: {self.base.describe()} would be replaced as a whole, which"
                " needs a store that is writable under conditions"
            )
        for write in writes:
            check_name(write.key)
        return await until_unchanged(partial(self._change_once, decide), self.base.describe)

    async def _change_once(self, decide: Callable[[Archive | None], dict[str, Buffer | None]]) -> Stamp:
        archive = await self.source.load(self.source.archive)
        wanted = decide(archive)
        index = {} if archive is None else archive.directory.index
        changes = {key: value for key, value in wanted.items() if value is not None or key in index}
        if not changes:
            return Stamp(NO_VALUE if archive is None else archive.generation, now())
        try:
            stamp = await self._replace(archive, changes)
        finally:
            self.source.archive = None
        if stamp.generation == UNKNOWN:
            raise ChangedError
        return stamp

    async def _replace(self, archive: Archive | None, changes: Mapping[str, Buffer | None]) -> Stamp:
        """Write a new archive in place of `archive`; if another writer has replaced that, the stamp is `UNKNOWN`."""
        old = None if archive is None else await self.source.raw(archive)
        plan = await execution.offload(plan_archive, old, changes, self.method, kind="compute")
        condition = NO_VALUE if archive is None else archive.generation
        late = able(self.base.driver, WritesLate)
        if late is not None and not self.features.waits:
            portions = self._portions(archive, plan)
            [stamp] = await late.write_late([lambda: LateWrite(self.base.path, portions, condition)], 1)
            return stamp
        kept = [] if archive is None else await self.source.ranges(archive, plan.spans)
        value = await execution.offload(_joined, kept, plan, kind="compute")
        return await self.base.write("", value, condition)

    def _portions(self, archive: Archive | None, plan: ArchivePlan) -> Any:
        """Yield the new archive piece by piece, for stores that never wait."""
        for low, high in plan.spans:
            assert archive is not None
            for start in range(low, high, BATCH_BYTES):
                yield execution.drive(self.source.ranges(archive, [(start, min(start + BATCH_BYTES, high))]))
        yield from _new_portions(plan)


def _new_portions(plan: ArchivePlan) -> Iterator[list[Buffer]]:
    yield from plan.new_members()
    yield [plan.directory()]


def _joined(kept: Sequence[Buffer], plan: ArchivePlan) -> bytes:
    return b"".join([*kept, *(part for portion in _new_portions(plan) for part in portion)])


def _generation(archive: Archive | None, key: str) -> bytes:
    return NO_VALUE if archive is None or key not in archive.directory.index else archive.generation


def _holds(archive: Archive | None, write: Write) -> bool:
    return write.if_equal in (UNKNOWN, _generation(archive, write.key))
