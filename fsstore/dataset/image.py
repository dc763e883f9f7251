"""Descriptions of images in the attributes of groups: resolutions with their axes and places, labels, plates and wells.

Nothing here reads or writes.  The words are those of OME-Zarr 0.4 and 0.5, and of the convention `multiscales`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsstore.errors import StoreError
from fsstore.values.json_value import show

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
    datasets = [{"path": level.path, "coordinateTransformations": level.place.words(len(axes))} for level in levels]
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
        vocabulary, tuple(levels), _axes(image.get("axes")), _text(image.get("name")), _text(image.get("type"))
    )


def _axes(listed: Any) -> tuple[ImageAxis, ...]:
    found = []
    for each in listed if isinstance(listed, list) else []:
        if isinstance(each, str):
            found.append(ImageAxis(each, kind_of(each)))
        elif isinstance(each, Mapping) and isinstance(each.get("name"), str):
            name = each["name"]
            found.append(ImageAxis(name, _text(each.get("type")) or kind_of(name), _text(each.get("unit")) or None))
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


# Leads from a group to images below it: a plate to its wells, a well to its fields, an image to its labels.


@dataclass(frozen=True, slots=True)
class Lead:
    """A path on which images lie, below a group whose attributes name it."""

    path: str
    well: str = ""
    """The row and the column of the well, as the plate names them: `A/1`."""
    acquisition: int | None = None


def leads_of(attributes: Mapping[str, Any]) -> tuple[Lead, ...]:
    """Return where attributes say that images lie below their group, in the order in which they say it.

    >>> [lead.path for lead in leads_of({"plate": {"wells": [{"path": "A/1"}, {"path": "A/2"}]}})]
    ['A/1', 'A/2']
    """
    words = _spoken(attributes)
    plate, well, labels = (words.get(name) for name in ("plate", "well", "labels"))
    if isinstance(plate, Mapping):
        paths = [_path(_entry(each), "path") for each in _many(plate.get("wells"), "wells")]
        return tuple(Lead(path, well=path) for path in paths)
    if isinstance(well, Mapping):
        fields = [_entry(each) for each in _many(well.get("images"), "images")]
        return tuple(Lead(_path(each, "path"), acquisition=_whole(each.get("acquisition"))) for each in fields)
    return tuple(Lead(_path({"path": each}, "path")) for each in labels) if isinstance(labels, list) else ()


def role_of(attributes: Mapping[str, Any]) -> str:
    """Return what a group is among images, in a few words; nothing if it is none, or is not to be understood.

    >>> role_of({"plate": {"rows": [{"name": "A"}], "columns": [{"name": "1"}, {"name": "2"}], "wells": []}})
    'plate, 1 by 2, 0 wells'
    """
    try:
        return _role(attributes)
    except StoreError:  # a listing shows it all the same
        return ""


def _role(attributes: Mapping[str, Any]) -> str:
    words = _spoken(attributes)
    leads = leads_of(attributes)
    if isinstance(words.get("plate"), Mapping):
        rows, columns = plate_sides(attributes)
        return f"plate, {len(rows)} by {len(columns)}, {_count(len(leads), 'well')}"
    if isinstance(words.get("well"), Mapping):
        return f"well, {_count(len(leads), 'field')}"
    image = described(attributes)
    if image is not None:
        return f"{'labels' if is_labels(attributes) else 'image'}, {_count(len(image.levels), 'level')}"
    return ""


def plate_sides(attributes: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the names of the rows and of the columns of a plate; none of what is no plate."""
    plate = _spoken(attributes).get("plate")
    if not isinstance(plate, Mapping):
        return [], []
    rows, columns = (
        [_text(_entry(each).get("name")) for each in _many(plate.get(side), side)] for side in ("rows", "columns")
    )
    return rows, columns


def is_labels(attributes: Mapping[str, Any]) -> bool:
    """Return whether the values of an image are numbers of things that it shows, not intensities."""
    return "image-label" in _spoken(attributes)


def label_colours(attributes: Mapping[str, Any]) -> dict[int, tuple[float, ...]]:
    """Return the colours that an image of labels gives its values: red, green, blue and opacity, from 0 to 1."""
    said = _spoken(attributes).get("image-label")
    found = {}
    for each in _many(said.get("colors", []) if isinstance(said, Mapping) else [], "colors"):
        value, colour = _whole(_entry(each).get("label-value")), each.get("rgba")
        if value is not None and colour is not None:
            found[value] = tuple(number / 255 for number in _numbers(colour, "rgba"))
    return found


def channels_of(attributes: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return what `omero` says of the channels of an image, one entry each; none if it says nothing."""
    said = _spoken(attributes).get("omero")
    listed = said.get("channels") if isinstance(said, Mapping) else None
    return [each if isinstance(each, Mapping) else {} for each in listed] if isinstance(listed, list) else []


def _spoken(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the attributes in which OME-Zarr speaks: those inside `ome` since 0.5."""
    inner = attributes.get("ome")
    return inner if isinstance(inner, Mapping) else attributes


def _many(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise StoreError(f"{show(where)} of OME-Zarr is no list: {show(value)[:80]}")
    return value


def _entry(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise StoreError(f"An entry of OME-Zarr is no object: {show(value)[:80]}")
    return value


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
