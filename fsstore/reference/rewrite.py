"""Reference sets made of others: arrays in smaller chunks, and relative targets of a set saved at another place.

Elements of a chunk lie in storage order, so a slab along the first axis that has more than one slab is one range.  No
byte is read or moved; what is stored by value is cut.

A relative URL names a place beside its set.  In another directory of the same store it becomes another relative URL,
and in another store an absolute one.  A set without a place of its own (a mapping given in Python) keeps its relative
URLs: nothing says what they are relative to.
"""

from __future__ import annotations

import json
import math
import os
import posixpath
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, overload

import numpy as np

from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import KvKind, KvPrefix, StandsOver
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.engine.secret import reveal
from fsstore.kvstore.memory import MemoryDriver
from fsstore.reference.policy import is_relative, join_relative, last_link
from fsstore.reference.table.keys import Grid, grid_of
from fsstore.reference.table.refset import Origins, Page, Resolved, ScanRecord, TableSet
from fsstore.reference.table.set_state import State
from fsstore.reference.table.table import INLINE, WHOLE, Rows
from fsstore.values import registry
from fsstore.values.json_value import quote

# Smaller chunks of an array that is not compressed: a slab of a large raw chunk is a range of its bytes.

_RAW = ("bytes", "endian")


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
        kind, encoded = document.get("data_type"), [name for name in names if name not in _RAW]
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


def _place(directory: KvPrefix) -> tuple[Any, str]:
    """Return the store of a directory, to be compared, and the path in it."""
    driver, members = directory.driver, dict(directory.driver.spec())
    if driver.id == "file":
        return "file", os.path.abspath(directory.path)  # noqa: PTH100  # textual: links stay
    if driver.id == "memory":
        return driver.storage if isinstance(driver, MemoryDriver) else driver, directory.path
    for name in ("url", "base_url"):
        url = reveal(members.get(name))
        if isinstance(url, str) and "://" in url and "::" not in url and "?" not in url:
            scheme, _, rest = url.partition("://")
            host, _, path = rest.partition("/")
            return (driver.id, {**members, name: f"{scheme}://{host}"}), posixpath.join(path, directory.path)
    return (driver.id, members, driver.base if isinstance(driver, StandsOver) else None), directory.path


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
