"""The arrays of a reference set as other libraries keep virtual chunks: documents of zarr v3, absolute URLs, lengths.

Documents of zarr v2 are said in the words of v3; codecs that v3 has no words of its own for have those of zarr-python
(`numcodecs.zlib`), so chunks stay as they are stored.
"""

from __future__ import annotations

import base64
import json
import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsstore.codec.numcodecs.numcodecs_v2 import PREFIX, find
from fsstore.driver.chunked import ZARR2
from fsstore.errors import StoreError, UnimplementedError
from fsstore.filesystem.view_document import codecs_v3
from fsstore.format.contract import WHOLE as WHOLE_ELEMENT
from fsstore.format.contract import decode_stored
from fsstore.format.stored_json import fill_to_v3
from fsstore.format.zarr3_document import older_type, stored_type
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.reference.mapping import References, absolute
from fsstore.reference.policy import is_relative
from fsstore.reference.table.keys import Grid, grid_of
from fsstore.reference.table.refset import Resolved
from fsstore.reference.table.table import INLINE, WHOLE, Rows
from fsstore.values.json_value import Json, quote

_LABELS, _MISSING = "_ARRAY_DIMENSIONS", "_FillValue"
_NO_TYPE = np.dtype("V1")


@dataclass(frozen=True, slots=True)
class VirtualArray:
    """One array: its document, its grid, and the chunks that are there by their numbers."""

    path: str
    document: Mapping[str, Any]
    grid: Grid
    number: np.ndarray[Any, Any]
    chunks: Resolved

    @property
    def places(self) -> np.ndarray[Any, Any]:
        """Where each chunk lies in the grid, one a row; no columns for a scalar."""
        if self.grid.scalar:
            return np.zeros((len(self.number), 0), np.int64)
        return np.stack(np.unravel_index(self.number, self.grid.shape), axis=1)

    @property
    def is_virtual(self) -> bool:
        """Whether no chunk is held by value."""
        return not (self.chunks.rows.url == INLINE).any()


def group_attributes(refs: References) -> dict[str, dict[str, Any]]:
    """Return the attributes of each group, by path."""
    out: dict[str, dict[str, Any]] = {}
    for path, name, found in _documents(refs):
        if name == ".zattrs" and f"{path}/.zarray".lstrip("/") not in refs:
            out[path] = _attributes(found, _NO_TYPE)
        elif name == ".zgroup":
            out.setdefault(path, {})
        elif name == "zarr.json" and found.get("node_type") == "group":
            out[path] = _attributes(found.get("attributes") or {}, _NO_TYPE)
    return out


def virtual_arrays(refs: References, only: str | None = None) -> Iterator[VirtualArray]:
    """Yield the arrays of a set, or `only` one; raises `StoreError` for what has no absolute URL, or no words in v3."""
    for path, name, found in list(_documents(refs, "" if only is None else only)):
        if only not in (None, path):
            continue
        if name == ".zarray":
            said = refs.get(f"{path}/.zattrs" if path else ".zattrs")
            attributes = json.loads(said) if isinstance(said, bytes) else {}
            document = document_v3(path, found, attributes)
        elif name == "zarr.json" and found.get("node_type") == "array":
            document = dict(found)
        else:
            continue
        yield _with_chunks(refs, path, document, grid_of(path, found))


def _documents(refs: References, prefix: str = "") -> Iterator[tuple[str, str, dict[str, Any]]]:
    for names, found in refs.batches(prefix):
        for position, key in enumerate(names):
            path, _, name = key.rpartition("/")
            value = found.value(position) if name in (".zarray", ".zattrs", ".zgroup", "zarr.json") else None
            if isinstance(value, bytes):
                yield path, name, json.loads(value)


def _with_chunks(refs: References, path: str, document: Mapping[str, Any], grid: Grid | None) -> VirtualArray:
    assert grid is not None
    head = f"{path}/" if path else ""
    numbers: list[int] = []
    parts: list[Rows] = []

    inline: list[bytes] = []
    known: dict[str, int] = {}
    for names, found in refs.batches(head):
        listed = [grid.number(name.removeprefix(head)) for name in names]
        at = np.array([position for position, number in enumerate(listed) if number is not None], np.int64)
        numbers += [number for number in listed if number is not None]
        rows = found.rows.take(at)
        url, offset = rows.url.copy(), rows.offset.copy()
        for each in np.unique(url[url >= 0]).tolist():
            text = _absolute(found.urls[each], refs.place)
            url[rows.url == each] = known.setdefault(text, len(known))
        for position in np.flatnonzero(url == INLINE).tolist():
            inline.append(bytes(found.inline[int(rows.offset[position])]))
            offset[position] = len(inline) - 1
        parts.append(Rows(url, offset, rows.length))
    urls = list(known)
    rows = Rows(*map(np.concatenate, zip(*parts, strict=True))) if parts else Rows.absent(0)
    whole = np.flatnonzero((rows.length == WHOLE) & (rows.url >= 0))
    if len(whole):
        raise StoreError(
            f"{quote(urls[int(rows.url[whole[0]])])} is a whole chunk of {quote(path)}, and the set has not its length"
        )
    return VirtualArray(path, document, grid, np.array(numbers, np.int64), Resolved(rows, urls, inline))


def _absolute(url: str, place: KvPrefix | None) -> str:
    if not is_relative(url):
        return "file://" + url if url.startswith("/") else url
    if place is None:
        raise StoreError(f"The target {quote(url)} is relative, and the set lies nowhere")
    return absolute(place, url)


def document_v3(path: str, document: Mapping[str, Any], attributes: dict[str, Any]) -> dict[str, Json]:
    """Return a document of zarr v2 in the words of v3."""
    array = decode_stored(ZARR2.format, json.dumps(document).encode(), {WHOLE_ELEMENT: True})
    names = attributes.pop(_LABELS, None)
    kind = older_type(stored_type(array.dtype))  # which zarr-python of every age knows
    native = array.dtype.numpy_dtype
    fill: Json = ""
    if native.kind != "O":
        plain = native.newbyteorder("=")
        fill = fill_to_v3(np.asarray(array.model.fill).astype(plain)[()], plain, kind.name)
    try:
        codecs = codecs_v3(document, native.newbyteorder("<")) or _named_codecs(document)
    except StoreError as error:
        raise error.within(f"The array {quote(path)} has no form in zarr v3") from error
    out: dict[str, Json] = {
        "zarr_format": 3, "node_type": "array", "shape": document["shape"], "data_type": kind.json,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": document["chunks"]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill, "codecs": codecs, "attributes": _attributes(attributes, native),
    }  # fmt: skip
    if isinstance(names, list) and len(names) == len(document["shape"]):
        out["dimension_names"] = names
    return out


def _attributes(attributes: Mapping[str, Any], native: np.dtype[Any]) -> dict[str, Json]:
    """Return attributes as JSON has them, which has no NaN; xarray writes a missing float in base64 in zarr v3."""
    out = {name: _without_nan(value) for name, value in attributes.items()}
    missing = attributes.get(_MISSING)
    if native.kind == "f" and isinstance(missing, int | float):
        out[_MISSING] = base64.standard_b64encode(struct.pack("<d", missing)).decode()
    return out


def _without_nan(value: Any) -> Json:
    if isinstance(value, list):
        return [_without_nan(each) for each in value]
    if isinstance(value, Mapping):
        return {name: _without_nan(each) for name, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    plain: Json = value
    return plain


def _named_codecs(document: Mapping[str, Any]) -> list[Json]:
    """Return the codecs of a document of zarr v2, by the names that zarr-python has for those of numcodecs."""
    kind, rank = document["dtype"], len(document["shape"])
    first: list[Json] = []
    packed: list[Json] = []
    last: list[Json] = []
    if document.get("order") == "F" and rank > 1:
        first.append({"name": "transpose", "configuration": {"order": list(range(rank))[::-1]}})
    listed = [*(document.get("filters") or []), *filter(None, [document.get("compressor")])]
    for each in listed:
        options = {name: value for name, value in each.items() if name != "id"}
        if each["id"] in ("vlen-utf8", "vlen-bytes"):
            packed.append({"name": each["id"]})
            continue
        factory = find(PREFIX + each["id"]) or find(each["id"])
        if factory is None or (factory.kind == "array_to_array" and (packed or last)):
            raise UnimplementedError(f"the codec {quote(each['id'])} has no place among those of zarr v3")
        entry: Json = {"name": factory.name, "configuration": options}
        {"array_to_array": first, "array_to_bytes": packed}.get(factory.kind, last).append(entry)
    if not packed:
        packed.append(_bytes(np.dtype(kind)))
    return [*first, *packed, *last]


def _bytes(stored: np.dtype[Any]) -> Json:
    if stored.itemsize == 1 or stored.kind in "SV":
        return {"name": "bytes"}
    swapped = stored.newbyteorder("<") != stored
    return {"name": "bytes", "configuration": {"endian": "big" if swapped else "little"}}
