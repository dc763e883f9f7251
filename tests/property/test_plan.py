"""Requests over random grids against NumPy: every element once, in its place, in both directions."""

from __future__ import annotations

import math
import random
from itertools import product

import numpy as np
import pytest

from fsstore.chunk.columns import CellRun, batches
from fsstore.chunk.model import ChunkModel, ClippedAxis, KeyEncoding, RegularAxis, VariableAxis
from fsstore.chunk.place import Placement, copy_boxes
from fsstore.chunk.planner import Cell, plan_cells
from fsstore.chunk.read.gather import Gather, boxes, split
from fsstore.chunk.request import Affine, Constant, Indexed, listed_segments


def random_request(rng):
    """Return array shape, axes, result shape, output maps, and the NumPy index that means the same."""
    rank = rng.randint(1, 3)
    shape = [rng.randint(1, 9) for _ in range(rank)]
    axes = [
        RegularAxis(rng.randint(1, 5)) if rng.random() < 0.7 else VariableAxis([rng.randint(1, 3)] * 9) for _ in shape
    ]
    result = [rng.randint(1, 4) for _ in range(rng.randint(0, 3))]
    maps, index = [], []
    for extent in shape:
        kind = rng.choice(["constant", "affine", "indexed"]) if result else "constant"
        axis = rng.randrange(len(result)) if result else 0
        steps = [s for s in range(-4, 5) if s and abs(s) * (result[axis] - 1) < extent] if result else []
        if kind == "affine" and steps:
            step = rng.choice(steps)
            span = abs(step) * (result[axis] - 1)
            low = rng.randint(0, extent - 1 - span)
            first = low if step > 0 else low + span
            maps.append(Affine(first, step, axis))
            along = [-1 if other == axis else 1 for other in range(len(result))]
            index.append((first + step * np.arange(result[axis])).reshape(along))
        elif kind == "indexed":
            sizes = [rng.choice([1, size]) for size in result]
            positions = np.array([rng.randrange(extent) for _ in range(int(np.prod(sizes)))]).reshape(sizes)
            maps.append(Indexed(positions))
            index.append(positions)
        else:
            maps.append(Constant(rng.randrange(extent)))
            index.append(np.array(maps[-1].position))
    return shape, axes, tuple(result), maps, tuple(np.broadcast_to(each, result) for each in index)


def keyed(encoding, rank=None):
    """Return a model that has keys and nothing else."""
    return ChunkModel(np.dtype("u1"), (), encoding, chain=None, key_rank=rank)


def chunks_of(request_plan, axes, array):
    """Yield each cell with its place in the array and its chunk: full-sized, zero outside the array."""
    for cell in request_plan.cells():
        numbers = request_plan.chunk_numbers(cell)
        where = tuple(slice(axis.start(n), axis.start(n) + axis.size(n)) for axis, n in zip(axes, numbers, strict=True))
        chunk = np.zeros([axis.size(n) for axis, n in zip(axes, numbers, strict=True)], array.dtype)
        inside = tuple(slice(0, size) for size in array[where].shape)
        chunk[inside] = array[where]
        yield cell, where, inside, chunk


@pytest.mark.parametrize("seed", range(20))
def test_reading_agrees_with_numpy(seed):
    """What cells place in the result is what NumPy's indexing selects."""
    rng = random.Random(seed)
    for _ in range(60):
        shape, axes, result, maps, index = random_request(rng)
        array = np.arange(1, 1 + int(np.prod(shape))).reshape(shape)
        request_plan = plan_cells(maps, result, axes)
        out = np.zeros(result, array.dtype)
        placement = Placement(request_plan, out)
        for cell, _, _, chunk in chunks_of(request_plan, axes, array):
            target = placement.target(cell)
            if target is not None:
                target[...] = chunk
            else:
                placement.copy_out(cell, chunk)
        np.testing.assert_array_equal(out, array[index])


@pytest.mark.parametrize("seed", range(20))
def test_writing_agrees_with_numpy(seed):
    """What cells place in chunks is what NumPy's indexed assignment changes, and nothing else."""
    rng = random.Random(100 + seed)
    for _ in range(60):
        shape, axes, result, maps, index = random_request(rng)
        wanted = np.zeros(shape, int)
        # Repeated positions get equal values, so that the order of writing does not matter.
        values = 1 + np.ravel_multi_index(index, shape) if result else np.array(7)
        wanted[index] = values
        written = np.zeros(shape, int)
        request_plan = plan_cells(maps, result, axes)
        placement = Placement(request_plan, np.asarray(values))
        for cell, where, inside, chunk in chunks_of(request_plan, axes, written):
            placement.copy_in(cell, chunk)
            written[where] = chunk[inside]
        np.testing.assert_array_equal(written, wanted)


@pytest.mark.parametrize("seed", range(10))
def test_filling_touches_the_same_elements(seed):
    """A missing chunk fills exactly the elements that its data would have set."""
    rng = random.Random(200 + seed)
    for _ in range(60):
        shape, axes, result, maps, _ = random_request(rng)
        request_plan = plan_cells(maps, result, axes)
        out = np.zeros(result, int)
        placement = Placement(request_plan, out)
        for cell in request_plan.cells():
            before = out.copy()
            placement.fill(cell, 5)
            filled = out.copy()
            out[...] = before
            ones = np.full([axis.size(n) for axis, n in zip(axes, request_plan.chunk_numbers(cell), strict=True)], 5)
            placement.copy_out(cell, ones)
            np.testing.assert_array_equal(out, filled)
        assert (out == 5).all()


def _run_of(box, axes, array, order):
    """Return the chunks of a box one after the other, laid out in memory in some order, as decoding gives them."""
    columns = zip(*[column.tolist() for column in box.chunks], strict=True)
    chunks = []
    for numbers in columns:
        where = tuple(slice(axis.start(n), axis.start(n) + axis.size(n)) for axis, n in zip(axes, numbers, strict=True))
        chunk = np.zeros([part.stop - part.start for part in where], array.dtype)
        chunk[tuple(slice(0, size) for size in array[where].shape)] = array[where]
        chunks.append(chunk.transpose(order))
    run = np.ascontiguousarray(np.stack(chunks))
    return run.transpose([0, *(1 + np.argsort(order))])


@pytest.mark.parametrize("seed", range(20))
def test_one_gather_reads_what_cells_read(seed):
    """Boxes of listed positions have every cell once, fall into boxes of chunks of one shape, and place what NumPy does."""
    rng = random.Random(400 + seed)
    found = 0
    for _ in range(120):
        shape, axes, result, maps, index = random_request(rng)
        if rng.random() < 0.5:
            axes = [ClippedAxis(rng.randint(1, 5), extent) for extent in shape]
        array = np.arange(1, 1 + int(np.prod(shape)), dtype=rng.choice(["i4", ">i8", "u2"])).reshape(shape)
        request_plan = plan_cells(maps, result, axes)
        if not request_plan.listed:
            continue
        found += 1
        out = np.zeros(result, array.dtype)
        gather = Gather(request_plan, out)
        model = keyed(KeyEncoding("c", "/", "c"))
        seen = []
        for box in boxes(request_plan, rng.randint(1, 9), rng.randint(1, 3)):
            parts = list(split(box, rng.randint(1, 4))) if rng.random() < 0.5 else [box]
            assert [cell.spans for part in parts for cell in part] == [cell.spans for cell in box]
            for part in parts:
                for alike, numbers in part.of_one_shape():
                    order = rng.sample(range(len(shape)), len(shape))
                    gather.gather(alike, _run_of(alike, axes, array, order))
                    assert [cell.spans for cell in alike] == [part[number].spans for number in numbers]
                seen += [tuple(gather.numbers(cell)) for cell in part]
                assert seen[-len(part) :] == list(zip(*[c.tolist() for c in part.chunks], strict=True))
                assert part.keys(model) == [model.key(numbers) for numbers in seen[-len(part) :]]
        np.testing.assert_array_equal(out, array[index])
        assert sorted(seen) == sorted(tuple(request_plan.chunk_numbers(cell)) for cell in request_plan.cells())
        assert len(seen) == len(set(seen)) == request_plan.cell_count
        for cell in box:
            gather.fill(cell, 0)
            gather.copy_out(cell, _run_of(cell, axes, array, range(len(shape)))[0])
        np.testing.assert_array_equal(out, array[index])
    assert found > 8


@pytest.mark.parametrize("count", [1, 5, 3000])
@pytest.mark.parametrize("far", [False, True])
def test_listed_positions_are_grouped_by_chunk(count, far):
    """Positions of one dimension or several, sorted or not, near or far apart, fall into the chunks they lie in."""
    rng = np.random.default_rng(count)
    extent = 2**40 if far else 5000
    for columns in (1, 2, 3):
        positions = [rng.integers(0, extent, count) for _ in range(columns)]
        for values in (positions, [np.sort(each) for each in positions]):
            axes = [RegularAxis(7), ClippedAxis(11, extent), RegularAxis(3)][:columns]
            seen = np.zeros(count, int)
            segments = listed_segments(axes, values, (count,), [None] * columns)
            for place, segment in enumerate(segments):
                chunk = segment.chunk if columns > 1 else (segment.chunk,)
                inside = segment.inside if columns > 1 else (segment.inside,)
                outside = segment.outside[0] if columns > 1 else segment.outside
                seen[outside] += 1
                for axis, number, at, each in zip(axes, chunk, inside, values, strict=True):
                    np.testing.assert_array_equal(axis.start(number) + at, each[outside])
                    assert at.min() >= 0
                    assert at.max() < axis.size(number)
                assert repr(segments[place]) == repr(segment)
            assert (seen == 1).all()


def test_empty_requests_have_no_cells():
    """A result without elements touches no chunk."""
    request_plan = plan_cells([Affine(0, 1, 0)], (0,), [RegularAxis(4)])
    assert request_plan.cell_count == 0
    assert list(request_plan.cells()) == []


def test_whole_chunks_are_recognised():
    """A cell covers its chunk only when all of it is selected in order."""
    whole = list(plan_cells([Affine(0, 1, 0)], (8,), [RegularAxis(4)]).cells())
    assert [cell.covers for cell in whole] == [True, True]
    for part in (Affine(1, 1, 0), Affine(7, -1, 0)):
        count = 7 if part.step > 0 else 8
        assert not all(cell.covers for cell in plan_cells([part], (count,), [RegularAxis(4)]).cells())


@pytest.mark.parametrize("seed", range(60))
def test_blocks_are_the_targets_of_their_cells(seed):
    """Cells that follow each other fill a box of chunks only if the box holds them all and nothing else."""
    rng = random.Random(seed)
    rank = rng.randint(1, 3)
    shape = [rng.randint(1, 12) for _ in range(rank)]
    axes = [RegularAxis(rng.randint(1, 4)) for _ in shape]
    order = rng.sample(range(rank), rank)
    out = np.zeros([shape[axis] for axis in order], "i4")
    request = plan_cells([Affine(0, 1, order.index(axis)) for axis in range(rank)], out.shape, axes)
    placement, cells = Placement(request, out), list(request.cells())
    step = request.even(rng.randint(1, len(cells)))
    for begin in range(0, len(cells), step):
        batch = cells[begin : begin + step]
        out[...] = 0
        blocks = placement.blocks(batch, tuple(axis.step for axis in axes))
        targets = [placement.target(cell) for cell in batch]
        if blocks is None:
            continue
        blocks[...] = 1
        assert all(target is not None and (target == 1).all() for target in targets)
        assert out.sum() == sum(target.size for target in targets)


def test_even_batches_are_boxes():
    """A regular grid is read in batches that end with its rows, each a box."""
    out = np.zeros((32, 24, 16), "i4")
    request = plan_cells([Affine(0, 1, axis) for axis in range(3)], out.shape, [RegularAxis(2)] * 3)
    placement, cells = Placement(request, out), list(request.cells())
    assert [request.even(size) for size in (5000, 1000, 100, 50, 8, 7)] == [1536, 768, 96, 48, 8, 4]
    for step in (768, 96, 48, 8, 4):
        batches = [cells[begin : begin + step] for begin in range(0, len(cells), step)]
        assert all(placement.blocks(batch, (2, 2, 2)) is not None for batch in batches)
    assert placement.blocks(cells[3:13], (2, 2, 2)) is None
    line = plan_cells([Affine(0, 1, 0)], (4099,), [RegularAxis(1)])
    assert line.even(100) == 100, "a prime number of chunks is not cut into single ones"


@pytest.mark.parametrize("seed", range(20))
def test_runs_of_cells_are_the_cells_of_the_plan(seed):
    """Cells and keys of a run are those of the plan, whether asked for one by one, in slices or all."""
    rng = random.Random(300 + seed)
    for _ in range(60):
        shape, axes, result, maps, _ = random_request(rng)
        request_plan = plan_cells(maps, result, axes)
        cells = list(request_plan.cells())
        encoding = rng.choice([KeyEncoding(), KeyEncoding("c", "/", "c"), KeyEncoding("", "/")])
        rank = rng.choice([None, rng.randint(0, len(shape))])
        model = keyed(encoding, rank)
        begin, end = sorted(rng.randint(0, len(cells)) for _ in range(2))
        run = CellRun(request_plan, range(len(cells)))[begin:end]
        assert len(run) == end - begin
        assert [str(run[place]) for place in range(-len(run), len(run))] == list(map(str, cells[begin:end] * 2))
        assert list(map(str, run)) == list(map(str, cells[begin:end]))
        if run:
            assert run.keys(model) == [model.key(request_plan.chunk_numbers(cell)) for cell in run]


@pytest.mark.parametrize("seed", range(6))
def test_cells_of_one_shape_are_found(seed):
    """Each cell is among those whose chunks have its shape, once, and it is the one at its place."""
    rng = random.Random(500 + seed)
    for _ in range(60):
        _, axes, result, maps, _ = random_request(rng)
        axes = [rng.choice([axis, VariableAxis(rng.choices((1, 2, 3), k=9))]) for axis in axes]
        model = ChunkModel(np.dtype("u1"), tuple(axes), KeyEncoding(), chain=None)
        request_plan = plan_cells(maps, result, axes)
        if not request_plan.cell_count:
            continue
        begin = rng.randrange(request_plan.cell_count)
        run = CellRun(request_plan, range(request_plan.cell_count))[begin : begin + rng.randint(1, 40)]
        cells, seen = list(run), []
        for shape, places, some in run.of_one_shape(model):
            assert list(map(str, some)) == [str(cells[place]) for place in places]
            assert {model.chunk_shape(request_plan.chunk_numbers(cell)) for cell in some} == {shape}
            seen += places
        assert sorted(seen) == list(range(len(cells)))


@pytest.mark.parametrize("few", [32, 6, 0])
@pytest.mark.parametrize("seed", range(10))
def test_batches(seed, few, tune):
    """Batches of any size are the cells of the plan with their keys, made one by one or in columns."""
    tune("chunk", COLUMNS_FROM=few)
    rng = random.Random(400 + seed)
    model = keyed(KeyEncoding())
    for _ in range(40):
        _, axes, result, maps, _ = random_request(rng)
        request_plan = plan_cells(maps, result, axes)
        expected = [(str(cell), model.key(request_plan.chunk_numbers(cell))) for cell in request_plan.cells()]
        size = rng.choice([1, 2, 5, 33, 100])
        found = list(batches(request_plan, model, size))
        assert [len(cells) for cells, _ in found[:-1]] == [size] * (len(found) - 1)
        pairs = [pair for cells, keys in found for pair in zip(map(str, cells), keys, strict=True)]
        assert pairs == expected


def test_batches_of_lanes():
    """Those who take batches in turn get parts of the plan far from each other; all cells come, each once."""
    rng = random.Random(7)
    model = keyed(KeyEncoding())
    for _ in range(100):
        _, axes, result, maps, _ = random_request(rng)
        request_plan = plan_cells(maps, result, axes)
        cells = list(map(str, request_plan.cells()))
        size, lanes = rng.choice([1, 2, 5, 33]), rng.randint(2, 4)
        found = [list(map(str, batch)) for batch, _ in batches(request_plan, model, size, lanes)]
        assert sorted(sum(found, [])) == sorted(cells)
        assert all(len(batch) <= size for batch in found)
        assert len(found) == math.ceil(len(cells) / size)
        if len(cells) > (lanes - 1) * size * math.ceil(len(cells) / (size * lanes)):
            far = len(cells) // lanes
            assert all(cells.index(batch[0]) >= n * far for n, batch in enumerate(found[:lanes]))


@pytest.mark.parametrize("spread", [1, 255, 256, 257, 1 << 20, 1 << 40])
@pytest.mark.parametrize("rank", [1, 2])
def test_points_near_and_far_apart(spread, rank):
    """Listed points come together by chunk, in the order of chunks and then of the list, however far chunks lie."""
    generator = np.random.default_rng(spread)
    near = generator.integers(0, 3, (3, 400))
    near[:2] = near[:2].clip(max=1) * (spread - 1) + 17  # two chunks along each of two dimensions, `spread` apart
    points = [column.reshape((400,) if rank == 1 else (20, 20)) for column in near]
    axes = [RegularAxis(1), RegularAxis(1), RegularAxis(2)]
    cells = plan_cells(list(map(Indexed, points)), points[0].shape, axes).cells()
    found = [
        (cell.segments[0].chunk, np.ravel_multi_index(cell.segments[0].outside, points[0].shape)) for cell in cells
    ]
    chunks = list(zip(*(near // [[1], [1], [2]]).tolist(), strict=True))
    assert [chunk for chunk, _ in found] == sorted(set(chunks))
    for chunk, places in found:
        assert places.tolist() == [place for place, each in enumerate(chunks) if each == chunk]


@pytest.mark.parametrize("few", [2, 100])
@pytest.mark.parametrize("rank", [1, 2, 3])
def test_runs_are_copied_as_their_cells(rank, few, tune):
    """What is selected of many chunks goes where it goes cell by cell: slices, steps, numbers, dimensions in any order."""
    tune("chunk", FEW=few)
    rng, boxed = random.Random(rank), 0
    for _ in range(120):
        axes = [RegularAxis(rng.randint(1, 4)) for _ in range(rank)]
        sliced = rng.sample(range(rank), rng.randint(max(1, rank - 1), rank))
        out = np.zeros([rng.randint(1, 14) for _ in sliced], "i4")
        maps = [
            Affine(rng.randint(0, 5) + 60, rng.choice((1, 1, 1, 2, 3, 4, -1)), sliced.index(axis))
            if axis in sliced
            else Constant(rng.randint(0, 5))
            for axis in range(rank)
        ]
        request = plan_cells(maps, out.shape, axes)
        run = CellRun(request, range(request.cell_count))
        if rng.random() < 0.5:
            begin = rng.randrange(len(run))
            run = run[begin : begin + rng.randint(1, len(run))]
        assert [cell.segments for cell in run] == [run[number].segments for number in range(len(run))]
        chunks = np.arange(len(run) * math.prod(axis.step for axis in axes), dtype="i4") + 1
        chunks = chunks.reshape(-1, *[axis.step for axis in axes])
        expected = np.zeros_like(out)
        Placement(request, out).copy_out_run(run, chunks)
        for cell, chunk in zip(run, chunks, strict=True):
            Placement(request, expected).copy_out(cell, chunk)
        assert (out == expected).all()
        made = list(run.boxes())
        assert [cell for some, _ in made for cell in some] == list(run)
        assert all(list(map(Cell.of, product(*segments))) == list(some) for some, segments in made)
        assert len(made) < 2 * rank, "a run is at most a box in the middle, and two more for each outer dimension"
        boxed += 2 * len(made) < len(run)
    assert boxed >= 15


@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_long_slice_is_copied_without_looking_at_its_inner_segments(step):
    """Whatever its ends are, and if only some of its segments are taken, every other one or none."""
    for low, stop, kind in product(range(5), range(36, 41), (RegularAxis, lambda step: ClippedAxis(step, 40))):
        out = np.zeros(-(-(stop - low) // step), "i4")
        request = plan_cells([Affine(low, step, 0)], out.shape, [kind(4)])
        [component] = request.components
        cells = request.cell_count
        for chosen in (range(cells), range(2, cells - 1), range(0, cells, 2), range(2), range(0)):
            segments = component.segments[chosen.start : chosen.stop : chosen.step]
            assert list(segments) == [component.segments[place] for place in chosen]
            chunks = np.arange(4 * len(chosen), dtype="i4").reshape(-1, 4) + 1
            found, expected = np.zeros_like(out), np.zeros_like(out)
            if not copy_boxes(found, [segments], chunks):
                continue
            for segment, chunk in zip(segments, chunks, strict=True):
                expected[segment.outside] = chunk[segment.inside]
            assert (found == expected).all()
    assert list(component.segments.inner) == list(range(1, cells - 1))
