"""Opening the specs of key-value stores: resources are bound, bases opened first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from fsstore.context.context import Context, ContextResource
from fsstore.errors import PermissionDeniedError
from fsstore.kvstore.contract.ability import IsMetered, able
from fsstore.kvstore.contract.driver import KvDriver, KvKind, KvOpening, KvPrefix
from fsstore.kvstore.engine.secret import lacks
from fsstore.kvstore.spec.spec_value import KvSpecValue
from fsstore.kvstore.transaction.transactional import TransactionalDriver
from fsstore.runtime.observer import Meter, counts
from fsstore.values import registry
from fsstore.values.json_value import quote

if TYPE_CHECKING:
    from fsstore.kvstore.transaction.ledger import Ledger

__all__ = [
    "OpenKv",
    "as_directory",
    "keeps_to_base",
    "leads_elsewhere",
    "open_adapter",
    "open_bound",
    "open_kv",
    "opening_waits",
]

_LOCAL = frozenset(("file", "memory"))
_KEEP_TO_THEIR_BASE = frozenset(("ocdbt", "zip"))
_NOTHING: Mapping[str, Any] = {}


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
        return OpenKv(self.driver, path, self.spec, self.base)

    def as_directory(self) -> OpenKv:
        """Return the same store at a path that ends with a slash, unless it is empty."""
        return self.at(as_directory(self.path))


def leads_elsewhere(members: Mapping[str, Any]) -> bool:
    """Return whether the members of a scanned file let it refer to stores that may be far from it."""
    return any(members.get(name) for name in ("targets", "rewrite", "index"))


def keeps_to_base(kind: str, members: Mapping[str, Any] = _NOTHING, *, scans: bool = False) -> bool:
    """Return whether an adapter leads nowhere else: over a store that never waits, it never does.

    Files of other formats keep to their base too, but finding out what is in them takes a while: they count with
    `scans`.
    """
    if registry.scanners.get(kind) is not None:
        return scans and not leads_elsewhere(members)
    return kind in _KEEP_TO_THEIR_BASE and "manifest" not in members


def opening_waits(spec: KvSpecValue, *, scans: bool = False) -> bool:
    """Return whether opening a store may have to wait: not for the roots of this machine, nor archives in them.

    With `scans`, nor for scanned files in them: for those who wait for what is in there anyway.  A database in files is
    open after 60 µs here, and after 170 on the event loop.
    """
    if spec.live is not None:
        return spec.live.features.waits
    if spec.base is None:
        return spec.kind.id not in _LOCAL
    keeps = keeps_to_base(spec.kind.id, spec.members, scans=scans)
    return not keeps or opening_waits(spec.base, scans=scans)


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
    if spec.members and lacks(spec.members):
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
