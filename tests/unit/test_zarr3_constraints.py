"""The `metadata` member of specs: parsed once for equal members, and never shared between specs."""

import copy

import numpy as np
import pytest

import fsstore as ts
from fsstore.errors import JsonError
from fsstore.format import zarr3

METADATA = {
    "shape": [4, 6],
    "data_type": "float32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 3]}},
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
    "fill_value": "NaN",
    "attributes": {"a": [1, {"b": [True, 1.0]}]},
}


def spec(**changes):
    """Return a spec with members of the metadata changed."""
    return {"driver": "zarr3", "kvstore": "memory://", "metadata": {**copy.deepcopy(METADATA), **changes}}


def test_parsed_once(tune):
    """Equal members are parsed once; others are not taken for them."""
    zarr3.kept_constraints.cache_clear()
    for _ in range(3):
        assert ts.Spec(spec()).rank == 2
    assert zarr3.kept_constraints.cache_info().misses == 1
    assert ts.Spec(spec(shape=[4, 7])).domain.shape == (4, 7)
    assert zarr3.kept_constraints.cache_info().misses == 2
    tune("format", MAX_KEPT=10)
    assert ts.Spec(spec(shape=[4, 8])).domain.shape == (4, 8)
    assert zarr3.kept_constraints.cache_info().currsize == 2


def test_nothing_is_shared():
    """What is done to the JSON of one spec is not seen in another of equal JSON."""
    given = spec()
    first = ts.Spec(given)
    expected = copy.deepcopy(first.to_json())
    given["metadata"]["shape"].append(9)
    given["metadata"]["attributes"]["a"].clear()
    shown = first.to_json()
    shown["metadata"]["shape"].append(9)
    shown["metadata"]["attributes"]["a"][1]["b"].clear()
    assert ts.Spec(spec()).to_json() == expected


@pytest.mark.parametrize("attributes", [{"a": 1}, {"a": True}, {"a": 1.0}, {"a": "1"}, {"a": None}, {"a": [1]}])
def test_equal_values_of_other_types(attributes):
    """1, 1.0 and true are equal in Python and three values in JSON."""
    found = ts.Spec(spec(attributes=attributes)).to_json()["metadata"]["attributes"]
    assert repr(found) == repr(attributes)


@pytest.mark.parametrize("shape", [[4, True], [4, "6"], [4, 2.5]])
def test_refused_each_time(shape):
    """What is refused is refused again with the same words, also after its likeness was accepted."""
    ts.Spec(spec(shape=[4, 1]))
    told = set()
    for _ in range(2):
        with pytest.raises(JsonError, match="position 1") as caught:
            ts.Spec(spec(shape=shape))
        told.add(str(caught.value))
    assert len(told) == 1


def test_values_that_are_not_of_json():
    """Tuples are arrays, and subclasses are what they are made of, as without any cache."""

    class Size(int):
        """An integer of another class."""

    assert ts.Spec(spec(shape=(4, 6))).domain.shape == (4, 6)
    assert ts.Spec(spec(shape=[Size(4), Size(6)])).domain.shape == (4, 6)
    assert ts.Spec(spec(shape=np.array([4, 6]))).domain.shape == (4, 6)
    with pytest.raises(JsonError, match="shape"):
        ts.Spec(spec(shape=np.array(["4", "6"])))
