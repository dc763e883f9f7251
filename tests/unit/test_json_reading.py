"""Reading JSON: located errors, all of them at once, and strictness about what is stored."""

from __future__ import annotations

import pytest

from fsstore import errors
from fsstore.values import json_value as _json


def test_all_problems_are_reported_with_their_place():
    """Every malformed member, bad position and unknown member is named in one error."""
    fields = _json.Fields({"shape": [1, -1, "x"], "level": True, "foo": 1})
    fields.take("shape", _json.array_of(_json.integer(0)))
    fields.take("level", _json.integer(0, 9))
    fields.require("name", _json.string)
    with pytest.raises(errors.JsonError) as caught:
        fields.finish()
    assert caught.value.problems == (
        'Error parsing object member "shape": Error parsing value at position 1: '
        "Expected integer in the range [0, 9223372036854775807], but received: -1",
        'Error parsing object member "shape": Error parsing value at position 2: '
        'Expected integer in the range [0, 9223372036854775807], but received: "x"',
        'Error parsing object member "level": Expected integer in the range [0, 9], but received: true',
        'Error parsing object member "name": Expected string, but member is missing',
        'Object includes extra members: "foo"',
    )


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b'{"a": 1, "a": 2}', "appears twice"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": Infinity}', "Infinity is not JSON"),
        (b'{"a": -1e999}', "-1e999 is too large a number"),
        (rb'{"a": "\ud800"}', "surrogates not allowed"),
        (b"{", "Expecting property name"),
        (b"\xff{}", "utf-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b"", "Expecting value"),
    ],
)
def test_stored_documents_are_strict(document, why):
    """Documents on which readers would disagree are refused with a reason."""
    with pytest.raises(errors.DataLossError, match="Invalid JSON.*" + why):
        _json.loads(document)


def test_lenient_documents_may_hold_nan_and_duplicates():
    """Attribute documents of other writers are read as those writers meant them."""
    value = _json.loads(b'{"a": NaN, "b": 1, "b": 2}', lenient=True)
    assert value["a"] != value["a"]
    assert value["b"] == 2


def test_escaped_pairs_are_characters():
    """Two halves of a character, escaped one by one, are that character."""
    assert _json.loads(rb'{"a": "\uD83D\uDE00"}') == {"a": "\U0001f600"}


def test_a_byte_order_mark_is_skipped():
    """Editors on Windows write one."""
    assert _json.loads(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


@pytest.mark.parametrize("good", [5, 5.0])
def test_integral_floats_are_integers(good):
    """`5.0` is an integer, `"5"` and `true` are not."""
    assert _json.integer()(good) == 5


@pytest.mark.parametrize("bad", ["5", True, 5.5, None, 2**63])
def test_other_values_are_not_integers(bad):
    """Only JSON numbers in range are integers."""
    with pytest.raises(errors.JsonError, match="Expected 64-bit signed integer"):
        _json.integer()(bad)


def test_quoting_escapes_bytes():
    """Strings in messages are ASCII; a hex digit after an escape is escaped too."""
    assert _json.quote('a"\n') == r'"a\"\n"'
    assert _json.quote("é") == r'"\xc3\xa9"'
    assert _json.quote("a\0b") == r'"a\x00\x62"'


def test_documents_are_written_compactly():
    """Sorted members, no spaces, Unicode as it is."""
    assert _json.dumps({"b": [1, 2.5], "a": "é"}) == '{"a":"é","b":[1,2.5]}'
