"""Local files: keys as paths, and reading by position: open, fstat, pread.

A key is the path.  Components that would leave the tree, that a filesystem would fold together, or that are names of
lock files are refused; they could be mistaken for other keys.

A batch of whole small files is the hot path: three system calls and a few tuples each, about 15 µs.  Several ranges of
one key share one open file, so that they have one generation; if there are many, neighbouring ones are read as one.
With `mapped`, larger ranges are memory-mapped instead of read.
"""

from __future__ import annotations

import errno
import mmap
import os
import posixpath
import re
import stat
import struct
from collections.abc import Mapping, Sequence
from itertools import repeat
from time import time_ns

import numpy as np

from fsstore.errors import (
    AlreadyExistsError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    StoreError,
    UnavailableError,
)
from fsstore.kvstore.contract.batch import Ints, coalesce
from fsstore.kvstore.contract.driver import NO_VALUE, Buffer, Read, ReadResult, ReadUpTo, now
from fsstore.kvstore.contract.request import clipped_range, resolve_range
from fsstore.runtime.tuning import COLUMNS_FROM, FLIGHT_BYTES, GAP_BYTES, MOMENT_S, SMALL_BYTES
from fsstore.values.json_value import quote

# Keys as paths of local files: the allowed ones, and reporting failures on them.

# ruff: noqa: PTH120  # paths are bytes here, which pathlib does not know, and a Path costs as much as the call

_READ_BYTES = 0x7FFFF000  # Linux reads at most this much in one call
_LARGE_PAGES_BYTES = 4 << 20  # from this size on, NumPy asks the system for large pages

LOCK_SUFFIX = ".__lock"
"""Ends the names of lock and temporary files, which are never keys."""

_COMPONENT = r"(?!\.{1,2}(?:/|$))(?:(?!\.__lock(?:/|$))[^/\0])+"
_KEY = re.compile(rf"/?{_COMPONENT}(?:/{_COMPONENT})*")
_PREFIX = re.compile(rf"/?(?:{_COMPONENT}(?:/{_COMPONENT})*/?)?")

_CLASSES: Mapping[int, type[StoreError]] = {
    errno.EACCES: PermissionDeniedError,
    errno.EPERM: PermissionDeniedError,
    errno.EROFS: PermissionDeniedError,
    errno.ENOENT: NotFoundError,
    errno.EEXIST: AlreadyExistsError,
    errno.EISDIR: FailedPreconditionError,
    errno.ENOTDIR: FailedPreconditionError,
    errno.ENOTEMPTY: FailedPreconditionError,
    errno.ELOOP: FailedPreconditionError,
    errno.EXDEV: FailedPreconditionError,
    errno.ENOSPC: ResourceExhaustedError,
    errno.EDQUOT: ResourceExhaustedError,
    errno.EFBIG: ResourceExhaustedError,
    errno.EMFILE: ResourceExhaustedError,
    errno.ENFILE: ResourceExhaustedError,
    errno.ENOMEM: ResourceExhaustedError,
    errno.ETIMEDOUT: DeadlineExceededError,
    errno.EAGAIN: UnavailableError,
    errno.EBUSY: UnavailableError,
    errno.EIO: UnavailableError,
    errno.ESTALE: UnavailableError,
    errno.ENOLCK: UnavailableError,
}


def file_path(key: str) -> bytes:
    """Return the path of the file that holds `key`, or raise `StoreError`.

    The quick test passes plainly valid keys; it runs once a chunk.
    """
    try:
        path = key.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise StoreError(f"Invalid key: {quote(key.encode('utf-8', 'surrogatepass'))}") from None
    if (
        not path
        or b"/." in path
        or b"//" in path
        or path[:1] == b"."
        or path[-1:] == b"/"
        or b"\0" in path
        or b".__lock" in path
    ) and not _KEY.fullmatch(key):
        raise StoreError(f"Invalid key: {quote(key)}")
    return path


def check_prefix(path: str) -> str:
    """Return the path of a spec unchanged, or raise `StoreError` if no key can begin with it.

    On Windows backslashes are slashes, and the slash before a drive letter goes.
    """
    if os.name == "nt":
        path = path.replace("\\", "/")
        path = path[1:] if re.match(r"/[A-Za-z]:", path) else path
    dotted = "/." in path or path[:1] == "." or ".__lock" in path
    if (dotted or "//" in path or "\0" in path) and not _PREFIX.fullmatch(path):
        raise StoreError(f"Invalid file path: {quote(path)}")
    return path


def normalize(path: str) -> str:
    """Return the path with `.`, `..` and doubled slashes resolved as text; a final slash stays.

    >>> normalize("//a/../b/./c/")
    '/b/c/'
    """
    if not path:
        return path
    plain = posixpath.normpath(path)
    plain = "/" + plain.lstrip("/") if plain.startswith("/") else plain
    if plain == ".":
        return ""
    is_directory = path.endswith(("/", "/.", "/..")) and plain != "/"
    return plain + "/" if is_directory else plain


def absolute(path: str) -> str:
    """Return a path from the root on; a final slash stays, and no path at all is the current directory.

    >>> absolute("/a/b/")
    '/a/b/'
    """
    if os.path.isabs(path):  # noqa: PTH117  # text, which may be no path of this system
        return path
    here = os.getcwd().rstrip("/")  # noqa: PTH109  # links stay, as they do in paths
    return normalize(f"{here}/{path}")


def parent(path: bytes) -> bytes:
    """Return the path of the directory that holds `path`."""
    return os.path.dirname(path) or b"."


def text(path: bytes) -> str:
    """Return a path as key; the inverse of `file_path`."""
    return path.decode("utf-8", "surrogateescape")


def os_failure(action: str, path: bytes, error: OSError, detail: str = "") -> StoreError:
    """Return the error for a failed system call: `Failed to open: "/a": Permission denied`.

    `detail` follows the path.  The class tells the kind of failure.
    """
    kind = _CLASSES.get(error.errno or 0, StoreError)
    reason = os.strerror(error.errno) if error.errno else str(error)
    failure = kind(f"Failed to {action}: {quote(path)}{detail}: {reason} [os_error_code='{error.errno}']")
    failure.__cause__ = error
    return failure


# Without O_NONBLOCK, opening a named pipe would wait for its writer.
_FLAGS = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
_ABSENT = frozenset((errno.ENOENT, errno.ENOTDIR))
_GENERATION = struct.Struct("<xQQq")
_tuple = tuple.__new__


def generation_of(status: os.stat_result) -> bytes:
    """Return TensorStore's generation of a file: device, inode and modification time."""
    return _GENERATION.pack(status.st_dev, status.st_ino, status.st_mtime_ns)


def is_settled(generation: bytes) -> bool:
    """Return whether a file was changed so long ago that any later change gives it another generation."""
    if len(generation) != _GENERATION.size:
        return False
    return time_ns() - int(_GENERATION.unpack(generation)[2]) > MOMENT_S * 1e9


def date_of(generation: bytes) -> bytes:
    """Return the modification time in a generation.

    Devices are numbered anew when a machine starts, and on each machine that mounts them.
    """
    return generation[-8:]


def describe(key: str) -> str:
    """Return the name of a key for messages."""
    return f"local file {quote(key)}"


def read_batch(reads: Sequence[Read], *, mapped: bool = False) -> list[ReadResult]:
    """Return the answers to `reads`, in order."""
    time = now()
    if len(reads) > 1:
        keys = {read[0] for read in reads}
        if len(keys) == 1:
            return _read_ranges(keys.pop(), reads, time, mapped)
        if len(keys) != len(reads):
            return _read_grouped(reads, time, mapped)
    return [_read_one(read, time, mapped) for read in reads]


def _read_one(read: Read, time: float, mapped: bool) -> ReadResult:
    key, start, stop, if_not_equal, _ = read
    path = file_path(key)
    try:
        fd = os.open(path, _FLAGS)
    except OSError as error:
        return _absent(path, error, time)
    try:
        status = os.fstat(fd)
        if status.st_mode & 0o170000 != 0o100000:
            return _irregular(status, time)
        generation = _GENERATION.pack(status.st_dev, status.st_ino, status.st_mtime_ns)
        if generation == if_not_equal:
            return ReadResult("unspecified", b"", generation, time)
        low, high = 0, (size := status.st_size)
        if start or stop is not None:
            resolve = clipped_range if type(read) is ReadUpTo else resolve_range
            low, high = resolve(start, stop, size)
        if mapped and high - low >= SMALL_BYTES:
            return ReadResult("value", _map(fd, low, high), generation, time, size)
        return ReadResult("value", _pread(fd, low, high), generation, time, size)
    except StoreError as error:
        raise error.within(f"Error reading {describe(key)}") from None
    except OSError as error:
        raise os_failure("read", path, error) from error
    finally:
        os.close(fd)


def _absent(path: bytes, error: OSError, time: float) -> ReadResult:
    if error.errno in _ABSENT:
        return ReadResult("missing", b"", NO_VALUE, time)
    raise os_failure("open", path, error) from error


def _irregular(status: os.stat_result, time: float) -> ReadResult:
    if stat.S_ISDIR(status.st_mode):
        return ReadResult("missing", b"", NO_VALUE, time)
    raise FailedPreconditionError(f"not a regular file (mode {status.st_mode:#o})")


def _read_rest(fd: int, value: bytes, low: int, high: int) -> bytes:
    """Return the whole range after a short read: the call has a limit, or the file was truncated meanwhile."""
    parts = [value]
    at = low + len(value)
    while at < high:
        part = os.pread(fd, min(high - at, _READ_BYTES), at)
        if not part:
            raise _cut_off(at, high)
        parts.append(part)
        at += len(part)
    return b"".join(parts)


def _map(fd: int, low: int, high: int) -> Buffer:
    """Return the range memory-mapped, or read if the system refuses (too many mappings or open files)."""
    page = low - low % mmap.ALLOCATIONGRANULARITY
    try:
        mapping = mmap.mmap(fd, high - page, access=mmap.ACCESS_READ, offset=page)
    except (OSError, ValueError):
        return _pread(fd, low, high)
    return memoryview(mapping)[low - page :]


def _pread(fd: int, low: int, high: int) -> Buffer:
    if high - low >= _LARGE_PAGES_BYTES and hasattr(os, "preadv"):
        return _read_large(fd, low, high)
    value = os.pread(fd, high - low, low)
    return value if len(value) == high - low else _read_rest(fd, value, low, high)


def _read_large(fd: int, low: int, high: int) -> memoryview:
    """Return the range in memory from NumPy, which asks for large pages: page faults cost as much as the copy."""
    value = np.empty(high - low, np.uint8).data
    at = 0
    while at < len(value):
        count = os.preadv(fd, [value[at : at + _READ_BYTES]], low + at)
        if not count:
            raise _cut_off(low + at, high)
        at += count
    return value.toreadonly()


def _cut_off(at: int, high: int) -> DataLossError:
    return DataLossError(f"the file ended at byte {at} of {high}: it was truncated while being read")


def _read_grouped(reads: Sequence[Read], time: float, mapped: bool) -> list[ReadResult]:
    groups: dict[str, list[int]] = {}
    for place, read in enumerate(reads):
        groups.setdefault(read[0], []).append(place)
    results: list[ReadResult] = [ReadResult("missing")] * len(reads)
    for key, places in groups.items():
        if len(places) == 1:
            results[places[0]] = _read_one(reads[places[0]], time, mapped)
            continue
        answers = _read_ranges(key, [reads[place] for place in places], time, mapped)
        for place, answer in zip(places, answers, strict=True):
            results[place] = answer
    return results


def _read_ranges(key: str, reads: Sequence[Read], time: float, mapped: bool) -> list[ReadResult]:
    """Return the answers to several reads of one key, all of the same generation."""
    path = file_path(key)
    try:
        fd = os.open(path, _FLAGS)
    except OSError as error:
        return [_absent(path, error, time)] * len(reads)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            return [_irregular(status, time)] * len(reads)
        generation, size = generation_of(status), status.st_size
        wanted = [read for read in reads if read[3] != generation]
        values = _values(fd, wanted, size, mapped) if len(wanted) < COLUMNS_FROM else _merged(fd, wanted, size, mapped)
        # ranges come by the thousand, so tuples are made from tuples: a constructor takes three times as long
        rows = zip(repeat("value"), values, repeat(generation), repeat(time), repeat(size))
        found = map(_tuple, repeat(ReadResult), rows)
        if len(wanted) == len(reads):
            return list(found)
        same = ReadResult("unspecified", b"", generation, time)
        return [same if read[3] == generation else next(found) for read in reads]
    except StoreError as error:
        raise error.within(f"Error reading {describe(key)}") from None
    except OSError as error:
        raise os_failure("read", path, error) from error
    finally:
        os.close(fd)


def _values(fd: int, reads: Sequence[Read], size: int, mapped: bool) -> list[Buffer]:
    spans = [resolve_range(read[1], read[2], size) for read in reads]
    return [_take(fd, low, high, mapped) for low, high in spans]


def _merged(fd: int, reads: Sequence[Read], size: int, mapped: bool) -> list[Buffer]:
    """Return the bytes of many ranges, read as few spans and cut apart."""
    starts, stops = _bounds(reads, size)
    merged = coalesce(starts, stops, GAP_BYTES, FLIGHT_BYTES)
    pairs = zip(merged.starts.tolist(), merged.stops.tolist(), strict=True)
    wholes = [_take(fd, low, high, mapped) for low, high in pairs]
    lengths = stops - starts
    if lengths.max() > GAP_BYTES:
        wholes = [memoryview(whole) for whole in wholes]
    begins, ends = merged.offset.tolist(), (merged.offset + lengths).tolist()
    return [wholes[span][begin:end] for span, begin, end in zip(merged.where.tolist(), begins, ends, strict=True)]


def _bounds(reads: Sequence[Read], size: int) -> tuple[Ints, Ints]:
    """Return the starts and stops of ranges, computed together in the usual case that both ends are given."""
    count = len(reads)
    # not by `zip(*reads)`: an iterator for each read triggers the garbage collector, which takes longer
    lows, highs = [read[1] for read in reads], [read[2] for read in reads]
    if None not in highs:
        starts, stops = np.fromiter(lows, np.int64, count), np.fromiter(highs, np.int64, count)
        if starts.min() >= 0 and stops.max() <= size and (starts <= stops).all():
            return starts, stops
    bounds = np.array([resolve_range(low, high, size) for low, high in zip(lows, highs, strict=True)], np.int64)
    return bounds[:, 0], bounds[:, 1]


def _take(fd: int, low: int, high: int, mapped: bool) -> Buffer:
    return _map(fd, low, high) if mapped and high - low >= SMALL_BYTES else _pread(fd, low, high)
