"""Pages of TIFF files: what one directory says of its image, and how the image is cut into tiles or strips."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fsstore.scan.tiff.directory import TiffDirectory, TiffEntry, TiffValues

__all__ = ["TAGS", "TiffPage", "page_of"]

_STRUCTURE = (
    254,
    256,
    257,
    258,
    259,
    262,
    266,
    273,
    277,
    278,
    279,
    284,
    317,
    322,
    323,
    324,
    325,
    330,
    338,
    339,
)
_DETAILS = (270, 282, 283, 296, 305, 306, 347, 530, 32998, 50674)
_PLACES = (33550, 33922, 34264, 34735, 34736, 34737, 42112, 42113)
TAGS = frozenset((*_STRUCTURE, *_DETAILS, *_PLACES))
"""The tags that are read; everything else in a directory is skipped."""

_REDUCED, _MASK = 1, 4
_TILE_OFFSETS, _TILE_COUNTS, _STRIP_OFFSETS, _STRIP_COUNTS = 324, 325, 273, 279


@dataclass(frozen=True, slots=True)
class TiffPage:
    """One image.  `tile` is the height and width of a tile or strip, `key` what pages of one array have in common.

    Samples of a pixel stand together (`planar` 1), or in planes of their own (2).
    """

    offset: int
    height: int
    width: int
    samples: int
    bits: tuple[int, ...]
    formats: tuple[int, ...]
    compression: int
    photometric: int
    planar: int
    predictor: int
    fill_order: int
    extra: tuple[int, ...]
    tile: tuple[int, int]
    is_tiled: bool
    kind: int
    places: TiffEntry | None
    sizes: TiffEntry | None
    values: TiffValues
    below: tuple[TiffPage, ...] = ()

    @property
    def key(self) -> tuple[object, ...]:
        """The properties that all pages of one array share."""
        return (
            *(self.height, self.width, self.samples, self.bits, self.formats, self.compression),
            *(self.photometric, self.planar, self.predictor, self.fill_order, self.extra, self.tile),
            *(self.is_tiled, self.kind & _MASK, self.values.integers(530), self.values.integers(50674)),
        )

    @property
    def is_reduced(self) -> bool:
        """Whether it is a smaller copy of another page."""
        return bool(self.kind & _REDUCED)

    @property
    def is_mask(self) -> bool:
        """Whether it says which pixels of another page count."""
        return bool(self.kind & _MASK)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape: planes, rows, columns, samples; what there is one of is left out."""
        if self.samples == 1:
            return (self.height, self.width)
        plane = (self.height, self.width)
        return (self.samples, *plane) if self.planar == 2 else (*plane, self.samples)

    @property
    def axes(self) -> str:
        """The letters of the axes."""
        if self.samples == 1:
            return "yx"
        return "syx" if self.planar == 2 else "yxs"

    @property
    def chunks(self) -> tuple[int, ...]:
        """The shape of a tile or strip."""
        if self.samples == 1:
            return self.tile
        return (1, *self.tile) if self.planar == 2 else (*self.tile, self.samples)

    @property
    def segments(self) -> int:
        """How many tiles or strips there are."""
        down, right = -(-self.height // self.tile[0]), -(-self.width // self.tile[1])
        return down * right * (self.samples if self.planar == 2 else 1)

    @property
    def plane_bits(self) -> int:
        """How many bits a row of the page has in one tile or strip."""
        return self.tile[1] * (1 if self.planar == 2 else self.samples) * self.bits[0]

    @property
    def last_rows(self) -> int:
        """How many rows the last strip has."""
        return self.height - (-(-self.height // self.tile[0]) - 1) * self.tile[0]

    @property
    def text(self) -> str:
        """The text of the image description."""
        return self.values.texts.get(270, b"").rstrip(b"\0").decode("utf-8", "replace")


def page_of(directory: TiffDirectory, values: TiffValues, below: Sequence[TiffPage] = ()) -> TiffPage | None:
    """Return the page that a directory describes, None where it describes none."""
    entries = directory.entries
    width, height = values.integer(256), values.integer(257)
    samples = values.integer(277, 1)
    if width < 1 or height < 1 or samples < 1:
        return None
    is_tiled = 322 in entries and 323 in entries
    rows = min(values.integer(278, height) or height, height)
    tile = (values.integer(323), values.integer(322)) if is_tiled else (rows, width)
    if min(tile) < 1 or math.prod(tile) > 2**40:
        return None
    depth = samples if len(values.integers(258)) > 1 else 1
    bits = values.integers(258, (1,))[:depth] or (1,)
    tags = (_TILE_OFFSETS, _TILE_COUNTS) if is_tiled else (_STRIP_OFFSETS, _STRIP_COUNTS)
    places, sizes = (
        entries.get(tag) or entries.get(strip) for tag, strip in zip(tags, (273, 279), strict=True)
    )
    return TiffPage(
        directory.offset,
        height,
        width,
        samples,
        bits,
        values.integers(339, (1,)),
        values.integer(259, 1),
        values.integer(262),
        2 if values.integer(284, 1) == 2 and samples > 1 else 1,
        values.integer(317, 1),
        values.integer(266, 1),
        values.integers(338),
        tile,
        is_tiled,
        values.integer(254),
        places,
        sizes,
        values,
        tuple(below),
    )
