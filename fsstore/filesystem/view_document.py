"""An array as documents and chunks of zarr: metadata, codecs and the bytes of each chunk."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fsstore.chunk.model import ChunkModel, KeyEncoding
from fsstore.codec.buffers import missing_element
from fsstore.codec.contract import ChunkSpec
from fsstore.codec.zarr3 import VlenBytesCodec, VlenUtf8Codec
from fsstore.driver.chunked_array import ChunkedDriver
from fsstore.driver.contract import Array, ArrayDriver
from fsstore.errors import StoreError
from fsstore.format.attributes import MARK, fill_marks, in_zarr3, mark_of
from fsstore.format.stored_json import fill_to_v2, fill_to_v3
from fsstore.format.zarr2 import dtype_json
from fsstore.format.zarr3_document import octet_type, older_type, stored_type
from fsstore.index.transform import IndexTransform, identity
from fsstore.kvstore.contract.driver import Buffer, Entry
from fsstore.kvstore.contract.request import KeyRange, key_bytes, prefix_end
from fsstore.values.json_value import Json

# How chunks are encoded, said in the words of the other version of zarr, where both have the words.

_SHUFFLES = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}


def codecs_v3(metadata: Mapping[str, Any], native: np.dtype[Any]) -> list[Json] | None:
    """Return the codecs of zarr v3 that a v2 document with elements of `native` amounts to, or None."""
    if metadata.get("filters") or native.kind not in "biufc":
        return None
    compressor = _compressor_v3(metadata["compressor"], native)
    if compressor is None:
        return None
    rank = len(metadata["shape"])
    transposed = metadata["order"] == "F" and rank > 1
    order: Json = list(range(rank))[::-1]
    first: list[Json] = [{"name": "transpose", "configuration": {"order": order}}] if transposed else []
    return [*first, _endian(np.dtype(metadata["dtype"])), *compressor]


def _endian(stored: np.dtype[Any]) -> Json:
    if stored.itemsize == 1:
        return {"name": "bytes"}
    swapped = stored.newbyteorder("<") != stored
    return {"name": "bytes", "configuration": {"endian": "big" if swapped else "little"}}


def _compressor_v3(compressor: Mapping[str, Any] | None, native: np.dtype[Any]) -> list[Json] | None:
    if compressor is None:
        return []
    name = compressor["id"]
    if name == "gzip":
        return [{"name": "gzip", "configuration": {"level": compressor["level"]}}]
    if name == "zstd":
        checksum = bool(compressor.get("checksum", False))
        return [{"name": "zstd", "configuration": {"level": compressor["level"], "checksum": checksum}}]
    if name != "blosc":
        return None
    shuffle = compressor["shuffle"]
    if shuffle == -1:  # chosen by the size of the elements
        shuffle = 2 if native.itemsize == 1 else 1
    options = {name: compressor[name] for name in ("cname", "clevel", "blocksize")}
    typesize = compressor.get("typesize") or native.itemsize
    return [{"name": "blosc", "configuration": {**options, "shuffle": _SHUFFLES[shuffle], "typesize": typesize}}]


def pipeline_v2(codecs: Sequence[Mapping[str, Any]], native: np.dtype[Any]) -> dict[str, Json] | None:
    """Return `dtype`, `order` and `compressor` of zarr v2 that codecs of v3 amount to, or None."""
    if native.kind not in "biufc":
        return None
    order, rest = "C", list(codecs)
    if rest and rest[0]["name"] == "transpose":
        axes = list(rest.pop(0)["configuration"]["order"])
        if axes != list(range(len(axes)))[::-1]:
            return None
        order = "F"
    if not rest or rest[0]["name"] != "bytes" or len(rest) > 2:
        return None
    compressor = _compressor_v2(rest[1]) if len(rest) == 2 else {}
    if compressor is None:
        return None
    big = (rest[0].get("configuration") or {}).get("endian") == "big"
    return {"dtype": native.newbyteorder(">" if big else "<").str, "order": order, "compressor": compressor or None}


def _compressor_v2(codec: Mapping[str, Any]) -> dict[str, Json] | None:
    options = codec.get("configuration") or {}
    if codec["name"] in ("gzip", "zstd"):
        return {"id": codec["name"], "level": options["level"]}
    if codec["name"] != "blosc":
        return None
    shuffle = next(number for number, name in _SHUFFLES.items() if name == options["shuffle"])
    kept = {name: options[name] for name in ("cname", "clevel", "blocksize")}
    return {"id": "blosc", **kept, "shuffle": shuffle}


# The presentation of one array as zarr: its metadata documents, and the keys of its chunks.

_LABELS = "_ARRAY_DIMENSIONS"
_LARGEST_WHOLE = 2**24  # elements of a chunk of an array whose format has no chunks


@dataclass(frozen=True, slots=True)
class Presented:
    """An array shown as zarr: its documents by name, and its grid."""

    zarr_format: int
    documents: Mapping[str, Json]
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    native: np.dtype[Any]
    fill: Any
    codec: Any = None
    mark: Any = None
    """The value that marks missing data, if there is one."""
    model: ChunkModel | None = None
    """How the chunks are stored, if those shown are those stored."""
    encoding: Mapping[str, Json] | None = None
    """The members of the document that say how they are encoded, if they are shown as they are stored."""

    @property
    def verbatim(self) -> bool:
        """Whether chunks are shown as they are stored."""
        return self.encoding is not None

    @property
    def grid(self) -> tuple[int, ...]:
        """How many chunks there are along each dimension."""
        return tuple(-(-size // step) for size, step in zip(self.shape, self.chunk, strict=True))

    @property
    def keys(self) -> KeyEncoding:
        """How the keys of chunks are written: as each version does by default."""
        return KeyEncoding("c", "/", "c") if self.zarr_format == 3 else KeyEncoding()

    def position(self, name: str) -> tuple[int, ...] | None:
        """Return which chunk a key below the array names, or None."""
        numbers = self.keys.numbers(name, len(self.shape))
        if numbers is None or any(number >= count for number, count in zip(numbers, self.grid, strict=True)):
            return None
        return numbers

    @property
    def chunk_size(self) -> int | None:
        """How many bytes each chunk has as it is shown, if that is the same for all."""
        same = self.codec is None and not self.verbatim
        return math.prod(self.chunk) * self.native.itemsize if same else None

    def entries(self, prefix: str, keys: KeyRange) -> Iterator[Entry]:
        """Yield the keys of all chunks that lie in a range, in byte order."""
        encoding, size = self.keys, self.chunk_size
        first = key_bytes(prefix + encoding.lead)
        last = prefix_end(first)
        if (last and keys.inclusive_min >= last) or (keys.exclusive_max and first >= keys.exclusive_max):
            return
        columns = [
            encoding.parts(sorted(range(count), key=str), dimension=axis) for axis, count in enumerate(self.grid)
        ]
        for parts in itertools.product(*columns):
            key = prefix + ("".join(parts) or encoding.scalar)
            if keys.contains(key):
                yield Entry(key, size)


def _chunk_shape(driver: ArrayDriver, shape: tuple[int, ...]) -> tuple[int, ...]:
    layout = driver.schema().chunk_layout
    wanted = layout.read_chunk.shape
    chunk = []
    for axis, size in enumerate(shape):
        step = int(wanted[axis] or 0) if wanted is not None else 0
        chunk.append(step if step > 0 else max(1, size))
    if wanted is None and math.prod(chunk) > _LARGEST_WHOLE:
        chunk = [1] * (len(chunk) - 2) + chunk[-2:]
    return tuple(chunk)


def present(driver: ArrayDriver, attributes: Mapping[str, Any], zarr_format: int, store: str) -> Presented:
    """Return an open array in a store of a kind as zarr of a format.

    Raises `StoreError` for elements that the format has not.
    """
    domain = driver.domain()
    if any(domain.origin):
        raise StoreError("the array does not begin at the origin")
    shape = tuple(domain.shape)
    chunk = _chunk_shape(driver, shape)
    stored = octet_type(driver.dtype.name) or older_type(stored_type(driver.dtype))
    native = stored.native
    fill = driver.schema().fill_value
    codec: Any = None
    if native.kind == "O":
        maker = VlenUtf8Codec if stored.json == "string" else VlenBytesCodec
        plain: Any = "" if stored.json == "string" else b""
        fill = plain if fill is None else np.asarray(fill).item()
        codec = maker().bind(ChunkSpec(native, chunk, fill))
    else:
        native = native.newbyteorder("<")
        fill = missing_element(native, None) if fill is None else np.asarray(fill, native)[()]
    labels = [label or None for label in domain.labels]
    metadata = driver.members().get("metadata", {})
    attributes = dict(attributes) or dict(metadata.get("attributes") or {})
    mark = mark_of(attributes, native, metadata.get("zarr_format"))
    if metadata.get("zarr_format") == 2 and metadata.get("fill_value") is not None and fill_marks(store, fill):
        mark = fill
    build = _v3 if zarr_format == 3 else _v2
    model = _model(driver, chunk)
    encoding = None if model is None else _encoding(driver, native, zarr_format)
    shown = Presented(zarr_format, {}, shape, chunk, native, fill, codec, mark, model, encoding)
    return replace(shown, documents=build(shown, stored, labels, attributes))


def _model(driver: ArrayDriver, chunk: tuple[int, ...]) -> ChunkModel | None:
    """Return how chunks are stored if those shown are those stored: of one shape, and not parts of shards."""
    if not isinstance(driver, ChunkedDriver):
        return None
    array = driver.array
    model = array.model
    irregular = model.bind is not None or model.component is not None or array.fixed
    return None if irregular or array.write_chunk != chunk else model


def _encoding(driver: ArrayDriver, native: np.dtype[Any], zarr_format: int) -> Mapping[str, Json] | None:
    """Return the members that say how chunks are encoded in the words of a version of zarr, or None."""
    metadata = driver.members()["metadata"]
    stored = metadata.get("zarr_format")
    if stored == 2 and zarr_format == 3:
        codecs = codecs_v3(metadata, native)
        return None if codecs is None else {"codecs": codecs}
    if stored == 3 and zarr_format == 2:
        return pipeline_v2(metadata["codecs"], native)
    return None


def _is_opaque(native: np.dtype[Any]) -> bool:
    """Return whether elements are bytes without an order; those of ml_dtypes have one, whatever their `kind` says."""
    return native.kind == "S" or (native.type is np.void and native.fields is None)


def _dimension_names(attributes: dict[str, Any], labels: list[str | None]) -> list[str | None]:
    """Take the names of dimensions from attributes of zarr v2, or from the labels."""
    named = attributes.get(_LABELS)
    if isinstance(named, list) and len(named) == len(labels) and all(isinstance(each, str) for each in named):
        del attributes[_LABELS]
        return [each or None for each in named]
    return labels


def _v3(shown: Presented, stored: Any, labels: list[str | None], attributes: dict[str, Any]) -> dict[str, Json]:
    names = _dimension_names(attributes, labels)
    name = stored.name
    codecs: list[Json] = [{"name": "bytes"}]
    if shown.codec is not None:
        codecs = [{"name": "vlen-utf8" if name == "string" else "vlen-bytes"}]
        fill: Json = shown.fill if isinstance(shown.fill, str) else ""
    else:
        fill = fill_to_v3(shown.fill, shown.native.newbyteorder("="), name)
        if shown.native.itemsize > 1 and not _is_opaque(shown.native):
            codecs = [{"name": "bytes", "configuration": {"endian": "little"}}]
    if shown.mark is not None:
        attributes.pop(MARK, None)
        mark = in_zarr3(shown.mark, shown.native)
        attributes |= {} if mark is None else {MARK: mark}
    document: dict[str, Json] = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shown.shape),
        "data_type": stored.json,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(shown.chunk)}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill,
        "codecs": codecs,
        "attributes": attributes,
        **(shown.encoding or {}),
    }
    if any(names):
        document["dimension_names"] = names
    return {"zarr.json": document}


def _v2(shown: Presented, stored: Any, labels: list[str | None], attributes: dict[str, Any]) -> dict[str, Json]:
    attributes.pop(MARK, None)
    if shown.codec is not None:
        fill: Json = shown.mark if isinstance(shown.mark, str) else None
        filters: Json = [{"id": "vlen-utf8" if stored.json == "string" else "vlen-bytes"}]
        kind: Json = "|O"
    else:
        fill = None if shown.mark is None else fill_to_v2(shown.mark, shown.native)
        filters, kind = None, dtype_json(shown.native)
    if (any(labels) or not labels) and _LABELS not in attributes:  # xarray wants them of scalars too
        attributes[_LABELS] = [label or f"dim_{axis}" for axis, label in enumerate(labels)]
    document: dict[str, Json] = {
        "zarr_format": 2,
        "shape": list(shown.shape),
        "chunks": list(shown.chunk),
        "dtype": kind,
        "compressor": None,
        "filters": filters,
        "fill_value": fill,
        "order": "C",
        "dimension_separator": ".",
        **(shown.encoding or {}),
    }
    return {".zarray": document, ".zattrs": attributes}


def group_documents(
    groups: Mapping[str, Mapping[str, Any]], arrays: Mapping[str, Json], zarr_format: int
) -> dict[str, Json]:
    """Return all documents by key, with those of groups, and consolidated in the root."""
    documents = dict(arrays)
    for path, attributes in groups.items():
        prefix = f"{path}/" if path else ""
        if zarr_format == 2:
            documents[f"{prefix}.zgroup"] = {"zarr_format": 2}
            documents[f"{prefix}.zattrs"] = dict(attributes)
        else:
            documents[f"{prefix}zarr.json"] = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes)}
    if "" not in groups:
        return documents
    if zarr_format == 2:
        documents[".zmetadata"] = {"zarr_consolidated_format": 1, "metadata": dict(documents)}
        return documents
    inner = {key.removesuffix("/zarr.json"): value for key, value in documents.items() if key != "zarr.json"}
    root = dict(documents["zarr.json"])  # type: ignore[arg-type]  # a group's document is an object
    consolidated = {"kind": "inline", "must_understand": False, "metadata": inner}
    documents["zarr.json"] = {**root, "consolidated_metadata": consolidated}
    return documents


def recoded(shown: Presented, data: Buffer) -> bytes:
    """Return a stored chunk as it is shown; raises `StoreError` if it is damaged."""
    assert shown.model is not None
    return _plain(shown, shown.model.chain.decode(data))


def absent(shown: Presented) -> bytes:
    """Return a chunk that is not stored as it is shown."""
    if shown.verbatim:
        assert shown.model is not None
        chain = shown.model.chain
        return bytes(chain.encode(np.full(chain.chunk.shape, shown.fill, chain.chunk.dtype)))
    return _plain(shown, np.full(shown.chunk, shown.fill, shown.native))


async def read_through(shown: Presented, driver: ArrayDriver, position: tuple[int, ...]) -> bytes:
    """Return a chunk as it is shown, read by the array's driver."""
    region = tuple(
        slice(number * step, min((number + 1) * step, size))
        for number, step, size in zip(position, shown.chunk, shown.shape, strict=True)
    )
    transform: IndexTransform = identity(driver.domain())
    view = transform.translate_to[(0,) * len(shown.shape)][region] if region else transform
    return _plain(shown, np.asarray(await driver.read(view)))


def _plain(shown: Presented, values: Array) -> bytes:
    """Return values encoded plainly, padded to a whole chunk."""
    if values.shape != shown.chunk:
        whole = np.full(shown.chunk, shown.fill, values.dtype)
        whole[tuple(slice(size) for size in values.shape)] = values
        values = whole
    if shown.codec is not None:
        return bytes(shown.codec.encode(values))
    plain: Array = np.ascontiguousarray(values, shown.native)
    return plain.tobytes()
