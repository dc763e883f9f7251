"""The known facts of fsspec's filesystems by protocol, and replacements for their verbs.

A protocol that is not in `PROMISES` promises nothing: its values have no generations, a failed write may leave a part
of the value, and no condition can be checked.  If a value can be had together with its version, in one request or from
one open file, the verb `read` does so; it returns the bytes and the members of `info`.

FTP has one connection for commands, and a failure number with many meanings: 550 is a missing file, a directory in its
place, or an unreadable file.  fsspec calls every failure a missing file, keeps a connection after a broken transfer,
and lets threads talk at once.  Here one thread talks at a time, 550 is investigated, every other failure has its own
error, and a connection with a failure is replaced.

SFTP answers most failures with a text and no number; `info` decides on the meaning.  A move over an existing file is an
extension that not every server has.  Two threads of paramiko's client can wait for each other's answers for ever, so
only one talks at a time.
"""

from __future__ import annotations

import ftplib
import os
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from fsstore.errors import AbortedError, StoreError, UnavailableError
from fsstore.kvstore.contract.driver import Features
from fsstore.kvstore.engine.contract import is_missing, status_of, translate
from fsstore.redaction import redact
from fsstore.runtime import fork
from fsstore.runtime.tuning import READ_ATTEMPTS, SILENT_S, SMALL_BYTES

T = TypeVar("T")
Verbs = Mapping[str, Callable[..., Any]]
_NAMED: Mapping[str, Any] = {"find": {"withdirs": False, "detail": True}, "ls": {"detail": True}}
_DATES = ("mtime", "modified", "modify", "LastModified", "last_modified", "updated")  # of members of `info`


@dataclass(frozen=True, slots=True)
class FilesystemPromise:
    """The known facts of a protocol."""

    traits: tuple[str, ...] = ()
    """The members of `info` that change with every write and make a generation; without any, there is none."""
    renames: bool = False
    """Whether values are written under another name and then renamed: a failed write leaves the old value."""
    creates: bool = False
    """Whether the verb `insert` creates a value only if none exists, against all other writers."""
    coarse: bool = False
    """Whether two writes in one moment may leave the same generation."""
    writes: bool = True
    """Whether the filesystem can be written; archives are written by drivers of fsstore."""
    waits: bool = True
    """Whether verbs may take long, so that a pool thread calls them instead of the caller's."""
    verbs: Verbs = field(default_factory=dict)
    """Functions that replace verbs of a synchronous filesystem."""
    coroutines: Verbs = field(default_factory=dict)
    """Coroutine functions that replace verbs of an asynchronous one."""

    @property
    def features(self) -> Features:
        """The features of a store over such a filesystem."""
        return Features(
            waits=self.waits, writable=self.writes, create_only=self.creates, coarse_generations=self.coarse
        )


class Asked:
    """A filesystem whose verbs are called by name; `mark` precedes the names of coroutines."""

    __slots__ = ("brings", "filesystem", "mark", "verbs")

    def __init__(self, filesystem: Any, verbs: Verbs, mark: str) -> None:
        self.filesystem, self.verbs, self.mark = filesystem, verbs, mark
        self.brings = "read" in verbs  # returns a value with its version

    async def __call__(self, verb: str, *arguments: Any) -> Any:
        own = self.verbs.get(verb)
        if own is not None:
            found = own(self.filesystem, *arguments)
        else:
            if verb in _NAMED:
                self.filesystem.invalidate_cache()
            found = getattr(self.filesystem, self.mark + verb)(*arguments, **_NAMED.get(verb, {}))
        return await found if self.mark else found

    def finds(self) -> bool:
        """Return whether the filesystem has a `find` of its own: fsspec's omits directories that it cannot list."""
        find = getattr(self.filesystem, self.mark + "find")
        return find.__module__ not in ("fsspec.spec", "fsspec.asyn")


async def dating(ask: Asked, key: str) -> float | None:
    """Return when a file was modified, in seconds since 1970, as far as `info` says."""
    try:
        info = await ask("info", key)
    except Exception as error:
        if is_missing(error):
            return None
        raise
    return next((found for name in _DATES if (found := _seconds(info.get(name))) is not None), None)


def _seconds(date: object) -> float | None:
    """Return a date of any of the forms in use in seconds since 1970; those without a zone are of Greenwich."""
    if isinstance(date, int | float):
        return float(date)
    if isinstance(date, str):
        try:
            date = datetime.fromisoformat(f"{date[:8]}T{date[8:14]}" if date[:14].isdigit() else date)  # as FTP has it
        except ValueError:
            return None
    if not isinstance(date, datetime):
        return None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


# Local files: the version is that of the open file.


def _facts(found: os.stat_result) -> dict[str, Any]:
    return {"ino": found.st_ino, "mtime": found.st_mtime_ns, "size": found.st_size}


def _local_info(_filesystem: Any, path: str) -> dict[str, Any]:
    found = Path(path).stat()
    return {**_facts(found), "type": "directory" if stat.S_ISDIR(found.st_mode) else "file"}


def _local_read(filesystem: Any, path: str, start: int, stop: int | None) -> tuple[bytes, dict[str, Any]]:
    with filesystem._open(path, "rb") as file:  # `open` takes twice as long
        number = file.fileno()
        facts = _facts(os.fstat(number))
        size = (facts["size"] if stop is None else stop) - start
        if size < SMALL_BYTES:
            return os.pread(number, size, start), facts
        file.seek(start)
        return file.read(size), facts


def _local_move(_filesystem: Any, path: str, target: str) -> None:
    """Rename a file, replacing an existing one."""
    Path(path).replace(target)


# fsspec's memory, without walks over all its files: a value is an object, and so is its version.


def _memory_facts(file: Any, size: int) -> dict[str, Any]:
    # a single member: formatting three of them would take as long as the rest of a small read
    return {"version": f"{id(file)} {round(file.modified.timestamp() * 1e6)} {size}", "size": size}


def _memory_file(filesystem: Any, path: str) -> Any:
    file = filesystem.store.get(path)
    if file is None:
        raise FileNotFoundError(path)
    return file


def _memory_info(filesystem: Any, path: str) -> dict[str, Any]:
    file = _memory_file(filesystem, path)
    return _memory_facts(file, file.size)


def _memory_read(filesystem: Any, path: str, start: int, stop: int | None) -> tuple[memoryview, dict[str, Any]]:
    """Return bytes of a file, uncopied, and its version."""
    file = _memory_file(filesystem, path)
    value = file.getvalue()
    return memoryview(value)[start:stop], _memory_facts(file, len(value))


def _memory_insert(filesystem: Any, path: str, value: bytes) -> bool:
    """Store a value unless the path exists; the dictionary decides the winner."""
    from fsspec.implementations.memory import MemoryFile

    mine = MemoryFile(filesystem, path, value)
    return filesystem.store.setdefault(path, mine) is mine


def _memory_find(filesystem: Any, _directory: str) -> dict[str, Any]:
    """Return all files, even while others write.

    Copying the names makes no object that the garbage collector counts: if something hooks into the collector, as dask
    does, a listing of pairs may see the dictionary change.
    """
    store = filesystem.store
    for _ in range(READ_ATTEMPTS):
        try:
            paths = list(store)
        except RuntimeError:  # it grew all the same
            continue
        found = ((path, store.get(path)) for path in paths)
        return {path: {"size": file.size} for path, file in found if file is not None}
    raise AbortedError(f"The memory of fsspec changed during {READ_ATTEMPTS} attempts to list it")


# Archives.


def _member(filesystem: Any, path: str, *span: int) -> bytes:
    """Return a member of an archive.  A directory has no value; fsspec 2026.7 raises `KeyError` for a missing one."""
    try:
        value: bytes = filesystem.cat_file(path, *span)
    except (KeyError, ValueError):
        if filesystem.isfile(path):
            raise
        raise FileNotFoundError(path) from None
    return value


# Clouds: the answer with a value tells its version.


async def _google_read(filesystem: Any, path: str, start: int, stop: int | None) -> tuple[bytes, dict[str, Any]]:
    """Return bytes of an object, and its version; servers other than Google's tell that only in `info`."""
    part = {} if (start, stop) == (0, None) else {"Range": f"bytes={start}-{'' if stop is None else stop - 1}"}
    headers, body = await filesystem._call("GET", filesystem.url(path), headers=part)
    generation = headers.get("x-goog-generation")
    if generation is None:
        found = await filesystem._info(path)
        return (await filesystem._call("GET", filesystem.url(path), headers=part))[1], found
    return body, {"generation": generation}


async def _azure_read(filesystem: Any, path: str, start: int, stop: int | None) -> tuple[bytes, dict[str, Any]]:
    container, blob, version = filesystem.split_path(path)
    part = {} if (start, stop) == (0, None) else {"offset": start, "length": None if stop is None else stop - start}
    async with filesystem.service_client.get_blob_client(container=container, blob=blob) as client:
        try:
            stream = await client.download_blob(version_id=version, **part)
        except Exception as error:
            if status_of(error) != 404:
                raise
            raise FileNotFoundError(path) from error
        return await stream.readall(), {"etag": stream.properties.etag}


async def _azure_find(filesystem: Any, directory: str) -> dict[str, Any]:
    """Return everything below a directory; adlfs (2026.8.0) answers with a list of one name if it is a blob, too."""
    container, prefix, _ = filesystem.split_path(f"{directory.rstrip('/')}/")
    async with filesystem.service_client.get_container_client(container=container) as client:
        listed = client.list_blobs(include=["metadata"], name_starts_with=prefix)
        return {
            f"{container}/{blob.name}": {"size": blob.size}
            async for blob in listed
            if (blob.metadata or {}).get("hdi_isfolder") != "true"
        }


# FTP.

_ABSENT = ("550", "501")  # some servers send the second for a missing directory
_BEYOND = "554"  # a start behind the end
_DENIED = ("530", "532")
_UNKNOWN_COMMAND = ("500", "502", "504")
_BROKEN = frozenset(("SSHException", "EOFError", "TimeoutError", "ConnectionError"))
_LOST = (ftplib.error_temp, ftplib.error_reply, ftplib.error_proto, EOFError, OSError)


def _turn(filesystem: Any) -> fork.Lock:
    """Return the lock on the connection to a server.  The object holds it, because equal filesystems differ."""
    lock: fork.Lock = vars(filesystem).setdefault("_turn_of_fsstore", fork.lock())
    return lock


def _talk(filesystem: Any, call: Callable[[], T]) -> T:
    """Return `call()`, alone on the connection; a lost one is closed, and the next call makes a new one."""
    with _turn(filesystem):
        try:
            _log_in(filesystem)
            return call()
        except (FileNotFoundError, PermissionError) as error:
            cause = _cause_of(error)
            if cause is None:
                raise
            failure = cause
        except ftplib.error_perm as error:
            failure = error
        except _LOST as error:
            failure = error
        if not isinstance(failure, ftplib.error_perm):
            filesystem.ftp.close()
    raise _ftp_error(failure)


def _log_in(filesystem: Any) -> None:
    if filesystem.ftp.sock is None:
        filesystem._connect()
        if filesystem.tls is True:
            filesystem.ftp.prot_p()


def _cause_of(error: BaseException) -> Exception | None:
    """Return the failure that fsspec reports as a missing file, or None if the file is missing."""
    seen: BaseException | None = error
    for _ in range(10):
        seen = None if seen is None else seen.__cause__ or seen.__context__
        if isinstance(seen, (ftplib.Error, EOFError)) and not str(seen).startswith(_ABSENT):
            return seen
    return None


def _ftp_error(error: Exception) -> Exception:
    text = redact(str(error)) or "the connection ended"
    if isinstance(error, ftplib.error_perm):
        if text[:3] in _ABSENT:
            return FileNotFoundError(text)
        return PermissionError(text) if text[:3] in _DENIED else translate(error)
    if isinstance(error, OSError):
        return error if isinstance(error, ConnectionError | TimeoutError) else UnavailableError(text)
    return UnavailableError(f"The FTP server did not do what it was asked: {text}")


def _looked_into(filesystem: Any, path: str, call: Callable[[], T]) -> T:
    """Return `call()`; a refusal with 550 is a missing file only if the server lists none of this name."""
    try:
        return _talk(filesystem, call)
    except FileNotFoundError as error:
        refused = str(error)
    if _ftp_info(filesystem, path)["type"] == "directory":
        raise IsADirectoryError(path)
    raise PermissionError(f"the server refused: {refused}")


def _ftp_info(filesystem: Any, path: str) -> dict[str, Any]:
    above, _, name = path.rstrip("/").rpartition("/")
    if not name:
        return {"name": "/", "size": None, "type": "directory"}
    for found in _ftp_ls(filesystem, above or "/"):
        if found["name"] == path.rstrip("/"):
            return found
    raise FileNotFoundError(path)


def _ftp_ls(filesystem: Any, path: str) -> list[dict[str, Any]]:
    above = path.rstrip("/")
    return [
        {
            "name": f"{above}/{name.rpartition('/')[2]}",
            "type": "directory" if facts["type"].lower() == "dir" else "file",
            "size": int(facts["size"]) if facts.get("size", "").isdecimal() else None,
        }
        for name, facts in _talk(filesystem, lambda: _listed(filesystem.ftp, path))
        if facts["type"].lower() not in ("cdir", "pdir") and name not in (".", "..")
    ]


def _listed(ftp: Any, path: str) -> list[tuple[str, dict[str, str]]]:
    """Return names and facts of a directory, from the machine-readable list or else from the one for people."""
    try:
        return list(ftp.mlsd(path))
    except ftplib.error_perm as error:
        if str(error)[:3] not in _UNKNOWN_COMMAND:
            raise
    from fsspec.implementations.ftp import _mlsd2

    listed: list[tuple[str, dict[str, str]]] = _mlsd2(ftp, path)
    return listed


def _ftp_read(filesystem: Any, path: str, start: int = 0, stop: int | None = None) -> bytes:
    """Return bytes of a file.  A partial read breaks off the transfer, about which the server may complain."""

    def call() -> bytes:
        ftp, out = filesystem.ftp, bytearray()
        ftp.voidcmd("TYPE I")
        try:
            line = ftp.transfercmd(f"RETR {path}", rest=start or None)
        except ftplib.error_perm as error:
            if str(error)[:3] == _BEYOND:
                return b""
            raise
        with line:
            while stop is None or len(out) < stop - start:
                part = line.recv(SMALL_BYTES if stop is None else min(SMALL_BYTES, stop - start - len(out)))
                if not part:
                    break
                out += part
        with suppress(*([] if stop is None else [ftplib.error_temp, ftplib.error_perm])):
            ftp.voidresp()
        return bytes(out)

    return _looked_into(filesystem, path, call)


def _ftp_write(filesystem: Any, path: str, value: bytes) -> None:
    """Store a value; a missing directory raises `FileNotFoundError`."""
    from io import BytesIO

    _talk(filesystem, lambda: filesystem.ftp.storbinary(f"STOR {path}", BytesIO(value)))


def _ftp_make(filesystem: Any, path: str, exist_ok: bool) -> None:
    """Create a directory and those above it, unless they exist by now."""

    def call() -> None:
        filesystem.invalidate_cache()
        filesystem.makedirs(path, exist_ok=exist_ok)

    try:
        _talk(filesystem, call)
    except FileNotFoundError:  # 550: another client created it, or it cannot be created
        if _ftp_info(filesystem, path)["type"] != "directory":
            raise NotADirectoryError(path) from None


def _ftp_move(filesystem: Any, path: str, target: str) -> None:
    """Rename a file, replacing an existing one."""
    try:
        _talk(filesystem, lambda: filesystem.ftp.rename(path, target))
    except (FileNotFoundError, StoreError) as error:
        if isinstance(error, UnavailableError):
            raise
        _ftp_remove(filesystem, target)  # some servers require the name to be free
        _talk(filesystem, lambda: filesystem.ftp.rename(path, target))


def _ftp_remove(filesystem: Any, path: str) -> None:
    _looked_into(filesystem, path, lambda: filesystem.ftp.delete(path))


# SFTP.


def _sftp_talk(filesystem: Any, call: Callable[[], T]) -> T:
    """Return `call()`, alone on the connection; a lost one is closed, and the next call makes a new one."""
    with _turn(filesystem):
        transport = filesystem.client.get_transport()
        if transport is None or not transport.is_active():
            filesystem._connect()
        filesystem.ftp.get_channel().settimeout(SILENT_S)
        try:
            return call()
        except Exception as error:
            names = {cls.__name__ for cls in type(error).__mro__}
            if names.isdisjoint(_BROKEN):
                raise
            failure = UnavailableError(f"The SFTP server did not do what it was asked: {redact(str(error))}")
            filesystem.client.close()
    raise failure


def _sftp_verb(verb: str, *named: tuple[str, Any]) -> Callable[..., Any]:
    """Return a function that calls a verb of the filesystem, one thread at a time."""

    def call(filesystem: Any, *arguments: Any) -> Any:
        return _sftp_talk(filesystem, lambda: getattr(filesystem, verb)(*arguments, **dict(named)))

    return call


def _sftp_read(filesystem: Any, path: str, start: int | None = None, stop: int | None = None) -> bytes:
    def call() -> bytes:
        try:
            found: bytes = filesystem.cat_file(path, start, stop)
        except OSError as error:
            if error.errno is None and filesystem.info(path)["type"] == "directory":
                raise IsADirectoryError(path) from None
            raise
        return found

    return _sftp_talk(filesystem, call)


def _sftp_move(filesystem: Any, path: str, target: str) -> None:
    """Rename a file, replacing an existing one."""

    def call() -> None:
        try:
            filesystem.ftp.posix_rename(path, target)
        except OSError as error:
            if error.errno is not None:
                raise
            with suppress(FileNotFoundError):  # the server lacks the extension, and requires the name to be free
                filesystem.ftp.remove(target)
            filesystem.ftp.rename(path, target)

    _sftp_talk(filesystem, call)


_FTP: Verbs = {
    "info": _ftp_info,
    "ls": _ftp_ls,
    "cat_file": _ftp_read,
    "pipe_file": _ftp_write,
    "makedirs": _ftp_make,
    "mv": _ftp_move,
    "rm_file": _ftp_remove,
}
_SFTP: Verbs = {
    "info": _sftp_verb("info"),
    "ls": _sftp_verb("ls", ("detail", True)),
    "cat_file": _sftp_read,
    "pipe_file": _sftp_verb("pipe_file"),
    "makedirs": _sftp_verb("makedirs"),
    "mv": _sftp_move,
    "rm_file": _sftp_verb("rm_file"),
}

_GOOGLE = FilesystemPromise(("generation",), coroutines={"read": _google_read})
_AZURE = FilesystemPromise(("etag",), coroutines={"read": _azure_read, "find": _azure_find})
_ARCHIVE = FilesystemPromise(writes=False, verbs={"cat_file": _member})
_LOGIN = FilesystemPromise(renames=True, verbs=_SFTP)

PROMISES: Mapping[str, FilesystemPromise] = {
    "file": FilesystemPromise(
        ("ino", "mtime", "size"),
        renames=True,
        coarse=True,
        waits=False,
        verbs={"info": _local_info, "read": _local_read, "mv": _local_move},
    ),
    "memory": FilesystemPromise(
        ("version",),
        creates=True,
        waits=False,
        verbs={"info": _memory_info, "read": _memory_read, "insert": _memory_insert, "find": _memory_find},
    ),
    "gs": _GOOGLE,
    "gcs": _GOOGLE,
    "abfs": _AZURE,
    "az": _AZURE,
    "abfss": _AZURE,
    "ftp": FilesystemPromise(renames=True, verbs=_FTP),
    "sftp": _LOGIN,
    "ssh": _LOGIN,
    **dict.fromkeys(("git", "github", "libarchive", "tar", "zip"), _ARCHIVE),
}
"""The promises by protocol."""
NOTHING = FilesystemPromise()
