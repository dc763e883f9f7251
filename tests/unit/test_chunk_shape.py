"""Chunk shapes and divisors: bounded time for any input."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsstore.errors import StoreError
from fsstore.schema.chunk_shape import choose_one_grid, choose_read_write_grids, divisors, nearest_divisor
from fsstore.schema.layout_value import layout_from_json


@given(st.integers(1, 3000), st.integers(1, 4000))
def test_nearest_divisor(dividend, size):
    """The divisor is the nearest, the smaller of two."""
    found = [each for each in range(1, dividend + 1) if dividend % each == 0]
    assert divisors(dividend) == tuple(found)
    assert nearest_divisor(dividend, size) == min(found, key=lambda each: (abs(each - size), each))


@pytest.mark.parametrize(
    "number", [2**61 - 1, 2**62, (2**31 - 1) ** 2, 4611686014132420609, 3**39, 2**62 - 57, 614889782588491410]
)
def test_large_divisors(number):
    """Large primes, squares of primes and numbers with many divisors take well below a second."""
    begin = time.process_time()
    found = divisors(number)
    assert time.process_time() - begin < 2
    assert found[0] == 1
    assert found[-1] == number
    assert all(number % each == 0 for each in found)


sizes = st.one_of(st.none(), st.integers(-1, 2**62 - 2))
ratios = st.one_of(st.none(), st.floats(0, 1e308))
elements = st.one_of(st.none(), st.integers(0, 2**62 - 2))


@given(st.data(), st.integers(1, 4))
def test_any_constraints(data, rank):
    """Any constraints end with a chunk of at least one element, reads dividing writes, or a refusal."""
    json = {}
    for name in ("read_chunk", "write_chunk"):
        grid = json[name] = {
            "shape": data.draw(st.lists(sizes, min_size=rank, max_size=rank)),
            "aspect_ratio": data.draw(st.lists(ratios, min_size=rank, max_size=rank)),
        }
        if (count := data.draw(elements)) is not None:
            grid["elements"] = count
    domain = data.draw(st.lists(st.integers(0, 2**62 - 2), min_size=rank, max_size=rank))
    value = layout_from_json(json)
    try:
        read, write = choose_read_write_grids(value, domain)
        assert all(r >= 1 and w % r == 0 for r, w in zip(read, write, strict=True))
        assert min(choose_one_grid(value, domain), default=1) >= 1
    except StoreError as error:
        assert "chunk" in str(error)


def test_rank_zero():
    """A scalar array has the empty chunk shape."""
    value = layout_from_json({"rank": 0})
    assert choose_one_grid(value, ()) == ()
    assert choose_read_write_grids(value, ()) == ((), ())
