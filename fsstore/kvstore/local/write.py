"""Writing, deleting and listing local files: at any crash, a key has its old or its new value.

The value goes into the lock file of the key (`lock`), is synced, and renamed over the key (`stage`); then the directory
is synced.  In a batch each directory is synced when its last file has its name: nothing is promised before the batch is
answered.  For the same reason the files of a batch are synced in groups: all of a group are written before the first is
synced, so that the disk takes them together.  The space of replaced files is freed after the answer, because nothing
depends on it (`stage`).  The parents of new directories are synced, too; TensorStore leaves them, and a crash may lose
the array.

Directories whose keys cannot lie in the range are not entered.  Links to directories are not followed: they are listed
as keys, as in TensorStore.  Lock files are never listed.  A directory that lies in the range as a whole is deleted with
its keys; the one that a prefix names stays.
"""

# ruff: noqa: PTH106  # paths are bytes here, which pathlib does not know, and a Path costs as much as the call

from __future__ import annotations

import os
import re
import stat
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from queue import SimpleQueue
from typing import NamedTuple, TypeVar

from fsstore.errors import NotFoundError, StoreError
from fsstore.kvstore.contract.driver import UNKNOWN, Entry, LateWrite, Stamp, Write
from fsstore.kvstore.contract.request import EntryColumns, KeyRange, prefix_end
from fsstore.kvstore.local.file import LOCK_SUFFIX, file_path, os_failure, parent, text
from fsstore.kvstore.local.lock import OpenFile, hold_if_free
from fsstore.kvstore.local.stage import Protocol, Staged, begin_writeback, give_back, make_durable, remove_file, stage
from fsstore.runtime import execution, fork
from fsstore.runtime.future import Future
from fsstore.runtime.tuning import BATCH_BYTES, DISK_THREADS, FEW, PAGE, PIECE_BYTES
from fsstore.values.json_value import quote

T = TypeVar("T")


def write_batch(writes: Sequence[Write], protocol: Protocol, threads: int | None = None) -> list[Stamp]:
    """Apply `writes`; return their stamps once all are durable."""
    with answered(protocol) as dirty:
        return _shared(lambda part: _write_some(part, protocol, dirty), writes, protocol, threads)


@contextmanager
def answered(protocol: Protocol) -> Iterator[set[bytes]]:
    """Yield a set for the directories whose names change, and sync them at the end of the block, before the answer."""
    dirty: set[bytes] = set()
    try:
        yield dirty
        if protocol.sync and dirty:
            sync_directories(dirty)
    finally:
        give_back()


def write_late(
    makes: Sequence[Callable[[], LateWrite]],
    protocol: Protocol,
    *,
    makers: int | None = None,
    threads: int | None = None,
) -> list[Stamp]:
    """Apply writes whose values are made while others are written; return their stamps once all are durable.

    `makers` threads, by default one a core, make a write and put its value into a file before they make the next.  They
    never wait for the disk: other threads do, so that no core is idle while values remain to be made.
    """
    is_alone = len(makes) == 1

    def begin(make: Callable[[], LateWrite] | None) -> Staged | LateWrite | None:
        """Make a write and stage it, or only make it if staging would have to wait while other locks are held."""
        if make is None:
            publisher.begin_few()
            return None
        made = _in_one_piece(make()) if protocol.mode == "non_atomic" else make()
        one = stage(made, protocol, dirty, wait=is_alone) if is_alone or made.value is not None else None
        if one is None:
            return made
        publisher.take(one, is_alone=is_alone)
        return one

    with answered(protocol) as dirty:
        with _Publisher(protocol, dirty, threads) as publisher:
            steps = [*makes, None] if 1 < len(makes) <= 4 * DISK_THREADS else makes
            staged = execution.map_blocking(begin, steps, limit=makers)
            publisher.finish()
        left = [one for one in staged if isinstance(one, LateWrite)]
        others = iter(_shared(lambda part: _write_some(part, protocol, dirty), left, protocol, threads))
    return [one.stamp if isinstance(one, Staged) else next(others) for one in staged if one is not None]


def _in_one_piece(write: LateWrite) -> LateWrite:
    """Return a write with a complete value: a file is emptied before it is overwritten, and nothing may fail after
    that.
    """
    if not isinstance(write.value, Generator):
        return write
    return write._replace(value=b"".join([buffer for portion in write.value for buffer in portion]))


class _Publisher:
    """Makes staged writes durable and gives them their names, on other threads than those that make them.

    Without syncing they get their names at once.

    Large ones are published at once.  Small ones start on their way to the disk, and are published when no write is
    left to be made: earlier, they would take 1.05 to 1.3 of the time, because each makes the disk write shared
    structures.  If they are few, the last in a directory syncs it while others are still under way, which saves a
    twentieth; with many it would cost a tenth.
    """

    def __init__(self, protocol: Protocol, dirty: set[bytes], threads: int | None) -> None:
        self._protocol, self._dirty, self._threads = protocol, dirty, threads or DISK_THREADS
        self._room: SimpleQueue[None] = SimpleQueue()  # for large files; unlike a semaphore, Ctrl-C cannot break it
        for _ in range(threads or 3 * DISK_THREADS):
            self._room.put(None)
        self._jobs: list[Future[None]] = []
        self._small: deque[Staged] = deque()
        self._lock = fork.brief_lock()
        self._left: Counter[bytes] = Counter()  # the number of small files by directory

    def take(self, one: Staged, *, is_alone: bool) -> None:
        """Take over a write; one that is alone is left for `finish`."""
        if one.held is None:
            return
        if not self._protocol.sync:  # nothing to wait for
            self._publish(one, self._dirty)
            return
        if one.size >= PIECE_BYTES and not is_alone:
            self._room.get()
            self._jobs.append(execution.submit(self._see_to_large, one, kind="io"))
            return
        if not is_alone and begin_writeback is not None:
            begin_writeback(one.held.fd)
        with self._lock:
            self._left[one.folder] += 1
        self._small.append(one)

    def begin_few(self) -> None:
        """Publish the small files, if they are few, while another thread still makes the last of all."""
        for _ in range(min(self._threads - 1, len(self._small))):
            self._jobs.append(execution.submit(self._see_to_few, kind="io"))
        self._see_to_few()

    def finish(self) -> None:
        """Return when all files taken over are published."""
        if len(self._small) > 4 * DISK_THREADS:
            many, self._small = list(self._small), deque()
            with _letting_go(many):
                _shared(lambda part: _publish(part, self._protocol, self._dirty), many, self._protocol, self._threads)
        self._see_to_few()
        for job in self._jobs:  # after an interrupt, `__exit__` waits for all of them
            job.result()
        self._jobs.clear()

    def _see_to_large(self, one: Staged) -> None:
        try:
            self._publish(one, self._dirty)
        finally:
            self._room.put(None)

    def _see_to_few(self) -> None:
        while self._small:
            try:
                one = self._small.popleft()
            except IndexError:  # another thread took it
                return
            self._publish(one, set())
            with self._lock:
                self._left[one.folder] -= 1
                is_last = not self._left[one.folder]
            if is_last:
                _sync_directory(one.folder)

    def _publish(self, one: Staged, dirty: set[bytes]) -> None:
        try:
            _publish([one], self._protocol, dirty)
        finally:
            one.let_go()

    def __enter__(self) -> _Publisher:
        return self

    def __exit__(self, *_error: object) -> None:
        """Wait for jobs under way, and release the rest after a failure."""
        if not (self._small or self._jobs):
            return
        dropped = []
        with suppress(IndexError):
            while True:
                dropped.append(self._small.popleft())
        with _letting_go(dropped):
            for job in self._jobs:
                job.exception()


@contextmanager
def _letting_go(group: Sequence[Staged]) -> Iterator[None]:
    with ExitStack() as stack:
        for one in group:
            stack.push(one.let_go)
        yield


def _shared(
    function: Callable[[Sequence[T]], list[Stamp]], items: Sequence[T], protocol: Protocol, threads: int | None
) -> list[Stamp]:
    """Return the answers of `function` for parts of `items`, whose syncs overlap on pool threads.

    A disk takes several files together in about the time of one.
    """
    workers = min(threads or DISK_THREADS, len(items)) if protocol.sync else 1
    if workers <= 1:
        return function(items)
    size = -(-len(items) // workers)
    parts = [items[start : start + size] for start in range(0, len(items), size)]
    return [stamp for part in execution.map_blocking(function, parts, kind="io") for stamp in part]


def _write_some(writes: Sequence[Write | LateWrite], protocol: Protocol, dirty: set[bytes]) -> list[Stamp]:
    stamps: list[Stamp] = []
    while len(stamps) < len(writes):
        stamps += _write_group(writes[len(stamps) :][:FEW], protocol, dirty)
    return stamps


def _write_group(writes: Sequence[Write | LateWrite], protocol: Protocol, dirty: set[bytes]) -> list[Stamp]:
    """Apply the first of `writes`, and those after it whose locks are free; return their stamps.

    Only the first lock is waited for: two holders that wait for each other's lock would wait for ever.
    """
    with ExitStack() as stack:
        staged: list[Staged] = []
        size = 0
        for write in writes:
            if staged and (write.value is None or size > BATCH_BYTES):
                break
            one = stage(write, protocol, dirty, wait=not staged)
            if one is None:
                break
            if one.held is not None:
                stack.push(one.let_go)
            staged.append(one)
            if not (write.value is None or isinstance(write.value, Generator)):
                size += memoryview(write.value).nbytes
        return _publish(staged, protocol, dirty)


def _publish(staged: Sequence[Staged], protocol: Protocol, dirty: set[bytes]) -> list[Stamp]:
    if protocol.sync:
        make_durable([one.held for one in staged if one.held is not None])
    return [one.publish(dirty) for one in staged]


def sync_directories(paths: set[bytes]) -> None:
    """Make the names in these directories durable; a disk takes several together in about the time of one."""
    execution.map_blocking(_sync_directory, list(paths), kind="io", limit=DISK_THREADS)


def _sync_directory(path: bytes) -> None:
    try:
        directory = OpenFile(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):  # a directory that is gone has no names
        return
    except OSError as error:
        raise os_failure("open directory", path, error) from error
    try:
        os.fsync(directory.fd)
    except OSError as error:
        raise os_failure("sync", path, error) from error
    finally:
        directory.let_go()


# Listing and deleting ranges of keys.

_SUFFIX = LOCK_SUFFIX.encode()


class _Tree(NamedTuple):
    """A step of a walk: the `files` of one directory, whose keys begin with `prefix`, and the keys with a lock file."""

    prefix: bytes
    files: list[bytes]
    locked: set[bytes]


def scan(keys: KeyRange) -> Iterator[Sequence[Entry]]:
    """Yield the keys of the range in batches, unsorted; a range of one key lists no directory."""
    if keys.exclusive_max == keys.inclusive_min + b"\0":
        found = _alone(keys.inclusive_min)
        if found is not None:
            yield [found]
        return
    batch: list[bytes] = []
    for tree in _walk(keys):
        batch += tree.files
        while len(batch) >= PAGE:
            yield EntryColumns(batch[:PAGE])
            batch = batch[PAGE:]
    if batch:
        yield EntryColumns(batch)


def names(directory: str) -> list[str]:
    """Return the names in a directory, without lock files; none if it cannot be listed."""
    try:
        found = _names(directory.encode("utf-8", "surrogateescape"), is_root=False)
    except (StoreError, ValueError):  # not a path
        return []
    return [text(name) for name, _ in found if not name.endswith(_SUFFIX)]


def _alone(path: bytes) -> Entry | None:
    """Return the entry of a single key, with its size, or None if it has no file."""
    if b"\0" in path:
        return None
    try:
        status = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise os_failure("stat", path, error) from error
    if stat.S_ISDIR(status.st_mode) or path.endswith(_SUFFIX):
        return None
    return Entry(text(path), status.st_size if stat.S_ISREG(status.st_mode) else None)


def delete_range(keys: KeyRange, protocol: Protocol) -> None:
    """Delete every key in the range, then the directories that lie in the range as a whole.

    A key that is being written is deleted under its lock, others without one, as TensorStore does for all: making and
    removing a lock file takes four times as long as removing the file (140 against 30 µs).
    """
    dirty: set[bytes] = set()
    directories = []
    for tree in _walk(keys):
        for path in tree.files:
            remove_file(path, UNKNOWN, protocol, dirty, alone=path not in tree.locked)
        if _covers_content(keys, tree.prefix):
            _remove_orphans(tree.locked.difference(tree.files), protocol, dirty)
        if _covers(keys, tree.prefix):
            directories.append(tree.prefix[:-1])
    for directory in reversed(directories):
        try:
            os.rmdir(directory)
        except OSError:
            continue  # not empty: a new key, or a lock file of another writer
        dirty.discard(directory)
        dirty.add(parent(directory))
    if protocol.sync:
        sync_directories(dirty)


def remove_directory(directory: str, protocol: Protocol) -> None:
    """Remove a directory if it is empty."""
    path = file_path(directory.rstrip("/"))
    try:
        os.rmdir(path)
    except OSError:
        return  # not empty, missing, a link to a directory, or not ours to remove
    if protocol.sync:
        sync_directories({parent(path)})


def _remove_orphans(keys: set[bytes], protocol: Protocol, dirty: set[bytes]) -> None:
    """Remove the lock files of new keys whose writers were killed; files with a holder stay."""
    if protocol.mode != "os":  # only in this mode a lock ends with its holder
        return
    for key in keys:
        held = hold_if_free(key, protocol.mode, dirty)
        if held is not None:
            held.let_go()


def sweep(prefix: str, name: str) -> None:
    """Remove the lock files without a holder for keys that are `prefix` and a match of `name`."""
    start = prefix.encode("utf-8", "surrogateescape")
    folder = start[: start.rfind(b"/") + 1]
    pattern = re.compile(re.escape(start) + name.encode() + re.escape(_SUFFIX))
    for found, _ in _names(folder, is_root=False):
        if found.endswith(_SUFFIX) and pattern.fullmatch(folder + found):
            held = hold_if_free((folder + found).removesuffix(_SUFFIX), "os", set())
            if held is not None:
                held.let_go()


def _covers(keys: KeyRange, prefix: bytes) -> bool:
    """Return whether a directory, and everything that could be in it, lies in the range."""
    directory = prefix[:-1]
    return bool(directory) and keys.contains(directory) and _covers_content(keys, prefix)


def _covers_content(keys: KeyRange, prefix: bytes) -> bool:
    """Return whether everything that could be in a directory lies in the range."""
    if not prefix or keys.inclusive_min > prefix:
        return False
    return not keys.exclusive_max or prefix_end(prefix) <= keys.exclusive_max


def _walk(keys: KeyRange) -> Iterator[_Tree]:
    """Yield every directory that can hold keys of the range, parents first, with its keys in the range."""
    if keys.empty:
        return
    root = keys.common_prefix
    start = root[: root.rfind(b"/") + 1]
    if b"\0" in start:
        raise StoreError(f"Invalid key: {quote(start[:-1])}")
    pending = [start]
    while pending:
        prefix = pending.pop()
        names = _names(prefix, is_root=prefix == start)
        locked = {prefix + name.removesuffix(_SUFFIX) for name, _ in names if name.endswith(_SUFFIX)}
        names = [each for each in names if not each[0].endswith(_SUFFIX)] if locked else names
        paths = [prefix + name for name, is_directory in names if not is_directory]
        inside = paths if _covers(keys, prefix) else [path for path in paths if keys.contains(path)]
        yield _Tree(prefix, inside, locked)
        below = (prefix + name + b"/" for name, is_directory in names if is_directory)
        pending += [path for path in below if _reaches(keys, path)]


def _reaches(keys: KeyRange, prefix: bytes) -> bool:
    if keys.exclusive_max and prefix >= keys.exclusive_max:
        return False
    end = prefix_end(prefix)
    return not end or end > keys.inclusive_min


def _names(prefix: bytes, *, is_root: bool) -> list[tuple[bytes, bool]]:
    """Return the names in a directory, including lock files, and whether they are directories; none if it is gone."""
    try:
        with os.scandir(prefix or b".") as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    except FileNotFoundError:
        return []
    except NotADirectoryError as error:
        if not is_root:
            return []
        raise _no_directory(prefix[:-1]) from error
    except OSError as error:
        raise os_failure("list", prefix or b".", error) from error


def _no_directory(path: bytes) -> StoreError:
    """Return the error for a prefix that is a file, or lies below one."""
    try:
        os.lstat(path)
    except OSError as error:
        return os_failure("stat", path, error)
    return NotFoundError(f"Cannot list non-directory: {quote(path)}")
