"""An image in several resolutions, as attributes describe it: axes, and where the elements of each level lie.

Two vocabularies are read: `multiscales` of OME-Zarr (0.4 in the attributes themselves, 0.5 below `ome`, and what older
versions say of paths and axes), and the convention `multiscales` of zarr, whose levels are derived from each other.
A place is one scale and one translation a dimension: the element with the index `i` lies at `scale * i +
translation`, in the units of the axes or, where there are none, in elements of the finest level.  OME-Zarr is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsstore.errors import StoreError
from fsstore.values.json_value import show

__all__ = [
    "Description",
    "ImageAxis",
    "LevelPlace",
    "LevelWords",
    "described",
    "image_words",
    "kind_of",
    "ome_image",
    "with_image",
]

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
