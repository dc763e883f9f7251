"""The `file` key-value store: local files, read by position and written atomically.

A key is the path of a file.  Neighbouring modules hold reads, the lock protocol, the write protocol and listing; here
they become a driver and a kind.  The coroutines of the driver never suspend: they make their system calls at once, on
the thread that drives them, because handing a small read to another thread costs more than the read.

It speaks to the system itself instead of through fsspec's `LocalFileSystem`, whose writes can tear and which has no
locks.
"""

# ruff: noqa: PTH104, PTH108, PTH116  # paths are bytes here, which pathlib does not know, and a Path costs as much as the call

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace
from time import perf_counter_ns
from typing import Any, ClassVar, Literal

from fsstore.errors import UnimplementedError
from fsstore.kvstore.contract.ability import (
    DatesValues,
    IsMetered,
    KeepsDirectories,
    ListsNames,
    SweepsUnfinished,
    SyncsTogether,
    TakesValues,
    WritesLate,
)
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    Entry,
    Features,
    KindDefaults,
    KvDriver,
    KvOpening,
    LateWrite,
    Read,
    ReadResult,
    Stamp,
    Write,
    now,
    refuse_way,
    take_way,
)
from fsstore.kvstore.contract.request import KeyRange, LateCount, counting, value_sizes
from fsstore.kvstore.local import write as local_scan
from fsstore.kvstore.local.file import (
    check_prefix,
    date_of,
    describe,
    file_path,
    generation_of,
    normalize,
    os_failure,
    parent,
    read_batch,
)
from fsstore.kvstore.local.lock import OpenFile, forgetting, hold, open_creating
from fsstore.kvstore.local.stage import Protocol, make_durable, sync_filesystem
from fsstore.kvstore.local.write import answered, write_batch, write_late
from fsstore.runtime.tuning import FLIGHT_BYTES, PIECE_BYTES
from fsstore.values.json_value import Fields, Json, Parser, integer, one_of, string
from fsstore.values.registry import decode_path, encode_path, reject_query

# Copies inside the kernel.

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_NOT_HERE = frozenset((errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM))


def take_batch(
    pairs: Sequence[tuple[str, str]], protocol: Protocol, dirty: set[bytes], *, unseen: bool
) -> list[ReadResult]:
    """Copy files to other names; the answers tell whether each was there, and its size."""
    return [_take(file_path(source), file_path(target), protocol, dirty, unseen=unseen) for source, target in pairs]


def _take(source: bytes, target: bytes, protocol: Protocol, dirty: set[bytes], *, unseen: bool) -> ReadResult:
    try:
        opened = OpenFile(source, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return ReadResult("missing", b"", NO_VALUE, now())
    except OSError as error:
        raise os_failure("open", source, error) from error
    try:
        made = _made(opened, target, protocol, dirty) if unseen else None
        return made or _replaced(opened, target, protocol, dirty)
    finally:
        opened.let_go()


def _made(opened: OpenFile, target: bytes, protocol: Protocol, dirty: set[bytes]) -> ReadResult | None:
    """Copy a file to a new name; None if the name exists: a killed run may have left a part there."""
    try:
        made = open_creating(OpenFile, target, _NEW, dirty)
    except FileExistsError:
        return None
    try:
        _pour(opened, made)
        status = os.fstat(made.fd)
        if protocol.sync:
            make_durable([made])
    except BaseException as error:
        os.unlink(target)
        if isinstance(error, OSError):
            raise os_failure("write", target, error) from error
        raise
    finally:
        made.let_go()
    dirty.add(parent(target))
    return ReadResult("value", b"", generation_of(status), now(), status.st_size)


def _replaced(opened: OpenFile, target: bytes, protocol: Protocol, dirty: set[bytes]) -> ReadResult:
    held = hold(target, protocol.mode, protocol.acquire_timeout_s, dirty)
    try:
        _pour(opened, held)
        status = _status_after(held, target)
        if protocol.sync:
            make_durable([held])
        os.rename(held.path, target)
        held.temporary = False
    except OSError as error:
        raise os_failure("write", target, error) from error
    finally:
        held.let_go()
    dirty.add(parent(target))
    return ReadResult("value", b"", generation_of(status), now(), status.st_size)


def _status_after(held: OpenFile, target: bytes) -> os.stat_result:
    """Return the status of the new value, with a modification time past that of the replaced value."""
    status = os.fstat(held.fd)
    try:
        before = os.stat(target).st_mtime_ns
    except (FileNotFoundError, NotADirectoryError):
        return status
    if status.st_mtime_ns > before:
        return status
    os.utime(held.fd, ns=(status.st_atime_ns, before + 1))
    return os.fstat(held.fd)


def _pour(source: OpenFile, target: OpenFile) -> None:
    left = os.fstat(source.fd).st_size
    try:
        while left and (count := os.copy_file_range(source.fd, target.fd, min(left, FLIGHT_BYTES))):
            left -= count
    except (AttributeError, OSError) as error:  # another system, or another filesystem
        if isinstance(error, OSError) and error.errno not in _NOT_HERE:
            raise
    if not left:
        return
    # the rest, which the kernel did not copy: some filesystems answer zero if they cannot
    while portion := os.read(source.fd, PIECE_BYTES):
        view = memoryview(portion)
        while view:
            view = view[os.write(target.fd, view) :]


class LocalDriver(
    DatesValues, IsMetered, KeepsDirectories, ListsNames, SweepsUnfinished, SyncsTogether, TakesValues, WritesLate
):
    """Local files as a key-value store.

    In the locking modes `none` and `non_atomic` a condition is tested, but another writer may interfere between the
    test and the write.  The user asks for those modes by name, and TensorStore writes parts of chunks in them, so the
    driver still claims to honour conditions.

    `io_limit` bounds the threads that write a batch; the caller bounds the number of batches.
    """

    id: ClassVar[str] = "file"
    features: ClassVar[Features] = Features(
        waits=False, create_only=True, conditional_write=True, reads_parts=True, slow_writes=True
    )

    def __init__(
        self,
        protocol: Protocol | None = None,
        *,
        mapped: bool = False,
        io_limit: int | None = None,
        members: Mapping[str, Json] | None = None,
    ) -> None:
        self.protocol = protocol or Protocol()
        self.mapped = mapped
        self.io_limit = io_limit
        self._members = dict(members or {})

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`, in order."""
        if self.meter is None:
            return read_batch(reads, mapped=self.mapped)
        begin_ns = perf_counter_ns()
        try:
            found = read_batch(reads, mapped=self.mapped)
        except Exception as error:
            self.meter.failed(error, begin_ns)
            raise
        self.meter.read(self, reads, found, begin_ns)
        return found

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply `writes`; each is atomic, and all are durable when answered."""
        begin_ns = perf_counter_ns()
        try:
            with forgetting():
                stamps = write_batch(writes, self.protocol, self.io_limit)
        except Exception as error:
            if self.meter is not None:
                self.meter.failed(error, begin_ns)
            raise
        if self.meter is not None:
            self.meter.wrote(self, writes, value_sizes(writes), begin_ns)
        return stamps

    async def write_late(self, makes: Sequence[Callable[[], LateWrite]], makers: int | None = None) -> list[Stamp]:
        """Apply writes whose values are made while others are written."""
        begin_ns, made = perf_counter_ns(), list[LateCount]()
        counted = makes if self.meter is None else counting(makes, made)
        try:
            with forgetting():
                stamps = write_late(counted, self.protocol, makers=makers, threads=self.io_limit)
        except Exception as error:
            if self.meter is not None:
                self.meter.failed(error, begin_ns)
            raise
        if self.meter is not None:
            self.meter.wrote(self, made, [each.nbytes for each in made], begin_ns)
        return stamps

    def takes_from(self, other: object) -> bool:
        """Return whether `other` is a driver of local files; not in place, where readers would see parts."""
        return isinstance(other, LocalDriver) and self.protocol.mode != "non_atomic"

    async def take_values(
        self, other: object, pairs: Sequence[tuple[str, str]], *, unseen: bool = False
    ) -> list[ReadResult]:
        """Copy files inside the kernel."""
        with forgetting(), answered(self.protocol) as dirty:
            return take_batch(pairs, self.protocol, dirty, unseen=unseen)

    def unsynced(self) -> LocalDriver:
        """Return a driver of the same files that leaves syncing to the system."""
        members = {**self._members, "file_io_sync": False}
        protocol = replace(self.protocol, sync=False)
        return LocalDriver(protocol, mapped=self.mapped, io_limit=self.io_limit, members=members)

    async def sync(self, key: str) -> None:
        """Return once all data of a file's filesystem are on disk; at once if syncing is off."""
        if self.protocol.sync:
            sync_filesystem(file_path(f"{key}_" if key.endswith("/") or not key else key))

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete every key in the range, and directories that lie in it as a whole."""
        with forgetting():
            local_scan.delete_range(keys, self.protocol)

    async def remove_directory(self, directory: str) -> None:
        """Remove a directory if it is empty."""
        with forgetting():
            local_scan.remove_directory(directory, self.protocol)

    async def sweep_unfinished(self, prefix: str, name: str) -> None:
        """Remove lock files whose holders are gone; only the mode `os` can recognise them."""
        if self.protocol.mode == "os":
            with forgetting():
                local_scan.sweep(prefix, name)

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in the range, unsorted; only a range of one key has a size."""
        begin_ns = perf_counter_ns()
        for batch in local_scan.scan(keys):
            if self.meter is not None:
                self.meter.listed(describe(keys.common_prefix.decode("utf-8", "replace")), begin_ns, entries=len(batch))
            yield batch
            begin_ns = perf_counter_ns()

    async def names(self, directory: str) -> list[str]:
        """Return the names in a directory; none if it cannot be listed."""
        return local_scan.names(directory)

    def date_of(self, generation: bytes) -> bytes:
        """Return the modification time in a generation."""
        return date_of(generation)

    def describe_key(self, key: str) -> str:
        """Return `local file "<path>"`."""
        return describe(key)

    def spec(self) -> Mapping[str, Json]:
        """Return the members that the driver was opened with."""
        return self._members

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalDriver) and self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[Protocol, bool]:
        return self.protocol, self.mapped


def _resource(parser: Parser[Any], name: str) -> Parser[Any]:
    """Return a parser of an inline resource; a bare reference to the default stands for the default."""

    def parse(value: Any) -> Any:
        inner = value[0] if isinstance(value, list) and len(value) == 1 else value
        return {} if inner is None or inner == name else parser(inner)

    return parse


def _mode(value: Any) -> str | None:
    fields = Fields(value)
    mode: str | None = fields.take("mode", one_of("default", "memmap", "direct"))
    fields.finish()
    return mode


def _retries(value: Any) -> Any:
    fields = Fields(value)
    fields.take("initial_delay", string)
    fields.take("max_delay", string)
    count = fields.take("max_retries", integer(0))
    fields.finish()
    return value if count else {}


_REFUSED = "{} is not supported for local files"


def _of_context(opening: KvOpening, name: str) -> Any:
    """Return the value of a resource in the store's context, or its default."""
    return None if opening.context is None else opening.context[name].value


class LocalKind(KindDefaults):
    """The static side of the `file` driver.

    The resources `file_io_mode` and `file_io_retries` of newer TensorStore releases are read, as members and from the
    context: the first may select `file_io_memmap`.  Opening refuses direct I/O and retries, which do not exist here.
    They are not resources of the kind, because specs print them in the older form.
    """

    id: str = "file"
    schemes: tuple[str, ...] = ("file",)
    role: Literal["root"] = "root"
    resources: tuple[str, ...] = ("file_io_concurrency", "file_io_locking", "file_io_memmap", "file_io_sync")

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the engine members, and `file_io_mode` and `file_io_retries`, which may select `file_io_memmap`."""
        mode = fields.take("file_io_mode", _resource(_mode, "file_io_mode"))
        retries = fields.take("file_io_retries", _resource(_retries, "file_io_retries"))
        members: dict[str, Json] = {"file_io_memmap": True} if mode == "memmap" else {}
        members |= {"file_io_mode": {"mode": mode}} if mode == "direct" else {}
        members |= {"file_io_retries": retries} if retries else {}
        return members | take_way(fields, self.id)

    def check_path(self, path: str) -> str:
        """Return the path; `.` and `..`, doubled slashes and names of lock files are refused."""
        return check_prefix(path)

    def from_url(self, scheme: str, rest: str) -> tuple[str, dict[str, Json]]:
        """Return the path of `file://<rest>`: relative unless it begins with a slash or names this machine."""
        reject_query(rest)
        if rest == "localhost" or rest.startswith("localhost/"):
            rest = rest.removeprefix("localhost")
        return check_prefix(normalize(decode_path(rest))), {}

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:
        """Return `file://<path>`; the engine is not part of it."""
        refuse_way(members, "single_writer")
        if path == "localhost" or path.startswith("localhost/"):
            path = "./" + path
        return "file://" + encode_path(path, safe="@\\")

    async def open(self, opening: KvOpening) -> KvDriver:
        """Return the driver that the resources select."""
        values, members = opening.resources, dict(opening.members)
        mode = _of_context(opening, "file_io_mode")
        if "file_io_mode" in members or mode == "direct":
            raise UnimplementedError(_REFUSED.format("file_io_mode: direct input and output"))
        if "file_io_retries" in members or _of_context(opening, "file_io_retries"):
            raise UnimplementedError(_REFUSED.format("file_io_retries: repeating calls"))
        if mode == "memmap":
            members["file_io_memmap"] = True
        locking = values.get("file_io_locking")
        limit = getattr(values.get("file_io_concurrency"), "limit", None)
        protocol = Protocol(
            getattr(locking, "mode", "os"),
            getattr(locking, "acquire_timeout_s", 60.0),
            values.get("file_io_sync", True) is not False,
        )
        return LocalDriver(
            protocol,
            mapped=bool(values.get("file_io_memmap") or members.get("file_io_memmap")),
            io_limit=limit if isinstance(limit, int) else None,
            members=members,
        )


KIND = LocalKind()
"""The kind of `{"driver": "file"}` and `file://`."""
