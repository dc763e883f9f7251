"""Dimensions and domains: construction, limits, text, JSON, selection, intersection."""

import copy
import pickle

import numpy as np
import pytest

from fsstore.errors import InvalidIndexError, JsonError, OutOfRangeIndexError, StoreError
from fsstore.index import Dim, IndexDomain, IndexTransform, d, inf

A = IndexDomain(inclusive_min=[1, 2, 3], exclusive_max=[4, 5, 6], labels=["x", "y", ""])


@pytest.mark.parametrize(
    ("dim", "text", "representation"),
    [
        (Dim(), "(-inf*, +inf*)", "Dim()"),
        (Dim("x", implicit_upper=False), '"x": (-inf*, +inf)', 'Dim(implicit_upper=False, label="x")'),
        (Dim(5), "[0, 5)", "Dim(inclusive_min=0, exclusive_max=5)"),
        (Dim(5, "x"), '"x": [0, 5)', 'Dim(inclusive_min=0, exclusive_max=5, label="x")'),
        (Dim(2, 5), "[2, 5)", "Dim(inclusive_min=2, exclusive_max=5)"),
        (Dim(None, 5), "(-inf*, 5)", "Dim(exclusive_max=5)"),
        (Dim(inclusive_min=2, size=3), "[2, 5)", "Dim(inclusive_min=2, exclusive_max=5)"),
        (Dim(inclusive_min=2, inclusive_max=3), "[2, 4)", "Dim(inclusive_min=2, exclusive_max=4)"),
        (Dim(size=None), "[0, +inf*)", "Dim(inclusive_min=0)"),
        (Dim(size=5, implicit_upper=True), "[0, 5*)", "Dim(inclusive_min=0, exclusive_max=5, implicit_upper=True)"),
        (Dim(size=inf + 1), "[0, +inf)", "Dim(inclusive_min=0, implicit_upper=False)"),
    ],
)
def test_a_dim_prints_as_tensorstore_prints_it(dim, text, representation):
    """`str` and `repr` are TensorStore's for every way to give an interval."""
    assert (str(dim), repr(dim)) == (text, representation)


@pytest.mark.parametrize(
    "arguments",
    [
        {"inclusive_min": 5, "exclusive_max": 4},
        {"size": -1},
        {"inclusive_min": inf},
        {"inclusive_min": -inf - 1},
        {"exclusive_max": inf + 2},
        {"exclusive_max": -inf + 1},
        {"inclusive_min": 5, "inclusive_max": 3},
    ],
)
def test_an_impossible_interval_is_refused(arguments):
    """Reversed intervals and bounds outside the range of indices raise."""
    with pytest.raises(StoreError, match="do not specify a valid"):
        Dim(**arguments)


@pytest.mark.parametrize("arguments", [(1.5,), ("x", 5), (1, 2, 3), (2**63,), ([],)])
def test_arguments_of_wrong_type_are_type_errors(arguments):
    """What is no integer, label or known combination raises `TypeError`."""
    with pytest.raises(TypeError):
        Dim(*arguments)


def test_a_dim_tells_what_it_holds():
    """Size, membership of indices and intervals, iteration and flags follow from the bounds."""
    dim = Dim(2, 5)
    assert (dim.size, len(dim), list(dim), dim.empty, dim.finite) == (3, 3, [2, 3, 4], False, True)
    assert (dim.exclusive_min, dim.inclusive_max) == (1, 4)
    assert np.int64(4) in dim
    assert 5 not in dim
    assert Dim(3, 4) in dim
    assert Dim(3, 6) not in dim
    assert Dim(9, 9) in dim
    with pytest.raises(TypeError):
        _ = 1.5 in dim
    with pytest.raises(StoreError, match="Cannot iterate"):
        list(Dim())


def test_labels_and_flags_of_a_dim_can_be_set():
    """A `Dim` is changed in place, a copy of it is not, and neither is a domain made from it."""
    dim = Dim(5)
    domain, other = IndexDomain([dim]), copy.copy(dim)
    dim.label, dim.implicit_lower, dim.implicit_upper = "x", True, True
    assert str(dim) == '"x": [0*, 5*)'
    assert str(other) == str(domain[0]) == "[0, 5)"
    with pytest.raises(TypeError):
        dim.label = 5
    with pytest.raises(TypeError):
        hash(dim)


def test_intersection_and_hull_take_flags_with_the_bounds():
    """The flag of a bound comes from the side the bound came from; labels must agree."""
    a, b = Dim(0, 5, implicit_lower=True, label="x"), Dim(2, 9, implicit_upper=True)
    assert str(a.intersect(b)) == '"x": [2, 5)'
    assert str(a.hull(b)) == '"x": [0*, 9*)'
    with pytest.raises(StoreError, match="labels do not match"):
        a.hull(Dim("y"))


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"rank": 2}, "{ (-inf*, +inf*), (-inf*, +inf*) }"),
        ({"shape": [2, 3]}, "{ [0, 2), [0, 3) }"),
        ({"shape": [2], "inclusive_min": [4]}, "{ [4, 6) }"),
        ({"inclusive_min": [4], "implicit_lower_bounds": [True]}, "{ [4*, +inf*) }"),
        ({"inclusive_max": [4], "labels": ["x"]}, '{ "x": (-inf*, 5) }'),
        ({"labels": ["x", None]}, '{ "x": (-inf*, +inf*), (-inf*, +inf*) }'),
        ({"rank": 0}, "{  }"),
    ],
)
def test_components_give_the_domain(arguments, text):
    """Each vector fills in what it says; the rest is implicit and infinite."""
    assert repr(IndexDomain(**arguments)) == text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Must specify `rank`"),
        ({"rank": 33}, "Invalid rank: 33"),
        ({"rank": -1}, "Invalid rank: -1"),
        ({"shape": [1, 2], "rank": 3}, "Rank specified by `shape` (2) does not match rank specified by `rank` (3)"),
        ({"shape": [1], "exclusive_max": [1]}, "Cannot specify both `exclusive_max` and `shape`"),
        ({"labels": ["x", "x"]}, 'Dimension label(s) "x" not unique'),
        ({"shape": [0] * 33}, "Rank 33 is outside valid range [0, 32]"),
    ],
)
def test_contradictions_are_named(arguments, message):
    """The error says which vectors disagree."""
    with pytest.raises(StoreError) as raised:
        IndexDomain(**arguments)
    assert str(raised.value) == message


@pytest.mark.parametrize("arguments", [{"shape": 5}, {"shape": ["1"]}, {"shape": [1.0]}, {"labels": "ab"}, {"foo": 1}])
def test_vectors_of_wrong_type_are_type_errors(arguments):
    """Vectors hold integers, booleans or labels; nothing is converted."""
    with pytest.raises(TypeError):
        IndexDomain(**arguments)


def test_dimensions_are_selected_by_number_label_and_range():
    """One number or label gives a `Dim`; several give the domain of those, in the order asked for."""
    assert A[0] == Dim(1, 4, label="x")
    assert A["y"] == Dim(2, 5, label="y")
    assert A[-1] == Dim(3, 6)
    assert repr(A["y", 0]) == repr(A[d["y", 0]]) == '{ "y": [2, 5), "x": [1, 4) }'
    assert repr(A[::-2]) == '{ [3, 6), "x": [1, 4) }'
    with pytest.raises(InvalidIndexError, match="Dimension index 5 is outside"):
        A[5]
    with pytest.raises(StoreError, match="specified more than once") as raised:
        A["y", 1]
    assert not isinstance(raised.value, IndexError)
    with pytest.raises(TypeError):
        A[1.5]


def test_a_domain_can_be_indexed_moved_and_restricted():
    """Expressions, transforms, other domains and the operations on all dimensions give domains."""
    assert repr(A[d["x"][2:3]]) == '{ "x": [2, 3), "y": [2, 5), [3, 6) }'
    assert repr(A.translate_to[0].label["a", "b", "c"]) == '{ "a": [0, 3), "b": [0, 3), "c": [0, 3) }'
    assert repr(A.T) == '{ [3, 6), "y": [2, 5), "x": [1, 4) }'
    assert repr(A[IndexDomain(inclusive_min=[2], shape=[1], labels=["y"])]) == '{ "x": [1, 4), "y": [2, 3), [3, 6) }'
    assert repr(A[IndexTransform(3)[3]]) == "{ [2, 5), [3, 6) }"
    with pytest.raises(OutOfRangeIndexError, match="Cannot slice target dimension 0"):
        A[IndexDomain(shape=[9, 9, 9])]


def test_json_leaves_out_what_says_nothing():
    """Implicit bounds are wrapped, infinite ones are words, and reading gives the same domain."""
    domain = IndexDomain([Dim("x"), Dim(7, 10), Dim(size=3, implicit_upper=True), Dim(implicit_lower=False)])
    value = domain.to_json()
    assert value == {
        "inclusive_min": [["-inf"], 7, 0, "-inf"],
        "exclusive_max": [["+inf"], 10, [3], ["+inf"]],
        "labels": ["x", "", "", ""],
    }
    assert IndexDomain(json=value) == domain
    assert IndexDomain(2).to_json() == {"rank": 2}
    assert IndexDomain(json={"inclusive_min": ["4"], "shape": [2]}) == IndexDomain([Dim(4, 6)])


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (5, "Expected object, but received: 5"),
        ({}, "At least one of"),
        ({"rank": 33}, "integer in the range [0, 32]"),
        ({"shape": [1], "exclusive_max": [1]}, "At most one of"),
        ({"shape": [1, 2], "labels": ["x"]}, "Array has length 1 but should have length 2"),
        ({"inclusive_min": [1.5]}, '64-bit signed integer or "-inf", but received: 1.5'),
        ({"inclusive_min": [[1, 2]]}, "array of size 1"),
        ({"inclusive_min": ["+inf"]}, 'received: "+inf"'),
        ({"labels": ["x", "x"]}, "not unique"),
        ({"rank": 1, "foo": 1}, 'extra members: "foo"'),
        ({"shape": [-1]}, "do not specify a valid sized"),
        ({"labels": ["x"] * 100_000}, "not unique"),
    ],
)
def test_malformed_json_is_refused_with_its_place(value, message):
    """Every malformed member is named in a `JsonError`."""
    with pytest.raises(JsonError, match=r"Error parsing index domain from JSON: ") as raised:
        IndexDomain(json=value)
    assert message in str(raised.value)


def test_a_domain_offers_numpy_slices():
    """`index_exp` selects the domain from a numpy array; negative bounds, which numpy counts from the end, raise."""
    assert IndexDomain([Dim(1, 3), Dim()]).index_exp == (slice(1, 3), slice(None))
    with pytest.raises(StoreError, match="negative bounds"):
        _ = IndexDomain([Dim(-1, 3)]).index_exp


def test_sizes_saturate():
    """The number of points never exceeds 2**63 - 1, and is 0 if a dimension is empty."""
    assert IndexDomain(3).size == 2**63 - 1
    assert IndexDomain(shape=[2**40, 2**40, 0]).size == 0
    assert IndexDomain(0).size == 1


def test_a_domain_is_pickled_compared_and_copied_by_value():
    """Pickles and copies are equal; labels and flags count in comparisons; there is no hash."""
    assert pickle.loads(pickle.dumps(A)) == copy.deepcopy(A) == A
    assert A.label["x", "y", "z"] != A != A.mark_bounds_implicit[True]
    assert A != 5
    with pytest.raises(TypeError):
        hash(A)
