"""TIFF files, BigTIFF, COG, GeoTIFF and OME-TIFF among them, parsed here without another library."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fsstore.errors import DataLossError, JsonError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import Buffer
from fsstore.reference.table.table import ABSENT, Rows
from fsstore.runtime.tuning import HEAD_BYTES
from fsstore.scan.contract import MADE, ChunkTable, FileScanner, Numbers, ScanHierarchy, ScanSource
from fsstore.scan.hierarchy import Array, Columns, HierarchyBuilder, run_chunks, run_strides
from fsstore.scan.tiff_directory import TAGS, ByteOrder, DirectoryWalk, TiffDirectory, TiffEntry, TiffPage, page_of
from fsstore.scan.tiff_metadata import geography, nodata, ome_images, scaling
from fsstore.scan.tiff_series import (
    JPEG_NUMBERS,
    TiffEncoding,
    TiffImage,
    TiffLevel,
    encoding_of,
    images_of,
    is_libtiffs,
    is_run,
    with_others,
)
from fsstore.values.json_value import Json

# Where the tiles or strips of one array are, and the few that are no range of the file as it is.
#
# A plane that is one run of bytes is shown in pieces of a few MiB. A piece or strip that ends early is
# padded, JPEG data whose tables differ from page to page get them put in front, and a tile that the file is
# too short for is an error when it is read.  A page that only libtiff decodes is one chunk, the whole file:
# as it is for the first page, and with another first directory for those behind it.

_LETTERS = {1: "u1", 3: "u2", 4: "u4", 13: "u4", 16: "u8", 18: "u8"}
_MOST_WHOLE = 2**28  # bytes of a file that is decoded as a whole


@dataclass(frozen=True, slots=True)
class TiffSegments:
    """The tiles of an array.  With `run` each page is one run of bytes, cut into `chunks` here."""

    source: ScanSource
    level: TiffLevel
    encoding: TiffEncoding
    letter: str
    chunks: tuple[int, ...]
    run: bool
    own_tables: bool
    first: int | None = None  # the first directory, where each page is the whole file

    @property
    def entries(self) -> list[TiffEntry]:
        """Where offsets and sizes stand, page by page."""
        out: list[TiffEntry] = []
        if self.first is not None:
            return out
        for page in self.level.pages:
            if page is not None:
                out += [each for each in (page.places, page.sizes) if each is not None]
        return out

    @property
    def counts(self) -> list[int]:
        """The count of numbers needed from each entry."""
        return [self.level.page.segments] * len(self.entries)

    @staticmethod
    async def numbers_of(
        source: ScanSource, entries: Sequence[TiffEntry], letter: str, counts: Sequence[int]
    ) -> list[Any]:
        """Return the first numbers of entries, read together."""
        spans, kinds = [], []
        for entry, count in zip(entries, counts, strict=True):
            kind = _LETTERS.get(entry.kind)
            if kind is None or entry.items < count:
                raise DataLossError(
                    f"{source.describe(entry.at)} lists {entry.items} tiles or strips where {count} are needed"
                )
            kinds.append(np.dtype(letter + kind))
            spans.append((entry.at, entry.at + count * kinds[-1].itemsize))
        found = await source.read(spans)
        pairs = zip(found, kinds, strict=True)
        return [np.frombuffer(data, kind).astype(np.uint64).astype(np.int64) for data, kind in pairs]

    @property
    def plain_size(self) -> int:
        """How many bytes a whole chunk has where it is not compressed."""
        page = self.level.page
        if self.run:
            return math.prod(self.chunks) * page.bits[0] // 8
        return -(-page.plane_bits // 8) * page.tile[0]

    def table(self, numbers: Sequence[Any]) -> ChunkTable:
        """Return the table of the array."""
        if self.run:
            return self._runs(numbers)
        if self.first is not None:
            marks = [ABSENT if each is None else 0 if each.offset == self.first else MADE for each in self.level.pages]
            wholes = np.full(len(marks), self.source.size, np.int64)
            return Columns(Rows(np.array(marks, np.int32), np.zeros_like(wholes), wholes))
        segments, rest = self.level.page.segments, iter(numbers)
        offsets, sizes = [], []
        for page in self.level.pages:
            if page is None:
                offsets.append(np.zeros(segments, np.int64))
                sizes.append(np.zeros(segments, np.int64))
                continue
            offsets.append(next(rest))
            plain = np.full(segments, self.plain_size, np.int64)
            sizes.append(plain if page.sizes is None else next(rest))
        at, length = np.concatenate(offsets), np.concatenate(sizes)
        return Columns(self._rows(at, length))

    def _rows(self, at: Any, length: Any) -> Rows:
        """Return rows; those behind the end of the file, and those that are not whole, are made."""
        size = self.source.size
        stored = at != 0
        url = np.where(stored, 0, ABSENT).astype(np.int32)
        inside = (at > 0) & (length > 0) & (at <= size) & (length <= size - np.clip(at, 0, size))
        odd = ~inside
        if self.encoding.compressor is None and not self._has_compressor:
            odd |= length < self.plain_size
            length = np.where(stored & ~odd, self.plain_size, length)
        if self.own_tables:
            odd = np.ones(len(at), bool)
        url[stored & odd] = MADE
        return Rows(url, at, length)

    @property
    def _has_compressor(self) -> bool:
        return self.level.page.compression != 1

    def _runs(self, numbers: Sequence[Any]) -> ChunkTable:
        page, level = self.level.page, self.level
        itemsize = page.bits[0] // 8
        whole = itemsize * math.prod(page.shape)
        rest = iter(numbers)
        firsts: list[int] = []
        for each in level.pages:
            if each is None:
                firsts.append(0)
                continue
            firsts.append(int(next(rest)[0]))
            if each.sizes is not None and 0 < int(next(rest)[0]) < whole:
                raise DataLossError(f"{self.source.describe(firsts[-1])} has fewer bytes than the {whole} of a page")
        if level.follows:
            firsts = [firsts[0] + whole * number for number in range(math.prod(level.lead))]
        grid = [-(-length // chunk) for length, chunk in zip(page.shape, self.chunks, strict=True)]
        strides = run_strides(page.shape, itemsize, self.chunks)
        steps = sum(
            np.arange(count).reshape([-1 if at == axis else 1 for at in range(len(grid))]) * strides[axis]
            for axis, count in enumerate(grid)
        )
        base = np.array(firsts, np.int64)
        at = (base[:, None] + np.asarray(steps, np.int64).reshape(1, -1)).ravel()
        length = np.full(len(at), self.plain_size, np.int64)
        stored = np.repeat(base != 0, len(at) // len(base))
        url = np.where(stored, np.where(at + self.plain_size > self.source.size, MADE, 0), ABSENT)
        return Columns(Rows(url.astype(np.int32), at, length))

    async def make(self, table: ChunkTable, numbers: Numbers) -> list[Buffer]:
        """Return chunks that are padded, or have tables put in front."""
        size, rows = self.source.size, table.find(numbers)
        if self.first is not None:
            whole = bytes((await self.source.fetch([(0, size)]))[0])
            return [self._beginning_with(whole, number) for number in numbers.tolist()]
        spans = []
        for at, length, number in zip(rows.offset.tolist(), rows.length.tolist(), numbers.tolist(), strict=True):
            needed = self._needed(number) if self._pads else length
            if at < 0 or needed < 1 or at + needed > size or (self._pads and not self.run and length < needed):
                raise DataLossError(
                    f"{self.source.describe(at)} is cut off or damaged: chunk {number} needs {needed} bytes of"
                    f" {length} there, and the file ends at {size}"
                )
            spans.append((at, min(at + max(length, needed), size)))
        found = await self.source.fetch(spans)
        if self._pads:
            return [bytes(data)[: self.plain_size].ljust(self.plain_size, b"\0") for data in found]
        per_page = self.level.page.segments
        return [
            self._with_tables(bytes(data), number // per_page)
            for data, number in zip(found, numbers.tolist(), strict=True)
        ]

    def _beginning_with(self, whole: bytes, number: int) -> bytes:
        """Return a file in which a page is the first."""
        page = self.level.pages[number]
        assert page is not None, "no chunk is stored of a page that is missing"
        order = ByteOrder.of(whole)
        at, form = (8, "Q") if order.big else (4, "I")
        place = struct.pack(order.letter + form, page.offset)
        return whole[:at] + place + whole[at + len(place) :]

    @property
    def _pads(self) -> bool:
        return not self._has_compressor

    def _needed(self, number: int) -> int:
        """Return how many bytes of a chunk lie inside the image."""
        page = self.level.page
        if self.run:
            inner = [-(-length // chunk) for length, chunk in zip(page.shape, self.chunks, strict=True)]
            place = np.unravel_index(number % math.prod(inner), inner)
            sizes = zip(place, self.chunks, page.shape, strict=True)
            return math.prod(min(chunk, length - int(at) * chunk) for at, chunk, length in sizes) * (page.bits[0] // 8)
        if page.is_tiled:
            return self.plain_size
        row = self.plain_size // page.tile[0]
        strips = -(-page.height // page.tile[0])
        return row * (page.last_rows if number % strips == strips - 1 else page.tile[0])

    def _with_tables(self, data: bytes, number: int) -> bytes:
        page = self.level.pages[number]
        tables = b"" if page is None else page.values.texts.get(347, b"")
        if not self.own_tables or len(tables) < 4:
            return data
        if data[:2] != b"\xff\xd8":
            raise UnimplementedError("it has JPEG data without a beginning")
        return tables[:-2] + data[2:]


_TYPES = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}


class TiffFile:
    """One generation of a file."""

    def __init__(self, source: ScanSource, letter: str, first: int) -> None:
        self._source, self._letter, self._first = source, letter, first
        self._arrays: dict[str, TiffSegments] = {}
        self._builder = HierarchyBuilder()
        self._last: tuple[str, ChunkTable] | None = None
        self.hierarchy = ScanHierarchy()

    async def describe(self, images: Sequence[TiffImage], notes: Mapping[str, str]) -> TiffFile:
        """Add the images of the file: levels in the root if there is one image, else in groups by number."""
        for path, why in notes.items():
            self._builder.note(path, why)
        for number, image in enumerate(images):
            prefix = f"{number}/" if len(images) > 1 else ""
            shown = [await self._add(f"{prefix}{at}", image, level) for at, level in enumerate(image.levels)]
            for at, mask in enumerate(image.masks):
                await self._add(f"{prefix}mask/{at}", TiffImage([mask]), mask)
            if image.masks:
                self._builder.group(f"{prefix}mask", {})
            listed = [(f"{at}", level) for at, level in enumerate(image.levels) if shown[at]]
            attributes = {**image.attributes, "multiscales": [_multiscale(image, listed)]} if listed else {}
            self._builder.group(prefix.rstrip("/"), attributes)
        if len(images) != 1:
            self._builder.group("", {})
        self.hierarchy = self._builder.finish()
        return self

    async def _add(self, path: str, image: TiffImage, level: TiffLevel) -> bool:
        """Add an array; return whether it can be shown."""
        try:
            segments = await self._segments(level)
            self._builder.array(path, _array(image, level, segments))
        except (UnimplementedError, JsonError) as error:
            self._builder.note(path, error.message)
            return False
        self._arrays[path] = segments
        return True

    async def _segments(self, level: TiffLevel) -> TiffSegments:
        page = level.page
        if is_libtiffs(page):
            return self._whole(level)
        known = [each for each in level.pages if each is not None]
        if any(each.places is None for each in known):
            raise UnimplementedError("it does not say where its data are")
        if page.compression != 1 and any(each.sizes is None for each in known):
            raise UnimplementedError("it does not say how long its data are")
        tables = [each.values.texts.get(347) for each in known]
        shared = tables[0] if page.compression in JPEG_NUMBERS and len(set(tables)) == 1 else None
        own = page.compression in JPEG_NUMBERS and len(set(tables)) > 1
        jfif = page.compression in JPEG_NUMBERS and page.photometric == 2 and await self._has_header(page)
        encoding = encoding_of(page, self._letter, jfif=jfif, tables=shared)
        run = is_run(page)
        chunks = run_chunks(page.shape, page.bits[0] // 8) if run else page.chunks
        return TiffSegments(self._source, level, encoding, self._letter, chunks, run=run, own_tables=own)

    def _whole(self, level: TiffLevel) -> TiffSegments:
        page, size = level.page, self._source.size
        encoding = encoding_of(page, self._letter)
        if size > _MOST_WHOLE:
            raise UnimplementedError(f"it has to be decoded from the whole file, whose {size} bytes are too many")
        return TiffSegments(
            self._source, level, encoding, self._letter, page.shape, run=False, own_tables=False, first=self._first
        )

    async def _has_header(self, page: TiffPage) -> bool:
        """Return whether JPEG data have a header of JFIF, which says what their colours are."""
        assert page.places is not None
        at = int((await TiffSegments.numbers_of(self._source, [page.places], self._letter, [1]))[0][0])
        stop = min(at + HEAD_BYTES, self._source.size)
        return at < stop and b"JFIF\0" in (await self._source.read([(at, stop)]))[0]

    async def tables(self, paths: Sequence[str]) -> Sequence[ChunkTable]:
        """Return the chunk tables of arrays; where the tiles of all their pages are is read together."""
        found = []
        asked = [self._arrays[path] for path in paths]
        numbers = await TiffSegments.numbers_of(
            self._source,
            [entry for each in asked for entry in each.entries],
            self._letter,
            [count for each in asked for count in each.counts],
        )
        rest = iter(numbers)
        for path, each in zip(paths, asked, strict=True):
            try:
                found.append(each.table([next(rest) for _ in each.entries]))
            except StoreError as error:
                raise error.within(f'Error reading the chunk index of "{path}"') from error
        return found

    async def make(self, path: str, numbers: Numbers) -> Sequence[Buffer]:
        """Return the values of chunks that are no range of the file as it is."""
        try:
            last = self._last
            if last is None or last[0] != path:
                self._last = last = path, (await self.tables([path]))[0]
            table = last[1]
            return await self._arrays[path].make(table, numbers)
        except StoreError as error:
            raise error.within(f'Error reading "{path}"') from error


def _array(image: TiffImage, level: TiffLevel, segments: TiffSegments) -> Array:
    page, encoding = level.page, segments.encoding
    largest = image.levels[0]
    dims = [
        axis if length == whole else f"{axis}{image.levels.index(level)}"
        for axis, length, whole in zip(level.all_axes, level.shape, largest.shape, strict=True)
    ]
    attributes = scaling(page.values, page.samples)
    if level is largest:
        attributes |= _attributes(page)
    attributes |= geography(page.values)
    return Array(
        level.shape,
        (*(1 for _ in level.lead), *segments.chunks),
        encoding.dtype,
        _fill(page, encoding, attributes),
        encoding.filters,
        encoding.compressor,
        dims,
        attributes,
    )


def _attributes(page: TiffPage) -> dict[str, Json]:
    out: dict[str, Json] = {}
    text = page.text
    if text and not text.rstrip().endswith("OME>"):
        out["description"] = text
    for tag, name in {305: "software", 306: "datetime"}.items():
        if tag in page.values.texts:
            out[name] = page.values.texts[tag].rstrip(b"\0").decode("utf-8", "replace")
    if page.photometric == 3:
        out["photometric"] = "palette"
    elif page.photometric == 0:
        out["photometric"] = "miniswhite"
    return out


def _fill(page: TiffPage, encoding: TiffEncoding, attributes: dict[str, Json]) -> Json:
    """Return the value of tiles that are not stored, None for zeros; `_FillValue` is added to the attributes."""
    value = nodata(page.values)
    if value is None or not isinstance(encoding.dtype, str) or np.dtype(encoding.dtype).kind == "c":
        return None
    dtype = np.dtype(encoding.dtype)
    attributes["nodata"] = value if math.isfinite(value) else str(value)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        if math.isnan(value) or not limits.min <= value <= limits.max or int(value) != value:
            return None
        attributes["_FillValue"] = int(value)
        return int(value)
    if dtype.kind != "f":
        return None
    found = float(value)
    shown: Json = found if math.isfinite(found) else ("NaN" if math.isnan(found) else f"{'-' * (found < 0)}Infinity")
    attributes["_FillValue"] = found
    return shown


def _multiscale(image: TiffImage, levels: Sequence[tuple[str, TiffLevel]]) -> dict[str, Json]:
    """Return the levels in the words of OME-Zarr 0.4."""
    largest = image.levels[0]
    axes: list[Json] = []
    for axis in largest.all_axes:
        said: dict[str, Json] = {"name": axis}
        kind, unit = _TYPES.get(axis), image.units.get(axis)
        said |= {"type": kind} if kind else {}
        said |= {"unit": unit} if unit and axis in image.scales else {}
        axes.append(said)
    datasets: list[Json] = []
    for path, level in levels:
        ratios = [
            image.scales.get(axis, 1.0) * whole / length
            for axis, whole, length in zip(largest.all_axes, largest.shape, level.shape, strict=True)
        ]
        step: dict[str, Json] = {"type": "scale", "scale": list(ratios)}
        datasets.append({"path": path, "coordinateTransformations": [step]})
    return {"version": "0.4", "axes": axes, "datasets": datasets}


def _pages(directories: Sequence[TiffDirectory], found: Mapping[int, Any], notes: dict[str, str]) -> list[TiffPage]:
    out = []
    for each in directories:
        below = _pages(each.below, found, notes)
        page = page_of(each, found[each.offset], below)
        if page is None:
            notes[f"directory at offset {each.offset}"] = "it does not say how large its image is"
        else:
            out.append(page)
    return out


@dataclass(frozen=True, slots=True)
class TiffScanner(FileScanner):
    """The scanner."""

    name: ClassVar[str] = "tiff"
    title: ClassVar[str] = "TIFF file"

    async def scan(self, source: ScanSource, members: Mapping[str, Json]) -> TiffFile:
        """Return the images of a file."""
        walk = DirectoryWalk(TAGS)
        chain = await source.settle(walk.follow)
        await source.settle(walk.descend)
        every = walk.every()
        values = await source.settle(lambda blocks: walk.values(blocks, every))
        by_place = {each.offset: value for each, value in zip(every, values, strict=True)}
        notes = dict(walk.notes)
        pages = _pages(chain, by_place, notes)
        if not pages:
            raise DataLossError("it has no image")
        assert walk.order is not None
        images = ome_images(pages, notes) or with_others(images_of(pages, source.size), pages)
        return await TiffFile(source, walk.order.letter, chain[0].offset).describe(images, notes)


SCANNER = TiffScanner()
