"""Units: text, arithmetic, JSON, storage without loss."""

import copy
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsstore.errors import JsonError, StoreError
from fsstore.values.units import Unit, merge_units, units_from_json, units_of

finite = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)


@given(finite, st.text(st.characters(codec="utf-8"), max_size=8).map(lambda text: text.strip(" \t\n\r\v\f")))
def test_text_loses_nothing(multiplier, base_unit):
    """`Unit(unit.text())` is the unit, to the last bit."""
    unit = Unit(multiplier, base_unit)
    assert Unit(unit.text()) == unit
    assert pickle.loads(pickle.dumps(unit)) == copy.deepcopy(unit) == unit
    assert Unit(json=unit.to_json()) == unit
    assert hash(Unit(unit.text())) == hash(unit)


def test_arithmetic():
    """A unit times or divided by a number is a unit."""
    assert Unit("3.5nm") * 2 == Unit(7, "nm")
    assert Unit("7nm") / 2 == Unit("3.5nm")
    assert (Unit("7nm") / 0).multiplier == float("inf")
    with pytest.raises(TypeError):
        Unit("4nm") * "x"
    with pytest.raises(TypeError):
        Unit("4nm") * Unit("4nm")


@pytest.mark.parametrize("bad", [None, (3,), ("3", "nm"), {}, b"nm", (3, "nm", 4), (3, None)])
def test_what_is_no_unit(bad):
    """Values that say no unit are a TypeError, in the constructor and in a list of units."""
    with pytest.raises(TypeError):
        Unit(bad)
    with pytest.raises(TypeError, match="Invalid dimension_units"):
        units_of([[bad]])


def test_lists_of_units():
    """Lists take None, are limited to 32 dimensions, and report every bad position of JSON."""
    assert units_of(["4nm", None, 3, (2, "um")]) == (Unit("4nm"), None, Unit(3), Unit("2um"))
    with pytest.raises(StoreError, match=r"Rank 33 is outside valid range \[0, 32\]"):
        units_of(["nm"] * 33)
    with pytest.raises(TypeError):
        units_of("4nm")
    with pytest.raises(JsonError) as caught:
        units_from_json(["nm", [1], True])
    assert len(caught.value.problems) == 2


def test_merge():
    """Units merge entry by entry; None takes the other side, a difference is refused."""
    nm, um = Unit("nm"), Unit("um")
    assert merge_units((nm, None), (None, um)) == (nm, um)
    with pytest.raises(StoreError, match=r'Cannot merge dimension units \["nm", null\] and \["um", "um"\]'):
        merge_units((nm, None), (um, um))
