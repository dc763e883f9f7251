"""Damaged encodings of the codecs `zfp` and `n5_default`: an error of fsstore or a chunk of the right kind, soon."""

from __future__ import annotations

import random
import time
from typing import Any

import numpy as np
import pytest

from fsstore.codec.chain import BoundChain, CodecChain
from fsstore.codec.contract import ChunkSpec
from fsstore.errors import StoreError

SHAPES = ((9,), (5, 6), (3, 5, 4))
WORDS = (b"\xff" * 4, b"\0" * 4, b"\0\0\0\1", b"\x7f\xff\xff\xff")
SLOWEST_S = 5.0  # on a machine that is busy with other things


def bound(name: str, configuration: Any, dtype: str, shape: tuple[int, ...]) -> BoundChain:
    """Return a codec bound to chunks."""
    codec = {"name": name, "configuration": configuration}
    return CodecChain.from_json([codec]).bind(ChunkSpec(np.dtype(dtype), shape, 7))


def zfp() -> list[BoundChain]:
    """Return the codec in every mode, for each type, in one to four dimensions and none."""
    modes: list[dict[str, Any]] = [
        {"mode": "reversible"},
        {"mode": "fixed_rate", "rate": 13.0},
        {"mode": "fixed_precision", "precision": 11},
        {"mode": "expert", "minbits": 5, "maxbits": 500, "maxprec": 20, "minexp": -30},
        {"mode": "expert", "minbits": 900, "maxbits": 900, "maxprec": 64, "minexp": -1074},
    ]
    near = {"mode": "fixed_accuracy", "tolerance": 0.01}
    return [
        bound("zfp", mode, dtype, shape)
        for dtype in ("i4", "i8", "f4", "f8")
        for shape in (*SHAPES, (2, 3, 4, 5), ())
        for mode in (*modes, *([near] if dtype[0] == "f" else []))
    ]


def n5_default() -> list[BoundChain]:
    """Return the codec over each kind of inner chain."""
    stages: list[list[Any]] = [
        [],
        [{"name": "gzip", "configuration": {"level": 1}}],
        [{"name": "zstd", "configuration": {"level": 1}}],
    ]
    blosc = {"cname": "lz4", "clevel": 1, "shuffle": "shuffle", "blocksize": 0}
    chains = []
    for dtype in ("u1", "u2", "i4", "f8"):
        size = np.dtype(dtype).itemsize
        pack = {"name": "bytes", **({"configuration": {"endian": "big"}} if size > 1 else {})}
        for shape in SHAPES:
            turned = {"name": "transpose", "configuration": {"order": [*range(len(shape))][::-1]}}
            head = [turned, pack] if len(shape) > 1 else [pack]
            for stage in (*stages, [{"name": "blosc", "configuration": {**blosc, "typesize": size}}]):
                chains.append(bound("n5_default", {"codecs": [*head, *stage]}, dtype, shape))
    return chains


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return an encoding with one to four changes: bits, bytes and words, pieces left out, put in and repeated."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        if not out:
            break
        at = rng.randrange(len(out))
        match rng.randrange(6):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at] = rng.randrange(256)
            case 2:
                del out[at:]
            case 3:
                out[at:at] = rng.randbytes(rng.randint(1, 16))
            case 4:
                other = rng.randrange(len(out))
                out[at : at + 8] = out[other : other + 8]
            case _:
                out[at // 4 * 4 : at // 4 * 4 + 4] = rng.choice(WORDS)
    return bytes(out)


@pytest.mark.parametrize("executions", [4_000, pytest.param(200_000, marks=pytest.mark.long)], ids=["some", "many"])
@pytest.mark.parametrize("chains", [zfp, n5_default])
def test_damaged_encodings(chains, executions):
    """Nothing but errors of fsstore and chunks of the right shape and type come of them, and none takes long."""
    rng, values = random.Random(0), np.random.default_rng(0)
    encoded = []
    for chain in chains():
        chunk = chain.chunk
        plain = values.integers(0, 99, chunk.shape).astype(chunk.dtype)
        encoded.append((chain, bytes(chain.encode(plain))))
    decoded = 0
    for _ in range(executions):
        chain, data = rng.choice(encoded)
        given, began = damaged(data, rng), time.process_time()
        try:
            found = chain.decode(given)
        except StoreError:
            continue
        finally:
            assert time.process_time() - began < SLOWEST_S
        decoded += 1
        assert (found.shape, found.dtype) == (chain.chunk.shape, chain.chunk.dtype)
    assert 0 < decoded < executions


def test_an_empty_block_of_any_length():
    """A block without elements fills nothing, however long it says that it is along other dimensions."""
    chain = n5_default()[8]
    header = b"\0\0\0\3" + b"\xff\xff\xff\xff" * 2 + b"\0\0\0\0"
    assert (chain.decode(header) == 7).all()
