"""The two ends of a job: what it is given by place or open, and the array that a copy makes.

A copy has the format, the chunks and the codec that its caller wishes for, or those of its source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, Literal, TypedDict

import numpy as np

from fsstore.arrays.store import TensorStore
from fsstore.arrays.store import open as open_array
from fsstore.context.context import Context
from fsstore.dataset.georeference import as_seen
from fsstore.dataset.group import Group, open_group
from fsstore.dataset.members import NewArray, dtype_name, new_array
from fsstore.dataset.origin import places_of, relations
from fsstore.dataset.place import store_spec
from fsstore.driver.cast import Cast
from fsstore.errors import FailedPreconditionError, StoreError, UnimplementedError
from fsstore.format.attributes import (
    ARRAY_DIMENSIONS,
    BESIDE,
    MARK,
    WORDS,
    NodeWords,
    fill_marks,
    in_zarr3,
    mark_of,
    plain_mark,
    words_of,
)
from fsstore.job.scratch import around
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.same_place import Relation, names_differ, shows
from fsstore.kvstore.spec_parse import OpenKv, with_root
from fsstore.schema.schema import known_instead
from fsstore.task.claim import Claim
from fsstore.values.dtypes import dtype

_MEANING = ("units", "calendar", "scale_factor", "add_offset", "missing_value", "_Unsigned")


class CopyWishes(TypedDict, total=False):
    """The properties of a copy that are others than those of its source."""

    zarr_format: Literal[0, 2, 3]
    dtype: Any
    chunks: Sequence[int]
    shards: Sequence[int]
    codec: Any
    fill_value: Any
    dimension_names: Sequence[str | None]
    attributes: Mapping[str, Any]


_WISHES = tuple(CopyWishes.__annotations__)
_CHOICES = ("schema", "region", "executor", "max_memory", "if_exists", "atomic", "casting", "verify", "progress")


def wishes_of(schema: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return what a caller wishes of a copy, checked by name."""
    wishes = dict(schema or {})
    for name in wishes:
        if name not in _WISHES:
            hint = known_instead(name, _WISHES + _CHOICES) or f"; there are {', '.join(_WISHES)}"
            raise TypeError(f"A copy has no wish {name!r}{hint}")
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
    options |= {name: value for name, value in wishes.items() if name not in ("zarr_format", "dtype", "fill_value")}
    if "dtype" in wishes and "fill_value" not in wishes and stored is not None:
        stored = _as_type(stored, source, dtype(dtype_name(wishes["dtype"])))
    made = new_array(source.shape, wishes.get("dtype", source.dtype.name), options)
    return made, wishes.get("fill_value", stored)


def _as_type(fill: Any, source: TensorStore, wanted: dtype) -> Any:
    try:
        return Cast(source.dtype, wanted).checked(np.asarray(fill, source.dtype.numpy_dtype), ())[()]
    except StoreError as error:
        raise error.within("The fill value of the source is not one of the copy, give another in `schema`") from None


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
    """Return the attributes of an array, placed as its view is; None for images, functions and values."""
    try:
        return as_seen(array.attrs, array)
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


def _raise_if_together(found: Relation, source: TensorStore | Group, target: OpenKv, *, in_place: bool) -> None:
    """Raise an error that says how the source relates to the target."""
    place, own = target.prefix.describe(), repr(source) if isinstance(source, Group) else where(source)
    if found == "is" and not in_place:
        raise FailedPreconditionError(
            f'{place} is the source itself; `copy` with if_exists="replace", and `fsstore rechunk` with `--if-exists'
            " replace`, write it anew beside it and put that in its place"
        )
    if found == "lies in":
        raise FailedPreconditionError(f"{place} holds what is read, {own}; choose a place outside of it for the copy")
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
