"""Fill values: what stands where nothing was written."""

from __future__ import annotations

from collections.abc import Sequence

from fsstore.kvstore.scan.hdf5.format.object_header import Message
from fsstore.kvstore.scan.hdf5.format.reader import Reader, UnknownError

__all__ = ["fill_of"]

_NEW, _OLD = 0x05, 0x04


def fill_of(reader: Reader, messages: Sequence[Message]) -> bytes | None:
    """Return the fill value that a user gave, as the file has it; None for that of the type."""
    by_kind = {each.kind: each for each in messages}
    message = by_kind.get(_NEW) or by_kind.get(_OLD)
    if message is None:
        return None
    if message.shared:
        raise UnknownError
    body = message.body
    if message.kind == _OLD:
        return _value(reader, message, 0)
    version = body[0] if len(body) > 1 else 0
    if version in (1, 2):
        defined = body[3] if len(body) > 3 else 0
        return _value(reader, message, 4) if version == 1 or defined else None
    if version != 3:
        raise UnknownError
    return _value(reader, message, 2) if body[1] & 0x20 else None


def _value(reader: Reader, message: Message, at: int) -> bytes | None:
    size = int.from_bytes(message.body[at : at + 4], "little", signed=True)
    if size <= 0:
        return None
    value = message.body[at + 4 : at + 4 + size]
    if len(value) < size:
        raise reader.damaged(message.address, "a fill value is cut off")
    return value
