"""The encodings of FITS: scaled and unsigned numbers, rows of tables, images compressed tile by tile.

`fits_numbers` makes of stored numbers what they stand for, `fits_rows` the same of the columns of a table.  `fits_tile`
decodes tiles: each begins with a head that says how it is compressed, how large it is and how its numbers are scaled,
because that differs from tile to tile.

Floats that were rounded to whole numbers come back with the noise that was taken from them, which follows from the
number of the tile.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar

import numpy as np

from fsstore.codec.contract import BoundCodec, ByteSpec, Kind, check_size, encoded_bound
from fsstore.codec.numcodecs.filters import BoundReader, FlatSpec, as_array, fixed_dtype, octets
from fsstore.errors import FailedPreconditionError, JsonError, StoreError, UnimplementedError
from fsstore.values.json_value import Json, array_of, boolean, integer, number, one_of, optional, quote, string

_FAILURES = (ValueError, TypeError, IndexError, OverflowError, RuntimeError, MemoryError, struct.error, zlib.error)
_HEAD = struct.Struct("<BBxxqdd")  # method, rank, number of the tile, scale, zero
_ZERO = -2147483646
_RANDOMS = 10_000


def _turned(raw: Any) -> Any:
    """Return big-endian whole numbers with their highest bit turned."""
    out = np.array(raw, order="C")
    octets_of = out.reshape(-1).view(np.uint8).reshape(-1, out.dtype.itemsize)
    octets_of[:, 0] ^= 0x80
    return out


class FitsNumbers:
    """Numbers stored as `dtype`: with the sign turned (`sign`), or to be multiplied with `scale`, and `offset` added.

    The whole number `blank` stands for no value, and becomes NaN.
    """

    kind: ClassVar[Kind] = "array_to_bytes"

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        self._name = name
        self._stored = fixed_dtype(name, string(options.get("dtype")))
        self._sign = boolean(options.get("sign", False))
        self._scale = number(options.get("scale", 1.0))
        self._offset = number(options.get("offset", 0.0))
        self._blank = optional(integer(-(2**63), 2**63 - 1))(options.get("blank"))
        if self._stored.kind not in "iuf" or (self._sign and self._stored.byteorder == "<"):
            raise JsonError(f"Codec {quote(name)} does not fit data type {self._stored}")

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return the stored numbers."""
        return FlatSpec(self._stored, decoded.count, decoded.shape)

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for numbers like `decoded`."""
        dtype = decoded.dtype
        if dtype is None or dtype.kind not in "iuf" or (self._sign and dtype.itemsize != self._stored.itemsize):
            raise StoreError(f"Codec {quote(self._name)} does not fit data type {dtype}")

        def read(data: Any) -> Any:
            raw = as_array(data, self._stored)
            if self._sign:
                return _turned(raw).view(dtype)
            out = raw.astype(dtype.newbyteorder("="))
            if self._blank is not None:
                out[raw == self._blank] = np.nan
            if self._scale != 1:
                out *= self._scale
            if self._offset != 0:
                out += self._offset
            return out.astype(dtype, copy=False)

        return BoundReader(self._name, decoded, self.encoded(decoded).as_bytes, read, _FAILURES)


class FitsRows:
    """Rows of a table, of `row` bytes: `columns` say where the fields of the result stand and what they become."""

    kind: ClassVar[Kind] = "array_to_bytes"

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        self._name = name
        self._row = integer(1, 2**40)(options.get("row"))
        columns = options.get("columns")
        if not isinstance(columns, list) or not all(isinstance(each, Mapping) for each in columns):
            raise JsonError(f"Codec {quote(name)} needs a list of columns")
        self._columns = [_FitsColumnReader(name, each, self._row) for each in columns]

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return the rows as bytes."""
        return octets(decoded.count * self._row)

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for rows like `decoded`."""
        dtype = decoded.dtype
        if dtype is None or dtype.names is None or len(dtype.names) != len(self._columns):
            raise StoreError(f"Codec {quote(self._name)} does not fit data type {dtype}")
        names = dtype.names

        def read(data: Any) -> Any:
            rows = as_array(data, np.dtype(np.uint8)).reshape(-1, self._row)
            out = np.empty(len(rows), dtype)
            for name, column in zip(names, self._columns, strict=True):
                field = out[name]
                field[...] = column.read(rows, field).reshape(field.shape)
            return out

        return BoundReader(self._name, decoded, self.encoded(decoded).as_bytes, read, _FAILURES)


class _FitsColumnReader:
    """One column of `fits_rows`."""

    def __init__(self, codec: str, options: Mapping[str, Json], row: int) -> None:
        self.at = integer(0, row)(options.get("at"))
        self.stored = fixed_dtype(codec, string(options.get("dtype")))
        self.times = integer(0, row)(options.get("count", 1))
        self.how = one_of("copy", "sign", "bool", "bits", "scale", "text")(options.get("how", "copy"))
        self.scale, self.offset = number(options.get("scale", 1.0)), number(options.get("offset", 0.0))
        self.null = string(options.get("null", "")).encode()
        if self.at + self.times * self.stored.itemsize > row:
            raise JsonError(f"Codec {quote(codec)} has a column behind its row of {row} bytes")

    def read(self, rows: Any, field: Any) -> Any:
        """Return the values of the column, for a field of the result."""
        cells = np.ascontiguousarray(rows[:, self.at : self.at + self.times * self.stored.itemsize])
        raw = cells.reshape(-1).view(self.stored).reshape(len(rows), self.times)
        match self.how:
            case "sign":
                turned = _turned(raw)
                return turned.view("i1" if self.stored.itemsize == 1 else self.stored.str.replace("i", "u"))
            case "bool":
                return raw == b"T"
            case "bits":
                return np.unpackbits(raw, axis=1)[:, : math.prod(field.shape[1:])]
            case "scale":
                return raw.astype("c16" if raw.dtype.kind == "c" else "f8") * self.scale + self.offset
            case "text":
                texts = [each.strip() for each in raw[:, 0].tolist()]
                nothing = math.nan if field.dtype.kind == "f" else 0  # as astropy has it
                return np.array([_text_number(each, self.null) if each else nothing for each in texts])
            case _:
                return raw


def _text_number(text: bytes, null: bytes) -> float:
    """Return a number of an ASCII table: whole ones keep all their digits; `null` (if any) stands for none."""
    if null and text == null:
        return math.nan
    text = text.replace(b"D", b"E").replace(b"d", b"E")
    try:
        return int(text)
    except ValueError:
        return float(text)


METHODS = {"GZIP_1": 1, "GZIP_2": 2, "RICE_1": 3, "NOCOMPRESS": 4, "PLIO_1": 5, "HCOMPRESS_1": 6}
_AS_FLOATS = 16  # added to the method of tiles that hold the floats themselves


class FitsTile:
    """A tile of a compressed image.  `dtype` is that of the numbers in the tile, `shape` that of whole tiles.

    With `quantized` tiles hold rounded floats; `dither` is the method that took noise from them, 0 for none.
    """

    kind: ClassVar[Kind] = "array_to_bytes"

    def __init__(self, name: str, options: Mapping[str, Json]) -> None:
        self._name = name
        self._shape = tuple(array_of(integer(1))(options.get("shape")))
        self._stored = fixed_dtype(name, string(options.get("dtype")))
        self._block = integer(1, 2**16)(options.get("blocksize", 32))
        self._width = integer(1, 8)(options.get("bytepix", 4))
        self._quantized = boolean(options.get("quantized", False))
        self._dither = integer(0, 2)(options.get("dither", 0))
        self._seed = integer(0, _RANDOMS)(options.get("seed", 0))
        self._blank = optional(integer(-(2**63), 2**63 - 1))(options.get("blank"))

    def encoded(self, decoded: FlatSpec) -> FlatSpec:
        """Return a head and what is compressed."""
        limit = encoded_bound(FlatSpec(np.dtype("u1"), 8 * decoded.count).as_bytes)
        extra = _HEAD.size + 8 * len(self._shape)
        return FlatSpec(None, 0, max_size=None if limit is None else limit + extra)

    def bind(self, decoded: FlatSpec) -> BoundCodec:
        """Return the codec for tiles like `decoded`."""
        dtype = decoded.dtype
        if dtype is None or dtype.kind not in "iuf" or decoded.count != math.prod(self._shape):
            raise StoreError(f"Codec {quote(self._name)} does not fit chunks of {decoded.count} elements")
        rice = _rice()

        def read(data: Any) -> Any:
            view = memoryview(data).cast("B")
            method, rank, tile, scale, zero = _HEAD.unpack_from(view)
            at = _HEAD.size + 8 * rank
            shape = struct.unpack_from(f"<{rank}q", view, _HEAD.size)
            if rank != len(self._shape) or any(not 0 < a <= b for a, b in zip(shape, self._shape, strict=True)):
                raise FailedPreconditionError(f"Invalid fits_tile data: a tile of shape {shape}")
            count = math.prod(shape)
            if method & _AS_FLOATS:
                found = self._plain(view[at:], method - _AS_FLOATS, count, dtype.newbyteorder(">"), rice)
            else:
                found = self._plain(view[at:], method, count, self._stored, rice)
                if self._quantized:
                    found = self._floats(found, (tile, scale, zero), dtype)
            out = np.zeros(self._shape, dtype)
            out[tuple(slice(0, length) for length in shape)] = found.reshape(shape)
            return out.reshape(-1)

        spec = ByteSpec(itemsize=0, max_size=self.encoded(decoded).max_size)
        return BoundReader(self._name, decoded, spec, read, _FAILURES)

    def _plain(self, data: Any, method: int, count: int, stored: np.dtype[Any], rice: Any) -> Any:
        size = count * stored.itemsize
        if method == METHODS["RICE_1"]:
            if rice is None:
                raise UnimplementedError(f"Codec {quote(self._name)} needs imagecodecs: pip install 'fsstore[images]'")
            kind = {1: "u1", 2: "i2", 4: "i4"}.get(self._width)
            if kind is None or stored.kind == "f":
                raise FailedPreconditionError(f"Invalid fits_tile data: RICE of {self._width} bytes")
            return np.asarray(rice(bytes(data), shape=(count,), dtype=kind, nblock=self._block))
        if method in (METHODS["PLIO_1"], METHODS["HCOMPRESS_1"]):
            return (_pixel_list if method == METHODS["PLIO_1"] else _transformed)(bytes(data), count)
        if method in (METHODS["GZIP_1"], METHODS["GZIP_2"]):
            plain = zlib.decompressobj(31).decompress(data, 8 * count + 1)
            wide = stored.kind == "i" and len(plain) == 4 * count  # old writers packed whole numbers in four bytes
            packed = np.dtype(">i4") if wide else stored
            check_size(len(plain), count * packed.itemsize)
            if method == METHODS["GZIP_2"]:
                plain = np.frombuffer(plain, "u1").reshape(packed.itemsize, count).T.tobytes()
            found = np.frombuffer(plain, packed)
            if wide and (found.astype(stored) != found).any():
                raise FailedPreconditionError(f"Invalid fits_tile data: numbers beyond {stored}")
            return found.astype(stored, copy=False)
        if method != METHODS["NOCOMPRESS"]:
            raise FailedPreconditionError(f"Invalid fits_tile data: unknown method {method}")
        check_size(len(data), size)
        return np.frombuffer(data, stored)

    def _floats(self, found: Any, scaling: tuple[int, float, float], dtype: np.dtype[Any]) -> Any:
        """Return the floats that were rounded to whole numbers."""
        tile, scale, zero = scaling
        numbers = found.astype("i8")
        if self._dither:
            out = (numbers - _noise(tile + self._seed - 2, len(numbers)) + 0.5) * scale + zero
            if self._dither == 2:
                out[numbers == _ZERO] = 0
        else:
            out = numbers * scale + zero
        if self._blank is not None:
            out[numbers == self._blank] = np.nan
        return out.astype(dtype)


def _rice() -> Any:
    try:
        import imagecodecs
    except ImportError:
        return None
    return imagecodecs.rcomp_decode if imagecodecs.RCOMP.available else None


@cache
def _randoms() -> Any:
    """Return the numbers that the standard prescribes."""
    out, seed = np.empty(_RANDOMS, "f4"), 1.0
    for at in range(_RANDOMS):
        seed = math.fmod(16807.0 * seed, 2147483647.0)
        out[at] = seed / 2147483647.0
    return out


def _noise(tile: int, count: int) -> Any:
    """Return the noise of a tile: runs of the prescribed numbers that begin at different ones."""
    randoms, start = _randoms(), tile % _RANDOMS
    out, done = np.empty(count, "f8"), 0
    while done < count:
        first = int(randoms[start] * 500)
        run = min(count - done, _RANDOMS - first)
        out[done : done + run] = randoms[first : first + run]
        done, start = done + run, (start + 1) % _RANDOMS
    return out


def _pixel_list(data: bytes, count: int) -> Any:
    """Return the numbers of a PLIO line list: words of four bits that say what to do, and twelve that say how much."""
    words = np.frombuffer(data, ">i2", len(data) // 2).tolist()
    first, last = (3, words[2]) if words[2] > 0 else (words[1], (words[4] << 15) + words[3])
    if not 0 <= first <= last <= len(words):
        raise FailedPreconditionError(f"Invalid fits_tile data: a list of {last} of {len(words)} words")
    out, at, value = np.zeros(count, "i8"), 0, 1
    rest = iter(words[first:last])
    for word in rest:
        what, much = word >> 12, word & 4095
        if what == 1:  # a new value
            value = (next(rest, 0) << 12) + much
            continue
        value += {2: much, 6: much, 3: -much, 7: -much}.get(what, 0)
        if what in (2, 3):
            continue
        end = at + (much if what in (0, 4, 5) else 1)
        if not 0 <= what <= 7 or end > count:
            raise FailedPreconditionError(f"Invalid fits_tile data: instruction {what} at pixel {at} of {count}")
        if what == 4:
            out[at:end] = value
        elif what and end > at:
            out[end - 1] = value
        at = end
    return out


# HCOMPRESS: the coefficients of a two-dimensional Haar transform of whole numbers.  Each quarter of them is stored bit
# by bit from the highest, as a tree: a node of four bits says which of its four parts hold a bit that is set.  Nodes
# are words of three to six bits; the frequent ones are short.

_WORDS = (
    "000 001 010 011", (1, 2, 4, 8), "1000 1001 1010 1011 1100", (3, 5, 10, 12, 15),
    "11010 11011 11100 11101 11110", (6, 7, 9, 11, 13), "111110 111111", (0, 14),
)  # fmt: skip
_PIXELS_A_BYTE = 2**14


@cache
def _words() -> tuple[Any, Any]:
    """Return what six bits begin with, and how many of them that takes."""
    nodes, lengths = np.zeros(64, "u1"), np.zeros(64, "u1")
    for words, values in zip(_WORDS[::2], _WORDS[1::2], strict=True):
        for word, value in zip(str(words).split(), values, strict=True):
            begin, free = int(word.ljust(6, "0"), 2), 6 - len(word)
            nodes[begin : begin + (1 << free)], lengths[begin : begin + (1 << free)] = value, len(word)
    return nodes, lengths


class _Bits:
    """The bits of a tile: what begins at each is known before the words are followed."""

    def __init__(self, data: bytes) -> None:
        self._bits = np.unpackbits(np.frombuffer(data, "u1"))
        padded = np.concatenate([self._bits, np.zeros(8, "u1")])
        six = sum(padded[at : at + len(self._bits)] << (5 - at) for at in range(6))
        nodes, lengths = _words()
        self._nodes, self._lengths = nodes[six].tolist(), lengths[six].tolist()
        self._at = 0

    def take(self, count: int) -> Any:
        """Return the next bits."""
        self._at += count
        if self._at > len(self._bits):
            raise FailedPreconditionError("Invalid fits_tile data: it ends too early")
        return self._bits[self._at - count : self._at]

    def four(self, count: int) -> Any:
        """Return numbers of four bits."""
        return np.packbits(self.take(4 * count).reshape(count, 4), axis=1)[:, 0] >> 4

    def words(self, count: int) -> list[int]:
        """Return the nodes of so many words."""
        at, out = self._at, list[int]()
        nodes, lengths = self._nodes, self._lengths
        if at + 3 * count > len(nodes):
            raise FailedPreconditionError("Invalid fits_tile data: it ends too early")
        for _ in range(count):
            out.append(nodes[at])
            at += lengths[at]
        self._at = at
        return out

    def align(self) -> None:
        """Go on at the next whole byte."""
        self._at += -self._at % 8


def _parts(nodes: Any, shape: tuple[int, int]) -> Any:
    """Return the bits of nodes, each a square of two by two."""
    bits = np.empty((2 * nodes.shape[0], 2 * nodes.shape[1]), "u1")
    for at in range(4):
        bits[at >> 1 :: 2, at & 1 :: 2] = nodes >> (3 - at) & 1
    return bits[: shape[0], : shape[1]]


def _quarter(bits: _Bits, out: Any, planes: int) -> None:
    """Put the coefficients of a quarter, of so many bits, into `out`."""
    depth = max(max(out.shape) - 1, 0).bit_length()
    sizes = [tuple(-(-length >> up) for length in out.shape) for up in range(depth, -1, -1)]
    for plane in range(planes - 1, -1, -1):
        how = int(bits.four(1)[0])
        if how == 0:  # the lowest nodes as they are
            half = tuple(-(-length // 2) for length in out.shape)
            nodes = bits.four(math.prod(half)).reshape(half)
        elif how == 15:
            nodes = np.array(bits.words(1), "u1").reshape(1, 1)
            for size in sizes[1:-1]:
                nodes = _parts(nodes, size).copy()
                some = np.flatnonzero(nodes)[::-1]
                nodes.reshape(-1)[some] = bits.words(len(some))
        else:
            raise FailedPreconditionError(f"Invalid fits_tile data: a plane of the unknown kind {how}")
        out |= _parts(nodes, out.shape).astype("i8") << plane


def _transformed(data: bytes, count: int) -> Any:
    """Return the numbers of a tile of HCOMPRESS."""
    magic, height, width, scale, total, *planes = struct.unpack_from(">HiiiqBBB", data)
    if magic != 0xDD99 or min(height, width) < 1 or height * width != count or max(planes) > 62:
        raise FailedPreconditionError(f"Invalid fits_tile data: HCOMPRESS of {height} by {width} numbers")
    if count > _PIXELS_A_BYTE * len(data):
        raise FailedPreconditionError(f"Invalid fits_tile data: {count} numbers in {len(data)} bytes")
    bits = _Bits(data[struct.calcsize(">HiiiqBBB") :])
    out, down, right = np.zeros((height, width), "i8"), -(-height // 2), -(-width // 2)
    _quarter(bits, out[:down, :right], planes[0])
    _quarter(bits, out[:down, right:], planes[1])
    _quarter(bits, out[down:, :right], planes[1])
    _quarter(bits, out[down:, right:], planes[2])
    if bits.four(1)[0]:
        raise FailedPreconditionError("Invalid fits_tile data: its coefficients do not end")
    bits.align()
    some = np.nonzero(out)
    out[some] *= 1 - 2 * bits.take(len(some[0])).astype("i8")
    out[0, 0] = total
    return _turned_back(out * max(scale, 1))


def _rounded(values: Any, unit: int) -> Any:
    """Return whole numbers as multiples of a power of two, the nearest ones; halves go away from zero."""
    half = unit >> 1
    return (values + np.where(values >= 0, half, max(half - 1, 0))) & -unit


def _turned_back(values: Any) -> Any:
    """Return the numbers whose transform this is."""
    depth = max(max(values.shape) - 1, 0).bit_length()
    values[0, 0] = _rounded(values[0, 0], 2 << depth)
    for up in range(depth - 1, -1, -1):
        rows, columns = (-(-length >> up) for length in values.shape)
        part = values[:rows, :columns]
        order = [np.argsort(np.r_[0:size:2, 1:size:2]) for size in (rows, columns)]  # sums stand before differences
        mixed = np.zeros((rows + rows % 2, columns + columns % 2), "i8")
        mixed[:rows, :columns] = part[np.ix_(*order)]
        part[...] = _squares(mixed, 1 << up)[:rows, :columns]
    return values.reshape(-1)


def _squares(mixed: Any, unit: int) -> Any:
    """Return sums and differences of squares of four numbers as these numbers."""
    total, across = mixed[::2, ::2], _rounded(mixed[::2, 1::2], 2 * unit)
    along, both = _rounded(mixed[1::2, ::2], 2 * unit), _rounded(mixed[1::2, 1::2], unit)
    low = both & unit  # the bits that were not stored follow from those of the others
    across = across + np.where(across >= 0, -low, low)
    along = along + np.where(along >= 0, -low, low)
    high = (both ^ along ^ across) & 2 * unit
    total = total + np.where(total >= 0, low - high, np.where(low == 0, high, low - high))
    shift = 2 if unit == 1 else 1
    mixed[::2, ::2] = (total - along - across + both) >> shift
    mixed[::2, 1::2] = (total - along + across - both) >> shift
    mixed[1::2, ::2] = (total + along - across - both) >> shift
    mixed[1::2, 1::2] = (total + along + across + both) >> shift
    return mixed
