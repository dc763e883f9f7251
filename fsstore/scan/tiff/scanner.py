"""The scanner of TIFF."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fsstore.errors import DataLossError, JsonError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import Buffer
from fsstore.scan.chunk_table import run_chunks
from fsstore.scan.contract import ChunkTable, FileScanner, Numbers, ScanHierarchy
from fsstore.scan.hierarchy import Array, HierarchyBuilder
from fsstore.scan.source import ScanSource
from fsstore.scan.tiff.directory import DirectoryWalk, TiffDirectory
from fsstore.scan.tiff.encoding import JPEG_NUMBERS, TiffEncoding, encoding_of, is_run
from fsstore.scan.tiff.geography import geography, nodata, scaling
from fsstore.scan.tiff.ome import ome_images
from fsstore.scan.tiff.page import TAGS, TiffPage, page_of
from fsstore.scan.tiff.segments import TiffSegments
from fsstore.scan.tiff.series import TiffImage, TiffLevel, images_of
from fsstore.scan.tuning import TIFF_PEEK_BYTES
from fsstore.values.json_value import Json

__all__ = ["SCANNER", "TiffFile", "TiffScanner"]

_TYPES = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}


class TiffFile:
    """One generation of a file."""

    def __init__(self, source: ScanSource, letter: str) -> None:
        self._source, self._letter = source, letter
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

    async def _has_header(self, page: TiffPage) -> bool:
        """Return whether JPEG data have a header of JFIF, which says what their colours are."""
        assert page.places is not None
        at = int((await TiffSegments.numbers_of(self._source, [page.places], self._letter, [1]))[0][0])
        stop = min(at + TIFF_PEEK_BYTES, self._source.size)
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
    """Return a level as zarr v2 describes it."""
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
    value, dtype = nodata(page.values), np.dtype(encoding.dtype)
    if value is None or dtype.kind == "c":
        return None
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
    shown: Json = (
        found if math.isfinite(found) else ("NaN" if math.isnan(found) else f"{'-' * (found < 0)}Infinity")
    )
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


def _pages(directories: Sequence[TiffDirectory], found: Mapping[int, Any]) -> list[TiffPage]:
    out = []
    for each in directories:
        below = _pages(each.below, found)
        page = page_of(each, found[each.offset], below)
        if page is not None:
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
        every = [*chain, *(inner for each in chain for inner in each.below)]
        values = await source.settle(lambda blocks: walk.values(blocks, every))
        by_place = {each.offset: value for each, value in zip(every, values, strict=True)}
        pages = _pages(chain, by_place)
        if not pages:
            raise DataLossError("it has no image")
        assert walk.order is not None
        notes: dict[str, str] = {}
        images = ome_images(pages, notes) or images_of(pages, source.size)
        return await TiffFile(source, walk.order.letter).describe(images, notes)


SCANNER = TiffScanner()
