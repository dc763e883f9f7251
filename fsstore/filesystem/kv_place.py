"""The place of a filesystem: its store, opened on first use, and where its operations run.

A filesystem may be made inside a running event loop, so making one opens nothing.  Operations run where stores run
(`runtime.execution`), and are awaited on whichever loop fsspec uses, its own or the caller's.

A store that never waits needs no other loop: its operations run at once, as long as this takes less time than handing
them to a thread.  If all of the last few took longer (large values, a slow disk), the next ones go to threads, where
several run at once, until one is quick again.  This makes zarr-python a quarter faster at reading small chunks.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from fsstore.context.context import Context
from fsstore.errors import StoreError
from fsstore.filesystem.blocking import BlockingFileSystem
from fsstore.filesystem.place import Live, Target, is_told_by_text, live_named, open_target, pinned
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.spec.opening import OpenKv
from fsstore.runtime import execution

__all__ = ["KvPlace", "SplitPath"]

T = TypeVar("T")

_HOP_S = 0.0002  # what handing an operation to a thread takes
_RECENT = 8  # one alone may have waited for the interpreter lock


class SplitPath(NamedTuple):
    """A path taken apart: the store, the key in it, and what stands before keys in names of this filesystem."""

    store: KvPrefix
    key: str
    lead: str = ""


class KvPlace(BlockingFileSystem):
    """A filesystem that knows its store.

    `fo` is a pipeline URL or kvstore spec (live objects go through `of`); in a chain (`ocdbt::s3://bucket/db`) fsspec
    gives the path, `target_protocol` and `target_options` of the next protocol.  `context` is the JSON of a context.
    """

    protocol: ClassVar[Any] = "kvstore"
    root_marker = ""
    async_impl = True
    cachable = True

    def __init__(
        self,
        fo: Any = "",
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        *,
        context: Mapping[str, Any] | None = None,
        **storage_options: Any,
    ) -> None:
        super().__init__(**storage_options)
        self._live = live_named(fo) if isinstance(fo, str) else fo if isinstance(fo, Live) else None
        if self._live is not None:
            fo = self._live.value
        elif not is_told_by_text(fo):
            raise StoreError(
                f"fsspec would take any two {type(fo).__name__} objects that print alike for one; write"
                f" {type(self).__name__}.of(…) for a filesystem over this one"
            )
        self._target = Target(fo, target_protocol, dict(target_options or {}))
        self._context = Context(context)
        self._opened: asyncio.Future[OpenKv] | None = None
        self._ready: OpenKv | None = None
        self._may_open_here = True
        self._recent: deque[float] = deque(maxlen=_RECENT)

    @classmethod
    def of(cls, place: Any, **options: Any) -> Self:
        """Return a filesystem over a `KvStore`, live filesystem or mapping, which is nobody else's."""
        live = Live(place)
        found: Self = cls(live.text, skip_instance_cache=True, **options)  # of which zarr-python makes JSON
        return found

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        text = str(path)
        names = (cls.protocol,) if isinstance(cls.protocol, str) else cls.protocol
        for name in names:
            text = text.removeprefix(f"{name}://")
        return text.strip("/")

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments; a relative path among them is that of the current directory of this process."""
        make, (cls, given, options) = super().__reduce__()
        if self._live is not None:
            return make, (cls, (self._live, *given[1:]), options)
        if given and self._target.place is given[0]:
            given = (pinned(given[0], self._target.protocol), *given[1:])
        elif options.get("fo"):
            options = {**options, "fo": pinned(options["fo"], self._target.protocol)}
        return make, (cls, given, options)

    # --- the store behind

    async def _make(self) -> OpenKv:
        """Open the store whose keys are shown."""
        return (await open_target(self._target, self._context)).as_directory()

    async def open_place(self, path: str) -> OpenKv:
        """Return the store and `path` in it; runs on fsstore's own event loop until it is open."""
        opened = self._ready or await self._opened_store()
        return opened.at(opened.path + path)

    async def _opened_store(self) -> OpenKv:
        opened = self._ready
        if opened is None:
            if self._opened is None:
                self._opened = asyncio.ensure_future(self._make())
            try:
                opened = self._ready = await asyncio.shield(self._opened)
            except BaseException:
                self._opened = None
                raise
        return opened

    async def _locate(self, path: str) -> SplitPath:
        opened = self._ready or await self._opened_store()
        return SplitPath(opened.prefix, self._strip_protocol(path))

    @property
    def _is_packed(self) -> bool:
        """Whether the store is open, has to be waited for, and may hold many keys in one file."""
        ready = self._ready
        if ready is None or not ready.driver.features.waits:
            return False
        return ready.spec.base is not None or ready.spec.live is not None

    async def _run(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run an operation where stores run, and wait for it on this event loop."""
        if not self._is_at_hand():
            return await execution.start(operation)
        slow = bool(self._recent) and min(self._recent) > _HOP_S
        return await execution.offload(self._drive, operation) if slow else self._drive(operation)

    def _is_at_hand(self, *, blocking: bool = False) -> bool:
        """Return whether the store is open, or could be opened here, and never waits."""
        if self._ready is None and self._target.is_local:
            self._open_here(blocking=blocking)
        return self._ready is not None and not self._ready.driver.features.waits

    def _open_here(self, *, blocking: bool) -> None:
        """Open a place on this machine at once, if that neither leads to others nor takes long: a hop costs 0.3 ms.

        If it does, only who may block opens it.  Errors are for who uses the store, and opens it again.
        """
        if self._may_open_here:
            self._may_open_here = False
            with suppress(Exception):
                self._ready = execution.drive(self._make())
                return
        if blocking:
            with suppress(Exception):
                execution.call(self.open_place(""))

    def _drive(self, operation: Coroutine[Any, Any, T]) -> T:
        """Run an operation of a store that never waits, and note how long that took."""
        begin = time.perf_counter()
        try:
            return execution.drive(operation)
        finally:
            self._recent.append(time.perf_counter() - begin)

    @property
    def kvstore(self) -> Any:
        """The store behind, as a `KvStore`."""
        from fsstore.kvstore.store.kv_store import KvStore

        return KvStore.of(execution.call(self.open_place("")))
