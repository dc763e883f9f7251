"""Copies that appear at once: workers write into databases of their own, and one commit takes all of them.

It needs a target that can refer to what lies in other databases below its directory, which OCDBT does.  No value is
copied by the commit; it takes the keys of the workers' databases, the documents, and the deletion of what was there,
as one version.  Readers see the old or the new, and a job that is killed leaves the old.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fsstore.arrays.store import TensorStore
from fsstore.errors import UnimplementedError
from fsstore.job.order import Order, OwnDatabase, opened_database, unsynced
from fsstore.kvstore.contract.ability import TakesAllAtOnce, able
from fsstore.kvstore.contract.key_range import KeyRange
from fsstore.kvstore.spec.opening import OpenKv, as_directory
from fsstore.kvstore.store.kv_store import KvStore

__all__ = ["Stage"]

_STAGED = "fsstore-data"
_MANIFEST = b"manifest.ocdbt"


@dataclass(frozen=True, slots=True)
class Stage:
    """The directory in which the databases of one job's workers are."""

    store: OpenKv
    """The target, in the database that will take all others."""
    name: str

    @classmethod
    def of(cls, store: OpenKv, name: str) -> Stage:
        """Return the stage of a job; raise if the target cannot take what its workers write."""
        if able(store.driver, TakesAllAtOnce) is None or store.base is None:
            raise UnimplementedError(
                f"{store.driver.describe_key(store.path)} cannot take a copy in one step; copy into an OCDBT database"
                " (`|ocdbt:`), or without atomic=True, which writes the metadata of new arrays last"
            )
        return cls(store, name)

    def _below(self, base: OpenKv) -> OpenKv:
        return base.at(f"{as_directory(base.path)}{_STAGED}/{self.name}/")

    async def own(self, order: Order, target: TensorStore, path: str, *, untouched: bool) -> Order:
        """Return the order of a job whose workers write into databases of their own."""
        assert self.store.base is not None
        base = await unsynced(self.store.base) or self.store.base
        spec = target.spec().to_json()
        spec.pop("kvstore")
        return replace(order, target=OwnDatabase(spec, KvStore.of(self._below(base)), path, untouched))

    async def commit(self, documents: Mapping[str, bytes], deleted: Sequence[KeyRange]) -> None:
        """Take what all workers have written, with the documents, in one commit; then the stage holds only data."""
        taking = able(self.store.driver, TakesAllAtOnce)
        assert taking is not None
        assert self.store.base is not None
        place = KvStore.of(self._below(self.store.base))
        manifests = [key for key in await place.list() if key.endswith(b"/" + _MANIFEST)]
        others = []
        for key in manifests:
            directory = place / key.decode().removesuffix(_MANIFEST.decode())
            others.append((await opened_database(directory))._open.driver)
        await taking.take_all(others, documents, deleted)
        for key in manifests:
            await place.write(key, None)
