"""Data types: names, equality, conversion, extension types, bad names."""

import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest
from numpy.lib import NumpyVersion

from fsstore.errors import StoreError
from fsstore.values import dtype_names
from fsstore.values.dtypes import NAMES, dtype, dtype_of

EXTENSIONS = [
    (np.dtype("M8[ns]"), "datetime64[ns]"),
    (np.dtype(">M8[10us]"), "datetime64[10us]"),
    (np.dtype("m8[D]"), "timedelta64[D]"),
    (np.dtype("M8"), "datetime64"),
    (np.dtype(">U8"), "U8"),
    (np.dtype("S8"), "S8"),
    (np.dtype("V4"), "V4"),
    (np.dtype([("a", "<i4"), ("b", ">f4", (2, 3))]), '[["a","<i4"],["b","<f4",[2,3]]]'),
    (np.dtype([("é", [("x", "S3")])]), '[["é",[["x","|S3"]]]]'),
]


@pytest.mark.parametrize("name", sorted(NAMES))
def test_names(name):
    """Every TensorStore type is an attribute, prints its name, pickles, copies and is found by NumPy."""
    found = getattr(dtype_names, name)
    assert found is dtype(name)
    assert repr(found) == str(found) == f'dtype("{name}")'
    assert found.to_json() == found.name == name
    assert pickle.loads(pickle.dumps(found)) == copy.deepcopy(found) == found
    assert np.dtype(found) == found.numpy_dtype
    assert np.zeros(2, found).dtype == found.numpy_dtype
    assert found.itemsize == found.numpy_dtype.itemsize > 0
    assert found.alignment >= 1
    assert not found.is_extension
    assert {name: 1}[found] == 1


@pytest.mark.parametrize(("numpy_dtype", "name"), EXTENSIONS)
def test_extension_types(numpy_dtype, name):
    """NumPy types that zarr stores have a name that gives them back; byte order is dropped, of fields too."""
    found = dtype(numpy_dtype)
    assert found.name == name
    assert found.is_extension
    assert dtype(name) == found == numpy_dtype
    assert hash(dtype(name)) == hash(found)
    assert pickle.loads(pickle.dumps(found)) == found
    assert dtype(name).numpy_dtype == found.numpy_dtype
    assert np.dtype(found).itemsize == numpy_dtype.itemsize


@pytest.mark.parametrize(
    "bad",
    ["foo", "", "M8[foo]", "U999999999999", "[", "[]", "[1]", '[["a"]]', '[["a",","]]']
    + ['[["a","O"]]', '[["a","i4",[99999999999]]]', '[["a","i4"],["a","i4"]]', "[" * 100_000, "int32\n"],
)
def test_bad_names(bad):
    """A name that is none is refused quickly with the name in the message."""
    with pytest.raises(StoreError, match="No TensorStore data type with name: "):
        dtype(bad)


@pytest.mark.parametrize(
    "bad", ["U0", object, dict, np.dtype("O"), np.dtype("U"), np.longdouble, np.dtype(("i4", (3,)))]
)
def test_bad_numpy_types(bad):
    """NumPy types without a counterpart are refused."""
    with pytest.raises(StoreError, match="No TensorStore data type corresponding to NumPy dtype: "):
        dtype(bad)


@pytest.mark.parametrize("bad", [5, None, np.float32(3), b"int32", np.array([1]), np.integer, ("a",)])
def test_what_is_no_type(bad):
    """Values that cannot name a type are a TypeError; NumPy before 2.3 warns of an abstract type instead."""
    warns = bad is np.integer and NumpyVersion(np.__version__) < "2.3.0"
    with pytest.raises(DeprecationWarning if warns else TypeError):
        dtype(bad)


def test_equality_never_raises():
    """Comparison with something that names no type is False, not an error."""
    assert dtype("int32") != "foo"
    assert dtype("int32") != 5
    assert dtype("int32") is not None
    assert dtype("int64") in [int]


def test_json_conversion():
    """`json(...)` normalises tuples and NumPy values and refuses what JSON cannot say."""
    assert dtype_names.json([1, (2, np.int32(3)), {"a": np.array([1.5])}]) == [1, [2, 3], {"a": [1.5]}]
    with pytest.raises(TypeError, match="Object 'object' does not support conversion to JSON"):
        dtype_names.json(object())
    with pytest.raises(OverflowError):
        dtype_names.json(2**64)
    with pytest.raises(TypeError):
        dtype_names.json({1: 2})


def test_extension_conversion():
    """Calling an extension type converts as NumPy does."""
    assert dtype("datetime64[D]")("2020-01-02") == np.datetime64("2020-01-02")
    assert dtype("U3")("abcdef") == "abc"


def test_ml_dtypes_is_lazy():
    """Importing the types does not import ml_dtypes."""
    code = "import sys, fsstore.values.dtype_names; sys.exit('ml_dtypes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_dtype_of_is_identity():
    """A dtype passes through."""
    assert dtype_of(dtype("json")) is dtype("json")
