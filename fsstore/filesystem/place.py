"""Places: the key-value store and path behind a URL of a filesystem, and blocking calls from any thread."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import wraps
from os import PathLike, fspath
from typing import Any, ClassVar, NamedTuple, Self, TypeVar

from fsspec.asyn import AsyncFileSystem, sync
from fsspec.spec import AbstractFileSystem

from fsstore.context.context import Context
from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.local.file import absolute
from fsstore.kvstore.spec_parse import OpenKv, open_kv, path_spec, place_spec
from fsstore.kvstore.spec_value import KvSpecValue, kv_kind, with_storage_options
from fsstore.runtime import execution, fork
from fsstore.runtime.tuning import HOP_S
from fsstore.values.registry import decode_path, encode_path


class Live:
    """A live object under a name that nothing else has.

    fsspec takes filesystems whose arguments have the same text for one, and two stores may have: those in memory do,
    and those that differ in a secret.
    """

    __slots__ = ("__weakref__", "name", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.name = fork.keep(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the object, if it can be; elsewhere it has another name."""
        return Live, (self.value,)

    @property
    def text(self) -> str:
        """The text that means this object in this process."""
        return f"{_LIVE}{self.name}"

    def __repr__(self) -> str:
        return f"<{type(self.value).__name__} {self.name}>"


_LIVE = "fsstore-live:"


def live_named(text: str) -> Live | None:
    """Return the live object that a text of `Live.text` means, or None for any other text."""
    if not text.startswith(_LIVE):
        return None
    found = fork.found(text.removeprefix(_LIVE))
    if isinstance(found, Live):
        return found
    raise StoreError(
        "This filesystem is over an open store of another process, or of one that is gone; make it of a URL or spec"
    )


def is_told_by_text(place: Any) -> bool:
    """Whether a place is a URL, path or spec, and no live object."""
    return isinstance(place, str | PathLike) or (isinstance(place, dict) and "driver" in place)


@dataclass(frozen=True, slots=True)
class Target:
    """The place a filesystem is over.

    `place` is a pipeline URL, a kvstore spec, a `KvStore` or live object; or, with a `protocol`, a path of that fsspec
    protocol, whose filesystem takes `options`.
    """

    place: Any = ""
    protocol: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_local(self) -> bool:
        """Whether the place is a path of this machine, which nobody has to wait for."""
        if self.options:
            return False
        if self.protocol is not None:
            return self.protocol in ("file", "local")
        if isinstance(self.place, PathLike):
            return True
        return isinstance(self.place, str) and (
            self.place.startswith("file://") or not ("://" in self.place or "::" in self.place)
        )


def pinned_url(text: str) -> str:
    """Return a URL, pipeline or chain whose local files are named from the root on, whatever directory is current."""
    head, bar, rest = text.partition("|")
    before, colons, last = head.rpartition("::")
    scheme, mark, path = last.partition("://")
    if not mark and not colons and not bar:
        return absolute(text)
    local = scheme in ("file", "local") and not path.startswith(("/", "localhost/"))
    if not (mark and local and path) or path == "localhost":
        return text
    at = absolute(path) if colons else encode_path(absolute(decode_path(path)), safe="@")
    return f"{before}{colons}{scheme}://{at}{bar}{rest}"


def pinned(place: Any, protocol: str | None = None) -> Any:
    """Return a place as any process understands it: relative paths of local files become absolute."""
    if isinstance(place, PathLike):
        return absolute(str(fspath(place)))
    if isinstance(place, str):
        if protocol is None:
            return pinned_url(place)
        plain = place.removeprefix("local://").removeprefix("file://")
        return absolute(plain) if protocol in ("file", "local") else place
    if isinstance(place, dict) and place.get("driver") == "file" and isinstance(place.get("path", ""), str):
        return {**place, "path": absolute(place.get("path", ""))}
    if isinstance(place, dict) and "base" in place:
        return {**place, "base": pinned(place["base"])}
    return place


def live_kv(prefix: KvPrefix) -> OpenKv:
    """Return an open store for a driver that exists only in this process."""
    kind = kv_kind("memory")
    assert kind is not None
    return OpenKv(prefix.driver, prefix.path, KvSpecValue.of(kind, "").replace(live=prefix.driver, _path=prefix.path))


async def open_target(target: Target, context: Context) -> OpenKv:
    """Open the store a filesystem is over; its path may be a file or a directory."""
    place = target.place
    if isinstance(place, KvStore) and not target.options:
        return place._open
    if target.protocol is None:
        if isinstance(place, str) and "|" not in place and "::" in place:
            return await _of_filesystem(place, None, target.options)
        return await open_kv(with_storage_options(place_spec(place), target.options), context)
    path = str(place)
    if target.is_local:
        local = path.removeprefix("local://").removeprefix("file://")
        return await open_kv(path_spec(local), context)
    return await _of_filesystem(path, target.protocol, target.options)


async def _of_filesystem(path: str, protocol: str | None, options: Mapping[str, Any]) -> OpenKv:
    """Open a path of an fsspec filesystem; making that may block, so it happens on a pool thread."""
    filesystem, inner = await execution.offload(_filesystem, path, protocol, dict(options))
    opened = getattr(filesystem, "open_place", None)
    if opened is not None:
        found: OpenKv = await opened(inner)
        return found
    from fsstore.kvstore.root.live import filesystem_prefix

    return live_kv(await execution.offload(filesystem_prefix, filesystem, inner))


def _filesystem(path: str, protocol: str | None, options: dict[str, Any]) -> tuple[Any, str]:
    import fsspec
    from fsspec.core import url_to_fs

    if protocol is None or "::" in path:
        filesystem, inner = url_to_fs(path, **options)
        return filesystem, str(inner)
    filesystem = fsspec.filesystem(protocol, **options)
    return filesystem, str(filesystem._strip_protocol(path))


# The methods of the filesystems that block until the coroutine of the same name is done.


def _blocking(name: str) -> Callable[..., Any]:
    """Return the method `name`, which runs the coroutine `_name` on the filesystem's event loop."""

    @wraps(getattr(AbstractFileSystem, name))
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return sync(self.loop, getattr(self, f"_{name}"), *args, **kwargs)

    return method


def _reading(name: str) -> Callable[..., Any]:
    """Return the method `name`, which awaits nothing but the store, and runs here if that is at hand."""
    blocking = _blocking(name)

    @wraps(blocking)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._is_at_hand(blocking=True):
            return execution.drive(getattr(self, f"_{name}")(*args, **kwargs))
        return blocking(self, *args, **kwargs)

    return method


class BlockingFileSystem(AsyncFileSystem):  # type: ignore[misc]  # fsspec is untyped
    """An asynchronous filesystem with the blocking methods that fsspec would give each instance."""

    mirror_sync_methods: ClassVar[bool] = False

    def _is_at_hand(self, *, blocking: bool = False) -> bool:
        """Return whether nothing has to be waited for, once the place is open, which is `blocking`."""
        return False

    cat = _blocking("cat")
    cat_file = _reading("cat_file")
    cat_ranges = _reading("cat_ranges")
    copy = _blocking("copy")
    cp_file = _blocking("cp_file")
    du = _blocking("du")
    exists = _reading("exists")
    expand_path = _blocking("expand_path")
    find = _reading("find")
    get = _blocking("get")
    get_file = _blocking("get_file")
    glob = _blocking("glob")
    info = _reading("info")
    isdir = _reading("isdir")
    isfile = _reading("isfile")
    ls = _reading("ls")
    makedirs = _blocking("makedirs")
    mkdir = _blocking("mkdir")
    pipe = _blocking("pipe")
    pipe_file = _blocking("pipe_file")
    put = _blocking("put")
    put_file = _blocking("put_file")
    rm = _blocking("rm")
    rm_file = _blocking("rm_file")
    size = _reading("size")
    sizes = _blocking("sizes")


# The place of a filesystem: its store, opened on first use, and where its operations run.

T = TypeVar("T")

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
        slow = bool(self._recent) and min(self._recent) > 2 * HOP_S
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
        from fsstore.kvstore.kv_store import KvStore

        return KvStore.of(execution.call(self.open_place("")))
