"""Groups and datasets by their headers: the values that h5py would give for them.

Parts of a header that are not parsed here, such as virtual datasets, raise `UnknownError`: h5py describes them then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fsstore.errors import UnimplementedError
from fsstore.scan.hdf5.dataset import Dataset, scale_from
from fsstore.scan.hdf5.datatype import Element
from fsstore.scan.hdf5.format.attribute import Attribute, attribute_of
from fsstore.scan.hdf5.format.dataspace import dataspace_of
from fsstore.scan.hdf5.format.datatype import Datatype, datatype_of
from fsstore.scan.hdf5.format.dense import ATTRIBUTES, LINKS, ahead_of_dense, dense_messages, dense_of
from fsstore.scan.hdf5.format.filter import filters_of
from fsstore.scan.hdf5.format.layout import layout_of
from fsstore.scan.hdf5.format.link import ObjectLink, link_of
from fsstore.scan.hdf5.format.object_header import Message, messages_of, unshared
from fsstore.scan.hdf5.format.reader import Reader, UnknownError
from fsstore.scan.hdf5.format.symbol_table import links_of_table
from fsstore.scan.hdf5.parsed_attribute import attached_scales, parsed_attributes, parsed_value, text_at
from fsstore.scan.hdf5.parsed_type import parsed_element
from fsstore.values.json_value import Json

__all__ = ["ParsedGroup", "parsed_object"]

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
    """Return the attributes of an object by name."""
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
    if _EXTERNAL in one or _LAYOUT not in one:
        raise UnknownError
    space = dataspace_of(reader, unshared(reader, one[_DATASPACE]), one[_DATASPACE].address)
    if space.shape is None:
        raise UnimplementedError("it has no values, not even a scalar")
    kind = datatype_of(reader, unshared(reader, one[_DATATYPE]), one[_DATATYPE].address)
    element = parsed_element(kind)
    nbytes = math.prod(space.shape) * kind.size
    layout = layout_of(reader, one[_LAYOUT].body, one[_LAYOUT].address, nbytes)
    if layout.kind == "chunked" and len(layout.chunks) != len(space.shape):
        raise reader.damaged(one[_LAYOUT].address, "chunks have other dimensions than their dataset")
    found = _attributes(reader, messages)
    attributes, lost = parsed_attributes(reader, found)
    names = {name.decode("utf-8", "replace"): each for name, each in found.items()}
    chunked, filters = layout.kind == "chunked", one.get(_FILTERS)
    return Dataset(
        path,
        address,
        space.shape,
        space.most,
        element,
        layout.kind,
        chunks=layout.chunks,
        index=layout.index,
        filters=filters_of(reader, filters.body, filters.address) if chunked and filters is not None else (),
        offset=None if layout.address is None else reader.base + layout.address,
        size=layout.size,
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


def _fill(reader: Reader, messages: Sequence[Message], kind: Datatype, element: Element) -> Any:
    """Return what stands where nothing was written."""
    value = fill_of(reader, messages)
    if element.text:
        if value is None or element.inner or element.named:
            return ""
        if len(value) != kind.size:
            raise UnknownError
        return text_at(reader, value, 0)
    if value is None or element.inner or not any(value):
        return np.zeros((), element.dtype)
    if len(value) != element.dtype.itemsize or not element.as_stored:
        raise UnknownError
    return np.frombuffer(value, element.dtype).reshape(()).copy()


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
