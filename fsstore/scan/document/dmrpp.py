"""DMR++ documents of OPeNDAP and NASA: an HDF5 file as XML, with the place of each chunk.

A document describes groups, variables and attributes in the words of DAP 4; elements of a namespace of their own say
where the chunks of a variable are, and which filters they went through.  The file is what `dmrpp:href` names, relative
to the document; where that is the mark that servers replace, the file of the same name beside the document.

A variable that a document describes incompletely, or in words that are not known here, is left out by name.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from fsstore.context.context import Context
from fsstore.errors import DataLossError, FailedPreconditionError, StoreError, UnimplementedError
from fsstore.kvstore.contract.batch import Limits
from fsstore.kvstore.contract.driver import Buffer, KvPrefix, Read
from fsstore.reference.policy import name_of
from fsstore.reference.table.refset import ScanRecord, TableSet
from fsstore.reference.table.table import Rows
from fsstore.reference.targets import open_in
from fsstore.runtime import execution
from fsstore.runtime.cache import CachePool
from fsstore.scan.as_references import format_of, references_of
from fsstore.scan.contract import MADE, ChunkTable, FileScanner, Numbers, ScanHierarchy, ScanSource
from fsstore.scan.document.xml_tree import XmlElement, read_xml
from fsstore.scan.driver import Means, ScanDriver
from fsstore.scan.hdf5.filters import DEFLATE, FLETCHER32, SHUFFLE, codecs_of, encoded_plainly, undone
from fsstore.scan.hdf5.layout import Filter
from fsstore.scan.hierarchy import (
    Array,
    Columns,
    HierarchyBuilder,
    Strided,
    attribute_json,
    empty,
    fill_json,
    inline,
    run_chunks,
    run_strides,
)
from fsstore.scan.targets import stamp_of
from fsstore.values.json_value import Json, quote

_TYPES: Mapping[str, str] = {
    "Byte": "u1", "UInt8": "u1", "Int8": "i1", "Char": "S1", "Int16": "i2", "UInt16": "u2", "Int32": "i4",
    "UInt32": "u4", "Int64": "i8", "UInt64": "u8", "Float32": "f4", "Float64": "f8",
}  # fmt: skip
_OTHERS = frozenset({"Enum", "Opaque", "Sequence", "String", "Structure", "URL"})
_FILTERS = {"deflate": DEFLATE, "shuffle": SHUFFLE, "fletcher32": FLETCHER32}
_REPLACED = "OPeNDAP_DMRpp_"  # how the marks begin that servers replace
_MOST_INLINE = 2**26
_MOST_SAMPLED = 16  # chunks that are decoded to tell a document of another file


@dataclass(frozen=True, slots=True)
class DapVariable:
    """An array: its shape, its type, and how and where its chunks are stored; `chunks` is empty for one run of bytes.

    `inline` is the value if the document itself holds it.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    dims: tuple[str, ...]
    chunks: tuple[int, ...] = ()
    filters: tuple[Filter, ...] = ()
    fill: Json = None
    places: XmlElement = field(default_factory=lambda: XmlElement("", {}))
    inline: bytes | None = None

    @property
    def nbytes(self) -> int:
        """The bytes of a decoded chunk."""
        return self.dtype.itemsize * math.prod(self.chunks)

    @property
    def grid(self) -> list[int]:
        """How many chunks there are along each axis; one run of bytes is one chunk."""
        sides = self.chunks or self.shape
        return [-(-size // max(side, 1)) for size, side in zip(self.shape, sides, strict=True)]


class _VariableReader:
    """Reads the variables of one document."""

    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = sizes

    def variable(self, element: XmlElement) -> DapVariable:
        """Return a variable; raises `UnimplementedError` with the reason if it cannot be shown."""
        dims, shape = self._dimensions(element)
        places = element.first("chunks")
        if places is None and element.first("chunk") is not None:
            places = element
        dtype = _dtype(element, places)
        held = element.first("compact") or element.first("missingdata")
        if held is not None:
            value = _held(held, math.prod(shape) * dtype.itemsize)
            return DapVariable(shape, dtype, dims, shape, inline=value)
        if places is None:
            raise UnimplementedError("nothing says where its values are")
        filters = _filters(places, dtype.itemsize)
        sides = _numbers(places.text_of("chunkDimensionSizes")) or (shape if filters else ())
        if sides and (len(sides) != len(shape) or min(sides) < 1):
            raise UnimplementedError(f"its chunks are {list(sides)}, and its shape is {list(shape)}")
        return DapVariable(shape, dtype, dims, sides, filters, _fill(places, dtype), places)

    def _dimensions(self, element: XmlElement) -> tuple[tuple[str, ...], tuple[int, ...]]:
        dims: list[str] = []
        shape = []
        for axis, each in enumerate(element.all("Dim")):
            name = each.attributes.get("name", "")
            size = self._sizes.get(name) if name else _number(each.attributes.get("size", ""))
            if size is None:
                raise UnimplementedError(f"its dimension {quote(name or str(axis))} has no size")
            shape.append(size)
            dims.append(name.rpartition("/")[2] or f"phony_dim_{axis}")
        if math.prod(max(size, 1) for size in shape) > 2**62:
            raise UnimplementedError(f"its shape {shape} is larger than any file")
        return tuple(dims), tuple(shape)


def _dtype(element: XmlElement, places: XmlElement | None) -> np.dtype[Any]:
    texts = element.first("FixedLengthStringArray")
    if texts is not None:
        width = _number(texts.attributes.get("string_length", ""))
        if element.name != "String" or not width:
            raise UnimplementedError("its texts have no length")
        return np.dtype(f"S{width}")
    if element.name not in _TYPES:
        raise UnimplementedError(f"variables of the type {element.name} are not shown")
    order = "LE" if places is None else places.attributes.get("byteOrder", "LE")
    if order not in ("LE", "BE"):
        raise UnimplementedError(f"its byte order {quote(order)} is not known")
    return np.dtype(_TYPES[element.name]).newbyteorder("<" if order == "LE" else ">")


def _held(element: XmlElement, size: int) -> bytes:
    """Return the value that a document holds."""
    if size > _MOST_INLINE:
        raise UnimplementedError(f"the document holds {size} bytes of it, and {_MOST_INLINE} are the most")
    try:
        value = base64.b64decode("".join(element.text.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise UnimplementedError(f"the value in the document cannot be decoded: {error}") from None
    if element.name == "missingdata":  # it may be compressed
        with contextlib.suppress(zlib.error):
            value = zlib.decompressobj().decompress(value, size + 1)
    if len(value) != size:
        raise UnimplementedError(f"the value in the document has {len(value)} bytes, and its shape says {size}")
    return value


def _filters(places: XmlElement, itemsize: int) -> tuple[Filter, ...]:
    out = []
    level = _numbers(places.attributes.get("deflateLevel", "")) or (1,)
    for word in places.attributes.get("compressionType", "").split():
        if word not in _FILTERS:
            raise UnimplementedError(f"its filter {quote(word)} is not known")
        values = {"shuffle": (itemsize,), "deflate": (level[0],)}.get(word, ())
        out.append(Filter(_FILTERS[word], values, word))
    return tuple(out)


def _fill(places: XmlElement, dtype: np.dtype[Any]) -> Json:
    """Return the value of chunks that are not stored; None if nothing says it."""
    text = places.attributes.get("fillValue")
    if text is None:
        return None
    try:
        if dtype.kind == "f":
            return fill_json(float(text), dtype)
        return fill_json(text.encode("latin-1") if dtype.kind == "S" else int(text), dtype)
    except (ValueError, OverflowError):
        raise UnimplementedError(f"its fill value {quote(text)} is none of its type") from None


def _number(text: str) -> int | None:
    """Return a count or place, which has at most 18 digits, or None for other texts."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


def _numbers(text: str) -> tuple[int, ...]:
    found = [_number(word) for word in text.replace(",", " ").split()]
    if None in found:
        raise UnimplementedError(f"{quote(text)} is no list of numbers")
    return tuple(each for each in found if each is not None)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """A chunk in the document: its number in the grid, its place, the filters it skipped, and its file."""

    number: int
    offset: int
    length: int
    mask: int
    url: str


def _chunk(element: XmlElement, variable: DapVariable, grid: Sequence[int], url: str) -> _Chunk:
    said = element.attributes
    offset, length = _number(said.get("offset", "")), _number(said.get("nBytes", ""))
    mask = _number(said.get("fm") or said.get("filterMask") or "0")
    if offset is None or length is None or mask is None:
        raise UnimplementedError("a chunk of it has no place")
    if any(key.startswith("LinkedBlock") or key == "LBIndex" for key in said):
        raise UnimplementedError("its chunks consist of linked blocks")
    at = _numbers(said.get("chunkPositionInArray", "").strip("[] ")) or (0,) * len(grid)
    sides = [max(side, 1) for side in variable.chunks or variable.shape]
    if len(at) != len(grid) or any(
        place % side or place // side >= size for place, side, size in zip(at, sides, grid, strict=True)
    ):
        raise UnimplementedError(f"a chunk of it is said to be at {list(at)}, where none can be")
    number = 0
    for place, side, size in zip(at, sides, grid, strict=True):
        number = number * size + place // side
    return _Chunk(number, offset, length, mask, _href(said, url))


def _href(attributes: Mapping[str, str], default: str) -> str:
    url = attributes.get("href", "")
    return default if not url or url.startswith(_REPLACED) else url


class DmrppFile:
    """One generation of a document."""

    def __init__(self, source: ScanSource, root: XmlElement, url: str) -> None:
        self._source, self._url = source, _href(root.attributes, url)
        self._variables: dict[str, DapVariable] = {}
        self._tables: dict[str, ChunkTable] = {}
        self._skipped: dict[str, dict[int, _Chunk]] = {}
        self._sizes: dict[str, int] = {}
        self._builder = HierarchyBuilder()
        self._group(root, "")
        self.hierarchy: ScanHierarchy = self._builder.finish(refers=True)

    def _group(self, element: XmlElement, path: str) -> None:
        for each in element.all("Dimension"):
            size = _number(each.attributes.get("size", ""))
            if size is not None:
                self._sizes[f"/{path}{each.attributes.get('name', '')}"] = size
        attributes, lacking = _attributes(element)
        self._builder.group(path.rstrip("/"), attributes)
        self._builder.lacks_attributes(path.rstrip("/"), lacking)
        reader = _VariableReader(self._sizes)
        for each in element.parts:
            if each.name != "Group" and each.name not in _TYPES and each.name not in _OTHERS:
                continue
            name = each.attributes.get("name", "")
            if "/" in name or name in ("", ".", "..") or f"{path}{name}" in self._variables:
                self._builder.note(f"{path}{name}", "its name cannot be part of a path, or another has it")
            elif each.name == "Group":
                self._group(each, f"{path}{name}/")
            else:
                self._add(f"{path}{name}", each, reader)

    def _add(self, path: str, element: XmlElement, reader: _VariableReader) -> None:
        attributes, lacking = _attributes(element)
        try:
            variable = reader.variable(element)
            codecs = codecs_of(variable.filters, variable.dtype.itemsize, variable.nbytes)
            if codecs is None:
                raise UnimplementedError("its filters are in an order that is not known")
            table, is_whole = self._table(path, variable)
            chunks = variable.chunks or run_chunks(variable.shape, variable.dtype.itemsize)
            fill = None if is_whole else variable.fill
            sides, text = [max(1, side) for side in chunks], variable.dtype.str
            self._builder.array(
                path, Array(variable.shape, sides, text, fill, codecs, dims=variable.dims, attributes=attributes)
            )
        except StoreError as error:
            self._builder.note(path, error.message)
            return
        self._builder.lacks_attributes(path, lacking)
        self._variables[path], self._tables[path] = variable, table

    def _table(self, path: str, variable: DapVariable) -> tuple[ChunkTable, bool]:
        """Return where the chunks are, and whether all of them are somewhere."""
        if variable.inline is not None:
            return (inline([variable.inline]) if variable.inline else empty()), True
        if variable.places.first("block") is not None:
            raise UnimplementedError("its values are stored in linked blocks")
        grid = variable.grid
        found = [_chunk(each, variable, grid, self._url) for each in variable.places.all("chunk")]
        count = math.prod(grid)
        if len({each.number for each in found}) != len(found):
            raise UnimplementedError("a chunk of it is described twice")
        if len(found) < count and variable.fill is None:
            raise UnimplementedError(
                f"{count - len(found)} of its {count} chunks have no place, and no fill value is given"
            )
        if not variable.chunks:
            return (_run(variable, found[0]) if found else empty()), bool(found)
        return self._columns(path, variable, sorted(found, key=lambda each: each.number)), len(found) == count

    def _columns(self, path: str, variable: DapVariable, found: Sequence[_Chunk]) -> ChunkTable:
        urls = list(dict.fromkeys(each.url for each in found))
        numbered = {url: number for number, url in enumerate(urls)}
        most = variable.nbytes + variable.nbytes // 64 + 1024 if variable.filters else variable.nbytes
        for each in found:
            if each.length > most or not (variable.filters or each.length == most):
                raise UnimplementedError(f"a chunk of it has {each.length} bytes, and decodes to {variable.nbytes}")
        self._skipped[path] = {each.number: each for each in found if each.mask}
        url = np.array([MADE if each.mask else numbered[each.url] for each in found], np.int32)
        offset, length, index = (
            np.array([getattr(each, name) for each in found], np.int64) for name in ("offset", "length", "number")
        )
        return Columns(Rows(url, offset, length), index, urls=urls)

    @property
    def variables(self) -> Mapping[str, DapVariable]:
        """The arrays that are shown, by path."""
        return self._variables

    def chunks(self, path: str) -> Sequence[_Chunk]:
        """Return the chunks of an array that are stored in a file."""
        variable = self._variables[path]
        return [_chunk(each, variable, variable.grid, self._url) for each in variable.places.all("chunk")]

    async def tables(self, paths: Sequence[str]) -> Sequence[ChunkTable]:
        """Return the chunk tables of arrays, which the document says."""
        return [self._tables[path] for path in paths]

    async def make(self, path: str, numbers: Numbers) -> Sequence[Buffer]:
        """Return chunks that skipped a filter, encoded by all of them, and the end of a run, padded."""
        table = self._tables[path]
        starts = table.find(numbers).offset.tolist()
        return await execution.gather(
            self._made(path, table, int(number), start) for number, start in zip(numbers, starts, strict=True)
        )

    async def _made(self, path: str, table: ChunkTable, number: int, start: int) -> Buffer:
        variable = self._variables[path]
        if isinstance(table, Strided):
            found = await self._read(path, table.urls[0], start, min(start + table.length, table.limit))
            return found.ljust(table.length, b"\0")
        chunk = self._skipped[path][number]
        found = await self._read(path, chunk.url, chunk.offset, chunk.offset + chunk.length)
        plain = undone(found, variable.filters, chunk.mask, variable.nbytes)
        if plain is None or len(plain) != variable.nbytes:
            raise DataLossError(f"chunk {number} of {quote(path)} does not decode to {variable.nbytes} bytes")
        return encoded_plainly(plain, variable.filters)

    async def _read(self, path: str, url: str, start: int, stop: int) -> bytes:
        if self._source.reach is None:
            raise UnimplementedError(f"the file {quote(url)} with the values of {quote(path)} cannot be reached")
        place = await self._source.reach(url)
        [found] = await place.driver.read_many([Read(place.path, start, stop)])
        if found.state != "value":
            raise DataLossError(f"{place.describe()}, which holds the values of {quote(path)}, does not exist")
        return bytes(found.value)


def _run(variable: DapVariable, chunk: _Chunk) -> Strided:
    """Return the pieces of a run of bytes."""
    size, itemsize = variable.dtype.itemsize * math.prod(variable.shape), variable.dtype.itemsize
    if chunk.length != size:
        raise UnimplementedError(f"its values have {chunk.length} bytes, and its shape says {size}")
    chunks = run_chunks(variable.shape, itemsize)
    grid = tuple(-(-length // side) for length, side in zip(variable.shape, chunks, strict=True))
    strides = run_strides(variable.shape, itemsize, chunks) or (0,)
    return Strided(
        chunk.offset, grid or (1,), strides, itemsize * math.prod(chunks), chunk.offset + size, urls=(chunk.url,)
    )


def _attributes(element: XmlElement) -> tuple[dict[str, Json], list[str]]:
    """Return the attributes of a group or variable, and the names of those that JSON cannot hold."""
    out: dict[str, Json] = {}
    lacking = []
    for each in element.all("Attribute"):
        name = each.attributes.get("name", "")
        try:
            out[name] = _attribute(each)
        except ValueError:
            lacking.append(name)
    return out, lacking


def _attribute(element: XmlElement) -> Json:
    kind = element.attributes.get("type", "")
    if kind == "Container":
        found, lacking = _attributes(element)
        if lacking:
            raise ValueError(kind)
        return found
    texts = [each.text or each.attributes.get("value", "") for each in element.all("Value")]
    values: list[Json] = [_value(text, kind) for text in texts]
    return values[0] if len(values) == 1 else values


def _value(text: str, kind: str) -> Json:
    if kind in ("String", "URL", "Char"):
        return text
    dtype = np.dtype(_TYPES.get(kind, "O"))
    if dtype.kind == "O":
        raise ValueError(kind)
    return attribute_json(dtype.type(text) if dtype.kind == "f" else int(text))


@dataclass(frozen=True, slots=True)
class DmrppScanner(FileScanner):
    """The scanner.  `of` is the URL of the file, if it is known; the document names it otherwise."""

    name: ClassVar[str] = "dmrpp"
    title: ClassVar[str] = "DMR++ document"
    of: str = ""

    async def scan(self, source: ScanSource, members: Mapping[str, Json]) -> DmrppFile:
        """Return the variables of a document, which is read whole, with the first request nearly always."""
        root = await read_xml(source)
        if root.name != "Dataset":
            raise FailedPreconditionError(f"it begins with {quote(root.name)}, and a DMR++ document with Dataset")
        if self.of:
            root.attributes["href"] = self.of
        name = name_of(source.base).rpartition("/")[2]
        return DmrppFile(source, root, name.removesuffix(".dmrpp"))


SCANNER = DmrppScanner()


async def references_by(
    file: KvPrefix, url: str, document: KvPrefix, inline: int = 0
) -> tuple[TableSet, Mapping[str, str]]:
    """Return the references of an HDF5 file as a document describes it, and what they lack of it.

    That it is the document of this file is checked by the size of the file and by chunks of it; raises
    `FailedPreconditionError` if it is that of another one.
    """
    source = await ScanSource(file).begin()
    if await format_of(file) != "hdf5":
        raise FailedPreconditionError(f"{file.describe()} is no HDF5 file, and {document.describe()} describes one")
    driver = ScanDriver(DmrppScanner(url), document, {}, Means(Limits(), open_in(Context()), CachePool()))
    scanned = (await driver.scanned()).file
    assert isinstance(scanned, DmrppFile)
    why = await _mismatch(scanned, source, url)
    if why:
        raise FailedPreconditionError(
            f"{document.describe()} is not the DMR++ document of {file.describe()}: {why};"
            " make it again, or scan the file without it"
        )
    found, notes = await references_of(driver, url, inline)
    found.scanned = ScanRecord("hdf5", url, source.size, stamp_of(file, source.generation))
    return found, notes


async def _mismatch(scanned: DmrppFile, source: ScanSource, url: str) -> str:
    """Return why a document cannot be that of a file, or nothing."""
    sampled: list[tuple[str, _Chunk]] = []
    for path, variable in scanned.variables.items():
        found = scanned.chunks(path)
        end = max((each.offset + each.length for each in found), default=0)
        if end > source.size:
            return f"{quote(path)} ends at byte {end}, and the file at {source.size}"
        own = [each for each in found if variable.filters and each.url == url]
        sampled += [(path, own[at]) for at in sorted({0, len(own) // 2, len(own) - 1}) if own]
    sampled = sampled[:: max(1, len(sampled) // _MOST_SAMPLED)]
    values = await source.fetch([(chunk.offset, chunk.offset + chunk.length) for _, chunk in sampled])
    for (path, chunk), value in zip(sampled, values, strict=True):
        variable = scanned.variables[path]
        try:
            plain = undone(bytes(value), variable.filters, chunk.mask, variable.nbytes)
        except DataLossError:
            plain = None
        if plain is None or len(plain) != variable.nbytes:
            return f"chunk {chunk.number} of {quote(path)} is not at the place that it says"
    return ""
