"""fsspec's `ReferenceFileSystem`, with fsstore reading the set and the targets.

It is a subclass: what knows fsspec's takes this one, and keywords, filesystems and errors are the same.  Sets are read
as columns, reads that begin together are one batch, and ranges of one target are joined, whoever asks: zarr-python asks
for one chunk after the other.  Answers are exact: a range that a target does not have is not reachable.

Its name in fsspec is `fsreference`; `ReferenceFileSystem.take_over()` has `reference://` mean it for the process.
"""

from __future__ import annotations

import inspect
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple
from urllib.parse import unquote, urlsplit

import fsspec
import numpy as np
from fsspec.core import split_protocol
from fsspec.implementations import reference as theirs
from fsspec.implementations.local import LocalFileSystem

from fsstore.context.context import Context
from fsstore.errors import OutOfRangeError, StoreError
from fsstore.filesystem.kerchunk import SetReferences, as_set, inline_value, open_set, size_of
from fsstore.filesystem.kv import ReadBatcher
from fsstore.kvstore.contract.batch import Limits, coalesce
from fsstore.kvstore.contract.driver import Buffer, KvDriver, Read, ReadResult
from fsstore.kvstore.engine.driver import EngineDriver
from fsstore.kvstore.root.live import filesystem_prefix
from fsstore.kvstore.root.open_engine import home_of, protocols_of, unwrapped
from fsstore.kvstore.spec_parse import kv_spec, open_kv, place_spec
from fsstore.reference.json_document import encode
from fsstore.reference.table.refset import Resolved
from fsstore.reference.table.table import ABSENT, INLINE, Rows
from fsstore.runtime import execution
from fsstore.runtime.tuning import GAP_BYTES

_SIGNATURE = inspect.signature(theirs.ReferenceFileSystem.__init__)
_ALL = slice(None, None)
_FAR = 2**62  # beyond the end of any value
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


class _TargetReading:
    """Reads of references: from the set, and from targets, one batch for each store of them."""

    references: Any
    fss: dict[str | None, Any]
    target: str
    max_gap: int
    max_block: int
    _here: bool
    _drivers: dict[tuple[str | None, str], KvDriver]

    async def _outcomes(
        self, paths: list[str], starts: list[int | None], ends: list[int | None]
    ) -> list[bytes | Exception]:
        """Return a value or an error for each of some reads: one batch for each store of targets."""
        columns, values = await self._looked_up(paths)
        if columns is not None and (cut := await self._cut(paths, columns, starts, ends)):
            return cut
        if values is None:
            values = await self.references.found(paths)
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
                out[at] = _unreachable(paths[at], values[at], answer) if isinstance(answer, Exception) else answer
        return out

    async def _looked_up(self, paths: list[str]) -> tuple[Resolved | None, list[Any] | None]:
        """Return references as columns, if several are asked for together, and in fsspec's form, if that was needed."""
        references = self.references
        if not isinstance(references, SetReferences):
            values = [references.get(path) for path in paths]
        elif len(paths) > 1 and references.are_columns(paths):
            return await references.state.resolve(paths), None
        else:
            values = await references.found(paths)
        return (_columns(values) if len(paths) > 1 else None), values

    async def _cut(
        self, paths: list[str], resolved: Resolved, starts: list[int | None], ends: list[int | None]
    ) -> list[bytes | Exception] | None:
        """Return parts of references, cut out of few reads; None where one of them needs a closer look."""
        url, offset, length = resolved.rows
        first = np.array([start or 0 for start in starts], np.int64)
        last = np.minimum(length, [_FAR if end is None else end for end in ends])
        if ((first < 0) | ((last <= first) & (url != ABSENT))).any():
            return None
        order = np.argsort(url, kind="stable")
        groups = np.split(order, np.flatnonzero(np.diff(url[order])) + 1)
        if 2 * len(groups) > len(url):  # nothing to join
            return None
        out: list[Any] = [b""] * len(url)
        joined = []
        for places in groups:
            if (number := int(url[places[0]])) == ABSENT:
                for at in places.tolist():
                    out[at] = FileNotFoundError(paths[at])
            elif number == INLINE:
                for at in places.tolist():
                    out[at] = resolved.inline[offset[at]][first[at] : last[at]]
            else:
                joined.append((resolved.urls[number] or self.target, places))
        try:
            return await self._joined(joined, offset + first, offset + last, out)
        except Exception:  # noqa: BLE001  # each is read by itself, and has its own error
            return None

    async def _joined(self, groups: list[tuple[str, Any]], begin: Any, end: Any, out: list[Any]) -> list[Any]:
        """Put the ranges of targets into their places, read together, or raise."""
        gap = GAP_BYTES if self._here else self.max_gap
        batches: dict[int, tuple[KvDriver, list[Read]]] = {}
        plans = []
        for url, places in groups:
            driver, key = await self._located(url)
            spans = coalesce(begin[places], end[places], gap, self.max_block)
            _, reads = batches.setdefault(id(driver), (driver, []))
            plans.append((id(driver), len(reads), places, spans))
            pairs = zip(spans.starts.tolist(), spans.stops.tolist(), strict=True)
            reads += [Read(key, *pair) for pair in pairs]
        found = {number: await driver.read_many(reads) for number, (driver, reads) in batches.items()}
        sizes = (end - begin).tolist()
        for number, base, places, spans in plans:
            answers = found[number][base : base + len(spans.starts)]
            views = [memoryview(_found(answer)) for answer in answers]
            columns = (places.tolist(), spans.where.tolist(), spans.offset.tolist())
            for at, span, low in zip(*columns, strict=True):
                out[at] = bytes(views[span][low : low + sizes[at]])
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


class ReferenceFileSystem(_TargetReading, theirs.ReferenceFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """Keys that are parts of other files, as fsspec's class of this name has them."""

    protocol: ClassVar[Any] = ("reference", "fsreference")

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
        super().__init__(fo, **_with_targets(options))
        self._drivers: dict[tuple[str | None, str], KvDriver] = {}
        self._batcher = ReadBatcher(self._together)
        self._here = not (isinstance(self.references, SetReferences) and self.references.waits) and all(
            _is_plain_local(each) for each in self.fss.values()
        )

    def _process_references0(self, references: Any) -> None:
        """Keep a mapping as it is; fsspec before 2024.6.1 makes a dictionary of it."""
        if isinstance(references, dict):
            super()._process_references0(references)
        else:
            self.references = references

    @classmethod
    def take_over(cls) -> None:
        """Have `reference` mean this class, in this process."""
        fsspec.register_implementation("reference", cls, clobber=True)

    # --- reading

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        return await self._batcher.ask(self._strip_protocol(path), start, end)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Return a file, or a slice of it."""
        value = self.references.get(path) if isinstance(self.references, dict) else None
        if isinstance(value, str | bytes):
            return inline_value(value)[start:end]
        return _checked(self._wait([self._strip_protocol(path)], [start], [end])[0])

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **_: Any) -> Any:
        """Return a file, or several by their paths, read together."""
        if recursive:  # refused by fsspec's class, too
            raise NotImplementedError("cat takes no directories; give it `find(path)`")
        alone = isinstance(path, str) and "*" not in path
        named = [path] if isinstance(path, str) else path
        paths = self._keys(self.expand_path(path) if any("*" in str(each) for each in named) else named)
        whole: list[int | None] = [None] * len(paths)
        found = dict(zip(paths, self._wait(paths, whole, whole), strict=True))
        if on_error == "raise":
            found = {each: _checked(outcome) for each, outcome in found.items()}
        elif on_error == "omit":
            found = {each: value for each, value in found.items() if isinstance(value, bytes)}
        return found[paths[0]] if alone and found else found

    def cat_ranges(
        self, paths: Sequence[str], starts: Any, ends: Any, max_gap: Any = None, on_error: str = "return", **_: Any
    ) -> list[Any]:
        """Return slices of files, read together."""
        return _reported(self._wait(*self._ranges(paths, starts, ends)), on_error)

    async def _cat_ranges(
        self, paths: Sequence[str], starts: Any, ends: Any, max_gap: Any = None, on_error: str = "return", **_: Any
    ) -> list[Any]:
        return _reported(await self._together(*self._ranges(paths, starts, ends)), on_error)

    def _ranges(self, paths: Sequence[str], starts: Any, ends: Any) -> tuple[list[str], list[Any], list[Any]]:
        spread = [each if isinstance(each, list | tuple) else [each] * len(paths) for each in (starts, ends)]
        return self._keys(paths), list(spread[0]), list(spread[1])

    def _keys(self, paths: Iterable[Any]) -> list[str]:
        """Return `_strip_protocol` of paths, most of which have nothing to strip."""
        return [
            path if isinstance(path, str) and ":" not in path and path[-1:] != "/" else self._strip_protocol(path)
            for path in paths
        ]

    async def _together(
        self, paths: list[str], starts: list[int | None], ends: list[int | None]
    ) -> list[bytes | Exception]:
        return await execution.start(self._outcomes(paths, starts, ends), waits=not self._here)

    def _wait(self, paths: list[str], starts: list[Any], ends: list[Any]) -> list[bytes | Exception]:
        return execution.call(self._outcomes(paths, starts, ends), waits=not self._here)

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
            name: size_of(value) for name, value in self.references.items() if not (value is None or _is_missing(value))
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

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any
    ) -> Any:
        """Return what is below a path, or the file there, in order."""
        if withdirs or maxdepth is not None:
            return super(theirs.ReferenceFileSystem, self).find(path, maxdepth, withdirs, detail=detail)
        path = self._strip_protocol(path).strip("/")
        names, size = self._in_order()
        if not path:
            found = list(names)
        elif (at := bisect_left(names, path)) < len(names) and names[at] == path:
            found = [path]
        else:  # "0" follows "/"
            found = names[bisect_left(names, path + "/") : bisect_left(names, path + "0")]
        return found if not detail else {n: {"name": n, "size": size(n), "type": "file"} for n in found}

    def _in_order(self) -> tuple[list[str], Callable[[str], int | None]]:
        """Return the keys in order, and a function that tells the size of a value."""
        references = self.references
        if isinstance(references, SetReferences):
            names, sizes = references.in_order()
            return names, sizes.__getitem__
        return sorted(references), lambda name: size_of(references[name])

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


def _columns(values: Sequence[Any]) -> Resolved | None:
    """Return references in fsspec's form as columns; None where one is missing, or without a length."""
    urls: dict[str | None, int] = {}
    inline: list[bytes] = []
    rows = []
    for value in values:
        if isinstance(value, str | bytes):
            inline.append(inline_value(value))
            rows.append((INLINE, len(inline) - 1, len(inline[-1])))
        elif isinstance(value, list | tuple) and len(value) == 3 and not _is_missing(value):
            rows.append((urls.setdefault(value[0], len(urls)), value[1], value[2]))
        else:
            return None
    url, offset, length = np.array(rows, np.int64).reshape(-1, 3).T
    return Resolved(Rows(url.astype(np.int32), offset, length), list(urls), inline)  # type: ignore[arg-type]  # None: the target


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


def _with_targets(options: dict[str, Any]) -> dict[str, Any]:
    """Return options by which local files are read as they are, and targets are asynchronous where the set is.

    fsspec would put a coroutine around each method of local files, which takes as long as all else at a small set.
    """
    protocol, remote = options.get("remote_protocol"), options.get("remote_options") or {}
    if protocol is None or options.get("fs") is not None:
        return options
    if not remote and fsspec.get_filesystem_class(protocol) is LocalFileSystem:
        return {**options, "fs": dict.fromkeys((protocol, None), LocalFileSystem())}
    if not options.get("asynchronous") or not fsspec.get_filesystem_class(protocol).async_impl:
        return options
    return {**options, "remote_options": {"asynchronous": True, **remote}}


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


def _found(answer: ReadResult) -> Buffer:
    """Return the value of an answer, or raise that there is none."""
    if answer.state != "value":
        raise FileNotFoundError
    return answer.value


def _checked(outcome: bytes | Exception) -> bytes:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _reported(outcomes: list[bytes | Exception], on_error: str) -> list[Any]:
    return [_checked(each) for each in outcomes] if on_error == "raise" else outcomes
