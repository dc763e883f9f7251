"""Images in several resolutions: their description in the attributes of a group, and their levels as arrays."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

import numpy as np

from fsstore.arrays.store import TensorStore
from fsstore.arrays.store import open as open_array
from fsstore.context.context import Context, context_of
from fsstore.dataset.group import Group, open_group
from fsstore.errors import NotFoundError, StoreError
from fsstore.index import d
from fsstore.kvstore.kv_store import KvStore
from fsstore.runtime import execution
from fsstore.runtime.future import Future, meant
from fsstore.values.json_value import loads, quote, show

# An image in several resolutions, as attributes describe it: axes, and where the elements of each level
# lie.

_KINDS = {"t": "time", "time": "time", "c": "channel", "channel": "channel"}
_MOST = 64  # levels; each halves an image, so nobody has more


@dataclass(frozen=True, slots=True)
class ImageAxis:
    """A dimension of an image: its name, its kind (`space`, `time`, `channel` or another word), and its unit."""

    name: str
    kind: str = "space"
    unit: str | None = None

    def words(self) -> dict[str, str]:
        """Return the axis in the words of OME-Zarr."""
        words = {"name": self.name, "type": self.kind}
        return words if self.unit is None else {**words, "unit": self.unit}


@dataclass(frozen=True, slots=True)
class LevelPlace:
    """Where the elements of a level lie; an empty tuple is a scale of 1 or a translation of 0, whatever the rank."""

    scale: tuple[float, ...] = ()
    translation: tuple[float, ...] = ()

    def within(self, outer: LevelPlace) -> LevelPlace:
        """Return the place that is this one first, and then `outer`."""
        rank = max(map(len, (self.scale, self.translation, outer.scale, outer.translation)))
        inner_scale, inner_shift = self.filled(rank)
        outer_scale, outer_shift = outer.filled(rank)
        scale = tuple(a * b for a, b in zip(inner_scale, outer_scale, strict=True))
        moved = zip(inner_shift, outer_scale, outer_shift, strict=True)
        return LevelPlace(scale, tuple(at * by + shift for at, by, shift in moved))

    def filled(self, rank: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Return scale and translation with a number for each of `rank` dimensions."""
        for name, numbers in (("scale", self.scale), ("translation", self.translation)):
            if numbers and len(numbers) != rank:
                raise StoreError(f"A {name} has {len(numbers)} numbers for {rank} dimensions")
        return self.scale or (1.0,) * rank, self.translation or (0.0,) * rank

    def coarser(self, factors: Sequence[int], *, centred: bool) -> LevelPlace:
        """Return the place of blocks of `factors` elements: of their middle, or of their first element."""
        half = tuple((factor - 1) / 2 if centred else 0.0 for factor in factors)
        return LevelPlace(tuple(map(float, factors)), half).within(self)

    def words(self, rank: int) -> list[dict[str, Any]]:
        """Return the place in the words of OME-Zarr."""
        scale, shift = self.filled(rank)
        moves: list[dict[str, Any]] = [{"type": "scale", "scale": list(scale)}]
        return [*moves, {"type": "translation", "translation": list(shift)}] if any(shift) else moves


@dataclass(frozen=True, slots=True)
class LevelWords:
    """The description of one level: the path of its array or group, and its place."""

    path: str
    place: LevelPlace = field(default_factory=LevelPlace)


@dataclass(frozen=True, slots=True)
class Description:
    """The description of an image: its `vocabulary`, its axes (none if they are not told) and its levels."""

    vocabulary: str
    levels: tuple[LevelWords, ...]
    axes: tuple[ImageAxis, ...] = ()
    name: str = ""
    method: str = ""


def described(attributes: Mapping[str, Any], number: int = 0) -> Description | None:
    """Return what the attributes of a group say of its image with a number; None if they speak of no image.

    >>> found = described({"multiscales": [{"datasets": [{"path": "0"}, {"path": "1"}], "axes": ["y", "x"]}]})
    >>> [level.path for level in found.levels], [axis.name for axis in found.axes]
    (['0', '1'], ['y', 'x'])
    """
    holder = _holder(attributes)
    listed = holder.get("multiscales")
    if isinstance(listed, Mapping) and "layout" in listed:
        return _of_convention(listed)
    if not isinstance(listed, list) or not listed:
        return None
    if not 0 <= number < len(listed):
        raise StoreError(f"There is no image number {number}; the attributes describe {len(listed)} of them")
    image = _mapping(listed[number], "multiscales")
    version = holder.get("version") or image.get("version") or ""
    return _of_ome(image, f"OME-Zarr {version}".rstrip())


def image_words(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the words in which OME-Zarr describes the first image of a group; none if it describes no image."""
    listed = _holder(attributes).get("multiscales")
    first = listed[0] if isinstance(listed, list) and listed else {}
    return first if isinstance(first, Mapping) else {}


def _holder(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = attributes.get("ome")
    return inner if isinstance(inner, Mapping) and "multiscales" in inner else attributes


def kind_of(name: str) -> str:
    """Return what an axis is of which only the name is known."""
    return _KINDS.get(name.lower(), "space")


def ome_image(
    before: Mapping[str, Any], axes: Sequence[ImageAxis], levels: Sequence[LevelWords], method: str
) -> dict[str, Any]:
    """Return an image in the words of OME-Zarr; what was said before of other things, and of axes, stays."""
    datasets = [
        {"path": level.path, "coordinateTransformations": level.place.words(len(axes))} for level in levels
    ]
    said = before.get("axes") or [axis.words() for axis in axes]
    outer = [move for move in before.get("coordinateTransformations", ()) if isinstance(move, Mapping)]
    moves = {"coordinateTransformations": outer} if outer else {}
    return {**before, "axes": said, "datasets": datasets, **moves, "type": method}


def with_image(attributes: Mapping[str, Any], image: Mapping[str, Any], zarr_format: int) -> dict[str, Any]:
    """Return the attributes that have to be assigned for a group to be an image: OME-Zarr 0.5 in zarr v3, else 0.4."""
    if zarr_format != 3:
        others = attributes.get("multiscales")
        rest = others[1:] if isinstance(others, list) else []
        return {"multiscales": [{**image, "version": "0.4"}, *rest]}
    inner = attributes.get("ome")
    ome = dict(inner) if isinstance(inner, Mapping) else {}
    rest = ome.get("multiscales", [])[1:]
    return {"ome": {**ome, "version": "0.5", "multiscales": [dict(image), *rest]}}


def _of_ome(image: Mapping[str, Any], vocabulary: str) -> Description:
    outer = _placement(image.get("coordinateTransformations"), "multiscales")
    levels = []
    for each in _listed(image.get("datasets"), "datasets"):
        dataset = _mapping(each, "datasets")
        inner = _placement(dataset.get("coordinateTransformations"), _path(dataset, "path"))
        levels.append(LevelWords(_path(dataset, "path"), inner.within(outer)))
    return Description(
        vocabulary,
        tuple(levels),
        _axes(image.get("axes")),
        _text(image.get("name")),
        _text(image.get("type")),
    )


def _axes(listed: Any) -> tuple[ImageAxis, ...]:
    found = []
    for each in listed if isinstance(listed, list) else []:
        if isinstance(each, str):
            found.append(ImageAxis(each, kind_of(each)))
        elif isinstance(each, Mapping) and isinstance(each.get("name"), str):
            name = each["name"]
            found.append(
                ImageAxis(name, _text(each.get("type")) or kind_of(name), _text(each.get("unit")) or None)
            )
        else:
            raise StoreError(f'"axes" of an image has an entry without a name: {show(each)[:80]}')
    if len({axis.name for axis in found}) < len(found):
        raise StoreError('"axes" of an image has the same name twice')
    return tuple(found)


def _placement(moves: Any, where: str) -> LevelPlace:
    """Return what transformations in the words of OME-Zarr amount to."""
    found = LevelPlace()
    for move in [] if moves is None else _listed(moves, "coordinateTransformations"):
        kind = move.get("type") if isinstance(move, Mapping) else None
        if kind == "scale":
            found = found.within(LevelPlace(scale=_numbers(move.get("scale"), where)))
        elif kind == "translation":
            found = found.within(LevelPlace(translation=_numbers(move.get("translation"), where)))
        elif kind != "identity":
            raise StoreError(
                f"The level {show(where)} is placed by {show(kind)}; scales, translations and identities are known"
            )
    return found


def _of_convention(said: Mapping[str, Any]) -> Description:
    assets = [_mapping(each, "layout") for each in _listed(said["layout"], "layout")]
    by_path = {_path(each, "asset"): each for each in assets}

    def placed(path: str, seen: frozenset[str] = frozenset()) -> LevelPlace:
        each = by_path.get(path)
        if each is None or path in seen:
            raise StoreError(
                f'"derived_from" names {show(path)}, which is {"no level" if each is None else "derived from itself"}'
            )
        moves = each.get("transform")
        moves = moves if isinstance(moves, Mapping) else {}
        scale = _numbers(moves["scale"], path) if "scale" in moves else ()
        shift = _numbers(moves["translation"], path) if "translation" in moves else ()
        source = each.get("derived_from")
        base = LevelPlace() if source is None else placed(_path(each, "derived_from"), seen | {path})
        return LevelPlace(scale, shift).within(base)

    levels = tuple(LevelWords(path, placed(path)) for path in by_path)
    return Description("the convention multiscales", levels, method=_text(said.get("resampling_method")))


def _mapping(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise StoreError(f"An entry of {show(where)} of an image is no object: {show(value)[:80]}")
    return value


def _listed(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list) or not value or len(value) > _MOST:
        raise StoreError(f"{show(where)} of an image is no list of 1 to {_MOST} entries: {show(value)[:80]}")
    return value


def _path(entry: Mapping[str, Any], name: str) -> str:
    value = entry.get(name)
    if not isinstance(value, str) or not value.strip("/"):
        raise StoreError(f"{show(name)} of a level is no path: {show(value)[:80]}")
    return value.strip("/")


def _numbers(value: Any, where: str) -> tuple[float, ...]:
    if not isinstance(value, list) or not all(type(each) in (int, float) for each in value):
        raise StoreError(f"The level {show(where)} is not placed by numbers: {show(value)[:80]}")
    return tuple(map(float, value))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


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
        return (
            np.arange(indices.inclusive_min, indices.exclusive_max) * self.scale[axis]
            + self.translation[axis]
        )

    def region(self, **bounds: tuple[float, float]) -> TensorStore:
        """Return a view of the elements that lie between two places along each axis named: `region(y=(10, 20))`."""
        view: TensorStore = self.store
        for axis, (low, high) in bounds.items():
            indices = self.store.domain[self._dimension(axis)]
            first, last = sorted(
                math.ceil((at - self.translation[axis]) / self.scale[axis]) for at in (low, high)
            )
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
        return max(
            fitting or self.levels[:1], key=lambda level: math.prod(abs(level.scale[axis]) for axis in size)
        )

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


def _made(
    said: Description, axes: tuple[ImageAxis, ...], levels: list[ImageLevel], group: Group | None
) -> Multiscale:
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
        raise StoreError(
            f"The level {quote(words.path)} is a group of the arrays {names}; choose one with variable="
        )
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
    return ImageLevel(
        words.path, store, dict(zip(names, scale, strict=True)), dict(zip(names, shift, strict=True))
    )


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
    return (
        f"{group!r} has no metadata of an image in several resolutions; build_pyramid makes one of an array"
    )


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
