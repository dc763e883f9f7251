"""Copies that appear at once: workers write where nobody looks, and one commit takes all of it.

It needs a target that can refer to what lies elsewhere below its directory.  An OCDBT database takes databases, of
which each worker writes its own; a reference set in one document takes files.  No value is copied by the commit: it
takes the keys of what was written, the documents, and the deletion of what was there, as one step.  Readers see the old
or the new, and a job that is killed leaves the old.

What a set refers to must not be written over by the next run of the same job, so each job has a directory of its own,
whose name it keeps until it is done.  What was noted as finished counts for that directory only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import uuid4

from fsstore.arrays.opening import open as open_array
from fsstore.arrays.store import TensorStore
from fsstore.errors import UnimplementedError
from fsstore.job.order import Order, OwnDatabase, opened_database, unsynced
from fsstore.job.scratch import around
from fsstore.kvstore.contract.ability import TakesAllAtOnce, able
from fsstore.kvstore.contract.driver import NO_VALUE, KvPrefix
from fsstore.kvstore.contract.key_range import KeyRange
from fsstore.kvstore.spec.opening import OpenKv
from fsstore.kvstore.store.kv_store import KvStore

__all__ = ["Stage"]

_STAGED = "fsstore-data"
_MANIFEST = b"manifest.ocdbt"


@dataclass(frozen=True, slots=True)
class Stage:
    """The directory below which workers of one job write."""

    store: OpenKv
    """The target, in the database or set that will take all."""
    directory: OpenKv
    name: str

    @classmethod
    async def of(cls, store: OpenKv, notes: KvStore) -> Stage:
        """Return the stage of a job, named in its `notes`; raise if the target cannot take what is written."""
        taking, outside = able(store.driver, TakesAllAtOnce), around(store)
        if taking is None or taking.takes_stores is None or outside is None:
            raise UnimplementedError(
                f"{store.driver.describe_key(store.path)} cannot take a copy in one step; copy into an OCDBT database"
                " (`|ocdbt:`) or a reference set in JSON (`|reference:`), or without atomic=True, which writes the"
                " metadata of new arrays last"
            )
        name = uuid4().hex[:16]
        if not (await notes.write("stage", name, if_equal=NO_VALUE)).generation:
            name = bytes((await notes.read("stage")).value).decode()
        return cls(store, outside.at(f"{outside.path}{_STAGED}/{name}/"), name)

    @property
    def _taking(self) -> TakesAllAtOnce:
        taking = able(self.store.driver, TakesAllAtOnce)
        assert taking is not None
        return taking

    async def own(self, order: Order, target: TensorStore, path: str, *, untouched: bool) -> Order:
        """Return the order of a job whose workers write below the stage."""
        place = KvStore.of(await unsynced(self.directory) or self.directory)
        spec = target.spec().to_json()
        spec.pop("kvstore")
        if self._taking.takes_stores == "own":
            return replace(order, target=OwnDatabase(spec, place, path, untouched))
        if untouched:
            return replace(order, target=place / path)
        made = await open_array({**spec, "kvstore": place / path}, assume_metadata=True, open=True)
        return replace(order, target=made)

    async def commit(self, documents: Mapping[str, bytes], deleted: Sequence[KeyRange]) -> None:
        """Take what all workers have written, with the documents, in one commit."""
        if self._taking.takes_stores == "files":
            await self._taking.take_all([self.directory.prefix], documents, deleted)
            return
        others = []
        for key in await self._manifests():
            directory = KvStore.of(self.directory) / key.decode().removesuffix(_MANIFEST.decode())
            others.append(KvPrefix((await opened_database(directory))._open.driver))
        await self._taking.take_all(others, documents, deleted)

    async def clear(self) -> None:
        """Leave only data in the directory: what was taken is no database by itself any more."""
        for key in await self._manifests():
            await KvStore.of(self.directory).write(key, None)

    async def _manifests(self) -> list[bytes]:
        if self._taking.takes_stores != "own":
            return []
        return [key for key in await KvStore.of(self.directory).list() if key.endswith(b"/" + _MANIFEST)]
