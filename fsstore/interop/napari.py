"""A reader for napari: images in several resolutions with their labels, plates, and plain arrays, as lazy layers.

napari finds it by the manifest beside this module, and asks `get_reader` about each path that is opened.  Channels are
layers of their own, and nothing is read before it is drawn; napari itself is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from fsstore.arrays.layers import cast
from fsstore.arrays.store import TensorStore
from fsstore.context.context import Context
from fsstore.dataset.group import Group
from fsstore.dataset.image import channels_of, is_labels, label_colours, plate_sides
from fsstore.dataset.multiscale import ImageEntry, ImageLevel, Multiscale, list_images, open_multiscale
from fsstore.errors import StoreError
from fsstore.index import d
from fsstore.job.ends import opened_source
from fsstore.runtime import execution
from fsstore.sync import StoredArray

Layer: TypeAlias = tuple[Any, dict[str, Any], str]
Reader: TypeAlias = Callable[[Any], list[Layer]]

_MOST = 512  # layers; napari draws each in every frame
_PREFIXES = ("", "milli", "micro", "nano", "pico")
_UNITS = frozenset(
    (
        "angstrom",
        "centimeter",
        "minute",
        "hour",
        "day",
        *(f"{each}{unit}" for unit in ("meter", "second") for each in _PREFIXES),
    )
)
"""The units of OME-Zarr that napari knows by the same names."""


def get_reader(path: str | Sequence[str]) -> Reader | None:
    """Return what makes layers of a path or URL; None where there is neither an image nor an array with a picture.

    >>> get_reader("memory://nothing/") is None
    True
    """
    if not isinstance(path, str):  # several files, which napari means to be one stack
        return None
    try:
        opened = execution.call(opened_source(path, Context()))
    except (StoreError, ValueError):  # another reader may know what it is
        return None
    if isinstance(opened, TensorStore):
        return _reader_of_array(path, opened)
    found = list_images(opened)
    return (lambda _: list(_layers(opened, found))) if found else None


def _reader_of_array(path: str, store: TensorStore) -> Reader | None:
    if store.rank < 2 or store.dtype.numpy_dtype.kind not in "biuf":
        return None
    if store.spec().to_json().get("driver") == "neuroglancer_precomputed":
        return lambda _: list(_layers_of(open_multiscale(path).result(), ""))
    name = path.rstrip("/").rpartition("/")[2]
    return lambda _: [(StoredArray(store), {"name": name}, "image")]


def _layers(group: Group, found: Sequence[ImageEntry]) -> Iterator[Layer]:
    if len(found) > _MOST:
        raise StoreError(f"{group!r} has {len(found)} images, and napari gets at most {_MOST}; open one of its wells")
    begun = [open_multiscale(group[each.path] if each.path else group) for each in found]
    images = [each.result() for each in begun]
    for each, image, place in zip(found, images, _places(group, found, images), strict=True):
        yield from _layers_of(image, each.path, place)


def _places(group: Group, found: Sequence[ImageEntry], images: Sequence[Multiscale]) -> list[dict[str, float]]:
    """Return how far each image of a plate is moved: wells are rows and columns, their fields go across."""
    rows, columns = plate_sides(group.attrs.asdict())
    numbers: dict[str, int] = {}
    fields = []
    for each in found:  # labels come behind the field that they belong to
        numbers[each.well] = numbers.get(each.well, -1) + (each.kind == "image")
        fields.append(max(0, numbers[each.well]))
    wide, tall = (max(_extent(image[0], axis) for image in images) for axis in ("x", "y"))
    across = wide * (max(fields) + 1)
    moved: list[dict[str, float]] = []
    for each, field in zip(found, fields, strict=True):
        row, _, column = each.well.partition("/")
        is_placed = row in rows and column in columns
        x = columns.index(column) * across + field * wide if is_placed else 0.0
        moved.append({"y": rows.index(row) * tall, "x": x} if is_placed else {})
    return moved


def _extent(level: ImageLevel, axis: str) -> float:
    return abs(level.scale[axis]) * level.shape[list(level.scale).index(axis)] if axis in level.scale else 0.0


def _layers_of(image: Multiscale, path: str, moved: Mapping[str, float] | None = None) -> Iterator[Layer]:
    """Yield the layers of an image: one for each channel, with its levels, where its elements lie, and its colours."""
    attributes = image.group.attrs.asdict() if image.group is not None else {}
    names = [axis.name for axis in image.axes]
    channel = next((number for number, axis in enumerate(image.axes) if axis.kind == "channel"), None)
    axes = [axis for axis in image.axes if axis.kind != "channel"]
    finest = image[0]
    about: dict[str, Any] = {
        "multiscale": len(image) > 1,
        "scale": tuple(finest.scale[axis.name] for axis in axes),
        "translate": tuple(finest.translation[axis.name] + (moved or {}).get(axis.name, 0.0) for axis in axes),
        "axis_labels": tuple(axis.name for axis in axes),
        "metadata": {"path": path, "vocabulary": image.vocabulary},
    }
    if axes and all(axis.unit in _UNITS for axis in axes):
        about["units"] = tuple(axis.unit for axis in axes)
    stores = [level.store for level in image]
    title = image.name or path or "image"
    if channel is None:
        yield _layer(stores, {**about, "name": title}, attributes, {})
        return
    told = channels_of(attributes)
    for number in range(finest.shape[channel]):
        said = told[number] if number < len(told) else {}
        parts = [store[d[names[channel]][store.domain[channel].inclusive_min + number]] for store in stores]
        label = said.get("label")
        name = f"{title} {label if isinstance(label, str) else number}" if finest.shape[channel] > 1 else title
        yield _layer(parts, {**about, "name": name}, attributes, said)


def _layer(
    stores: Sequence[TensorStore], about: dict[str, Any], attributes: Mapping[str, Any], said: Mapping[str, Any]
) -> Layer:
    """Return a layer: of labels with their colours, or of intensities with what `omero` says of their channel."""
    whole = [cast(each, "uint8") if each.dtype.name == "bool" else each for each in stores]
    levels = [StoredArray[Any](each) for each in whole]
    data = levels if about["multiscale"] else levels[0]
    if is_labels(attributes) and levels[0].dtype.kind in "iu":
        colours = label_colours(attributes)
        shades: dict[int | None, tuple[float, ...]] = {None: (0.0,) * 4}
        shades |= dict(colours.items())
        known = {"colormap": shades} if colours else {}
        return data, {**about, **known}, "labels"
    window, colour = said.get("window"), said.get("color")
    if isinstance(window, Mapping):
        low, high = window.get("start"), window.get("end")
        if isinstance(low, int | float) and isinstance(high, int | float) and low < high:
            about["contrast_limits"] = (low, high)
    if isinstance(colour, str) and len(colour) == 6 and not set(colour.lower()) - set("0123456789abcdef"):
        about |= {"colormap": f"#{colour}", "blending": "additive"}
    if isinstance(said.get("active"), bool):
        about["visible"] = said["active"]
    return data, about, "image"
