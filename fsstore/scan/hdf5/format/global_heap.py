"""Global heaps: values of any length, numbered in collections."""

from __future__ import annotations

from fsstore.scan.hdf5.format.reader import Reader
from fsstore.scan.tuning import HEAP_AHEAD_BYTES

__all__ = ["COLLECTION", "ends", "heap_value"]

COLLECTION = b"GCOL\1"
_MOST_BYTES = 2**30


def ends(heap: bytes, lengths: int) -> bool:
    """Return whether a walk through the objects of a collection comes to an end; HDF5 does not see to that.

    An object of number 0 is what is left, and its size counts its header too.
    """
    head, at = 8 + lengths, 8 + lengths
    end = int.from_bytes(heap[8:at], "little")
    while at + head <= min(end, len(heap)):
        size = int.from_bytes(heap[at + 8 : at + head], "little")
        step = head + -(-size // 8) * 8 if heap[at] or heap[at + 1] else size
        if not 0 < step <= end - at:
            return False
        at += step
    return True


def heap_value(reader: Reader, address: int, number: int) -> bytes:
    """Return a value of the collection at an address."""
    values: dict[int, bytes] = reader.once(("heap", address), lambda: _values(reader, address))
    found = values.get(number)
    if found is None:
        raise reader.damaged(address, f"the global heap has no value {number}")
    return found


def _values(reader: Reader, address: int) -> dict[int, bytes]:
    data = reader.upto(address, HEAP_AHEAD_BYTES)
    if data[:5] != COLLECTION:
        raise reader.damaged(address, "there is no global heap")
    size, head = reader.length(data, 8), 8 + reader.lengths
    if size > _MOST_BYTES:
        raise reader.damaged(address, f"a global heap of {size} bytes")
    data = data[:size] if size <= len(data) else reader.read(address, size)
    if len(data) < size or not ends(data, reader.lengths):
        where = reader.base + address
        raise reader.damaged(address, f"the global heap at offset {where} is damaged: a size leads nowhere")
    found: dict[int, bytes] = {}
    at = head
    while at + head <= size:
        number, length = int.from_bytes(data[at : at + 2], "little"), reader.length(data, at + 8)
        if not number:
            break
        found[number] = data[at + head : at + head + length]
        at += head + -(-length // 8) * 8
    return found
