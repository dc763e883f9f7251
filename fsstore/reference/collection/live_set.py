"""Reference sets inside live objects: fsspec's `ReferenceFileSystem`.

Its references are read like a document, so that a batch of chunks becomes a few range reads; its filesystems stay the
ones that fetch, with the credentials they have.  We read a snapshot of the references as they are now.
"""

from __future__ import annotations

from typing import Any

from fsstore.kvstore.contract.driver import KvDriver, KvPrefix
from fsstore.reference.document.json_refs import from_mapping
from fsstore.reference.driver import reference_driver
from fsstore.reference.load import Reading, load
from fsstore.reference.state.set_state import Overlay, State
from fsstore.runtime import execution

__all__ = ["live_driver", "live_state", "live_targets"]

_OWN = ("file", "local", "http", "https")
_HARMLESS = frozenset({"asynchronous", "skip_instance_cache", "loop", "use_listings_cache", "auto_mkdir"})


async def live_state(source: Any, reading: Reading) -> tuple[State, KvPrefix | None]:
    """Return the references of a filesystem, and the place of their directory if they are parquet."""
    references = source.references
    if isinstance(references, dict):
        return State(from_mapping(references, target=reading.target)), None
    base = await _parquet_place(references)
    return await load(base, reading), base


async def _parquet_place(references: Any) -> KvPrefix:
    from fsstore.context.context import Context
    from fsstore.kvstore.root.live import filesystem_prefix
    from fsstore.kvstore.spec.opening import open_kv
    from fsstore.kvstore.spec.parse import kv_spec

    root = references.root.rstrip("/") + "/"
    if "file" in references.fs.protocol:
        return (await open_kv(kv_spec({"driver": "file", "path": root}), Context())).prefix
    return filesystem_prefix(references.fs, root)


def live_targets(source: Any) -> dict[str, Any]:
    """Return the filesystems of a `ReferenceFileSystem` by prefix, where their paths are bucket and key."""
    fetching = getattr(source, "fss", {}).items()
    return {
        f"{protocol}://": filesystem for protocol, filesystem in fetching if protocol and protocol not in _OWN
    }


def live_driver(source: Any) -> KvDriver | None:
    """Return the read-only store over a `ReferenceFileSystem`, or None if only its own code can fetch.

    That is so when URLs without a protocol are not local files, and when its web filesystem carries options (headers,
    usually), which here belong to a host and there go to every one.
    """
    for protocol, filesystem in source.fss.items():
        options = getattr(filesystem, "storage_options", None) or {}
        if protocol in ("http", "https") and set(options) - _HARMLESS:
            return None
    target = source.target if isinstance(getattr(source, "target", None), str) else None
    state, base = execution.call(live_state(source, Reading(target)))
    bare = source.fss.get(None)
    if bare is not None and not _is_local(bare) and _has_bare_urls(state):
        return None
    return reference_driver(
        Overlay(state, None, writable=False),
        {"targets": live_targets(source)},
        base=base,
        described="a live reference filesystem",
    )


def _has_bare_urls(state: State) -> bool:
    """Return whether URLs of a set in memory lack a protocol; those of parquet are not looked through."""
    table = getattr(state.base, "table", None)
    return table is not None and any("://" not in url for url in table.urls)


def _is_local(filesystem: Any) -> bool:
    inner = getattr(filesystem, "sync_fs", filesystem)
    protocol = inner.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)
