"""Large chunks encoded piece by piece: the same elements, in little more memory than one piece."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import tensorstore

import fsstore
from fsstore.chunk.write.encode import joined
from fsstore.codec.chain import CodecChain
from fsstore.codec.contract import ChunkSpec

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
TURNED = {"name": "transpose", "configuration": {"order": [1, 0]}}
ZSTD = {"name": "zstd", "configuration": {"level": 1}}
SURE = {"name": "zstd", "configuration": {"level": 1, "checksum": True}}
GZIP = {"name": "gzip", "configuration": {"level": 1}}
CRC = {"name": "crc32c"}
SHAPE = (2048, 2048 + 3)  # 8 MB and a little
CHAINS = [
    [LITTLE],
    [BIG],
    [LITTLE, ZSTD],
    [TURNED, BIG, ZSTD, CRC],
    [LITTLE, SURE, CRC, CRC],
    [LITTLE, GZIP],
    [TURNED, LITTLE, GZIP, CRC],
    [LITTLE, CRC],
    [LITTLE, CRC, ZSTD],
]
ELEMENTS = {
    "noise": lambda: np.random.default_rng(0).integers(0, 1 << 16, SHAPE, "u2"),
    "steps": lambda: np.arange(SHAPE[0] * SHAPE[1], dtype="u4").astype("u2").reshape(SHAPE) // 7,
}


@pytest.mark.parametrize("name", ELEMENTS)
@pytest.mark.parametrize("codecs", CHAINS, ids=lambda codecs: "-".join(codec["name"] for codec in codecs))
def test_pieces_are_the_encoding(codecs, name):
    """They decode to the chunk, are those of `encode` but for how zstd cuts its blocks, and of what is made none is large."""
    bound = CodecChain.from_json(codecs).bind(ChunkSpec(np.dtype("u2"), SHAPE))
    values = ELEMENTS[name]()
    portions = list(bound.portions(values))
    pieces = [bytes(piece) for portion in portions for piece in portion]
    whole = b"".join(pieces)
    assert (bound.decode(whole, np.empty(SHAPE, "u2")) == values).all()
    assert (bound.decode(whole) == values).all()
    if not any(codec in (ZSTD, SURE) for codec in codecs):
        assert whole == bytes(bound.encode(values))
    if codecs[-1] in (ZSTD, SURE, GZIP) or codecs[-2:-1] in ([ZSTD], [GZIP]):
        assert max(map(len, pieces)) < 1 << 20


@pytest.mark.parametrize("usual", [0, 5, 9, 10, 11, 1 << 20])
@pytest.mark.parametrize("portions", [[[b"0123456789"]], [[b"01", b"23456789"]], [[b"0123"], [b"4", b"5"], [b"6789"]]])
def test_what_is_joined_is_whole(portions, usual):
    """Whether it is larger than was thought, as large, or smaller."""
    assert joined(iter(portions), usual) == b"0123456789"
    views = ([memoryview(piece) for piece in portion] for portion in portions)
    assert bytes(joined(views, usual)) == b"0123456789"


def test_a_shard_of_which_little_is_stored_is_joined_in_little_memory():
    """It may decode to far more: the bytes of `usual` are memory that is touched."""
    tracemalloc.start()
    try:
        assert joined(iter([[b"01"], [b"2"]]), 1 << 34) == b"012"
        assert tracemalloc.get_traced_memory()[1] < 40 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "codecs",
    [each for each in CHAINS if SURE not in each],
    ids=lambda codecs: "-".join(codec["name"] for codec in codecs),
)
@pytest.mark.parametrize("driver", ["file", "fsspec"])
def test_tensorstore_reads_them(codecs, driver, tmp_path):
    """Written whole or in part, by a store that takes pieces as they come and by one that waits for all.

    Checksums of zstd it does not have.
    """
    url = {"driver": "fsspec", "url": f"file://{tmp_path}/a/", "single_writer": True}
    spec = {
        "driver": "zarr3",
        "kvstore": url if driver == "fsspec" else f"file://{tmp_path}/a/",
        "metadata": {
            "shape": [SHAPE[0], 2 * SHAPE[1]],
            "data_type": "uint16",
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": SHAPE}},
            "codecs": codecs,
        },
    }
    values = np.concatenate([make() for make in ELEMENTS.values()], axis=1)
    store = fsstore.open(spec, create=True).result()
    store.write(values).result()
    part = values[5:2000, 7:4000]
    part += 1
    store[5:2000, 7:4000].write(part).result()
    theirs = tensorstore.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/"}).result()
    assert (theirs.read().result() == values).all()
    assert (store.read().result() == values).all()
