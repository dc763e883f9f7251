"""Whatever part of a value a store sends, a range read is exact or an error."""

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fsstore.errors import OutOfRangeError, UnavailableError
from fsstore.kvstore.client.credential import RangeAnswer, fit, range_header, range_of_header
from fsstore.kvstore.contract.driver import Read

VALUE = bytes(range(200))
PLACES = st.integers(0, 200)


@given(PLACES, PLACES, st.integers(-210, 210), st.none() | st.integers(0, 210), st.booleans())
def test_fit_is_exact(first, last, start, stop, known):
    """The answer equals the slice of the value, whatever was sent; otherwise an error says why."""
    if start < 0:
        stop = None
    low, high = min(first, last), max(first, last)
    read = Read("k", start, stop)
    begin = start + 200 if start < 0 else start
    end = 200 if stop is None else stop
    try:
        result = fit(RangeAnswer(VALUE[low:high], low, 200 if known else None, b"g"), read)
    except OutOfRangeError:
        assert not known or not 0 <= begin <= end <= 200
    except UnavailableError:
        assert not low <= begin < end <= high
    else:
        assert known or stop is not None or high == 200 or begin >= low
        if known or stop is not None:
            assert bytes(result.value) == VALUE[begin:end]


@given(PLACES, st.integers(1, 200), st.integers(0, 200), st.none() | st.integers(1, 200), st.integers(0, 400))
def test_part_of_another_place_is_asked_for_again(low, length, start, span, more):
    """A part that does not begin where it was asked to is no answer, whatever it says of the size of the value."""
    high = low + length
    assume(low > 0 or more > 0)  # all that there is may be sent for any part
    assume(not low <= start < high)
    read = Read("k", start, None if span is None else start + span)
    with pytest.raises(UnavailableError):
        fit(RangeAnswer(bytes(length), low, high + more, b"g"), read)


@given(st.integers(0, 10**12), st.integers(1, 10**9), st.none() | st.integers(0, 10**13))
def test_content_range_is_understood(start, length, total):
    """The header a proper server sends for our header parses to the range we asked for."""
    asked = range_header(Read("k", start, start + length))
    sent = asked.replace("=", " ") + "/" + ("*" if total is None else str(total))
    assert range_of_header(sent) == (start, start + length, total)
