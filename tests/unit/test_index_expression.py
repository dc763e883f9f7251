"""Dimension expressions, and the mixin by which other objects are indexed."""

import pickle

import numpy as np
import pytest

from fsstore.errors import InvalidIndexError
from fsstore.index import DimExpression, DimSelection, Indexable, IndexTransform, d, newaxis


@pytest.mark.parametrize(
    "text",
    [
        "d[1]",
        "d[()]",
        "d[-1,'x',2:5,::2,1,2,3]",
        r"d['a\'b','\xc3\xa9']",
        "d['x',0].translate_to[3]",
        "d[0].translate_by[1,None].translate_backward_by[4]",
        "d[0].label['x','y']",
        "d[0].stride[2,3]",
        "d[0].transpose[::-1]",
        "d[0].diagonal",
        "d[0].mark_bounds_implicit[True]",
        "d[0].mark_bounds_implicit[True:False]",
        "d[0].mark_bounds_implicit[:False]",
        "d[0][3:5]",
        "d[0][None]",
        "d[0][...,]",
        "d[0].oindex[3:5,array([1, 2])]",
        "d[0].vindex[array([1, 2]),]",
        "d[0][1:3:5,2:4:5]",
    ],
)
def test_an_expression_prints_as_it_is_written(text):
    """`repr` gives back the source, and evaluating it an equal expression."""
    expression = eval(text.replace(r"\xc3\xa9", "é"), {"d": d, "array": np.array})
    assert repr(expression) == text
    assert pickle.loads(pickle.dumps(expression)) == expression
    assert isinstance(expression, DimExpression)


def test_selections_are_flattened_and_compared():
    """Sequences and selections nest; two selections are equal if they list the same."""
    assert repr(d[[0, 1], d[2, "x"]]) == "d[0,1,2,'x']"
    assert repr(d[np.array([1, 2])]) == "d[1,2]"
    assert d[0] == d[(0,)]
    assert d[0] != d[-1]
    assert d[0][3] != d[0][3,]
    assert d[0].oindex[[3]] == d[0].oindex[np.array([3])]
    assert isinstance(d[0], DimSelection)
    assert not isinstance(d[0].diagonal, DimSelection)


@pytest.mark.parametrize("wrong", [None, ..., 1.5, slice("a", "b"), d[0].diagonal, slice(0, 1, 0), 2**70])
def test_selections_of_something_else_are_type_errors(wrong):
    """Only numbers, labels, ranges and sequences of them select dimensions."""
    with pytest.raises(TypeError):
        d[wrong]


def test_nothing_here_can_be_iterated_for_ever():
    """Subscripts that accept any number are not iterable, so that `list` and unpacking fail at once."""
    for thing in (d, d[0], d[0].label, IndexTransform(1), IndexTransform(1).translate_by):
        with pytest.raises(TypeError):
            iter(thing)


def test_steps_follow_the_dimensions():
    """After a transpose, an index array or a new axis the next step acts on where the dimensions went."""
    t = IndexTransform(input_shape=[10, 20, 30], input_labels=["x", "y", "z"])
    assert t[d["z", "x"].transpose[0].translate_by[1, 2]].origin == (1, 2, 0)
    assert t[d["y"][[[1, 2], [3, 4]]].label["a", "b"]].input_labels == ("x", "a", "b", "z")
    assert t[d["z", "y"].vindex[[1, 2], :].label["a", "b"]].input_labels == ("a", "x", "b")
    assert t[d["z", "y"].oindex[[1, 2], [3, 4]].label["a", "b"]].input_labels == ("x", "b", "a")
    assert t[d[0, -1][newaxis].label["n", "m"]].input_labels == ("n", "x", "y", "z", "m")
    assert t[d["y", "x"].diagonal.label["q"]].input_labels == ("q", "z")
    assert t[d["y"][3]].input_labels == ("x", "z")
    with pytest.raises(InvalidIndexError, match="not valid in chained"):
        d[0].label["a"][None]


class Box(Indexable):
    """The smallest user of the mixin: it holds a transform and remembers assignments."""

    def __init__(self, transform, written=None):
        self.transform, self.written = transform, [] if written is None else written

    def _apply(self, change, *arguments):
        return Box(change(self.transform, *arguments), self.written)

    def _assign(self, value, change, *arguments):
        self.written.append((change(self.transform, *arguments).shape, value))

    def __repr__(self):
        return "Box"


def test_one_hook_gives_every_way_of_indexing():
    """`_apply` alone makes `[...]`, `oindex`, `vindex` and the operations on all dimensions return the same class."""
    box = Box(IndexTransform(input_shape=[10, 20]))
    views = [
        box[5:7],
        box.oindex[[1, 2], [3]],
        box.vindex[[1, 2], [3, 4]],
        box.translate_to[5],
        box.translate_by[1],
        box.translate_backward_by[1],
        box.label["x", "y"],
        box.mark_bounds_implicit[True],
        box.transpose([1, 0]),
        box.T,
        box[d[0].stride[2]],
        box[IndexTransform(2)],
        box[box.transform.domain],
    ]
    assert all(type(view) is Box for view in views)
    assert [view.transform.shape for view in views[:3]] == [(2, 20), (2, 1), (2,)]
    assert repr(box.translate_by) == "Box.translate_by"
    assert repr(box.oindex) == "Box.oindex"


def test_assignment_goes_through_its_own_hook():
    """`view[key] = value` and its modes reach `_assign`; objects without it refuse."""
    box = Box(IndexTransform(input_shape=[10, 20]))
    box[5:7] = 1
    box.oindex[[1, 2], [3]] = 2
    box.vindex[[1, 2], [3, 4]] = 3
    assert box.written == [((2, 20), 1), ((2, 1), 2), ((2,), 3)]
    with pytest.raises(TypeError, match="does not support item assignment"):
        IndexTransform(2)[5] = 1
