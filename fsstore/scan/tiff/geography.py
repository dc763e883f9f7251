"""Where on earth an image is, and what GDAL says of it: the tags of GeoTIFF and GDAL as attributes.

Attributes have the names of the tags.  Two are added: `crs`, the code of the reference system, and `transform`, the six
numbers that map columns and rows (of pixel corners) to coordinates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from fsstore.scan.tiff.directory import TiffValues
from fsstore.values.json_value import Json

__all__ = ["geography", "nodata", "parse_xml", "scaling"]

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
    for tag, name in {
        _SCALE: "ModelPixelScale",
        _TIES: "ModelTiepoint",
        _MATRIX: "ModelTransformation",
    }.items():
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
    """Return the keys by name: numbers, lists of them, or text."""
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
