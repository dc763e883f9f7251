"""Codecs of numcodecs that are applied block by block: what it makes of the whole, in the memory of the result."""

from __future__ import annotations

import tracemalloc

import numcodecs
import numpy as np
import pytest

from fsstore.codec.numcodecs.filters import BLOCKS_BYTES, FlatSpec
from fsstore.codec.numcodecs.numcodecs_v2 import Numcodec
from fsstore.errors import FailedPreconditionError, StoreError

BLOCK = 1 << 15
CASES = [
    ("<f8", {"id": "fixedscaleoffset", "offset": 3, "scale": 10, "dtype": "<f8", "astype": "<i2"}),
    ("<u2", {"id": "fixedscaleoffset", "offset": 0.5, "scale": 0.1, "dtype": "<u2"}),
    (">i4", {"id": "fixedscaleoffset", "offset": -1, "scale": 3, "dtype": ">i4", "astype": ">f4"}),
    ("<f4", {"id": "quantize", "digits": 2, "dtype": "<f4"}),
    ("<f8", {"id": "quantize", "digits": 3, "dtype": "<f8", "astype": "<f4"}),
    ("<f2", {"id": "bitround", "keepbits": 3}),
    ("<f4", {"id": "bitround", "keepbits": 23}),
    ("<f8", {"id": "bitround", "keepbits": 10}),
]


def _bound(dtype, count, options):
    spec = FlatSpec(np.dtype(dtype), count, (count,))
    return Numcodec.from_json(options).bind(spec)


@pytest.mark.parametrize("count", [0, 1, BLOCK, BLOCK + 1, 5 * BLOCK - 7])
@pytest.mark.parametrize(("dtype", "options"), CASES)
def test_results_are_those_of_numcodecs(dtype, options, count):
    """Both directions, wherever blocks end."""
    values = (np.random.default_rng(count).normal(size=count) * 100).astype("i4").astype(dtype)
    theirs, ours = numcodecs.get_codec(dict(options)), _bound(dtype, count, options)
    encoded = theirs.encode(values)
    for form in (values, values.tobytes()):
        assert np.asarray(ours.encode(form)).tobytes() == encoded.tobytes()
    for form in (encoded, encoded.tobytes()):
        assert np.asarray(ours.decode(form)).tobytes() == theirs.decode(encoded).tobytes()


def test_an_option_for_each_element_is_applied_to_the_whole():
    """numcodecs takes a list where it asks for a number; blocks of it would be other elements'."""
    count = 2 * BLOCK
    values = np.arange(count, dtype="<f8")
    options = {"id": "fixedscaleoffset", "scale": 2, "dtype": "<f8", "offset": list(range(count))}
    assert not _bound("<f8", count, options).encode(values).any()
    with pytest.raises(StoreError, match="cannot encode"):
        _bound("<f8", count, {**options, "offset": list(range(BLOCK))}).encode(values)


@pytest.mark.parametrize(("dtype", "options"), CASES)
def test_data_of_another_size_are_refused(dtype, options):
    """Neither a block less nor a byte more."""
    count = 3 * BLOCK
    bound = _bound(dtype, count, options)
    encoded = np.asarray(bound.encode(np.zeros(count, dtype))).tobytes()
    for damaged in (encoded[: len(encoded) // 3], encoded + b"\0"):
        with pytest.raises(FailedPreconditionError):
            bound.decode(damaged)


def test_steps_take_the_memory_of_blocks():
    """Beside the result of each direction there is little, and that is what the codec says it takes."""
    count = 1 << 20  # what is computed is eight times as large as what is stored
    options = {"id": "fixedscaleoffset", "offset": 0, "scale": 1, "dtype": "|u1", "astype": "|u1"}
    bound = _bound("|u1", count, options)
    assert bound.scratch_size == BLOCKS_BYTES
    values = np.zeros(count, "u1")
    for run in (bound.encode, bound.decode):
        tracemalloc.start()
        try:
            run(values)
            assert tracemalloc.get_traced_memory()[1] < count + BLOCKS_BYTES + 100_000
        finally:
            tracemalloc.stop()
