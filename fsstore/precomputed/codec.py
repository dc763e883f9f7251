"""Chunks of Neuroglancer's precomputed format: arrays of channel, z, y and x to bytes and back.

PNG and JPEG chunks are made by imagecodecs, `compressed_segmentation` is written out in NumPy; `chain` binds an
encoding (raw, png, jpeg, compressed_segmentation) to chunks of one shape, with gzip around it in some shards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

import numpy as np

from fsstore.codec.chain import BoundChain
from fsstore.codec.contract import Array, BoundCodec, ByteSpec, ChunkSpec
from fsstore.codec.deflate import BoundDeflate
from fsstore.codec.image_header import ImageSize, image_size
from fsstore.codec.zarr3 import BoundBytes, TransposeCodec, stored_dtype
from fsstore.errors import DataLossError, FailedPreconditionError, JsonError, StoreError, UnimplementedError
from fsstore.schema.constraint import braced
from fsstore.values.json_value import Fields, Json, integer, one_of, show

_SIGNATURES = {"png": (b"\x89PNG\r\n\x1a\n", "missing PNG signature"), "jpeg": (b"\xff\xd8", "Not a JPEG file")}
_COLOURS = frozenset((0, 2, 4, 6))  # types of PNG without a palette


class BoundImage:
    """The codec of chunks of one type and shape (channel, z, y, x).  `level` is the quality, or zlib's level."""

    __slots__ = ("dtype", "encoded", "format", "level", "shape")

    def __init__(
        self, image_format: Literal["png", "jpeg"], dtype: np.dtype[Any], shape: tuple[int, ...], level: int | None
    ) -> None:
        self.format, self.dtype, self.shape, self.level = image_format, dtype, shape, level
        self.encoded = ByteSpec(itemsize=0)

    def encode(self, data: Array) -> bytes:
        """Return a chunk as an image."""
        channels, depth, height, width = self.shape
        pixels = np.ascontiguousarray(data.astype(self.dtype, copy=False).transpose(1, 2, 3, 0))
        shape = (depth * height, width) if channels == 1 else (depth * height, width, channels)
        library = _library(self.format)
        encode = library.png_encode if self.format == "png" else library.jpeg_encode
        try:
            return bytes(encode(pixels.reshape(shape), level=self.level))
        except (RuntimeError, ValueError) as error:
            raise StoreError(f"The chunk cannot be encoded as {self.format}: {error}") from error

    def decode(self, data: Any) -> Array:
        """Return the chunk of an image of any width and height whose product is right."""
        data = bytes(data)
        width, height, samples, bits = _size(self.format, data)
        channels, depth, rows, columns = self.shape
        if samples != channels or width * height != depth * rows * columns:
            raise FailedPreconditionError(
                f"Image dimensions ({height}, {width}, {samples}) are not compatible with expected chunk shape"
                f" {braced(self.shape)}"
            )
        if bits != 8 * self.dtype.itemsize:
            raise FailedPreconditionError(
                f"Expected an image of {8 * self.dtype.itemsize} bits a sample, but received {bits} bits"
            )
        library = _library(self.format)
        decode = library.png_decode if self.format == "png" else library.jpeg8_decode
        try:
            pixels = np.asarray(decode(data))
        except (RuntimeError, ValueError, MemoryError) as error:
            raise DataLossError(f"Failed to decode {self.format.upper()}: {error}") from error
        if pixels.dtype != self.dtype or pixels.size != width * height * samples:
            raise FailedPreconditionError(f"The {self.format} image decodes to {pixels.shape} of {pixels.dtype}")
        return pixels.reshape(depth, rows, columns, channels).transpose(3, 0, 1, 2)


def _library(image_format: str) -> Any:
    try:
        import imagecodecs
    except ImportError:
        raise UnimplementedError(f"{image_format} chunks need imagecodecs: pip install 'fsstore[images]'") from None
    return imagecodecs


def _size(kind: Literal["png", "jpeg"], data: bytes) -> ImageSize:
    signature, why = _SIGNATURES[kind]
    if not data.startswith(signature):
        raise FailedPreconditionError(f"Failed to decode {kind.upper()}: {why}")
    size = image_size(kind, data)
    if not size.width or (kind == "png" and data[12:16] != b"IHDR"):
        raise FailedPreconditionError(f"Failed to decode {kind.upper()}: the header is missing")
    if kind == "png" and data[25] not in _COLOURS:
        raise FailedPreconditionError(f"Failed to decode PNG: colour type {data[25]} is not grey or true colour")
    return size


# `compressed_segmentation`.

_WIDTHS = (0, 1, 2, 4, 8, 16, 32)
_LARGEST = 1 << 24  # words of a channel: places of tables have 24 bits

_MOST_VALUES = tuple(1 << width for width in _WIDTHS)
_Block: TypeAlias = "tuple[bytes, int, Array | None]"
"""The values of a block, the bits of an index into them, and the words of its indices, None where all are 0."""


def _corrupted(why: str) -> FailedPreconditionError:
    return FailedPreconditionError(f"Corrupted Neuroglancer compressed segmentation: {why}")


class BoundSegmentation:
    """The codec of chunks of one type, uint32 or uint64, and shape (channel, z, y, x), in blocks of (x, y, z)."""

    __slots__ = ("block", "dtype", "encoded", "grid", "shape", "width")

    def __init__(self, dtype: np.dtype[Any], shape: tuple[int, ...], block: tuple[int, int, int]) -> None:
        self.dtype, self.shape = dtype, shape
        self.block = block[::-1]  # z, y, x, as the array
        self.grid = tuple(-(-size // step) for size, step in zip(shape[1:], self.block, strict=True))
        self.width = dtype.itemsize // 4
        self.encoded = ByteSpec(itemsize=0)

    # --- decoding

    def decode(self, data: Any) -> Array:
        """Return the labels of a chunk."""
        if memoryview(data).nbytes % 4:
            raise _corrupted(f"{memoryview(data).nbytes} bytes are no whole words")
        words = np.frombuffer(data, "<u4")
        channels = self.shape[0]
        if len(words) < channels:
            raise _corrupted(f"{len(words)} words are too few for the places of {channels} channels")
        out = np.empty(self.shape, self.dtype)
        for channel in range(channels):
            start = int(words[channel])
            if start > len(words):
                raise _corrupted(f"channel {channel} begins at word {start} of {len(words)}")
            self._decode_channel(words[start:], out[channel])
        return out

    def _decode_channel(self, words: Array, out: Array) -> None:
        count = math.prod(self.grid)
        if len(words) < 2 * count:
            raise _corrupted(f"{len(words)} words are too few for the headers of {count} blocks")
        header = words[: 2 * count].reshape(count, 2)
        tables, bits = (header[:, 0] & 0xFFFFFF).astype(np.int64), header[:, 0] >> 24
        places = (header[:, 1] & 0xFFFFFF).astype(np.int64)
        if not np.isin(bits, _WIDTHS).all():
            raise _corrupted("the number of bits of an index is not 0, 1, 2, 4, 8, 16 or 32")
        if int(tables.max(initial=0)) > len(words) or int(places.max(initial=0)) > len(words):
            raise _corrupted("a block points outside the channel")
        volume = math.prod(self.block)
        kept = math.prod(min(step, size) for step, size in zip(self.block, self.shape[1:], strict=True))
        for width in _WIDTHS:
            blocks = np.flatnonzero(bits == width)
            length = -(-width * volume // 32)
            if len(blocks) and int(places[blocks].max()) + length > len(words):
                raise _corrupted("the indices of a block reach outside the channel")
            step = max(1, (1 << 18) // (volume if width else kept))  # what stays in the cache of a core
            for begin in range(0, len(blocks), step):
                some = blocks[begin : begin + step]
                indices = self._indices(words, places[some], width, length)
                if width:
                    self._blank(some, indices)
                self._put(some, self._look_up(words, tables[some], indices), out)

    def _indices(self, words: Array, places: Array, width: int, length: int) -> Array:
        """Return the table indices of blocks, shaped (block, z, y, x) and cut to what the chunk can hold."""
        cut = tuple(min(step, size) for step, size in zip(self.block, self.shape[1:], strict=True))
        if width == 0:
            return np.zeros((len(places), 1, 1, 1), np.uint8)
        packed = words[places[:, None] + np.arange(length)]
        unpacked = _unpacked(packed, width)[:, : math.prod(self.block)].reshape(-1, *self.block)
        return unpacked[:, : cut[0], : cut[1], : cut[2]]

    def _blank(self, blocks: Array, indices: Array) -> None:
        """Set the indices of voxels outside of the chunk to zero, since they are arbitrary."""
        corners = np.unravel_index(blocks, self.grid)
        for axis, (corner, count) in enumerate(zip(corners, self.grid, strict=True)):
            left = self.shape[1 + axis] - (count - 1) * self.block[axis]
            if left < indices.shape[1 + axis]:
                at: list[Any] = [corner == count - 1, slice(None), slice(None), slice(None)]
                at[1 + axis] = slice(left, None)
                indices[tuple(at)] = 0

    def _look_up(self, words: Array, tables: Array, indices: Array) -> Array:
        lengths = (len(words) - tables) // self.width
        if (indices.max(axis=(1, 2, 3)) >= lengths).any():
            raise _corrupted("an index reaches behind its table")
        at = tables.astype(np.intp)[:, None, None, None] + (indices if self.width == 1 else indices.astype(np.intp) * 2)
        values: Array = words.take(at)
        if self.width == 1:
            return values
        high: Array = words.take(at + 1).astype(np.uint64) << np.uint64(32)
        both: Array = values | high
        return both

    def _put(self, blocks: Array, values: Array, out: Array) -> None:
        """Put blocks in their places; those at the edge are cut."""
        if len(blocks) == math.prod(self.grid) and values.shape[1:] == self.block:
            whole = values.reshape(*self.grid, *self.block).transpose(0, 3, 1, 4, 2, 5)
            padded = whole.reshape([n * step for n, step in zip(self.grid, self.block, strict=True)])
            out[...] = padded[tuple(map(slice, out.shape))]
            return
        inner = tuple(size // step for size, step in zip(out.shape, self.block, strict=True))
        z, y, x = np.unravel_index(blocks, self.grid)
        full = (z < inner[0]) & (y < inner[1]) & (x < inner[2])
        if full.any():
            body = out[tuple(slice(n * step) for n, step in zip(inner, self.block, strict=True))]
            shape = [size for n, step in zip(inner, self.block, strict=True) for size in (n, step)]
            view = _split(body, shape).transpose(0, 2, 4, 1, 3, 5)
            view[z[full], y[full], x[full]] = values[full]
        for number in np.flatnonzero(~full).tolist():
            corner = (int(z[number]), int(y[number]), int(x[number]))
            target = out[tuple(slice(c * s, (c + 1) * s) for c, s in zip(corner, self.block, strict=True))]
            value = values[number]
            target[...] = value[tuple(map(slice, target.shape))] if value.size > 1 else value

    # --- encoding

    def encode(self, data: Array) -> bytes:
        """Return a chunk encoded as TensorStore and the reference packages do, byte for byte."""
        channels = [self._encode_channel(channel) for channel in data.astype(self.dtype, copy=False)]
        begins = np.cumsum([self.shape[0], *map(len, channels)])[:-1]
        if any(len(channel) > _LARGEST for channel in channels) or (len(begins) and begins[-1] >= 1 << 32):
            raise StoreError(
                "The chunk is too large for compressed_segmentation: a channel may have 64 MiB.  Use smaller chunks"
            )
        return b"".join([begins.astype("<u4").tobytes(), *[channel.tobytes() for channel in channels]])

    def _encode_channel(self, labels: Array) -> Array:
        header: list[int] = []
        body: list[Array] = []
        known: dict[bytes, int] = {}
        end = 2 * math.prod(self.grid)
        for key, width, words in self._blocks(labels):
            begin = end
            if words is not None:
                body.append(words)
                end += len(words)
            place = known.get(key)
            if place is None:
                place = known[key] = end
                body.append(np.frombuffer(key, "<u4"))
                end += len(body[-1])
            header += (place & 0xFFFFFF | width << 24, begin & 0xFFFFFFFF)
        return np.concatenate([np.array(header, "<u4"), *body])

    def _blocks(self, labels: Array) -> Iterator[_Block]:
        """Yield the blocks in their order: whole ones are encoded many at a time, those at the edges by themselves."""
        counts = [size // side for size, side in zip(labels.shape, self.block, strict=True)]
        whole = labels[tuple(slice(count * side) for count, side in zip(counts, self.block, strict=True))]
        sides = [size for pair in zip(counts, self.block, strict=True) for size in pair]
        rows = whole.reshape(sides).transpose(0, 2, 4, 1, 3, 5).reshape(math.prod(counts), math.prod(self.block))
        step = 256  # blocks: their usual size makes a megabyte
        encoded = itertools.chain.from_iterable(
            self._rows(rows[begin : begin + step]) for begin in range(0, len(rows), step)
        )
        for corner in np.ndindex(*self.grid):
            if all(at < count for at, count in zip(corner, counts, strict=True)):
                yield next(encoded)
                continue
            slices = tuple(slice(c * s, (c + 1) * s) for c, s in zip(corner, self.block, strict=True))
            block = np.ascontiguousarray(labels[slices])
            [(key, width, words)] = self._rows(block.reshape(1, -1), block.shape)
            yield key, width, words

    def _rows(self, rows: Array, cut: tuple[int, ...] | None = None) -> list[_Block]:
        """Return blocks, a row each, of `cut` voxels along each axis: their values, sorted, and the packed indices."""
        ordered = np.sort(rows, axis=1)
        begins = np.ones(rows.shape, bool)
        np.not_equal(ordered[:, 1:], ordered[:, :-1], out=begins[:, 1:])
        sizes = np.count_nonzero(begins, axis=1)
        values = ordered[begins]
        starts = np.cumsum(sizes) - sizes
        tables = [part.tobytes() for part in np.split(values.astype(self.dtype.newbyteorder("<")), starts[1:])]
        widths = np.array(_WIDTHS)[np.searchsorted(_MOST_VALUES, sizes)]
        words: list[Array | None] = [None] * len(rows)
        for width in np.unique(widths[widths > 0]).tolist():
            chosen = np.flatnonzero(widths == width)
            indices = _places(rows[chosen], values, starts[chosen], sizes[chosen])
            if cut is not None and cut != self.block:  # what lies beyond has the index 0
                padded = np.zeros((1, *self.block), indices.dtype)
                padded[0][tuple(map(slice, cut))] = indices.reshape(cut)
                indices = padded.reshape(1, -1)
            for row, packed in zip(chosen.tolist(), _packed(indices, width), strict=True):
                words[row] = packed
        return list(zip(tables, widths.tolist(), words, strict=True))


def _places(rows: Array, values: Array, starts: Array, sizes: Array) -> Array:
    """Return where each element of each row stands among the sorted values of its row."""
    most = int(sizes.max())
    if most > 16:  # comparing with each of so many takes longer than searching
        found = [
            np.searchsorted(values[start : start + size], row)
            for row, start, size in zip(rows, starts.tolist(), sizes.tolist(), strict=True)
        ]
        return np.stack(found)
    places = np.zeros(rows.shape, np.uint8)
    for place in range(1, most):
        at_least = rows >= values[starts + np.minimum(place, sizes - 1)][:, np.newaxis]
        at_least &= (place < sizes)[:, np.newaxis]
        places += at_least
    return places


def _split(body: Array, shape: list[int]) -> Array:
    """Return a view of a strided array with each dimension split in two."""
    strides = [stride for axis, outer in enumerate(body.strides) for stride in (outer * shape[2 * axis + 1], outer)]
    return np.lib.stride_tricks.as_strided(body, shape, strides)


def _unpacked(packed: Array, width: int) -> Array:
    if width == 32:
        return packed
    if width == 16:
        return packed.view("<u2")
    octets = packed.view(np.uint8)
    if width == 8:
        return octets
    if width == 1:
        return np.unpackbits(octets, axis=1, bitorder="little")
    parts = [(octets >> shift) & ((1 << width) - 1) for shift in range(0, 8, width)]
    return np.stack(parts, axis=-1).reshape(len(packed), -1)


def _packed(indices: Array, width: int) -> Array:
    """Return words that hold the indices of blocks, a row each."""
    per_word = 32 // width
    kind = np.dtype(f"<u{max(1, width // 8)}")
    padded = np.zeros((len(indices), -(-indices.shape[1] // per_word) * per_word), kind)
    padded[:, : indices.shape[1]] = indices
    if width == 1:
        return np.packbits(padded, axis=1, bitorder="little").view("<u4")
    if width < 8:
        octets = padded[:, :: 8 // width].copy()
        for place in range(1, 8 // width):
            octets |= padded[:, place :: 8 // width] << np.uint8(place * width)
        padded = octets
    return padded.view("<u4")


# The chain of a precomputed chunk.

ENCODINGS = ("raw", "png", "jpeg", "compressed_segmentation")
_GZIP_LEVEL = 9  # TensorStore's
_DRIVERS = ("neuroglancer_precomputed", "neuroglancer-precomputed")


class _BoundRaw(BoundBytes):
    """Elements as they are; a chunk of another size is refused in the words of the format."""

    __slots__ = ()

    def _wrong_size(self, data: Any) -> FailedPreconditionError:
        length = memoryview(data).nbytes
        return FailedPreconditionError(f"Expected chunk length to be {self.size}, but received {length} bytes")


def bind_chunk(scale: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...], *, gzip: bool) -> BoundChain:
    """Return the chain of chunks of a scale that have a shape (x, y, z, channel)."""
    spec = ChunkSpec(dtype, shape, dtype.type(0))
    reverse = TransposeCodec([3, 2, 1, 0]).bind(spec)  # type: ignore[arg-type]  # any sequence will do
    pack = _pack(scale, dtype, shape[::-1])
    stages = [BoundDeflate(_bytes(pack), "gzip", _GZIP_LEVEL)] if gzip else []
    names = [f"codec {show(scale['encoding'])}", *['codec "gzip"' for _ in stages]]
    return BoundChain(spec, [reverse], pack, stages, names)


def _pack(scale: Mapping[str, Any], dtype: np.dtype[Any], shape: tuple[int, ...]) -> BoundCodec:
    encoding = scale["encoding"]
    if encoding == "raw":
        return _BoundRaw(dtype, stored_dtype(dtype, "little"), shape)
    if encoding == "compressed_segmentation":
        block = scale["compressed_segmentation_block_size"]
        return BoundSegmentation(dtype, shape, tuple(block))
    return BoundImage(encoding, dtype, shape, scale.get("png_level" if encoding == "png" else "jpeg_quality"))


def _bytes(pack: BoundCodec) -> ByteSpec:
    encoded = pack.encoded
    assert isinstance(encoded, ByteSpec)
    return encoded


def parse_codec(value: Json) -> dict[str, Json]:
    """Return the JSON of a codec spec of the driver, checked."""
    fields = Fields(value)
    fields.require("driver", one_of(*_DRIVERS))
    out: dict[str, Json] = {"driver": _DRIVERS[0]}
    for name, parser in (
        ("encoding", one_of(*ENCODINGS)),
        ("jpeg_quality", integer(0, 100)),
        ("png_level", integer(0, 9)),
        ("shard_data_encoding", one_of("raw", "gzip")),
    ):
        if name in fields:
            out[name] = fields.take(name, parser)
    fields.finish()
    for name, encoding in (("jpeg_quality", "jpeg"), ("png_level", "png")):
        if name in out and out.get("encoding") != encoding:
            raise JsonError(f'Error parsing object member "{name}": Only valid for "{encoding}" encoding')
    return out


def merge_specs(left: Json, right: Json) -> dict[str, Json]:
    """Return the JSON of the codec spec that grants two."""
    drivers = [json.get("driver") if isinstance(json, Mapping) else None for json in (left, right)]
    if None not in drivers and drivers[1] not in _DRIVERS:
        raise StoreError(f"Cannot merge codec spec {show(left)} with {show(right)}")
    a, b = parse_codec(left), parse_codec(right)
    for name in ("encoding", "jpeg_quality", "png_level", "shard_data_encoding"):
        if name in a and name in b and a[name] != b[name]:
            raise StoreError(f'Cannot merge codec spec {show(a)} with {show(b)}: "{name}" mismatch')
    return {**a, **b}
