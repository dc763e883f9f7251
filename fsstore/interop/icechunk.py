"""A reference set written to an Icechunk repository: each reference a virtual chunk, what is inline a chunk of its own.

    from fsstore.interop.icechunk import write_virtual

    session = repository.writable_session("main")
    write_virtual(references.open("refs.json"), session.store)
    session.commit("the files of 2024")

The repository says which places virtual chunks may lie in, by its containers.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import numpy as np
from icechunk import VirtualChunkSpec

from fsstore.errors import StoreError
from fsstore.interop.virtual_chunks import VirtualArray, group_attributes, virtual_arrays
from fsstore.kvstore.kv_store import KvStore
from fsstore.reference.mapping import References
from fsstore.reference.table.table import INLINE
from fsstore.runtime.tuning import ROWS_AT_ONCE
from fsstore.values.json_value import quote


def write_virtual(refs: References, store: Any, group: str = "", *, last_updated_at: datetime | None = None) -> None:
    """Write a set into a group of the store of a writable session, which is not committed.

    Existing arrays and groups are replaced.  With `last_updated_at` a reader refuses files that changed later.
    Raises `StoreError` for URLs that no container of the repository holds.
    """
    kvstore = KvStore.open(store).result()
    group = group.strip("/")
    head = f"{group}/" if group else ""
    arrays = list(virtual_arrays(refs))
    _make_parents(kvstore, group)
    groups: dict[str, Any] = {} if any(not each.path for each in arrays) else {"": {}}
    for each in arrays:  # sets may leave out the documents of groups
        parts = each.path.split("/")[:-1]
        groups.update({"/".join(parts[: at + 1]): {} for at in range(len(parts))})
    for path, attributes in {**groups, **group_attributes(refs)}.items():
        document = {"zarr_format": 3, "node_type": "group", "attributes": attributes}
        kvstore.write(_key(head + path, "zarr.json"), json.dumps(document).encode()).result()
    for each in arrays:
        _write(each, head + each.path, (kvstore, store), last_updated_at)


def _make_parents(kvstore: KvStore, group: str) -> None:
    parts = group.split("/")
    for path in ("/".join(parts[:at]) for at in range(len(parts))):
        if kvstore.read(_key(path, "zarr.json")).result().state == "missing":
            document = {"zarr_format": 3, "node_type": "group", "attributes": {}}
            kvstore.write(_key(path, "zarr.json"), json.dumps(document).encode()).result()


def _key(path: str, name: str) -> str:
    return f"{path.strip('/')}/{name}" if path.strip("/") else name


def _write(array: VirtualArray, path: str, stores: tuple[KvStore, Any], last_updated_at: datetime | None) -> None:
    kvstore, store = stores
    document = {**array.document, "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}}
    kvstore.write(_key(path, "zarr.json"), json.dumps(document).encode()).result()
    rows, urls, inline = array.chunks
    places = array.places
    for at in np.flatnonzero(rows.url == INLINE).tolist():
        key = "/".join(["c", *map(str, places[at].tolist())])
        kvstore.write(_key(path, key), inline[int(rows.offset[at])]).result()
    there = np.flatnonzero(rows.url >= 0).tolist()
    for start in range(0, len(there), ROWS_AT_ONCE):
        chunks = [
            VirtualChunkSpec(
                places[at].tolist(), urls[int(rows.url[at])], int(rows.offset[at]), int(rows.length[at]),
                last_updated_at_checksum=last_updated_at,
            )
            for at in there[start : start + ROWS_AT_ONCE]
        ]  # fmt: skip
        refused = store.set_virtual_refs(path.strip("/"), chunks, validate_containers=True)
        if refused:
            url = next(each.location for each in chunks if tuple(each.index) == tuple(refused[0]))
            raise StoreError(
                f"No virtual chunk container of the repository holds {quote(url)}, a chunk of {quote(array.path)}; "
                "add one to its configuration"
            )
