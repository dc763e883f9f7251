"""Caches: the bytes in memory that all caches of a context share, and a directory that processes of a machine share.

In memory, a cache asks a `CachePool` for values by a key of its own (a tuple that starts with the owner) and says how
many bytes a value takes.  The least recently used values go first.  A limit of zero keeps nothing.  Values that become
stale together, such as the parts of one shard, are of one group, a tuple that starts with the owner, and forgotten by
it.  A value read before its group was forgotten must not come in later: a reader takes the `epoch` first and puts what
it read with it.  The pool remembers when the latest groups were forgotten; of more than that it takes what was read
since, and nothing older.

On disk, a `DiskCache` is bounded, without a daemon, safe against kills.  A value is a file, written aside and renamed,
with a header and a checksum, so nobody sees half of one.  The time at which it was last known to be current is the
file's time of modification, and that of its last use the time of access.

Room is taken in the file `total` before a value is written, under a lock of the file.  A process that finds too much
there counts the files, removes those that were used least recently until a tenth of the limit is free, and writes the
true number; so a kill between two steps is put right, and there is never more than the limit and what is being written.

A claim is a lock of a file beside the value, which ends with its process: its holder fetches, and others wait a while.
Whatever goes wrong with the disk is a warning, once, and the value is not kept.

SQLite and diskcache keep an index that each use changes, which a full disk or a network's file locks stop.  fsspec's
caches have no limit, and do not ask whether a value has changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

from fsstore.errors import StoreError
from fsstore.runtime import fork
from fsstore.runtime.fork import OfProcess
from fsstore.runtime.observer import Meter
from fsstore.runtime.tuning import ENTRIES_KEPT, KEPT_BYTES, USED_S

T = TypeVar("T")
Group: TypeAlias = tuple[Hashable, Hashable]


class CachePool:
    """A least-recently-used cache of at most `total_bytes_limit` bytes.  Thread-safe.

    `read_ahead` is how many chunks are read for the next ones of reads that follow each other.
    `epoch` counts how often something was forgotten.  `meter` counts hits and misses; a pool without memory has none.
    """

    __slots__ = (
        "_entries",
        "_forgotten",
        "_groups",
        "_lock",
        "_oldest",
        "_shared",
        "_used",
        "epoch",
        "meter",
        "read_ahead",
        "total_bytes_limit",
    )

    def __init__(self, total_bytes_limit: int = 0, read_ahead: int = 0, called: str = "cache_pool") -> None:
        self.total_bytes_limit, self.read_ahead = total_bytes_limit, read_ahead
        self.epoch = 0
        self._entries: OrderedDict[Hashable, tuple[Any, int, Group | None]] = OrderedDict()
        self._groups: dict[Group, set[Hashable]] = {}
        self._forgotten: dict[Hashable, int] = {}  # the epochs of groups and owners
        self._oldest = 0
        self._used = 0
        self._lock = fork.lock()
        self.meter = Meter(called) if total_bytes_limit else None
        self._shared: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()

    def share(self, key: Hashable, made: T) -> T:
        """Return the object shared under `key`: `made`, unless another one is alive."""
        with self._lock:
            found: T = self._shared.setdefault(key, made)
            return found

    def shared(self, key: Hashable) -> Any:
        """Return the object shared under `key`, or None if none is alive."""
        with self._lock:
            return self._shared.get(key)

    def get(self, key: Hashable) -> Any:
        """Return the cached value and mark it as used, or return None."""
        meter = self.meter
        if meter is None:
            return None
        with self._lock:
            found = self._entries.get(key)
            if found is None:
                meter.misses += 1
                return None
            meter.hits += 1
            self._entries.move_to_end(key)
            return found[0]

    def take(self, key: Hashable) -> Any:
        """Return the cached value, which nobody else gets any more, or None."""
        if not self.total_bytes_limit:
            return None
        with self._lock:
            found = self._entries.get(key)
            self._discard(key)
            return None if found is None else found[0]

    def put(self, key: Hashable, value: Any, size_bytes: int, *, group: Group | None = None, epoch: int = 0) -> None:
        """Keep `value`, in place of older ones if need be; a value larger than the budget is not kept.

        `epoch` is that of the group before the value was read; if the group was forgotten since, it is not kept.
        """
        if not self.total_bytes_limit:
            return
        with self._lock:
            if group is not None and self._forgotten_at(group) > epoch:
                return
            self._discard(key)
            if size_bytes > self.total_bytes_limit:
                return
            self._entries[key] = (value, size_bytes, group)
            if group is not None:
                self._groups.setdefault(group, set()).add(key)
            self._used += size_bytes
            while self._used > self.total_bytes_limit:
                self._discard(next(iter(self._entries)))

    def discard_group(self, group: Group) -> None:
        """Forget the values of a group."""
        if self.total_bytes_limit:
            with self._lock:
                self._forget(group, [group])

    def discard_groups(self, owner: Hashable) -> None:
        """Forget the values of all groups of an owner."""
        if self.total_bytes_limit:
            with self._lock:
                self._forget(owner, [group for group in self._groups if group[0] == owner])

    def _forget(self, what: Hashable, groups: list[Group]) -> None:
        self.epoch += 1
        if len(self._forgotten) >= ENTRIES_KEPT:
            self._forgotten.clear()
            self._oldest = self.epoch
        self._forgotten[what] = self.epoch
        for group in groups:
            for key in tuple(self._groups.get(group, ())):
                self._discard(key)

    def _forgotten_at(self, group: Group) -> int:
        known = self._forgotten
        return max(self._oldest, known.get(group, 0), known.get(group[0], 0))

    def _discard(self, key: Hashable) -> None:
        found = self._entries.pop(key, None)
        if found is None:
            return
        _, size, group = found
        self._used -= size
        if group is not None:
            members = self._groups[group]
            members.discard(key)
            if not members:
                del self._groups[group]

    @property
    def used_bytes(self) -> int:
        """How much of the budget is used."""
        return self._used


@cache
def descriptions() -> CachePool:
    """Return what this process remembers of local files, whatever the context: their structure, by their generation."""
    return CachePool(KEPT_BYTES, called="descriptions")


_MAGIC = b"fsstore1"
_TAIL = 16  # of a file: the checksum, the length of the header, and the magic bytes
_MOST_UNFINISHED_S = 600.0  # how old the file of a writer may be before it counts as that of a dead one


_written: OfProcess[dict[str, float]] = OfProcess(dict)
"""When this process has written last to a store that a cache is of, by its path."""


@dataclass(frozen=True, slots=True)
class KeptValue:
    """A value as it was found: what was said of it, its bytes, and when it was last known to be current."""

    said: Mapping[str, Any]
    value: memoryview
    time: float


class DiskCache:
    """A cache in a directory of at most so many bytes; without a path it keeps nothing."""

    def __init__(self, path: str, total_bytes_limit: int) -> None:
        self.path, self.total_bytes_limit = path, total_bytes_limit
        self._is_told = False

    def __bool__(self) -> bool:
        return bool(self.path)

    @property
    def since(self) -> float:
        """When this process has written last: values that were current before do not count."""
        return _written.now.get(self.path, float("-inf"))

    def forget(self, before: float) -> None:
        """Let nothing count that was current before a time."""
        _written.now[self.path] = before

    def begin(self) -> None:
        """Make the directory; raises an error that names it if it cannot be written."""
        try:
            Path(self.path).mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._total():
                pass
        except OSError as error:
            raise StoreError(
                f"The cache {self.path} cannot be written: {error.strerror}; give another cache_path, or none"
            ) from error

    def name(self, *parts: Any) -> Path:
        """Return the name of a value: another one for other parts."""
        digest = hashlib.blake2b(json.dumps(parts, default=str).encode(), digest_size=20).hexdigest()
        return Path(self.path) / digest[:2] / digest[2:]

    def find(self, name: Path) -> KeptValue | None:
        """Return a value if it is there, whole and undamaged."""
        try:
            with name.open("rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                body = file.read(max(0, status.st_size - _TAIL))
                tail = file.read(_TAIL)
        except OSError:
            return None
        head = int.from_bytes(tail[4:8], "little")
        if tail[8:] != _MAGIC or tail[:4] != _checksum(body) or head > len(body):
            with suppress(OSError):
                name.unlink()
            return None
        if time.time() - status.st_atime > USED_S:
            with suppress(OSError):
                os.utime(name, ns=(time.time_ns(), status.st_mtime_ns))
        cut = len(body) - head
        return KeptValue(json.loads(body[cut:]), memoryview(body)[:cut], status.st_mtime_ns / 1e9)

    def keep(self, name: Path, said: Mapping[str, Any], value: Any, current: float) -> None:
        """Keep a value that was current at a time."""
        head = json.dumps(said).encode()
        body = bytes(value) + head
        size = len(body) + _TAIL
        aside = name.with_name(f"{name.name}.{uuid4().hex[:8]}.new")
        if 2 * size > self.total_bytes_limit:
            return
        try:
            self._take_room(size)
            name.parent.mkdir(mode=0o700, exist_ok=True)
            tail = _checksum(body) + len(head).to_bytes(4, "little") + _MAGIC
            with aside.open("wb") as file:
                file.writelines((body, tail))
            self._touch(aside, current)
            aside.replace(name)
        except OSError as error:
            with suppress(OSError):
                aside.unlink()
            if not self._is_told:
                self._is_told = True
                warnings.warn(f"The cache {self.path} keeps no more: {error.strerror}", stacklevel=2)

    def refresh(self, name: Path, current: float) -> None:
        """Note that a value is still current at a time."""
        with suppress(OSError):
            self._touch(name, current)

    @staticmethod
    def _touch(path: Path, current: float) -> None:
        os.utime(path, ns=(time.time_ns(), int(current * 1e9)))

    def claim(self, name: Path) -> int | None:
        """Return a claim of a value that is to be fetched; None if another one has it, -1 if there are no claims."""
        try:
            name.parent.mkdir(mode=0o700, exist_ok=True)
            claim = os.open(name.with_name(f"{name.name}.claim"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return -1
        try:
            import fcntl

            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(claim)
            return None
        except (OSError, ImportError):  # a filesystem or a system without locks
            os.close(claim)
            return -1
        return claim

    @staticmethod
    def let_go(name: Path, claim: int) -> None:
        """Give a claim up."""
        if claim >= 0:
            with suppress(OSError):
                name.with_name(f"{name.name}.claim").unlink()
            os.close(claim)

    @contextmanager
    def _total(self) -> Iterator[int]:
        """Hold the lock of the number of bytes that are taken."""
        file = os.open(f"{self.path}/total", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            with suppress(OSError, ImportError):  # without locks the bound is kept when files are counted
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _take_room(self, size: int) -> None:
        with self._total() as file:
            told = os.pread(file, 32, 0).strip()
            used = int(told) if told.isdigit() else self.total_bytes_limit
            if used + size > self.total_bytes_limit:
                used = self._make_room(size)
            os.pwrite(file, str(used + size).ljust(32).encode(), 0)

    def _make_room(self, size: int) -> int:
        """Remove what was used least recently; return how many bytes are left."""
        found = sorted(self._files())
        used = sum(nbytes for _, nbytes, _ in found)
        if used + size <= self.total_bytes_limit:
            return used
        for _, nbytes, path in found:
            if used + size <= self.total_bytes_limit - self.total_bytes_limit // 10:
                break
            with suppress(OSError):
                Path(path).unlink()
            used -= nbytes
        return used

    def _files(self) -> Iterator[tuple[int, int, str]]:
        """Yield when each file was used, its size, and its path; remove what dead writers have left."""
        for path in Path(self.path).glob("*/*"):
            with suppress(OSError):
                status = path.stat()
                old = time.time() - max(status.st_mtime, status.st_ctime) > _MOST_UNFINISHED_S
                if old and path.suffix in (".new", ".claim"):
                    path.unlink()
                else:
                    yield status.st_atime_ns, status.st_size, str(path)


def _checksum(data: bytes) -> bytes:
    import google_crc32c  # only who keeps values needs it

    return int(google_crc32c.value(data)).to_bytes(4, "little")
