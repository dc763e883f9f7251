"""Links as messages."""

from __future__ import annotations

from typing import Literal, NamedTuple

from fsstore.scan.hdf5.format.reader import Reader, UnknownError

__all__ = ["ObjectLink", "link_of"]

_HARD, _SOFT, _EXTERNAL = 0, 1, 64


class ObjectLink(NamedTuple):
    """A link: a hard one leads to an address, others to a name, those to other files to one in `file`."""

    name: bytes
    kind: Literal["hard", "soft", "external", "other"]
    address: int = 0
    target: bytes = b""
    file: bytes = b""
    order: int = 0


def link_of(reader: Reader, body: bytes, address: int) -> ObjectLink:
    """Return the link of a message."""
    if len(body) < 3 or body[0] != 1:
        raise UnknownError
    flags, at, kind, order = body[1], 2, _HARD, 0
    if flags & 8:
        kind, at = body[at], at + 1
    if flags & 4:
        order, at = int.from_bytes(body[at : at + 8], "little", signed=True), at + 8
    if flags & 16:
        at += 1
    width = 1 << (flags & 3)
    size = int.from_bytes(body[at : at + width], "little")
    at += width
    name, at = body[at : at + size], at + size
    need = reader.width if kind == _HARD else 2
    if at + need > len(body) or not name:
        raise reader.damaged(address, "a link is cut off")
    if kind == _HARD:
        return ObjectLink(name, "hard", reader.address(body, at), order=order)
    size = int.from_bytes(body[at : at + 2], "little")
    value = body[at + 2 : at + 2 + size]
    if len(value) < size:
        raise reader.damaged(address, "the target of a link is cut off")
    if kind == _SOFT:
        return ObjectLink(name, "soft", target=value, order=order)
    if kind != _EXTERNAL:
        return ObjectLink(name, "other", order=order)
    if value[:1] != b"\0":
        raise UnknownError
    file, _, target = value[1:].partition(b"\0")
    return ObjectLink(name, "external", target=target.partition(b"\0")[0], file=file, order=order)
