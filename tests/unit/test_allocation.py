"""Memory for elements: where it begins, and what is said when there is none."""

import numpy as np
import pytest

import fsstore as ts
from fsstore.chunk.request import new_array
from fsstore.errors import ResourceExhaustedError

RECORD = np.dtype([("a", "<i4"), ("b", "<f8", (2,)), ("c", "u1")])


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["u1", ">u2", "f8", "c16", "M8[ns]", "S5", "V3", RECORD])
@pytest.mark.parametrize("shape", [(), (0, 4), (3, 5), (900, 7, 211)])
def test_new_arrays(shape, dtype, order):
    """They are as NumPy makes them, and large ones begin with a line of the cache."""
    plain = np.empty(shape, dtype, order=order)
    for _ in range(3):
        made = new_array(shape, np.dtype(dtype), order)
        assert (made.shape, made.dtype, made.strides) == (plain.shape, plain.dtype, plain.strides)
        assert made.flags.writeable
        assert made.flags.aligned
        if made.nbytes >= 1 << 20:
            assert made.ctypes.data % 64 == 0
    made[...] = plain
    assert made.tobytes() == plain.tobytes()


def test_new_arrays_of_objects():
    """Objects start as None, however many."""
    made = new_array((400, 500), np.dtype(object))
    assert made[0, 0] is made[399, 499] is None


@pytest.mark.parametrize("shape", [(2**62,), (2**40, 2**40), (2**62, 2**62, 2**62)])
def test_too_large(shape):
    """Whatever NumPy makes of the size, the error names the shape."""
    with pytest.raises(ResourceExhaustedError, match=str(shape[0])):
        new_array(shape, np.dtype("u2"))


@pytest.mark.parametrize("order", ["C", "F"])
def test_results_of_reads(order):
    """A large result begins with a line of the cache; it can be written to and kept like any other."""
    array = ts.open("memory://|zarr3:", create=True, dtype="uint16", shape=[300, 70, 60]).result()
    values = np.arange(300 * 70 * 60, dtype=np.uint16).reshape(300, 70, 60)
    array.write(values).result()
    found = array.read(order=order).result()
    assert found.ctypes.data % 64 == 0
    assert found.flags.c_contiguous if order == "C" else found.flags.f_contiguous
    np.testing.assert_array_equal(found, values)
    found[0, 0, 0] = 5
    assert array[0, 0, 0].read().result() == 0
