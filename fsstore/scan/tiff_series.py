"""Pages that belong together: how they are encoded, and the images, levels and series they make."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fsstore.errors import UnimplementedError
from fsstore.scan.tiff_directory import TiffPage
from fsstore.values.json_value import Json

# How the tiles and strips of a TIFF page are encoded, in the words of zarr v2.
#
# Names are those that tifffile writes into reference sets, so that a saved scan is read by other libraries
# too. Added are `imagecodecs_packints` and `imagecodecs_bitorder` (samples of other than 8, 16, 32 or 64
# bits, and bytes whose bits stand the other way round), and `tiff_strips`, for images whose last strip is
# shorter than the others.

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
_COMPLEX_INTEGERS = 5
_WIDTHS = {"u": (8, 16, 32, 64), "i": (8, 16, 32, 64), "f": (16, 32, 64), "c": (64, 128)}
_FAXES = {2: "rle", 3: "fax3", 4: "fax4"}
_OLD_JPEG, _LOG, _LOG24 = 6, 34676, 34677
_YCBCR, _LOG_GREY, _LOG_COLOURS = 6, 32844, 32845
_LOSSLESS = 14
_MOST_PADDING = 4  # times the size of an image that its tile may have
_OTHERS = {34661: "JBIG"}


@dataclass(frozen=True, slots=True)
class TiffEncoding:
    """The encoding of a page, as the metadata of its array say it."""

    dtype: Json
    filters: tuple[dict[str, Json], ...] = ()
    compressor: dict[str, Json] | None = None


def is_libtiffs(page: TiffPage) -> bool:
    """Return whether only libtiff decodes a page, of which it needs the whole file.

    Strips of old JPEG follow one another within a stream whose parts stand anywhere.
    """
    if page.compression in (_OLD_JPEG, _LOG, _LOG24):
        return True
    subsampled = page.values.integers(530, (2, 2))
    return page.photometric == _YCBCR and page.compression not in _IMAGES and any(each > 1 for each in subsampled)


def is_run(page: TiffPage) -> bool:
    """Return whether the samples of a page stand in the file as in memory, in one run.

    A single tile may be larger than the image: its rows then lie apart.
    """
    if is_libtiffs(page):
        return False
    whole = page.segments == 1 and page.tile == (page.height, page.width)
    plain = page.compression == 1 and page.fill_order == 1 and page.predictor == 1
    return whole and plain and page.bits[0] % 8 == 0


def dtype_of_page(page: TiffPage, letter: str) -> Json:
    """Return the data type of samples; raises `UnimplementedError` if there is none.

    Complex integers are records of their two parts.
    """
    if len(set(page.bits)) > 1 or len(set(page.formats)) > 1:
        raise UnimplementedError(f"its samples are not all of one type: bits {page.bits}")
    bits, kind = page.bits[0], _KINDS.get(page.formats[0])
    if page.formats[0] == _COMPLEX_INTEGERS and bits in (32, 64) and page.predictor == 1:
        return [[part, f"{letter}i{bits // 16}"] for part in ("real", "imag")]
    if kind is None:
        raise UnimplementedError(f"sample format {page.formats[0]} is not supported")
    if kind == "u" and 0 < bits < 32 and bits not in _WIDTHS["u"]:
        wide = next(each for each in _WIDTHS["u"] if each >= bits)
        return "|u1" if wide == 8 else f"<u{wide // 8}"
    if bits not in _WIDTHS[kind]:
        raise UnimplementedError(f"samples of {bits} bits and format {page.formats[0]} are not supported")
    return f"|{kind}1" if bits == 8 else f"{letter}{kind}{bits // 8}"


def encoding_of(page: TiffPage, letter: str, *, jfif: bool = False, tables: bytes | None = None) -> TiffEncoding:
    """Return how the tiles or strips of a page are encoded; raises `UnimplementedError` where no codec decodes them.

    `jfif` says that JPEG data have a header of their own, `tables` are those that stand beside them.
    """
    dtype = dtype_of_page(page, letter)
    _check(page)
    if is_libtiffs(page):
        shown = f"{letter}f4" if page.photometric == _LOG_COLOURS else dtype
        return TiffEncoding(shown, (), {"id": "imagecodecs_tiff", "index": 0})
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
    if is_libtiffs(page):
        _check_libtiffs(page)
        return
    if page.compression in JPEG_NUMBERS and page.bits[0] != 8:
        raise UnimplementedError(f"JPEG of {page.bits[0]} bits is not supported")
    if page.compression in JPEG_NUMBERS and page.photometric > 6 and not page.extra:
        raise UnimplementedError(f"JPEG of photometric interpretation {page.photometric} is not supported")
    if page.compression != 1 and page.compression not in {*_COMPRESSORS, *_IMAGES, *_FAXES}:
        name = _OTHERS.get(page.compression, "")
        raise UnimplementedError(f"compression {page.compression}{f' ({name})' if name else ''} is not supported")


def _check_libtiffs(page: TiffPage) -> None:
    """Raise where libtiff shows other samples than the page has, or takes memory without bounds."""
    if page.compression == _OLD_JPEG:
        if page.values.integer(512, 1) == _LOSSLESS:
            raise UnimplementedError("lossless JPEG of the old style is not supported")
        if not page.has_tables:
            raise UnimplementedError("it has JPEG of the old style without a stream or tables")
    if page.photometric == _LOG_GREY and (page.formats[0] == 3) != (page.bits[0] == 32):
        raise UnimplementedError(f"logarithms of {page.bits[0]} bits and format {page.formats[0]} are not supported")
    if page.photometric in (_YCBCR, _LOG_COLOURS) and page.samples != 3:
        raise UnimplementedError(f"its colours have {page.samples} samples where there are three")
    if page.photometric == _YCBCR and page.bits[0] != 8:
        raise UnimplementedError(f"its colours have fewer samples than its pixels, of {page.bits[0]} bits")
    if page.planar == 2:
        raise UnimplementedError(f"compression {page.compression} of separate planes is not supported")
    if math.prod(page.tile) > _MOST_PADDING * max(page.height * page.width, 1 << 16):
        raise UnimplementedError(f"its tiles of {page.tile} are much larger than its image")


def _jpeg(page: TiffPage, *, jfif: bool, tables: bytes | None) -> dict[str, Json]:
    """Return the options of JPEG: shared tables, the colours of the data and those of the result."""
    if page.compression not in JPEG_NUMBERS:
        return {}
    stored, wanted = None, None
    if not page.extra and page.photometric == 6:
        wanted = 2
    elif not page.extra and page.photometric == 2:
        stored, wanted = None if jfif else 2, 2
    elif not page.extra and page.photometric == 5:
        wanted = 4
    if page.planar == 2:
        stored, wanted = None, 1
    encoded = base64.b64encode(tables).decode("ascii") if tables else None
    return {"tables": encoded, "header": None, "colorspace_jpeg": stored, "colorspace_data": wanted}


def _steps(
    page: TiffPage, dtype: Json, shape: Sequence[int], jpeg: Mapping[str, Json]
) -> tuple[list[dict[str, Json]], dict[str, Json] | None]:
    """Return filters and compressor for tiles or strips of a shape."""
    filters: list[dict[str, Json]] = []
    if page.compression in _IMAGES:
        return _image(page, jpeg)
    if page.compression in _FAXES:
        return _fax(page, shape)
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
        filters.append({"id": "imagecodecs_packints", "dtype": dtype, "bitspersample": page.bits[0], "runlen": run})
    order: Any = [{"id": "imagecodecs_bitorder"}] if page.fill_order == 2 else []
    compressor = _COMPRESSORS.get(page.compression)
    if compressor is None:
        return [*filters, *order], None
    if not order:
        return filters, dict(compressor)
    return [*filters, dict(compressor)], order[0]


def _fax(page: TiffPage, shape: Sequence[int]) -> tuple[list[dict[str, Json]], dict[str, Json] | None]:
    if page.samples > 1 or page.bits[0] != 1:
        raise UnimplementedError(f"faxes of {page.samples} samples of {page.bits[0]} bits are not supported")
    name = _FAXES[page.compression]
    step: dict[str, Json] = {"id": f"imagecodecs_ccitt{name}", "height": shape[-2], "width": shape[-1]}
    if name == "fax3":
        step["t4options"] = page.values.integer(292)
    return ([step], {"id": "imagecodecs_bitorder"}) if page.fill_order == 2 else ([], step)


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


_FACTORS = (2, 3, 4)
_IMAGEJ_AXES = {"czt": "tzc", "ctz": "ztc", "zct": "tcz", "ztc": "ctz", "tcz": "zct", "tzc": "czt"}


@dataclass(frozen=True, slots=True)
class TiffLevel:
    """One array: pages in the order of the axes before those of a page.

    With `follows` only the first page has a directory, and the data of the others follow its own at once.
    """

    page: TiffPage
    pages: tuple[TiffPage | None, ...]
    lead: tuple[int, ...] = ()
    axes: str = ""
    follows: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return (*self.lead, *self.page.shape)

    @property
    def all_axes(self) -> str:
        """The letters of the axes."""
        return self.axes + self.page.axes


@dataclass(frozen=True, slots=True)
class TiffImage:
    """An array with its smaller copies, the largest first, and with the masks of each."""

    levels: list[TiffLevel]
    attributes: Mapping[str, Json] = field(default_factory=dict)
    scales: Mapping[str, float] = field(default_factory=dict)
    units: Mapping[str, str] = field(default_factory=dict)
    masks: list[TiffLevel] = field(default_factory=list)


def images_of(pages: Sequence[TiffPage], size: int) -> list[TiffImage]:
    """Return the images of a file of `size` bytes whose metadata say nothing, or are those of tifffile or ImageJ."""
    text = pages[0].text
    if text.startswith("ImageJ="):
        found = _imagej(pages, text, size)
        if found is not None:
            return [TiffImage([found, *levels_below(found)])]
    if text.startswith('{"shape":'):
        shaped = _shaped(pages, size)
        if shaped:
            return [TiffImage([each, *levels_below(each)]) for each in shaped]
    return _alike(pages)


def stacked(pages: Sequence[TiffPage | None], lead: Sequence[int], axes: str) -> TiffLevel:
    """Return the level of pages; axes of length one are left out."""
    page = next(each for each in pages if each is not None)
    kept = [(length, axis) for length, axis in zip(lead, axes, strict=True) if length != 1]
    return TiffLevel(page, tuple(pages), tuple(each[0] for each in kept), "".join(each[1] for each in kept))


def levels_below(level: TiffLevel) -> list[TiffLevel]:
    """Return the levels in the sub-directories of the pages of one."""
    out: list[TiffLevel] = []
    if level.follows:
        return out
    for number in range(len(level.page.below)):
        pages = [None if each is None or len(each.below) <= number else each.below[number] for each in level.pages]
        whole = all((small is None) == (page is None) for small, page in zip(pages, level.pages, strict=True))
        first = level.page.below[number]
        if not whole or any(each is not None and each.key != first.key for each in pages):
            break
        if not _is_smaller(first, level.page):
            break
        out.append(replace(level, page=first, pages=tuple(pages)))
    return out


def with_others(images: list[TiffImage], pages: Sequence[TiffPage]) -> list[TiffImage]:
    """Return images, and those in sub-directories that are no smaller copies: of raw pictures, the picture itself."""
    levels = [level for image in images for level in (*image.levels, *image.masks)]
    shown = {page.offset for level in levels for page in level.pages if page is not None}
    below = list(pages)
    for page in below:
        below += page.below
    others = [page for page in below[len(pages) :] if page.offset not in shown]
    return [*images, *_alike(others)] if others else images


def _is_smaller(small: TiffPage, large: TiffPage) -> bool:
    return (
        small.height <= large.height
        and small.width <= large.width
        and small.samples == large.samples
        and small.bits == large.bits
        and small.formats == large.formats
        and small.planar == large.planar
    )


def _alike(pages: Sequence[TiffPage]) -> list[TiffImage]:
    """Return the images of pages that only their likeness joins."""
    groups: dict[tuple[object, ...], list[TiffPage]] = {}
    for page in pages:
        groups.setdefault((*page.key, page.is_reduced), []).append(page)
    images: list[TiffImage] = []
    masks: list[TiffLevel] = []
    for found in groups.values():
        level = stacked(found, (len(found),), "i")
        if level.page.is_mask:
            masks.append(level)
        elif not _joins(images, level):
            images.append(TiffImage([level, *levels_below(level)]))
    if images:
        images[0].masks.extend(masks)
        return images
    return [TiffImage([mask]) for mask in masks]


def _joins(images: Sequence[TiffImage], level: TiffLevel) -> bool:
    """Add a level to the image of which it is a smaller copy, if there is one."""
    page = level.page
    for image in reversed(images):
        last = image.levels[-1]
        if len(last.pages) != len(level.pages) or not _is_smaller(page, last.page):
            continue
        if (page.height, page.width) == (last.page.height, last.page.width):
            continue
        if page.is_reduced or any(_is_divided(page, last.page, factor) for factor in _FACTORS):
            image.levels.append(level)
            return True
    return False


def _is_divided(small: TiffPage, large: TiffPage, factor: int) -> bool:
    return all(
        length in (whole // factor, -(-whole // factor)) and length > 1
        for length, whole in ((small.height, large.height), (small.width, large.width))
    )


def _imagej(pages: Sequence[TiffPage], text: str, size: int) -> TiffLevel | None:
    said = dict(re.findall(r"^(\w+)=([\w.-]+)\s*$", text, re.MULTILINE))
    try:
        counts = {name: int(said.get(name, 1)) for name in ("frames", "slices", "channels", "images")}
    except ValueError:
        return None
    if min(counts.values()) < 1:
        return None
    first = pages[0]
    planes = counts["channels"] if first.samples != counts["channels"] else 1
    axes = _IMAGEJ_AXES.get(said.get("order", "czt").lower(), "tzc")
    lengths = {"t": counts["frames"], "z": counts["slices"], "c": planes}
    lead = [lengths[axis] for axis in axes]
    count = math.prod(lead)
    if count == 1 and len(pages) > 1:
        lead, axes, count = [len(pages)], "i", len(pages)
    if len(pages) >= count and all(each.key == first.key for each in pages[:count]):
        return stacked(pages[:count], lead, axes)
    return _following(first, lead, axes, size) if len(pages) == 1 else None


def _following(page: TiffPage, lead: Sequence[int], axes: str, size: int) -> TiffLevel | None:
    """Return the level of pages of which only the first has a directory, if the file has room for them."""
    row = page.plane_bits // 8 * (page.samples if page.planar == 2 else 1)
    if not is_run(page) or math.prod(lead) * row * page.height > size:
        return None
    return replace(stacked([page], lead, axes), follows=True)


def _shaped(pages: Sequence[TiffPage], size: int) -> list[TiffLevel]:
    """Return the arrays that tifffile describes: the first page of each says its shape; nothing if that fails."""
    out: list[TiffLevel] = []
    at = 0
    while at < len(pages):
        page = pages[at]
        shape, axes = _said_shape(page)
        if not shape:
            return []
        lead, letters = _leading(shape, axes, page)
        count = math.prod(lead) if lead is not None else 0
        if lead is None or count < 1:
            return []
        found = pages[at : at + count]
        if len(found) == count and all(each.key == page.key for each in found):
            out.append(stacked(found, lead, letters))
            at += count
            continue
        level = _following(page, lead, letters, size)
        if level is None:
            return []
        out.append(level)
        at += 1
    return out


def _said_shape(page: TiffPage) -> tuple[list[int], str]:
    """Return the shape and the axes in the JSON of a description."""
    try:
        said = json.loads(page.text)
        shape = said["shape"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return [], ""
    if not isinstance(shape, list) or not all(isinstance(each, int) and 0 < each < 2**63 for each in shape):
        return [], ""
    axes = said.get("axes")
    return shape, axes if isinstance(axes, str) and len(axes) == len(shape) else ""


def _leading(shape: Sequence[int], axes: str, page: TiffPage) -> tuple[list[int] | None, str]:
    """Return the axes of a shape that stand before those of its pages, None if the pages are not its end.

    Axes of length one say nothing, in either.
    """
    inner = [each for each in page.shape if each != 1]
    named = [(length, (axes[at] if axes else "q").lower()) for at, length in enumerate(shape) if length != 1]
    cut = len(named) - len(inner)
    if cut < 0 or [length for length, _ in named[cut:]] != inner:
        return None, ""
    return [length for length, _ in named[:cut]], "".join(name for _, name in named[:cut])
