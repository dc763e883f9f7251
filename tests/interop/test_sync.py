"""`fsstore.sync`: arrays that are indexed as NumPy's are, and groups that wait by themselves."""

from __future__ import annotations

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as drawn

import fsstore as ts
import fsstore.sync as fs

VALUES = np.arange(5 * 4 * 3, dtype="i4").reshape(5, 4, 3)


def stored(values=VALUES, **options):
    """Return an array in memory of its own."""
    return fs.open("memory://a/", data=values, chunks=[2, 3, 2], context=ts.Context(), **options)


INDICES = st.one_of(
    drawn.basic_indices(VALUES.shape, allow_newaxis=True),
    drawn.integer_array_indices(VALUES.shape),
    st.lists(st.integers(-5, 4), max_size=4),
    drawn.arrays(bool, (5,)),
    drawn.arrays(bool, (5, 4, 3)),
    st.tuples(st.slices(5), st.lists(st.integers(-4, 3), min_size=1, max_size=3)),
)


@settings(max_examples=100, deadline=None)
@given(INDICES)
def test_a_selection_is_what_numpy_selects(index):
    """Negative positions and steps, slices beyond the end, new axes, lists and masks: values, shape and kind."""
    found, expected = stored()[index], VALUES[index]
    assert type(found) is type(expected)
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)
    assert np.shape(found) == np.shape(expected)


@settings(max_examples=60, deadline=None)
@given(INDICES)
def test_an_assignment_stores_what_numpy_would_keep(index):
    """One value is written to a selection, and a row of them where they broadcast."""
    array, expected = stored(), VALUES.copy()
    array[index] = -1
    expected[index] = -1
    np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("index", [5, -6, (0, 4), [5], [[-6]], (0, 0, 0, 0), np.ones(4, bool), "x", 1.5, [0.5]])
def test_what_numpy_refuses_is_an_index_error(index):
    """Nothing is read, and nothing is written."""
    array = stored()
    with pytest.raises(IndexError):
        array[index]
    with pytest.raises(IndexError):
        array[index] = 1
    with pytest.raises(IndexError):
        VALUES[index]


def test_numbers_are_stored_as_the_type_of_the_array():
    """Integers as floating-point numbers, wide ones as narrow ones; what would change is refused, and nothing written."""
    array = stored()
    array[0] = np.ones((4, 3), "i8")
    fs.open("memory://f/", mode="w", shape=(2,), dtype="f4")[:] = [1, 2]
    for wrong, kind in ((2**31, OverflowError), ([[2**31] * 3], OverflowError), ([0.5] * 3, TypeError)):
        with pytest.raises(kind):
            array[-1] = wrong
        with pytest.raises(kind):
            array.oindex[[-1]] = wrong
    assert np.array_equal(array[1:], VALUES[1:])
    small = fs.open("memory://u/", mode="w", shape=(3,), dtype="u1")
    small[:] = np.arange(3)
    assert small[:].tolist() == [0, 1, 2]
    with pytest.raises(OverflowError, match="from -1 to 1 do not fit into uint8"):
        small[:] = [0, 1, -1]


def test_grids_and_points_are_those_of_zarr(tmp_path):
    """`oindex` and `vindex` read and write what zarr-python's do, negative positions too."""
    ours = fs.open(tmp_path / "a.zarr", data=VALUES)
    theirs = zarr.open_array(tmp_path / "a.zarr", mode="r")
    grid, points = ([0, -1], slice(None), [1]), ([0, -1], [1, 2], [-1, 0])
    np.testing.assert_array_equal(ours.oindex[grid], theirs.oindex[grid])
    np.testing.assert_array_equal(ours.vindex[points], theirs.vindex[points])
    ours.oindex[grid] = 7
    ours.vindex[points] = [8, 9]
    np.testing.assert_array_equal(ours, theirs[:])
    assert theirs[0, 1, 2] == 8


def test_an_array_has_the_facts_of_numpy_and_zarr(tmp_path):
    """Shape, type, chunks, attributes, rows and text."""
    array = fs.open(tmp_path / "a.zarr", mode="w", shape=(6, 8), dtype="f4", chunks=(4, 8))
    assert (array.shape, array.ndim, array.size, array.nbytes, len(array)) == ((6, 8), 2, 48, 192, 6)
    assert (array.dtype, array.chunks) == (np.dtype("f4"), (4, 8))
    array.attrs["units"] = "K"
    assert fs.open(tmp_path / "a.zarr", mode="r").attrs["units"] == "K"
    array[-1] = np.arange(8)
    assert [float(row.sum()) for row in array] == [0, 0, 0, 0, 0, 28]
    assert repr(array).startswith("<Array file://")
    assert repr(array).endswith("(6, 8) float32, chunks (4, 8)>")
    assert "Chunks" in str(array.info)


def test_an_array_grows_and_shrinks(tmp_path):
    """Appends and new shapes are seen through the same handle, and by zarr-python."""
    array = fs.open(tmp_path / "a.zarr", data=np.arange(6).reshape(2, 3))
    assert array.append([[7, 7, 7]]) == (3, 3)
    assert array[-1].tolist() == [7, 7, 7]
    array.resize((1, 2))
    assert array[:].tolist() == zarr.open_array(tmp_path / "a.zarr", mode="r")[:].tolist() == [[0, 1]]


def test_an_array_that_begins_elsewhere_begins_at_zero():
    """Positions are counted from the first element, whatever coordinates it has."""
    store = ts.array(np.arange(4))[ts.d[0].translate_to[10]]
    assert fs.StoredArray(store)[[0, -1]].tolist() == [0, 3]


def test_groups_need_no_waiting(tmp_path):
    """Members are made, filled, found, listed, moved and deleted; zarr-python finds the same."""
    group = fs.open_group(tmp_path / "g.zarr", mode="a")
    group["t"] = np.arange(4)
    wind = group.create_array("deep/wind", shape=(2,), dtype="f4", dimension_names=["x"])
    wind[:] = 3
    group.create_group("empty", attributes={"a": 1})
    assert (list(group), len(group), "deep/wind" in group) == (["deep", "empty", "t"], 3, True)
    assert group["t"][-1] == group.array("t")[3] == 3
    assert group["deep"]["wind"][0] == group.subgroup("deep").array("wind")[-1] == 3
    assert group.subgroup("empty").attrs["a"] == 1
    assert list(group.arrays()) == ["t"]
    assert list(group.groups()) == ["deep", "empty"]
    assert group.require_array("deep/wind", shape=(2,), dtype="f4")[-1] == 3
    assert group.require_group("empty").attrs["a"] == 1
    group.move("t", "s")
    del group["empty"]
    assert group.consolidate() == []
    assert sorted(zarr.open_group(tmp_path / "g.zarr", mode="r").keys()) == ["deep", "s"]
    assert repr(group).endswith(": deep, s")
    assert "wind" in group.tree()


def test_a_member_of_another_kind_is_told(tmp_path):
    """`array` and `subgroup` say what is there instead; a name that is not there is a `KeyError`."""
    group = fs.open_group(tmp_path / "g.zarr", mode="a")
    group["deep/t"] = [1]
    with pytest.raises(TypeError, match="'deep' is a group and no array; its members are t"):
        group.array("deep")
    with pytest.raises(TypeError, match="'deep/t' is an array and no group"):
        group.subgroup("deep/t")
    with pytest.raises(KeyError):
        group["nothing"]
