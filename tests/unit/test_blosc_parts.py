"""Parts of blosc buffers: only the blocks that hold what is wanted are decompressed, and the values are the same."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from numcodecs import blosc

import fsstore as ts
from fsstore.codec.blosc import BloscCodec
from fsstore.codec.contract import ByteSpec

CODECS = [
    BloscCodec("lz4", 5, "shuffle", 2, 4096),
    BloscCodec("zstd", 1, "bitshuffle", 4, 8192),
    BloscCodec("lz4", 9, "noshuffle", None, 0),
    BloscCodec("blosclz", 5, "shuffle", 3, 600),
    BloscCodec("lz4", 0, "shuffle", 2, 4096),
]


def sample(size):
    """Return bytes that compress, but not to nothing."""
    noise = np.random.default_rng(3).integers(0, 9, size // 500 + 1, np.uint8).repeat(500)[:size]
    return (np.arange(size) // 700).astype(np.uint8) + noise


def blocks_reversed(data):
    """Return the same buffer with its blocks in the opposite order, as several threads may leave them."""
    size, blocksize, length = struct.unpack_from("<III", data, 4)
    count = -(-size // blocksize)
    starts = [*struct.unpack_from(f"<{count}I", data, 16), length]
    blocks = [data[low:high] for low, high in zip(starts[:-1], starts[1:], strict=True)][::-1]
    places = np.cumsum([16 + 4 * count, *map(len, blocks[:-1])])[::-1]
    return data[:16] + struct.pack(f"<{count}I", *places) + b"".join(blocks)


@pytest.mark.parametrize("codec", CODECS, ids=str)
@pytest.mark.parametrize("change", [bytes, memoryview, blocks_reversed])
def test_spans_hold_what_the_whole_holds(codec, change):
    """Any span decodes to the bytes that decoding everything gives there, whatever the order of the blocks."""
    values = sample(100_001)
    bound = codec.bind(ByteSpec(values.size))
    data = bound.encode(values)
    if change is not blocks_reversed or not data[2] & 2:
        data = change(data)
    rng = random.Random(5)
    for _ in range(40):
        first = rng.randrange(values.size)
        stop = rng.randint(first + 1, min(values.size, first + rng.choice([1, 5000, 90_000])))
        out = np.zeros(values.size, np.uint8)
        assert bound.decode_span(data, out, (first, stop))
        assert (out[first:stop] == values[first:stop]).all()


def test_a_damaged_table_of_blocks_is_left_to_the_library():
    """Blocks outside the buffer, over the table or at one place are not touched: `decode` has to look."""
    values = sample(100_000)
    bound = CODECS[0].bind(ByteSpec(values.size))
    good = bound.encode(values)
    for starts in ([0], [2**31 - 1], [len(good)], [-1], [16], list(struct.unpack_from("<i", good, 20))):
        data = bytearray(good)
        struct.pack_into(f"<{len(starts)}i", data, 16, *starts)
        assert not bound.decode_span(bytes(data), np.zeros(values.size, np.uint8), (0, 10))
    copied = bytearray(CODECS[-1].bind(ByteSpec(values.size)).encode(values))[:50_000]
    struct.pack_into("<I", copied, 12, len(copied))
    assert not bound.decode_span(bytes(copied), np.zeros(values.size, np.uint8), (60_000, 60_010))
    for blocksize in (0, 1, 2**31):
        data = bytearray(good)
        struct.pack_into("<I", data, 8, blocksize)
        assert not bound.decode_span(bytes(data), np.zeros(values.size, np.uint8), (0, 10))


SHAPE, CHUNK = (96, 80, 50), (64, 48, 40)


def array_of(data_type, order=None):
    """Return an array in memory whose chunks are several blocks of blosc, and its values."""
    inner = [
        {"name": "blosc", "configuration": {"cname": "zstd", "clevel": 1, "shuffle": "shuffle", "blocksize": 8192}}
    ]
    codecs = [{"name": "bytes"}, *inner]
    if order is not None:
        codecs.insert(0, {"name": "transpose", "configuration": {"order": order}})
    metadata = {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(CHUNK)}},
        "data_type": data_type, "shape": list(SHAPE), "codecs": codecs,
    }  # fmt: skip
    array = ts.open({"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}, create=True).result()
    values = sample(int(np.prod(SHAPE))).reshape(SHAPE).astype(data_type)
    array[...] = values
    return array, values


def random_slices(rng):
    """Return a random selection, mostly small."""
    terms = []
    for size in SHAPE:
        low = rng.randrange(size)
        high = rng.randint(low + 1, min(size, low + rng.choice([1, 9, size])))
        step = rng.choice([1, 1, 1, 3])
        terms.append(rng.choice([low, *[slice(low, high, step)] * 3]))
    return tuple(terms)


@pytest.fixture
def decompressed(monkeypatch):
    """Return how many bytes each call of the library decompressed."""
    sizes = []
    real = blosc.decompress

    def decompress(data, out=None):
        sizes.append(struct.unpack_from("<I", data, 4)[0])
        return real(data, out)

    monkeypatch.setattr(blosc, "decompress", decompress)
    return sizes


@pytest.mark.parametrize("order", [None, [2, 0, 1]], ids=["C", "transposed"])
@pytest.mark.parametrize("data_type", ["uint16", "bool"])
def test_small_selections_of_large_chunks(decompressed, order, data_type):
    """Selections read alone and together equal NumPy's, and small ones decompress small parts."""
    array, values = array_of(data_type, order)
    rng = random.Random(11)
    picked = [random_slices(rng) for _ in range(150)]
    for terms in picked:
        found = array[terms].translate_to[0].read().result() if values[terms].ndim else array[terms].read().result()
        assert (found == values[terms]).all(), terms
    for begin in range(0, len(picked), 5):
        futures = [(terms, array[terms].read()) for terms in picked[begin : begin + 5]]
        for terms, future in futures:
            assert (future.result() == values[terms]).all(), terms
    chunk_bytes = int(np.prod(CHUNK)) * values.itemsize
    assert min(decompressed) < chunk_bytes / 4
    decompressed.clear()
    array[10, 10, 10].read().result()
    assert decompressed == [8192]


def test_many_parts_of_a_chunk_decompress_it_once(decompressed):
    """Reads made together that want most of a chunk between them share one decompression."""
    array, values = array_of("uint16")
    corners = [(x, y) for x in range(0, 64, 4) for y in range(0, 48, 24)]
    futures = [array[x : x + 4, y : y + 24, :40].read() for x, y in corners]
    for (x, y), future in zip(corners, futures, strict=True):
        assert (future.result() == values[x : x + 4, y : y + 24, :40]).all()
    assert decompressed == [int(np.prod(CHUNK)) * 2]
