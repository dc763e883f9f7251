"""Transforms: construction, text, JSON, points, composition, and the bounds a base implies."""

import copy
import itertools
import pickle

import numpy as np
import pytest

from fsstore.errors import InvalidIndexError, JsonError, OutOfRangeError, OutOfRangeIndexError, StoreError
from fsstore.index import (
    ARRAY,
    Dim,
    IndexDomain,
    IndexTransform,
    OutputIndexMap,
    OutputIndexMethod,
    compose,
    d,
    identity,
    inf,
    propagate_bounds,
)
from fsstore.index.interval import Bounds, strided_slice

T = IndexTransform(input_shape=[10, 20, 30], input_labels=["x", "y", "z"])
RESIZABLE = IndexTransform(input_shape=[10], implicit_upper_bounds=[True])


def test_a_transform_prints_as_tensorstore_prints_it():
    """The text names the domain and each output map, index arrays in braces on a line of their own."""
    view = IndexTransform(
        input_shape=[2, 3],
        input_labels=["x", ""],
        output=[
            OutputIndexMap(-3),
            OutputIndexMap(1, offset=-2, stride=-4),
            OutputIndexMap([[1, 2, 3]], offset=3, index_range=Dim(inclusive_min=1)),
        ],
    )
    assert repr(view) == (
        "Rank 2 -> 3 index space transform:\n"
        "  Input domain:\n"
        '    0: [0, 2) "x"\n'
        "    1: [0, 3)\n"
        "  Output index maps:\n"
        "    out[0] = -3\n"
        "    out[1] = -2 + -4 * in[1]\n"
        "    out[2] = 3 + 1 * bounded([1, +inf), array(in)), where array =\n"
        "      {{1, 2, 3}}\n"
    )


def test_planners_read_light_tuples():
    """`maps` holds tuples with read-only int64 arrays of the input rank; `is_identity` is told without comparing."""
    view = T[[1, 2], :, 5]
    array = view.maps[0].index_array
    assert (view.maps[0].method, view.maps[0].offset, view.maps[0].stride) == (ARRAY, 0, 1)
    assert view.maps[0].index_range == (0, 10)
    assert (array.dtype, array.shape, array.flags.writeable) == (np.int64, (2, 1), False)
    assert view.maps[1].input_dimension == 1
    assert view.maps[2].offset == 5
    assert (T.is_identity, view.is_identity, T[..., ::2].is_identity) == (True, False, False)
    assert identity(T.domain) == T


def test_the_caller_keeps_his_array():
    """An index array is copied: changing the caller's afterwards changes nothing."""
    points = np.array([1, 2, 3])
    view = T[points]
    points[:] = 0
    assert view.maps[0].index_array.ravel().tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "Must specify `input_rank`"),
        ({"input_rank": 40}, "Invalid input_rank: 40"),
        ({"input_rank": 1, "output": [OutputIndexMap(1, 0)]}, "Input dimension 1 specified for output dimension 0"),
        ({"input_rank": 1, "output": [OutputIndexMap()] * 33}, "exceeds maximum rank of 32"),
        ({"input_shape": [2], "output": [OutputIndexMap([1, 2, 3])]}, "does not match input_shape {2}"),
        ({"input_shape": [2], "output": [OutputIndexMap([[1]])]}, "has rank 2 but must have rank 1"),
        (
            {"input_shape": [2], "implicit_upper_bounds": [True], "output": [OutputIndexMap([1, 2])]},
            "depends on input dimension 0 with implicit bounds",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(arguments, message):
    """The error names the output dimension and what does not fit."""
    with pytest.raises(StoreError) as raised:
        IndexTransform(**arguments)
    assert message in str(raised.value)


@pytest.mark.parametrize("arguments", [([1.5],), (["a"],), (None,), (2**64,), (np.array([1], np.uint64),)])
def test_output_maps_refuse_what_is_no_integer(arguments):
    """Index arrays and offsets are 64-bit integers; floats are not truncated."""
    with pytest.raises(TypeError):
        OutputIndexMap(*arguments)


def test_output_maps_are_a_sequence():
    """`output` has a length, indices, slices and iteration, and compares with any sequence of maps."""
    output = T[5, ::2].output
    assert (len(output), output.rank) == (3, 3)
    assert repr(output[0]) == "OutputIndexMap(offset=5)"
    assert repr(output[-2]) == "OutputIndexMap(offset=0, stride=2, input_dimension=0)"
    assert output == list(output) == output[:]
    assert output[0].method is OutputIndexMethod.constant
    assert (output[0].stride, output[0].input_dimension, output[0].index_array, output[0].index_range) == (None,) * 4
    with pytest.raises(IndexError, match="Index 3 is outside valid range"):
        output[3]


def test_points_are_mapped_and_checked():
    """A point maps through every kind of map; explicit bounds and index ranges are checked, implicit ones are not."""
    view = IndexTransform(input_shape=[3], output=[OutputIndexMap([4, 5, 6], 1, 2, Dim(6)), OutputIndexMap(0, 7)])
    assert view([1]) == (11, 8)
    with pytest.raises(OutOfRangeError, match="Index 6 is outside valid range"):
        view([2])
    with pytest.raises(OutOfRangeError, match="Index 3 is not contained in the domain"):
        view([3])
    assert RESIZABLE([11]) == (11,)
    with pytest.raises(StoreError, match="length 2 cannot be used"):
        RESIZABLE([1, 2])
    with pytest.raises(TypeError):
        RESIZABLE([1.5])


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (-1, "Index -1 is outside valid range [0, 10)"),
        ((0, 20), "for dimension 1: Index 20 is outside valid range [0, 20)"),
        (slice(2, 50), "dimension 0: Slice interval [2, 50) is not contained within domain [0, 10)"),
        ([99], "Index 99 is outside valid range [0, 10)"),
        (IndexTransform(input_shape=[9, 9, 99]), "along dimension 2 of the view are out of bounds: only [0, 30) exist"),
        (inf, "Index 4611686018427387903"),
    ],
)
def test_what_lies_outside_raises_an_index_error(key, message):
    """The error is an `IndexError` and a `ValueError`, starts with OUT_OF_RANGE, and names dimension and bound."""
    with pytest.raises(OutOfRangeIndexError) as raised:
        T[key]
    assert str(raised.value).startswith("OUT_OF_RANGE: ")
    assert message in str(raised.value)
    assert isinstance(raised.value, ValueError)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ((0, 0, 0, 0), "requires 4 dimensions, and cannot be applied to a domain of rank 3"),
        ((Ellipsis, Ellipsis), "single ellipsis"),
        (1.5, "valid indices"),
        ("x", "valid indices"),
        ([1.0], "valid indices"),
        ([[1], [1, 2]], "valid indices"),
        (slice(None, None, 0), "Invalid stride 0"),
        (slice(5, 2), "do not specify a valid closed index interval"),
        (([1, 2], [1, 2, 3]), "Incompatible index array shapes"),
        (d[0], "Must specify at least one operation"),
        (d["q"].label["r"], 'Label "q" does not match one of {"x", "y", "z"}'),
        (d[0, "x"].label["a", "b"], "specified more than once"),
        (d[0].label["y"], 'Dimension label(s) "y" not unique'),
        (d["x"][None], "New dimensions cannot be specified by label"),
        (d[0, 1][1, 2, 3], "requires 3 dimensions but selection has 2"),
        (d[0].stride[0], "Stride must be non-zero"),
        (d[0].translate_by[inf], "is outside valid range"),
        ((None,) * 30, "Rank 33 is outside valid range [0, 32]"),
        (IndexTransform(2), "cannot be composed"),
    ],
)
def test_malformed_expressions_raise_an_index_error(key, message):
    """Each malformed expression is an `IndexError` that says what is wrong."""
    with pytest.raises(InvalidIndexError) as raised:
        T[key]
    assert message in str(raised.value)


@pytest.mark.parametrize("key", [slice(0, 2.0), slice("a"), 2**63, np.array([1], np.uint64), slice(2**63)])
def test_integers_that_are_none_raise_type_errors(key):
    """Parts of slices must be integers; integers must fit in 64 bits without a sign bit to spare."""
    with pytest.raises(TypeError):
        T[key]


def test_operations_on_all_dimensions_raise_plain_errors():
    """`label`, `translate_to`, `transpose` raise `StoreError`s that are no `IndexError`s."""
    for operation in (
        lambda: T.label["a"],
        lambda: T.translate_to[1, 2],
        lambda: IndexTransform(1).translate_to[1],
        lambda: T.transpose([0, 1]),
        lambda: T[[1, 2]].mark_bounds_implicit[True],
    ):
        with pytest.raises(StoreError) as raised:
            operation()
        assert not isinstance(raised.value, IndexError)
    with pytest.raises(TypeError):
        T.label[5]
    with pytest.raises(TypeError):
        T.translate_by["x"]


def test_reversed_slices_keep_the_right_sides_implicit():
    """A given end becomes explicit and an omitted one keeps its mark: `[3::-1]` holds four elements, not ten."""
    assert str(RESIZABLE[3::-1].domain) == "{ [-3, 1) }"
    assert str(RESIZABLE[:3:-1].domain) == "{ [-9*, -3) }"
    assert str(RESIZABLE[::-1].domain) == "{ [-9*, 1) }"
    assert RESIZABLE[0:0][::-1].domain.shape == (0,)
    empty = IndexTransform(input_shape=[0], implicit_upper_bounds=[True])
    assert empty[::-1].domain.shape == empty[::-1, None].domain.shape[:1] == (0,)


def test_resolving_replaces_implicit_bounds_and_checks_explicit_ones():
    """A base that has grown moves the implicit bounds of its views; explicit ones must still lie inside."""
    view = RESIZABLE[2:][::-1]
    assert str(view.domain) == "{ [-9*, -1) }"
    grown = propagate_bounds(IndexDomain([Dim(size=15, implicit_upper=True)]), view.maps, view.domain)
    assert str(grown) == "{ [-14*, -1) }"
    with pytest.raises(
        OutOfRangeError, match=r"along dimension 0 of the view are out of bounds: only \[0, 10\) exist"
    ) as raised:
        propagate_bounds(IndexDomain(shape=[10]), RESIZABLE[2:12].maps, RESIZABLE[2:12].domain)
    assert not isinstance(raised.value, IndexError)
    with pytest.raises(OutOfRangeError, match="Index 11"):
        compose(RESIZABLE[11], IndexTransform(input_shape=[10]))


def test_index_arrays_beyond_an_implicit_bound_wait_for_the_read():
    """Explicit bounds of the base end up in `index_range`; implicit ones are left to whoever reads."""
    assert RESIZABLE[[1, 99]].maps[0].index_range == (0, inf + 1)
    assert T[[1, 99]].maps[0].index_range == (0, 10)
    with pytest.raises(OutOfRangeIndexError, match="Index 99"):
        T[[1, 99]][1]


def test_views_of_index_arrays_are_indexed_by_numpy():
    """Slices, ints, new axes, reversal, diagonal and index arrays apply to index arrays of a view."""
    view = T.oindex[[1, 2, 3], [4, 5]]
    assert view[::-1, 1].maps[0].index_array.ravel().tolist() == [3, 2, 1]
    assert view[2, 0].maps[0].offset == 3
    assert view[:, None].maps[1].index_array.shape == (1, 1, 2, 1)
    assert view[[2, 0], [1, 0]].maps[1].index_array.ravel().tolist() == [5, 4]
    assert view[d[0, 1].diagonal].maps[0].index_array.ravel().tolist() == [1, 2]
    assert view.T.maps[0].index_array.shape == (1, 1, 3)
    with pytest.raises(OutOfRangeIndexError, match="In index array map for output dimension 0: Index 3"):
        view[[0, 3]]


def test_json_of_a_transform_comes_back():
    """Identity output, zero offsets and unit strides are left out; index bounds stay only where a value is outside."""
    view = T[[1, 2], 3, ::2]
    value = view.to_json()
    assert value == {
        "input_inclusive_min": [0, 0],
        "input_exclusive_max": [2, 15],
        "input_labels": ["", "z"],
        "output": [{"index_array": [[1], [2]]}, {"offset": 3}, {"input_dimension": 1, "stride": 2}],
    }
    assert IndexTransform(json=value).to_json() == value
    assert T[[1, 99]].to_json()["output"][0]["index_array_bounds"] == [0, 9]
    assert IndexTransform(2).to_json() == {"input_rank": 2}


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ({}, "Expected array"),
        ([5], "position 0: Expected object"),
        ([{"stride": 3}], "stride"),
        ([{"input_dimension": 9}], "Input dimension 9"),
        ([{"input_dimension": 0, "index_array": [1]}], "At most one of"),
        ([{"index_array": [[1, 2], [1]]}], "Expected array of shape {2, 2}"),
        ([{"index_array": [1, 2.5]}], "position {1}"),
        ([{"index_array": [1, 2], "index_array_bounds": [2, 0]}], "closed index interval"),
        ([{"index_array": [1, 2], "index_array_bounds": [2]}], "length 1 but should have length 2"),
        ([{"offset": "3"}], "64-bit signed integer"),
        ([{"foo": 3}], 'extra members: "foo"'),
        ([{}] * 33, "exceeds maximum rank"),
    ],
)
def test_malformed_output_json_is_refused_with_its_place(output, message):
    """Every malformed member of an output map is named in a `JsonError`."""
    with pytest.raises(JsonError, match="Error parsing index transform from JSON: ") as raised:
        IndexTransform(json={"input_shape": [2], "output": output})
    assert message in str(raised.value)


def test_offsets_that_overflow_are_refused():
    """Offsets and strides stay within 64 bits."""
    steep = IndexTransform(1, output=[OutputIndexMap(0, 0, 2**62)])
    for key in (d[0].translate_by[4], slice(8, 80, 4), d[0].stride[4]):
        with pytest.raises(InvalidIndexError, match="overflow"):
            steep[key]


def test_transforms_are_values():
    """Pickles and copies are equal; arrays compare by the values they spread; there is no hash."""
    view = T[[1, 2], :, 3]
    assert pickle.loads(pickle.dumps(view)) == copy.deepcopy(view) == view
    assert not pickle.loads(pickle.dumps(view)).maps[0].index_array.flags.writeable
    spread = [OutputIndexMap([[1, 1], [2, 2]]), OutputIndexMap([[1], [2]])]
    assert IndexTransform(input_shape=[2, 2], output=spread[:1]) == IndexTransform(
        input_shape=[2, 2], output=spread[1:]
    )
    assert view != T
    assert view != 5
    for value in (view, view.output, view.output[0]):
        with pytest.raises(TypeError):
            hash(value)


def _general(bounds: Bounds, key: slice):
    """What the rule for all slices says, or the text of its error."""
    try:
        return strided_slice(bounds, key.start, key.stop, key.step)
    except StoreError as error:
        return str(error)


def _indexed(bounds: Bounds, key: slice):
    """The same of a view."""
    try:
        domain = IndexDomain(
            inclusive_min=[bounds.low],
            exclusive_max=[bounds.high],
            implicit_lower_bounds=[bounds.implicit_low],
            implicit_upper_bounds=[bounds.implicit_high],
        )
        view = identity(domain)[key]
    except StoreError as error:
        return str(error).replace("Computing interval slice for dimension 0: ", "")
    return view.domain.bounds(0), view.maps[0].offset, view.maps[0].stride


def test_common_slices_are_what_the_rule_for_all_slices_says():
    """Bounds, implicit or not, finite or not; starts, stops and steps of both signs, given or left out."""
    flags = list(itertools.product([False, True], repeat=2))
    intervals = [(0, 7), (-5, 2), (3, 3), (-inf, 4), (2, inf + 1)]
    ends = [None, -6, -5, 0, 2, 3, 5, 7, 8]
    for (low, high), (first, last) in itertools.product(intervals, flags):
        bounds = Bounds(low, high, first, last)
        for start, stop, step in itertools.product(ends, ends, [None, 1, 2, 3, 8, -1, -2]):
            key = slice(start, stop, step)
            assert _indexed(bounds, key) == _general(bounds, key), (bounds, key)


def test_a_move_beyond_the_indices_is_refused():
    """The interval must stay within the indices there are; its offset must fit in 64 bits, also on the way there."""
    for view, move in [(T, 2**62), (T, -(2**62)), (T[::-1], 2**62)]:
        with pytest.raises(StoreError, match="outside valid range"):
            view.translate_by[move, 0, 0]
    steep = IndexTransform(input_shape=[3], output=[OutputIndexMap(0, 0, 2**62)])
    assert steep.translate_by[-1].maps[0].offset == 2**62
    for far in (3, 2**61):
        with pytest.raises(StoreError, match=r"overflow computing output offset for output dimension 0\."):
            steep.translate_by[far]
