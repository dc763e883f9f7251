"""The automatic choice of chunk shapes against tensorstore 0.1.86, which creates the arrays in memory."""

import random

import pytest
import tensorstore

from fsstore.errors import StoreError
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.chunk_shape import choose_one_grid, choose_read_write_grids
from fsstore.schema.layout_value import layout_from_json

S = (1000, 2000, 3000)
BOTH = ("zarr", "zarr3")
V3 = ("zarr3",)
V2 = ("zarr",)
N = None

# drivers, domain shape, constraints, chosen read shape, chosen write shape (None: refused)
PAIRS = [
    (BOTH, S, {}, (101, 101, 101), N),
    (BOTH, S, {"chunk_shape": [100, 200, 300]}, (100, 200, 300), N),
    (BOTH, S, {"chunk_aspect_ratio": [1, 2, 2]}, (64, 128, 128), N),
    (BOTH, S, {"chunk_aspect_ratio": [1, 2, 2], "chunk_elements": 2000000}, (79, 159, 159), N),
    (
        V3,
        S,
        {"chunk_aspect_ratio": [2, 1, 1], "read_chunk_elements": 2000000, "write_chunk_elements": 10**9},
        (200, 100, 100),
        (1000, 1000, 1000),
    ),
    (V3, S, {"read_chunk_shape": [64] * 3, "write_chunk_shape": [512] * 3}, (64,) * 3, (512,) * 3),
    (V3, (5,), {}, (5,), N),
    (V3, (0,), {}, (1,), N),
    (V3, (0, 5), {}, (1, 5), N),
    (V3, (10**7,), {}, (1048576,), N),
    (V3, (2**40,), {}, (1048576,), N),
    (V3, (1, 1, 10**7), {}, (1, 1, 1048576), N),
    (V3, (10, 10**6), {}, (10, 104857), N),
    (V3, (3000, 3000), {}, (1024, 1024), N),
    (V3, (1025, 1024), {}, (1024, 1024), N),
    (V3, (100, 100, 100), {}, (100, 100, 100), N),
    (V3, (200, 200, 200), {}, (101, 101, 101), N),
    (V3, (2048, 2048, 2048), {}, (101, 101, 101), N),
    (V3, (100,) * 4, {}, (32,) * 4, N),
    (V3, (50,) * 5, {}, (16,) * 5, N),
    (V3, S, {"chunk_elements": 1}, (1, 1, 1), N),
    (V3, S, {"chunk_elements": 1000}, (10, 10, 10), N),
    (V3, S, {"chunk_elements": 10**6}, (100, 100, 100), N),
    (V3, S, {"chunk_elements": 10**10}, S, N),
    (V3, (10, 2000, 3000), {"chunk_elements": 10**6}, (10, 316, 316), N),
    (V3, S, {"chunk_aspect_ratio": [1, 1, 0.1]}, (219, 219, 21), N),
    (V3, S, {"chunk_aspect_ratio": [10, 1, 1]}, (474, 47, 47), N),
    (V3, S, {"chunk_aspect_ratio": [0, 2, 0]}, (80, 161, 80), N),
    (V3, S, {"chunk_aspect_ratio": [N, 2, N]}, (80, 161, 80), N),
    (V3, S, {"chunk_shape": [64, N, N]}, (64, 128, 128), N),
    (V3, S, {"chunk_shape": [64, 0, -1]}, (64, 5, 3000), N),
    (V3, S, {"chunk_shape": [-1, -1, 1]}, (1000, 2000, 1), N),
    (V3, S, {"chunk_shape": [2000, 1, 1]}, (2000, 1, 1), N),
    (V3, S, {"chunk_shape_soft_constraint": [64] * 3}, (64,) * 3, N),
    (V3, S, {"chunk_shape_soft_constraint": [64] * 3, "chunk_elements": 100}, (64,) * 3, N),
    (V3, S, {"chunk_shape": [10, N, N], "chunk_elements": 1000}, (10, 10, 10), N),
    (V3, S, {"chunk_shape": [10, N, N], "chunk_elements": 5}, (10, 1, 1), N),
    (V3, S, {"write_chunk_shape": [512] * 3}, (64,) * 3, (512,) * 3),
    (V3, S, {"read_chunk_shape": [64] * 3}, (64,) * 3, (64,) * 3),
    (V3, S, {"write_chunk_shape": [500] * 3, "read_chunk_elements": 10**6}, (100,) * 3, (500,) * 3),
    (V3, S, {"write_chunk_shape": [97] * 3, "read_chunk_elements": 1000}, (1,) * 3, (97,) * 3),
    (V3, S, {"read_chunk_shape": [64] * 3, "write_chunk_elements": 10**8}, (64,) * 3, (448,) * 3),
    (V3, S, {"read_chunk_shape": [30] * 3, "write_chunk_shape": [64] * 3}, N, N),
    (V3, S, {"read_chunk_shape": [30] * 3, "write_chunk_shape_soft_constraint": [64] * 3}, (30,) * 3, (60,) * 3),
    (V3, S, {"read_chunk_shape_soft_constraint": [30] * 3, "write_chunk_shape": [64] * 3}, (32,) * 3, (64,) * 3),
    (
        V3,
        S,
        {"read_chunk_shape_soft_constraint": [30] * 3, "write_chunk_shape_soft_constraint": [64] * 3},
        (32,) * 3,
        (64,) * 3,
    ),
    (V3, S, {"read_chunk_elements": 1000}, (10,) * 3, (100,) * 3),
    (V3, S, {"write_chunk_elements": 10**7}, (101,) * 3, (202,) * 3),
    (V3, S, {"read_chunk_elements": 1000, "write_chunk_elements": 100}, (10,) * 3, (10,) * 3),
    (V3, S, {"read_chunk_shape": [1, N, N], "write_chunk_shape": [N, 512, 512]}, (1, 512, 512), (4, 512, 512)),
    (
        V3,
        S,
        {"write_chunk_aspect_ratio": [1, 1, 100], "read_chunk_elements": 4096, "write_chunk_elements": 10**6},
        (16, 16, 16),
        (16, 16, 2496),
    ),
    (V2, S, {"read_chunk_shape": [64, N, N], "write_chunk_shape": [N, 128, N]}, (64, 128, 128), N),
    (V2, S, {"read_chunk_elements": 1000}, (10, 10, 10), N),
    (V2, S, {"write_chunk_elements": 1000}, (10, 10, 10), N),
    (V2, S, {"read_chunk_elements": 1000, "write_chunk_elements": 2000}, N, N),
    (V2, S, {"read_chunk_elements_soft_constraint": 1000, "write_chunk_elements": 2000}, (12, 12, 12), N),
    (V2, S, {"chunk_shape_soft_constraint": [64] * 3, "write_chunk_shape": [10, 20, 30]}, (10, 20, 30), N),
]


def ours(driver, shape, layout):
    """Return read and write shape, or None where the constraints are refused."""
    try:
        value = layout_from_json(layout).with_rank(len(shape))
        if driver == "zarr3":
            return choose_read_write_grids(value, shape)
        return (choose_one_grid(value, shape),) * 2
    except StoreError:
        return None


def theirs(driver, shape, layout):
    """Return the same, from an array that TensorStore creates.

    Shapes that the format cannot store are an Ellipsis; any other refusal fails the test.
    """
    try:
        store = tensorstore.open(
            {"driver": driver, "kvstore": {"driver": "memory"}},
            create=True,
            dtype="uint8",
            shape=shape,
            chunk_layout=tensorstore.ChunkLayout(layout),
        ).result()
    except ValueError as error:
        if "more than 1073741824 entries" in str(error) or "exceeds limit" in str(error):
            return ...
        known = ("Incompatible chunk size", "not compatible with existing read_chunk", "hard constraint")
        assert any(text in str(error) for text in known), error
        return None
    return store.chunk_layout.read_chunk.shape, store.chunk_layout.write_chunk.shape


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_known_pairs(number):
    """The documented constraints give the documented shapes."""
    drivers, shape, keywords, read, write = PAIRS[number]
    layout = ChunkLayout(**keywords).to_json()
    expected = None if read is None else (read, write or read)
    for driver in drivers:
        assert ours(driver, shape, layout) == expected
        if max(shape) < 2**40:
            assert theirs(driver, shape, layout) == expected


def random_constraints(rng):
    """Return a domain shape and the JSON of a layout that fits it."""
    rank = rng.choice([1, 2, 3, 4])
    extent = rng.choice([10, 100, 1000, 10**4, 10**6])
    shape = tuple(rng.randrange(rng.choice([0, 1, 1]), extent) for _ in range(rank))
    layout = {}
    for name in ("chunk", "read_chunk", "write_chunk"):
        grid = layout.setdefault(name, {})
        for suffix in ("", "_soft_constraint"):
            if rng.random() < 0.25:
                sizes = [-1, 0, 1, 2, 3, 4, 6, 8, 12, 30, 64, 97, 100, 360, 5000]
                grid["shape" + suffix] = [rng.choice(sizes) if rng.random() < 0.4 else None for _ in range(rank)]
            if rng.random() < 0.25:
                grid["aspect_ratio" + suffix] = [rng.choice([0, 0.1, 0.5, 1, 2, 3, 7.5, 100]) for _ in range(rank)]
            if rng.random() < 0.2:
                grid["elements" + suffix] = rng.choice([0, 1, 10, 1000, 4096, 10**5, 10**6, 12345, 10**8, 10**10])
    return shape, layout


def check(driver, seed, count):
    """Compare until `count` constraint sets were accepted as a layout."""
    rng = random.Random(seed)
    done = accepted = 0
    while done < count:
        shape, layout = random_constraints(rng)
        try:
            tensorstore.ChunkLayout(layout)
        except ValueError:
            continue
        done += 1
        expected = theirs(driver, shape, layout)
        accepted += isinstance(expected, tuple)
        assert expected is ... or ours(driver, shape, layout) == expected, (shape, layout)
    return accepted


@pytest.mark.parametrize("driver", BOTH)
def test_random_constraints(driver):
    """Random constraints give TensorStore's shapes, or are refused by both."""
    assert check(driver, 3, 400) > 200


@pytest.mark.long
@pytest.mark.parametrize("driver", BOTH)
def test_many_random_constraints(driver):
    """The same for 5000 sets per driver."""
    check(driver, 4, 5000)
