"""Small chunks decoded many at a time, and memory used again: the same elements and errors as one by one."""

from __future__ import annotations

import numcodecs.zstd
import numpy as np
import pytest
import zstandard

import fsstore
from fsstore.codec.buffers import copy_elements
from fsstore.codec.chain import CodecChain
from fsstore.codec.contract import ByteSpec, ChunkSpec
from fsstore.codec.sharding import blocks_of
from fsstore.codec.zstd import BoundZstd
from fsstore.errors import StoreError

SIZE = 1000
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
TURNED = {"name": "transpose", "configuration": {"order": [2, 0, 1]}}
ZSTD = {"name": "zstd", "configuration": {"level": 1}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
BLOSC = {
    "name": "blosc",
    "configuration": {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": 2, "blocksize": 0},
}
CRC = {"name": "crc32c"}
TOGETHER = [
    [LITTLE],
    [BIG],
    [TURNED, LITTLE],
    [LITTLE, ZSTD],
    [TURNED, BIG, ZSTD],
    [LITTLE, ZSTD, CRC],
    [TURNED, LITTLE, GZIP],
    [LITTLE, BLOSC],
    [TURNED, BIG, BLOSC, CRC],
]


def frames(count: int = 5) -> list[bytes]:
    """Return frames of `SIZE` bytes each that do not compress well."""
    noise = np.random.default_rng(3).integers(0, 256, (count, SIZE), dtype=np.uint8)
    return [zstandard.ZstdCompressor().compress(row.tobytes()) for row in noise]


def takes_frames_together() -> bool:
    """Whether this numcodecs decodes frames that follow each other, as those since 0.16.4 do."""
    frame = zstandard.ZstdCompressor().compress(b"ab")
    try:
        return bytes(numcodecs.zstd.decompress(frame + frame)) == b"abab"
    except RuntimeError:
        return False


def joined(parts: list[bytes]) -> bool:
    """Return what decoding parts together says."""
    bound = BoundZstd(ByteSpec(SIZE), 1, checksum=False)
    return bound.decode_joined(parts, np.empty(len(parts) * SIZE, np.uint8))


@pytest.mark.parametrize("codecs", TOGETHER)
def test_a_run_holds_what_each_chunk_holds(codecs):
    """Chunks decoded together have the elements that each has alone, in every byte order and transposed."""
    bound = CodecChain.from_json(codecs).bind(ChunkSpec(np.dtype("u2"), (3, 4, 5)))
    chunks = np.arange(7 * 60, dtype="u2").reshape(7, 3, 4, 5)
    run = bound.decode_run_to_scratch([bytes(bound.encode(chunk)) for chunk in chunks])
    if ZSTD in codecs and not takes_frames_together():
        assert run is None  # older versions of numcodecs decode them one by one
        return
    assert run is not None
    np.testing.assert_array_equal(run, chunks)


def test_codecs_without_a_way_say_so():
    """A chain whose last decoder cannot take several parts leaves them to be decoded one by one."""
    bound = CodecChain.from_json([LITTLE, {"name": "numcodecs.bz2", "configuration": {"level": 1}}]).bind(
        ChunkSpec(np.dtype("u2"), (4,))
    )
    assert bound.decode_run_to_scratch([bytes(bound.encode(np.zeros(4, "u2")))] * 2) is None
    assert bound.run_length == 1


@pytest.mark.parametrize("codecs", TOGETHER)
def test_a_damaged_run_is_left_to_one_by_one(codecs):
    """A part that is cut off makes the run None, so that whoever decodes one by one learns which it is."""
    bound = CodecChain.from_json(codecs).bind(ChunkSpec(np.dtype("u2"), (3, 4, 5)))
    parts = [bytes(bound.encode(np.full((3, 4, 5), number, "u2"))) for number in range(4)]
    parts[2] = parts[2][:-1]
    assert bound.decode_run_to_scratch(parts) is None


def test_invalid_elements_in_a_run():
    """A boolean that is neither true nor false is found in a run too."""
    bound = CodecChain.from_json([{"name": "bytes"}]).bind(ChunkSpec(np.dtype(bool), (4,)))
    assert bound.decode_run_to_scratch([b"\0\1\0\1", b"\0\1\2\1"]) is None


def test_zstd_frames_together():
    """Frames of the expected size are decoded in one call, also if there is one or it is short."""
    assert joined(frames(1))
    assert joined(frames()) == takes_frames_together()
    if not takes_frames_together():
        return
    tiny = BoundZstd(ByteSpec(2), 1, checksum=False)
    out = np.zeros(4, np.uint8)
    assert tiny.decode_joined([zstandard.compress(b"ab"), zstandard.compress(b"cd")], out)
    assert out.tobytes() == b"abcd"


def test_zstd_frames_of_other_sizes():
    """Frames that hold less, more, an unknown number of bytes, or are no frames, are not decoded together."""
    unsized = zstandard.ZstdCompressor(write_content_size=False).compress(bytes(SIZE))
    others = [zstandard.compress(bytes(SIZE - 1)), zstandard.compress(bytes(SIZE + 1)), unsized, b"", b"nothing"]
    for other in others:
        assert not joined([*frames(), other]), other[:8]
        assert not joined([other, *frames()]), other[:8]


def test_zstd_bytes_between_frames():
    """What follows a frame would shift its neighbours, whether it is nonsense or another frame."""
    first, *rest = frames()
    assert not joined([first + b"rest", *rest])
    assert not joined([first + first, *rest])
    assert not joined([*rest, first + first])


def test_zstd_frame_that_swallows_the_next():
    """A frame cut off within a stored block takes the next for its own elements; this does not pass for success."""
    noise, other = frames(2)
    zeros = zstandard.compress(bytes(SIZE))
    cut = noise[: -len(zeros)]
    flat = zstandard.ZstdDecompressor().decompress(cut + zeros)
    assert len(flat) == SIZE, "together they are one whole frame, so only the total tells"
    assert not joined([cut, zeros, other])
    assert not joined([other, cut, zeros])


def test_memory_is_used_again():
    """Two chunks decoded one after the other into strided destinations cost memory once."""
    bound = CodecChain.from_json([LITTLE, ZSTD]).bind(ChunkSpec(np.dtype("u2"), (256, 256)))
    data = bytes(bound.encode(np.ones((256, 256), "u2")))
    assert np.shares_memory(bound.decode_to_scratch(data), bound.decode_to_scratch(data))
    assert not np.shares_memory(bound.decode(data), bound.decode_to_scratch(data))


@pytest.fixture
def array(tmp_path):
    """An array of 5 × 5 small chunks, the last row and column of them partial, and one never written."""
    metadata = {
        "shape": [37, 39],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [8, 8]}},
        "data_type": "int32",
        "codecs": [LITTLE, ZSTD],
        "fill_value": -1,
    }
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{tmp_path}/a/"},
        "metadata": metadata,
        "recheck_cached_data": "open",
    }
    made = fsstore.open(spec, create=True).result()
    made.write(np.arange(37 * 39, dtype="i4").reshape(37, 39)).result()
    (tmp_path / "a/c/2/3").unlink()
    return made


def test_many_small_chunks(array):
    """Whole, partial and missing chunks that are decoded together all land in their place."""
    expected = np.arange(37 * 39, dtype="i4").reshape(37, 39)
    expected[16:24, 24:32] = -1
    np.testing.assert_array_equal(array.read().result(), expected)
    np.testing.assert_array_equal(array[3:30, ::-2].read().result(), expected[3:30, ::-2])
    np.testing.assert_array_equal(array.T.read().result(), expected.T)


@pytest.mark.parametrize(("cache", "gathered"), [(0, 512), (0, 0), (1 << 20, 512)])
@pytest.mark.parametrize("codecs", TOGETHER)
def test_every_few_elements(codecs, cache, gathered, tune):
    """Views with steps of any size and sign, and boxes of few and many chunks, some of them missing, are NumPy's."""
    tune("chunk", FEW=2, GATHERED_ELEMENTS=gathered)
    shape, rng = (11, 22, 17), np.random.default_rng(cache)
    grid = {"name": "regular", "configuration": {"chunk_shape": [3, 4, 5]}}
    metadata = {"shape": shape, "chunk_grid": grid, "data_type": "uint16", "codecs": codecs, "fill_value": 7}
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}
    store = fsstore.open({**spec, "context": {"cache_pool": {"total_bytes_limit": cache}}}, create=True).result()
    values = rng.integers(0, 2**16, shape, "u2")
    values[3:6, 8:12, :5] = values[9:, 20:, 15:] = 7  # chunks that are not stored
    store.write(values).result()
    for _ in range(25):
        steps = rng.choice([-7, -3, -1, 1, 2, 3, 4, 6], 3).tolist()
        index = []
        for size, step in zip(shape, steps, strict=True):
            low, high = sorted(rng.choice(size + 1, 2, replace=False).tolist())
            index.append(slice(low, high, step) if step > 0 else slice(high - 1, low - 1 if low else None, step))
        order = rng.permutation(3).tolist()
        found = store[tuple(index)].transpose(order).read().result()
        np.testing.assert_array_equal(found, values[tuple(index)].transpose(order))
        number = int(rng.integers(shape[1]))
        found = store[index[0], number, index[2]].read().result()
        np.testing.assert_array_equal(found, values[index[0], number, index[2]])


def test_the_damaged_one_of_many_is_named(array, tmp_path):
    """The error of a chunk that was decoded with others names its key."""
    damaged = tmp_path / "a/c/1/2"
    damaged.write_bytes(damaged.read_bytes()[:-3])
    with pytest.raises(StoreError, match="a/c/1/2.*Zstd"):
        array.read().result()


@pytest.mark.parametrize("side", [8, 512])
def test_reads_begun_together(tmp_path, side):
    """Reads that touch the same chunks, small or large, all succeed but those that touch the damaged one."""
    values = np.arange(3 * side * side, dtype="u4").reshape(3 * side, side)
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/b/"}}
    metadata = {
        "shape": [3 * side, side],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [side, side]}},
        "data_type": "uint32",
        "codecs": [LITTLE, ZSTD],
    }
    made = fsstore.open({**spec, "metadata": metadata}, create=True).result()
    made.write(values).result()
    damaged = tmp_path / "b/c/1/0"
    damaged.write_bytes(damaged.read_bytes()[:-3])
    futures = [made[row : row + 2, 2:5].read() for row in range(3 * side - 1)]
    for row, future in enumerate(futures):
        if row + 2 <= side or row >= 2 * side:
            np.testing.assert_array_equal(future.result(), values[row : row + 2, 2:5])
        else:
            with pytest.raises(StoreError, match="b/c/1/0.*Zstd"):
                future.result()


def test_missing_parts_of_shards():
    """Parts that are missing between others do not move those to their place."""
    layout = fsstore.ChunkLayout(read_chunk_shape=[1, 1], write_chunk_shape=[4, 2])
    for seed in range(30):
        values = np.random.default_rng(seed).integers(0, 3, (7, 20)).astype("f8")
        store = fsstore.open(
            "memory://|zarr3:", create=True, dtype="float64", shape=[7, 20], chunk_layout=layout, fill_value=2
        ).result()
        store.write(values).result()
        assert (store.read().result() == values).all()


@pytest.mark.parametrize("codecs", [[LITTLE, ZSTD], [BIG, CRC], [TURNED, LITTLE, ZSTD], [LITTLE, GZIP]])
@pytest.mark.parametrize("grid", [(1, 1, 1), (3, 5, 7), (2, 3, 2), (7, 1, 3), (1, 1, 5)])
@pytest.mark.parametrize("sub", [(1, 2, 3), (16, 20, 30), (100, 41, 67)])
@pytest.mark.parametrize("gaps", [0, 0.3])
def test_whole_shards(codecs, grid, sub, gaps):
    """A shard decodes to its parts, whether a run of them fills rows, planes, all of it or a part of a row."""
    if np.prod(grid) * np.prod(sub) > 4 << 20:
        grid = (2, 1, 3)
    generator = np.random.default_rng(1)
    absent = generator.random(grid) < gaps
    values = generator.integers(1, 60000, np.multiply(grid, sub)).astype("u2")
    values[absent.repeat(sub[0], 0).repeat(sub[1], 1).repeat(sub[2], 2)] = 0  # the fill value, which is not stored
    sharding = {"chunk_shape": list(sub), "codecs": codecs, "index_codecs": [LITTLE]}
    chain = CodecChain.from_json([{"name": "sharding_indexed", "configuration": sharding}])
    bound = chain.bind(ChunkSpec(np.dtype("u2"), values.shape))
    shard = bound.encode(values)
    for order in "CF":
        out = np.full(values.shape, 7, "u2", order=order)
        np.testing.assert_array_equal(bound.decode(shard, out), values)


@pytest.mark.parametrize("damaged", [0, 4, 7, 23])
def test_the_damaged_part_of_a_shard_is_named(damaged):
    """The error of a part that is decoded with others says where it lies, whether others are missing or not."""
    sharding = {"chunk_shape": [2, 2, 2], "codecs": [LITTLE, ZSTD], "index_codecs": [LITTLE]}
    chain = CodecChain.from_json([{"name": "sharding_indexed", "configuration": sharding}])
    position = np.unravel_index(damaged, (2, 3, 4))
    for gap in (None, 12):
        values = np.arange(1, 193, dtype="u2").reshape(4, 6, 8)
        if gap is not None:
            corner = [slice(2 * at, 2 * at + 2) for at in np.unravel_index(gap, (2, 3, 4))]
            values[tuple(corner)] = 0
        bound = chain.bind(ChunkSpec(np.dtype("u2"), values.shape))
        shard = bytearray(bound.encode(values))
        offset = int(np.frombuffer(shard[-16 * 24 :], "<u8")[2 * damaged])
        shard[offset] ^= 1
        with pytest.raises(StoreError, match="shard entry {%d, %d, %d}/{2, 3, 4}" % position):
            bound.decode(bytes(shard), np.empty_like(values))


@pytest.mark.parametrize("dtype", ["u1", "<u2", ">u4", "c16", "S3", "M8[s]", "i1,>f8"])
@pytest.mark.parametrize("part", [(2, 3, 4), (4, 6, 1), (1, 1, 8), (4, 1, 2)])
@pytest.mark.parametrize("orders", ["CC", "CF", "FC", "FF"])
def test_parts_are_copied_to_their_blocks(dtype, part, orders, tune):
    """Whole rows or single elements are copied, whatever the memory order and byte order of either side."""
    tune("codec.buffers", ROWS_COPIED_FROM=8)
    octets = np.random.default_rng(2).integers(0, 255, 4 * 6 * 8 * np.dtype(dtype).itemsize, np.uint8)
    values = octets.view(dtype).reshape(4, 6, 8)
    parts = blocks_of(values, part).copy(order=orders[0])
    for here in {np.dtype(dtype), np.dtype(dtype).newbyteorder("=")}:
        out = np.zeros(values.shape, here, order=orders[1])
        copy_elements(blocks_of(out, part), parts)
        assert out.astype(dtype).tobytes() == values.tobytes()
