"""Images in several resolutions: which there are below a place, and their levels as open arrays."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from fsstore.arrays.store import TensorStore
from fsstore.arrays.store import open as open_array
from fsstore.context.context import Context, context_of
from fsstore.dataset.group import Group, open_group
from fsstore.dataset.image import (
    Description,
    ImageAxis,
    Lead,
    LevelPlace,
    LevelWords,
    described,
    is_labels,
    kind_of,
    leads_of,
)
from fsstore.dataset.members import member_path
from fsstore.errors import NotFoundError, StoreError
from fsstore.index import d
from fsstore.kvstore.kv_store import KvStore
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.values.json_value import loads, meant, quote

_DEEPEST = 8  # groups from a plate to the labels of a field, and some to spare
_PRECOMPUTED = "neuroglancer_precomputed"


@dataclass(frozen=True, slots=True, repr=False)
class ImageLevel:
    """One resolution of an image: an open array, whose dimensions are named, and where its elements lie.

    The element with the index `i` along an axis lies at `scale[axis] * i + translation[axis]`.  Indexing a level gives
    a view of its array.
    """

    path: str
    store: TensorStore
    scale: Mapping[str, float]
    translation: Mapping[str, float]

    @property
    def shape(self) -> tuple[int, ...]:
        """The count of elements along each dimension."""
        return self.store.shape

    def __getitem__(self, terms: Any) -> TensorStore:
        """Return a view of the array."""
        view: TensorStore = self.store[terms]
        return view

    def coordinates(self, axis: str) -> np.ndarray[Any, Any]:
        """Return where the elements lie along an axis."""
        indices = self.store.domain[self._dimension(axis)]
        return np.arange(indices.inclusive_min, indices.exclusive_max) * self.scale[axis] + self.translation[axis]

    def region(self, **bounds: tuple[float, float]) -> TensorStore:
        """Return a view of the elements that lie between two places along each axis named: `region(y=(10, 20))`."""
        view: TensorStore = self.store
        for axis, (low, high) in bounds.items():
            indices = self.store.domain[self._dimension(axis)]
            first, last = sorted(math.ceil((at - self.translation[axis]) / self.scale[axis]) for at in (low, high))
            begin = min(max(first, indices.inclusive_min), indices.exclusive_max)
            view = view[d[axis][begin : max(begin, min(last, indices.exclusive_max))]]
        return view

    def _dimension(self, axis: str) -> int:
        if axis not in self.scale:
            raise StoreError(f"There is no axis {quote(axis)}{meant(axis, self.scale)}")
        return list(self.scale).index(axis)

    def __repr__(self) -> str:
        """Return the path, the shape and the scale."""
        sizes = ", ".join(f"{axis} {number:g}" for axis, number in self.scale.items())
        return f"<Level {quote(self.path)} {self.store.dtype.name} {self.shape}, scale {sizes}>"


@dataclass(frozen=True, slots=True, repr=False)
class Multiscale:
    """An image in several resolutions, the finest first.  Made by `open_multiscale`."""

    __module__ = "fsstore"

    axes: tuple[ImageAxis, ...]
    levels: tuple[ImageLevel, ...]
    vocabulary: str
    """The convention of the metadata: OME-Zarr with its version, the convention, Neuroglancer precomputed."""
    name: str = ""
    method: str = ""
    """How the coarser levels were made, if that is told."""
    group: Group | None = field(default=None, compare=False)
    """The group whose attributes describe the image, if there is one."""

    def __len__(self) -> int:
        """Return how many levels there are."""
        return len(self.levels)

    def __iter__(self) -> Iterator[ImageLevel]:
        """Iterate over the levels, the finest first."""
        return iter(self.levels)

    def __getitem__(self, number: int) -> ImageLevel:
        """Return a level by its number; 0 is the finest, -1 the coarsest."""
        return self.levels[number]

    def at(self, resolution: float | None = None, **axes: float) -> ImageLevel:
        """Return the coarsest level whose elements are at most as large as is asked; the finest if all are larger.

        `at(2.0)` is for all axes of space, `at(y=2.0, z=5.0)` for those named.
        """
        known = [axis.name for axis in self.axes]
        for axis in axes:
            if axis not in known:
                raise StoreError(f"There is no axis {quote(axis)}{meant(axis, known)}")
        if resolution is not None:
            axes = {axis.name: resolution for axis in self.axes if axis.kind == "space"} | axes
        if not axes:
            raise StoreError("A level is chosen by the size of an element: at(2.0) or at(y=2.0)")
        fitting = [
            level
            for level in self.levels
            if all(abs(level.scale[axis]) <= size * (1 + 1e-9) for axis, size in axes.items())
        ]
        size = list(axes)
        return max(fitting or self.levels[:1], key=lambda level: math.prod(abs(level.scale[axis]) for axis in size))

    def __repr__(self) -> str:
        """Return the axes and the levels, one a line."""
        axes = ", ".join(axis.name + (f" in {axis.unit}" if axis.unit else "") for axis in self.axes)
        lines = "".join(f"\n  {number}: {level!r}" for number, level in enumerate(self.levels))
        title = f" {quote(self.name)}" if self.name else ""
        return f"<Multiscale{title} of {self.vocabulary}, axes {axes}>{lines}"

    def _repr_html_(self) -> str:
        return levels_html(self)


def open_multiscale(
    place: Any,
    *,
    mode: str = "r+",
    number: int = 0,
    variable: str = "",
    context: Context | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Future[Multiscale]:
    """Begin to open the image in several resolutions at a place; all levels are opened together.

    The place is a group with `multiscales` of OME-Zarr or of the convention of that name, in any format, a TIFF file
    with overviews, or a precomputed volume.  `number` chooses one of several images of a group, `variable` one of the
    arrays where a level is a group of them.

    >>> import fsstore as ts
    >>> group = ts.open_group("memory://image/", mode="w").result()
    >>> base = group.create_array("0", shape=[8, 8], dtype="u1", dimension_names=["y", "x"]).result()
    >>> report = ts.build_pyramid(group, levels=3).result()
    >>> image = ts.open_multiscale(group).result()
    >>> image.at(2.0).shape
    (4, 4)
    """
    chosen = context_of(context)

    async def run() -> Multiscale:
        if isinstance(place, Group):
            return await _of_group(place, number, variable)
        options: Any = {"context": chosen, "storage_options": storage_options}
        try:
            group = await open_group(place, mode=mode, **options)
        except StoreError:
            volume = await _volume(place, options)
            if volume is None:
                raise
            return await _of_volume(volume, chosen)
        return await _of_group(group, number, variable)

    return execution.start(run(), waits=True)


async def _of_group(group: Group, number: int, variable: str) -> Multiscale:
    said = described(group.attrs.asdict(), number)
    if said is None:
        raise NotFoundError(await execution.offload(_no_image, group))
    begun = [group.open(f"{level.path}/{variable}".rstrip("/")) for level in said.levels]
    opened = [await _array(await each, level) for each, level in zip(begun, said.levels, strict=True)]
    axes = said.axes or _named(opened[0])
    levels = [_level(store, words, axes) for store, words in zip(opened, said.levels, strict=True)]
    return _made(said, axes, levels, group)


def _made(said: Description, axes: tuple[ImageAxis, ...], levels: list[ImageLevel], group: Group | None) -> Multiscale:
    finest_first = sorted(levels, key=lambda level: -math.prod(level.shape))
    return Multiscale(axes, tuple(finest_first), said.vocabulary, said.name, said.method, group)


async def _array(opened: Any, words: LevelWords) -> TensorStore:
    """Return the array of a level; of a group that is a level, the only one of highest rank."""
    if isinstance(opened, TensorStore):
        return opened
    arrays = await execution.offload(opened.arrays)
    most = max((store.rank for _, store in arrays), default=0)
    found: list[TensorStore] = [store for _, store in arrays if store.rank == most]
    if len(found) != 1:
        names = ", ".join(quote(name) for name, _ in arrays) or "none"
        raise StoreError(f"The level {quote(words.path)} is a group of the arrays {names}; choose one with variable=")
    return found[0]


def _level(store: TensorStore, words: LevelWords, axes: tuple[ImageAxis, ...]) -> ImageLevel:
    names = [axis.name for axis in axes]
    if len(names) != store.rank:
        raise StoreError(
            f"The image has the axes {', '.join(names)}, but the level {quote(words.path)} has {store.rank} dimensions"
        )
    scale, shift = words.place.filled(store.rank)
    if 0 in scale:
        raise StoreError(f"The level {quote(words.path)} has a scale of 0")
    if list(store.domain.labels) != names:
        store = store[d[:].label[names]]
    return ImageLevel(words.path, store, dict(zip(names, scale, strict=True)), dict(zip(names, shift, strict=True)))


def _named(store: TensorStore) -> tuple[ImageAxis, ...]:
    """Return axes named as the dimensions are, where the metadata name none."""
    names = [label or f"dim_{number}" for number, label in enumerate(store.domain.labels)]
    return tuple(ImageAxis(name, kind_of(name)) for name in names)


def _no_image(group: Group) -> str:
    """Return the message for a group that is no image: with the images directly below it."""
    listed = group._listed().nodes
    below = [path for path, node in listed.items() if path and "multiscales" in str(node.attributes)[:10_000]]
    if below:
        shown = ", ".join(map(quote, below[:8]))
        return f"{group!r} is no image in several resolutions; open one of the images below it: {shown}"
    return f"{group!r} has no metadata of an image in several resolutions; build_pyramid makes one of an array"


async def _volume(place: Any, options: Mapping[str, Any]) -> TensorStore | None:
    """Return a scale of the precomputed volume at a place; None if there is something else."""
    try:
        store = await open_array(place, **options)
    except StoreError:  # the error about the group says more
        return None
    return store if store.spec().to_json().get("driver") == _PRECOMPUTED else None


async def _of_volume(first: TensorStore, context: Context) -> Multiscale:
    kvstore = first.spec().to_json()["kvstore"]
    store = await KvStore.open(kvstore, context=context)
    scales = loads((await store.read("info")).value, lenient=True)["scales"]
    begun = [
        open_array({"driver": _PRECOMPUTED, "kvstore": kvstore, "scale_index": number}, context=context)
        for number in range(len(scales))
    ]
    opened = [await each for each in begun]
    units = opened[0].dimension_units
    names = opened[0].domain.labels
    axes = tuple(
        ImageAxis(name, kind_of(name), unit.base_unit or None if unit else None)
        for name, unit in zip(names, units, strict=True)
    )
    levels = []
    for number, array in enumerate(opened):
        scale = tuple(unit.multiplier if unit else 1.0 for unit in array.dimension_units)
        words = LevelWords(str(scales[number].get("key", number)), LevelPlace(scale))
        levels.append(_level(array, words, axes))
    return _made(Description("Neuroglancer precomputed", ()), axes, levels, None)


@dataclass(frozen=True, slots=True)
class ImageEntry:
    """An image below a place, as `list_images` finds it; `open_multiscale` opens it at its path."""

    path: str
    kind: str
    """`image`, or `labels` where the values are numbers of things."""
    name: str
    axes: tuple[str, ...]
    levels: int
    well: str = ""
    """The well of a plate: its row and column, such as `A/1`."""
    acquisition: int | None = None


def list_images(
    place: Any, *, context: Context | None = None, storage_options: Mapping[str, Any] | None = None
) -> list[ImageEntry]:
    """Return the images below a place: those of a plate well by well, and each with its labels behind it.

    Attributes of OME-Zarr lead from plates to wells, from wells to their fields, and from images to labels, so that
    nothing has to be listed; below a group that leads nowhere all groups are looked at.  An image that is named and
    cannot be found or understood is left out with a warning.

    >>> import fsstore as ts
    >>> group = ts.open_group("memory://images/", mode="w").result()
    >>> base = group.create_array("cells/0", shape=[8, 8], dtype="u1", dimension_names=["y", "x"]).result()
    >>> report = ts.build_pyramid(group["cells"], levels=2).result()
    >>> [(image.path, image.levels) for image in list_images(group)]
    [('cells', 2)]
    """
    if isinstance(place, Group):
        group = place
    else:
        group = open_group(place, mode="r", context=context, storage_options=storage_options).result()
    lost: dict[str, str] = {}
    found = execution.call(_led(group, Lead(""), lost))
    if not found and not lost:
        nodes = group._listed().nodes.items()
        leads = [(Lead(path), node.attributes) for path, node in nodes if node.kind == "group"]
        found = [entry for lead, said in leads for entry in _entry(lead, said, lost)]
    for path, why in lost.items():
        warnings.warn(f"{quote(path)} is left out: {why}", stacklevel=2)
    return found


async def _led(group: Group, lead: Lead, lost: dict[str, str], *, is_sure: bool = True) -> list[ImageEntry]:
    """Return the images on a path, and those to which it leads; what is missing or damaged is put into `lost`."""
    try:
        looked = await group._place.look(member_path(group._path, lead.path) if lead.path else group._path)
        if looked.kind != "group":
            if is_sure:
                lost[lead.path] = f"it is {'an array' if looked.kind else 'missing'}, and no group"
            return []
        attributes = dict(looked.attributes)
        leads = [(each, True) for each in leads_of(attributes)]
    except StoreError as error:
        lost[lead.path] = error.message
        return []
    found = _entry(lead, attributes, lost)
    if found and found[0].kind == "image":
        leads.append((Lead("labels"), False))
    if lead.path.count("/") > _DEEPEST:
        return found
    below = [_led(group, _behind(lead, each), lost, is_sure=sure) for each, sure in leads]
    for more in await execution.gather(below):
        found += more
    return found


def _behind(lead: Lead, each: Lead) -> Lead:
    """Return a lead of a group that was itself led to: by its path from the root, and with the well it is in."""
    acquisition = lead.acquisition if each.acquisition is None else each.acquisition
    return Lead(f"{lead.path}/{each.path}".lstrip("/"), lead.well or each.well, acquisition)


def _entry(lead: Lead, attributes: Mapping[str, Any], lost: dict[str, str]) -> list[ImageEntry]:
    try:
        said = described(attributes)
    except StoreError as error:
        lost[lead.path] = error.message
        return []
    if said is None:
        return []
    kind = "labels" if is_labels(attributes) else "image"
    axes = tuple(axis.name for axis in said.axes)
    return [ImageEntry(lead.path, kind, said.name, axes, len(said.levels), lead.well, lead.acquisition)]


_TIMES = " \N{MULTIPLICATION SIGN} "


def levels_html(image: Any) -> str:
    """Return the table: a level a line, with its size, its type, its chunks and the size of an element."""
    title = " ".join(filter(None, (image.name, f"({image.vocabulary})")))
    heads = "".join(f"<th>{each}</th>" for each in ("level", "path", "shape", "type", "chunks", "element"))
    units = {axis.name: axis.unit or "" for axis in image.axes}
    rows = "".join(f"<tr>{_row(number, level, units)}</tr>" for number, level in enumerate(image))
    axes = escape(", ".join(axis.name for axis in image.axes))
    return f"<div><b>{escape(title)}</b>, axes {axes}</div><table><tr>{heads}</tr>{rows}</table>"


def _row(number: int, level: Any, units: dict[str, str]) -> str:
    chunks = level.store.chunk_layout.read_chunk.shape or ()
    element = _TIMES.join(f"{size:g} {units[axis]}".rstrip() for axis, size in level.scale.items())
    shape, grid = (_TIMES.join(map(str, each)) for each in (level.shape, chunks))
    cells = (str(number), level.path, shape, level.store.dtype.name, grid, element)
    return "".join(f"<td>{escape(cell)}</td>" for cell in cells)
