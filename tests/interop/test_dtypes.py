"""Data types against tensorstore 0.1.86."""

import ml_dtypes
import numpy as np
import pytest
import tensorstore

import fsstore as ts
from fsstore.values.dtypes import NAMES, dtype

SIZELESS = {"char", "byte"}
BEYOND = {"uint2", "uint4", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3"}  # of the registry of zarr


@pytest.mark.parametrize("name", sorted(NAMES))
def test_properties_agree(name):
    """Name, repr, NumPy type and Python type are TensorStore's; `char` and `byte` differ: they have a size."""
    ours, theirs = dtype(name), tensorstore.dtype(name)
    assert repr(ours) == repr(theirs)
    assert str(ours) == str(theirs)
    assert ours.to_json() == theirs.to_json()
    assert ours.type is theirs.type
    if name not in SIZELESS:
        assert ours.numpy_dtype == theirs.numpy_dtype


@pytest.mark.parametrize(
    "value",
    [int, float, complex, bool, str, bytes, np.int32, np.dtype(">i4"), np.longlong, np.ulonglong, np.bool_]
    + [np.bytes_, np.void, np.dtype("S1"), np.dtype("V"), "string", "foo", object, dict, np.str_]
    + [np.longdouble, np.dtype("U"), np.integer, 5, None, b"int32", np.float32(3)]
    + [getattr(ml_dtypes, name) for name in dir(ml_dtypes) if isinstance(getattr(ml_dtypes, name), type)],
    ids=repr,
)
def test_lookup_agrees(value):
    """The same values are accepted, with the same result, and refused with the same exception; a few more have a name."""
    if getattr(value, "__name__", "") in BEYOND:
        assert dtype(value).name == value.__name__
        return
    try:
        theirs = tensorstore.dtype(value).name
    except (TypeError, ValueError) as error:
        with pytest.raises(type(error)) as caught:
            dtype(value)
        if isinstance(error, ValueError):
            assert str(caught.value).partition("; did you mean")[0] == str(error)
        return
    assert dtype(value).name == theirs


@pytest.mark.parametrize(
    ("name", "value"),
    [("int32", 3.7), ("int32", "3"), ("int32", [1, 2]), ("int8", 300), ("uint8", -1), ("string", b"abc")]
    + [("ustring", "abc"), ("ustring", 5), ("json", {"a": (1, 2)}), ("json", object()), ("bool", 5)]
    + [("float32", "abc"), ("float32", 1 + 2j), ("complex64", 1 + 2j), ("int4", 3), ("bfloat16", [1]), ("char", b"x")],
)
def test_conversion_agrees(name, value):
    """Calling a type converts, or raises the exception, as TensorStore's does."""
    try:
        theirs = tensorstore.dtype(name)(value)
    except (TypeError, ValueError, OverflowError) as error:
        with pytest.raises(type(error)):
            dtype(name)(value)
        return
    ours = dtype(name)(value)
    assert type(ours) is type(theirs)
    np.testing.assert_array_equal(ours, theirs)


def test_text_for_octets_is_refused_with_the_way_out():
    """The type "string" holds octets; whoever writes text is told which type holds that."""
    octets = ts.array(np.array([b"a"], object), dtype="string")
    with pytest.raises(TypeError, match="expected bytes .* str found; encode it, or make the array with dtype str"):
        octets[...] = np.array(["a"], object)
