"""The two ends of a job: what it is given by place or open, and the array that a copy makes.

A copy has the format, the chunks and the codec that its caller wishes for, or those of its source.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from fsstore.arrays.store import TensorStore
from fsstore.arrays.store import open as open_array
from fsstore.context.context import Context
from fsstore.dataset.group import Group, open_group
from fsstore.dataset.members import NewArray, dtype_name, new_array
from fsstore.dataset.place import remove_directory, remove_tree, store_spec
from fsstore.dataset.same_place import Relation, names_differ, places_of, relations, shows
from fsstore.driver.cast import Cast
from fsstore.errors import DataLossError, FailedPreconditionError, StoreError, UnimplementedError
from fsstore.format.attributes import (
    ARRAY_DIMENSIONS,
    BESIDE,
    DOCUMENTS,
    MARK,
    WORDS,
    NodeWords,
    fill_marks,
    in_zarr3,
    is_document,
    mark_of,
    plain_mark,
    words_of,
)
from fsstore.kvstore.contract.ability import SweepsUnfinished, able
from fsstore.kvstore.contract.driver import KvPrefix, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.spec.parse import OpenKv, as_directory, with_root
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.task.claim import Claim, claimed
from fsstore.values.dtypes import dtype

__all__ = [
    "APPEND",
    "SCRATCH_MARK",
    "WHOLE",
    "Scratch",
    "all_claimed",
    "around",
    "array_like",
    "attributes_of",
    "beside",
    "check_apart",
    "check_shown",
    "format_of",
    "is_of_job",
    "meaning_of",
    "opened_source",
    "where",
    "wishes_of",
]


# Where a job keeps what is its own until it is done: its claim, its journal, what it spills, its workers'
# databases.
#
# It stands beside the target, below `.fsstore-job/`, in the same store. For an OCDBT database, a reference
# set or a virtual dataset it stands in the store around it: each note would be a version of the database,
# or the set written anew.


APPEND = "append"
"""The beginning of keys that tell of appends, which other jobs leave alone."""
SCRATCH_MARK = "fsstore-job"
"""The key among the chunks of a copy, until it is done, whose value the journal has too."""
_ABOVE = "fsstore-job"
_CLAIM = "claim"
WHOLE = "replacement-is-whole"
"""The key of a note that the old array is being removed, since the new one is whole."""
_EXCHANGED = "exchanged"
_OLD = "~old"
_OVER = "~over"  # behind all others


def is_of_job(key: str) -> bool:
    """Whether a key below an array is a document, or belongs to a job: everything else is a chunk."""
    return key == SCRATCH_MARK or is_document(key) or key.startswith(f"{BESIDE}/")


def around(store: OpenKv) -> OpenKv | None:
    """Return the directory in which a database, a reference set or a virtual dataset lies; None of any other store."""
    if store.base is None:
        return None
    if store.spec.kind.id == "ocdbt":
        return store.base.at(as_directory(store.base.path))
    if store.spec.kind.id in ("reference", "mosaic") and store.base.path.rstrip("/"):
        return store.base.at("".join(store.base.path.rstrip("/").rpartition("/")[:2]))
    return None


def beside(store: OpenKv, place: Path, name: str) -> OpenKv:
    """Return the directory of a job beside a local directory."""
    if not name.startswith(f"{BESIDE}-") or "/" in name:
        raise DataLossError(f"A note of a job at {place} names {name!r}, which is no directory of a job")
    return store.at(f"{Path(os.path.realpath(place)).parent}/{name}/")


@asynccontextmanager
async def all_claimed(stores: Sequence[OpenKv], job: str) -> AsyncIterator[None]:
    """Hold the claims of places, and of all below them at which a job is under way or was killed."""
    suffix = f"/{BESIDE}/{_CLAIM}"
    async with AsyncExitStack() as claims:
        for store in stores:
            await claims.enter_async_context(Scratch.of(store).claimed(job))
            found = [entry.key async for batch in store.prefix.documents() for entry in batch]
            for path in [key.removesuffix(suffix) for key in found if key.endswith(suffix)]:
                await claims.enter_async_context(Scratch.of(store.at(f"{store.path}{path}/")).claimed(job))
        yield


@dataclass(frozen=True, slots=True)
class Scratch:
    """A directory for jobs with one target."""

    opened: OpenKv
    """The store and the path of the directory, with a slash at its end."""

    @classmethod
    def of(cls, store: OpenKv) -> Scratch:
        """Return the directory for jobs whose target is a place in a store."""
        place, outside = as_directory(store.path), around(store)
        if outside is None:
            return cls(store.at(f"{place}{BESIDE}/"))
        named = f"{store.base.path if store.base else ''}|{place}"
        digest = hashlib.sha256(named.encode("utf-8", "surrogateescape")).hexdigest()[:12]
        return cls(outside.at(f"{outside.path}{_ABOVE}-{digest}/"))

    @property
    def store(self) -> KvStore:
        """The directory as a store."""
        return KvStore.of(self.opened)

    def below(self, path: str) -> KvStore:
        """Return a directory in it."""
        return KvStore.of(self.opened.at(f"{self.opened.path}{path}/"))

    async def holds_others(self, name: str) -> bool:
        """Whether another job than the one of this name has begun here, and did not end."""
        own = _CLAIM.encode(), APPEND.encode(), f"{name}/".encode()
        return any(not key.startswith(own) for key in await self.store.list())

    def claimed(self, job: str) -> AbstractAsyncContextManager[Claim]:
        """Hold the claim of the target while a job runs, which `job` describes as a part of a sentence."""
        return claimed(self.store, _CLAIM, job)

    async def end(self, stage: str) -> None:
        """Note that a job is done, and that only what it leaves in its stage and here is to be removed."""
        await self.store.write(_OVER, stage)

    async def ended(self) -> str | None:
        """Return the stage of a run that was killed when its job was done, empty if it had none; None of all others."""
        answer = await self.store.read(_OVER)
        return bytes(answer.value).decode() if answer.state == "value" else None

    async def note_deletion(self) -> None:
        """Note that everything at the target is to be deleted, until that is done."""
        await self.store.write(_OLD, b"")

    async def delete_old(self, place: KvPrefix) -> None:
        """Delete everything at the target but this directory, and then that; a run that is killed leaves a note.

        Chunks without their documents are no array, and would belong to the next one that is made there.
        """
        await self.note_deletion()
        await self.delete_around(place)
        await self.clear()
        await self.store.delete_range(KeyRange.prefix(APPEND))

    async def delete_around(self, place: KvPrefix) -> None:
        """Delete everything at the target but this directory, documents first."""
        await place.write_many([Write(name, None) for name in sorted(DOCUMENTS)])
        for keys in self.around(""):
            await place.delete_range(keys)

    @staticmethod
    def around(path: str) -> list[KeyRange]:
        """Return the keys below a path that are not of this directory."""
        own = KeyRange.prefix(f"{path}{BESIDE}/")
        whole = KeyRange.prefix(path)
        return [
            KeyRange(whole.inclusive_min, own.inclusive_min), KeyRange(own.exclusive_max, whole.exclusive_max),
        ]  # fmt: skip

    async def replaces(self) -> bool:
        """Whether a run was killed while it put a whole new array in the place of the old one."""
        return (await self.store.read(WHOLE)).state == "value"

    @staticmethod
    def replaced(key: str) -> str | None:
        """Return the path of the array at which a key is the note of that; None for all other keys."""
        note = f"{BESIDE}/{WHOLE}"
        return key.removesuffix(note) if key == note or key.endswith(f"/{note}") else None

    async def note_exchange(self, name: str) -> None:
        """Note, in a new directory, what the old one beside it is called once both were exchanged."""
        await self.store.write(_EXCHANGED, name)

    async def deletes_old(self) -> bool:
        """Whether a run was killed while it deleted what stood at the target."""
        return (await self.store.read(_OLD)).state == "value"

    async def begin(self) -> None:
        """Finish removing what a run left that was killed while it did so.

        The rest of its journal would say that tasks are finished whose data may be gone since.
        """
        answer = await self.store.read(_EXCHANGED)
        if answer.state == "value":
            old = beside(self.opened, Path(self.opened.path).parent, bytes(answer.value).decode())
            await remove_tree(old.prefix)
            await self.store.write(_EXCHANGED, None)
        if await self.ended() is not None:
            await self.clear()

    async def clear(self, key: str | None = None) -> None:
        """Remove a value, a directory, or all but the claim and what tells of appends; then this, if it is empty."""
        if key is not None and key.endswith("/"):
            await self.store.delete_range(KeyRange.prefix(key))
            await remove_directory(self.opened.prefix.join(key))
        elif key is not None:
            await self.store.write(key, None)
        else:
            await self.store.write(_OVER, b"")
            begin = b""
            for kept in (APPEND, _CLAIM, _OVER):
                await self.store.delete_range(KeyRange(begin, kept))
                begin = KeyRange.prefix(kept).exclusive_max
            await self.store.delete_range(KeyRange(_OVER))
        sweeper = able(self.opened.driver, SweepsUnfinished)
        if sweeper is not None:
            await sweeper.sweep_unfinished(self.opened.path, r"[^/]+")
        await remove_directory(self.opened.prefix)


_MEANING = ("units", "calendar", "scale_factor", "add_offset", "missing_value", "_Unsigned")
_WISHES = ("zarr_format", "dtype", "chunks", "shards", "codec", "fill_value", "dimension_names", "attributes")


def wishes_of(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a caller wishes of a copy, checked by name."""
    wishes = dict(schema or {})
    for name in wishes:
        if name not in _WISHES:
            close = get_close_matches(name, _WISHES, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(_WISHES)}"
            raise TypeError(f"A copy has no wish {name!r}; {hint}")
    return wishes


def format_of(source: TensorStore, wishes: Mapping[str, Any], scheme: str) -> NodeWords:
    """Return the format of a copy: as wished for, as the URL of the target says, as the source has it, or zarr v3."""
    if "zarr_format" in wishes:
        if wishes["zarr_format"] not in WORDS:
            raise ValueError(f"zarr_format is 3, 2 or, for N5, 0, not {wishes['zarr_format']!r}")
        return WORDS[wishes["zarr_format"]]
    named = words_of({"zarr2": "zarr"}.get(scheme, scheme))
    if named is not None:
        return named
    if scheme not in ("", "auto"):
        raise StoreError(f"A copy cannot be written as {scheme!r}; it can be as zarr3, zarr2 and n5")
    return words_of(_driver_of(source)) or WORDS[3]


def array_like(
    source: TensorStore, words: NodeWords, wishes: Mapping[str, Any], attributes: Mapping[str, Any]
) -> tuple[NewArray, Any]:
    """Return what the copy of an array is like, and its fill value.

    The mark of missing data in the source is one in the copy too, in the words of its format.
    """
    layout = source.chunk_layout
    read, write = _sides(layout.read_chunk.shape, source), _sides(layout.write_chunk.shape, source)
    sharded = words.zarr_format == 3 and read != write and _driver_of(source) == "zarr3"
    own = {name: value for name, value in attributes.items() if name != ARRAY_DIMENSIONS}
    stored = source.fill_value if words.zarr_format else None  # N5 has none
    if _driver_of(source) != words.driver:
        native = dtype(dtype_name(wishes.get("dtype", source.dtype))).numpy_dtype
        mark = _mark(source, attributes)
        own.pop(MARK, None)
        if words.zarr_format == 2:
            stored = mark
        elif mark is not None:
            said = in_zarr3(mark, native) if words.zarr_format == 3 else plain_mark(mark, native)
            own |= {} if said is None else {MARK: said}
    names: Any = attributes.get(ARRAY_DIMENSIONS)
    labels = [label or None for label in source.domain.labels]
    if not isinstance(names, list) or len(names) != source.rank:
        names = labels if any(labels) or (words.zarr_format == 2 and not labels) else None
    options: dict[str, Any] = {
        "chunks": read if sharded or words.zarr_format == 3 else write,
        "dimension_names": names,
        "attributes": own,
        "codec": _codec_of(source, words) if "dtype" not in wishes else "zstd",
    }
    if sharded and "chunks" not in wishes:
        options["shards"] = write
    options |= {
        name: value for name, value in wishes.items() if name not in ("zarr_format", "dtype", "fill_value")
    }
    if "dtype" in wishes and "fill_value" not in wishes and stored is not None:
        stored = _as_type(stored, source, dtype(dtype_name(wishes["dtype"])))
    made = new_array(source.shape, wishes.get("dtype", source.dtype.name), options)
    return made, wishes.get("fill_value", stored)


def _as_type(fill: Any, source: TensorStore, wanted: dtype) -> Any:
    try:
        return Cast(source.dtype, wanted).checked(np.asarray(fill, source.dtype.numpy_dtype), ())[()]
    except StoreError as error:
        raise error.within(
            "The fill value of the source is not one of the copy, give another in `schema`"
        ) from None


def _sides(chunk: Any, source: TensorStore) -> tuple[int, ...]:
    sides = chunk or (None,) * source.rank
    return tuple(side or max(1, size) for side, size in zip(sides, source.shape, strict=True))


def meaning_of(array: TensorStore) -> dict[str, Any]:
    """Return the attributes that say what the values of an array mean, if it has any."""
    attributes = attributes_of(array) or {}
    found = {name: attributes[name] for name in _MEANING if name in attributes}
    if found:
        mark = _mark(array, attributes)
        found[MARK] = None if mark is None else plain_mark(mark, array.dtype.numpy_dtype)
    return found


def attributes_of(array: TensorStore) -> dict[str, Any] | None:
    """Return the attributes of an array, None for images, functions and values: they have none."""
    try:
        return dict(array.attrs)
    except UnimplementedError:
        return None


def _mark(source: TensorStore, attributes: Mapping[str, Any]) -> Any:
    """Return the value that marks missing data in the source of a copy, or None."""
    metadata = source.spec().to_json().get("metadata", {})
    version = metadata.get("zarr_format")
    place = source.kvstore
    if version == 2 and place is not None and fill_marks(place.prefix.driver.id, source.fill_value):
        return source.fill_value
    return mark_of(attributes, source.dtype.numpy_dtype, version)


def _driver_of(source: TensorStore) -> str:
    return str(source._driver.kind.id)


def _codec_of(source: TensorStore, words: NodeWords) -> Any:
    """Return the codecs of the source where the copy has the same format, without those that `NewArray` adds."""
    if _driver_of(source) != words.driver:
        return "zstd"
    metadata = source.spec().to_json().get("metadata", {})
    if words.zarr_format == 2:
        return metadata.get("compressor")
    if words.zarr_format == 0:
        return metadata.get("compression")
    codecs = metadata.get("codecs") or ["bytes"]
    if isinstance(codecs[0], dict) and codecs[0].get("name") == "sharding_indexed":
        codecs = codecs[0]["configuration"].get("codecs") or ["bytes"]
    return codecs


async def opened_source(source: Any, context: Context) -> TensorStore | Group:
    """Return an array or a group, opened for reading if it is given by its place."""
    if isinstance(source, TensorStore | Group):
        return source
    try:
        return await open_array(_array_place(source), read=True, context=context)
    except StoreError as error:
        return await _group_of(source, context, error)


async def check_apart(source: TensorStore | Group, target: OpenKv, *, in_place: bool = False) -> bool:
    """Return whether the target is the source itself, which is an error unless `in_place` says that it may be.

    Raises `FailedPreconditionError` if one of them lies in the other, whatever they are called.
    """
    own = source.kvstore._open if isinstance(source, Group) else source._driver
    found = await relations(own, target)
    for each in found:
        _raise_if_together(each, source, target, in_place=in_place)
    return "is" in found


async def check_shown(source: TensorStore, target: OpenKv, claim: Claim) -> None:
    """Raise an error if the claim of the target is seen at the source: another server shows the same files.

    Names tell nothing there.  Nothing but the claim was written yet.
    """
    if around(target) is not None:
        return
    for place in await places_of(source._driver):
        if names_differ(place, target) and place.driver.features.waits:
            found = await shows(place, target, f"{BESIDE}/{claim.key}", claim.holder.claim.encode())
            if found is not None:
                _raise_if_together(found, source, target, in_place=False)


def where(source: TensorStore) -> str:
    """Return where an array is, as far as that can be said."""
    try:
        return source.url
    except (StoreError, UnimplementedError):
        return f"an array of the driver {_driver_of(source)}"


def _raise_if_together(
    found: Relation, source: TensorStore | Group, target: OpenKv, *, in_place: bool
) -> None:
    """Raise an error that says how the source relates to the target."""
    place, own = target.prefix.describe(), repr(source) if isinstance(source, Group) else where(source)
    if found == "is" and not in_place:
        raise FailedPreconditionError(
            f'{place} is the source itself; `copy` with if_exists="replace", and `fsstore rechunk` with `--if-exists'
            " replace`, write it anew beside it and put that in its place"
        )
    if found == "lies in":
        raise FailedPreconditionError(
            f"{place} holds what is read, {own}; choose a place outside of it for the copy"
        )
    if found == "holds":
        raise FailedPreconditionError(f"{place} lies in what is read; choose a place outside of {own}")


def _array_place(source: Any) -> Any:
    """Return a path or a key-value store as a place where detection finds an array; everything else as it is."""
    is_path = isinstance(source, str) and not any(mark in source for mark in ("://", "|", "::"))
    if is_path or isinstance(source, KvStore | KvStore.Spec | PathLike):
        return {"driver": "auto", "kvstore": store_spec(source)}
    return with_root(source) if isinstance(source, str) else source


async def _group_of(source: Any, context: Context, error: StoreError) -> Group:
    try:
        return await open_group(source, mode="r", context=context)
    except StoreError:
        raise error from None  # what was said of the array is the better message
