"""Copies that appear at once: in databases and sets, and in stores that are written as one, as ZIP archives are.

Workers write where nobody looks, and one commit takes all of it.  The target must be able to refer to what lies
elsewhere below its directory: an OCDBT database takes databases, of which each worker writes its own; a reference set
in one document takes files.  No value is copied by the commit: it takes the keys of what was written, the documents,
and the deletion of what was there, as one step.  Readers see the old or the new; a job that is killed leaves the old.

The next run of a job must not write over files that a set refers to, so each job has a directory of its own, whose
name it keeps until it is done.  Its notes of finished work count for that directory only.

A copy into an archive is made in a directory and packed in one step, if nobody has written to the archive meanwhile.
The members that the archive has already are unpacked first, so the copy finds them as it would anywhere else.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from uuid import uuid4

from fsstore.arrays.store import TensorStore
from fsstore.arrays.store import open as open_array
from fsstore.context.context import Context
from fsstore.dataset.removal import remove_directory
from fsstore.errors import AbortedError, StoreError, UnimplementedError
from fsstore.job.order import Order, OwnDatabase, opened_database, unsynced
from fsstore.job.scratch import around
from fsstore.job.tuning import MAPPED_FROM_BYTES, UNPACKED_BYTES
from fsstore.kvstore.contract.ability import ListsNames, SweepsUnfinished, TakesAllAtOnce, WritesAtOnce, able
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Buffer, KvPrefix, Read, ReadResult, Write
from fsstore.kvstore.contract.request import KeyRange, key_bytes
from fsstore.kvstore.spec.parse import OpenKv, kv_spec, open_kv
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.ocdbt.commit import DATA_NAME, NodeLayout
from fsstore.runtime import execution

__all__ = ["Stage", "check_is_taking", "check_takes", "made_apart", "only_takes", "packs"]

_STAGED = "fsstore-data"
_MANIFEST = b"manifest.ocdbt"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stage:
    """The directory below which workers of one job write."""

    store: OpenKv
    """The target, in the database or set that will take all."""
    directory: OpenKv
    name: str

    @classmethod
    async def of(cls, store: OpenKv, notes: KvStore) -> Stage:
        """Return the stage of a job, named in its `notes`."""
        name = uuid4().hex[:16]
        if not (await notes.write("stage", name, if_equal=NO_VALUE)).generation:
            name = bytes((await notes.read("stage")).value).decode()
        return cls.named(store, name)

    @classmethod
    def named(cls, store: OpenKv, name: str) -> Stage:
        """Return the stage of a name."""
        outside = around(store)
        assert outside is not None  # a target that takes stores lies in a directory
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

    async def commit(
        self, documents: Mapping[str, bytes], *, unchanged: Mapping[str, bytes], deleted: Sequence[KeyRange]
    ) -> None:
        """Take what all workers have written, with the documents, in one commit.

        Raises `AbortedError` if a key of `unchanged` has another generation by now.
        """
        if self._taking.takes_stores == "files":
            files = [self.directory.prefix]
            await self._taking.take_all(files, documents, unchanged=unchanged, deleted=deleted)
            return
        others = []
        for key in await self._manifests():
            directory = KvStore.of(self.directory) / key.decode().removesuffix(_MANIFEST.decode())
            others.append(KvPrefix((await opened_database(directory))._open.driver))
        await self._taking.take_all(others, documents, unchanged=unchanged, deleted=deleted)

    async def clear(self) -> None:
        """Leave only data in the directory: what was taken is no database by itself any more."""
        for key in await self._manifests():
            await KvStore.of(self.directory).write(key, None)
        await self._sweep()

    async def _sweep(self) -> None:
        """Remove what killed workers had begun to write: nobody opens their databases again, and so writes over it."""
        driver, path = self.directory.driver, self.directory.path
        sweeper, listing = able(driver, SweepsUnfinished), able(driver, ListsNames)
        if sweeper is None or listing is None or self._taking.takes_stores != "own":
            return
        for name in await listing.names(path):
            database = KvPrefix(driver, f"{path}{name}/")
            await sweeper.sweep_unfinished(database.path, re.escape(_MANIFEST.decode()))
            for prefix in NodeLayout().prefixes():
                below = database.path + prefix.decode()
                await sweeper.sweep_unfinished(below, DATA_NAME)
                await remove_directory(KvPrefix(driver, below))
            await remove_directory(database)

    async def _manifests(self) -> list[bytes]:
        if self._taking.takes_stores != "own":
            return []
        return [key for key in await KvStore.of(self.directory).list() if key.endswith(b"/" + _MANIFEST)]


async def check_takes(store: OpenKv, documents: Mapping[str, bytes], deleted: Sequence[KeyRange]) -> None:
    """Raise if a store cannot take arrays with these documents in one step, before anything is written for it."""
    await check_is_taking(store).check_taking(documents, deleted)


def check_is_taking(store: OpenKv) -> TakesAllAtOnce:
    """Return what takes arrays in one step; raises if the store has no such thing."""
    taking = able(store.driver, TakesAllAtOnce)
    if taking is None or taking.takes_stores is None or around(store) is None:
        raise UnimplementedError(
            f"{store.driver.describe_key(store.path)} cannot take a copy in one step; copy into an OCDBT database"
            " (`|ocdbt:`), a reference set (`|reference:`) or a virtual dataset (`|mosaic:`), or without"
            " atomic=True, which writes the metadata of new arrays last"
        )
    return taking


def only_takes(store: OpenKv) -> bool:
    """Return whether new arrays can be made in a store in no other way than in one step."""
    taking = able(store.driver, TakesAllAtOnce)
    return taking is not None and taking.only_takes


def packs(store: OpenKv) -> bool:
    """Return whether a store is written as one."""
    return store.driver.features.written_as_one and store.driver.features.writable


async def made_apart(store: OpenKv, context: Context, make: Callable[[OpenKv], Awaitable[T]]) -> T:
    """Have `make` write into a directory what stands at a store, and write all of it there in one step."""
    together = able(store.driver, WritesAtOnce)
    assert together is not None
    with TemporaryDirectory(prefix="fsstore-") as directory:
        place = await open_kv(kv_spec({"driver": "file", "path": f"{directory}/"}), context)
        seen = await _unpack(store, Path(directory))
        try:
            made = await make(place)
        except StoreError as error:
            shown = error.without(f"{directory}/")
            raise shown.within(f"While {store.prefix.describe()} is made in a directory") from error
        values = await execution.offload(_values, Path(directory))
        writes = [Write(store.path + key, value, UNKNOWN if seen else NO_VALUE) for key, value in values]
        failed = await together.write_atomic(
            writes, unchanged=seen, deleted=[KeyRange.prefix(store.path)] if seen else []
        )
    if failed:
        raise AbortedError(f"{store.prefix.describe()} was written by somebody else while it was made")
    return made


async def _unpack(store: OpenKv, directory: Path) -> dict[str, bytes]:
    """Write what stands at a store into a directory; return the generation of one of its keys, if there is any."""
    seen: dict[str, bytes] = {}
    batch: list[str] = []
    size = 0
    async for entries in store.prefix.scan():
        for key, length in entries:
            batch.append(key)
            size += length or 0
            if size >= UNPACKED_BYTES:
                seen |= await _unpacked(store, directory, batch)
                batch, size = [], 0
    if batch:
        seen |= await _unpacked(store, directory, batch)
    return dict(list(seen.items())[-1:])


async def _unpacked(store: OpenKv, directory: Path, keys: Sequence[str]) -> dict[str, bytes]:
    answers = await store.prefix.read_many([Read(key) for key in keys])
    await execution.offload(_write_files, directory, keys, answers)
    return {store.path + keys[-1]: answers[-1].generation}


def _write_files(directory: Path, keys: Sequence[str], answers: Sequence[ReadResult]) -> None:
    for key, answer in zip(keys, answers, strict=True):
        path = directory / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(answer.value)


def _values(directory: Path) -> list[tuple[str, Buffer]]:
    """Return the files of a directory by their keys, large ones mapped."""
    values: list[tuple[str, Buffer]] = []
    for path in sorted(directory.rglob("*"), key=lambda each: key_bytes(str(each))):
        if path.is_file():
            with path.open("rb") as file:
                large = path.stat().st_size >= MAPPED_FROM_BYTES
                value = memoryview(
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if large else file.read()
                )
            values.append((path.relative_to(directory).as_posix(), value))
    return values
