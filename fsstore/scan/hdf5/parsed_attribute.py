"""Attributes by their bytes in the file: the values that h5py gives for them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fsstore.scan.hdf5.attribute import HIDDEN, scalar_or_array
from fsstore.scan.hdf5.format import datatype
from fsstore.scan.hdf5.format.attribute import Attribute
from fsstore.scan.hdf5.format.datatype import Datatype
from fsstore.scan.hdf5.format.global_heap import heap_value
from fsstore.scan.hdf5.format.reader import Reader, UnknownError
from fsstore.scan.hdf5.parsed_type import is_exact, numpy_of
from fsstore.scan.hierarchy import attribute_json
from fsstore.values.json_value import Json

__all__ = ["attached_scales", "parsed_attributes", "parsed_value", "text_at"]

_NUMBERS = (datatype.FIXED, datatype.FLOAT, datatype.ENUM, datatype.BITFIELD)


def parsed_attributes(
    reader: Reader, found: Mapping[bytes, Attribute]
) -> tuple[dict[str, Json], tuple[str, ...]]:
    """Return the attributes that users see, and the names of those that JSON cannot hold."""
    out: dict[str, Json] = {}
    left_out: list[str] = []
    for name in sorted(found):
        text = name.decode("utf-8", "replace")
        if text in HIDDEN:
            continue
        value = parsed_value(reader, found[name])
        if value is None:
            left_out.append(text)
        else:
            out[text] = attribute_json(value)
    return out, tuple(left_out)


def parsed_value(reader: Reader, found: Attribute) -> Any:
    """Return the value of an attribute, or None if it is of a kind that is left out."""
    kind, shape = found.type, found.space.shape
    is_text = kind.kind == datatype.STRING or kind.is_text
    if shape is None:
        return "" if is_text else []
    if not is_text:
        return _numbers(found, kind, shape) if kind.kind in _NUMBERS else None
    count = math.prod(shape)
    if kind.is_text:
        step = kind.size
        texts = [
            text_at(reader, found.data[at : at + step], found.address) for at in range(0, count * step, step)
        ]
    elif not kind.size:
        raise UnknownError
    else:
        step = kind.size
        pieces = (found.data[at : at + step] for at in range(0, count * step, step))
        texts = [each.rstrip(b"\0").decode("utf-8", "replace") for each in pieces]
    if count == 1:
        return texts[0]
    values = np.empty(shape, object)
    values.reshape(-1)[:] = texts
    return values


def _numbers(found: Attribute, kind: Datatype, shape: tuple[int, ...]) -> Any:
    dtype = numpy_of(kind)
    if dtype.itemsize != kind.size or not is_exact(kind):
        raise UnknownError
    return scalar_or_array(np.frombuffer(found.data, dtype).reshape(shape))


def text_at(reader: Reader, value: bytes, address: int) -> str:
    """Return a string of any length by what stands in its place: its length, and where it is."""
    octets = _of_any_length(reader, value, address, 1)
    return octets.partition(b"\0")[0].decode("utf-8", "replace")


def _of_any_length(reader: Reader, value: bytes, address: int, itemsize: int) -> bytes:
    count, place = int.from_bytes(value[:4], "little"), reader.address(value, 4)
    if not count or place in (0, reader.undefined):
        return b""
    number = int.from_bytes(value[4 + reader.width : 8 + reader.width], "little")
    found = heap_value(reader, place, number)
    if count * itemsize > len(found):
        raise reader.damaged(
            place, f"the global heap has {len(found)} bytes of a value of {count * itemsize}"
        )
    reader.spend(address, count * itemsize)
    return found[: count * itemsize]


def attached_scales(reader: Reader, found: Attribute) -> tuple[int, ...]:
    """Return the addresses of the scales that dimensions have, by the attribute that lists them; 0 is none."""
    kind, shape = found.type, found.space.shape
    lists_references = kind.kind == datatype.VLEN and kind.base is not None and kind.base.is_reference
    if not lists_references or shape is None or len(shape) != 1:
        if kind.kind == datatype.VLEN and kind.base is not None and kind.base.kind == datatype.REFERENCE:
            raise UnknownError
        return ()
    out = []
    for at in range(0, len(found.data), kind.size):
        listed = _of_any_length(reader, found.data[at : at + kind.size], found.address, reader.width)
        out.append(reader.address(listed, len(listed) - reader.width) if listed else 0)
    return tuple(out)
