"""Where the two dialects coincide, indexing a transform selects what numpy selects; and composition is a law."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fsstore.errors import StoreError
from fsstore.index import ARRAY, CONSTANT, IndexDomain, IndexTransform, OutputIndexMap, compose, d


def coordinates(transform):
    """Return the output coordinates of every point of the domain, one array of the domain's shape for each."""
    domain = transform.domain
    where = np.indices(domain.shape, sparse=True)
    out = []
    for output in transform.maps:
        if output.method == CONSTANT:
            values = np.array(output.offset)
        elif output.method == ARRAY:
            values = output.offset + output.stride * output.index_array
        else:
            dim = output.input_dimension
            values = output.offset + output.stride * (where[dim] + domain.inclusive_min[dim])
        out.append(np.broadcast_to(values, domain.shape))
    return tuple(out)


def read(transform, array):
    """Return the elements of `array` that the transform selects."""
    return array[coordinates(transform)] if transform.maps else array


SHAPES = st.lists(st.integers(1, 5), min_size=1, max_size=4)


@st.composite
def basic_keys(draw, shape):
    """Draw ints, slices with steps, new axes and at most one ellipsis, within `shape`."""
    terms = []
    for size in shape[: draw(st.integers(0, len(shape)))]:
        if draw(st.booleans()):
            terms.append(draw(st.integers(0, size - 1)))
        else:
            start = draw(st.none() | st.integers(0, size - 1))
            stop = draw(st.none() | st.integers(start or 0, size))
            terms.append(slice(start, stop, draw(st.sampled_from([None, 1, 2, 3]))))
    for _ in range(draw(st.integers(0, 2))):
        terms.insert(draw(st.integers(0, len(terms))), None)
    if draw(st.booleans()):
        terms.append(Ellipsis)
    return tuple(terms)


@st.composite
def array_keys(draw, shape):
    """Draw index arrays that broadcast together, between slices."""
    joint = draw(st.lists(st.integers(0, 3), max_size=2))
    terms = []
    for size in shape:
        if draw(st.booleans()):
            terms.append(slice(None))
        else:
            flat = draw(st.lists(st.integers(0, size - 1), min_size=int(np.prod(joint)), max_size=int(np.prod(joint))))
            terms.append(np.array(flat, np.int64).reshape(joint))
    return tuple(terms)


@given(st.data(), SHAPES)
def test_basic_indexing_selects_what_numpy_selects(data, shape):
    """Ints, slices from the front, new axes and `...` give numpy's result, apart from the origin."""
    array = np.arange(np.prod(shape)).reshape(shape)
    key = data.draw(basic_keys(shape))
    np.testing.assert_array_equal(read(IndexTransform(input_shape=shape)[key], array), array[key])


@given(st.data(), SHAPES)
def test_reversed_slices_select_what_numpy_selects(data, shape):
    """Steps below zero, with any of their ends left out, give numpy's result on resizable domains too."""
    size = shape[0]
    start = data.draw(st.none() | st.integers(0, size - 1))
    stop = data.draw(st.none() | st.integers(0, size - 1 if start is None else start))
    key = slice(start, stop, data.draw(st.integers(-4, -1)))
    implicit = data.draw(st.booleans())
    transform = IndexTransform(input_shape=[size], implicit_upper_bounds=[implicit])[key]
    np.testing.assert_array_equal(read(transform, np.arange(size)), np.arange(size)[key])


@given(st.data(), SHAPES)
def test_index_arrays_select_what_numpy_selects(data, shape):
    """Index arrays between slices give numpy's result, the place of the new dimensions included."""
    array = np.arange(np.prod(shape)).reshape(shape)
    key = data.draw(array_keys(shape))
    np.testing.assert_array_equal(read(IndexTransform(input_shape=shape)[key], array), array[key])


@given(st.data(), SHAPES)
def test_outer_indexing_is_ix(data, shape):
    """`oindex` with one array for each dimension is `numpy.ix_`."""
    array = np.arange(np.prod(shape)).reshape(shape)
    key = tuple(data.draw(st.lists(st.integers(0, size - 1), max_size=4)) for size in shape)
    picked = read(IndexTransform(input_shape=shape).oindex[key], array)
    np.testing.assert_array_equal(picked, array[np.ix_(*(np.array(part, int) for part in key))])


@given(st.data(), SHAPES)
def test_a_mask_selects_what_numpy_selects(data, shape):
    """A boolean array over the first dimensions gives numpy's result."""
    array = np.arange(np.prod(shape)).reshape(shape)
    count = data.draw(st.integers(0, len(shape)))
    mask = (
        np.array(
            data.draw(
                st.lists(st.booleans(), min_size=int(np.prod(shape[:count])), max_size=int(np.prod(shape[:count])))
            )
        )
        .astype(bool)
        .reshape(shape[:count])
    )
    np.testing.assert_array_equal(read(IndexTransform(input_shape=shape)[mask], array), array[mask])


@given(st.data(), SHAPES)
def test_views_of_views_select_what_numpy_selects(data, shape):
    """Indexing a view made with index arrays, again and again, gives numpy's result."""
    array = np.arange(np.prod(shape)).reshape(shape)
    transform = IndexTransform(input_shape=shape)
    for make in (array_keys, basic_keys, array_keys):
        assume(array.size and array.ndim)
        key = data.draw(make(list(array.shape)))
        transform, array_before = transform[key], array
        array = array[key]
        assume(transform.domain.rank == array.ndim)
        transform = transform.translate_to[0] if transform.domain.rank else transform
        del array_before
    whole = np.arange(np.prod(shape)).reshape(shape)
    np.testing.assert_array_equal(read(transform, whole), array)


@st.composite
def affine(draw, rank_in, rank_out):
    """Draw a transform of unbounded domain with constant and affine maps."""
    maps = []
    for _ in range(rank_out):
        offset = draw(st.integers(-9, 9))
        if rank_in and draw(st.booleans()):
            maps.append(
                OutputIndexMap(draw(st.integers(0, rank_in - 1)), offset, draw(st.sampled_from([-3, -1, 1, 2])))
            )
        else:
            maps.append(OutputIndexMap(offset))
    return IndexTransform(rank_in, output=maps)


@given(st.data(), st.lists(st.integers(0, 3), min_size=4, max_size=4))
def test_composition_is_associative_and_maps_points(data, ranks):
    """`(f g) h` equals `f (g h)`, and its image of a point is f of g of h."""
    f, g, h = (data.draw(affine(ranks[i + 1], ranks[i])) for i in range(3))
    assert f[g][h] == f[g[h]]
    point = data.draw(st.lists(st.integers(-50, 50), min_size=ranks[3], max_size=ranks[3]))
    assert compose(h, compose(g, f))(point) == f(g(h(point)))


@given(st.data(), SHAPES)
def test_moving_keeps_the_image_of_every_point(data, shape):
    """After `translate_by` a point that has moved along maps as before; `translate_backward_by` undoes it."""
    offsets = [data.draw(st.integers(-20, 20)) for _ in shape]
    transform = IndexTransform(input_shape=shape)[d[0].stride[1]]
    point = [data.draw(st.integers(0, size - 1)) for size in shape]
    moved = transform.translate_by[offsets]
    assert moved([x + offset for x, offset in zip(point, offsets, strict=True)]) == transform(point)
    assert moved.translate_backward_by[offsets] == transform


@given(st.data(), SHAPES)
def test_json_and_pickle_bring_a_view_back(data, shape):
    """A view equals itself read back from its JSON, and from its pickle."""
    import pickle

    transform = IndexTransform(input_shape=shape)[data.draw(array_keys(shape))]
    assert IndexTransform(json=transform.to_json()).to_json() == transform.to_json()
    assert pickle.loads(pickle.dumps(transform)) == transform


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 5), st.integers(-5, 5), st.integers(0, 5)), max_size=3))
def test_intersection_and_hull_hold_the_points_they_must(sides):
    """The intersection holds the points in both boxes, the hull those in either."""
    a = IndexDomain(inclusive_min=[s[0] for s in sides], shape=[s[1] for s in sides])
    b = IndexDomain(inclusive_min=[s[2] for s in sides], shape=[s[3] for s in sides])
    both, either = a.intersect(b), a.hull(b)
    for mine, theirs, inner, outer in zip(a, b, both, either, strict=True):
        assert set(inner) == set(mine) & set(theirs)
        assert set(outer) >= set(mine) | set(theirs)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
        lambda x: (
            st.lists(x, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "input_rank",
                        "input_shape",
                        "input_inclusive_min",
                        "input_labels",
                        "output",
                        "offset",
                        "stride",
                        "input_dimension",
                        "index_array",
                        "index_array_bounds",
                    ]
                ),
                x,
                max_size=4,
            )
        ),
        max_leaves=8,
    )
)
def test_any_json_is_read_or_refused(value):
    """Whatever JSON comes, reading gives a transform or a `StoreError`, nothing else."""
    try:
        transform = IndexTransform(json=value)
    except StoreError:
        return
    assert IndexTransform(json=transform.to_json()) == transform


@pytest.mark.parametrize("size", [1_000_000])
def test_a_million_points_compose_without_a_loop(size):
    """Indexing by a million points, and reindexing the view, stays numpy work: no time of Python loops."""
    import time

    points = np.arange(size) % 100
    transform = IndexTransform(input_shape=[100, 100, 100])
    began = time.process_time()
    view = transform.vindex[points, points, points][points]
    assert time.process_time() - began < 1
    assert view.shape == (size,)
