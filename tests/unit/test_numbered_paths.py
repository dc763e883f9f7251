"""Blocks of arrays whose path ends in a number: every key of them is found, and no other key is taken for one."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import numpy as np
import pytest

from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.table.keys import Grid, split_one, tails
from fsstore.reference.table.table import ABSENT, Block, Rows, Table

GRIDS = [
    Grid("g/0", (20,), False, ".", False),
    Grid("g/1", (5, 4), False, ".", False),
    Grid("g/2", (5, 4), False, "/", False),
    Grid("7", (12,), False, ".", False),
    Grid("g/007", (12,), False, ".", False),
    Grid("g/12345678901234567890", (12,), False, ".", False),
    Grid("g/0.5", (4, 3), False, "/", False),
    Grid("g/0/c", (12,), False, "/", True),
    Grid("line\nbreak/3", (12,), False, ".", False),
    Grid("plain", (5, 4), False, ".", False),
]


def _table(grid: Grid, number, *, dense: bool) -> Table:
    """Return a table of one block, the offset of each row of which is the number of its chunk."""
    number = np.asarray(number, np.int64)
    rows = Rows(np.zeros(len(number), np.int32), number * 10, np.full(len(number), 10, np.int64))
    if dense:
        whole = Rows.absent(grid.count)
        whole.put(number, rows)
        block = Block(grid.family, grid.shape, None, whole)
    else:
        block = Block(grid.family, grid.shape, number, rows)
    return Table(["a.nc"], blocks={grid.family: block})


@pytest.mark.parametrize("dense", [True, False])
@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: ascii(grid.path))
def test_every_key_of_a_block_is_found(grid, dense):
    """Keys that are there are found one by one and together, those that are not are absent, as the listing says."""
    present = [each for each in range(grid.count) if each % 3]
    table = _table(grid, present, dense=dense)
    keys = grid.keys(np.arange(grid.count))
    want = [each * 10 if each % 3 else None for each in range(grid.count)]
    for shown in (table, replace(table, urls=["b.nc"]), pickle.loads(pickle.dumps(table)), copy.copy(table)):
        rows = shown.find(keys)
        assert [row[1] if row[0] != ABSENT else None for row in zip(*rows, strict=True)] == want
        one_by_one = [shown.find_one(key) for key in keys]
        assert [row.offset if row and row.url != ABSENT else None for row in one_by_one] == want
    listed = [key for names, _ in table.scan(KeyRange()) for key in names]
    assert listed == [keys[each] for each in present]


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: ascii(grid.path))
def test_no_other_key_is_taken_for_one(grid):
    """Keys outside the grid, of more or fewer numbers, of other separators or spellings are absent."""
    table = _table(grid, range(grid.count), dense=True)
    last = grid.key([size - 1 for size in grid.shape])
    first = grid.key((0,) * len(grid.shape))
    head = first[: -2 * len(grid.shape)]
    others = [
        grid.key(grid.shape), f"{first}/0", f"{first}.0", head, f"{head}/00", f"{head}/x", f"x{last}", f"{last}x",
        f"{head}/zarr.json", f"{head}/.zarray", "", "0",
    ]  # fmt: skip
    assert all(row is None or row.url == ABSENT for row in map(table.find_one, others))
    assert (table.find(others).url == ABSENT).all()


def test_blocks_of_both_kinds_stand_side_by_side():
    """A family that splits and the block of an array below it each answer their own keys."""
    level = _table(GRIDS[0], range(20), dense=True)
    whole = Block((b"/g", b"//"), (2, 2), None, Rows(*(np.full(4, 1, kind) for kind in ("i4", "i8", "i8"))))
    table = replace(level, urls=["a", "b"], blocks={**level.blocks, whole.family: whole})
    rows = table.find(["g/1/1", "g/0/9", "g/1/0", *(f"g/0/{each}" for each in range(10, 18)), "g/1/9"])
    assert rows.url.tolist() == [1, 0, 1, *[0] * 8, ABSENT]
    assert table.find_one("g/0/9").offset == 90


def test_the_last_of_all_tails_is_what_splitting_gives():
    """Taking as many numbers as there are is splitting; fewer leave the first ones to the path."""
    key = b"a/0/1.2"
    found = list(tails(key, 9))
    assert found == [((b"/a/0/1", b"."), [2]), ((b"/a/0", b"/."), [1, 2]), ((b"/a", b"//."), [0, 1, 2])]
    assert found[-1] == split_one(key)
    assert len(list(tails(key, 2))) == 2
