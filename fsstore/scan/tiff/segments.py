"""Where the tiles or strips of one array are, and the few that are no range of the file as it is.

A plane that is one run of bytes is shown in pieces of a few MiB.  A piece or strip that ends early is padded, JPEG data
whose tables differ from page to page get them put in front, and a tile that the file is too short for is an error when
it is read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsstore.errors import DataLossError, UnimplementedError
from fsstore.kvstore.contract.driver import Buffer
from fsstore.reference.table.table import ABSENT, Rows
from fsstore.scan.chunk_table import Columns, run_strides
from fsstore.scan.contract import MADE, ChunkTable, Numbers
from fsstore.scan.source import ScanSource
from fsstore.scan.tiff.directory import TiffEntry
from fsstore.scan.tiff.encoding import TiffEncoding
from fsstore.scan.tiff.series import TiffLevel

__all__ = ["TiffSegments"]

_LETTERS = {1: "u1", 3: "u2", 4: "u4", 13: "u4", 16: "u8", 18: "u8"}


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

    @property
    def entries(self) -> list[TiffEntry]:
        """Where offsets and sizes stand, page by page."""
        out = []
        for page in self.level.pages:
            if page is not None:
                out += [each for each in (page.places, page.sizes) if each is not None]
        return out

    @property
    def counts(self) -> list[int]:
        """How many numbers are needed of each entry."""
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
        stored = (at != 0) & (length != 0)
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
        """Return the table of pages that are runs."""
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
                raise DataLossError(
                    f"{self.source.describe(firsts[-1])} has fewer bytes than the {whole} of a page"
                )
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
        spans = []
        for at, length, number in zip(
            rows.offset.tolist(), rows.length.tolist(), numbers.tolist(), strict=True
        ):
            needed = self._needed(number) if self._pads else length
            if (
                at < 0
                or needed < 0
                or at + needed > size
                or (self._pads and not self.run and length < needed)
            ):
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
            return math.prod(min(chunk, length - int(at) * chunk) for at, chunk, length in sizes) * (
                page.bits[0] // 8
            )
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
