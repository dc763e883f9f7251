"""Fifty thousand calls with arguments of every kind: both libraries return, or raise the same class of exception.

Where they differ on purpose, `_EXPLAINED` says why; [differences](../reference/differences.md) lists it.
"""

from __future__ import annotations

import random
import warnings
from collections import Counter

import numpy as np
import pytest
import tensorstore
from wrong_calls import RETURNS, calls, outcome

import fsstore

# The causes of differences, each with what is meant: values, calls, what TensorStore does and what we do.
_OCTETS = ('b""', 'b"a"', r'b"\xff"', 'bytearray(b"a")', 'memoryview(b"a")', 'np.bytes_(b"a")', '(b"a", b"b")')
_UNORDERED = ("set()", "{1}", "{1, 2}", "frozenset([1])", "{1: 2}.keys()", "{}", "{1: 2}", '{"a": 1}', "iter([1, 2])")
_ROUNDED = (
    "1.5", "-0.0", "[1.5]", "np.float32(1.5)", "np.bool_(True)", 'np.datetime64("2020")', "decimal.Decimal(1)",
    "fractions.Fraction(1, 2)", "np.array([1.5])", "np.array([True, False])", "np.array([None])", "np.array([], int)",
    "timedelta(1)", 'np.array(["a"])', "np.array([1, 2])", "np.array([[1, 2]])",
)  # fmt: skip
_HUGE = ("2**63", "2**70", "-2**70")
_PATHS = ('"a"', '"abc"', '"int32"', 'np.str_("a")', '""')
_NONE = ("fill_value", "ts.array(x", "ts.json(")


def why(call: str, value: str, theirs: str, ours: str) -> str | None:
    """Return the reason of a difference, None if nothing explains it."""
    refused, accepted = "TypeError" in ours, theirs in (RETURNS, "ValueError", "IndexError")
    reasons = {
        "what is no such value is equal to none": " == x" in call or call.startswith("x in "),
        "the binding of TensorStore fails to convert": theirs == "RuntimeError",
        "an integer of more than 64 bits is said to be out of range": value in _HUGE and "ValueError" in ours,
        "what has no order gives no sizes or labels": value in _UNORDERED and refused and accepted,
        "octets are no text and no JSON": value in _OCTETS and refused and accepted,
        "numbers are not rounded to integers": value in _ROUNDED and refused and accepted,
        "half a character is told as text that cannot be": "ud800" in value,
        "a context may be described": "context=x" in call and "strip" not in call,
        "a store and a codec may be described": "kvstore=x" in call or "codec=x" in call,
        "results may be made by hand": "VirtualChunkedReadParameters" in call or "WriteFutures" in call,
        "elements may be text and times, and are JSON": any(name in call for name in _NONE),
        "an option more": "strip_context" in call,
        "reads of a batch wait for it": value == "ts.Batch()",
        "errors of a callback are printed": "callback" in call,
        "text without a scheme is a local path": value in _PATHS and ours == RETURNS,
        "a dictionary of octets is a store": '"driver": x' in call and value in _OCTETS,
        "an array of one element is that element": value == "np.array(1)",
        "a shape alone is a shape": call == "s.resize(x).result(timeout=2)",
        "NumPy's times are data types": value == 'np.dtype("M8[s]")',
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def _differences(chosen: list[tuple[str, str]]) -> tuple[Counter[str], list[str]]:
    """Return how many differences each reason explains, and those that nothing explains."""
    explained: Counter[str] = Counter()
    left = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for call, value in chosen:
            theirs, ours = (outcome(ts, call, value)[0] for ts in (tensorstore, fsstore))
            if theirs == ours or (theirs != RETURNS and theirs.split()[0] in ours.split()):
                continue
            reason = why(call, value, theirs if theirs == RETURNS else theirs.split()[0], ours)
            explained[reason or ""] += 1
            if reason is None:
                left.append(f"{call} with {value}: {theirs}, here {ours}")
    return explained, left


def test_some_calls():
    """Of two thousand, chosen by a seed, less than one in a hundred differ without a reason."""
    _, left = _differences(random.Random(33).sample(list(calls()), 2000))
    assert len(left) < 20, "\n".join(left)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_all_calls():
    """Of all, less than one in a hundred differ without a reason; every reason explains something."""
    every = list(calls())
    explained, left = _differences(every)
    assert len(left) < len(every) / 100, "\n".join(left)
    assert min(explained.values()) > 0


@pytest.mark.parametrize("name", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "int4"])
def test_floats_that_are_no_integers(name):
    """Floats beyond the range of the integers, infinite ones and NaN are refused and change nothing; others are cut."""
    nan, inf = float("nan"), float("inf")
    values = (
        1.5, -1.5, 300.5, 70000.5, 1e10, 1e20, -1e20, nan, inf, -inf, [1.5, nan], [1, inf], [1, 1e10], [1, 2.5], (1.5, nan),
        [2**63, 1], [2**63, -1], [nan, 2**63], np.float64(1.5),
    )  # fmt: skip
    for value in values:
        seen = []
        for ts in (fsstore, tensorstore):
            store = ts.array([1, 2], dtype=getattr(ts, name))
            try:
                store.write(value).result()
                said = "written"
            except (OverflowError, ValueError, TypeError) as error:
                said = type(error).__name__
            seen.append((said, store.read().result().tolist()))
        assert seen[0] == seen[1], value


@pytest.mark.parametrize("name", ["bool", "int8", "uint16", "int32", "float32", "int4", "complex64"])
def test_fill_values_in_arrays(name):
    """A fill value in an array of NumPy has to fit by its type, also in one without dimensions; a number by its value."""
    given = (
        np.array(300), np.array(float("nan")), np.array(1, "i1"), np.array(True), np.array([300, 300]), 300.5, 1e10,
        float("nan"), np.float64(300.5), np.int64(300),
    )  # fmt: skip
    for value in given:
        seen = []
        for ts in (fsstore, tensorstore):
            try:
                options = {"dtype": getattr(ts, name), "shape": [2], "fill_value": value}
                store = ts.open({"driver": "zarr3", "kvstore": "memory://"}, create=True, **options).result()
                seen.append(repr(store.read().result()))
            except (OverflowError, ValueError, TypeError) as error:
                seen.append(next(k for k in (OverflowError, ValueError, TypeError) if isinstance(error, k)))
        assert seen[0] == seen[1], value
