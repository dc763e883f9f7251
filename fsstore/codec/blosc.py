"""The `blosc` codec, and Blosc for zarr v2.

Sixteen bytes of header say how much a buffer holds and how long it is.  Both are compared with what is expected and
with what is there before the library sees the bytes.

The blocks of a buffer are compressed independently, and a table behind the header says where each begins.  So a part
is decompressed by giving the library a buffer of the blocks that hold it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Self

import numpy as np

from fsstore.codec.contract import (
    Array,
    ByteSpec,
    ChunkSpec,
    Configured,
    Kind,
    Member,
    Members,
    Options,
    encoded_bound,
    output_limit,
    read_options,
    too_large,
)
from fsstore.errors import FailedPreconditionError, StoreError, UnimplementedError
from fsstore.values.json_value import Fields, Json, integer, one_of

_HEADER = struct.Struct("<BBBBIII")
_LENGTH = struct.Struct("<I")
_VERSIONS = (2, 1)
_SHUFFLE_FLAGS = (0, 1, 4)
_STORES_COPY, _ONE_STREAM, _SNAPPY = 2, 16, 2 << 5
_BLOCK_BYTES = 1 << 18


def _imagecodecs(verb: str) -> Any:
    try:
        import imagecodecs
    except ImportError:
        raise UnimplementedError(f'This build of blosc cannot {verb} "snappy"; install imagecodecs') from None
    return imagecodecs


def decompress(data: Any) -> Any:
    """Return the content of a buffer; raises `RuntimeError` or `ValueError` if it is damaged."""
    return _imagecodecs("decompress").blosc_decode(bytes(data))


def _encoder() -> Callable[[bytes], bytes]:
    encode: Callable[..., bytes] = _imagecodecs("compress with").snappy_encode
    try:
        encode(b"")
    except TypeError:  # some versions ask for a level, of which snappy has one
        return lambda data: encode(data, 1)
    return encode


def compress(octets: Array, clevel: int, shuffle: int, blocksize: int, typesize: int) -> bytes:
    """Return a buffer of `octets`: 0 does not shuffle them, 1 shuffles bytes, 2 bits of elements of `typesize`."""
    snappy = _encoder()
    step = 8 * typesize
    size = max(1, min(octets.size, max(step, (blocksize or _BLOCK_BYTES) // step * step)))
    flags = _SHUFFLE_FLAGS[shuffle] | _ONE_STREAM | _SNAPPY
    at = _HEADER.size + _LENGTH.size * -(-octets.size // size)
    starts, blocks = [], []
    for first in range(0, octets.size if clevel else 0, size):
        plain = _shuffled(octets[first : first + size], shuffle, typesize)
        packed = snappy(plain)
        block = packed if len(packed) < len(plain) else plain
        starts.append(_LENGTH.pack(at))
        blocks += [_LENGTH.pack(len(block)), block]
        at += _LENGTH.size + len(block)
    if not blocks or at >= _HEADER.size + octets.size:
        flags, starts, blocks, at = flags | _STORES_COPY, [], [octets.tobytes()], _HEADER.size + octets.size
    return b"".join([_HEADER.pack(*_VERSIONS, flags, typesize, octets.size, size, at), *starts, *blocks])


def _shuffled(block: Array, shuffle: int, typesize: int) -> bytes:
    """Return a block by the places of bytes or of bits in elements; bits need elements in eights."""
    count = len(block) // typesize
    if shuffle == 0 or (shuffle == 2 and count % 8):
        return block.tobytes()
    elements = block[: count * typesize].reshape(count, typesize)
    if shuffle == 2:
        planes = np.unpackbits(elements, axis=1, bitorder="little").T
        elements = np.packbits(planes, axis=1, bitorder="little").T
    return elements.T.tobytes() + block[count * typesize :].tobytes()


CNAMES = ("blosclz", "lz4", "lz4hc", "snappy", "zlib", "zstd")
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2}
_UNPACK = struct.Struct("<B2xBI4xI").unpack_from
_SIZES = struct.Struct("<III")
_HEADER_BYTES, _SIZES_AT, _FLAGS_AT = 16, 4, 2
_IS_COPY = 2  # a flag: nothing is compressed
_MAX_BYTES = 2**31 - 1 - 16  # the library's limit: sizes are signed numbers of 32 bits, the header included
_EFFORT = {"zlib": 2, "zstd": 1}  # of the others decompressing is not much more than a copy


@cache
def _library() -> Any:
    from numcodecs import blosc

    return blosc


def _invalid() -> FailedPreconditionError:
    return FailedPreconditionError("Invalid blosc-compressed data; at byte 0")


class BoundBlosc:
    """Blosc bound to bytes of one size or of any size.

    `shuffle` is 0 (none), 1 (bytes), 2 (bits) of elements of `typesize`.
    """

    is_exact: ClassVar[bool] = True

    __slots__ = (
        "_compress", "_decompress", "_element", "_is_known", "_size", "decoded", "effort", "encoded"
    )  # fmt: skip

    def __init__(self, decoded: ByteSpec, cname: str, clevel: int, *, shuffle: int, layout: tuple[int, int]) -> None:
        self.decoded, self._size = decoded, decoded.size
        self.encoded = ByteSpec(itemsize=0, max_size=encoded_bound(decoded))
        self._decompress: Callable[..., Any] = _library().decompress
        self.effort = _EFFORT.get(cname, 0.2)
        typesize, blocksize = layout
        self._compress = (cname.encode(), clevel, shuffle, blocksize)
        self._element = np.dtype(f"V{typesize}")
        self._is_known = cname in _library().list_compressors()

    def encode(self, data: Any) -> bytes:
        """Return `data` compressed."""
        size, typesize = memoryview(data).nbytes, self._element.itemsize
        if size > _MAX_BYTES:
            raise StoreError(f"Blosc holds at most {_MAX_BYTES} bytes, but the chunk has {size}")
        if not self._is_known:
            _, clevel, shuffle, blocksize = self._compress
            return compress(np.frombuffer(data, np.uint8), clevel, shuffle, blocksize, typesize)
        if size % typesize == 0:  # the library takes the element size from the buffer
            return bytes(_library().compress(np.frombuffer(data, self._element), *self._compress))
        return bytes(_library().compress(np.frombuffer(data, np.uint8), *self._compress, typesize))

    def _size_of(self, data: Any) -> int:
        """Return the decoded size that the header states, after checking the header."""
        length = len(data)
        if length < _HEADER_BYTES:
            raise _invalid()
        version, typesize, size, encoded = _UNPACK(data)
        if version not in (1, 2) or typesize == 0 or encoded != length:
            raise _invalid()
        if self._size is not None:
            if size != self._size:
                raise _invalid()
            return self._size
        limit = output_limit(self.decoded, length)
        if size > limit:
            raise too_large(limit)
        return int(size)

    def decode(self, data: Any) -> Any:
        """Return the bytes decompressed."""
        if self._size_of(data) == 0:
            return b""
        try:
            return self._decompress(data)
        except (RuntimeError, ValueError):
            return _other_build(data)

    def decode_into(self, data: Any, out: Array) -> bool:
        """Decompress into `out`; return False if `decode` has to look at it."""
        if self._size_of(data) != len(out):
            return False
        return self._inflate(data, out)

    def decode_span(self, data: Any, out: Array, span: tuple[int, int]) -> bool:
        """Decompress the bytes `[first, stop)` to their places in `out`, and some beside them.

        Return False if `decode` has to look.
        """
        if self._size_of(data) != len(out):
            return False
        first, stop = span
        if data[_FLAGS_AT] & _IS_COPY:
            part = data[_HEADER_BYTES + first : _HEADER_BYTES + stop]
            if len(part) < stop - first:
                return False
            out[first:stop] = np.frombuffer(part, np.uint8)
            return True
        size, blocksize, _ = _SIZES.unpack_from(data, _SIZES_AT)
        if not 0 < blocksize <= size:
            return False
        # the last block may be short, which only the second of two can be
        low, high = min(first // blocksize, size // blocksize - 1), -(-stop // blocksize)
        some = _with_blocks(data, low, high)
        return some is not None and self._inflate(some, out[low * blocksize : high * blocksize])

    def decode_joined(self, parts: Sequence[Any], out: Array) -> bool:
        """Decompress buffers of the bound size one after the other into `out`; return False if `decode` has to look.

        The library has no such call, and looks at where bytes go for longer than copying a small chunk takes.
        """
        size, room = self._size or 0, out.data
        try:
            for begin, part in zip(range(0, len(out), size), parts, strict=True):
                room[begin : begin + self._size_of(part)] = self._decompress(part)
        except (RuntimeError, ValueError):
            return False
        return True

    def _inflate(self, data: Any, out: Array) -> bool:
        try:
            self._decompress(data, out)
        except (RuntimeError, ValueError):
            return False
        return True


def _with_blocks(data: Any, low: int, high: int) -> bytes | None:
    """Return a buffer of the blocks `[low, high)` of another one; None if they are not where they should be.

    Blocks lie in the order in which threads were done with them: each ends where the next one begins, or the buffer.
    """
    size, blocksize, length = _SIZES.unpack_from(data, _SIZES_AT)
    count = -(-size // blocksize)
    table = _HEADER_BYTES + 4 * count
    if table > length:
        return None
    starts = np.frombuffer(data, "<i4", count, _HEADER_BYTES)
    edges = np.append(np.sort(starts), length)
    if edges[0] < table or (edges[1:] <= edges[:-1]).any():
        return None
    begins = starts[low:high]
    ends = edges[np.searchsorted(edges, begins, "right")]
    places = np.cumsum(ends - begins) - (ends - begins) + _HEADER_BYTES + begins.nbytes
    blocks = [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    total = _HEADER_BYTES + begins.nbytes + sum(map(len, blocks))
    sizes = _SIZES.pack(min(size, high * blocksize) - low * blocksize, blocksize, total)
    return b"".join([data[:_SIZES_AT], sizes, places.astype("<i4").tobytes(), *blocks])


def _other_build(data: Any) -> Any:
    """Decode what may be snappy; raise the error of damaged data if it is not, or that fails too."""
    if (data[_FLAGS_AT] >> 5) != 2:
        raise _invalid()
    try:
        return decompress(data)
    except UnimplementedError:
        raise
    except (RuntimeError, ValueError):
        raise _invalid() from None


@dataclass(frozen=True, slots=True)
class BloscCodec(Configured):
    """Blosc.  `typesize` is None without shuffling, where it means nothing."""

    cname: str
    clevel: int
    shuffle: str
    typesize: int | None
    blocksize: int

    name: ClassVar[str] = "blosc"
    kind: ClassVar[Kind] = "bytes_to_bytes"
    members: ClassVar[Members] = {
        "cname": Member(one_of(*CNAMES), stored=True),
        "clevel": Member(integer(0, 9), stored=True),
        "shuffle": Member(one_of(*_SHUFFLES), stored=True),
        "typesize": Member(integer(1, 255)),
        "blocksize": Member(integer(0, 715827542), stored=True),
    }

    @classmethod
    def from_json(cls, configuration: Mapping[str, Json]) -> Self:
        """Return the codec of a stored configuration; the type size may be missing without shuffling."""
        options = cls.normalize(read_options(cls.members, configuration))
        if options["shuffle"] != "noshuffle" and "typesize" not in options:
            fields = Fields({})
            fields.require("typesize", integer(1, 255))
            fields.finish()
        return cls(**{"typesize": None, **options})

    @staticmethod
    def normalize(options: dict[str, Any]) -> dict[str, Any]:
        """Return options without a type size that has no meaning."""
        if options.get("shuffle") != "noshuffle":
            return options
        return {name: value for name, value in options.items() if name != "typesize"}

    @classmethod
    def complete(cls, options: Options, decoded: ByteSpec) -> Self:
        """Return the codec with the shuffle that suits the elements unless another is asked for."""
        typesize: int = options.get("typesize", decoded.itemsize if decoded.itemsize < 256 else 0)
        usual = {0: "noshuffle", 1: "bitshuffle"}.get(typesize, "shuffle")
        shuffle = options.get("shuffle", usual)
        if shuffle != "noshuffle" and typesize == 0:
            size = decoded.itemsize or "-1/8"
            raise StoreError(
                f"typesize must be specified explicitly because inferred itemsize {size} is not supported by Blosc"
            )
        return cls(
            options.get("cname", "lz4"),
            options.get("clevel", 5),
            shuffle,
            None if shuffle == "noshuffle" else typesize,
            options.get("blocksize", 0),
        )

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundBlosc:
        """Return the codec for bytes like `decoded`."""
        if not isinstance(decoded, ByteSpec):
            raise StoreError('"blosc" codec requires bytes')
        layout = (self.typesize or 1, self.blocksize)
        return BoundBlosc(decoded, self.cname, self.clevel, shuffle=_SHUFFLES[self.shuffle], layout=layout)
