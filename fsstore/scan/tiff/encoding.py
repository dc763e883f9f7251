"""How the tiles and strips of a TIFF page are encoded, in the words of zarr v2.

Names are those that tifffile writes into reference sets, so that a saved scan is read by other libraries too.  Added
are `imagecodecs_packints` and `imagecodecs_bitorder` (samples of other than 8, 16, 32 or 64 bits, and bytes whose
bits stand the other way round), and `tiff_strips`, for images whose last strip is shorter than the others.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsstore.errors import UnimplementedError
from fsstore.scan.tiff.page import TiffPage
from fsstore.values.json_value import Json

__all__ = ["JPEG_NUMBERS", "TiffEncoding", "dtype_of_page", "encoding_of", "is_run"]

_ZSTD: dict[str, Json] = {"id": "imagecodecs_zstd"}
_ZLIB: dict[str, Json] = {"id": "zlib", "level": 1}
_COMPRESSORS: Mapping[int, dict[str, Json]] = {
    5: {"id": "imagecodecs_lzw"},
    8: _ZLIB,
    32946: _ZLIB,
    50013: _ZLIB,
    32773: {"id": "imagecodecs_packbits"},
    34925: {"id": "imagecodecs_lzma"},
    34926: _ZSTD,
    50000: _ZSTD,
}
_IMAGES: Mapping[int, str] = {
    7: "jpeg",
    33007: "jpeg",
    34892: "jpeg",
    33003: "jpeg2k",
    33004: "jpeg2k",
    33005: "jpeg2k",
    34712: "jpeg2k",
    22610: "jpegxr",
    34934: "jpegxr",
    34887: "lerc",
    34933: "png",
    34927: "webp",
    50001: "webp",
    50002: "jpegxl",
    52546: "jpegxl",
}
JPEG_NUMBERS = tuple(number for number, name in _IMAGES.items() if name == "jpeg")
_KINDS = {1: "u", 2: "i", 3: "f", 4: "u", 6: "c"}
_WIDTHS = {"u": (8, 16, 32, 64), "i": (8, 16, 32, 64), "f": (16, 32, 64), "c": (64, 128)}
_OTHERS = {2: "CCITT", 3: "CCITT", 4: "CCITT", 6: "JPEG of the old style", 34661: "JBIG"}


@dataclass(frozen=True, slots=True)
class TiffEncoding:
    """The encoding of a page, as the metadata of its array say it."""

    dtype: str
    filters: tuple[dict[str, Json], ...] = ()
    compressor: dict[str, Json] | None = None


def is_run(page: TiffPage) -> bool:
    """Return whether the samples of a page stand in the file as in memory, in one run.

    A single tile may be larger than the image: its rows then lie apart.
    """
    whole = page.segments == 1 and page.tile == (page.height, page.width)
    plain = page.compression == 1 and page.fill_order == 1 and page.predictor == 1
    return whole and plain and page.bits[0] % 8 == 0


def dtype_of_page(page: TiffPage, letter: str) -> str:
    """Return the data type of samples; raises `UnimplementedError` if there is none."""
    if len(set(page.bits)) > 1 or len(set(page.formats)) > 1:
        raise UnimplementedError(f"its samples are not all of one type: bits {page.bits}")
    bits, kind = page.bits[0], _KINDS.get(page.formats[0])
    if kind is None:
        raise UnimplementedError(f"sample format {page.formats[0]} is not supported")
    if kind == "u" and 0 < bits < 32 and bits not in _WIDTHS["u"]:
        wide = next(each for each in _WIDTHS["u"] if each >= bits)
        return "|u1" if wide == 8 else f"<u{wide // 8}"
    if bits not in _WIDTHS[kind]:
        raise UnimplementedError(f"samples of {bits} bits and format {page.formats[0]} are not supported")
    return f"|{kind}1" if bits == 8 else f"{letter}{kind}{bits // 8}"


def encoding_of(
    page: TiffPage, letter: str, *, jfif: bool = False, tables: bytes | None = None
) -> TiffEncoding:
    """Return how the tiles or strips of a page are encoded; raises `UnimplementedError` where no codec decodes them.

    `jfif` says that JPEG data have a header of their own, `tables` are those that stand beside them.
    """
    dtype = dtype_of_page(page, letter)
    _check(page)
    filters, compressor = _steps(page, dtype, page.chunks, _jpeg(page, jfif=jfif, tables=tables))
    if page.is_tiled or page.last_rows == page.tile[0] or compressor is None:
        return TiffEncoding(dtype, tuple(filters), compressor)
    parts = {}
    for name, rows in {"full": page.tile[0], "last": page.last_rows}.items():
        shape = _with_rows(page, rows)
        filters, compressor = _steps(page, dtype, shape, _jpeg(page, jfif=jfif, tables=tables))
        parts[name] = {"shape": list(shape), "filters": list(filters), "compressor": compressor}
    return TiffEncoding(dtype, (), {"id": "tiff_strips", **parts})


def _with_rows(page: TiffPage, rows: int) -> tuple[int, ...]:
    at = page.axes.index("y")
    return (*page.chunks[:at], rows, *page.chunks[at + 1 :])


def _check(page: TiffPage) -> None:
    """Raise where samples are laid out in a way that no codec undoes."""
    if page.values.integer(32998, 1) > 1:
        raise UnimplementedError("it has tiles of several planes")
    subsampled = page.values.integers(530, (2, 2) if page.photometric == 6 else ())
    if page.photometric == 6 and page.compression not in _IMAGES and any(each > 1 for each in subsampled):
        raise UnimplementedError("its colours have fewer samples than its pixels, outside of JPEG")
    if page.compression in JPEG_NUMBERS and page.bits[0] != 8:
        raise UnimplementedError(f"JPEG of {page.bits[0]} bits is not supported")
    if page.compression in JPEG_NUMBERS and page.photometric > 3 and page.photometric != 6 and not page.extra:
        raise UnimplementedError(f"JPEG of photometric interpretation {page.photometric} is not supported")
    if page.compression != 1 and page.compression not in {*_COMPRESSORS, *_IMAGES}:
        name = _OTHERS.get(page.compression, "")
        raise UnimplementedError(
            f"compression {page.compression}{f' ({name})' if name else ''} is not supported"
        )


def _jpeg(page: TiffPage, *, jfif: bool, tables: bytes | None) -> dict[str, Json]:
    """Return the options of JPEG: shared tables, the colours of the data and those of the result."""
    if page.compression not in JPEG_NUMBERS:
        return {}
    stored, wanted = None, None
    if not page.extra and page.photometric == 6:
        wanted = 2
    elif not page.extra and page.photometric == 2:
        stored, wanted = None if jfif else 2, 2
    if page.planar == 2:
        wanted = 1
    encoded = base64.b64encode(tables).decode("ascii") if tables else None
    return {"tables": encoded, "header": None, "colorspace_jpeg": stored, "colorspace_data": wanted}


def _steps(
    page: TiffPage, dtype: str, shape: Sequence[int], jpeg: Mapping[str, Json]
) -> tuple[list[dict[str, Json]], dict[str, Json] | None]:
    """Return filters and compressor for tiles or strips of a shape."""
    filters: list[dict[str, Json]] = []
    if page.compression in _IMAGES:
        return _image(page, jpeg)
    axis = -1 if page.samples == 1 or page.planar == 2 else -2
    if page.predictor in (2, 3):
        name = "imagecodecs_delta" if page.predictor == 2 else "imagecodecs_floatpred"
        if page.bits[0] % 8:
            raise UnimplementedError(f"a predictor over samples of {page.bits[0]} bits is not supported")
        filters.append({"id": name, "axis": axis, "dist": 1, "shape": list(shape), "dtype": dtype})
    elif page.predictor not in (0, 1):
        raise UnimplementedError(f"predictor {page.predictor} is not supported")
    if page.bits[0] not in (8, 16, 32, 64, 128):
        run = page.plane_bits // page.bits[0]
        filters.append(
            {"id": "imagecodecs_packints", "dtype": dtype, "bitspersample": page.bits[0], "runlen": run}
        )
    order: Any = [{"id": "imagecodecs_bitorder"}] if page.fill_order == 2 else []
    compressor = _COMPRESSORS.get(page.compression)
    if compressor is None:
        return [*filters, *order], None
    if not order:
        return filters, dict(compressor)
    return [*filters, dict(compressor)], order[0]


def _image(page: TiffPage, jpeg: Mapping[str, Json]) -> tuple[list[dict[str, Json]], dict[str, Json] | None]:
    name = _IMAGES[page.compression]
    step: dict[str, Json] = {"id": f"imagecodecs_{name}", **jpeg}
    if page.bits[0] not in (8, 16, 32, 64):
        raise UnimplementedError(f"{name} of {page.bits[0]} bits is not supported")
    if name == "webp" and page.samples == 4:
        step["hasalpha"] = True
    if name == "lerc":
        around = page.values.integers(50674, (0, 0))[1:2]
        if around == (1,):
            return [step], dict(_ZLIB)
        if around == (2,):
            return [step], dict(_ZSTD)
    return [], step
