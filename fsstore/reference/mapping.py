"""`References`: an opened reference set as a mapping, and sets made of it.

The set is read lazily where its form allows it.  Operations that change it (`merge`, `rename`, `rewrite`) return a new
set over a new table and leave the old one as it was; nothing is written until `save`.  No byte of an array is read to
cut it into smaller chunks: a slab along the first axis that has more than one slab is one range.

A relative URL names a place beside its set.  If the set is saved in another directory of the same store, it becomes
another relative URL, and in another store an absolute one; in a set without a place it stays.
"""

from __future__ import annotations

import json
import math
import os
import posixpath
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, Literal, TypeAlias, get_args, overload

import numpy as np

from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvKind, KvPrefix, StandsOver
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.engine.secret import reveal
from fsstore.kvstore.memory import MemoryDriver
from fsstore.reference.json_document import encode, write_document
from fsstore.reference.kind import PARQUET_NAMES
from fsstore.reference.parquet_set import save_parquet
from fsstore.reference.policy import (
    already_there,
    beside,
    directory,
    is_relative,
    join_relative,
    last_link,
    name_of,
    replaced,
)
from fsstore.reference.report import Grids, Report, grids_of, inspect_state
from fsstore.reference.table.keys import Grid, check_key, grid_of
from fsstore.reference.table.refset import Origins, Page, Resolved, ScanRecord, TableBuilder, TableSet, common_origins
from fsstore.reference.table.set_state import State, add_page
from fsstore.reference.table.table import INLINE, WHOLE, Located, Rows, is_url
from fsstore.reference.targets import origins_of
from fsstore.runtime import execution
from fsstore.values import registry
from fsstore.values.detection import Method, method_named
from fsstore.values.json_value import quote

# Smaller chunks of an array that is not compressed: a slab of a large raw chunk is a range of its bytes.


class Slabs:
    """How the chunks of an array are cut: `document` is the new one, `grid` the new grid."""

    def __init__(self, path: str, document: Mapping[str, Any], chunks: Sequence[int]) -> None:
        self.path = path
        grid = grid_of(path, document)
        assert grid is not None
        self._old: Grid = grid
        self._itemsize = _raw_itemsize(path, document)
        self._axes = list(range(len(chunks)))
        if document.get("order") == "F":
            self._axes.reverse()
        self._check(chunks)
        self.document = dict(document)
        if document.get("zarr_format") == 3:
            self.document["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": list(chunks)}}
        else:
            self.document["chunks"] = list(chunks)
        made = grid_of(path, self.document)
        assert made is not None
        self.grid: Grid = made

    def _check(self, chunks: Sequence[int]) -> None:
        old = self._old.chunk
        if len(chunks) != len(old) or not old:
            raise StoreError(f"The array {quote(self.path)} has {len(old)} dimensions, not {len(chunks)}")
        cut = [axis for axis in self._axes if chunks[axis] != old[axis]]
        before = self._axes[: self._axes.index(cut[-1])] if cut else []
        if any(step < 1 or size % step for size, step in zip(old, chunks, strict=True)):
            raise StoreError(
                f"Chunks {list(chunks)} of {quote(self.path)} are no parts of its chunks {list(old)}, all of one size"
            )
        if any(chunks[axis] != 1 for axis in before):
            raise StoreError(
                f"Chunks {list(chunks)} of {quote(self.path)} are no ranges of its chunks {list(old)}: "
                "axes before one that is cut must have size 1"
            )

    def cut(self, keys: Sequence[str], found: Resolved, inline: list[bytes]) -> tuple[list[str], Rows]:
        """Return the keys and rows of the slabs of some chunks; values that are cut are added to `inline`."""
        head = f"{self.path}/" if self.path else ""
        numbers = [self._old.number(key.removeprefix(head)) for key in keys]
        strange = [key for key, number in zip(keys, numbers, strict=True) if number is None]
        if strange:
            raise StoreError(f"{quote(strange[0])} is no chunk of {quote(self.path)}")
        old, new = self._old.chunk, self.grid.chunk
        parts = [size // step for size, step in zip(old, new, strict=True)]
        count = math.prod(parts)
        nbytes = math.prod(new) * self._itemsize
        self._check_lengths(keys, found.rows, nbytes * count)
        place = np.array(np.unravel_index(np.array(numbers, np.int64), self._old.shape)).T
        inner = self._inner(parts)
        coords = (place[:, None, :] * np.array(parts) + inner[None]).reshape(-1, len(parts))
        number = self.grid.numbers(coords)
        used = np.flatnonzero(number >= 0)  # what is outside the array is no chunk
        rows = Rows(
            np.repeat(found.rows.url, count)[used],
            (np.repeat(found.rows.offset, count) + np.tile(np.arange(count) * nbytes, len(keys)))[used],
            np.full(len(used), nbytes, np.int64),
        )
        self._cut_values(found, rows, (used, count, nbytes), inline)
        return self.grid.keys(number[used]), rows

    def _inner(self, parts: Sequence[int]) -> np.ndarray[Any, Any]:
        """Return where the slabs of a chunk lie in it, in the order of their bytes."""
        ordered = np.array(np.unravel_index(np.arange(math.prod(parts)), [parts[axis] for axis in self._axes])).T
        out = np.empty_like(ordered)
        out[:, self._axes] = ordered
        return out

    def _check_lengths(self, keys: Sequence[str], rows: Rows, nbytes: int) -> None:
        wrong = np.flatnonzero((rows.length != nbytes) & ((rows.length != WHOLE) | (rows.url == INLINE)))
        if len(wrong):
            at = int(wrong[0])
            raise StoreError(
                f"{quote(keys[at])} has {int(rows.length[at])} bytes; a chunk that is not compressed has {nbytes}"
            )

    def _cut_values(self, found: Resolved, rows: Rows, how: tuple[Any, int, int], inline: list[bytes]) -> None:
        used, count, nbytes = how
        for position in np.flatnonzero(rows.url == INLINE).tolist():
            chunk, part = divmod(int(used[position]), count)
            value = found.inline[int(found.rows.offset[chunk])]
            rows.offset[position] = len(inline)
            inline.append(bytes(value[part * nbytes : (part + 1) * nbytes]))


def _raw_itemsize(path: str, document: Mapping[str, Any]) -> int:
    """Return the size of an element; raises `StoreError` if chunks are anything but elements in order."""
    if document.get("zarr_format") == 3:
        codecs = document.get("codecs") or []
        names = [each.get("name") if isinstance(each, Mapping) else each for each in codecs]
        kind, encoded = document.get("data_type"), [name for name in names if name not in ("bytes", "endian")]
    else:
        kind = document.get("dtype")
        encoded = [each.get("id") for each in [*(document.get("filters") or []), document.get("compressor")] if each]
    if encoded:
        raise StoreError(
            f"The chunks of {quote(path)} cannot be cut: they are encoded by {', '.join(map(str, encoded))}"
        )
    try:
        found = np.dtype(kind if not isinstance(kind, list) else [tuple(each) for each in kind])
    except TypeError:
        found = np.dtype(object)
    if found.hasobject or not found.itemsize:
        raise StoreError(f"The chunks of {quote(path)} cannot be cut: their type is {kind}")
    return found.itemsize


def slabs_of(path: str, document: bytes, chunks: Sequence[int]) -> Slabs:
    """Return how the chunks of the array at `path` are cut into `chunks`; raises `StoreError` if they cannot be."""
    return Slabs(path, json.loads(document), chunks)


Moving: TypeAlias = Callable[[str], str]
"""The form in which a relative URL is written."""


def moving(origin: KvPrefix | None, home: KvPrefix | None, prefix: str | None = None) -> Moving | None:
    """Return how relative URLs of a set in directory `origin` are written in `home`; None: as they are.

    With `prefix` that is put before them.
    """
    if prefix is not None:
        return partial(str.__add__, prefix) if prefix else None
    if origin is None or home is None:
        return None
    (old, old_path), (new, new_path) = _place(origin), _place(home)
    if old != new:
        return partial(absolute, origin)
    if old_path.rstrip("/") == new_path.rstrip("/"):
        return None
    return lambda url: posixpath.relpath("/" + join_relative(old_path, url), "/" + new_path)


def _place(home: KvPrefix) -> tuple[Any, str]:
    """Return the store of a directory, to be compared, and the path in it."""
    driver, members = home.driver, dict(home.driver.spec())
    if driver.id == "file":
        return "file", os.path.abspath(home.path)  # noqa: PTH100  # textual: links stay
    if driver.id == "memory":
        return driver.storage if isinstance(driver, MemoryDriver) else driver, home.path
    for name in ("url", "base_url"):
        url = reveal(members.get(name))
        if isinstance(url, str) and "://" in url and "::" not in url and "?" not in url:
            scheme, _, rest = url.partition("://")
            host, _, path = rest.partition("/")
            return (driver.id, {**members, name: f"{scheme}://{host}"}), posixpath.join(path, home.path)
    return (driver.id, members, driver.base if isinstance(driver, StandsOver) else None), home.path


def absolute(origin: KvPrefix, url: str) -> str:
    """Return the URL of what a relative URL names beside a set in directory `origin`."""
    kind: KvKind | None = registry.kvstores.get(origin.driver.id)
    if origin.driver.id == "file":
        return "file://" + join_relative(_place(origin)[1].rstrip("/") + "/", url)
    try:
        if kind is None or kind.role == "adapter":
            raise UnimplementedError("it has no URL")
        path, members = join_relative(origin.path, url), origin.driver.spec()
        if origin.driver.id == "http":
            return kind.to_url(path, members)
        root = kind.to_url("", members)
    except StoreError as error:
        raise StoreError(
            f"The reference target {quote(url)} is relative to {origin.describe()}, and no URL names that place from "
            f"elsewhere: {error.message}; give `relative`, the beginning of such URLs ('' keeps them as they are)"
        ) from error
    return root.rstrip("/") + "/" + path if not root.endswith("://") else root + path


def written_as(url: str, move: Moving) -> str:
    """Return a URL as it is written; of a chain the last link may be relative."""
    last = last_link(url)
    return url[: len(url) - len(last)] + move(last) if is_relative(last) else url


def moved(state: State, move: Moving | None) -> State:
    """Return the set with relative URLs written in another way; the set itself if that changes nothing."""
    if move is None or (isinstance(state.base, TableSet) and not _has_relative(state.base)):
        return state
    return State(_Moved(state, move, state.base.waits))


def _has_relative(base: TableSet) -> bool:
    firsts = [base.find([next(gen.names())]).urls for gen in base.gens if gen.count]
    return any(is_relative(last_link(url)) for urls in (base.table.urls, *firsts) for url in urls)


@dataclass(slots=True)
class _Urls(Sequence[str]):
    """URLs of a set, changed when they are asked for."""

    urls: Sequence[str]
    move: Moving
    known: dict[int, str]

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        """Return one."""
        if isinstance(number, slice):
            return [self[one] for one in range(*number.indices(len(self.urls)))]
        if number not in self.known:
            self.known[number] = written_as(self.urls[number], self.move)
        return self.known[number]

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.urls)


@dataclass(slots=True)
class _Moved:
    """A set whose relative URLs are written in another way."""

    state: State
    move: Moving
    waits: bool
    known: dict[int, str] = field(default_factory=dict)

    @property
    def scanned(self) -> ScanRecord | None:
        """The file that the set was scanned from, as it calls it now."""
        record = self.state.base.scanned
        return None if record is None else record.moved(partial(written_as, move=self.move))

    @property
    def origins(self) -> Origins:
        """The remote places that the set was saved from."""
        return self.state.base.origins

    def _changed(self, found: Resolved) -> Resolved:
        return found._replace(urls=_Urls(found.urls, self.move, self.known)) if found.urls else found

    async def resolve(self, keys: Sequence[str]) -> Resolved:
        """Return the references of `keys`, in order."""
        return self._changed(await self.state.resolve(keys))

    async def scan(self, keys: KeyRange) -> AsyncIterator[Page]:
        """Yield the keys in a range with their references, in batches."""
        async for names, found in self.state.scan(keys):
            yield names, self._changed(found)

    async def documents(self, keys: KeyRange) -> AsyncIterator[Page]:
        """Yield the same without most of the chunks."""
        async for names, found in self.state.documents(keys):
            yield names, self._changed(found)


Saving = Literal["json", "json.zst", "json.gz", "json.bz2", "json.xz", "parquet"]
_NAMES: Mapping[Method, Saving] = {"zstd": "json.zst", "gzip": "json.gz", "bz2": "json.bz2", "xz": "json.xz"}
_UNWRITTEN = (".lzma", ".lz4", ".br", ".zip", ".Z", ".7z")


class References(Mapping[str, bytes | Located]):
    """A reference set: a read-only mapping of keys to inline bytes or `Located(url, offset, length)`.

    `length` is -1 for a reference to all of a target.  Iteration is in the order of the stored form: metadata first,
    then array by array.  `place` is the directory that relative URLs start from, None for a set made in memory.
    """

    def __init__(self, state: State, described: str = "reference set", *, place: KvPrefix | None = None) -> None:
        self.state = state
        self._described = described
        self.place = place

    def __getitem__(self, key: str) -> bytes | Located:
        """Return the reference of a key."""
        value = self.get_many([key])[0]
        if value is None:
            raise KeyError(key)
        return value

    def get_many(self, keys: Iterable[str]) -> list[bytes | Located | None]:
        """Return the references of `keys`, in order, None where there is none."""
        names = list(keys)
        found = self._run(self.state.resolve(names))
        return [found.value(position) for position in range(len(names))]

    def __iter__(self) -> Iterator[str]:
        """Yield every key."""
        for names, _ in self.batches():
            yield from names

    def __len__(self) -> int:
        """Return the number of keys; a lazily read set is listed for it."""
        return sum(len(names) for names, _ in self.batches())

    def items_of(self, array: str) -> Iterator[tuple[str, bytes | Located]]:
        """Yield keys and references below the path of an array or group."""
        for names, found in self.batches(f"{array}/" if array else ""):
            for position, name in enumerate(names):
                value = found.value(position)
                if value is not None:
                    yield name, value

    def batches(self, prefix: str = "") -> Iterator[tuple[list[str], Resolved]]:
        """Yield the keys that start with `prefix`, and their references as columns, in batches."""
        pages = self.state.scan(KeyRange.prefix(prefix))

        async def following() -> tuple[list[str], Resolved] | None:
            return await anext(pages, None)

        while (page := self._run(following())) is not None:
            yield page

    def _run(self, coroutine: Any) -> Any:
        return execution.call(coroutine, waits=self.state.base.waits)

    @property
    def arrays(self) -> dict[str, Grid]:
        """The chunk grids of the arrays, by path."""
        grids: Grids = self._run(grids_of(self.state))
        return grids.arrays

    @property
    def urls(self) -> list[str]:
        """The URLs that references name, in order of appearance; a lazily read set is listed for it."""
        seen: dict[str, None] = {}
        for _, found in self.batches():
            used = np.unique(found.rows.url[found.rows.url >= 0])
            seen.update(dict.fromkeys(found.urls[number] for number in used.tolist()))
        return list(seen)

    @property
    def origins(self) -> Origins:
        """The hosts of the remote places that the set came from, wherever it lies; None for one of this machine."""
        return common_origins(origins_of(self.place), self.state.base.origins)

    def inspect(self) -> Report:
        """Return what reading the set would touch; nothing is fetched."""
        report: Report = self._run(inspect_state(self.state))
        return report

    def merge(self, *others: References) -> References:
        """Return the set of all keys; of equal keys the last set's wins.

        Relative URLs of the others are made relative to where the first set lies.  The whole may read what each of the
        sets may: where one is of a remote place, nothing of this machine.
        """
        builder = TableBuilder()
        places = [one.place for one in (self, *others) if one.place is not None]
        place = places[0] if places else None
        for one in (self, *others):
            state = moved(one.state, moving(one.place, place))
            _copy(References(state), builder)
        return _made(builder, place, reduce(common_origins, [one.origins for one in (self, *others)]))

    def rename(self, old: str, new: str) -> References:
        """Return the set with the prefix `new` in place of `old`."""

        def renamed(name: str) -> str:
            if not name.startswith(old):
                return name
            made = new + name[len(old) :]
            why = check_key(made)
            if why is not None:
                raise StoreError(f"Cannot rename {quote(name)} to {quote(made)}: {why}")
            return made

        if not any(name.startswith(old) for names, _ in self.batches(old) for name in names):
            raise StoreError(f"Nothing to rename in {self._described}: no key begins with {quote(old)}")
        builder = TableBuilder()
        _copy(self, builder, key=renamed)
        return _made(builder, self.place, self.origins)

    def without(self, *paths: str) -> References:
        """Return the set without the arrays and groups at `paths`; raises `StoreError` if one of them is not there."""
        heads = tuple(f"{path.strip('/')}/" for path in paths)
        for head in heads:
            if next(iter(self.batches(head)), None) is None:
                raise StoreError(f"There is nothing at {quote(head)} in {self._described}")
        builder = TableBuilder()
        _copy(self, builder, keep=lambda name: not name.startswith(heads))
        return _made(builder, self.place, self.origins)

    def rechunk(self, path: str, chunks: Sequence[int]) -> References:
        """Return the set in which an array that is not compressed has smaller chunks: ranges of those it has.

        `chunks` are parts of equal size: `[1, 20, 30]` of `[10, 20, 30]`.  Raises `StoreError` for chunks that are
        encoded, and for parts that are no ranges.
        """
        head = f"{path}/" if path else ""
        name = next((name for name in (".zarray", "zarr.json") if head + name in self), None)
        document = None if name is None else self[head + name]
        if not isinstance(document, bytes):
            raise StoreError(f"There is no array {quote(path)} in {self._described}")
        slabs, grid = slabs_of(path, document, [int(step) for step in chunks]), self.arrays[path]
        builder = TableBuilder()

        def is_chunk(key: str) -> bool:
            return key.startswith(head) and grid.number(key.removeprefix(head)) is not None

        _copy(self, builder, keep=lambda key: not is_chunk(key))
        builder.add_inline(f"{head}{name}".encode(), json.dumps(slabs.document).encode())
        for names, found in self.batches(head):
            at = np.array([at for at, each in enumerate(names) if is_chunk(each)], np.int64)
            some = Resolved(found.rows.take(at), found.urls, found.inline)
            values: list[bytes] = []
            keys, rows = slabs.cut([names[each] for each in at.tolist()], some, values)
            add_page(builder, keys, Resolved(rows, found.urls, values))
        return _made(builder, self.place, self.origins)

    def rewrite(self, changes: Mapping[str, str]) -> References:
        """Return the set with the longest prefix of each URL that `changes` names replaced.

        Raises `StoreError` if no URL begins with any of them: the set that was meant to be moved would still name the
        old place.  URLs that it leaves as they are, are right, as long as there are others.
        """
        seen: list[str] = []
        matched: list[str] = []

        def changed(url: str) -> str:
            made = replaced(url, changes)
            if not made or not is_url(made):
                raise StoreError(f"Cannot rewrite {quote(url)} to {quote(made)}: that is no URL")
            (matched if url.startswith(tuple(changes)) else seen).append(url)
            return made

        builder = TableBuilder()
        _copy(self, builder, url=changed)
        if seen and not matched:
            wanted = ", ".join(map(quote, changes)) or "no prefix"
            raise StoreError(
                f"Nothing to rewrite in {self._described}: no URL begins with {wanted}; the first is {quote(seen[0])}"
            )
        return _made(builder, self.place, self.origins)

    def expand(self) -> References:
        """Return the set with every generated reference written out."""
        builder = TableBuilder()
        _copy(self, builder)
        return _made(builder, self.place, self.origins)

    def save(
        self,
        url: Any,
        format: Saving | None = None,  # noqa: A002  # the word users know
        *,
        version: Literal[0, 1] = 1,
        record_size: int = 100_000,
        overwrite: bool = False,
        relative: str | None = None,
        trusted: bool = False,
    ) -> None:
        """Write the set to a URL or kvstore spec, byte-exact; a JSON document atomically.

        Without `format` the name decides: `.zst`, `.zstd`, `.gz`, `.bz2` and `.xz` compress JSON, `.parq`, `.parquet`
        and a slash at the end mean parquet.  An existing set is replaced only with `overwrite`.

        Relative URLs are written so that they name from the new place what they named from the old one.  `relative` is
        put before them instead: the empty text keeps them, for a set whose targets move with it.  A set made in memory
        keeps them as well.

        A set from a remote place says so where it is saved, and reads no more than it could there: nothing of this
        machine.  `trusted` lifts that; a document of version 0 has no place for it.
        """
        from fsstore.context.context import Context
        from fsstore.kvstore.spec_parse import open_kv, place_spec

        spec = place_spec(url)
        if version not in (0, 1):
            raise StoreError(f"A set is written in version 0 or 1, not {version!r}")
        origins = None if trusted else self.origins
        if origins is not None and version == 0:
            raise StoreError(
                "Version 0 cannot say that a set is from a remote place: save version 1, or `trusted=True`"
            )

        async def run() -> None:
            base = (await open_kv(spec, Context())).prefix
            how = _format_of(name_of(base)) if format is None else _checked(format)
            home = References(moved(self.state, moving(self.place, await beside(base), relative)))
            await home._save(base, how, version, (record_size, overwrite, origins))

        execution.call(run())

    async def _save(
        self, base: KvPrefix, how: Saving, version: Literal[0, 1], options: tuple[int, bool, Origins]
    ) -> None:
        record_size, overwrite, origins = options
        scanned = None if self.state.changes else self.state.base.scanned
        if how == "parquet":
            base = await directory(base)
            if not overwrite and (await base.read(".zmetadata")).state == "value":
                raise already_there(base)
            await save_parquet(self.state, base, record_size=record_size, scanned=scanned, origins=origins)
            return
        pieces = encode(self.state, version=version, compression=method_named(how), scanned=scanned, origins=origins)
        if_equal = UNKNOWN
        if not overwrite and base.driver.features.create_only:
            if_equal = NO_VALUE
        elif not overwrite and (await base.read()).state == "value":
            raise already_there(base)
        stamp = await write_document(base, pieces, self.state, if_equal=if_equal)
        if stamp.generation == UNKNOWN and if_equal == NO_VALUE:
            raise already_there(base)

    def __repr__(self) -> str:
        """Return what the set is."""
        return f"<References: {self._described}>"


def _copy(
    refs: References,
    builder: TableBuilder,
    *,
    key: Callable[[str], str] | None = None,
    url: Callable[[str], str] | None = None,
    keep: Callable[[str], bool] | None = None,
) -> None:
    """Put references into a builder: those that are kept, by other keys, with other URLs."""
    for page, resolved in refs.batches():
        names, found = page, resolved
        if keep is not None:
            at = np.array([keep(name) for name in names], np.bool_)
            names = [name for name, kept in zip(names, at.tolist(), strict=True) if kept]
            found = Resolved(found.rows.take(at), found.urls, found.inline)
        add_page(builder, names if key is None else [key(name) for name in names], found, url)


def _made(builder: TableBuilder, place: KvPrefix | None, origins: Origins) -> References:
    made = TableSet(builder.finish())
    made.origins = origins
    return References(State(made), place=place)


def _checked(form: str) -> Saving:
    for known in get_args(Saving):
        if form == known:
            return known  # type: ignore[no-any-return]  # one of the literals
    raise StoreError(f"Sets are saved as {', '.join(get_args(Saving))}, not {quote(str(form))}")


def _format_of(path: str) -> Saving:
    if path.endswith(PARQUET_NAMES):
        return "parquet"
    if path.endswith(_UNWRITTEN):
        raise StoreError(f"{quote(path)} names a compression that sets are not saved in; say `format` to save it so")
    method = method_named(path)
    return "json" if method is None else _NAMES[method]
