"""The arrays that the XML of OME-TIFF describes: which page is which plane, sizes of pixels, names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree import ElementTree as ET

import numpy as np

from fsstore.scan.tiff.geography import parse_xml
from fsstore.scan.tiff.page import TiffPage
from fsstore.scan.tiff.series import TiffImage, TiffLevel, levels_below, stacked
from fsstore.values.json_value import Json

__all__ = ["ome_images"]

_MOST_PLANES = 10**6
_MOST_TEXT = 64 * 2**20


def ome_images(pages: Sequence[TiffPage], notes: dict[str, str]) -> list[TiffImage] | None:
    """Return the images of an OME-TIFF file, None for other files; what is left out is noted by name."""
    text = pages[0].text
    if not text.rstrip().endswith("OME>") or "<OME" not in text[:4096]:
        return None
    root = parse_xml(text) if len(text) <= _MOST_TEXT else None
    if root is None:
        return None
    own, out = root.get("UUID"), []
    images = [each for each in root.iter() if _name(each) == "Image"]
    for number, element in enumerate(images):
        label = element.get("Name") or f"image {number}"
        try:
            found = _image(element, pages, label, own)
        except _NoImageError as why:
            notes[f"image {number}"] = str(why)
            continue
        out.append(found)
    return out or None


class _NoImageError(Exception):
    """An image cannot be shown."""


def _name(element: ET.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def _children(element: ET.Element, name: str) -> list[ET.Element]:
    return [each for each in element if _name(each) == name]


def _count(element: ET.Element, name: str, default: int) -> int:
    text = element.get(name)
    try:
        found = default if text is None else int(text)
    except ValueError:
        raise _NoImageError(f"its {name} is no number") from None
    if found < 0:
        raise _NoImageError(f"its {name} is negative")
    return found


def _image(element: ET.Element, pages: Sequence[TiffPage], label: str, own: str | None) -> TiffImage:
    described = _children(element, "Pixels")
    if not described:
        raise _NoImageError("it has no pixels")
    pixels = described[0]
    order = pixels.get("DimensionOrder", "XYCZT")[2:].lower()
    if sorted(order) != ["c", "t", "z"]:
        raise _NoImageError("its order of dimensions is none")
    sizes = {axis: _count(pixels, f"Size{axis.upper()}", 1) for axis in "ctz"}
    channels = _children(pixels, "Channel")
    samples = max((_count(each, "SamplesPerPixel", 1) for each in channels), default=1)
    if samples > 1:
        sizes["c"] = -(-sizes["c"] // samples)
    axes = order[::-1]
    lead = [sizes[axis] for axis in axes]
    if not 0 < math.prod(lead) <= _MOST_PLANES:
        raise _NoImageError(f"it has {math.prod(lead)} planes")
    level = _level(pixels, pages, (lead, axes), own)
    attributes: dict[str, Json] = {"name": label}
    names = [each.get("Name") for each in channels]
    if any(names):
        attributes["channels"] = list(names)
    physical = {"x": "PhysicalSizeX", "y": "PhysicalSizeY", "z": "PhysicalSizeZ", "t": "TimeIncrement"}
    scales, units = {}, {}
    for axis, name in physical.items():
        try:
            scales[axis] = float(pixels.get(name) or "nan")
        except ValueError:
            continue
        unit = pixels.get(f"{name}Unit")
        if unit:
            units[axis] = _UNITS.get(unit, unit)
        elif axis in "xyz":
            units[axis] = "micrometer"
        else:
            units[axis] = "second"
    scales = {axis: scale for axis, scale in scales.items() if math.isfinite(scale) and scale > 0}
    return TiffImage([level, *levels_below(level)], attributes, scales, units)


_UNITS = {"µm": "micrometer", "\u03bcm": "micrometer", "nm": "nanometer", "mm": "millimeter", "s": "second"}


def _level(
    pixels: ET.Element, pages: Sequence[TiffPage], shape_of: tuple[list[int], str], own: str | None
) -> TiffLevel:
    """Return the largest array of an image: the page of each plane.  `own` is how the document calls this file."""
    lead, axes = shape_of
    order = axes[::-1]  # the quickest first
    shape = [lead[axes.index(axis)] for axis in order]
    planes = np.full(math.prod(lead), -1, np.int64)
    listed = _children(pixels, "TiffData")
    for data in listed:
        if any(each.get("FileName") and each.text != own for each in _children(data, "UUID")):
            raise _NoImageError("planes of it stand in other files")
        first = [_count(data, f"First{axis.upper()}", 0) for axis in order]
        if any(at >= size for at, size in zip(first, shape, strict=True)):
            raise _NoImageError("it has a plane outside of its shape")
        start = first[0] + shape[0] * (first[1] + shape[1] * first[2])
        page = _count(data, "IFD", 0)
        given = data.get("IFD") is not None or data.get("PlaneCount") is not None
        count = _count(data, "PlaneCount", 1 if given else len(planes) - start)
        count = min(count, len(planes) - start)
        planes[start : start + count] = np.arange(page, page + count)
    if not listed:
        planes[:] = np.arange(len(planes))
    if planes.max(initial=-1) >= len(pages):
        raise _NoImageError(f"it has a plane on page {planes.max()} of {len(pages)}")
    arranged = planes.reshape(lead[0], lead[1], lead[2]).ravel()
    found = [None if at < 0 else pages[at] for at in arranged.tolist()]
    known = [each for each in found if each is not None]
    if not known:
        raise _NoImageError("it has no planes")
    if any(each.key != known[0].key for each in known):
        raise _NoImageError("its planes are not alike")
    return stacked(found, lead, axes)
