"""The shuffle filter: the bytes numcodecs makes, undone by ourselves."""

from __future__ import annotations

import numcodecs
import numpy as np
import pytest

from fsstore.codec.flat import FlatSpec
from fsstore.codec.numcodecs_v2 import Numcodec
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
