"""Opening the specs of key-value stores: resources are bound, bases opened first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fsstore.context.context import Context, ContextResource
from fsstore.errors import PermissionDeniedError
from fsstore.kvstore.contract.ability import IsMetered, able
from fsstore.kvstore.contract.driver import KvDriver, KvPrefix
from fsstore.kvstore.contract.kind import KvKind, KvOpening
from fsstore.kvstore.engine.secret import lacks
from fsstore.kvstore.spec.spec_value import KvSpecValue
from fsstore.kvstore.transaction.transactional import TransactionalDriver
from fsstore.runtime.observer import Meter, counts
from fsstore.values.json_value import quote

if TYPE_CHECKING:
    from fsstore.kvstore.transaction.ledger import Ledger

__all__ = [
    "KEEP_TO_THEIR_BASE",
    "OpenKv",
    "as_directory",
    "open_adapter",
    "open_bound",
    "open_kv",
    "opening_waits",
]

KEEP_TO_THEIR_BASE = frozenset(("ocdbt", "zip"))
"""Adapters that lead nowhere else: over a store that never waits, they never do."""

_LOCAL = frozenset(("file", "memory"))


def as_directory(path: str) -> str:
    """Return a path that ends with a slash, unless it is empty."""
    return path + "/" if path and not path.endswith("/") else path


class OpenKv(NamedTuple):
    """An opened key-value store: the driver, the path, and the spec with all resources bound."""

    driver: KvDriver
    path: str
    spec: KvSpecValue
    base: OpenKv | None = None

    @property
    def prefix(self) -> KvPrefix:
        """The driver and the path."""
        return KvPrefix(self.driver, self.path)

    def effective_spec(self) -> KvSpecValue:
        """Return the spec with the members the drivers have in effect."""
        base = None if self.base is None else self.base.effective_spec()
        if self.spec.live is not None:
            return self.spec.replace(_path=self.path)
        return self.spec.replace(members=dict(self.driver.spec()), base=base, _path=self.path)

    def within(self, transaction: Any) -> OpenKv:
        """Return the store as a transaction sees and changes it, instead of another; None is no transaction."""
        driver = self.driver.base if isinstance(self.driver, TransactionalDriver) else self.driver
        if transaction is not None:
            driver = TransactionalDriver(driver, transaction.ledger)
        return self._replace(driver=driver)

    @property
    def meter(self) -> Meter | None:
        """The meter of the store that holds the bytes, or None."""
        root = self.within(None)
        while root.base is not None:
            root = root.base
        counting = able(root.driver, IsMetered)
        return None if counting is None else counting.meter

    @property
    def ledger(self) -> Ledger | None:
        """The inside of the transaction that the store is bound to, if it is."""
        return self.driver.ledger if isinstance(self.driver, TransactionalDriver) else None

    def at(self, path: str) -> OpenKv:
        """Return the same store at another path."""
        return self._replace(path=path)

    def as_directory(self) -> OpenKv:
        """Return the same store at a path that ends with a slash, unless it is empty."""
        return self.at(as_directory(self.path))


def opening_waits(spec: KvSpecValue) -> bool:
    """Return whether opening a store may have to wait: not for the roots of this machine, nor archives in them.

    A database in files is open after 60 µs here, and after 170 on the event loop.
    """
    if spec.live is not None:
        return spec.live.features.waits
    if spec.base is None:
        return spec.kind.id not in _LOCAL
    elsewhere = "manifest" in spec.members or spec.kind.id not in KEEP_TO_THEIR_BASE
    return elsewhere or opening_waits(spec.base)


async def open_kv(spec: KvSpecValue, context: Context) -> OpenKv:
    """Open a key-value store; resources the spec does not name come from `context`."""
    return await open_bound(spec.bound(context))


async def open_bound(spec: KvSpecValue) -> OpenKv:
    """Open a spec whose resources are bound."""
    if spec.live is not None:
        return OpenKv(_metered(spec.live, spec), spec.path, spec)
    return await _open_over(None if spec.base is None else await open_bound(spec.base), spec)


async def open_adapter(kind: KvKind, base: OpenKv, context: Context) -> OpenKv:
    """Open an adapter without members over a store that is open already."""
    path = kind.base_path(base.path)
    base = base._replace(path=path, spec=base.spec.replace(_path=path))
    return await _open_over(base, KvSpecValue.of(kind, "", base=base.spec).bound(context))


async def _open_over(base: OpenKv | None, spec: KvSpecValue) -> OpenKv:
    """Open a spec whose resources are bound, over its base."""
    if lacks(spec.members):
        raise PermissionDeniedError(
            f"The credentials of a store of the kind {quote(spec.kind.id)} stayed in the process that pickled it; open"
            " the store with a context that shares them (ts.Context().share_secrets()), or leave them out of specs and"
            " let each process find its own"
        )
    values = {
        name: value.value for name, value in spec.resources.items() if isinstance(value, ContextResource)
    }
    prefix = None if base is None else base.prefix
    opening = KvOpening(spec.members, values, prefix, spec.path, spec.bound_context)
    return OpenKv(_metered(await spec.kind.open(opening), spec), spec.path, spec, base)


def _metered(driver: KvDriver, spec: KvSpecValue) -> KvDriver:
    """Return a driver, with a meter of the context in which it was opened if it counts what it does."""
    counting = able(driver, IsMetered)
    if counting is not None and counting.meter is None and spec.bound_context is not None and counts():
        counting.meter = spec.bound_context.meter(driver.id)
    return driver
