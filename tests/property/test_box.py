"""Boxes within one chunk: planned the short way they select what NumPy selects, and what the long way would."""

from __future__ import annotations

import random

import numpy as np
import pytest

from fsstore.chunk.model import RegularAxis, VariableAxis
from fsstore.chunk.place import BoxPlacement, Placement, placement_of
from fsstore.chunk.planner import CellPlan, ChunkBox, ChunkBoxes, plan, plan_cells, plan_few
from fsstore.chunk.request import Affine, Constant, Indexed, maps_within, plan_maps
from fsstore.index import IndexDomain, IndexTransform, OutputIndexMap, compose, d
from fsstore.index.transform import identity


def random_view(rng):
    """Return the shape and axes of an array, a view of it, and the array that the view shows."""
    shape = [rng.randint(1, 12) for _ in range(rng.randint(0, 3))]
    axes = [
        RegularAxis(rng.randint(1, 6)) if rng.random() < 0.7 else VariableAxis([rng.randint(1, 5)] * 12) for _ in shape
    ]
    array = np.arange(1, 1 + int(np.prod(shape))).reshape(shape)
    implicit = [rng.random() < 0.1 for _ in shape]
    view = identity(IndexDomain(shape=shape, implicit_upper_bounds=implicit))
    shown = array
    for _ in range(rng.randint(0, 2)):
        if not view.ndim:
            break
        terms = []
        for size in shown.shape:
            low = rng.randrange(size)
            stop = rng.randint(low + 1, min(size, low + 3))
            terms.append(rng.choice([low, slice(low, stop), slice(low, stop), slice(low, stop, 2), slice(None)]))
        view = view[tuple(terms)]
        if view.ndim:
            view = view.translate_to[0]
        shown = shown[tuple(terms)]
        if rng.random() < 0.2:
            view, shown = view.T, shown.T
        if rng.random() < 0.2 and view.ndim < 3:
            view, shown = view[None], shown[None]
        if rng.random() < 0.2 and shown.ndim:
            view, shown = view.oindex[list(range(len(shown)))[::-1]], shown[::-1]
    return array, axes, view, shown


@pytest.mark.parametrize("seed", range(20))
def test_boxes_agree_with_numpy(seed):
    """A box is the elements that the view shows, in one chunk, covers it exactly when it is all of it, and is written."""
    rng = random.Random(seed)
    found = 0
    for _ in range(100):
        array, axes, view, shown = random_view(rng)
        within = maps_within(view, array.shape)
        if within is None:
            continue
        out = np.zeros(within[0], array.dtype)
        box = plan(within[1], out, axes)
        if not isinstance(box, ChunkBox):
            continue
        found += 1
        sizes = [axis.size(number) for axis, number in zip(axes, box.numbers, strict=True)]
        starts = [axis.start(number) for axis, number in zip(axes, box.numbers, strict=True)]
        chunk = np.zeros(sizes, array.dtype)
        part = array[tuple(slice(start, start + size) for start, size in zip(starts, sizes, strict=True))]
        chunk[tuple(map(slice, part.shape))] = part
        placement = BoxPlacement()
        target = placement.target(box)
        assert (target is not None) == (shown.shape == chunk.shape and shown.size == chunk.size)
        if target is not None:
            target[...] = chunk
        else:
            placement.copy_out(box, chunk)
        np.testing.assert_array_equal(out, shown)
        written = box.onto(-out)
        assert placement.source(written) is written.target
        changed = chunk.copy()
        placement.copy_in(written, changed)
        np.testing.assert_array_equal(changed, np.where(np.isin(chunk, shown), -chunk, chunk))
        first, stop = placement.span(box, chunk.shape, range(chunk.ndim))
        wanted = np.flatnonzero(np.isin(chunk, shown))
        assert (first, stop) == (wanted[0], wanted[-1] + 1)
    assert found > 20


@pytest.mark.parametrize("seed", range(10))
def test_every_such_box_is_recognised(seed):
    """What the long way finds to be one cell of slices and points, in order, is a box; nothing else is."""
    rng = random.Random(100 + seed)
    for _ in range(100):
        array, axes, view, _ = random_view(rng)
        maps = plan_maps(view, array.shape)
        request = plan_cells(maps, view.shape, axes)
        in_order = request.axes == tuple(range(view.ndim)) and not request.unused
        listed = any(output.index_array is not None for output in view.maps)
        steps = [output.stride for output in view.maps if output.stride]
        one = request.cell_count == 1 and request.basic and in_order and not listed and min(steps, default=1) > 0
        assert isinstance(plan(maps, np.empty(view.shape), axes), ChunkBox) == one


def chunk_of(array, axes, numbers):
    """Return a chunk of an array, zero where it reaches beyond the array."""
    spans = [(axis.start(number), axis.size(number)) for axis, number in zip(axes, numbers, strict=True)]
    part = array[tuple(slice(start, start + size) for start, size in spans)]
    chunk = np.zeros([size for _, size in spans], array.dtype)
    chunk[tuple(map(slice, part.shape))] = part
    return chunk


@pytest.mark.parametrize("seed", range(10))
def test_few_boxes_agree_with_the_cells_of_a_plan(seed):
    """A request over a few chunks has the same cells as boxes, in the same order, and they read and write the same."""
    rng = random.Random(400 + seed)
    found = together = 0
    for _ in range(100):
        array, axes, view, shown = random_view(rng)
        within = maps_within(view, array.shape)
        if within is None:
            continue
        shape, maps = within
        out, other = np.zeros(shape, array.dtype), np.zeros(shape, array.dtype)
        boxes, cells = plan_few(maps, out, axes, 8), plan_cells(maps, shape, axes)
        if isinstance(boxes, CellPlan):
            in_order = cells.axes == tuple(range(len(shape))) and not cells.unused
            steps = [output.step for output in maps if isinstance(output, Affine)]
            assert cells.cell_count > 8 or not (cells.basic and in_order and min(steps, default=1) > 0)
            continue
        found += isinstance(boxes, ChunkBoxes)
        assert boxes.cell_count == cells.cell_count == len(boxes.cells())
        assert boxes.chunks(None) == cells.chunks(None)
        place, usual = BoxPlacement(), Placement(cells, other)
        written = boxes.onto(-shown).cells()
        for box, sent, cell in zip(boxes.cells(), written, cells.cells(), strict=True):
            assert list(box.numbers) == list(cells.chunk_numbers(cell))
            chunk = chunk_of(array, axes, box.numbers)
            assert place.has_target(box) >= usual.has_target(cell)
            assert place.span(box, chunk.shape, range(chunk.ndim)) == usual.span(cell, chunk.shape, range(chunk.ndim))
            if place.has_target(box):
                place.target(box)[...] = chunk
            else:
                place.copy_out(box, chunk)
            changed = chunk.copy()
            place.copy_in(sent, changed)
            np.testing.assert_array_equal(changed, np.where(np.isin(chunk, shown), -chunk, chunk))
        np.testing.assert_array_equal(out, shown)
        covered = [box for box in written if box.covers]
        alike = [cell for cell in cells.cells() if usual.has_target(cell)]
        if len(covered) == len(alike) > 1:
            sizes = chunk.shape
            np.testing.assert_array_equal(
                placement_of(boxes.onto(-shown), -shown).blocks(covered, sizes),
                Placement(cells, -shown).blocks(alike, sizes),
            )
            together += 1
    assert found > 5
    assert together


@pytest.mark.parametrize("seed", range(20))
def test_what_lies_within_needs_no_composition(seed):
    """The short way to find where the positions of a view lie gives what the long way gives.

    That is also so where the array has been resized since, and where dimensions are marked as implicit by hand.
    """
    rng = random.Random(200 + seed)
    found = 0
    for _ in range(200):
        array, _, view, _ = random_view(rng)
        if view.ndim and rng.random() < 0.3 and all(output.index_array is None for output in view.maps):
            view = view.mark_bounds_implicit[rng.choice([slice(None, True), slice(True, None)])]
        extent = [max(0, size + rng.choice([0, 0, 0, 2, -1])) for size in array.shape]
        within = maps_within(view, extent)
        if within is None:
            continue
        found += 1
        bounded = compose(view, identity(IndexDomain(shape=extent)))
        shape, maps = within
        assert shape == bounded.shape
        for got, want in zip(maps, plan_maps(bounded, extent), strict=True):
            assert type(got) is type(want)
            if isinstance(got, Indexed):
                assert np.array_equal(np.broadcast_to(got.positions, shape), np.broadcast_to(want.positions, shape))
            else:
                assert got == want
    assert found > 50


def test_bounds_that_are_implicit_are_those_of_the_array():
    """A view of a resizable array ends where the array ends now; one of a diagonal at the nearer end."""
    array = identity(IndexDomain(shape=[4, 6], implicit_upper_bounds=[True, True]))
    assert maps_within(array[1:3], (4, 9)) == ((2, 9), [Affine(1, 1, 0), Affine(0, 1, 1)])
    assert maps_within(array[3].translate_by[2], (5, 3)) == ((3,), [Constant(3), Affine(0, 1, 0)])
    assert maps_within(array[d[0, 1].diagonal], (4, 6)) == ((4,), [Affine(0, 1, 0), Affine(0, 1, 0)])
    assert maps_within(array[1::3], (8, 6)) == ((3, 6), [Affine(1, 3, 0), Affine(0, 1, 1)])
    for view in (array[::-1], array[None], array.mark_bounds_implicit[True:]):
        assert maps_within(view, (4, 6)) is None


@pytest.mark.parametrize("seed", range(4))
def test_steps_to_an_end_that_is_implicit(seed):
    """Steps end where composing with the bounds of the array ends them, also those of a diagonal."""
    rng = random.Random(300 + seed)
    found = 0
    for _ in range(300):
        low = rng.randint(-6, 6)
        outputs = [
            OutputIndexMap(offset=rng.randint(-9, 9), stride=rng.randint(1, 5), input_dimension=0)
            for _ in range(rng.choice([1, 1, 2]))
        ]
        view = IndexTransform(
            input_inclusive_min=[low],
            input_exclusive_max=[low + rng.randint(0, 8)],
            implicit_upper_bounds=[True],
            output=outputs,
        )
        extent = [rng.randint(0, 20) for _ in outputs]
        within = maps_within(view, extent)
        if within is not None:
            found += 1
            bounded = compose(view, identity(IndexDomain(shape=extent)))
            assert within == (bounded.shape, plan_maps(bounded, extent))
    assert found > 30


def test_bounds_that_have_to_be_resolved():
    """What lies outside the array or is empty is left to those who say what is wrong with it."""
    for low, stop in ((-1, 1), (3, 5), (4, 5), (2, 2)):
        view = IndexTransform(input_inclusive_min=[low], input_exclusive_max=[stop])
        assert maps_within(view, (4,)) is None
    assert maps_within(IndexTransform(1)[3:4], (4,)) == ((1,), [Affine(3, 1, 0)])
    assert maps_within(IndexTransform(1)[3:-1:-1], (4,)) == ((4,), [Affine(3, -1, 0)])
    assert maps_within(IndexTransform(1)[4], (4,)) is None
    assert not isinstance(plan([Affine(0, 1, 0)], np.empty(0), [RegularAxis(4)]), ChunkBox)
