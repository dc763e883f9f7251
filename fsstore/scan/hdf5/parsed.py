"""Datasets, groups and attributes as they stand in the file, parsed here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from fsstore.errors import UnimplementedError
from fsstore.scan.hdf5 import structure
from fsstore.scan.hdf5.dataset import FLOATS, NAMED, Dataset, Element, VirtualPart, element_from, parts_of, scale_from
from fsstore.scan.hdf5.heap import ATTRIBUTES, LINKS, Attribute, ahead_of_dense, attribute_of, dense_messages, dense_of
from fsstore.scan.hdf5.layout import (
    Layout,
    ObjectLink,
    external_of,
    filters_of,
    heap_value,
    layout_of,
    link_of,
    links_of_table,
)
from fsstore.scan.hdf5.structure import (
    Datatype,
    Message,
    NonsenseError,
    Reader,
    UnknownError,
    dataspace_of,
    datatype_of,
    messages_of,
    unshared,
)
from fsstore.scan.hierarchy import attribute_json
from fsstore.values.json_value import Json

# Attributes as JSON: what xarray's NetCDF engines show of them, where JSON can hold it.
#
# References, records and opaque values are left out and named; arrays of one element are scalars, as NetCDF
# has it.

HIDDEN = frozenset(
    {
        *("CLASS", "NAME", "DIMENSION_LIST", "REFERENCE_LIST"),
        *("_Netcdf4Dimid", "_Netcdf4Coordinates", "_nc3_strict", "_NCProperties"),
    }
)
"""Attributes that the libraries write for their own use."""


def scalar_or_array(value: Any) -> Any:
    """Return the one element of an array that has no other, as NetCDF has it, or the array."""
    if value.dtype == np.longdouble:
        value = value.astype(np.float64)
    return value.reshape(())[()] if value.size == 1 else value


# The data types of HDF5 as those of NumPy, by their descriptions in the file: what h5py names them.

_BIASES = {2: 15, 4: 127, 8: 1023, 16: 16383}
_BIT_IMPLIED, _BIT_STORED = 0x20, 0x00  # the first one of a mantissa
_NULL_ENDED, _NULL_PADDED, _SPACE_PADDED = 0, 1, 2
_TO_OBJECTS = 0
_TRUTH = {b"FALSE": 0, b"TRUE": 1}
_PARTS = [b"r", b"i"]
_NUMPY = b"NUMPY:"


@lru_cache(maxsize=64)
def parsed_element(kind: Datatype) -> Element:
    """Return the elements of a type; raises `UnimplementedError` for those that zarr cannot hold."""
    if kind.kind == structure.ARRAY and kind.base is not None:
        found = parsed_element(kind.base)
        return replace(found, inner=(*kind.shape, *found.inner))
    if kind.is_text:
        return Element(np.dtype(object), as_stored=False, text=True, size=kind.size, heaped=((0, 1),))
    if kind.kind == structure.REFERENCE and kind.flags & 0xF == _TO_OBJECTS:
        return NAMED
    if kind.kind == structure.REFERENCE:
        raise UnimplementedError("its elements are references to parts of datasets")
    dtype = numpy_of(kind)
    if dtype.hasobject:
        heaped = tuple(_heaped(kind, 0))
        return Element(np.dtype(object), (), False, True, "json", kind.size, heaped)
    return element_from(dtype, exact=dtype.itemsize == kind.size and is_exact(kind))


_MOST_HEAPED = 1_000
_IN_JSON = (structure.FIXED, structure.BITFIELD, structure.FLOAT, structure.STRING, structure.ENUM)


def _heaped(kind: Datatype, at: int, *, within: bool = False) -> Iterator[tuple[int, int]]:
    """Yield where in an element lengths of lists stand, with the bytes of a part; raises where JSON has no word."""
    if kind.kind == structure.VLEN and not within:
        unit = 1 if kind.is_text or kind.base is None else kind.base.size
        yield at, unit
        if not kind.is_text and kind.base is not None:
            yield from _heaped(kind.base, 0, within=True)
    elif kind.kind == structure.COMPOUND:
        for each in kind.members:
            yield from _heaped(each.type, at + each.offset, within=within)
    elif kind.kind == structure.ARRAY and kind.base is not None:
        count = math.prod(kind.shape)
        inner = list(_heaped(kind.base, 0, within=within))
        if count * len(inner) > _MOST_HEAPED:
            raise UnimplementedError(f"its elements hold {count} lists of any length each")
        yield from ((at + number * kind.base.size + step, unit) for number in range(count) for step, unit in inner)
    elif kind.kind not in _IN_JSON or (kind.kind == structure.FLOAT and kind.size > 8):
        raise UnimplementedError("its elements hold references, lists of lists, or numbers that JSON has not")


def _nothing(kind: Datatype) -> Json:
    """Return what stands for an element that was never written."""
    if kind.kind == structure.COMPOUND:
        return {each.name.decode("utf-8", "replace"): _nothing(each.type) for each in kind.members}
    if kind.kind == structure.ARRAY and kind.base is not None:
        out = _nothing(kind.base)
        for length in reversed(kind.shape):
            out = [out] * length
        return out
    if kind.is_text or kind.kind == structure.STRING:
        return ""
    return [] if kind.kind == structure.VLEN else 0.0 if kind.kind == structure.FLOAT else 0


@lru_cache(maxsize=64)
def numpy_of(kind: Datatype) -> np.dtype[Any]:
    """Return the dtype that h5py has for a type, or raise `UnimplementedError`."""
    which = kind.kind
    if which == structure.FIXED:
        return _number("i" if kind.flags & 8 else "u", kind)
    if which == structure.BITFIELD:
        return _number("u", kind)
    if which == structure.FLOAT:
        return _float(kind)
    if which == structure.STRING:
        return np.dtype(f"S{kind.size}")
    if which == structure.OPAQUE:
        named = kind.tag.startswith(_NUMPY)
        return _named(kind.tag.removeprefix(_NUMPY)) if named else np.dtype(f"V{kind.size}")
    if which == structure.ENUM and kind.base is not None:
        return _enumeration(kind, kind.base)
    if which == structure.ARRAY and kind.base is not None:
        return np.dtype((numpy_of(kind.base), kind.shape))
    if which == structure.COMPOUND:
        return _record(kind)
    if which == structure.COMPLEX and kind.base is not None:
        part = numpy_of(kind.base)
        return _named(f"{part.str[0]}c{2 * part.itemsize}".encode())
    if which in (structure.VLEN, structure.REFERENCE):
        return np.dtype(object)
    raise UnimplementedError(f"its type has none of NumPy: class {which} of HDF5")


def _named(name: bytes) -> np.dtype[Any]:
    try:
        return np.dtype(name.decode())
    except (TypeError, ValueError, SyntaxError) as error:
        raise UnimplementedError(f"its type has none of NumPy: {error}") from None


def _number(letter: str, kind: Datatype) -> np.dtype[Any]:
    return _named(f"{_order(kind)}{letter}{kind.size}".encode())


def _order(kind: Datatype) -> str:
    if kind.flags & 0x40:
        raise UnimplementedError("its type has none of NumPy: the byte order of VAX")
    return ">" if kind.flags & 1 else "<"


def _float(kind: Datatype) -> np.dtype[Any]:
    """Return the smallest float that holds all of a type."""
    *_, exponent, _, mantissa, bias = kind.fields
    for size in FLOATS:
        dtype = np.dtype(f"{_order(kind)}f{size}") if size <= 8 else np.dtype(np.longdouble)
        limits = np.finfo(dtype)
        bits = limits.nmant + (limits.nmant == 63)
        if (
            dtype.itemsize >= kind.size
            and mantissa <= bits
            and 2**exponent - bias - 1 <= limits.maxexp
            and 1 - bias >= limits.minexp
        ):
            return dtype
    raise UnimplementedError("its type has none of NumPy: floats of such an exponent or mantissa")


def _is_usual(kind: Datatype) -> bool:
    """Return whether a float is one of NumPy, bit by bit."""
    offset, precision, *places, bias = kind.fields
    size, first = kind.size, _BIT_IMPLIED if kind.size <= 8 else _BIT_STORED
    return (
        FLOATS.get(size) == (kind.flags >> 8 & 0xFF, *places)
        and (_BIASES[size], offset, kind.flags & 0x7E) == (bias, 0, first)
        and precision == (8 * size if size <= 8 else 80)
    )


def _enumeration(kind: Datatype, base: Datatype) -> np.dtype[Any]:
    if base.kind != structure.FIXED:
        raise UnimplementedError("its type has none of NumPy: an enumeration of others than integers")
    order = "big" if base.flags & 1 else "little"
    numbers = {name: int.from_bytes(value, order) for name, value in kind.values.items()}  # type: ignore[arg-type]  # one of two
    return np.dtype(bool) if numbers == _TRUTH else numpy_of(base)


def _record(kind: Datatype) -> np.dtype[Any]:
    """Return a structure, or a complex number if its parts are those of one."""
    members = kind.members
    types = [numpy_of(each.type) for each in members]
    if [each.name for each in members] == _PARTS and types[0] == types[1] and types[0].kind == "f":
        return _named(f"{types[0].str[0]}c{2 * types[0].itemsize}".encode())
    fields = sorted(zip(members, types, strict=True), key=lambda each: each[0].offset)
    try:
        names = [member.name.decode("utf-8") for member, _ in fields]
        return np.dtype(
            {
                "names": names,
                "formats": [each for _, each in fields],
                "offsets": [member.offset for member, _ in fields],
                "itemsize": kind.size,
            }
        )
    except (UnicodeDecodeError, ValueError, TypeError) as error:
        raise UnimplementedError(f"its type has none of NumPy: {error}") from None


def is_exact(kind: Datatype) -> bool:
    """Return whether the bytes in the file are what NumPy takes such elements to be."""
    which = kind.kind
    if which == structure.FIXED:
        return kind.fields == (0, 8 * kind.size)
    if which == structure.FLOAT:
        return _is_usual(kind)
    if which == structure.STRING:
        return kind.flags & 0xF == _NULL_PADDED or kind.size == 1
    if which in (structure.ENUM, structure.ARRAY, structure.COMPLEX):
        return kind.base is not None and is_exact(kind.base)
    if which == structure.COMPOUND:
        end = 0
        for member in kind.members:
            if member.offset != end or not is_exact(member.type):
                return False
            end += member.type.size
    return True


# Attributes by their bytes in the file: the values that h5py gives for them.

_NUMBERS = (structure.FIXED, structure.FLOAT, structure.ENUM, structure.BITFIELD)


def parsed_attributes(reader: Reader, found: Mapping[bytes, Attribute]) -> tuple[dict[str, Json], tuple[str, ...]]:
    """Return the attributes that users see, and the names of those that JSON cannot hold."""
    out: dict[str, Json] = {}
    left_out: list[str] = []
    for name in sorted(found):
        text = name.decode("utf-8", "replace")
        if text in HIDDEN:
            continue
        try:
            value = parsed_value(reader, found[name])
        except UnimplementedError:
            value = None
        if value is None:
            left_out.append(text)
        else:
            out[text] = attribute_json(value)
    return out, tuple(left_out)


def parsed_value(reader: Reader, found: Attribute) -> Any:
    """Return the value of an attribute, or None if it is of a kind that is left out."""
    kind, shape = found.type, found.space.shape
    is_text = kind.kind == structure.STRING or kind.is_text
    if shape is None:
        return "" if is_text else []
    if not is_text:
        return _numbers(found, kind, shape) if kind.kind in _NUMBERS else None
    count = math.prod(shape)
    if kind.is_text:
        step = kind.size
        texts = [text_at(reader, found.data[at : at + step], found.address) for at in range(0, count * step, step)]
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
        raise reader.damaged(place, f"the global heap has {len(found)} bytes of a value of {count * itemsize}")
    reader.spend(address, count * itemsize)
    return found[: count * itemsize]


def attached_scales(reader: Reader, found: Attribute) -> tuple[int, ...]:
    """Return the addresses of the scales that dimensions have, by the attribute that lists them; 0 is none."""
    kind, shape = found.type, found.space.shape
    lists_references = kind.kind == structure.VLEN and kind.base is not None and kind.base.is_reference
    if not lists_references or shape is None or len(shape) != 1:
        return ()
    out = []
    for at in range(0, len(found.data), kind.size):
        listed = _of_any_length(reader, found.data[at : at + kind.size], found.address, reader.width)
        out.append(reader.address(listed, len(listed) - reader.width) if listed else 0)
    return tuple(out)


_DATASPACE, _LINK_INFO, _DATATYPE, _LINK, _EXTERNAL, _LAYOUT = 0x01, 0x02, 0x03, 0x06, 0x07, 0x08
_FILTERS, _ATTRIBUTE, _SYMBOL_TABLE, _ATTRIBUTE_INFO = 0x0B, 0x0C, 0x11, 0x15


class ParsedGroup(NamedTuple):
    """A group: its attributes, the names of those left out, and its links."""

    attributes: dict[str, Json]
    lost: tuple[str, ...]
    links: Sequence[ObjectLink]


def parsed_object(reader: Reader, path: str, address: int) -> ParsedGroup | Dataset | None:
    """Return the object whose header is at an address; None if it is a named type.

    Raises `UnimplementedError` for a dataset that no array of zarr can show.
    """
    messages = messages_of(reader, address)
    kinds = {each.kind for each in messages}
    for message in messages if reader.waits else ():
        if message.kind in (_LINK_INFO, _ATTRIBUTE_INFO):
            ahead_of_dense(reader, dense_of(reader, message))
    if kinds & {_LINK_INFO, _SYMBOL_TABLE}:
        attributes, lost = parsed_attributes(reader, _attributes(reader, messages))
        return ParsedGroup(attributes, lost, _links(reader, messages))
    if kinds >= {_DATATYPE, _DATASPACE}:
        return _dataset(reader, messages, path, address)
    if _DATATYPE in kinds:
        return None
    raise UnknownError


def _attributes(reader: Reader, messages: Sequence[Message]) -> dict[bytes, Attribute]:
    found: list[tuple[bytes, int]] = []
    for message in messages:
        if message.kind == _ATTRIBUTE:
            if message.shared:
                raise UnknownError
            found.append((message.body, message.address))
        elif message.kind == _ATTRIBUTE_INFO:
            found += dense_messages(reader, dense_of(reader, message), ATTRIBUTES)
    attributes = (attribute_of(reader, *each) for each in found)
    return {attribute.name: attribute for attribute in attributes}


def _links(reader: Reader, messages: Sequence[Message]) -> Sequence[ObjectLink]:
    """Return the links of a group, in the order of their creation where that is known, else by name."""
    found: list[ObjectLink] = []
    tracked = False
    for message in messages:
        if message.kind == _SYMBOL_TABLE:
            return links_of_table(reader, message.body, message.address)
        if message.kind == _LINK:
            found.append(link_of(reader, message.body, message.address))
        elif message.kind == _LINK_INFO:
            dense = dense_of(reader, message)
            tracked = dense.tracked
            found += [link_of(reader, *each) for each in dense_messages(reader, dense, LINKS)]
    return sorted(found, key=(lambda each: each.order) if tracked else (lambda each: each.name))


def _dataset(reader: Reader, messages: Sequence[Message], path: str, address: int) -> Dataset:
    one = {each.kind: each for each in messages}
    if _LAYOUT not in one:
        raise UnknownError
    space = dataspace_of(reader, unshared(reader, one[_DATASPACE]), one[_DATASPACE].address)
    if space.shape is None:
        raise UnimplementedError("it has no values, not even a scalar")
    kind = datatype_of(reader, unshared(reader, one[_DATATYPE]), one[_DATATYPE].address)
    element = parsed_element(kind)
    layout = layout_of(reader, one[_LAYOUT].body, one[_LAYOUT].address)
    if layout.kind == "chunked" and len(layout.chunks) != len(space.shape):
        raise reader.damaged(one[_LAYOUT].address, "chunks have other dimensions than their dataset")
    found = _attributes(reader, messages)
    attributes, lost = parsed_attributes(reader, found)
    names = {name.decode("utf-8", "replace"): each for name, each in found.items()}
    filters = one.get(_FILTERS) if layout.kind == "chunked" else None
    is_run = layout.kind == "contiguous"
    raw, run = (one.get(_EXTERNAL), layout.address) if is_run else (None, None)
    return Dataset(
        path,
        address,
        space.shape,
        space.most,
        element,
        layout.kind,
        chunks=layout.chunks,
        index=layout.index,
        filters=() if filters is None else filters_of(reader, filters.body, filters.address),
        offset=None if run is None else reader.base + run,
        external=() if raw is None else external_of(reader, raw.body, raw.address),
        parts=_parts(reader, layout, space.shape),
        fill=_fill(reader, messages, kind, element),
        attributes=attributes,
        lost_attributes=lost,
        scale=scale_from(
            names,
            lambda name: parsed_value(reader, names[name]),
            lambda: attached_scales(reader, names["DIMENSION_LIST"]),
        ),
        by_library=not element.as_stored,
    )


def _parts(reader: Reader, layout: Layout, shape: tuple[int, ...]) -> tuple[VirtualPart, ...]:
    if layout.kind != "virtual" or layout.address is None:
        return ()
    value = heap_value(reader, layout.address, layout.number)
    reader.verify(layout.address, value, "the mapping of a virtual dataset")
    try:
        return parts_of(value[:-4], reader.lengths, shape)
    except NonsenseError as error:
        raise reader.damaged(layout.address, str(error)) from None


def _fill(reader: Reader, messages: Sequence[Message], kind: Datatype, element: Element) -> Any:
    value = fill_of(reader, messages)
    if element.text:
        if element.made == "json" and not any(value or b""):
            while kind.kind == structure.ARRAY and kind.base is not None:
                kind = kind.base
            return json.dumps(_nothing(kind), ensure_ascii=False)
        if value is None or element.inner or element.made:
            return ""
        if len(value) != kind.size:
            raise UnknownError
        return text_at(reader, value, 0)
    if value is None or element.inner or not any(value):
        return np.zeros((), element.dtype)
    if len(value) != kind.size:
        raise UnknownError
    return _as_shown(kind, value, element.dtype)


def _as_shown(kind: Datatype, value: bytes, dtype: np.dtype[Any]) -> Any:
    """Return a value by its bytes in the file, where these are not those of the dtype: of records, lists and texts."""
    if kind.kind == structure.COMPOUND and dtype.names is not None:
        out = np.zeros((), dtype)
        for each in kind.members:
            part = value[each.offset : each.offset + each.type.size]
            name = each.name.decode("utf-8")
            out[name] = _as_shown(each.type, part, dtype[name])
        return out
    if kind.kind == structure.ARRAY and kind.base is not None and dtype.subdtype is not None:
        base, step = dtype.subdtype[0], kind.base.size
        pieces = [value[at : at + step] for at in range(0, len(value), step)]
        return np.array([_as_shown(kind.base, each, base) for each in pieces], base).reshape(kind.shape)
    if kind.kind == structure.STRING:
        padding = kind.flags & 0xF
        text = value.partition(b"\0")[0] if padding == _NULL_ENDED else value
        return np.array(text.rstrip(b" ") if padding == _SPACE_PADDED else text, dtype)
    if not is_exact(kind) or dtype.itemsize != len(value):
        raise UnknownError
    return np.frombuffer(value, dtype).reshape(()).copy()


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
