"""Copies into another data type: no value changes unless the caller says so, and the check compares with the source."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import fsstore as ts
from fsstore.errors import FailedPreconditionError, StoreError

NAN = float("nan")
CHANGED = [
    ("int16", [1, 300, -1], "uint8", (1,), "300"),
    ("int8", [1, 2, -1], "uint8", (2,), "-1"),
    ("int64", [0, 2**53 + 1], "float64", (1,), "9007199254740993"),
    ("uint64", [2**64 - 1, 1], "float64", (0,), "18446744073709551615"),
    ("uint64", [2**63, 1], "int64", (0,), "9223372036854775808"),
    ("float64", [1.0, 1.5], "int32", (1,), "1.5"),
    ("float64", [1.0, NAN], "int8", (1,), "nan"),
    ("float64", [2.0**63], "int64", (0,), "9.223372036854776e"),
    ("float64", [0.5, 0.1], "float32", (1,), "0.1"),
    ("float64", [1e300], "float32", (0,), "1e"),
    ("float32", [1.0, 257.0], "bfloat16", (1,), "257.0"),
    ("float32", [500.0], "float8_e4m3fn", (0,), "500.0"),
    ("complex128", [1, 1 + 2j], "float64", (1,), "(1+2j)"),
    ("int32", [0, 1, 2], "bool", (2,), "2"),
    ("ustring", ["abc", "abcd"], "U3", (1,), "'abcd'"),
    ("ustring", ["a", "ééé"], "S5", (1,), "'ééé'"),
    ("U8", ["abc", "abcdefgh"], "U4", (1,), "'abcdefgh'"),
    ("datetime64[ns]", [0, 10**9 + 1], "datetime64[s]", (1,), "1970-01-01T00:00:01.000000001"),
    ("datetime64[s]", [1, "NaT"], "int64", (1,), "NaT"),
]


def made(folder, kind, values, name="a", chunks=(1,)):
    """Return an array that holds values, and the values as NumPy has them."""
    native = ts.dtype(kind).numpy_dtype
    if native.hasobject:
        held = np.array(values, object)
    elif native.kind in "mM":
        held = np.array([np.array(each).astype(native) for each in values], native)
    else:
        held = np.array(values, native)
    place = {"driver": "zarr3", "kvstore": f"file://{folder}/{name}/"}
    array = ts.open(place, create=True, dtype=kind, shape=held.shape, chunk_layout=ts.ChunkLayout(chunk_shape=chunks))
    opened = array.result()
    opened[...] = held
    return opened, held


def same(one, other):
    """Whether two arrays hold the same values, not-a-number included."""
    return bool(np.all((one == other) | ((one != one) & (other != other))))


@pytest.mark.parametrize(("kind", "values", "wanted", "where", "shown"), CHANGED, ids=lambda each: str(each)[:20])
def test_a_value_that_would_change_ends_the_copy(tmp_path, kind, values, wanted, where, shown):
    """The error names the first place and value, and nothing is at the target."""
    array, _ = made(tmp_path, kind, values)
    with pytest.raises(FailedPreconditionError) as caught:
        ts.copy(array, tmp_path / "b", schema={"dtype": wanted}).result()
    assert f"The value at {where} is {shown}" in str(caught.value)
    assert 'casting="unsafe"' in str(caught.value)
    with pytest.raises(StoreError):
        ts.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/b/"}).result()


@pytest.mark.parametrize(("kind", "values", "wanted", "where", "shown"), CHANGED, ids=lambda each: str(each)[:20])
def test_the_rest_of_the_values_is_copied(tmp_path, kind, values, wanted, where, shown):
    """Values before the first that would change have a place in the other type, and the check finds them equal."""
    array, held = made(tmp_path, kind, values)
    left = array[: where[0]]
    ts.copy(left, tmp_path / "b", schema={"dtype": wanted}, verify="values").result()
    found = ts.open({"driver": "zarr3", "kvstore": f"file://{tmp_path}/b/"}).result().read().result()
    kept = held[: where[0]]
    assert same(found, (kept.real if kept.dtype.kind == "c" else kept).astype(found.dtype))


@pytest.mark.parametrize("memory", ["512MB", "2kB"])
def test_a_change_is_asked_for(tmp_path, memory):
    """`unsafe` gives what NumPy gives, in one pass and in two, and the check after it knows that this was asked for."""
    values = np.arange(-60, 4036).reshape(64, 64)
    array, held = made(tmp_path, "int16", values, chunks=(64, 1))
    wishes = {"dtype": "uint8", "chunks": (1, 64)}
    with pytest.raises(FailedPreconditionError, match=r"\(0, \d+\) is -"):
        ts.copy(array, tmp_path / "b", schema=wishes, max_memory=memory).result()
    ts.copy(array, tmp_path / "b", schema=wishes, max_memory=memory, casting="unsafe", verify="values").result()
    assert np.array_equal(ts.open(f"file://{tmp_path}/b/").result().read().result(), held.astype("u1"))


def test_numbers_are_rounded_when_asked(tmp_path):
    """`same_kind` rounds floating-point numbers to the nearest, and refuses those that would become infinite."""
    array, held = made(tmp_path, "float64", [0.1, NAN, np.inf, -0.0, 1e-320])
    ts.copy(array, tmp_path / "b", schema={"dtype": "float32"}, casting="same_kind", verify="values").result()
    found = ts.open(f"file://{tmp_path}/b/").result().read().result()
    assert found.tobytes() == held.astype("f4").tobytes()
    array[2] = 1e300
    with pytest.raises(FailedPreconditionError, match=r"\(2,\) is 1e\+300, and would become inf"):
        ts.copy(array, tmp_path / "c", schema={"dtype": "float32"}, casting="same_kind").result()
    with pytest.raises(FailedPreconditionError, match=r"is 0.1, and would become 0 "):
        ts.copy(array[:1], tmp_path / "d", schema={"dtype": "int32"}, casting="same_kind").result()


def test_an_update_checks_values(tmp_path):
    """The array that is there keeps its type, and values that it cannot hold are refused."""
    array, _ = made(tmp_path, "int16", [1, 2, 3])
    ts.copy(array, tmp_path / "b", schema={"dtype": "uint8"}).result()
    array[1] = -2
    with pytest.raises(FailedPreconditionError, match=r"\(1,\) is -2"):
        ts.copy(array, tmp_path / "b", if_exists="update").result()


def test_workers_check_values(tmp_path):
    """A worker that finds a value that would change ends the copy as the caller itself would."""
    array, _ = made(tmp_path, "int16", np.arange(250, 260))
    with ThreadPoolExecutor(2) as pool, pytest.raises(FailedPreconditionError, match=r"is 25[6-9], and would"):
        ts.copy(array, tmp_path / "b", schema={"dtype": "uint8"}, executor=pool).result()


def test_the_check_compares_with_the_source(tmp_path):
    """Values that were changed are found, though what they became is what a conversion makes of the source."""
    array, _ = made(tmp_path, "int16", [300, -1, 5, 256])
    ts.copy(array, tmp_path / "b", schema={"dtype": "uint8"}, casting="unsafe").result()
    found = ts.verify(tmp_path / "b", array).result()
    differing = [each.start for each in found.findings if each.kind == "differs"]
    assert differing == [(0,), (1,), (3,)]
    assert "44, not 300" in str(found)


def test_a_rule_is_known_by_name(tmp_path):
    """Another word than the three is refused."""
    array, _ = made(tmp_path, "int16", [1])
    with pytest.raises(ValueError, match='casting is "same_value"'):
        ts.copy(array, tmp_path / "b", casting="safe")


def test_the_command_line_refuses_too(tmp_path):
    """`fsstore copy --dtype` ends with an error, unless `--casting` says that values may change."""
    made(tmp_path, "int16", [300])
    command = [sys.executable, "-m", "fsstore", "copy", "a", "b", "--dtype", "uint8"]
    refused = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert refused.returncode != 0
    assert "The value at (0,) is 300, and would become 44" in refused.stderr
    asked = subprocess.run([*command, "--casting", "unsafe"], cwd=tmp_path, capture_output=True, check=False)
    assert asked.returncode == 0
    assert ts.open(f"file://{tmp_path}/b/").result().read().result().tolist() == [44]
