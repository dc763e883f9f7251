"""The delta filter: the bytes numcodecs makes, for what we do ourselves and for what is left to it."""

from __future__ import annotations

import numcodecs
import numpy as np
import pytest

from fsstore.codec.numcodecs.filters import BoundDelta, FlatSpec
from fsstore.codec.numcodecs.numcodecs_v2 import Numcodec
from fsstore.errors import FailedPreconditionError, JsonError


def _bound(dtype, count, **options):
    return Numcodec("delta", {"dtype": dtype, **options}).bind(FlatSpec(np.dtype(dtype), count, (count,)))


@pytest.mark.parametrize("dtype", ["|u1", "<u2", ">u2", "<i4", ">i8", "<u8", "<f2", ">f2", "<f4", ">f4", "<f8"])
@pytest.mark.parametrize("count", [1, 2, 1000, 3_000_000])
def test_differences_are_those_of_numcodecs(dtype, count):
    """Both directions, for numbers of every size and order, also where differences do not fit; in little memory too."""
    values = (np.random.default_rng(count).normal(size=count) * 1000).astype("i8").astype(dtype)
    theirs, ours = numcodecs.Delta(dtype), _bound(dtype, count)
    assert isinstance(ours, BoundDelta)
    encoded = theirs.encode(values).tobytes()
    for form in (values, values.tobytes(), memoryview(values.view("u1"))):
        assert ours.encode(form).tobytes() == encoded
    for form in (encoded, bytearray(encoded), np.frombuffer(encoded, dtype)):
        assert ours.decode(form).tobytes() == theirs.decode(np.frombuffer(encoded, dtype)).tobytes()


@pytest.mark.parametrize(("dtype", "options"), [("|b1", {}), ("<u2", {"astype": "|u1"}), ("<f4", {"astype": "<f8"})])
def test_what_changes_its_type_is_left_to_numcodecs(dtype, options):
    """The result is the same, whoever computes it."""
    values = np.array([1, 0, 1, 1, 0]).astype(dtype)
    theirs, ours = numcodecs.Delta(dtype, **options), _bound(dtype, 5, **options)
    assert not isinstance(ours, BoundDelta)
    assert np.asarray(ours.encode(values)).tobytes() == theirs.encode(values).tobytes()


def test_what_does_not_fit_is_refused():
    """Data of another size, and options that nobody knows."""
    with pytest.raises(FailedPreconditionError):
        _bound("<u2", 4).decode(bytes(6))
    with pytest.raises(JsonError):
        _bound("<u2", 4, step=2)


def test_nothing_has_no_differences():
    """A chunk without elements is encoded as nothing."""
    assert _bound("<u2", 0).encode(b"").tobytes() == _bound("<u2", 0).decode(b"").tobytes() == b""
