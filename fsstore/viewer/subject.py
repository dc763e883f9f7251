"""The subject of a page: the arrays below a place, opened once each, and their coordinates.

A subject is an open array or an open group.  The members of a group are listed once; an array is opened when it is
asked for, with its coordinates and its coarser resolutions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fsstore.arrays.store import TensorStore
from fsstore.arrays.store import open as open_array
from fsstore.context.context import Context
from fsstore.dataset.group import Group
from fsstore.dataset.listing import ArrayEntry, described, paths_of
from fsstore.errors import NotFoundError, StoreError
from fsstore.index import d
from fsstore.runtime import fork
from fsstore.viewer.axis import axis
from fsstore.viewer.level import Level, axes_of, datasets_of, levels_of, scales_of
from fsstore.viewer.tuning import KEPT_OPEN

__all__ = ["Shown", "Subject"]


@dataclass(frozen=True, slots=True)
class Shown:
    """An array as it is shown: with indices from zero, and what belongs to it."""

    path: str
    store: TensorStore
    """The array as it was opened."""
    levels: tuple[Level, ...]
    names: tuple[str, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    axes: tuple[dict[str, Any] | None, ...] = ()

    @property
    def zeroed(self) -> TensorStore:
        """The array in its finest resolution."""
        finest: TensorStore = self.levels[0].store
        return finest


class Subject:
    """The arrays of a place."""

    def __init__(self, opened: TensorStore | Group, context: Context | None = None) -> None:
        self.opened, self._context = opened, context
        self._shown: dict[str, Shown] = {}
        self._lock = fork.lock()
        self._listed: tuple[dict[str, ArrayEntry | None], dict[str, str]] | None = None
        self._images: set[str] = set()

    @property
    def is_group(self) -> bool:
        """Whether there is a tree to choose from."""
        return isinstance(self.opened, Group)

    def members(self) -> tuple[dict[str, ArrayEntry | None], dict[str, str]]:
        """Return arrays (with what is known of them) and groups (with None) by path, and what is wrong with others."""
        group = self.opened
        if not isinstance(group, Group):
            return {}, {}
        with self._lock:
            if self._listed is None:
                listed = group._listed()
                damaged = {path: str(error) for path, error in listed.damaged.items()} | dict(listed.left_out)
                whole = listed._replace(damaged={})
                groups, entries, _ = described(whole)
                self._images = {path for path, node in listed.nodes.items() if datasets_of(node.attributes)}
                self._listed = {path: entries.get(path) for path in paths_of(groups, entries)}, damaged
        return self._listed

    def images(self) -> set[str]:
        """Return the paths of groups that are one image in several resolutions."""
        self.members()
        return self._images

    def attributes(self, path: str) -> Mapping[str, Any]:
        """Return the attributes of a group."""
        group = self.opened
        if not isinstance(group, Group):
            return {}
        found = group.open(path).result() if path else group
        return dict(found.attrs)

    def array(self, path: str) -> Shown:
        """Return the array at a path, opened once; a group of resolutions is the array that they show."""
        with self._lock:
            found = self._shown.get(path)
        if found is None:
            found = self._open(path)
            with self._lock:
                while len(self._shown) >= KEPT_OPEN:
                    self._shown.pop(next(iter(self._shown)))
                self._shown[path] = found
        return found

    def _open(self, path: str) -> Shown:
        group = self.opened
        if isinstance(group, TensorStore):
            if path:
                raise NotFoundError(f"There is no array at {path!r} here")
            return self._made("", scales_of(group, self._opened_scale))
        opened = group.open(path).result() if path else group
        if isinstance(opened, Group):
            finer = [f"{path}/{each}".lstrip("/") for each in datasets_of(opened.attrs)]
            if not finer:
                raise NotFoundError(f"{path or '/'!r} is a group; its arrays have pictures")
            stores = [group.open(each).result() for each in finer]
            return self._made(path, stores, axes_of(opened.attrs))
        coarser, axes = self._coarser(group, path)
        return self._made(path, [opened, *coarser], axes)

    def _opened_scale(self, spec: Any) -> TensorStore:
        return open_array(spec, read=True, context=self._context).result()

    def _coarser(self, group: Group, path: str) -> tuple[list[TensorStore], tuple[str, ...]]:
        """Return the coarser resolutions of an array that its group tells of, and the names of its dimensions."""
        above, _, name = path.rpartition("/")
        try:
            attributes = self.attributes(above)
            listed = datasets_of(attributes)
            if name not in listed:
                return [], ()
            behind = [f"{above}/{each}".lstrip("/") for each in listed[listed.index(name) + 1 :]]
            return [group.open(each).result() for each in behind], axes_of(attributes)
        except StoreError:  # without them it is shown all the same
            return [], ()

    def _made(self, path: str, stores: list[Any], axes: tuple[str, ...] = ()) -> Shown:
        store = stores[0]
        try:
            attributes = store.attrs.asdict()
        except StoreError:  # arrays without attributes
            attributes = {}
        zeroed = [each[d[:].translate_to[0]] if each.rank else each for each in stores]
        names = store.domain.labels
        if not any(names) and len(axes) == len(names):
            names = axes
        coordinates = tuple(
            self._axis(path, name, size) if name else None
            for name, size in zip(names, store.shape, strict=True)
        )
        return Shown(path, store, tuple(levels_of(zeroed)), names, attributes, coordinates)

    def _axis(self, path: str, name: str, size: int) -> dict[str, Any] | None:
        found = self._coordinate(path, name)
        if found is None or found.shape != (size,):
            return None
        try:
            attributes = found.attrs.asdict()
        except StoreError:
            attributes = {}
        return axis(found[d[:].translate_to[0]], attributes)

    def _coordinate(self, path: str, name: str) -> TensorStore | None:
        """Return the array of a dimension's name that is nearest: in the group of the array, or in one above."""
        group = self.opened
        if not isinstance(group, Group):
            return self._beside(name)
        above, members = path, self.members()[0]
        while above:
            above = above.rpartition("/")[0]
            at = f"{above}/{name}".lstrip("/")
            if members.get(at) is not None:
                try:
                    found: TensorStore = group.open(at).result()
                except StoreError:  # there is no axis then, and the picture is shown
                    return None
                return found
        return None

    def _beside(self, name: str) -> TensorStore | None:
        """Return the array of a name beside the one that is looked at."""
        try:
            below = self.opened.kvstore
            if below is None:
                return None
            spec = below.spec().to_json()
            above, slash, own = spec.get("path", "").rstrip("/").rpartition("/")
            if not own or own == name or "/" in name:
                return None
            beside = {"driver": "auto", "kvstore": {**spec, "path": f"{above}{slash}{name}/"}}
            return open_array(beside, read=True, context=self._context).result()
        except (StoreError, AttributeError):  # no key-value store, or nothing there
            return None
