"""OCDBT databases: versioned key-value stores, each a B+tree in a directory of another store.

The bytes are TensorStore's; either library reads and continues what the other wrote.  `fsstore.KvStore` reads and
writes the keys (`|ocdbt:`); the functions of this module handle the rest: versions,
health, copies without history, and the nodes themselves.

Databases are given as a `KvStore`, a spec or a URL: of the ocdbt store itself (`file:///data/db|ocdbt:`) or of the
directory it lives in (`file:///data/db/`).  Everything returns a `Future`.

>>> import fsstore as ts
>>> store = ts.KvStore.open("memory://|ocdbt:").result()
>>> store["a"] = b"1"
>>> [version.num_keys for version in versions(store).result()]
[0, 1]
>>> verify(store).result().ok
True

* `driver`: the store: its JSON members, its URLs, and the driver over a database
* `source`: where a database is read: manifests, nodes, versions, keys
* `commit`: making a version: read the newest, apply the requests, store the data, replace the manifest
* `change`: the changes of a commit, and their application to a tree
* `manifest`: configuration, versions, and the tree of older versions, as they are stored
* `node`: nodes of the B+tree, as they are stored and divided
* `encoding`: integers, places in data files, frames, keys and generations
* `tool`: list versions, verify, dump nodes, compact
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from fsstore.context.context import Context
from fsstore.errors import NotFoundError, StoreError
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.kv_store import KvStore
from fsstore.ocdbt import tool
from fsstore.ocdbt.driver import OcdbtDriver, open_database, take_members
from fsstore.ocdbt.manifest import Version
from fsstore.ocdbt.source import choice_of, find_version
from fsstore.ocdbt.tool import VerifyReport, VersionInfo, describe_version, undump_manifest, undump_version_tree_node
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.values.detection import Detection
from fsstore.values.json_value import Fields

__all__ = [
    "VerifyReport",
    "VersionInfo",
    "compact",
    "dump",
    "undump_manifest",
    "undump_version_tree_node",
    "verify",
    "versions",
]

T = TypeVar("T")

DETECT = Detection("ocdbt", "store", files=("manifest.ocdbt",))
"""A database is recognised by its manifest."""


def dump(base: Any, node: str | None = None, *, context: Context | None = None) -> Future[Any]:
    """Return the manifest of the database in the directory `base` as JSON, or the node or value `node` refers to.

    References are the `location` and `indirect_value` members of other dumps.
    """
    return _with_store(base, context, lambda store: tool.dump(_directory(store), node))


def versions(store: Any, *, context: Context | None = None) -> Future[list[VersionInfo]]:
    """Return all versions, oldest first."""
    return _with_store(store, context, lambda opened: tool.versions(_database(opened).source))


def verify(store: Any, *, version: int | str | None = None, context: Context | None = None) -> Future[VerifyReport]:
    """Check every node of a version and the presence of its values; the newest version unless `version` is given."""

    async def work(opened: KvStore) -> VerifyReport:
        database = _database(opened)
        return await tool.verify(database.source, await _version(database, version))

    return _with_store(store, context, work)


def compact(
    store: Any, target: Any, *, version: int | str | None = None, context: Context | None = None
) -> Future[VersionInfo]:
    """Copy one version into a new database at `target` and return that database's only version.

    Members of the configuration that the spec of `target` leaves out are the source's.  An existing database is
    refused.
    """
    try:
        opening = _opened(target, context)
    except StoreError as error:
        return futures.failed(error)

    async def work(opened: KvStore) -> VersionInfo:
        database = _database(opened)
        new = _database(opening.result() if opening.done() else await opening)
        chosen = await _version(database, version)
        manifest = database.source.last.manifest
        if manifest is None:
            raise NotFoundError(f"{database.source.base.describe()} holds no OCDBT database")
        config = new.committer.new_config(manifest.config)
        return describe_version(await tool.compact(database.source, chosen, new.committer, config))

    return _with_store(store, context, work, opening)


def _opened(store: Any, context: Context | None) -> Future[KvStore]:
    return futures.ready(store) if isinstance(store, KvStore) else KvStore.open(store, context=context)


def _with_store(
    store: Any, context: Context | None, work: Callable[[KvStore], Coroutine[Any, Any, T]], *others: Future[KvStore]
) -> Future[T]:
    """Return the future of `work` on an opened store; `others` are further stores that `work` waits for."""
    try:
        opening = _opened(store, context)
        if all(one.done() for one in (opening, *others)):
            drivers = [one.result()._open.driver for one in (opening, *others)]
            return execution.start(work(opening.result()), waits=any(one.features.waits for one in drivers))
    except StoreError as error:
        return futures.failed(error)

    async def chain() -> T:
        return await work(await opening)

    return execution.start(chain())


def _directory(store: KvStore) -> KvPrefix:
    """Return the directory of a database given as that directory or as the `ocdbt` store."""
    driver = store._open.driver
    return driver.source.base if isinstance(driver, OcdbtDriver) else _database(store).source.base


def _database(store: KvStore) -> OcdbtDriver:
    driver = store._open.driver
    if isinstance(driver, OcdbtDriver):
        return driver
    found: OcdbtDriver = open_database(store._open.prefix)
    return found


async def _version(database: OcdbtDriver, version: int | str | None) -> Version:
    manifest = (await database.source.snapshot()).manifest
    if version is None:
        found, _ = await database.version()
    else:
        choice = choice_of(_member(version))
        found = None if manifest is None or choice is None else await find_version(database.source, manifest, choice)
    if found is None:
        raise NotFoundError(f"{database.source.base.describe()} holds no such version of an OCDBT database")
    return found


def _member(version: int | str) -> Any:
    fields = Fields({"version": version})
    members = take_members(fields)
    fields.finish()
    return members["version"]
