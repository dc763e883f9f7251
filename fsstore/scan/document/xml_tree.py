"""XML documents as trees of elements, read without trust.

A document with a document type is refused, so there are no entities to expand; its size, its depth and the number of
its elements have limits.  Namespaces are dropped: names are local ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.parsers import expat

from fsstore.errors import DataLossError, FailedPreconditionError, ResourceExhaustedError
from fsstore.scan.contract import ScanSource

_MOST_BYTES = 64 * 2**20
MOST_ELEMENTS = 2**20
_MOST_DEPTH = 64
_SEPARATOR = "\n"  # of a namespace and a name; neither has a line break


class XmlElement:
    """An element: its name, its attributes and its parts, in order; `text` is that before its first part."""

    __slots__ = ("attributes", "name", "parts", "text")

    def __init__(self, name: str, attributes: dict[str, str]) -> None:
        self.name, self.attributes = name, attributes
        self.parts: list[XmlElement] = []
        self.text = ""

    def all(self, name: str) -> Iterator[XmlElement]:
        """Yield the parts of a name."""
        return (each for each in self.parts if each.name == name)

    def first(self, name: str) -> XmlElement | None:
        """Return the first part of a name, or None."""
        return next(self.all(name), None)

    def text_of(self, name: str, default: str = "") -> str:
        """Return the text of the first part of a name, without spaces around it."""
        found = self.first(name)
        return default if found is None else found.text.strip()


def _local(name: str) -> str:
    return name.rpartition(_SEPARATOR)[2]


class _Building:
    """The elements that are open while a document is read."""

    def __init__(self) -> None:
        self.root: XmlElement | None = None
        self._open: list[XmlElement] = []
        self._count = 0

    def start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if self._count > MOST_ELEMENTS:
            raise ResourceExhaustedError(f"it has more than {MOST_ELEMENTS} elements, the most that are read")
        if len(self._open) >= _MOST_DEPTH:
            raise ResourceExhaustedError(f"its elements are nested more than {_MOST_DEPTH} deep, the most that is read")
        element = XmlElement(_local(name), {_local(key): value for key, value in attributes.items()})
        if self._open:
            self._open[-1].parts.append(element)
        else:
            self.root = element
        self._open.append(element)

    def end(self, _: str) -> None:
        self._open.pop()

    def characters(self, text: str) -> None:
        element = self._open[-1]
        if not element.parts:
            element.text += text

    def doctype(self, *_: Any) -> None:
        raise FailedPreconditionError("it declares a document type, whose entities are not expanded; refused")


def parsed(data: bytes) -> XmlElement:
    """Return the root of a document; raises `StoreError` for what is no XML, or is too large.

    >>> parsed(b'<a><b c="1">d</b></a>').text_of("b")
    'd'
    """
    building, parser = _Building(), expat.ParserCreate(namespace_separator=_SEPARATOR)
    parser.buffer_text = True
    parser.StartElementHandler, parser.EndElementHandler = building.start, building.end
    parser.CharacterDataHandler, parser.StartDoctypeDeclHandler = building.characters, building.doctype
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, LookupError, ValueError) as error:
        if isinstance(error, FailedPreconditionError | ResourceExhaustedError):
            raise
        raise DataLossError(f"it is no well-formed XML: {error}") from None
    assert building.root is not None
    return building.root


async def read_xml(source: ScanSource) -> XmlElement:
    """Return the root of the document that a file is."""
    if source.size > _MOST_BYTES:
        raise ResourceExhaustedError(f"it has {source.size} bytes of XML, and {_MOST_BYTES} are the most that are read")
    return parsed(bytes((await source.read([(0, source.size)]))[0]))
