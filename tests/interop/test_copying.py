"""Writing one store to another, and what else may be written, as in tensorstore 0.1.86."""

import random

import numpy as np
import pytest
import tensorstore

import fsstore

LIBRARIES = (fsstore, tensorstore)
SPEC = {"driver": "zarr3", "kvstore": {"driver": "memory"}}
NUMBERS = (
    "bool int2 int4 int8 uint8 int16 uint16 int32 uint32 int64 uint64 float4_e2m1fn float8_e3m4 float8_e4m3fn"
    " float8_e4m3fnuz float8_e4m3b11fnuz float8_e5m2 float8_e5m2fnuz bfloat16 float16 float32 float64 complex64"
    " complex128"
).split()
NAMES = [*NUMBERS, "string", "ustring", "json"]
KINDS = (TypeError, NotImplementedError, ValueError)


def outcome(run):
    """Return what a step gives, or the kind of its error."""
    try:
        return run()
    except KINDS as error:
        return next(kind.__name__ for kind in KINDS if isinstance(error, kind))


def random_view(ts, rng, rank):
    """Return an array of five elements along each dimension and a view of it, labelled or not, moved or not."""
    whole = ts.open(SPEC, create=True, dtype="int32", shape=[5] * rank).result()
    whole.write(np.arange(5**rank, dtype="int32").reshape([5] * rank)).result()
    parts = []
    for _ in range(rank):
        low, size = rng.choice([0, 0, 1, 2]), rng.choice([1, 2, 3])
        parts.append(rng.choice([*[slice(low, low + size)] * 4, slice(None), slice(low, None)]))
    view = whole[tuple(parts)]
    if rng.random() < 0.5:
        labels = rng.sample(["a", "b", "c", "d"], rank)
        view = view.label[[label if rng.random() < 0.7 else "" for label in labels]]
    if rng.random() < 0.2:
        view = view.translate_by[[rng.randint(-3, 3) for _ in range(rank)]]
    return whole, view.T if rng.random() < 0.2 else view


def copied(ts, seed):
    """Return what an array holds after a random view of another was written to a random view of it."""
    rng = random.Random(seed)
    rank = rng.randint(0, 3)
    whole, target = random_view(ts, rng, rank)
    _, source = random_view(ts, rng, max(0, rank + rng.choice([0, 0, 0, -1, -2, 1])))
    try:
        target.write(source).result()
    except ValueError as error:
        return str(error).partition(" [")[0]
    return whole.read().result().tolist()


def test_dimensions_align():
    """Dimensions of two stores match by place or label, move and stretch, and are refused for the same reasons."""
    outcomes = [[copied(ts, seed) for ts in LIBRARIES] for seed in range(300)]
    assert [seed for seed, (ours, theirs) in enumerate(outcomes) if ours != theirs] == []
    assert sum(isinstance(ours, list) for ours, _ in outcomes) > 60
    assert sum(isinstance(ours, str) for ours, _ in outcomes) > 50


def one(ts, name, value=True):
    """Return a store of one element."""
    given = {"string": b"1", "ustring": "1"}.get(name, value)
    array = np.empty((1,), object) if name in ("string", "ustring", "json") else np.zeros(1, ts.dtype(name).numpy_dtype)
    array[0] = given
    return ts.array(array, dtype=name)


@pytest.mark.parametrize("source", NAMES)
def test_types_convert_where_nothing_is_lost(source):
    """A store is written to one of another type without a cast only if that type has all its values."""
    for target in NAMES:
        if (source, target) == ("float8_e5m2fnuz", "float16"):
            continue  # nothing is lost, but TensorStore refuses
        ours, theirs = (outcome(lambda ts=ts: one(ts, target, 0).write(one(ts, source)).result()) for ts in LIBRARIES)
        assert ours == theirs, target


@pytest.mark.parametrize("source", NAMES)
def test_types_cast(source):
    """A cast gives the same elements or is refused alike."""
    for target in NAMES:
        ours, theirs = (
            outcome(lambda ts=ts: one(ts, source).astype(target).read().result().tolist()) for ts in LIBRARIES
        )
        assert ours == theirs, target


@pytest.mark.parametrize("target", [name for name in NUMBERS if name.startswith(("bfloat", "float"))])
def test_large_integers_cast(target):
    """Integers of the upper half of 64 bits are large numbers of every float, not negative ones."""
    values = np.array([2**63, 2**64 - 1, 3], "uint64")
    ours, theirs = (ts.array(values).astype(target).read().result().tolist() for ts in LIBRARIES)
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize("value", [0.1, 1.5, -0.0, 1e20, 1e-7, 123456.789, 1e15, float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["float32", "float64", "complex128"])
def test_numbers_as_text(value, name):
    """Numbers are text of six digits."""
    ours, theirs = (ts.array(np.array([value], name)).astype("ustring").read().result().tolist() for ts in LIBRARIES)
    assert ours == theirs


@pytest.mark.parametrize("target", ["string", "ustring", "int8", "float64", "bool"])
@pytest.mark.parametrize(
    "source",
    [
        *(5, 1.5, True, np.int8(3), [1], np.array([1.5]), np.array([True]), np.array([1j])),
        *(np.array([7], object), np.array(["7"], object)),
    ],
    ids=repr,
)
def test_what_may_be_written(target, source):
    """Numbers are no text, and arrays of Python objects are no numbers; those of text are checked by their codec."""
    if getattr(source, "dtype", None) == np.dtype(object) and target in ("string", "ustring"):
        return
    ours, theirs = (outcome(lambda ts=ts: one(ts, target, 0).write(source).result()) for ts in LIBRARIES)
    assert ours == theirs


def test_a_part_is_copied_to_another_place():
    """The parts may begin at different places."""
    store = fsstore.array(np.arange(6, dtype="int32"))
    store[0:2] = store[4:6]
    assert store.read().result().tolist() == [4, 5, 2, 3, 4, 5]


@pytest.mark.parametrize("seed", range(60))
def test_a_store_is_read_into_memory(seed):
    """A store copied to a view of an array in memory stands there, whatever the view, and nothing else changes."""
    rng = random.Random(seed)
    found = []
    for ts in LIBRARIES:
        rng.seed(seed)
        rank = rng.randint(0, 3)
        memory = np.full([5] * rank, -1, "int32")
        target = ts.array(memory, write=True) if ts is fsstore else ts.array(memory)
        for axis in range(rank):
            low, step = rng.choice([0, 1, 2]), rng.choice([1, 2, -1])
            part = slice(low, low + 2) if step == 1 else slice(None, None, step)
            target = target[(*[slice(None)] * axis, part)]
        target = target.T if rng.random() < 0.4 else target
        if rank > 1 and rng.random() < 0.2:
            target = target.vindex[[0, 0], [0, 1]] if target.origin == (0,) * rank else target
        _, source = random_view(ts, rng, max(0, target.rank + rng.choice([0, 0, 0, -1])))
        if rng.random() < 0.5 and min(source.shape, default=0) > 1:
            source = source[tuple(slice(low, low + 2) for low in source.origin)]
        try:
            target.write(source).result()
        except ValueError as error:
            found.append(str(error).partition(" [")[0])
        found.append(memory.tolist())
    half = len(found) // 2
    assert found[:half] == found[half:]
