"""The shuffle filter: the bytes numcodecs makes, undone by ourselves."""

from __future__ import annotations

import numcodecs
import numpy as np
import pytest

from fsstore.codec.contract import ChunkSpec
from fsstore.codec.numcodecs.compressor_v2 import V2Pipeline
from fsstore.codec.numcodecs.flat import FlatSpec
from fsstore.codec.numcodecs.numcodecs_v2 import Numcodec
from fsstore.errors import FailedPreconditionError, StoreError


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 16])
@pytest.mark.parametrize("count", [16, 48, 4080])
def test_shuffling_is_that_of_numcodecs(width, count):
    """Both directions agree with numcodecs for elements of every size, whatever kind of buffer comes in."""
    theirs = numcodecs.Shuffle(width)
    data = np.random.default_rng(width).integers(0, 256, count * 3, np.uint8)
    ours = Numcodec("shuffle", {"elementsize": width}).bind(FlatSpec(np.dtype("u1"), len(data)))
    shuffled = bytes(theirs.encode(data))
    assert bytes(ours.encode(data.view("V3"))) == shuffled
    for form in (shuffled, bytearray(shuffled), memoryview(shuffled), np.frombuffer(shuffled, "V3")):
        assert bytes(ours.decode(form)) == data.tobytes()


def test_what_does_not_fit_is_refused():
    """Too few or too many bytes, and chunks that are no multiple of the element, are errors."""
    bound = Numcodec("shuffle", {"elementsize": 4}).bind(FlatSpec(np.dtype("f4"), 6))
    for size in (0, 20, 23, 28):
        with pytest.raises(FailedPreconditionError):
            bound.decode(bytes(size))
    with pytest.raises(StoreError):
        Numcodec("shuffle", {"elementsize": 4}).bind(FlatSpec(np.dtype("u1"), 6))


def test_parts_are_put_one_after_the_other():
    """Several parts are unshuffled in one place; one of another size is not taken."""
    bound = Numcodec("shuffle", {"elementsize": 4}).bind(FlatSpec(np.dtype("f4"), 6))
    data = np.random.default_rng(0).integers(0, 256, (5, 24), np.uint8)
    parts = [bytes(bound.encode(part)) for part in data]
    out = np.zeros(5 * 24, np.uint8)
    assert bound.decode_joined(parts, out)
    assert out.tobytes() == data.tobytes()
    assert not bound.decode_joined([*parts[:4], parts[4][:20]], out)


FILTERS = [{"id": "shuffle", "elementsize": 4}, {"id": "zlib", "level": 1}]


def pipeline(count, filters=FILTERS, compressor=None):
    """Return how chunks of so many floats are stored."""
    return V2Pipeline.from_json(compressor, filters).bind(ChunkSpec(np.dtype("<f4"), (count,)))


@pytest.mark.parametrize("count", [64, 50_000])
@pytest.mark.parametrize("compressor", [None, {"id": "zlib"}, {"id": "zstd"}])
def test_bytes_on_their_way_are_not_mixed_up(count, compressor):
    """Codecs one after another decode in memory that is used again, and no chunk gets a part of another."""
    chain = pipeline(count, [*FILTERS, {"id": "zlib", "level": 0}], compressor)
    chunks = np.random.default_rng(1).normal(size=(4, count)).astype("<f4")
    encoded = [bytes(chain.encode(chunk)) for chunk in chunks]
    strided = np.zeros((count, 4), "f4")
    for column, data in enumerate(encoded):
        chain.decode(data, strided[:, column])
    assert (strided.T == chunks).all()
    kept = [chain.decode(data) for data in encoded]
    assert (np.array(kept) == chunks).all(), "without a destination each has memory of its own"
    run = chain.borrow_run(encoded)
    assert run is None or (run == chunks).all()


def test_memory_is_used_again():
    """What is borrowed lies where the last one lay, and the bytes on the way to it elsewhere."""
    chain = pipeline(50_000)
    first, second = np.arange(50_000, dtype="<f4"), np.ones(50_000, "<f4")
    one = chain.borrow(bytes(chain.encode(first)))
    two = chain.borrow(bytes(chain.encode(second)))
    assert np.shares_memory(one, two)
    assert (two == second).all()
