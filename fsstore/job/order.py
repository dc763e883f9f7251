"""A job as its workers see it: opened stores and the boxes of its plan, sent to each worker once.

A task is then a word and a number, or a handful of keys: it travels as a few hundred bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fsstore.chunk.regions import BoxSlabs, Regions
from fsstore.driver.cast import Casting
from fsstore.kvstore.contract.ability import SyncsTogether, able
from fsstore.kvstore.spec.parse import OpenKv, as_directory, open_adapter, open_bound
from fsstore.kvstore.spec.spec_value import kv_kind
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.runtime.pool import keep, kept

__all__ = ["Order", "OwnDatabase", "keys_of", "opened_database", "packed_keys", "root_of", "unsynced"]

_NOWHERE = Regions((), (), (), ())
_NOTHING = BoxSlabs(_NOWHERE)


@dataclass(frozen=True, slots=True)
class OwnDatabase:
    """A target that each worker writes into a database of its own, below the one that takes all of them at the end."""

    spec: Any
    """The spec of the target array, without its key-value store."""
    base: KvStore
    """Where databases of workers are."""
    path: str
    """The path of the array inside of each."""
    untouched: bool = False
    """Whether encoded chunks are written, and no array."""


@dataclass(frozen=True, slots=True)
class Order:
    """A job as workers know it.  `name` is another one in every run, so that nothing opened for one serves the next."""

    name: str
    source: Any = None
    target: Any = None
    scratch: KvStore | None = None
    targets: Regions = _NOWHERE
    sources: Regions = _NOWHERE
    pieces: BoxSlabs = _NOTHING
    """The boxes of the target as tasks take them."""
    together: int = 16
    """How many encoded chunks a worker holds at once."""
    casting: Casting = "same_value"
    """The change that values may take which are written as another type."""
    durable: KvStore | None = None
    """The store whose filesystem is synced at the end of each task; None where writes are durable by themselves."""
    bitwise: bool = True
    """Whether values that are checked differ where their bits do; else as numbers."""
    unseen: bool = False
    """Whether nobody reads the target before the job is done, since it has no metadata yet."""

    async def opened(self) -> Order:
        """Return the job with a target that this process writes to, opened once."""
        if not isinstance(self.target, OwnDatabase):
            return self
        name = f"own {self.name}"
        found: Order = kept(name) or keep(name, await _with_own_database(self, self.target))
        return found


async def _with_own_database(order: Order, own: OwnDatabase) -> Order:
    from dataclasses import replace
    from uuid import uuid4

    from fsstore.arrays.store import open as open_array

    store = (await opened_database(own.base / f"{uuid4().hex[:16]}/")) / own.path
    if own.untouched:
        return replace(order, target=store)
    target = await open_array({**own.spec, "kvstore": store}, assume_metadata=True, open=True)
    return replace(order, target=target)


async def opened_database(directory: KvStore) -> KvStore:
    """Return the OCDBT database in a directory."""
    from fsstore.context.context import Context

    kind = kv_kind("ocdbt")
    assert kind is not None
    return KvStore.of(
        await open_adapter(kind, directory._open, directory._open.spec.bound_context or Context())
    )


def packed_keys(keys: Sequence[str]) -> bytes:
    """Return keys as few bytes: those of neighbouring chunks differ little."""
    return zlib.compress("\0".join(keys).encode("utf-8", "surrogateescape"), 6)


def keys_of(packed: bytes) -> list[str]:
    """Return the keys that were packed."""
    return zlib.decompress(packed).decode("utf-8", "surrogateescape").split("\0")


def root_of(store: OpenKv) -> OpenKv:
    """Return the store that all bytes of a store are in."""
    while store.base is not None:
        store = store.base
    return store


async def unsynced(store: OpenKv) -> OpenKv | None:
    """Return the same place where writes wait for a sync that covers many of them; None if it has no such thing."""
    root = root_of(store)
    if able(root.driver, SyncsTogether) is None or root.spec.live is not None:
        return None
    spec = _replaced_root(store.effective_spec())
    return (await open_bound(spec)).at(as_directory(store.path))


def _replaced_root(spec: Any) -> Any:
    from fsstore.context.context import Context

    if spec.base is not None:
        return spec.replace(base=_replaced_root(spec.base))
    context = Context({"file_io_sync": False}, spec.bound_context)
    others = {name: value for name, value in spec.resources.items() if name != "file_io_sync"}
    return spec.replace(resources=others).bound(context)
