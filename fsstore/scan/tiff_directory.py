"""The directories of TIFF and BigTIFF, and what one says of its page."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fsstore.errors import DataLossError, FailedPreconditionError, ResourceExhaustedError
from fsstore.runtime.tuning import COLUMNS_FROM
from fsstore.scan.contract import HEADER_BYTES, Blocks, MissError

# The directories of a TIFF file: where the values of each tag lie, read in rounds.
#
# A file is a chain of directories, each of which may name others (sub-directories). The chain is followed
# first, all values that stand outside of directories are read after it, together. Where directories of a
# stack lie between its data, at equal distances, those to come are fetched ahead.

_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8, 17: 8, 18: 8}
_LETTERS = {1: "B", 3: "H", 4: "I", 6: "b", 8: "h", 9: "i", 11: "f", 12: "d", 13: "I", 16: "Q", 17: "q", 18: "Q"}
_TEXTS = (2, 7)
_MOST_IN_ONE = 4096  # entries of a directory
_MOST_ENTRIES = 8_000_000  # of all directories
_MOST_BYTES = 256 * 2**20  # of values outside of directories


class ByteOrder(NamedTuple):
    """How a file says numbers: the letter of `struct`, and whether offsets have eight bytes."""

    letter: str
    big: bool

    @classmethod
    def of(cls, head: bytes) -> ByteOrder:
        """Return that of a file which begins so; raises `FailedPreconditionError` if it is none."""
        letter = {b"II": "<", b"MM": ">"}.get(head[:2])
        version = struct.unpack_from(f"{letter}H", head, 2)[0] if letter and len(head) >= 8 else 0
        if letter is None or version not in (42, 43):
            raise FailedPreconditionError("it does not begin like a TIFF file")
        if version == 43 and (len(head) < 16 or struct.unpack_from(f"{letter}HH", head, 4) != (8, 0)):
            raise FailedPreconditionError("its header is not that of a BigTIFF file")
        return cls(letter, version == 43)


class TiffEntry(NamedTuple):
    """Where the values of a tag are: their type, how many there are, and the offset of the first."""

    kind: int
    items: int
    at: int

    @property
    def nbytes(self) -> int:
        """How many bytes the values take."""
        return self.items * _SIZES.get(self.kind, 0)

    @property
    def end(self) -> int:
        """Where they end."""
        return self.at + self.nbytes


@dataclass(frozen=True, slots=True)
class TiffDirectory:
    """One directory: its entries by tag, and the directories it names."""

    offset: int
    entries: Mapping[int, TiffEntry]
    below: list[TiffDirectory] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TiffValues:
    """The values of the tags of one directory that were asked for."""

    texts: Mapping[int, bytes]
    numbers: Mapping[int, tuple[float, ...]]

    def integers(self, tag: int, default: Sequence[int] = ()) -> tuple[int, ...]:
        """Return the whole numbers of a tag."""
        found = self.numbers.get(tag)
        return tuple(default) if not found else tuple(int(each) for each in found)

    def integer(self, tag: int, default: int = 0) -> int:
        """Return the first whole number of a tag."""
        found = self.numbers.get(tag)
        return int(found[0]) if found else default


class DirectoryWalk:
    """Follows the chain of directories, one step after another; what was done is kept when blocks are missing."""

    def __init__(self, tags: frozenset[int]) -> None:
        self._tags = tags
        self.order: ByteOrder | None = None
        self.chain: list[TiffDirectory] = []
        self.notes: dict[str, str] = {}
        self._next = 0
        self._seen: set[int] = set()
        self._entries = 0

    def follow(self, blocks: Blocks) -> list[TiffDirectory]:
        """Return the directories of the chain."""
        if self.order is None:
            head = blocks.read(0, 16)
            self.order = ByteOrder.of(head)
            self._next = _number(head, self.order, 8 if self.order.big else 4)
        while self._next:
            try:
                if self._next in self._seen:
                    raise DataLossError(f"its directories form a circle at offset {self._next}")
                found, after = self._directory(blocks, self._next)
            except MissError:
                self._fetch_ahead(blocks)
                raise
            except DataLossError as error:
                if not self.chain:
                    raise
                self.notes[f"directory {len(self.chain)}"] = error.message
                break
            self._seen.add(self._next)
            self.chain.append(found)
            self._next = after
        return self.chain

    def descend(self, blocks: Blocks) -> list[TiffDirectory]:
        """Return the directories of the chain, each with those that it names, which may name others."""
        waiting = list(self.chain)
        for parent in waiting:
            if 330 in parent.entries and not parent.below:
                self._below(blocks, parent)
            waiting += parent.below
        if blocks.noted:
            raise MissError
        return self.chain

    def every(self) -> list[TiffDirectory]:
        """Return all directories that were found."""
        out = list(self.chain)
        for each in out:
            out += each.below
        return out

    def _below(self, blocks: Blocks, parent: TiffDirectory) -> None:
        """Read the directories that one names, unless a block is missing, which is noted."""
        found = []
        try:
            offsets = _numbers(blocks, self._known, parent.entries[330])
        except MissError:
            return
        self._entries += len(offsets)
        noted = len(blocks.noted)
        for at in map(int, offsets):
            if at and at not in self._seen:
                try:
                    found.append(self._directory(blocks, at)[0])
                except MissError:  # the others are fetched with it
                    continue
        if len(blocks.noted) == noted:
            self._seen.update(each.offset for each in found)
            parent.below.extend(found)

    @property
    def _known(self) -> ByteOrder:
        assert self.order is not None, "the header is read first"
        return self.order

    def _fetch_ahead(self, blocks: Blocks) -> None:
        """Note where the next directories would be if they go on at the same distance."""
        if not self.chain:
            return
        step = self._next - self.chain[-1].offset
        for number in range(1, COLUMNS_FROM if len(self.chain) > 1 else 2):
            start = self._next + number * step
            if not 0 < start < blocks.size:
                break
            blocks.want(start, min(start + HEADER_BYTES, blocks.size))

    def _directory(self, blocks: Blocks, at: int) -> tuple[TiffDirectory, int]:
        order = self._known
        counted, width, room = (8, 20, 8) if order.big else (2, 12, 4)
        if at + counted > blocks.size:
            raise DataLossError(f"a directory is said to be at offset {at}, but the file ends at {blocks.size}")
        head = blocks.read(at, at + counted)
        count = int.from_bytes(head, "little" if order.letter == "<" else "big")
        end = at + counted + count * width
        if count > _MOST_IN_ONE or end > blocks.size:
            raise DataLossError(f"the directory at offset {at} claims {count} entries")
        self._entries += count
        if self._entries > _MOST_ENTRIES:
            raise ResourceExhaustedError(f"its directories have more than {_MOST_ENTRIES} entries")
        data = blocks.read(at + counted, min(end + room, blocks.size))
        form = f"{order.letter}HHQ{room}s" if order.big else f"{order.letter}HHI{room}s"
        entries: dict[int, TiffEntry] = {}
        for number, (tag, kind, items, _) in enumerate(struct.iter_unpack(form, data[: count * width])):
            if tag in self._tags and kind in _SIZES and tag not in entries:
                place = at + counted + number * width + width - room
                if items * _SIZES[kind] > room:
                    place = _number(data, order, number * width + width - room)
                entries[tag] = TiffEntry(kind, items, place)
        after = _number(data, order, count * width) if len(data) >= count * width + room else 0
        return TiffDirectory(at, entries), after

    def values(self, blocks: Blocks, directories: Sequence[TiffDirectory]) -> list[TiffValues]:
        """Return the values of the tags of directories, those that are read later left out."""
        order = self._known
        total = 0
        for entry in _outside(directories):
            if entry.end > blocks.size:
                raise DataLossError(f"values are said to be at offset {entry.at}, behind the end of the file")
            total += entry.nbytes
            if total > _MOST_BYTES:
                raise ResourceExhaustedError(f"its tags claim more than {_MOST_BYTES} bytes")
            blocks.want(entry.at, entry.end)
        if blocks.noted:
            raise MissError
        return [_values(blocks, order, each) for each in directories]


_LATER = (273, 279, 324, 325, 330, 513, 519)


def _outside(directories: Sequence[TiffDirectory]) -> Iterator[TiffEntry]:
    for directory in directories:
        for tag, entry in directory.entries.items():
            if tag not in _LATER:
                yield entry


def _values(blocks: Blocks, order: ByteOrder, directory: TiffDirectory) -> TiffValues:
    texts: dict[int, bytes] = {}
    numbers: dict[int, tuple[float, ...]] = {}
    for tag, entry in directory.entries.items():
        if tag in _LATER:
            continue
        if entry.kind in _TEXTS:
            texts[tag] = blocks.read(entry.at, entry.end)
        elif entry.kind in _LETTERS:
            numbers[tag] = _numbers(blocks, order, entry)
    return TiffValues(texts, numbers)


def _numbers(blocks: Blocks, order: ByteOrder, entry: TiffEntry) -> tuple[float, ...]:
    letter = _LETTERS.get(entry.kind)
    if letter is None:
        return ()
    if entry.end > blocks.size or entry.nbytes > _MOST_BYTES:
        raise DataLossError(f"{entry.items} numbers are said to be at offset {entry.at}, behind its end")
    return struct.unpack(f"{order.letter}{entry.items}{letter}", blocks.read(entry.at, entry.end))


def _number(data: bytes, order: ByteOrder, at: int) -> int:
    form = "Q" if order.big else "I"
    if at + struct.calcsize(form) > len(data):
        raise DataLossError("its header is cut off")
    return int(struct.unpack_from(order.letter + form, data, at)[0])


_STRUCTURE = (254, 256, 257, 258, 259, 262, 266, 273, 277, 278, 279, 284, 317, 322, 323, 324, 325, 330, 338, 339)
_DETAILS = (270, 282, 283, 292, 296, 305, 306, 347, 512, 513, 519, 530, 32998, 50674)
_PLACES = (33550, 33922, 34264, 34735, 34736, 34737, 42112, 42113)
TAGS = frozenset((*_STRUCTURE, *_DETAILS, *_PLACES))
"""The tags that are read; everything else in a directory is skipped."""

_REDUCED, _MASK = 1, 4
_OLD_JPEG, _RGB, _YCBCR = 6, 2, 6  # libtiff takes colours of old JPEG for YCbCr, whatever is said
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
    has_tables: bool = False  # or a stream of JPEG, both of the old style

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
    compression, photometric = values.integer(259, 1), values.integer(262)
    old = compression == _OLD_JPEG
    photometric = _YCBCR if old and (262 not in entries or photometric == _RGB) else photometric
    samples = values.integer(277, 3 if old and photometric == _YCBCR else 1)
    if width < 1 or height < 1 or samples < 1:
        return None
    is_tiled = 322 in entries and 323 in entries
    rows = min(values.integer(278, height) or height, height)
    tile = (values.integer(323), values.integer(322)) if is_tiled else (rows, width)
    if min(tile) < 1 or math.prod(tile) > 2**40:
        return None
    depth = samples if len(values.integers(258)) > 1 else 1
    bits = values.integers(258, (8 if old else 1,))[:depth] or (1,)
    tags = (_TILE_OFFSETS, _TILE_COUNTS) if is_tiled else (_STRIP_OFFSETS, _STRIP_COUNTS)
    places, sizes = (entries.get(tag) or entries.get(strip) for tag, strip in zip(tags, (273, 279), strict=True))
    return TiffPage(
        directory.offset,
        height,
        width,
        samples,
        bits,
        values.integers(339, (1,)),
        compression,
        photometric,
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
        513 in entries or 519 in entries,
    )
