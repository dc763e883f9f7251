"""Where a file begins: its signature, the widths of its numbers, and the header of its root group.

The signature stands at the beginning, or behind a block of the user of 512, 1024, 2048 bytes and so on; addresses count
from there, wherever the superblock believes to be.
"""

from __future__ import annotations

from collections.abc import Iterator

from fsstore.scan.hdf5.format.object_header import messages_of
from fsstore.scan.hdf5.format.reader import DamagedError, FileBytes, Reader, UnknownError

__all__ = ["begin"]

SIGNATURE = b"\x89HDF\r\n\x1a\n"
_HARMLESS = frozenset({0x00, 0x10, 0x13, 0x17})  # nothing, what goes on elsewhere, sizes of trees, free space


def begin(place: FileBytes) -> tuple[Reader, int]:
    """Return a reader of the file, and the address of the header of its root group.

    Raises `DamagedError` if it is no HDF5 file or is cut off, and `UnknownError` if HDF5 has to say what it is.
    """
    for start in _starts(place.size):
        if place.octets(start, start + 8) == SIGNATURE:
            break
    else:
        raise DamagedError(f"{place.describe(0)}: there is no signature of an HDF5 file")
    head = place.octets(start, min(start + 128, place.size)).ljust(128, b"\0")
    version = head[8]
    if version > 3:
        raise UnknownError
    width, lengths = (head[13], head[14]) if version < 2 else (head[9], head[10])
    if width not in (2, 4, 8) or lengths not in (2, 4, 8):
        raise UnknownError
    reader = Reader(place, start, width, lengths)
    return reader, (_first if version < 2 else _second)(reader, head)


def _starts(size: int) -> Iterator[int]:
    start = 0
    while start + 8 <= size:
        yield start
        start = start * 2 or 512


def _first(reader: Reader, head: bytes) -> int:
    """Return the address of the root group by a superblock of version 0 or 1."""
    at = 24 + 4 * (head[8] == 1)
    base, extension, end, driver = (reader.address(head, at + number * reader.width) for number in range(4))
    if driver != reader.undefined or extension != reader.undefined:
        raise UnknownError
    _is_whole(reader, base, end)
    return reader.address(head, at + 5 * reader.width)


def _second(reader: Reader, head: bytes) -> int:
    """Return the address of the root group by a superblock of version 2 or 3."""
    size = 12 + 4 * reader.width + 4
    reader.verify(0, head[:size], "the superblock")
    base, extension, end, root = (reader.address(head, 12 + number * reader.width) for number in range(4))
    if head[8] == 3 and head[11]:  # it is marked as open for writing
        raise UnknownError
    _is_whole(reader, base, end)
    if extension != reader.undefined and any(
        each.kind not in _HARMLESS for each in messages_of(reader, extension)
    ):
        raise UnknownError
    return root


def _is_whole(reader: Reader, base: int, end: int) -> None:
    """Raise if the file is shorter than its superblock says."""
    stop = end + reader.base - base
    if reader.size < stop:
        raise DamagedError(
            f"{reader.place.describe(reader.base)}: it is cut off: "
            f"it should have {stop} bytes, but has {reader.size}"
        )
