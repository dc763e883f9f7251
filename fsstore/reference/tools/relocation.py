"""Relative targets of a set that is saved at another place: what is written for them, so that they still resolve.

A relative URL names a place beside its set.  In another directory of the same store it becomes another relative URL,
and in another store an absolute one.  A set without a place of its own (a mapping given in Python) keeps its relative
URLs: nothing says what they are relative to.
"""

from __future__ import annotations

import os
import posixpath
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias, overload

from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import KvKind, KvPrefix, StandsOver
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.engine.secret import reveal
from fsstore.kvstore.memory import MemoryDriver
from fsstore.reference.state.refset import Page, Resolved, TableSet
from fsstore.reference.state.scan_record import ScanRecord
from fsstore.reference.state.set_state import State
from fsstore.reference.target.policy import join_relative
from fsstore.reference.target.target_url import is_relative, last_link
from fsstore.values import registry
from fsstore.values.json_value import quote

__all__ = ["Moving", "absolute", "moved", "moving", "written_as"]

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
