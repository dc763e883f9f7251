"""A group of arrays, opened for tools that show groups: the metadata of all at once, values when asked for.

It finds its way into archives, databases and reference sets, reads the documents of the hierarchy in one batch, and
opens an array when it is first read.  Which tool shows the group it does not know.
"""

from __future__ import annotations

import warnings
from collections.abc import Coroutine, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from fsstore.arrays.store import TensorStore
from fsstore.context.context import Context, context_of
from fsstore.dataset.group import Group
from fsstore.dataset.source import store_spec
from fsstore.discover.hierarchy import Node, hierarchy
from fsstore.driver.auto import enter_group
from fsstore.driver.chunked import ZARR2, ZARR3
from fsstore.driver.contract import opening_beneath
from fsstore.errors import NotFoundError, StoreError
from fsstore.format.contract import ChunkedArray, decode_stored
from fsstore.format.field import WHOLE
from fsstore.kvstore.contract.driver import UNKNOWN, ReadResult, now
from fsstore.kvstore.spec.opening import OpenKv, open_kv, opening_waits
from fsstore.kvstore.spec.spec_value import KvSpecValue
from fsstore.runtime import execution, fork
from fsstore.runtime.future import Future
from fsstore.values.json_value import dumps, quote
from fsstore.view.driver import OF_THE_STORE

__all__ = ["GroupArray", "OpenGroup", "open_group"]


class GroupArray:
    """An array of a group: what its metadata says, and its values."""

    def __init__(self, group: OpenGroup, node: Node) -> None:
        self._group, self._node = group, node
        self._lock = fork.lock()
        self._store: TensorStore | None = None
        self._ahead: Future[Any] | None = None
        self._kind = ZARR2 if node.zarr_format == 2 else ZARR3
        try:
            found = group.decoded(self._kind, dumps(dict(node.document), allow_nan=True))
        except StoreError as error:
            raise group._unusable(node.path, error) from error
        self._describe(found)

    def _describe(self, found: ChunkedArray) -> None:
        self.shape, self.dtype = found.shape, found.dtype.numpy_dtype
        self.chunks: tuple[int, ...] = tuple(found.read_chunk)
        self.fill_value: Any = None if found.fill_value is None else found.fill_value[()]

    @property
    def zarr_format(self) -> int:
        """The zarr version of the array."""
        return self._node.zarr_format

    @property
    def attributes(self) -> Mapping[str, Any]:
        """The attributes of the array."""
        return self._node.attributes

    @property
    def dimensions(self) -> list[str] | None:
        """The names of the dimensions, if the metadata gives one to each."""
        names = self._node.document.get("dimension_names")
        return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else None

    def read(self, key: tuple[Any, ...]) -> Any:
        """Return the values at a tuple of positions, slices, and lists of positions taken together by dimension."""
        return self.store.oindex[key].read().result()

    def read_ahead(self) -> None:
        """Begin to read all of the array, which is small, and keep it for those who ask."""
        if self._ahead is None:
            self._ahead = self.store.read()

    @property
    def ahead(self) -> Future[Any] | None:
        """The reading of all values, if it was begun."""
        return self._ahead

    async def read_waiting(self, key: tuple[Any, ...]) -> Any:
        """Return the same values while the event loop of the caller goes on."""
        if self._store is None:
            await execution.start(execution.offload(lambda: self.store))
        return await self.store.oindex[key].read()

    @property
    def store(self) -> TensorStore:
        """The array, opened on first use."""
        if self._store is None:
            with self._lock:
                if self._store is None:
                    self._store = self._group.open_array(self._kind, self._node)
        return self._store

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the group and the path."""
        return _array_of, (self._group, self._node)


def _array_of(group: OpenGroup, node: Node) -> GroupArray:
    return GroupArray(group, node)


def _documents(node: Node) -> dict[str, ReadResult]:
    """Return the documents of an array as if they had just been read."""
    found = {"zarr.json": node.document}
    if node.zarr_format == 2:
        found = {".zarray": node.document, ".zattrs": node.attributes}
    return {
        key: ReadResult("value", dumps(dict(value), allow_nan=True).encode(), UNKNOWN, now())
        for key, value in found.items()
    }


@dataclass
class OpenGroup:
    """The hierarchy below a place.  Pickled by its spec; the nodes travel along."""

    spec: KvSpecValue
    nodes: Mapping[str, Node]
    damaged: Mapping[str, StoreError]
    described: str
    kind: str
    """The kind of store it is in."""
    _place: OpenKv | None = None
    _decoded: dict[tuple[int, str], ChunkedArray] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open store behind."""
        return {**self.__dict__, "_place": None, "_decoded": {}}

    def decoded(self, kind: Any, document: str) -> ChunkedArray:
        """Return what metadata say; of variables with equal metadata, which are many, it is found out once."""
        key = (id(kind), document)
        found = self._decoded.get(key)
        if found is None:
            found = self._decoded[key] = decode_stored(kind.format, document.encode(), {WHOLE: True})
        return found

    @property
    def place(self) -> OpenKv:
        """The open store."""
        if self._place is None:
            self._place = execution.call(open_kv(self.spec, Context()))
        return self._place

    @property
    def groups(self) -> list[str]:
        """The paths of the groups; the root is one even without a document."""
        named = {path for path, node in self.nodes.items() if node.kind == "group"}
        above = {path.rpartition("/")[0] for path in (*self.nodes, *self.damaged) if path}
        return sorted(named | above | {""})

    def arrays(self, path: str, leave_out: Set[str] = frozenset()) -> Iterator[tuple[str, GroupArray]]:
        """Yield the names and arrays that are directly in a group, but for those to be left out.

        One whose metadata cannot be understood is left out with a warning that names it.  Raises where the storage
        fails, and where there is no other array: nothing is no part of what is stored.
        """
        if path not in self.groups:
            raise NotFoundError(f"There is no group {quote(path)} in {self.described}")
        wrong = {at: self._unusable(at, error) for at, error in self.damaged.items()}
        found: dict[str, GroupArray] = {}
        for node in self.nodes.values():
            parent, _, name = node.path.rpartition("/")
            if node.kind == "array" and name and parent == path and name not in leave_out:
                try:
                    found[name] = GroupArray(self, node)
                except StoreError as error:
                    wrong[node.path] = error
        for at, why in wrong.items():
            parent, _, name = at.rpartition("/")
            if parent != path or name in leave_out:
                continue
            if not found or isinstance(why, OF_THE_STORE):
                raise why
            warnings.warn(f"{quote(at)} is left out: {why.message}", stacklevel=2)
        yield from found.items()

    def _unusable(self, at: str, error: StoreError) -> StoreError:
        return error.within(f"The array {quote(at)} in {self.described} cannot be opened")

    def attributes(self, path: str) -> Mapping[str, Any]:
        """Return the attributes of a group."""
        node = self.nodes.get(path)
        return {} if node is None else node.attributes

    def open_array(self, kind: Any, node: Node) -> TensorStore:
        """Return the array of a node, by the metadata that are at hand."""
        place = self.place
        context = place.spec.bound_context or Context()
        path, known = place.path + node.prefix, _documents(node)
        members = {WHOLE: True, "recheck_cached_data": "open"}  # to xarray a dataset does not change
        opening = opening_beneath(kind, place, path, context, members=members, documents=known)
        opened = execution.call(kind.open(opening), waits=place.driver.features.waits)
        return TensorStore._of(opened, readable=True, writable=False)


def open_group(
    source: Any, context: Any = None, *, consolidated: bool = True, storage_options: Any = None
) -> OpenGroup:
    """Return the group that a place or an open object holds; formats around it are detected.

    That is a URL, a spec, a `Group`, `References`, a `KvStore` or a live object.

    A dictionary that is neither a spec nor holds values is the JSON of a reference set.
    """
    if isinstance(source, Group):
        source = source.kvstore
    spec = store_spec(source, storage_options)

    def begin() -> Coroutine[Any, Any, OpenGroup]:
        return _open(spec, context_of(context), consolidated=consolidated)

    waits = opening_waits(spec, scans=True)
    return (execution.start(begin()) if waits else execution.start_here(begin)).result()


async def _open(spec: KvSpecValue, context: Context, *, consolidated: bool) -> OpenGroup:
    place, known = await enter_group(await open_kv(spec, context), context)
    found = await hierarchy(place.prefix, consolidated=consolidated, known=known.answers)
    nodes = {
        path: node for path, node in found.nodes.items() if node.zarr_format
    }  # N5 does not name its dimensions
    described = place.prefix.describe()
    if not nodes and not found.damaged:
        raise NotFoundError(f"There are no arrays or groups in {described}")
    if "" in nodes and nodes[""].kind == "array":
        raise StoreError(f"{described} is an array and no group of arrays; `fsstore.open` opens it")
    bound = place.spec.replace(_path=place.path)
    return OpenGroup(bound, nodes, found.damaged, described, place.driver.id, place)
