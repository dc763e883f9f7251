"""Copies between strided arrays, in whichever order they are made."""

import random

import numpy as np
import pytest

from fsstore.codec import buffers
from fsstore.codec.buffers import copy_elements

_DTYPES = ("u1", "<u2", ">i4", "<f8", "c16", "S3", "M8[s]", "i1,>f8", "V5", "O")


def _view_of(dice, dtype, shape, rest):
    """Return an array of a shape within a larger one, its dimensions in any order in memory and any direction."""
    order = dice.sample(range(len(shape)), len(shape))
    around = [size + dice.choice((0, 0, 1, 3)) for size in shape]
    memory = np.empty([around[axis] for axis in order], dtype).transpose(np.argsort(order))
    memory[...] = rest
    view = memory[(*(slice(0, size) for size in shape), ...)]
    return memory, view[(*(slice(None, None, dice.choice((1, 1, 1, -1))) for _ in shape), ...)]


def _values(dice, dtype, shape):
    size = int(np.prod(shape))
    if dtype == "O":
        return np.array([dice.random() for _ in range(size)], object).reshape(shape)
    return np.frombuffer(dice.randbytes(size * np.dtype(dtype).itemsize), dtype).reshape(shape)


@pytest.mark.parametrize("seed", range(300))
def test_every_element_comes_where_it_belongs_and_nothing_else_changes(seed, tune):
    """Random shapes, types, byte orders and layouts, beside an assignment by NumPy."""
    tune("codec.buffers", ROWS_COPIED_FROM=2, CACHE_BYTES=32, CACHE_STRIDE=8, STRIP_ELEMENTS=3)
    dice = random.Random(seed)
    shape = tuple(dice.choice((1, 1, 2, 3, 5, 8)) for _ in range(dice.randint(0, 4)))
    dtype = dice.choice(_DTYPES)
    source = _view_of(dice, dtype, shape, _values(dice, dtype, (1,))[0])[1]
    source[...] = _values(dice, dtype, shape)
    other = np.dtype(dtype).newbyteorder(dice.choice(("=", "S"))) if dice.random() < 0.2 else dtype
    before = _values(dice, other, (1,))[0]
    memory, target = _view_of(dice, other, shape, before)
    copy_elements(target, source)
    assert target.tobytes() == source.astype(other).tobytes()
    target[...] = before
    clean = np.empty_like(memory)
    clean[...] = before
    assert memory.tobytes() == clean.tobytes()


def test_an_array_without_dimensions_and_one_that_broadcasts_are_copied(tune):
    """Neither has rows."""
    tune("codec.buffers", ROWS_COPIED_FROM=2)
    target = np.zeros((2, 3))
    copy_elements(target, np.arange(3.0))
    assert target.tolist() == [[0, 1, 2]] * 2
    copy_elements(target, np.float64(7))
    assert (target == 7).all()
    alone = np.zeros(())
    copy_elements(alone, np.float64(7))
    assert alone == 7


@pytest.mark.parametrize(
    ("shape", "source", "units"),
    [
        ((8, 9, 5), np.s_[:, :, :], "V20"),  # short rows
        ((8, 9, 5, 1), np.s_[...], "V20"),  # a last dimension of one
        ((200, 5), np.s_[:, ::2], "<i4"),  # elements that do not follow each other
        ((4, 300), np.s_[...], "<i4"),  # long rows
        ((8, 9, 5, 3), np.s_[...], "V60"),  # two dimensions that make one row
    ],
)
def test_short_rows_are_copied_as_elements(shape, source, units, monkeypatch, tune):
    """The copies that NumPy is asked for have the type of a row only where that is less work."""
    tune("codec.buffers", ROWS_COPIED_FROM=4)
    chunk = np.arange(int(np.prod(shape)), dtype="<i4").reshape(shape)[source]
    room = list(chunk.shape)
    room[1] += 1
    if len(shape) > 2:
        target = np.zeros(room, "<i4")[:, :-1]
        target = np.zeros((*room[:2], room[2] + 1, *room[3:]), "<i4")[:, :-1, :-1]
    else:
        target = np.zeros(room, "<i4")[:, :-1]
    seen = []

    def copyto(to, values, casting):
        seen.append(to.dtype.str.lstrip("|"))
        to[...] = values

    monkeypatch.setattr(buffers.np, "copyto", copyto)
    copy_elements(target, chunk)
    assert seen == [units]
    assert (target == chunk).all()


def test_an_array_may_be_copied_onto_its_own_transpose():
    """Sides that share memory are not copied in strips, of which one would change the next."""
    square = np.arange(512 * 512, dtype="i4").reshape(512, 512)
    wanted = square.T.copy()
    copy_elements(square, square.T)
    assert (square == wanted).all()
