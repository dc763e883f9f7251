"""Filter pipelines, in the order of writing."""

from __future__ import annotations

from typing import NamedTuple

from fsstore.scan.hdf5.format.reader import Reader, UnknownError

__all__ = ["Filter", "filters_of"]

_NAMED = 256  # the first number of a filter that is not of HDF5 itself
_NAMES = {1: "deflate", 2: "shuffle", 3: "fletcher32", 4: "szip", 5: "nbit", 6: "scaleoffset"}


class Filter(NamedTuple):
    """A filter of the pipeline, in the order of writing."""

    id: int
    values: tuple[int, ...]
    name: str


def filters_of(reader: Reader, body: bytes, address: int) -> tuple[Filter, ...]:
    """Return the filters of a message."""
    if len(body) < 2 or body[0] not in (1, 2):
        raise UnknownError
    version, count = body[0], body[1]
    at = 8 if version == 1 else 2
    out = []
    for _ in range(count):
        code = int.from_bytes(body[at : at + 2], "little")
        at += 2
        size = 0
        if version == 1 or code >= _NAMED:
            size, at = int.from_bytes(body[at : at + 2], "little"), at + 2
        number, at = int.from_bytes(body[at + 2 : at + 4], "little"), at + 4
        end = at + (-(-size // 8) * 8 if version == 1 else size)
        name = body[at : at + size].split(b"\0")[0].decode("utf-8", "replace")
        stop = end + 4 * number
        if stop > len(body):
            raise reader.damaged(address, "a pipeline of filters is cut off")
        values = tuple(int.from_bytes(body[each : each + 4], "little") for each in range(end, stop, 4))
        out.append(Filter(code, values, name or _NAMES.get(code, "")))
        at = stop + (4 if version == 1 and number % 2 else 0)
    return tuple(out)
