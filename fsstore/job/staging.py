"""Copies that appear at once: in databases, and in stores that are written as one, as ZIP archives are.

For a database, workers write into databases of their own, and one commit takes all of them.  It needs a target that can
refer to what lies in other databases below its directory, which OCDBT does.  No value is copied by the commit; it takes
the keys of the workers' databases, the documents, and the deletion of what was there, as one version.  Readers see the
old or the new, and a job that is killed leaves the old.

A copy into an archive is made in a directory and packed in one step, if nobody has written to the archive meanwhile.
What stands there already is unpacked first, so the copy finds there what it would find anywhere else.
"""

from __future__ import annotations

import mmap
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

from fsstore.arrays.store import TensorStore
from fsstore.context.context import Context
from fsstore.errors import AbortedError, StoreError, UnimplementedError
from fsstore.job.order import Order, OwnDatabase, opened_database, unsynced
from fsstore.kvstore.contract.ability import TakesAllAtOnce, WritesAtOnce, able
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Buffer, Read, ReadResult, Write
from fsstore.kvstore.contract.key_range import KeyRange, key_bytes
from fsstore.kvstore.spec.opening import OpenKv, as_directory, open_kv
from fsstore.kvstore.spec.parse import kv_spec
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.runtime import execution

__all__ = ["Stage", "made_apart", "packs"]

_STAGED = "fsstore-data"
_MANIFEST = b"manifest.ocdbt"
_MAPPED = 1 << 20  # bytes of a file that is mapped instead of read
_BATCH = 64 << 20  # bytes that are unpacked at once
T = TypeVar("T")


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
            raise error.within(f"While {store.prefix.describe()} is made in a directory") from error
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
            if size >= _BATCH:
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
                large = path.stat().st_size >= _MAPPED
                value = memoryview(
                    mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if large else file.read()
                )
            values.append((path.relative_to(directory).as_posix(), value))
    return values
