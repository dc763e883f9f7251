"""The messages of an object.

A header is a list of messages, which may go on in other places.  Version 1 aligns messages to eight bytes, version 2
(`OHDR`) packs them, and has checksums.  A message may stand elsewhere: its body says where then.
"""

from __future__ import annotations

from typing import NamedTuple

from fsstore.scan.hdf5.format.reader import Reader, UnknownError
from fsstore.scan.tuning import HEADER_AHEAD_BYTES

__all__ = ["Message", "committed", "messages_of", "unshared"]

_NOTHING, _CONTINUES, _LAST = 0x00, 0x10, 0x18
_MOST_PIECES = 10_000
_MOST_BYTES = 64 * 2**20
_SHARED, _ESSENTIAL = 0x02, 0x80


class Message(NamedTuple):
    """A message: its type, its body, the address of that, and whether the body stands elsewhere."""

    kind: int
    body: bytes
    address: int
    shared: bool


def messages_of(reader: Reader, address: int) -> list[Message]:
    """Return the messages of the header at an address."""
    head = reader.upto(address, HEADER_AHEAD_BYTES)
    if head[:4] == b"OHDR":
        if head[4] != 2:
            raise UnknownError
        start, size, step = _begin_2(head)
        tail = 4
    elif head[:1] == b"\1":
        start, size, step, tail = 16, int.from_bytes(head[8:12], "little"), 0, 0
    else:
        raise reader.damaged(address, "there is no object header")
    if size > _MOST_BYTES:
        raise reader.damaged(address, f"an object header of {size} bytes")
    whole = start + size + tail
    data = head[:whole] if whole <= len(head) else reader.read(address, whole)
    if step:
        reader.verify(address, data, "an object header")
    first = (address + start, data[start : start + size])
    return _all(reader, first, step)


def _all(reader: Reader, first: tuple[int, bytes], step: int) -> list[Message]:
    """Return the messages in the first piece of a header, and in those in which it goes on."""
    found: list[Message] = []
    pieces, seen, total = [first], {first[0]}, 0
    limit = min(_MOST_BYTES, 2 * reader.size)
    while pieces:
        for message in _cut(*pieces.pop(), step):
            if message.kind != _CONTINUES:
                found.append(message)
                continue
            at, length = _continued(reader, message, step)
            total += length
            if at in seen or total > limit or len(seen) > _MOST_PIECES:
                raise reader.damaged(message.address, "an object header without end")
            seen.add(at)
            pieces.append(_piece(reader, at, length, step))
    return found


def _begin_2(head: bytes) -> tuple[int, int, int]:
    """Return where the messages of a header of version 2 begin, their length, and how long the head of each is."""
    flags = head[5]
    at = 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
    width = 1 << (flags & 3)
    return at + width, int.from_bytes(head[at : at + width], "little"), 6 if flags & 4 else 4


def _continued(reader: Reader, message: Message, step: int) -> tuple[int, int]:
    if len(message.body) < reader.width + reader.lengths:
        raise reader.damaged(message.address, "an object header goes on nowhere")
    at, length = reader.address(message.body, 0), reader.length(message.body, reader.width)
    if length > _MOST_BYTES or (step and length < 8):
        raise reader.damaged(message.address, f"an object header goes on for {length} bytes")
    return at, length


def _piece(reader: Reader, address: int, length: int, step: int) -> tuple[int, bytes]:
    """Return the address and the bytes of messages that stand outside of the header."""
    data = reader.read(address, length)
    if not step:
        return address, data
    if data[:4] != b"OCHK":
        raise reader.damaged(address, "an object header does not go on here")
    reader.verify(address, data, "a part of an object header")
    return address + 4, data[4:-4]


def _cut(address: int, data: bytes, step: int) -> list[Message]:
    """Return the messages in `data` that say something; `step` is the length of what stands before each, 0 for version
    1.
    """
    found: list[Message] = []
    at, end = 0, len(data)
    before = step or 8
    while at + before <= end:
        if step:
            kind, size, flags = data[at], data[at + 1] | data[at + 2] << 8, data[at + 3]
        else:
            kind, size, flags = data[at] | data[at + 1] << 8, data[at + 2] | data[at + 3] << 8, data[at + 4]
        start = at + before
        at = start + size
        if at > end:
            break
        if kind > _LAST and flags & _ESSENTIAL:
            raise UnknownError
        if kind != _NOTHING:
            found.append(Message(kind, data[start:at], address + start, bool(flags & _SHARED)))
    return found


def unshared(reader: Reader, message: Message) -> bytes:
    """Return the body of a message, that of a committed type from the header of the type."""
    return committed(reader, message.body, message.kind) if message.shared else message.body


def committed(reader: Reader, body: bytes, kind: int) -> bytes:
    """Return the body of the message that stands in the header to which `body` leads."""
    version, place = body[:2].ljust(2, b"\0")
    if version == 1:
        address = reader.address(body, 8)
    elif version == 2 or (version == 3 and place == 2):
        address = reader.address(body, 2)
    else:
        raise UnknownError

    def find() -> bytes:
        for message in messages_of(reader, address):
            if message.kind == kind and not message.shared:
                return message.body
        raise reader.damaged(address, "a message that should stand here does not")

    found: bytes = reader.once((kind, address), find)
    return found
