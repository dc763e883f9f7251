"""Geography of GeoTIFF, and the XML of OME-TIFF."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree import ElementTree as ET

import numpy as np

from fsstore.scan.tiff_directory import TiffPage, TiffValues
from fsstore.scan.tiff_series import TiffImage, TiffLevel, levels_below, stacked
from fsstore.values.json_value import Json

# Where on earth an image is, and what GDAL says of it: the tags of GeoTIFF and GDAL as attributes.
#
# Attributes have the names of the tags. Two are added: `crs`, the code of the reference system, and
# `transform`, the six numbers that map columns and rows (of pixel corners) to coordinates.

_SCALE, _TIES, _MATRIX, _KEYS, _DOUBLES, _TEXTS = 33550, 33922, 34264, 34735, 34736, 34737
_GDAL, _NODATA = 42112, 42113
_NAMES = {
    1024: "GTModelType",
    1025: "GTRasterType",
    1026: "GTCitation",
    2048: "GeodeticCRS",
    2049: "GeodeticCitation",
    2050: "GeodeticDatum",
    2051: "PrimeMeridian",
    2052: "GeogLinearUnits",
    2053: "GeogLinearUnitSize",
    2054: "GeogAngularUnits",
    2055: "GeogAngularUnitSize",
    2056: "Ellipsoid",
    2057: "EllipsoidSemiMajorAxis",
    2058: "EllipsoidSemiMinorAxis",
    2059: "EllipsoidInvFlattening",
    2060: "GeogAzimuthUnits",
    2061: "PrimeMeridianLongitude",
    2062: "GeogTOWGS84",
    3072: "ProjectedCRS",
    3073: "ProjectedCitation",
    3074: "Projection",
    3075: "ProjMethod",
    3076: "ProjLinearUnits",
    3077: "ProjLinearUnitSize",
    3078: "ProjStdParallel1",
    3079: "ProjStdParallel2",
    3080: "ProjNatOriginLong",
    3081: "ProjNatOriginLat",
    3082: "ProjFalseEasting",
    3083: "ProjFalseNorthing",
    3084: "ProjFalseOriginLong",
    3085: "ProjFalseOriginLat",
    3086: "ProjFalseOriginEasting",
    3087: "ProjFalseOriginNorthing",
    3088: "ProjCenterLong",
    3089: "ProjCenterLat",
    3090: "ProjCenterEasting",
    3091: "ProjCenterNorthing",
    3092: "ProjScaleAtNatOrigin",
    3093: "ProjScaleAtCenter",
    3094: "ProjAzimuthAngle",
    3095: "ProjStraightVertPoleLong",
    3096: "ProjRectifiedGridAngle",
    4096: "VerticalCRS",
    4097: "VerticalCitation",
    4098: "VerticalDatum",
    4099: "VerticalUnits",
}
_USER = 32767


def parse_xml(text: str) -> ET.Element | None:
    """Return the root of a document, None if it is none; one that defines entities is not believed."""
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        return None
    try:
        return ET.fromstring(text.strip("\0 \r\n\t\ufeff"))  # noqa: S314  # entities are refused above
    except (ET.ParseError, ValueError):
        return None


def _list(numbers: Sequence[float]) -> list[Json]:
    return [each if math.isfinite(each) else None for each in numbers]


def geography(values: TiffValues) -> dict[str, Json]:
    """Return the attributes of a georeferenced image, nothing for others."""
    numbers, out = values.numbers, dict[str, Json]()
    for tag, name in {_SCALE: "ModelPixelScale", _TIES: "ModelTiepoint", _MATRIX: "ModelTransformation"}.items():
        if numbers.get(tag):
            out[name] = _list(numbers[tag])
    keys = _geo_keys(values)
    if keys:
        out["GeoKeys"] = keys
    transform = _transform(values, is_point=keys.get("GTRasterType") == 2)
    if transform:
        out["transform"] = _list(transform)
    for name in ("ProjectedCRS", "GeodeticCRS"):
        code = keys.get(name)
        if isinstance(code, int) and 0 < code < _USER and "crs" not in out:
            out["crs"] = f"EPSG:{code}"
    return out


def _geo_keys(values: TiffValues) -> dict[str, Json]:
    listed = values.integers(_KEYS)
    doubles, text = values.numbers.get(_DOUBLES, ()), values.texts.get(_TEXTS, b"")
    out: dict[str, Json] = {}
    for at in range(4, len(listed) - 3, 4):
        key, where, count, value = listed[at : at + 4]
        name = _NAMES.get(key, str(key))
        if where == 0:
            out[name] = value
        elif where == _DOUBLES and value + count <= len(doubles):
            found = _list(doubles[value : value + count])
            out[name] = found[0] if count == 1 else found
        elif where == _TEXTS and value + count <= len(text):
            out[name] = text[value : value + count].decode("utf-8", "replace").rstrip("|\0")
    return out


def _transform(values: TiffValues, *, is_point: bool) -> list[float]:
    """Return the six numbers of the affine transform; nothing if ground control points or nothing are given."""
    matrix, scale, ties = (values.numbers.get(tag, ()) for tag in (_MATRIX, _SCALE, _TIES))
    if len(matrix) >= 8:
        out = [matrix[0], matrix[1], matrix[3], matrix[4], matrix[5], matrix[7]]
    elif len(scale) >= 2 and len(ties) == 6:
        out = [scale[0], 0.0, ties[3] - ties[0] * scale[0], 0.0, -scale[1], ties[4] + ties[1] * scale[1]]
    else:
        return []
    if is_point:  # the transform is meant for corners
        out[2] -= (out[0] + out[1]) / 2
        out[5] -= (out[3] + out[4]) / 2
    return out


def nodata(values: TiffValues) -> float | None:
    """Return the number that stands for no data; GDAL writes it as text."""
    text = values.texts.get(_NODATA, b"").rstrip(b"\0 ").decode("ascii", "replace").strip()
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        return None


def scaling(values: TiffValues, samples: int) -> dict[str, Json]:
    """Return GDAL's metadata as attributes; scale and offset of values, where all samples share them."""
    raw = values.texts.get(_GDAL)
    root = None if raw is None else parse_xml(raw.decode("utf-8", "replace"))
    if root is None:
        return {}
    items: dict[str, Json] = {}
    found: dict[str, dict[str, float]] = {"scale": {}, "offset": {}}
    for item in root.iter("Item"):
        name, sample, role = item.get("name", ""), item.get("sample"), item.get("role", "")
        text = (item.text or "").strip()
        if role in found and sample is not None:
            try:
                found[role][sample] = float(text)
            except ValueError:
                continue
        elif name:
            items[name if sample is None else f"{name}#{sample}"] = text
    out: dict[str, Json] = {"GDAL": items} if items else {}
    for role, name in {"scale": "scale_factor", "offset": "add_offset"}.items():
        shared = set(found[role].values())
        if len(shared) == 1 and len(found[role]) == samples and math.isfinite(min(shared)):
            out[name] = shared.pop()
        elif shared:
            out[f"{name}s"] = dict(found[role])
    return out


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
