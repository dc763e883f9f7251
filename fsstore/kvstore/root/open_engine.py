"""The engine for an fsspec filesystem, made from a URL and options, or from a live object.

Filesystems made here never share instances with the rest of the process, keep no listings, and leave retries to us.
The error for a missing optional package names the extra to install.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import fsspec
from fsspec.registry import available_protocols, registry

from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.client.credential import endpoint_of, probed
from fsstore.kvstore.client.generic import AsyncEngine, SyncEngine
from fsstore.kvstore.client.s3 import S3Engine
from fsstore.kvstore.client.web import HttpEngine, Session
from fsstore.kvstore.contract.batch import limits_from
from fsstore.kvstore.contract.driver import KvDriver, KvOpening
from fsstore.kvstore.engine.contract import Engine, Retry, translate
from fsstore.kvstore.engine.driver import EngineDriver, Home, check_key, guarded, let_go
from fsstore.redaction import redact

_CHAINED = ("ChainedFileSystem", "CachingFileSystem")  # versions of 2024 lack the first
_EXTRAS = {
    "s3": ("s3fs", "fsstore[s3]"),
    "s3a": ("s3fs", "fsstore[s3]"),
    "gs": ("gcsfs", "fsstore[gcs]"),
    "gcs": ("gcsfs", "fsstore[gcs]"),
    "http": ("aiohttp", "fsstore[http]"),
    "https": ("aiohttp", "fsstore[http]"),
    "abfs": ("adlfs", "adlfs"),
    "az": ("adlfs", "adlfs"),
}
_BOUND = frozenset(("http", "s3", "gs", "abfs"))


def knows(protocol: str) -> bool:
    """Return whether fsspec has a filesystem of this name: installed or not, or registered by the program."""
    return protocol in available_protocols() or protocol in registry


def filesystem_class(protocol: str) -> Any:
    """Return the filesystem class of a protocol, or raise an error that names the package to install."""
    try:
        return fsspec.get_filesystem_class(protocol)
    except (AttributeError, ImportError) as error:  # the package lacks the filesystem, or has dropped it
        package, extra = _EXTRAS.get(protocol, ("", ""))
        advice = f"it needs the package {package}: pip install '{extra}'" if package else redact(str(error))
        raise UnimplementedError(f'The filesystem "{protocol}" is not available: {advice}') from None
    except ValueError:
        raise StoreError(f'Unknown filesystem protocol: "{protocol}"') from None


def shares_paths(protocol: str) -> bool:
    """Return whether a filesystem in a chain has the paths of the next one, as caches do."""
    try:
        bases = {base.__name__ for base in filesystem_class(protocol).__mro__}
        return not bases.isdisjoint(_CHAINED)
    except StoreError:  # opening it will raise the error
        return True


def protocols_of(filesystem: Any) -> tuple[str, ...]:
    """Return the names of a filesystem or its class; caches before fsspec 2025.9 show their base's."""
    kind: Any = filesystem if isinstance(filesystem, type) else type(filesystem)
    is_cache = any(base.__name__ == "CachingFileSystem" for base in kind.__mro__)
    protocol = kind.protocol if is_cache else filesystem.protocol
    return (protocol,) if isinstance(protocol, str) else tuple(protocol)


def unwrapped(filesystem: Any, path: str) -> tuple[Any, str]:
    """Return the filesystem and path below `dir` filesystems, which only prepend a path."""
    while "dir" in protocols_of(filesystem):
        filesystem, path = filesystem.fs, f"{filesystem.path}/{path.lstrip('/')}"
    return filesystem, path


def is_bound(filesystem: Any) -> bool:
    """Return whether the client of a live filesystem belongs to the event loop that used it first, maybe not ours."""
    return bool(filesystem.asynchronous) and not _BOUND.isdisjoint(protocols_of(filesystem))


def home_of(filesystem: Any) -> Home:
    """Return the home of a live filesystem, or of a copy on our loop if its client belongs to another."""
    if not is_bound(filesystem):
        return Home(None, filesystem)
    options = {**filesystem.storage_options, "skip_instance_cache": True}
    options.pop("loop", None)
    return Home(lambda: type(filesystem)(*filesystem.storage_args, **options))


def _options(cls: Any, options: Mapping[str, Any], retry: Retry) -> dict[str, Any]:
    out = {**options, "skip_instance_cache": True}
    if not cls.async_impl or "dir" in protocols_of(cls):  # a `dir` filesystem must be as the one below it is
        return out
    out |= {"asynchronous": True, "use_listings_cache": False}
    if "s3" in protocols_of(cls):
        ours = {
            "retries": {"total_max_attempts": 1},
            "read_timeout": retry.idle_s,
            "connect_timeout": min(retry.idle_s, 30.0),
            "max_pool_connections": 64,
        }
        out["config_kwargs"] = {**ours, **options.get("config_kwargs", {})}
    return out


def engine_for_url(
    url: str, options: Mapping[str, Any], *, retry: Retry | None = None, concurrency: int | None = 32
) -> tuple[Engine, str]:
    """Return an engine for an fsspec URL (even a chain with `::`), and the path of the URL in it.

    A trailing slash of the URL is kept.
    """
    policy = retry or Retry()
    first, chained, _ = url.partition("::")
    protocol = fsspec.core.split_protocol(first)[0] or (first if chained else "file")
    cls = filesystem_class(protocol)
    given = _options(cls, options, policy)

    def make() -> Any:
        found = fsspec.core.url_to_fs(url, **given)
        let_go(found[0])
        return found

    filesystem, root, failure = None, "", None
    try:
        filesystem, root = make()
    except Exception as error:  # noqa: BLE001  # libraries that log in may raise anything
        failure = translate(error).within(f'Cannot open the filesystem "{protocol}"')
    if filesystem is None and failure is not None:  # raised out here, so that the library's error is not its context
        raise failure
    if chained:
        root = "" if url.startswith(("dir::", "dir://::")) else root  # fsspec returns the next link's
        root += "/" if url.endswith("/") and root and not root.endswith("/") else ""
        filesystem, root = unwrapped(filesystem, root)
    else:  # an extra letter preserves trailing slashes, which would be cut off
        root = cls._strip_protocol(url + "x")[:-1]
    if chained or not cls.async_impl:
        return engine_of(filesystem, retry=policy, concurrency=concurrency), root
    engine = _async_engine(protocols_of(cls), Home(lambda: make()[0]), policy, concurrency)
    return probed(engine, endpoint_of({}, options)) if isinstance(engine, S3Engine) else engine, root


class PlainFileDriver(EngineDriver):
    """Local files through fsspec.  Keys are paths as in the `file` store: absolute, or below `root`."""

    def _path(self, key: str) -> str:
        rest = key if self.root else key.removeprefix("/")
        if rest:
            check_key(rest)
        return self.root + key


def plain_driver(opening: KvOpening, protocol: str) -> KvDriver:
    """Return a store of this machine through fsspec's filesystem: its local files, or its memory."""
    engine, root = engine_for_url(f"{protocol}:///", {})
    members, limits = opening.members, limits_from(opening.resources)
    if protocol == "file":
        root = "" if opening.path.startswith("/") else f"{Path.cwd().as_posix()}/"
        return guarded(PlainFileDriver(engine, root, members=members, limits=limits), members)
    return guarded(EngineDriver(engine, root, members=members, limits=limits), members)


def _has_coroutines(filesystem: Any, protocols: tuple[str, ...]) -> bool:
    """Return whether to use the coroutines of a filesystem.

    Caches of fsspec, except `simplecache`, show the coroutines of their base, which do not look into the cache.
    """
    if "simplecache" in protocols:
        return bool(filesystem.async_impl)
    return bool(type(filesystem).async_impl)


def engine_of(filesystem: Any, *, retry: Retry | None = None, concurrency: int | None = 32) -> Engine:
    """Return an engine for a live filesystem, which stays on its own loop."""
    protocols = protocols_of(filesystem)
    if _has_coroutines(filesystem, protocols):
        engine = _async_engine(protocols, home_of(filesystem), retry or Retry(), concurrency)
        if isinstance(engine, S3Engine):
            return probed(engine, endpoint_of({}, vars(filesystem)))
        return engine
    return SyncEngine(filesystem, protocols[0], retry=retry)


def _async_engine(protocols: tuple[str, ...], home: Home, retry: Retry, concurrency: int | None) -> Engine:
    if "s3" in protocols:
        return S3Engine(home, retry=retry, concurrency=concurrency)
    if "http" in protocols:
        return HttpEngine(Session(home, idle_s=retry.idle_s), retry=retry, concurrency=concurrency)
    return AsyncEngine(home, protocols[0], retry=retry, concurrency=concurrency)
