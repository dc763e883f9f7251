"""Which pages of a TIFF file make up one array, and which arrays are smaller copies of another.

The metadata of OME, ImageJ and tifffile say it; in other files pages that are alike follow each other in one array, as
readers of TIFF do it.  Smaller copies are marked as reduced, stand in sub-directories, or are half, a third or a
quarter as large as the array before them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fsstore.scan.tiff.encoding import is_run
from fsstore.scan.tiff.page import TiffPage
from fsstore.values.json_value import Json

__all__ = ["TiffImage", "TiffLevel", "images_of", "levels_below", "stacked"]

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
        pages = [
            None if each is None or len(each.below) <= number else each.below[number] for each in level.pages
        ]
        whole = all((small is None) == (page is None) for small, page in zip(pages, level.pages, strict=True))
        first = level.page.below[number]
        if not whole or any(each is not None and each.key != first.key for each in pages):
            break
        if not _is_smaller(first, level.page):
            break
        out.append(replace(level, page=first, pages=tuple(pages)))
    return out


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
    """Return the stack that ImageJ describes."""
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
