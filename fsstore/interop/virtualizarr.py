"""Reference sets as virtual datasets of VirtualiZarr, and back.

    from fsstore.interop.virtualizarr import from_virtual, to_virtual

    vds = to_virtual(references.open("refs.json"))  # variables are ManifestArrays
    refs = from_virtual(vds)

Chunks are passed on as columns.  Variables that have a chunk by value, or that zarr v3 has no words for, are loaded, as
VirtualiZarr loads small ones.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from virtualizarr.manifests import ChunkManifest, ManifestArray
from xarray import Dataset, Variable, conventions, open_dataset
from zarr.core.metadata import ArrayV3Metadata

from fsstore.errors import StoreError
from fsstore.interop.virtual_chunks import document_v3, group_attributes, virtual_arrays
from fsstore.reference.mapping import References
from fsstore.reference.table.keys import grid_of
from fsstore.reference.table.refset import TableBuilder, TableSet
from fsstore.reference.table.set_state import State
from fsstore.reference.table.table import Rows
from fsstore.values.json_value import quote

_NO_URL = ""


def to_virtual(refs: References, group: str = "", *, load: tuple[str, ...] = ()) -> Dataset:
    """Return a group of a set as a virtual dataset.

    Coordinates of dimensions, variables in `load` and those that have chunks by value are loaded and decoded by xarray.
    """
    head = f"{group}/" if group else ""
    loaded = _loaded(refs, group)
    variables: dict[str, Any] = {}
    for path in refs.arrays:
        name = path.removeprefix(head)
        if path.startswith(head) and "/" not in name and name in loaded.variables:
            virtual = None if name in load or name in loaded.dims else _virtual(refs, path)
            variables[name] = loaded.variables[name] if virtual is None else virtual
    attributes = group_attributes(refs).get(group, {})
    coords = {name: each for name, each in variables.items() if name in loaded.coords}
    data = {name: each for name, each in variables.items() if name not in coords}
    return Dataset(data, coords, attributes)


def _loaded(refs: References, group: str) -> Dataset:
    from fsstore.references import store

    return open_dataset(store(refs), engine="fsstore", group=group or None)


def _virtual(refs: References, path: str) -> Variable | None:
    """Return a variable of manifests, or None where it cannot be one."""
    try:
        array = next(each for each in virtual_arrays(refs, path))
    except StoreError:
        return None
    if not array.is_virtual or array.grid.scalar:
        return None
    shape, rows = array.grid.shape, array.chunks.rows
    count = int(np.prod(shape))
    paths = np.full(count, _NO_URL, np.dtypes.StringDType())
    offsets, lengths = np.zeros(count, np.uint64), np.zeros(count, np.uint64)
    paths[array.number] = np.array(array.chunks.urls, np.dtypes.StringDType())[rows.url]
    offsets[array.number], lengths[array.number] = rows.offset, rows.length
    manifest = ChunkManifest.from_arrays(
        paths=paths.reshape(shape), offsets=offsets.reshape(shape), lengths=lengths.reshape(shape)
    )
    metadata = ArrayV3Metadata.from_dict(dict(array.document))
    data = ManifestArray(metadata=metadata, chunkmanifest=manifest)
    return data.to_virtual_variable()


def from_virtual(dataset: Dataset) -> References:
    """Return the reference set of a virtual dataset; variables that are loaded are held by value."""
    builder = TableBuilder()
    attributes = dict(dataset.attrs)
    plain = {name: each for name, each in dataset.variables.items() if not isinstance(each.data, ManifestArray)}
    names = [name for name in dataset.coords if name not in dataset.dims]
    if names:
        attributes["coordinates"] = " ".join(map(str, names))
    _document(builder, "zarr.json", {"zarr_format": 3, "node_type": "group", "attributes": attributes})
    for name, each in dataset.variables.items():
        if name not in plain:
            _put_manifest(builder, str(name), each)
    encoded, _ = conventions.cf_encoder(plain, {})
    for name, each in encoded.items():
        _put_values(builder, str(name), each)
    return References(State(TableSet(builder.finish())), "virtual dataset")


def _document(builder: TableBuilder, key: str, value: Any) -> None:
    builder.add_inline(key.encode(), json.dumps(value).encode())


def _put_manifest(builder: TableBuilder, name: str, variable: Variable) -> None:
    array = variable.data
    document = array.metadata.to_dict()
    document["attributes"] = dict(variable.attrs)
    document["dimension_names"] = list(map(str, variable.dims))
    document = json.loads(json.dumps(document, default=_as_json))
    document["chunk_key_encoding"] = {"name": "default", "configuration": {"separator": "/"}}
    _document(builder, f"{name}/zarr.json", document)
    grid = grid_of(name, document)
    assert grid is not None
    keys, places = [], []
    for key, entry in array.manifest.dict().items():
        if entry["path"] != _NO_URL:
            keys.append(grid.key([int(part) for part in key.split(".")]) if array.shape else f"{name}/c")
            places.append(entry)
    held = [entry for entry in places if "data" in entry]
    if held:
        raise StoreError(f"The variable {quote(name)} has chunks by value; load it")
    urls = builder.url_ids([str(entry["path"]).encode() for entry in places])
    rows = Rows(
        urls,
        np.array([int(entry["offset"]) for entry in places], np.int64),
        np.array([int(entry["length"]) for entry in places], np.int64),
    )
    builder.add_rows([key.encode() for key in keys], rows)


def _as_json(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)


def _put_values(builder: TableBuilder, name: str, variable: Variable) -> None:
    values = np.asarray(variable.data)
    if values.dtype.kind == "O":
        values = values.astype(str)
    values = np.array(values, values.dtype.newbyteorder("<"), order="C")
    attributes = json.loads(json.dumps(dict(variable.attrs), default=_as_json))
    plain = {
        "zarr_format": 2, "shape": list(values.shape), "chunks": [max(1, size) for size in values.shape],
        "dtype": values.dtype.str, "fill_value": None, "order": "C", "filters": None, "compressor": None,
    }  # fmt: skip
    labels = {"_ARRAY_DIMENSIONS": list(map(str, variable.dims))}
    _document(builder, f"{name}/zarr.json", document_v3(name, plain, {**attributes, **labels}))
    if values.size:
        key = "/".join([name, "c", *("0" for _ in values.shape)])
        builder.add_inline(key.encode(), values.tobytes())
