"""`Group`: the arrays and groups below a place, as people open, list, make and delete them.

A group reads its own documents when it is opened.  Members are opened when they are asked for; listings believe
consolidated metadata where they are, and read all documents otherwise.  Changes made through a group are also made in
the consolidated metadata above it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from operator import index
from typing import Any, TypeVar

from fsstore.arrays.spec_parse import like
from fsstore.arrays.store import TensorStore
from fsstore.arrays.store import open as open_array
from fsstore.context.context import Context, caching
from fsstore.dataset.listing import described, tree_html, tree_text
from fsstore.dataset.members import (
    NewArray,
    children,
    create_array,
    create_group,
    exists,
    member_path,
    missing,
    new_array,
    open_stored,
    refusal,
    stale,
)
from fsstore.dataset.place import Found, Place, consolidate, open_place, renew, renew_attributes, store_spec
from fsstore.driver.attributes import Attributes
from fsstore.driver.auto import Hierarchy, Node
from fsstore.errors import FailedPreconditionError, NotFoundError, StoreError
from fsstore.format.attributes import ARRAY_DIMENSIONS, WORDS
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.spec_parse import open_kv
from fsstore.redaction import plain
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.values.json_value import quote
from fsstore.values.registry import door

# Resizing the arrays of a group along named dimensions, in one step for readers of consolidated metadata.


def dimension_names(node: Node) -> list[str | None]:
    """Return the names that an array gives its dimensions; an empty list where it gives none."""
    names = node.document.get("dimension_names") if node.zarr_format == 3 else None
    if names is None:
        names = node.attributes.get(ARRAY_DIMENSIONS if node.zarr_format else "axes")
    if not isinstance(names, list):
        return []
    return [name if isinstance(name, str) else None for name in names]


async def resize_arrays(place: Place, path: str, sizes: Mapping[str, int]) -> None:
    """Resize all arrays at and below a path along named dimensions; those without the names stay as they are.

    Raises if no array has one of the names, before anything is changed.
    """
    wanted = {name: index(size) for name, size in sizes.items()}
    nodes = [node for node in (await place.listed(path)).nodes.values() if node.kind == "array"]
    known = {name for node in nodes for name in dimension_names(node) if name is not None}
    for name in wanted:
        if name not in known:
            listed = ", ".join(sorted(known)) or "none"
            raise NotFoundError(
                f"No array below {place.below(path).describe()} has a dimension {quote(name)}; there are {listed}"
            )
    changing = [node for node in nodes if set(dimension_names(node)) & set(wanted)]
    await execution.gather([_resize(place, path, node, wanted) for node in changing])
    for node in changing:
        at = "/".join(part for part in (path, node.path) if part)
        await renew(place.prefix, place.words, at)


async def _resize(place: Place, path: str, node: Node, sizes: Mapping[str, int]) -> None:
    at = place.below("/".join(part for part in (path, node.path) if part)).path
    spec: Any = {"driver": WORDS[node.zarr_format].driver, "kvstore": place.store.at(at).effective_spec()}
    store = await open_array(spec, context=place.context)
    stops = [sizes.get(name) if name is not None else None for name in dimension_names(node)]
    stops += [None] * (store.rank - len(stops))
    await store.resize(exclusive_max=stops)


T = TypeVar("T")
_MODES = ("r", "r+", "a", "w", "w-")


class Group:
    """A group of arrays and groups.  Made by `open_group`; usable from any thread.

    >>> group = open_group("memory://", mode="a").result()
    >>> temperature = group.create_array("ocean/temperature", shape=[4, 3], dtype="float32").result()
    >>> temperature[0] = 15
    >>> list(group)
    ['ocean']
    >>> group["ocean/temperature"][0].read().result()
    array([15., 15., 15.], dtype=float32)
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__", "_attrs", "_path", "_place")

    _attrs: Attributes
    _place: Place
    _path: str

    def __init__(self) -> None:
        raise TypeError("Group has no constructor; open_group() returns a future of one")

    @classmethod
    def _of(cls, place: Place, path: str, found: Found) -> Group:
        self = object.__new__(cls)
        self._place, self._path = place, path
        self._attrs = Attributes(
            place.below(path),
            found.words,
            known=found.attributes,
            changed=partial(renew_attributes, place.prefix, place.words, path),
            refusal="" if place.writable else refusal("change its attributes"),
        )
        return self

    # --- what it is

    @property
    def path(self) -> str:
        """The path below the place that was opened; empty for the root."""
        return self._path

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self._path.rpartition("/")[2]

    @property
    def attrs(self) -> Attributes:
        """The attributes, as a mapping that writes what is assigned."""
        return self._attrs

    @property
    def zarr_format(self) -> int:
        """The version of zarr in which members are created: 2 or 3; 0 for N5."""
        return self._place.words.zarr_format

    @property
    def is_written(self) -> bool:
        """Whether it has metadata of its own; a directory with arrays below is a group too."""
        return execution.call(self._place.look(self._path)).kind is not None

    @property
    def kvstore(self) -> Any:
        """The key-value store, at the path of the group."""
        return KvStore.of(self._place.store.at(self._place.below(self._path).path))

    # --- members

    def open(self, path: str) -> Future[Any]:
        """Begin to open a member: an array as a `TensorStore`, a group as a `Group`."""
        at = member_path(self._path, path)
        return _begin(lambda: self._open(at))

    def __getitem__(self, path: str) -> Any:
        """Return a member, opened; raise `KeyError` if there is none."""
        if not isinstance(path, str):
            raise TypeError(f"A member of a group is named by text, not {type(path).__name__}; index the arrays in it")
        try:
            return self.open(path).result()
        except NotFoundError as error:
            raise KeyError(error.message) from None

    def __setitem__(self, path: str, data: Any) -> None:
        """Create an array with values, and wait for it; raise `AlreadyExistsError` if something is at the path."""
        self.create_array(path, data=data).result()

    def __contains__(self, path: object) -> bool:
        """Return whether there is an array or a group at a path."""
        if not isinstance(path, str):
            return False
        return execution.call(exists(self._place, member_path(self._path, path)))

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the members, sorted."""
        return iter(self.keys())

    def __len__(self) -> int:
        """Return how many members there are."""
        return len(self.keys())

    def keys(self) -> list[str]:
        """Return the names of the members, sorted."""
        return list(children(self._listed()))

    _ipython_key_completions_ = keys

    def arrays(self) -> list[tuple[str, TensorStore]]:
        """Return the arrays directly in the group with their names, opened together."""
        return self._opened("array")

    def groups(self) -> list[tuple[str, Group]]:
        """Return the groups directly in the group with their names."""
        return self._opened("group")

    def tree(self) -> str:
        """Return the groups and arrays below as indented text, one a line."""
        listed = self._listed()
        return tree_text(described(listed))

    def view(self, **options: Any) -> Any:
        """Serve a page that shows the arrays below.  Return its `View`, which notebooks display."""
        return door("view")(self, **options)

    # --- changes

    def create_array(
        self, path: str, *, shape: Sequence[int] | None = None, dtype: Any = None, data: Any = None, **options: Any
    ) -> Future[TensorStore]:
        """Begin to create an array; the result is the array, open for reading and writing.

        With `data` it has these values, and their shape and type where these are left out.
        `chunks`, `shards` (zarr version 3), `codec` ("zstd", the default, "gzip", "blosc", None, or JSON of the
        format), `fill_value`, `dimension_names`, `attributes`.  Groups on the way are created; raises
        `AlreadyExistsError` if there is something at the path, unless `overwrite=True`, which deletes it first.
        """
        own = {} if data is None else like(data)
        shape, dtype = own.get("shape") if shape is None else shape, dtype or own.get("dtype")
        if shape is None or dtype is None:
            raise TypeError("A new array needs a shape and a dtype, or `data` that has both")
        at, wanted, overwrite = self._new(path, shape, dtype, options)

        async def run() -> TensorStore:
            made = await create_array(self._place, at, wanted, overwrite=overwrite)
            if data is not None:
                await made.write(data)
            return made

        return _begin(run)

    def require_array(self, path: str, *, shape: Sequence[int], dtype: Any, **options: Any) -> Future[TensorStore]:
        """Begin to open an array, or to create it if there is none; raises if it has another shape or type."""
        at, wanted, _ = self._new(path, shape, dtype, options)
        return _begin(lambda: self._require_array(at, wanted))

    def create_group(self, path: str, *, attributes: Mapping[str, Any] | None = None) -> Future[Group]:
        """Begin to create a group, and those on the way; raises `AlreadyExistsError` if there is something there."""
        at = self._changing(path, "create groups")

        async def run() -> Group:
            await create_group(self._place, at, attributes or {})
            return self._group(at, await self._place.look(at))

        return _begin(run)

    def require_group(self, path: str) -> Future[Group]:
        """Begin to open a group, or to create it if there is none."""
        at = self._changing(path, "create groups")

        async def run() -> Group:
            if not await exists(self._place, at):
                await create_group(self._place, at, {})
            found = await self._open(at)
            if not isinstance(found, Group):
                raise FailedPreconditionError(f"{self._place.below(at).describe()} is an array and no group")
            return found

        return _begin(run)

    def delete(self, path: str) -> Future[None]:
        """Begin to delete an array, or a group with everything in it; raises `NotFoundError` if there is none.

        A directory that is no group itself loses only the arrays and groups in it.
        """
        at = self._changing(path, "delete members")
        return _begin(lambda: door("delete_member")(self._place, at))

    def __delitem__(self, path: str) -> None:
        """Delete a member and wait until it is gone; raise `KeyError` if there is none."""
        try:
            self.delete(path).result()
        except NotFoundError as error:
            raise KeyError(error.message) from None

    def move(self, source: str, target: str) -> Future[None]:
        """Begin to move an array, or a group with everything in it, to another path of the group.

        It fails if a job is changing either.  A move that was killed is continued by the same call.
        """
        old, new = self._changing(source, "move members"), self._changing(target, "move members")
        return _begin(lambda: door("move")(self._place, old, new))

    def consolidate(self) -> Future[list[str]]:
        """Begin to write consolidated metadata; the result names the members of which they had said something else."""
        if not self._place.writable:
            raise StoreError(refusal("consolidate its metadata"))
        return _begin(lambda: consolidate(self._place.below(self._path), self._place.words))

    def resize(self, **sizes: int) -> Future[Group]:
        """Begin to resize all arrays below along named dimensions: `group.resize(time=744)`.

        The data of an array that grows are missing until they are written.  Consolidated metadata follow last, so that
        readers who believe them see the old or the new extent of all arrays.
        """
        if not self._place.writable:
            raise StoreError(refusal("resize arrays"))

        async def run() -> Group:
            await resize_arrays(self._place, self._path, sizes)
            return self

        return _begin(run)

    # --- inside

    def _group(self, at: str, found: Found) -> Group:
        return Group._of(self._place, at, found)

    def _changing(self, path: str, what: str) -> str:
        """Return the path of a member that is about to be changed; raise if the group was opened for reading."""
        if not self._place.writable:
            raise StoreError(refusal(what))
        return member_path(self._path, path)

    def _new(self, path: str, shape: Sequence[int], dtype: Any, options: dict[str, Any]) -> tuple[str, NewArray, bool]:
        overwrite = bool(options.pop("overwrite", False))
        return self._changing(path, "create arrays"), new_array(shape, dtype, options), overwrite

    async def _open(self, at: str, node: Node | None = None) -> Any:
        found = await self._place.look(at, node)
        if found.kind == "array":
            if await self._place.contradicts(at, found):
                warnings.warn(stale(self._place.prefix.describe(), at), stacklevel=2)
            return await open_stored(self._place, at, found)
        if found.kind is None and not await exists(self._place, at):
            raise NotFoundError(await missing(self._place, at))
        return self._group(at, found)

    async def _require_array(self, at: str, wanted: NewArray) -> TensorStore:
        if not await exists(self._place, at):
            return await create_array(self._place, at, wanted, overwrite=False)
        store = await self._open(at)
        if not isinstance(store, TensorStore) or (store.shape, store.dtype.name) != (wanted.shape, wanted.dtype):
            raise FailedPreconditionError(
                f"{self._place.below(at).describe()} is no array of shape {wanted.shape} and type {wanted.dtype}"
            )
        return store

    def _listed(self) -> Hierarchy:
        return execution.call(self._place.listed(self._path))

    def _opened(self, kind: str) -> list[tuple[str, Any]]:
        members = children(self._listed()).items()
        wanted = [(name, node) for name, node in members if ("group" if node is None else node.kind) == kind]
        begun = [_begin(partial(self._open, member_path(self._path, name), node)) for name, node in wanted]
        return [(name, each.result()) for (name, _), each in zip(wanted, begun, strict=True)]

    def __repr__(self) -> str:
        """Return the place and the format, and the names of the members as far as they can be listed."""
        try:
            names = self.keys()
        except StoreError:
            return _place_text(self)
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        return plain(f"{_place_text(self)}: {', '.join(names[:20]) or 'nothing in it'}{more}")

    def _repr_html_(self) -> str:
        """Return a tree that opens and closes, for notebooks."""
        return tree_html(_place_text(self), described(self._listed()))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the place and the path; unpickling opens it again."""
        spec = self._place.store.effective_spec()
        return _reopen, (spec, self._path, self._place.writable, self._place.consolidated)


def _place_text(group: Group) -> str:
    """Return the place and the format, and the names of what a scanned file holds and cannot be shown."""
    place = group._place.below(group._path)
    where = place.describe().removeprefix('"" in ')
    lost = _named(list(place.left_out()))
    return f"<Group {quote(group._path) + ' ' if group._path else ''}of {_format(group.zarr_format)} in {where}{lost}>"


def _named(left_out: list[str]) -> str:
    more = f" and {len(left_out) - 5} more" if len(left_out) > 5 else ""
    return f" without {', '.join(map(quote, left_out[:5]))}{more}, as `tree` says why" if left_out else ""


def open_group(
    place: Any,
    *,
    mode: str = "r+",
    zarr_format: int = 3,
    consolidated: bool = True,
    context: Context | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache_path: Any = None,
) -> Future[Group]:
    """Begin to open the group at a URL, a path, a spec, a `KvStore` or a live object; formats around it are detected.

    `mode` is `r` (read only), `r+` (the default: read and change), `a` (create if there is none), `w-` (create) or `w`
    (delete everything there, then create); a new group is of `zarr_format` 3, 2 or, for N5, 0.  Consolidated metadata
    are believed for listings unless `consolidated=False`.  With `cache_path`, a directory, what comes from far is kept
    there for all processes.

    >>> group = open_group("memory://", mode="a").result()
    >>> list(group)
    []
    """
    if mode not in _MODES:
        raise ValueError(f"mode is one of {', '.join(_MODES)}, not {mode!r}")
    if zarr_format not in WORDS:
        raise ValueError(f"zarr_format is 3, 2 or, for N5, 0, not {zarr_format!r}")
    spec, chosen = store_spec(place, storage_options), caching(context, cache_path)

    async def run() -> Group:
        store = await open_kv(spec, chosen)
        opened, found = await open_place(store, chosen, mode, WORDS[zarr_format], consolidated=consolidated)
        return Group._of(opened, "", found)

    return execution.start(run(), waits=True)


def _reopen(spec: Any, path: str, writable: bool, consolidated: bool) -> Any:
    group = open_group(spec, mode="r+" if writable else "r", consolidated=consolidated).result()
    return group[path] if path else group


def _begin(operation: Callable[[], Coroutine[Any, Any, T]]) -> Future[T]:
    return execution.start(operation())


def _format(zarr_format: int) -> str:
    return f"zarr {zarr_format}" if zarr_format else "N5"
