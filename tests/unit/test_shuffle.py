"""The shuffle filter puts the bytes of elements together as numcodecs does, whatever their number and width."""

from __future__ import annotations

import numpy as np
import pytest
from numcodecs import Shuffle

from fsstore.codec.contract import ByteSpec
from fsstore.codec.numcodecs.filters import BoundShuffle


@pytest.mark.parametrize("width", [1, 2, 3, 4, 8, 16, 17])
@pytest.mark.parametrize("count", [0, 1, 5, 2**13 - 1, 2**13, 2**16, 2**16 + 1, 200_003])
@pytest.mark.parametrize("start", [0, 1])
def test_elements_are_those_of_numcodecs(width: int, count: int, start: int) -> None:
    """At the numbers of elements from which on another way is taken too, and where memory is not aligned."""
    size = width * count
    data = np.random.default_rng(width + count).integers(0, 256, size + start, dtype="u1")[start:]
    bound = BoundShuffle(ByteSpec(size=size), width)
    wanted = bytes(Shuffle(width).decode(data.tobytes())) if size else b""
    out = np.zeros(size + start, "u1")[start:]
    assert bound.decode_into(data, out)
    assert out.tobytes() == wanted
    assert bytes(bound.decode(data.tobytes())) == wanted
    assert bytes(bound.encode(wanted)) == data.tobytes()


def test_elements_wider_than_blosc_has() -> None:
    """Elements of 300 bytes, which numcodecs cannot shuffle either."""
    elements = np.random.default_rng(0).integers(0, 256, (500, 300), dtype="u1")
    bound, out = BoundShuffle(ByteSpec(size=elements.size), 300), np.zeros(elements.size, "u1")
    assert bound.decode_into(np.ascontiguousarray(elements.T).tobytes(), out)
    assert np.array_equal(out.reshape(elements.shape), elements)


@pytest.mark.parametrize("size", [400, 4000, 40_000])
def test_parts_are_put_together_one_after_the_other(size: int) -> None:
    """Parts of one size are decoded into one array; others are refused."""
    parts = [np.random.default_rng(each).integers(0, 256, size, dtype="u1").tobytes() for each in range(3)]
    bound = BoundShuffle(ByteSpec(size=size), 4)
    out = np.zeros(3 * size, "u1")
    assert bound.decode_joined(parts, out)
    assert out.tobytes() == b"".join(bytes(Shuffle(4).decode(part)) for part in parts)
    assert not bound.decode_joined([parts[0], parts[1][:-4], parts[2]], out)
