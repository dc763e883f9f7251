"""From what fsspec hands a filesystem to an open store: chains, protocols, options, pipelines, live objects."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike, fspath
from typing import Any

from fsstore.context.context import Context
from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.local.path import absolute
from fsstore.kvstore.spec.opening import OpenKv, open_kv
from fsstore.kvstore.spec.parse import path_spec, place_spec
from fsstore.kvstore.spec.spec_value import KvSpecValue, kv_kind
from fsstore.kvstore.spec.storage_option import with_storage_options
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.runtime import execution, origin
from fsstore.values.url import decode_path, encode_path

__all__ = [
    "Live",
    "Target",
    "is_told_by_text",
    "live_kv",
    "live_named",
    "open_target",
    "pinned",
    "pinned_url",
]


class Live:
    """A live object under a name that nothing else has.

    fsspec takes filesystems whose arguments have the same text for one, and two stores may have: those in memory do,
    and those that differ in a secret.
    """

    __slots__ = ("__weakref__", "name", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self.name = origin.keep(self)

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
    found = origin.found(text.removeprefix(_LIVE))
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
    return OpenKv(
        prefix.driver, prefix.path, KvSpecValue.of(kind, "").replace(live=prefix.driver, _path=prefix.path)
    )


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
