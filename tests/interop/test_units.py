"""Units against tensorstore 0.1.86."""

import pytest
import tensorstore
from hypothesis import example, given
from hypothesis import strategies as st

from fsstore.values.units import Unit

pieces = st.lists(st.sampled_from(list("0123456789+-.eE nmx_\t") + ["inf", "nan", "0x", "é"]), max_size=9).map("".join)


@given(pieces)
@example("1e400 nm")
@example("1e-310 m")
@example("0e-400 m")
@example("1.5e3.5")
@example("5e+m")
def test_text_agrees(text):
    """Text is split into number and base unit as TensorStore does, and printed alike."""
    ours, theirs = Unit(text), tensorstore.Unit(text)
    assert (ours.multiplier, ours.base_unit) == (theirs.multiplier, theirs.base_unit)
    assert (repr(ours), str(ours), ours.to_json()) == (repr(theirs), str(theirs), theirs.to_json())


@given(st.floats(), st.sampled_from(["", "nm", '"', "4nm", " x "]))
def test_numbers_print_alike(multiplier, base_unit):
    """Multipliers print with six digits."""
    assert repr(Unit(multiplier, base_unit)) == repr(tensorstore.Unit(multiplier, base_unit))
    assert str(Unit(multiplier, base_unit)) == str(tensorstore.Unit(multiplier, base_unit))


@pytest.mark.parametrize("json", [None, [4], ["4", "nm"], [4, 5], [4, "nm", "x"], {}, True, 4, "4nm", [1, "m"]])
def test_json_agrees(json):
    """JSON is accepted or refused alike, with the same message."""
    try:
        theirs = tensorstore.Unit(json=json)
    except ValueError as error:
        with pytest.raises(ValueError) as caught:
            Unit(json=json)
        assert str(caught.value) == str(error)
        return
    assert repr(Unit(json=json)) == repr(theirs)
