"""fsspec's `ReferenceFileSystem`, with fsstore reading the set and the targets.

It is a subclass: what knows fsspec's takes this one, and keywords, filesystems and errors are the same.  Sets are read
as columns, reads that begin together are one batch, and ranges of one target are joined, whoever asks: zarr-python asks
for one chunk after the other.  Answers are exact: a range that a target does not have is not reachable.

`ReferenceFileSystem.take_over()` has `reference://`, or another name, mean it for the process.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

import fsspec
from fsspec.core import split_protocol
from fsspec.implementations import reference as theirs
from fsspec.implementations.local import LocalFileSystem

from fsstore.context.context import Context
from fsstore.errors import OutOfRangeError, StoreError
from fsstore.filesystem.kv import ReadBatcher
from fsstore.filesystem.reference_mapping import SetReferences, as_set, inline_value, open_set, size_of
from fsstore.kvstore.contract.batch import Limits
from fsstore.kvstore.contract.driver import KvDriver, Read, ReadResult
from fsstore.kvstore.engine.driver import EngineDriver
from fsstore.kvstore.root.live import filesystem_prefix
from fsstore.kvstore.root.open_engine import home_of, protocols_of, unwrapped
from fsstore.kvstore.spec_parse import kv_spec, open_kv, place_spec
from fsstore.reference.json_document import encode
from fsstore.runtime import execution

_SIGNATURE = inspect.signature(theirs.ReferenceFileSystem.__init__)
_ALL = slice(None, None)
_PLAIN = frozenset(("asynchronous", "skip_instance_cache", "loop", "use_listings_cache", "auto_mkdir"))


class _TargetRead(NamedTuple):
    """A request for one read: its number, the store of its target, and the part of the answer that is meant.

    `otherwise` is asked where the target is shorter.
    """

    number: int
    driver: KvDriver
    read: Read
    cut: slice = _ALL
    otherwise: _TargetRead | None = None


class ReferenceFileSystem(theirs.ReferenceFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """Keys that are parts of other files, as fsspec's class of this name has them."""

    def __init__(self, fo: Any, *args: Any, **kwargs: Any) -> None:
        """Open a set: `fo` is a mapping, a path of JSON or parquet, or a `LazyReferenceMapper`."""
        bound = _SIGNATURE.bind(self, fo, *args, **kwargs).arguments
        options = {name: value for name, value in bound.items() if name not in ("self", "fo", "kwargs")}
        options |= bound.get("kwargs", {})
        if isinstance(fo, str) and options.get("simple_templates", True):
            fo = open_set(fo, options)
            unnamed = options.get("fs") is None and options.get("remote_protocol") is None
            if isinstance(fo, SetReferences) and unnamed:
                options["remote_protocol"] = _first_protocol(fo)
        super().__init__(fo, **_with_loop(options))
        self._drivers: dict[tuple[str | None, str], KvDriver] = {}
        self._batcher = ReadBatcher(self._together)
        self._here = not (isinstance(self.references, SetReferences) and self.references.waits) and all(
            _is_plain_local(each) for each in self.fss.values()
        )

    @classmethod
    def take_over(cls, protocol: str = "reference") -> None:
        """Have a protocol mean this class, in this process."""
        fsspec.register_implementation(protocol, cls, clobber=True)

    # --- reading

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return await self._batcher.ask(self._strip_protocol(path), start, end)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Return a file, or a slice of it."""
        return _checked(self._wait([self._strip_protocol(path)], [start], [end])[0])

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **_: Any) -> Any:
        """Return a file, or several by their paths, read together."""
        if recursive:  # refused by fsspec's class, too
            raise NotImplementedError("cat takes no directories; give it `find(path)`")
        alone = isinstance(path, str) and "*" not in path
        paths = [self._strip_protocol(each) for each in ([path] if alone else self.expand_path(path))]
        whole: list[int | None] = [None] * len(paths)
        found = dict(zip(paths, self._wait(paths, whole, whole), strict=True))
        if on_error == "raise":
            found = {each: _checked(outcome) for each, outcome in found.items()}
        elif on_error == "omit":
            found = {each: value for each, value in found.items() if isinstance(value, bytes)}
        return found[paths[0]] if alone and found else found

    def cat_ranges(
        self,
        paths: Sequence[str],
        starts: Any,
        ends: Any,
        max_gap: Any = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """Return slices of files, read together."""
        return _reported(self._wait(*self._ranges(paths, starts, ends)), on_error)

    async def _cat_ranges(
        self,
        paths: Sequence[str],
        starts: Any,
        ends: Any,
        max_gap: Any = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        return _reported(await self._together(*self._ranges(paths, starts, ends)), on_error)

    def _ranges(self, paths: Sequence[str], starts: Any, ends: Any) -> tuple[list[str], list[Any], list[Any]]:
        spread = [each if isinstance(each, list | tuple) else [each] * len(paths) for each in (starts, ends)]
        return [self._strip_protocol(path) for path in paths], list(spread[0]), list(spread[1])

    async def _together(
        self, paths: list[str], starts: list[int | None], ends: list[int | None]
    ) -> list[bytes | Exception]:
        return await execution.start(self._outcomes(paths, starts, ends), waits=not self._here)

    def _wait(self, paths: list[str], starts: list[Any], ends: list[Any]) -> list[bytes | Exception]:
        return execution.call(self._outcomes(paths, starts, ends), waits=not self._here)

    async def _outcomes(
        self, paths: list[str], starts: list[int | None], ends: list[int | None]
    ) -> list[bytes | Exception]:
        """Return a value or an error for each of some reads: one batch for each store of targets."""
        if isinstance(self.references, SetReferences):
            values = await self.references.found(paths)
        else:
            values = [self.references.get(path) for path in paths]
        out: list[bytes | Exception] = [b""] * len(paths)
        places = await self._places(values)
        batches: dict[int, list[_TargetRead]] = {}
        for number, (path, value) in enumerate(zip(paths, values, strict=True)):
            if value is None or _is_missing(value):
                out[number] = FileNotFoundError(path)
            elif not isinstance(value, list | tuple):
                out[number] = inline_value(value)[starts[number] : ends[number]]
            elif isinstance(place := places[value[0]], Exception):
                out[number] = _unreachable(path, value, place)
            else:
                wish = _wish(number, place, value, slice(starts[number], ends[number]))
                batches.setdefault(id(wish.driver), []).append(wish)
        for wishes in batches.values():
            for wish, outcome in zip(wishes, await _read(wishes), strict=True):
                at = wish.number
                answer = outcome
                if isinstance(outcome, OutOfRangeError):
                    answer = await self._called_whole(wish, values[at][0] or self.target, outcome)
                out[at] = (
                    _unreachable(paths[at], values[at], answer) if isinstance(answer, Exception) else answer
                )
        return out

    async def _called_whole(self, wish: _TargetRead, url: str, failure: Exception) -> bytes | Exception:
        """Return a range from a web server that calls a part of a file all of it, as fsspec's own tests do.

        A range that is one byte shorter tells such a server from one that knows no ranges and has a short file.
        """
        protocol, (start, stop) = split_protocol(url)[0], wish.read[1:3]
        if protocol not in ("http", "https") or stop is None or stop - start < 2:
            return failure

        async def twice(filesystem: Any) -> list[bytes]:
            return [await filesystem._cat_file(url, start=start, end=end) for end in (stop, stop - 1)]

        try:
            found, shorter = await home_of(self.fss[protocol]).visit(twice)
        except Exception:  # noqa: BLE001  # the failure is known already
            return failure
        return found if len(found) == stop - start and shorter == found[:-1] else failure

    async def _places(self, values: Iterable[Any]) -> dict[str | None, tuple[KvDriver, str] | Exception]:
        """Return where the targets of references are, by their URLs, or what keeps them from being asked."""
        wanted = {each[0] for each in values if isinstance(each, list | tuple) and not _is_missing(each)}
        found: dict[str | None, tuple[KvDriver, str] | Exception] = {}
        for url in wanted:
            try:
                found[url] = await self._located(self.target if url is None else url)
            except Exception as error:  # noqa: BLE001  # whatever a filesystem raises that cannot be used
                found[url] = error
        return found

    async def _located(self, url: str) -> tuple[KvDriver, str]:
        """Return the store of a target, and its key there."""
        protocol = split_protocol(url)[0]
        filesystem = self.fss[protocol if protocol in self.fss else _alias(protocol, self.fss)]
        web = protocol in ("http", "https")
        place = urlsplit(url)._replace(path="", fragment="").geturl() if web else ""
        filesystem, path = unwrapped(filesystem, filesystem._strip_protocol(url))
        driver = self._drivers.get((protocol, place))
        if driver is None:
            driver = self._drivers[protocol, place] = await self._opened(filesystem, place, path)
        if web:
            return driver, unquote(urlsplit(url).path)
        return driver, path.removeprefix(driver.root) if isinstance(driver, EngineDriver) else path

    async def _opened(self, filesystem: Any, place: str, path: str) -> KvDriver:
        if _is_plain_local(filesystem):
            return (await open_kv(place_spec("/"), Context())).driver
        if place and _PLAIN.issuperset(filesystem.storage_options):
            return (await open_kv(kv_spec({"driver": "http", "base_url": place}), Context())).driver
        driver = filesystem_prefix(filesystem, path).driver
        if isinstance(driver, EngineDriver):
            driver.limits = Limits(self.max_gap, self.max_block)
        return driver

    # --- what there is, and changes

    def _dircache_from_items(self) -> None:
        """Note the directories of all keys."""
        known: dict[str, list[dict[str, Any]]] = {"": []}
        for names, sizes in self._sizes():
            for name, size in zip(names, sizes, strict=True):
                parent = name.rpartition("/")[0]
                if parent not in known:
                    _note_directory(known, parent)
                known[parent].append({"name": name, "size": size, "type": "file"})
        self.dircache = known

    def _sizes(self) -> Iterator[tuple[list[str], list[int | None]]]:
        """Yield keys with the sizes of their values, in batches."""
        if isinstance(self.references, SetReferences):
            return self.references.sizes()
        found = {
            name: size_of(value)
            for name, value in self.references.items()
            if not (value is None or _is_missing(value))
        }
        return iter([(list(found), list(found.values()))])

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Return what is in a directory, however deep, of sets in JSON and parquet alike."""
        if isinstance(self.references, theirs.LazyReferenceMapper) and not isinstance(
            self.references, SetReferences
        ):  # an object of the caller, which lists itself
            return list(super().ls(path, detail))
        path = self._strip_protocol(path)
        lead, path = path[: len(path) - len(path.lstrip("/"))], path.strip("/")
        if not self.dircache:
            self._dircache_from_items()
        found = self._ls_from_cache(path)
        if found is None:
            raise FileNotFoundError(path)
        if lead:  # zarr-python asks for "/a", and cuts "/a/" off the names it gets
            found = [{**each, "name": lead + each["name"]} for each in found]
        return found if detail else [each["name"] for each in found]

    def pipe_file(self, path: str, value: Any, **_: Any) -> None:
        """Put a value, or a reference, in the set, in memory."""
        self.references[self._strip_protocol(path)] = value
        self.dircache.clear()

    def save_json(self, url: str, **storage_options: Any) -> None:
        """Write the set as a JSON document of version 1."""
        state = as_set(self.references.items(), self.target)

        async def document() -> bytes:
            return b"".join([piece async for piece in encode(state)])

        with fsspec.open(url, "wb", **storage_options) as file:
            file.write(execution.drive(document()))


def _wish(number: int, place: tuple[KvDriver, str], value: Sequence[Any], cut: slice) -> _TargetRead:
    """Return what to ask for a part of a reference."""
    driver, key = place
    if len(value) == 1 or value[2] < 0:  # all of a target, or the rest of it
        begin = 0 if len(value) == 1 else value[1]
        low, high = cut.start or 0, cut.stop
        everything = _TargetRead(number, driver, Read(key, begin), cut)
        if low < 0 or (high is not None and high <= low) or cut == _ALL:
            return everything
        part = Read(key, begin + low, None if high is None else begin + high)
        return _TargetRead(number, driver, part, otherwise=everything)
    offset, length = value[1:]
    first, last = (0, length) if cut == _ALL else cut.indices(length)[:2]
    return _TargetRead(number, driver, Read(key, offset + first, offset + max(first, last)))


def _first_protocol(references: SetReferences) -> str | None:
    """Return the protocol that references name first, or that of local files; None if all values are in the set."""
    for _, found in references.columns():
        numbers = found.rows.url[found.rows.url >= 0]
        if len(numbers):
            return split_protocol(found.urls[int(numbers[0])])[0] or "file"
    return None


def _with_loop(options: dict[str, Any]) -> dict[str, Any]:
    """Return options by which the targets of an asynchronous filesystem are asynchronous too."""
    protocol = options.get("remote_protocol")
    if not options.get("asynchronous") or protocol is None or options.get("fs") is not None:
        return options
    if not fsspec.get_filesystem_class(protocol).async_impl:
        return options
    return {**options, "remote_options": {"asynchronous": True, **(options.get("remote_options") or {})}}


def _alias(protocol: str | None, known: Iterable[str | None]) -> str | None:
    """Return the name under which a filesystem is known that serves a protocol too, as that of http does https."""
    for name in known:
        if name is not None and protocol in protocols_of(fsspec.get_filesystem_class(name)):
            return name
    return protocol


def _is_plain_local(filesystem: Any) -> bool:
    inner = getattr(filesystem, "sync_fs", filesystem)
    return type(inner) is LocalFileSystem and _PLAIN.issuperset(inner.storage_options)


def _is_missing(value: Any) -> bool:
    """Return whether a reference is none: pandas 3 reads the URL of one that is not there as NaN."""
    return isinstance(value, list | tuple) and isinstance(value[0], float)


def _note_directory(known: dict[str, list[dict[str, Any]]], path: str) -> None:
    """Note a directory, and those it is in."""
    parent = path.rpartition("/")[0]
    if parent not in known:
        _note_directory(known, parent)
    known[parent].append({"name": path, "type": "directory", "size": 0})
    known[path] = []


async def _read(wishes: Sequence[_TargetRead]) -> list[bytes | Exception]:
    """Return values or errors of one store; where the batch fails, each by itself for its own error."""
    try:
        answers = await wishes[0].driver.read_many([wish.read for wish in wishes])
    except StoreError:
        return list(await execution.gather(map(_read_one, wishes)))
    return [_value(wish, answer) for wish, answer in zip(wishes, answers, strict=True)]


async def _read_one(wish: _TargetRead) -> bytes | Exception:
    try:
        (answer,) = await wish.driver.read_many([wish.read])
    except StoreError as error:
        if wish.otherwise is not None and isinstance(error, OutOfRangeError):
            return await _read_one(wish.otherwise)
        return error
    return _value(wish, answer)


def _value(wish: _TargetRead, answer: ReadResult) -> bytes | Exception:
    if answer.state == "missing":
        return FileNotFoundError(wish.driver.describe_key(wish.read.key))
    return bytes(answer.value)[wish.cut]


def _unreachable(path: str, value: Any, error: Any) -> Exception:
    failure: Exception = theirs.ReferenceNotReachable(path, list(value))
    failure.__cause__ = error
    return failure


def _checked(outcome: bytes | Exception) -> bytes:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _reported(outcomes: list[bytes | Exception], on_error: str) -> list[Any]:
    return [_checked(each) for each in outcomes] if on_error == "raise" else outcomes
