"""The messages of a GRIB file: where each begins and ends, and where its sections are; no data is read.

A message says how long it is, so messages are a chain.  Far away each is a round of its own, unless a file `….idx`
beside it says where all of them begin; then the heads of all come in one round, and the chain is still followed.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from fsstore.errors import DataLossError, FailedPreconditionError, ResourceExhaustedError
from fsstore.scan.source import Blocks
from fsstore.scan.tuning import GRIB_STEP_BYTES

__all__ = ["GribField", "MessageWalk", "assembled", "idx_offsets"]

_MOST_MESSAGES = 2_000_000
_MOST_SECTION = 16 * 2**20  # bytes of a section that describes, such as one with the lengths of rows
_MOST_JUNK = 64 * 2**20
_IDX = re.compile(rb"^\d+(?:\.\d+)?:(\d+):", re.MULTILINE)


class GribField(NamedTuple):
    """One field: the bytes of its message, how it is described, and the spans of its sections in the message.

    `head` is a message without data that says the same of it.  `whole` tells that it is alone in its message.
    """

    start: int
    stop: int
    edition: int
    head: bytes
    grid: bytes
    spans: tuple[tuple[int, int], ...]
    whole: bool


@dataclass(slots=True)
class MessageWalk:
    """Follows the messages of a file; those that are done are kept when blocks are missing."""

    heads: Mapping[int, bytes] = field(default_factory=dict)
    fields: list[GribField] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)
    _next: int = 0
    _junk: int = 0

    def follow(self, blocks: Blocks) -> list[GribField]:
        """Return the fields of all messages; what is no message between them is noted."""
        while self._next + 8 <= blocks.size:
            head = self._read(blocks, self._next, min(self._next + 16, blocks.size))
            if head[:4] != b"GRIB" or head[7] not in (1, 2):
                self._skip(blocks)
                continue
            try:
                found, stop = self._message(blocks, head)
            except (DataLossError, struct.error) as error:
                why = getattr(error, "message", "a section is cut off")
                self.notes[f"message at offset {self._next}"] = why
                self._next += 4
                continue
            self.fields.extend(found)
            if len(self.fields) > _MOST_MESSAGES:
                raise ResourceExhaustedError(f"it has more than {_MOST_MESSAGES} messages")
            self._next = stop
        if not self.fields:
            why = next(iter(self.notes.values()), "")
            raise FailedPreconditionError(f"it has no GRIB message{f': {why}' if why else ''}")
        return self.fields

    def _read(self, blocks: Blocks, start: int, stop: int) -> bytes:
        head = self.heads.get(self._next)
        if head is not None and self._next <= start and stop <= self._next + len(head):
            return head[start - self._next : stop - self._next]
        return blocks.read(start, stop)

    def _skip(self, blocks: Blocks) -> None:
        """Go on at the next place that looks like a message."""
        stop = min(self._next + GRIB_STEP_BYTES, blocks.size)
        at = blocks.read(self._next, stop).find(b"GRIB", 1)
        after = self._next + at if at >= 0 else max(stop - 3, self._next + 1) if stop < blocks.size else stop
        self._junk += after - self._next
        if self._junk > _MOST_JUNK:
            raise DataLossError(f"more than {_MOST_JUNK} bytes up to offset {after} are no GRIB message")
        self._next = after

    def _message(self, blocks: Blocks, head: bytes) -> tuple[list[GribField], int]:
        start = self._next
        if head[7] == 1:
            return self._first_edition(blocks, head)
        (length,) = struct.unpack_from(">Q", head, 8)
        stop = start + length
        if length < 32 or stop > blocks.size:
            raise DataLossError(
                f"it claims {length} bytes at offset {start}, and the file ends at {blocks.size}"
            )
        found: list[GribField] = []
        sections: dict[int, tuple[int, int]] = {0: (start, start + 16)}
        at = start + 16
        while at + 4 < stop:
            size, number = struct.unpack(">IB", self._read(blocks, at, at + 5))
            if size < 5 or at + size > stop - 4 or not 1 <= number <= 7:
                raise DataLossError(f"the section at offset {at} claims {size} bytes and number {number}")
            sections[number] = (at, at + size)
            at += size
            if number == 7:
                found.append(self._field(blocks, (start, stop), sections))
        if not found:
            raise DataLossError(f"it has no data before its end at offset {stop}")
        alone = len(found) == 1
        return [each._replace(whole=alone) for each in found], stop

    def _field(
        self, blocks: Blocks, span: tuple[int, int], sections: Mapping[int, tuple[int, int]]
    ) -> GribField:
        """Return the field whose data section has come."""
        missing = [number for number in (1, 3, 4, 5, 6, 7) if number not in sections]
        if missing:
            raise DataLossError(f"the message at offset {span[0]} has no section {missing[0]}")
        kept = [sections[number] for number in (0, 1, 2, 3, 4, 5) if number in sections]
        if any(stop - start > _MOST_SECTION for start, stop in kept):
            raise DataLossError(f"the message at offset {span[0]} describes itself in too many bytes")
        parts = [self._read(blocks, start, stop) for start, stop in kept]
        body = b"".join(parts[1:]) + _EMPTY
        head = parts[0][:8] + struct.pack(">Q", 16 + len(body)) + body
        grid = self._read(blocks, *sections[3])
        spans = tuple(sections[number] for number in (0, 1, 2, 3, 4, 5, 6, 7) if number in sections)
        return GribField(*span, 2, head, grid, spans, whole=True)

    def _first_edition(self, blocks: Blocks, head: bytes) -> tuple[list[GribField], int]:
        """Return the field of a message of edition 1."""
        start = self._next
        length = int.from_bytes(head[4:7], "big")
        product = self._section_1(blocks, start + 8)
        flags = product[7] if len(product) > 7 else 0
        parts, at = [product], start + 8 + len(product)
        grid = b""
        if flags & 0x80:
            grid = self._section_1(blocks, at)
            parts.append(grid)
            at += len(grid)
        if length & 0x800000:  # of a large message: units of 120 bytes
            data_at = at + (int.from_bytes(self._read(blocks, at, at + 3), "big") if flags & 0x40 else 0)
            short = int.from_bytes(self._read(blocks, data_at, data_at + 3), "big")
            length = (length & 0x7FFFFF) * 120 - short + 4 if short < 120 else length
        stop = start + length
        if length < 40 or stop > blocks.size or at + 11 > stop:
            raise DataLossError(
                f"it claims {length} bytes at offset {start}, and the file ends at {blocks.size}"
            )
        parts[0] = product[:7] + bytes([flags & 0x80]) + product[8:]
        body = b"".join(parts) + _EMPTY_1
        shown = b"GRIB" + (8 + len(body)).to_bytes(3, "big") + b"\1" + body
        return [GribField(start, stop, 1, shown, grid or product, (), whole=True)], stop

    def _section_1(self, blocks: Blocks, at: int) -> bytes:
        size = int.from_bytes(self._read(blocks, at, min(at + 3, blocks.size)), "big")
        if not 8 <= size <= _MOST_SECTION or at + size > blocks.size:
            raise DataLossError(f"the section at offset {at} claims {size} bytes")
        return self._read(blocks, at, at + size)


_EMPTY = struct.pack(">IBB", 6, 6, 255) + struct.pack(">IB", 5, 7) + b"7777"
_EMPTY_1 = (12).to_bytes(3, "big") + bytes(9) + b"7777"


def idx_offsets(text: bytes, size: int) -> list[int]:
    """Return where messages begin by the lines of an index beside a file; nothing if it is none.

    >>> idx_offsets(b"1:0:d=2020010100:TMP:2 m above ground:anl:\\n2:90:d=2020010100:RH:2 m:anl:\\n", 200)
    [0, 90]
    """
    found = sorted({int(each) for each in _IDX.findall(text)})
    return found if found and found[-1] < size and found[0] == 0 else []


def assembled(parts: Sequence[bytes]) -> bytes:
    """Return a message of edition 2 made of sections, the first of which is section 0; its length is written anew."""
    body = b"".join(parts[1:]) + b"7777"
    return parts[0][:8] + struct.pack(">Q", 16 + len(body)) + body
