"""The `zip` key-value store: the members of a ZIP archive in any other store.

Members are read by byte range from the archive.  A stored member costs exactly the bytes asked for (and once the 30
bytes that locate its data); a small or compressed one costs one range with its header and data.  All requests of a
batch go to the base store in one batch, two at most, in which neighbours are merged.

The generation of the archive is that of its members.  Reads plan with the cached directory and compare the generation
of each answer: if the archive was replaced, the directory is read again and the batch starts over.  Only answers
without data ("missing", "unspecified", a listing) need a request to check the generation.

A missing archive is an empty store.  An unreadable member (encrypted, an unknown compression method, a bomb) is an
error, where TensorStore calls it missing and lets the reader see fill values.
"""

from __future__ import annotations

import bz2
import lzma
import struct
import zlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from fsstore.errors import DataLossError, ResourceExhaustedError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    AdapterKind,
    Buffer,
    Entry,
    KvOpening,
    KvPrefix,
    Read,
    ReadResult,
    StandsOver,
    now,
)
from fsstore.kvstore.contract.request import EntryColumns, KeyRange, key_bytes, resolve_range
from fsstore.kvstore.zip_directory import OVERLAPS, Archive, ArchiveMember, ZipSource, misnamed
from fsstore.kvstore.zip_writing import PACKERS, ZipWriting, archive_features
from fsstore.runtime import execution
from fsstore.runtime.together import ChangedError, until_unchanged
from fsstore.runtime.tuning import PAGE, SMALL_BYTES
from fsstore.values.json_value import Fields, Json, one_of, quote
from fsstore.values.registry import encode_path

# One member of a ZIP archive: its local header, and its data decompressed.  Sizes, method and checksum come from the
# central directory, never from the local header, which streaming writers leave empty; the name must be the same in
# both.  Decompression is bounded by the declared size, and the declared size by a plausible ratio to the compressed
# bytes: a bomb is refused before memory is allocated for it.

STORED = 0
_ENCRYPTED = 1 << 0 | 1 << 6 | 1 << 13
_MAX_SIZE = 2**32  # bytes of any member
_TRUSTED_SIZE = 64 << 20  # bytes up to which a declared size is never questioned
_MAX_RATIO = 4096  # the greatest ratio of a larger member's size to its packed size
_MAX_WINDOW_LOG = 27
_LOCAL = struct.Struct("<4s22x2H")


def check_readable(member: ArchiveMember) -> None:
    """Raise if the member cannot be read: it is encrypted, overlaps another one, has an unknown method, or declares an
    implausible size.
    """
    if member.slack == OVERLAPS:
        raise DataLossError(
            "the ZIP member overlaps another member or the directory, so the archive is damaged or hostile; "
            "get an intact copy"
        )
    if member.flags & _ENCRYPTED:
        raise UnimplementedError("the ZIP member is encrypted")
    if member.method == STORED:
        if member.packed != member.size:
            raise DataLossError(f"stored ZIP member has {member.packed} bytes for a size of {member.size}")
        return
    if member.method not in _METHODS:
        raise UnimplementedError(f"ZIP compression method {member.method} is not supported")
    if member.size > _MAX_SIZE or (member.size > _TRUSTED_SIZE and member.size > member.packed * _MAX_RATIO):
        raise ResourceExhaustedError(f"ZIP member of {member.packed} bytes claims to hold {member.size}")


def data_start(member: ArchiveMember, header: Buffer) -> int:
    """Return the length of the local header at the start of `header`; raise unless it belongs to the member.

    `header` must hold at least `header_size` bytes.
    """
    if len(header) < _LOCAL.size or bytes(header[:4]) != b"PK\3\4":
        raise DataLossError("ZIP local header is missing")
    _, length, extra = _LOCAL.unpack_from(header)
    name = bytes(header[_LOCAL.size : _LOCAL.size + length])
    if name != key_bytes(member.name):
        raise misnamed(member.name, name)
    return int(_LOCAL.size + length + extra)


def header_size(member: ArchiveMember) -> int:
    """Return the size of a local header up to the end of the name."""
    return _LOCAL.size + len(key_bytes(member.name))


def unpack(member: ArchiveMember, packed: Buffer, start: int, stop: int) -> Buffer:
    """Return the bytes `[start, stop)` of a member; the checksum of a whole member is verified."""
    whole = start == 0 and stop == member.size
    if member.method == STORED:
        value: Buffer = memoryview(packed)[start:stop]
    else:
        value = memoryview(_decompress(member, packed, stop, whole=whole))[start:stop]
    if len(value) != stop - start:
        raise DataLossError(f"ZIP member ends after {len(value) + start} of {member.size} bytes")
    if whole and zlib.crc32(value) != member.crc:
        raise DataLossError("ZIP member has a wrong CRC-32")
    return value


def _decompress(member: ArchiveMember, packed: Buffer, stop: int, *, whole: bool) -> Buffer:
    """Return the first `stop` bytes; with `whole` the data must end there."""
    try:
        value = _METHODS[member.method](packed, stop + 1 if whole else stop)
    except (zlib.error, OSError, ValueError, EOFError, lzma.LZMAError, struct.error, _zstd_error()) as error:
        raise DataLossError(f"ZIP member cannot be decompressed: {error}") from error
    except MemoryError as error:
        raise ResourceExhaustedError("ZIP member needs more memory than there is") from error
    if len(value) > stop:
        raise DataLossError(f"ZIP member is longer than its {member.size} bytes")
    return value


def _zstd_error() -> type[Exception]:
    from zstandard import ZstdError

    error: type[Exception] = ZstdError
    return error


def _deflate(packed: Buffer, limit: int) -> Buffer:
    return zlib.decompressobj(-15).decompress(packed, limit) if limit else b""


def _streams(make: Callable[[], Any], packed: Buffer, limit: int) -> Buffer:
    """Return up to `limit` bytes of the concatenated streams in `packed`."""
    out, left = bytearray(), bytes(packed)
    while left and len(out) < limit:
        stream = make()
        before = len(left)
        out += stream.decompress(left, limit - len(out))
        while not stream.eof and not stream.needs_input and len(out) < limit:
            out += stream.decompress(b"", limit - len(out))
        if not stream.eof:
            break
        left = stream.unused_data
        if len(left) >= before:
            break
    return out


def _bzip2(packed: Buffer, limit: int) -> Buffer:
    return _streams(bz2.BZ2Decompressor, packed, limit)


def _xz(packed: Buffer, limit: int) -> Buffer:
    return _streams(lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=1 << 29), packed, limit)


def _lzma(packed: Buffer, limit: int) -> Buffer:
    _, length = struct.unpack_from("<2H", packed)
    properties, window = struct.unpack_from("<BL", packed, 4)
    if length != 5 or properties >= 225 or window > 1 << 29:
        raise ValueError("unreasonable LZMA properties")
    choice = {"lc": properties % 9, "lp": properties // 9 % 5, "pb": properties // 45}
    filters = [{"id": lzma.FILTER_LZMA1, "dict_size": window, **choice}]
    stream = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters)
    return stream.decompress(bytes(packed[9:]), limit)


def _zstd(packed: Buffer, limit: int) -> Buffer:
    import zstandard

    decompressor = zstandard.ZstdDecompressor(max_window_size=1 << _MAX_WINDOW_LOG)
    value: bytes = decompressor.stream_reader(packed, read_across_frames=True).read(limit)
    return value


_METHODS: dict[int, Callable[[Buffer, int], Buffer]] = {
    8: _deflate,
    12: _bzip2,
    14: _lzma,
    20: _zstd,
    93: _zstd,
    95: _xz,
}


@dataclass(slots=True)
class _MemberRead:
    """A member to read: its archive range, and the part of the member wanted."""

    place: int
    member: ArchiveMember
    start: int
    stop: int
    low: int = 0
    high: int = 0
    headed: bool = False
    """Whether the fetched range begins with the local header."""
    data: Buffer = b""


class ZipDriver(ZipWriting, StandsOver):
    """The members of the archive at `base`."""

    id: ClassVar[str] = "zip"

    def __init__(self, base: KvPrefix, method: str = "store") -> None:
        self.base, self.method = base, method
        self.features = archive_features(base.driver.features)
        self.source = ZipSource(base)

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`, all from one generation of the archive."""
        if not reads:
            return []
        return await until_unchanged(partial(self._read_once, reads), self.base.describe, reads=True)

    async def _read_once(self, reads: Sequence[Read]) -> list[ReadResult]:
        archive, fresh = self.source.archive, False
        if archive is None or archive.generation == UNKNOWN:
            archive, fresh = await self.source.load(None), True
        if archive is None:
            return [ReadResult("missing", b"", NO_VALUE, now())] * len(reads)
        try:
            return await self._read_from(archive, reads, fresh=fresh)
        except ChangedError:
            self.source.archive = None
            raise

    async def _read_from(self, archive: Archive, reads: Sequence[Read], *, fresh: bool) -> list[ReadResult]:
        results: list[Any] = [None] * len(reads)
        jobs: list[_MemberRead] = []
        for place, read in enumerate(reads):
            results[place] = self._answer_without_data(archive, read)
            if results[place] is None and (job := self._job(archive, place, read, results)) is not None:
                jobs.append(job)
        if len(jobs) < len(reads) and not fresh and not await self.source.is_current(archive, reads):
            raise ChangedError
        await self._fetch(archive, jobs)
        size = sum(len(job.data) if job.member.method == STORED else job.member.size for job in jobs)
        if size > SMALL_BYTES:
            values = await execution.offload(self._unpack_all, jobs)
        else:
            values = self._unpack_all(jobs)
        stamped = now()
        for job, value in zip(jobs, values, strict=True):
            results[job.place] = ReadResult("value", value, archive.generation, stamped, job.member.size)
        return results

    def _answer_without_data(self, archive: Archive, read: Read) -> ReadResult | None:
        if read.key not in archive.directory.index:
            return ReadResult("missing", b"", NO_VALUE, now())
        if read.if_not_equal == archive.generation != UNKNOWN:
            return ReadResult("unspecified", b"", archive.generation, now())
        return None

    def _job(self, archive: Archive, place: int, read: Read, results: list[Any]) -> _MemberRead | None:
        member = archive.directory.member(read.key)
        if member is None:
            return None
        try:
            check_readable(member)
            start, stop = resolve_range(read.start, read.stop, member.size)
        except StoreError as error:
            raise self._located(error, read.key) from None
        if start == stop and not (start == 0 and stop == member.size and member.packed):
            results[place] = ReadResult("value", b"", archive.generation, now(), member.size)
            return None
        return _MemberRead(place, member, start, stop)

    def _located(self, error: StoreError, key: str) -> StoreError:
        return error.within(f"Error reading {self.describe_key(key)}")

    async def _fetch(self, archive: Archive, jobs: list[_MemberRead]) -> None:
        """Fill in the packed data of all jobs, with at most three batches to the base."""
        unknown = {
            job.member.name: job.member
            for job in jobs
            if job.member.method == STORED
            and job.member.packed > SMALL_BYTES
            and job.stop - job.start < job.member.size
            and job.member.name not in archive.starts
        }
        headers = await self.source.ranges(archive, [(m.offset, m.offset + header_size(m)) for m in unknown.values()])
        for member, header in zip(unknown.values(), headers, strict=True):
            archive.starts[member.name] = member.offset + self._header_length(member, header)
        for job in jobs:
            self._aim(archive, job)
        for job, data in zip(jobs, await self.source.ranges(archive, [(j.low, j.high) for j in jobs]), strict=True):
            job.data = data
        late = [job for job in jobs if job.headed and not self._behead(archive, job)]
        for job, data in zip(late, await self.source.ranges(archive, [(j.low, j.high) for j in late]), strict=True):
            job.data = data

    def _header_length(self, member: ArchiveMember, header: Buffer) -> int:
        try:
            return data_start(member, header)
        except StoreError as error:
            raise self._located(error, member.name) from None

    def _aim(self, archive: Archive, job: _MemberRead) -> None:
        """Set the range of the archive that the job needs."""
        member = job.member
        start = archive.starts.get(member.name)
        if start is None:
            job.low, job.high, job.headed = member.offset, member.offset + member.packed + member.slack, True
        elif member.method == STORED:
            job.low, job.high = start + job.start, start + job.stop
        else:
            job.low, job.high = start, start + member.packed

    def _behead(self, archive: Archive, job: _MemberRead) -> bool:
        """Cut off the local header; return whether all data were there, otherwise aim again."""
        member = job.member
        length = self._header_length(member, job.data)
        archive.starts[member.name] = member.offset + length
        if len(job.data) >= length + member.packed:
            low, high = (job.start, job.stop) if member.method == STORED else (0, member.packed)
            job.data = memoryview(job.data)[length + low : length + high]
            return True
        self._aim(archive, job)
        return False

    def _unpack_all(self, jobs: list[_MemberRead]) -> list[Buffer]:
        return [self._unpack(job) for job in jobs]

    def _unpack(self, job: _MemberRead) -> Buffer:
        member = job.member
        try:
            if member.method != STORED or len(job.data) == member.size:
                return unpack(member, job.data, job.start, job.stop)
        except StoreError as error:
            raise self._located(error, member.name) from error
        return job.data

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the members in the range in byte order, with their sizes."""
        archive = await self.source.load(self.source.archive)
        if archive is None or keys.empty:
            return
        directory = archive.directory
        names = directory.names(keys)
        for start in range(0, len(names), PAGE):
            page = names[start : start + PAGE]
            yield EntryColumns(page, sizes=partial(directory.sizes, page))

    def describe_key(self, key: str) -> str:
        """Return the quoted key and where the archive is."""
        return f"{quote(key)} in {self.base.describe()}"

    def spec(self) -> Mapping[str, Json]:
        """Return the compression of new members, unless it is the default."""
        return {} if self.method == "store" else {"compression": self.method}


@dataclass(frozen=True)
class ZipKind(AdapterKind):
    """`{"driver": "zip", "base": ..., "path": ...}`, or `base|zip:path`."""

    id: str = "zip"
    schemes: tuple[str, ...] = ("zip",)
    resources: tuple[str, ...] = ("cache_pool", "data_copy_concurrency")
    defaults: ClassVar[Mapping[str, Json]] = {"compression": "store"}

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take `compression`, the method for new members."""
        method = fields.take("compression", one_of(*sorted(PACKERS)), default="store")
        return {} if method == "store" else {"compression": method}

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:
        """Return the URL component."""
        return f"zip:{encode_path(path)}"

    async def open(self, opening: KvOpening) -> ZipDriver:
        """Return the driver over the base store."""
        return ZipDriver(opening.below, str(opening.members.get("compression", "store")))


KIND = ZipKind()
