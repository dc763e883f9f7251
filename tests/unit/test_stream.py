"""Compressors of the standard library in bounded steps: what one call would give, in the memory of the result."""

from __future__ import annotations

import bz2
import lzma
import tracemalloc
import zlib

import numpy as np
import pytest

from fsstore.codec.contract import ByteSpec
from fsstore.codec.deflate import Inflater, bz2_stream, inflate, lzma_stream
from fsstore.errors import FailedPreconditionError, ResourceExhaustedError

SIZE = (4 << 20) + 3
STEP = 1 << 20
NOISE = np.random.default_rng(0).integers(0, 256, SIZE, "u1").tobytes()
ZEROS = bytes(SIZE)
ZLIB = Inflater(zlib.decompressobj, (zlib.error,), "inflate", "Zlib", keeps_tail=True)
STREAMS = {"bz2": (bz2_stream, 1, lambda data: bz2.compress(data, 1)), "lzma": (lzma_stream, {"preset": 0}, None)}


def _bound(name, size=SIZE):
    make, options, whole = STREAMS[name]
    return make(ByteSpec(size), options), whole or (lambda data: lzma.compress(data, preset=0))


def _peak(run):
    tracemalloc.start()
    try:
        run()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("data", [NOISE, ZEROS, NOISE[:5], b""], ids=["noise", "zeros", "little", "nothing"])
@pytest.mark.parametrize("name", STREAMS)
def test_what_one_call_would_give(name, data):
    """Encoded in pieces and decoded in steps, into memory that is there and without."""
    bound, whole = _bound(name, len(data))
    encoded = whole(data)
    assert bound.encode(data) == b"".join(bound.encode_pieces(data)) == encoded
    assert bytes(bound.decode(encoded)) == data
    out = np.empty(len(data), np.uint8)
    assert bound.decode_into(encoded, out)
    assert out.tobytes() == data
    half = len(data) // 2
    out[:] = 1
    assert bound.decode_into(whole(data[:half]) + whole(data[half:]), out)
    assert out.tobytes() == data


@pytest.mark.parametrize("name", STREAMS)
def test_memory_of_a_step(name):
    """Neither direction holds a large chunk beside what the library takes for a few steps."""
    bound, whole = _bound(name)
    encoded, out = whole(NOISE), np.empty(SIZE, np.uint8)
    held = 2 * STEP + (2 << 20)
    pieces = _peak(lambda: sum(len(piece) for piece in bound.encode_pieces(NOISE)))
    assert pieces + SIZE // 2 < _peak(lambda: whole(NOISE))
    assert _peak(lambda: bound.decode_into(encoded, out)) < held
    encoded = whole(ZEROS)
    assert _peak(lambda: bound.decode_into(encoded, out)) < held
    assert not out.any()


@pytest.mark.parametrize("size", [SIZE - 1, SIZE + 1, SIZE // 2, 5, 0])
@pytest.mark.parametrize("name", STREAMS)
def test_another_size_is_refused(name, size):
    """Whether it is known beforehand or memory is there."""
    bound, whole = _bound(name, size)
    encoded = whole(ZEROS)
    with pytest.raises(FailedPreconditionError, match="End of data expected|Not enough data"):
        bound.decode(encoded)
    with pytest.raises(FailedPreconditionError, match="End of data expected|Not enough data"):
        bound.decode_into(encoded, np.empty(size, np.uint8))


@pytest.mark.parametrize("cut", [1, 100, SIZE // 2])
@pytest.mark.parametrize("name", STREAMS)
def test_what_was_cut_off_is_refused(name, cut):
    """Also where the rest would come with a later step."""
    bound, whole = _bound(name)
    encoded = whole(NOISE)
    with pytest.raises(FailedPreconditionError, match=f"Truncated .*; at byte {len(encoded) - cut}"):
        bound.decode(encoded[:-cut])


def test_an_unknown_size_grows_to_its_limit():
    """Steps of zlib go on where its input ends before its output, and a bomb stops at the limit."""
    encoded = zlib.compress(ZEROS)
    assert bytes(inflate(encoded, ZLIB, None, SIZE)) == ZEROS
    assert bytes(inflate(zlib.compress(NOISE), ZLIB, None, SIZE)) == NOISE
    with pytest.raises(ResourceExhaustedError, match=f"limit of {SIZE - 1} bytes"):
        inflate(encoded, ZLIB, None, SIZE - 1)
    assert _peak(lambda: pytest.raises(ResourceExhaustedError, inflate, encoded, ZLIB, None, 1000)) < 100_000
