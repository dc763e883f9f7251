"""A key-value store as an fsspec filesystem: listings, reads joined into batches, writes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from fsspec.asyn import sync
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractBufferedFile

from fsstore.errors import NotFoundError, OutOfRangeError, StoreError, UnimplementedError
from fsstore.filesystem.place import KvPlace, SplitPath
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Entry, KvPrefix, Read, ReadResult, known_size
from fsstore.kvstore.contract.request import KeyRange, key_bytes, prefix_end
from fsstore.runtime import execution

# Directories of a store that has only keys.

_KEY = attrgetter("key")


def _file(key: str, size: int | None) -> dict[str, Any]:
    return {"name": key, "size": size, "type": "file"}


def _directory(key: str) -> dict[str, Any]:
    return {"name": key, "size": 0, "type": "directory"}


class Listing:
    """Files and directories of a store, as fsspec describes them."""

    def __init__(self, store: KvPrefix) -> None:
        self.store = store

    @property
    def may_be_file(self) -> bool:
        """Whether there may be a value where the store begins."""
        path = self.store.path
        return self.store.driver.features.empty_key or bool(path and not path.endswith("/"))

    async def info(self, key: str) -> dict[str, Any] | None:
        """Return the description of a key or directory, or None; a value is read if nothing else tells its size."""
        if key or self.may_be_file:
            known = await known_size(self.store, key)
            if known is not None:
                return _file(key, known)
            answer = await self.store.read(key, 0, 0)
            if answer.state != "missing":
                return _file(key, await self._size(key) if answer.size is None else answer.size)
        if await self.is_directory(key):
            return _directory(key)
        return None

    async def _size(self, key: str) -> int:
        """Return the size of a value that is there: its first byte may come with it, where asking for none did not."""
        try:
            answer = await self.store.read(key, 0, 1)
        except OutOfRangeError:
            return 0
        return len((await self.store.read(key)).value) if answer.size is None else answer.size

    async def is_directory(self, key: str) -> bool:
        """Return whether there are keys below; the root is a directory always."""
        if not key:
            return True
        if not self.store.driver.features.listable:
            return False
        async for batch in self.entries(KeyRange.prefix(f"{key}/")):
            if batch:
                return True
        return False

    async def entries(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the entries of a range; below a file there are none, where local files fail."""
        try:
            async for batch in self.store.scan(keys):
                yield batch
        except StoreError as error:
            if not isinstance(error.__cause__, NotADirectoryError):
                raise

    async def below(self, key: str) -> list[dict[str, Any]]:
        """Return all files below a directory, in order; a file is below itself."""
        found = [
            entry
            async for batch in self.entries(KeyRange.prefix(f"{key}/" if key else ""))
            for entry in batch
            if not entry.key.endswith("/")
        ]
        listed = [_file(entry.key, entry.size) for entry in sorted(found, key=_KEY)]
        if key and not listed:
            alone = await self.info(key)
            return [alone] if alone is not None and alone["type"] == "file" else []
        return listed

    async def sized(self, files: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the files with sizes that the listing did not know, where asking does not wait; others stay None."""
        if self.store.driver.features.waits:
            return files
        for each in files:
            if each["size"] is None:
                with suppress(StoreError):  # what may not be read is listed all the same
                    each["size"] = (await self.store.read(each["name"], 0, 0)).size
        return files


async def children(listing: Listing, key: str) -> list[dict[str, Any]]:
    """Return the files and directories in a directory, in order.

    A store that lists in order is asked to go on after each directory that is found.
    """
    prefix = f"{key}/" if key else ""
    everything = KeyRange.prefix(prefix)
    found: dict[str, dict[str, Any]] = {}
    skips = listing.store.driver.features.sorted_scan
    begin = everything.inclusive_min
    while True:
        jump = b""
        async for batch in listing.entries(KeyRange(begin, everything.exclusive_max)):
            jump = _note(batch, prefix, found)
            if jump and skips:
                break
        if not (jump and skips):
            return [found[name] for name in sorted(found)]
        begin = jump


def _note(batch: Sequence[Entry], prefix: str, found: dict[str, dict[str, Any]]) -> bytes:
    """Note what a batch says; return the key after the directory that the last entry is in, or nothing."""
    last = ""
    for entry in batch:
        name, slash, _ = entry.key[len(prefix) :].partition("/")
        last = prefix + name + slash if slash else ""
        if slash and name:
            found[prefix + name] = _directory(prefix + name)
        elif name:
            found.setdefault(prefix + name, _file(entry.key, entry.size))
    return prefix_end(key_bytes(last)) if last else b""


# Reads that a program begins in one turn of its event loop, asked of the store as one batch.

Ask: TypeAlias = Callable[[list[str], list[int | None], list[int | None]], Awaitable["list[bytes | Exception]"]]
_Waiting: TypeAlias = "list[tuple[str, int | None, int | None, asyncio.Future[bytes]]]"


class ReadBatcher:
    """The reads of a filesystem that are not asked yet, by event loop.  `ask` gives values or errors, one a read."""

    __slots__ = ("_ask", "_asking", "_waiting")

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._waiting: dict[asyncio.AbstractEventLoop, _Waiting] = {}
        self._asking: set[asyncio.Future[None]] = set()

    def ask(self, path: str, start: int | None, end: int | None) -> asyncio.Future[bytes]:
        """Return the value to come of a path, or of a part of it."""
        loop = asyncio.get_running_loop()
        waiting = self._waiting.get(loop)
        if waiting is None:
            waiting = self._waiting[loop] = []
            loop.call_soon(self._begin, loop)
        answer = loop.create_future()
        waiting.append((path, start, end, answer))
        return answer

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        task = asyncio.ensure_future(self._answer(self._waiting.pop(loop)))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _answer(self, waiting: _Waiting) -> None:
        paths, starts, ends, answers = (list(column) for column in zip(*waiting, strict=True))
        try:
            outcomes = await self._ask(paths, starts, ends)
        except BaseException:
            for answer in answers:
                answer.cancel()
            raise
        for answer, outcome in zip(answers, outcomes, strict=True):
            if answer.done():  # the caller went away
                continue
            if isinstance(outcome, Exception):
                answer.set_exception(outcome)
            else:
                answer.set_result(outcome)


# Reading and listing of a filesystem over a store. Reads of many keys are one batch.


class KvReading(KvPlace):
    """The verbs that do not change the store."""

    def __init__(self, *args: Any, **storage_options: Any) -> None:
        super().__init__(*args, **storage_options)
        self._batcher = ReadBatcher(self._ask_at_once)

    async def _ask_at_once(
        self, paths: list[str], starts: list[int | None], ends: list[int | None]
    ) -> list[bytes | Exception]:
        """Return the values of reads begun together."""
        return await self._run(self._ranges(paths, starts, ends))

    # --- reading

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        if self._is_packed:
            return await self._batcher.ask(path, start, end)
        return await self._run(self._value(path, start, end))

    async def _value(self, path: str, start: int | None, end: int | None) -> bytes:
        place = await self._locate(path)
        if not (place.key or Listing(place.store).may_be_file):
            raise FileNotFoundError(path)
        low, high = start or 0, end
        if (low < 0 and high is not None) or (high is not None and high < 0):
            return found_value(await place.store.read(place.key), path)[start:end]
        if high is not None and high <= low:
            found_value(await place.store.read(place.key, 0, 0), path)
            return b""
        try:
            return found_value(await place.store.read(place.key, low, high), path)
        except OutOfRangeError:  # filesystems answer with what there is
            return found_value(await place.store.read(place.key), path)[low:high]

    async def _cat(
        self, path: Any, recursive: bool = False, on_error: str = "raise", batch_size: int | None = None, **_: Any
    ) -> Any:
        paths = await self._expand_path(path, recursive=recursive)
        whole: list[int | None] = [None] * len(paths)
        outcomes = await self._run(self._ranges(paths, whole, whole))
        if len(paths) == 1 and isinstance(path, str) and paths[0] == self._strip_protocol(path) and not recursive:
            return _checked(outcomes[0], on_error)
        found = {each: _checked(outcome, on_error) for each, outcome in zip(paths, outcomes, strict=True)}
        return {
            each: value for each, value in found.items() if not (on_error == "omit" and isinstance(value, Exception))
        }

    async def _cat_ranges(
        self, paths: Any, starts: Any, ends: Any, max_gap: int | None = None, on_error: str = "return", **_: Any
    ) -> list[Any]:
        count = len(paths)
        first = list(starts) if isinstance(starts, list | tuple) else [starts] * count
        last = list(ends) if isinstance(ends, list | tuple) else [ends] * count
        outcomes = await self._run(self._ranges(list(paths), first, last))
        return [_checked(outcome, on_error) for outcome in outcomes]

    async def _ranges(
        self, paths: list[str], starts: list[int | None], ends: list[int | None]
    ) -> list[bytes | Exception]:
        spans = [(start or 0, end) for start, end in zip(starts, ends, strict=True)]
        if all(low >= 0 and (high is None or high > low) for low, high in spans):
            try:
                places = {path: await self._locate(path) for path in dict.fromkeys(paths)}
                answers = await _read_places([places[path] for path in paths], spans)
                return [_outcome(answer, path) for answer, path in zip(answers, paths, strict=True)]
            except Exception:  # noqa: BLE001, S110  # one by one it is seen which of them it is
                pass
        return await execution.gather(
            self._attempt(path, start, end) for path, start, end in zip(paths, starts, ends, strict=True)
        )

    async def _attempt(self, path: str, start: int | None, end: int | None) -> bytes | Exception:
        try:
            return await self._value(path, start, end)
        except Exception as error:  # noqa: BLE001  # the caller chooses what becomes of it
            return error

    # --- what there is

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        return await self._run(self._about(path))

    async def _about(self, path: str) -> dict[str, Any]:
        place = await self._locate(path)
        found = await Listing(place.store).info(place.key)
        if found is None:
            raise FileNotFoundError(path)
        return {**found, "name": place.lead + found["name"]}

    async def _exists(self, path: str, **_: Any) -> bool:
        try:
            await self._info(path)
        except FileNotFoundError:
            return False
        return True

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        found = await self._run(self._listed(path, sized=detail))
        return found if detail else [entry["name"] for entry in found]

    async def _listed(self, path: str, *, sized: bool) -> list[dict[str, Any]]:
        place = await self._locate(path)
        listing = Listing(place.store)
        found = await children(listing, place.key)
        if not found:
            alone = await listing.info(place.key)
            if alone is None:
                raise FileNotFoundError(path)
            found = [alone] if alone["type"] == "file" else []
        if sized:
            found = await listing.sized(found)
        # zarr-python asks a store without a path for "/a", and cuts "/a/" off the names it gets
        lead = place.lead or ("/" if path.startswith("/") else "")
        return [{**entry, "name": lead + entry["name"]} for entry in found]

    async def _find(self, path: str, maxdepth: int | None = None, withdirs: bool = False, **kwargs: Any) -> Any:
        if maxdepth is not None or withdirs:
            return await super()._find(path, maxdepth=maxdepth, withdirs=withdirs, **kwargs)
        detail = bool(kwargs.get("detail"))
        found = await self._run(self._all(path, sized=detail))
        return found if detail else list(found)

    async def _all(self, path: str, *, sized: bool) -> dict[str, dict[str, Any]]:
        place = await self._locate(path)
        listing = Listing(place.store)
        entries = await listing.below(place.key)
        if sized:
            entries = await listing.sized(entries)
        if place.lead:
            entries = [{**entry, "name": place.lead + entry["name"]} for entry in entries]
        return {entry["name"]: entry for entry in entries}


async def _read_places(places: Sequence[SplitPath], spans: Sequence[tuple[int, int | None]]) -> list[ReadResult]:
    """Return the values at places, one batch a store."""
    by_store: dict[int, list[int]] = {}
    for number, place in enumerate(places):
        by_store.setdefault(id(place.store.driver), []).append(number)
    answers: list[Any] = [None] * len(places)
    for numbers in by_store.values():
        reads = [Read(places[number].store.path + places[number].key, *spans[number]) for number in numbers]
        found = await places[numbers[0]].store.driver.read_many(reads)
        for number, answer in zip(numbers, found, strict=True):
            answers[number] = answer
    return answers


def found_value(answer: ReadResult, path: str) -> bytes:
    """Return the value of an answer, or raise `FileNotFoundError`."""
    if answer.state == "missing":
        raise FileNotFoundError(path)
    return bytes(answer.value)


def _outcome(answer: ReadResult, path: str) -> bytes | Exception:
    return FileNotFoundError(path) if answer.state == "missing" else bytes(answer.value)


def _checked(outcome: bytes | Exception, on_error: str) -> bytes | Exception:
    if isinstance(outcome, Exception) and on_error == "raise":
        raise outcome
    return outcome


class KvFileSystem(KvReading):
    """The keys of a store as a filesystem.

    `fo` is a pipeline URL or kvstore spec (live objects go through `of`); in a chain (`ocdbt::s3://bucket/db`) fsspec
    gives the path, `target_protocol` and `target_options` of the next protocol.
    """

    protocol: ClassVar[Any] = "kvstore"

    # --- writing

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        await self._run(self._store(path, value, create=mode == "create"))

    async def _store(self, path: str, value: Any, *, create: bool) -> None:
        place = await self._locate(path)
        stamp = await place.store.write(place.key, bytes(value), NO_VALUE if create else UNKNOWN)
        if create and stamp.generation == UNKNOWN:
            raise FileExistsError(path)

    async def _rm_file(self, path: str, **_: Any) -> None:
        await self._run(self._delete(path))

    async def _delete(self, path: str) -> None:
        place = await self._locate(path)
        await place.store.write(place.key, None)

    async def _rm(self, path: Any, recursive: bool = False, batch_size: int | None = None, **_: Any) -> None:
        paths = await self._expand_path(path, recursive=False)
        for each in paths:
            await self._run(self._remove(each, recursive=recursive))

    async def _remove(self, path: str, *, recursive: bool) -> None:
        place = await self._locate(path)
        below = KeyRange.prefix(f"{place.key}/" if place.key else "")
        if recursive:
            with contextlib.suppress(NotFoundError):  # local files refuse to list what is a file
                await place.store.delete_range(below)
        if place.key and (await place.store.read(place.key, 0, 0)).state != "missing":
            await place.store.write(place.key, None)
        elif not recursive:
            raise FileNotFoundError(path)

    async def _put_file(
        self, lpath: str, rpath: str, mode: str = "overwrite", callback: Any = DEFAULT_CALLBACK, **kwargs: Any
    ) -> None:
        value = await execution.start(execution.offload(_contents, lpath))
        if value is not None:
            await self._pipe_file(rpath, value, mode=mode)
            _tell(callback, value)

    async def _get_file(self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, **_: Any) -> None:
        value = None if await self._isdir(rpath) else await self._cat_file(rpath)
        await execution.start(execution.offload(_keep, lpath, value))
        if value is not None:
            _tell(callback, value)

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        if not await self._isdir(path1):
            await self._pipe_file(path2, await self._cat_file(path1))

    async def _mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Do nothing: directories are there when keys are."""

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Do nothing: directories are there when keys are."""

    # --- files

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, **kwargs: Any) -> Any:
        if "x" in mode and self.exists(path):  # created atomically when closed; said early where it is known
            raise FileExistsError(path)
        if "r" not in mode:
            sync(self.loop, self._check_writable, path)
        return KvFile(self, path, mode, block_size or "default", **kwargs)

    async def _check_writable(self, path: str) -> None:
        """Refuse to write where nothing can be stored, before anything is written."""
        place = await self._run(self._locate(path))
        if not place.store.driver.features.writable:
            raise UnimplementedError(f"KeyValueStore does not support writing: {place.store.describe(place.key)}")

    def ukey(self, path: str) -> str:
        """Return a text that changes with the contents of a file."""
        return str(sync(self.loop, self._ukey, path))

    async def _ukey(self, path: str) -> str:
        async def generation() -> bytes:
            place = await self._locate(path)
            answer = await place.store.read(place.key, 0, 0)
            found_value(answer, path)
            return answer.generation

        return (await self._run(generation())).hex() or str(await self._info(path))


def _tell(callback: Any, value: bytes) -> None:
    """Tell who follows the progress of a file that it is done."""
    callback.set_size(len(value))
    callback.absolute_update(len(value))


def _contents(path: str) -> bytes | None:
    return None if Path(path).is_dir() else Path(path).read_bytes()


def _keep(path: Any, value: bytes | None) -> None:
    """Store a value, or make a directory; files that are open already are written to."""
    if hasattr(path, "write"):
        path.write(value)
        return
    if value is None:
        Path(path).mkdir(parents=True, exist_ok=True)
        return
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_bytes(value)


class KvFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec is untyped
    """A file.  Written bytes become visible as a whole, when the file is closed."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        value: bytes = self.fs.cat_file(self.path, start=start, end=end)
        return value

    def _initiate_upload(self) -> None:
        self._parts: list[bytes] = []
        if "a" in self.mode and self.fs.exists(self.path):
            self._parts.append(self.fs.cat_file(self.path))

    def _upload_chunk(self, final: bool = False) -> bool:
        self._parts.append(self.buffer.getvalue())
        if final and self.autocommit:
            self.commit()
        return True

    def commit(self) -> None:
        """Store what was written."""
        mode = "create" if "x" in self.mode else "overwrite"
        self.fs.pipe_file(self.path, b"".join(self._parts), mode=mode)

    def discard(self) -> None:
        """Forget what was written."""
        self._parts = []
