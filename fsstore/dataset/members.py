"""Members of a group: finding, opening, creating, deleting and moving them, by path below a place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from operator import index
from typing import Any

import numpy as np

from fsstore.arrays.spec_parse import apply_options, array_spec
from fsstore.arrays.store import TensorStore
from fsstore.dataset.place import Found, Place, delete_tree, renew
from fsstore.driver.auto import Hierarchy, Node
from fsstore.driver.contract import opening_beneath
from fsstore.errors import AlreadyExistsError, NotFoundError, StoreError
from fsstore.format.attributes import ARRAY_DIMENSIONS, NodeWords, is_document
from fsstore.format.zarr3_document import octet_type
from fsstore.kvstore.contract.driver import Entry
from fsstore.runtime import execution
from fsstore.schema.schema import codec_json, known_instead
from fsstore.values import registry
from fsstore.values.dtypes import dtype as dtype_of
from fsstore.values.json_value import quote, show

# The specs of new arrays, from the words in which people describe them: shape, type, chunks, shards, codec.
#
# Nothing here reads or writes; the result is the JSON of a spec, which the driver of the format completes
# and checks.

_UNCOMPRESSED = {"ustring": "vlen-utf8", "string": "vlen-bytes"}
"""The codecs of zarr version 3 for elements that differ in size."""


@dataclass(frozen=True, slots=True)
class NewArray:
    """The wishes for an array to be created.

    `codec` is None for no compression, or what `codec_json` takes: `"zstd"`, `{"name": "zstd", "level": 9}`, JSON.
    """

    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None
    codec: Any = "zstd"
    fill_value: Any = None
    dimension_names: Sequence[str | None] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def metadata(self, words: NodeWords) -> dict[str, Any]:
        """Return the `metadata` member of a spec for the format."""
        if self.shards is not None and words.zarr_format != 3:
            raise ValueError(
                "Shards exist in zarr version 3 only; leave `shards` out, or create the group with zarr_format=3"
            )
        self._check_sides()
        if words.zarr_format == 3:
            return self._zarr3()
        if words.zarr_format == 2:
            chunks = {} if self.chunks is None else {"chunks": list(self.chunks)}
            return {"shape": list(self.shape), **chunks, "compressor": codec_json(self.codec, 2)}
        for name in ("units", "resolution"):
            if not isinstance(self.attributes.get(name, []), list):
                raise StoreError(
                    f"The attribute {show(name)} is a list in N5, with one entry a dimension; give it another name"
                )
        chunks = {} if self.chunks is None else {"blockSize": list(self.chunks)}
        named = {} if self.dimension_names is None else {"axes": [name or "" for name in self.dimension_names]}
        compression = codec_json(self.codec, 0) or {"type": "raw"}
        return {**self.attributes, "dimensions": list(self.shape), **chunks, **named, "compression": compression}

    def _check_sides(self) -> None:
        for name, sides in (("chunks", self.chunks), ("shards", self.shards)):
            if sides is not None and (len(sides) != len(self.shape) or min(sides, default=1) < 1):
                raise ValueError(
                    f"{name} are positive integers, one for each dimension of an array of shape"
                    f" {list(self.shape)}, not {list(sides)}"
                )
        if self.shards and self.chunks and any(map(int.__mod__, self.shards, self.chunks)):
            raise ValueError(
                f"Shards of shape {list(self.shards)} do not consist of whole chunks of shape {list(self.chunks)};"
                " make each side a multiple of that of a chunk"
            )

    def stored_attributes(self, words: NodeWords) -> dict[str, Any]:
        """Return the attributes that are stored in a document of their own, where the format has one."""
        if words.zarr_format != 2:
            return {}
        named = {}
        if self.dimension_names is not None:
            named = {ARRAY_DIMENSIONS: [name or f"dim_{number}" for number, name in enumerate(self.dimension_names)]}
        return {**self.attributes, **named}

    def _zarr3(self) -> dict[str, Any]:
        out: dict[str, Any] = {"shape": list(self.shape)}
        outer = self.shards or self.chunks
        if outer is not None:
            out["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": list(outer)}}
        codecs = self._codecs()
        if self.shards is not None:
            inner = {"chunk_shape": list(self.chunks or self.shards), "codecs": codecs}
            codecs = [{"name": "sharding_indexed", "configuration": inner}]
        out["codecs"] = codecs
        octet = octet_type(self.dtype)
        if octet is not None:
            out["data_type"] = octet.json
        if self.dimension_names is not None:
            out["dimension_names"] = list(self.dimension_names)
        if self.attributes:
            out["attributes"] = dict(self.attributes)
        return out

    def _codecs(self) -> list[Any]:
        if self.codec is None:
            return [_UNCOMPRESSED.get(self.dtype, "bytes")]
        return list(codec_json(self.codec, 3))


_OPTIONS = ("chunks", "shards", "codec", "fill_value", "dimension_names", "attributes")


def new_array(shape: Sequence[int], dtype: Any, options: Mapping[str, Any]) -> NewArray:
    """Return what a caller asks for, with the names of options checked."""
    for name in options:
        if name not in _OPTIONS:
            hint = known_instead(name, _OPTIONS) or f"; there are {', '.join(_OPTIONS)} and overwrite"
            raise TypeError(f"There is no option {name!r} for a new array{hint}")
    given = {name: value for name, value in options.items() if value is not None or name == "codec"}
    for name in ("chunks", "shards"):
        if name in given:
            given[name] = tuple(map(index, given[name]))
    return NewArray(tuple(map(index, shape)), dtype_name(dtype), **given)


def dtype_name(kind: Any) -> str:
    """Return TensorStore's name of a data type given by any name or object that NumPy or fsstore knows."""
    try:
        return str(dtype_of(kind).name)
    except (TypeError, ValueError):
        pass  # NumPy may know it
    try:
        return str(dtype_of(np.dtype(kind)).name)
    except TypeError as error:
        raise TypeError(f"There is no data type {kind!r}; name one of NumPy or fsstore, such as float32") from error


def member_path(group: str, path: str) -> str:
    """Return the path of a member below the place; a slash before or behind it means nothing."""
    inner = path.strip("/")
    if not inner or any(part in ("", ".", "..") for part in inner.split("/")):
        raise StoreError(f"{quote(path)} is no path of a member; it is names with single slashes between them")
    return f"{group}/{inner}" if group else inner


def refusal(what: str) -> str:
    """Return the message for a change of what was opened for reading."""
    return f'The group was opened for reading and cannot {what}; open it with mode="r+"'


def stale(where: str, at: str) -> str:
    """Return the warning for consolidated metadata that are no longer true."""
    return (
        f"The consolidated metadata of {where} say something else about {quote(at)} than its own metadata, which are"
        " believed here; `consolidate()` renews them, or open the group with `consolidated=False`"
    )


def children(listed: Hierarchy) -> dict[str, Node | None]:
    """Return what is directly in a group, by name; a group without a document is there by what is in it."""
    found: dict[str, Node | None] = {}
    for path in (*listed.nodes, *listed.damaged):
        name, slash, _ = path.partition("/")
        if name and (not slash or name not in found):
            found[name] = None if slash else listed.nodes.get(path)
    return dict(sorted(found.items()))


async def exists(place: Place, at: str) -> bool:
    """Return whether there is an array or a group at a path, be it only by what is in it; chunks are neither, nor is
    what a scanned file holds and cannot be shown.
    """
    left_out = place.prefix.left_out()
    if any(f"{at}/".startswith(f"{path}/") for path in left_out):
        return False
    if (await place.look(at)).kind is not None:
        return True
    if await _array_above(place, at) is not None:
        return False
    return await _holds(place, place.below(at).documents(), is_document)


async def _occupied(place: Place, at: str) -> bool:
    """Return whether anything stands at a path, chunks that an array left behind included."""
    if (await place.look(at)).kind is not None:
        return True
    return await _holds(place, place.below(at).scan(), lambda _: True)


async def _holds(place: Place, listed: AsyncIterator[Sequence[Entry]], counts: Callable[[str], bool]) -> bool:
    """Return whether a listing has a key that counts; it has none where keys cannot be listed."""
    if not place.store.driver.features.listable:
        return False
    try:
        async for batch in listed:
            if any(counts(entry.key) for entry in batch):
                return True
    except NotFoundError:  # a file stands there, and nothing is below one
        pass
    return False


async def _array_above(place: Place, at: str) -> str | None:
    """Return the path of an array inside which a path lies, if there is one."""
    above = _parents(at)
    found = await execution.gather([place.look(path) for path in above])
    return next((path for path, each in zip(above, found, strict=True) if each.kind == "array"), None)


async def refuse_inside_array(place: Place, at: str) -> None:
    """Raise if a path lies inside an array: what looks like a member there is its chunks."""
    array = await _array_above(place, at)
    if array is not None:
        raise StoreError(f"{place.below(array).describe()} is an array, and nothing can be made inside one")


def _parents(path: str) -> list[str]:
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


async def missing(place: Place, at: str) -> str:
    """Return the message for a path where there is nothing: with the names that look like it."""
    message = f"There is no array or group at {place.below(at).describe()}"
    try:
        known = [path for path in (await place.listed()).nodes if path]
    except StoreError:  # what cannot be listed has no close names
        return message
    close = get_close_matches(at, known, n=3, cutoff=0.6)
    return message + (f"; did you mean {' or '.join(map(quote, close))}?" if close else "")


async def open_stored(place: Place, at: str, found: Found) -> TensorStore:
    """Return the array at a path, by the documents that were just read."""
    return await _opened(place, found.words, at, documents=found.answers)


async def _opened(place: Place, words: NodeWords, at: str, **wanted: Any) -> TensorStore:
    """Return the array at a path, opened over the store of the group, so that each sees what the other writes."""
    kind = registry.drivers.get(words.driver)
    assert kind is not None, "arrays of every format of groups have a driver"
    opening = opening_beneath(kind, place.store, place.below(at).path, place.context)
    opened = await kind.open(replace(opening, writable=place.writable, **wanted))
    return TensorStore._of(opened, readable=True, writable=place.writable)


async def create_array(place: Place, at: str, wanted: NewArray, *, overwrite: bool) -> TensorStore:
    """Create an array, and groups on the way; what is there is an error, or deleted with `overwrite`."""
    here, words = place.below(at), place.words
    metadata, beside = wanted.metadata(words), wanted.stored_attributes(words)
    await refuse_inside_array(place, at)
    if await _occupied(place, at):
        if not overwrite:
            raise AlreadyExistsError(
                f"There is something at {here.describe()} already; `overwrite=True` deletes it first"
            )
        await delete_tree(here)
    top = await make_groups(place, at.rpartition("/")[0], {})
    if beside:
        await here.write(words.attributes, words.with_attributes(None, beside, here.describe(words.attributes)))
    json = {"driver": words.driver, "dtype": wanted.dtype, "metadata": metadata}
    spec = apply_options(array_spec(json), {"create": True, "fill_value": wanted.fill_value})
    made = await _opened(place, words, at, members=spec.members, schema=spec.base_schema, mode=spec.mode)
    await renew(place.prefix, words, top or at)
    return made


async def create_group(place: Place, at: str, attributes: Mapping[str, Any]) -> None:
    """Create a group, and those on the way; what is there is an error."""
    await refuse_inside_array(place, at)
    if await _occupied(place, at):
        raise AlreadyExistsError(f"There is something at {place.below(at).describe()} already")
    top = await make_groups(place, at, attributes)
    await renew(place.prefix, place.words, top or at)


async def make_groups(place: Place, path: str, attributes: Mapping[str, Any]) -> str:
    """Make the groups on the way to a path, and one at the path, where there are none; return the outermost made."""
    top = ""
    for at in [*_parents(path), path] if path else []:
        if (await place.look(at)).kind is None:
            top = top or at
            own = attributes if at == path else {}
            for key, value in place.words.new_group(own).items():
                await place.below(at).write(key, value)
    return top
