"""Passes over samples: every sample once, every chunk once, the same for whoever has the same seed."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fsstore as ts
from fsstore.errors import StoreError
from fsstore.interop.training import Batching, Course, Samples, Share, batches, pieces_of, pools_of, sample_order

SIZES = st.lists(st.integers(1, 9), min_size=0, max_size=30)


def shares(ranks, workers):
    return [Share(rank, ranks, worker, workers) for rank in range(ranks) for worker in range(workers)]


@given(
    sizes=SIZES,
    ranks=st.integers(1, 5),
    workers=st.integers(1, 4),
    seed=st.none() | st.integers(0, 99),
    most=st.integers(1, 30),
)
def test_all_shares_together_have_every_sample_once(sizes, ranks, workers, seed, most):
    """Ranks differ by a sample at most, workers have whole pieces, at most one block is cut between two ranks."""
    bounds = [0, *np.cumsum(sizes).tolist()]
    total = bounds[-1]
    seeds = None if seed is None else [seed, 1]
    every, by_rank, pieces = [], [0] * ranks, 0
    for share in shares(ranks, workers):
        found = pieces_of(bounds, share, seeds)
        pieces += len(found)
        numbers = [number for pool in sample_order(bounds, share, seeds, most) for number in pool.tolist()]
        assert sorted(numbers) == sorted(n for low, high in found.tolist() for n in range(low, high))
        every += numbers
        by_rank[share.rank] += len(numbers)
    assert sorted(every) == list(range(total))
    assert max(by_rank) - min(by_rank) <= 1
    assert pieces <= len(sizes) + ranks - 1
    even = [sum(int((p[:, 1] - p[:, 0]).sum()) for p in [pieces_of(bounds, s, seeds, even=True) for s in shares(ranks, workers)
                if s.rank == rank]) for rank in range(ranks)]  # fmt: skip
    assert set(even) == {total // ranks}


@given(sizes=SIZES, most=st.integers(1, 30))
def test_pools_hold_as_much_as_there_is_room_for(sizes, most):
    """Pools have the pieces in order; none is larger than the room unless it is a single piece, and none could be joined."""
    pieces = pieces_of([0, *np.cumsum(sizes).tolist()], Share(), None)
    pools = [pool[:, 1] - pool[:, 0] for pool in pools_of(pieces, most)]
    assert [size for pool in pools for size in pool] == sizes
    assert all(pool.sum() <= most or len(pool) == 1 for pool in pools)
    assert all(one.sum() + two[0] > most for one, two in zip(pools, pools[1:], strict=False))


def images(count=100, chunk=8, context=None, *, labels_chunk=None):
    """Return images and their labels, of which each image is full."""
    context = context or ts.Context()
    image = ts.open(
        "memory://i/|zarr3:", create=True, dtype="f4", shape=[count, 4, 4], chunks=[chunk, 4, 2], context=context
    ).result()
    label = ts.open(
        "memory://l/|zarr3:", create=True, dtype="i8", shape=[count], chunks=[labels_chunk or chunk], context=context
    ).result()
    image.write(np.arange(count, dtype="f4")[:, None, None] * np.ones((4, 4), "f4")).result()
    label.write(np.arange(count)).result()
    return image, label


def given_out(samples, batching, share=None, seed=(1, 2)):
    made = list(batches(samples, batching, share or Share(), seed))
    for image, label in made:
        assert np.array_equal(image[:, 3, 3], label)
    return [label.tolist() for _, label in made]


@pytest.mark.parametrize("size", [1, 7, 8, 64, 1000])
@pytest.mark.parametrize("memory", [100, 1000, 10**6])
def test_batches_are_full_and_chunks_are_decoded_once(size, memory):
    """Batches hold every sample once, all but the last have the size, and no chunk is decoded twice in a pass."""
    context = ts.Context()
    samples = Samples(images(context=context), memory=memory)
    before = context.statistics()["memory"].decodes
    found = given_out(samples, Batching(size, memory))
    assert context.statistics()["memory"].decodes - before == 13 * 2 + 13
    assert sorted(sum(found, [])) == list(range(100))
    assert {len(batch) for batch in found[:-1]} <= {size}
    assert sum(found, []) != list(range(100))
    assert given_out(samples, Batching(size, memory), seed=None) == [
        list(range(at, min(at + size, 100))) for at in range(0, 100, size)
    ]
    kept = given_out(samples, Batching(size, memory, drop_last=True))
    assert kept == [batch for batch in found if len(batch) == size]


def test_the_order_follows_from_the_seed():
    """The same seed gives the same order, another one another; samples are mixed over all chunks of a pool."""
    samples = Samples(images(), memory=10**6)
    first = given_out(samples, Batching(10, 10**6), seed=(1, 0))
    assert given_out(samples, Batching(10, 10**6), seed=(1, 0)) == first
    assert given_out(samples, Batching(10, 10**6), seed=(1, 1)) != first
    assert len({number // 8 for number in first[0]}) > 4


def test_labels_in_other_chunks_are_kept():
    """An array whose chunks do not end where the others' do is read once, where it is small."""
    context = ts.Context()
    samples = Samples(images(context=context, labels_chunk=50), memory=10**5)
    before = context.statistics()["memory"].decodes
    for seed in ((1, 0), (1, 1)):
        assert sorted(sum(given_out(samples, Batching(9, 10**4), seed=seed), [])) == list(range(100))
    assert context.statistics()["memory"].decodes - before == 2 * 13 * 2 + 2
    assert samples.bounds == [*range(0, 100, 8), 100]
    large = Samples(images(labels_chunk=12), memory=1500)  # labels of 800 bytes, and blocks of 1,728 of both
    assert large.bounds == [*range(0, 100, 8), 100]
    assert sorted(sum(given_out(large, Batching(9, 10**4)), [])) == list(range(100))


def test_blocks_end_where_chunks_of_all_large_arrays_do():
    """Blocks are made of whole chunks of both arrays if they have room, and of the larger samples' chunks otherwise."""
    one = ts.open("memory://|zarr3:", create=True, dtype="f4", shape=[96, 100], chunks=[8, 100]).result()
    two = ts.open("memory://|zarr3:", create=True, dtype="f4", shape=[96, 50], chunks=[12, 50]).result()
    assert Samples([one, two], memory=10**5).bounds == [0, 24, 48, 72, 96]
    assert Samples([one, two], memory=5000).bounds == list(range(0, 97, 8))
    view = Samples(one[3:90], memory=10**5)
    assert view.bounds == [0, *range(5, 85, 8), 85, 87]


def test_samples_by_number():
    """Any numbers are read together, also negative, repeated and consecutive ones; chunks are decoded once a read."""
    context = ts.Context()
    samples = Samples(images(context=context), memory=10**6)
    for numbers in ([3, 99, 3, -1, 0], [5, 6, 7], [], [0]):
        image, label = samples.read(numbers)
        assert label.tolist() == [number % 100 for number in numbers]
        assert np.array_equal(image[:, 0, 0], label)
    before = context.statistics()["memory"].decodes
    samples.read([0, 7, 3, 9])
    assert context.statistics()["memory"].decodes - before == 2 * 2 + 2
    for wrong in ([100], [-101]):
        with pytest.raises(IndexError, match="among the 100"):
            samples.read(wrong)
    assert samples.formed([1, 2]) == (1, 2)
    assert Samples({"a": ts.array(np.arange(3))}, memory=1).formed([1]) == {"a": 1}
    assert Samples(ts.array(np.arange(3)), memory=1).formed([1]) == 1


def test_what_cannot_be_samples():
    """Arrays of different lengths, without dimensions, or none at all are refused by name."""
    with pytest.raises(ts.errors.StoreError, match='The array "b" has 4 samples, but "a" has 3'):
        Samples({"a": ts.array(np.arange(3)), "b": ts.array(np.arange(4))}, memory=1)
    with pytest.raises(ts.errors.StoreError, match="no dimension"):
        Samples(ts.array(np.array(1)), memory=1)
    with pytest.raises(ts.errors.StoreError, match="no arrays"):
        Samples([], memory=1)
    with pytest.raises(TypeError, match=r"not of ndarray"):
        Samples([np.arange(3)], memory=1)
    with pytest.raises(ValueError, match="rank is 2, but there are 2"):
        Share(2, 2)


@given(
    sizes=SIZES,
    before=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    after=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    last=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    seed=st.none() | st.integers(0, 9),
    most=st.integers(1, 30),
    shares_taken=st.randoms(use_true_random=False),
)
def test_a_pass_goes_on_with_other_ranks_and_workers(sizes, before, after, last, seed, most, shares_taken):
    """Twice in its middle: what was given out before and what comes after are every sample, each once."""
    bounds = [0, *np.cumsum(sizes).tolist()]
    total, given_before, blocks = bounds[-1], [], None
    for number, (ranks, workers) in enumerate((before, after, last)):
        seeds = None if seed is None else (seed, number)
        course = Course(total, ranks, workers, seeds, most, False, {}, blocks)
        taken = {}
        for share in shares(ranks, workers):
            order = [each for pool in sample_order(course.pieces(bounds), share, seeds, most) for each in pool.tolist()]
            count = len(order) if number == 2 else shares_taken.randint(0, len(order))
            given_before += order[:count]
            taken[f"{share.rank}/{share.worker}"] = count
        states = [replace(course, taken={name: count}).to_json() for name, count in taken.items()]
        blocks = Course.of(json.loads(json.dumps(states))).rest(bounds)
        assert all(
            np.searchsorted(bounds, low, "right") == np.searchsorted(bounds, high - 1, "right") for low, high in blocks
        )
    assert sorted(given_before) == list(range(total))
    assert blocks == ()


@pytest.mark.parametrize("seed", [None, (1, 2)])
@pytest.mark.parametrize("memory", [1000, 10**6])
def test_the_same_share_goes_on_as_if_it_had_not_ended(seed, memory):
    """Batch by batch, and chunks that were given out are not read again."""
    context = ts.Context()
    samples, batching = Samples(images(context=context), memory=memory), Batching(8, memory)
    whole = given_out(samples, batching, seed=seed)
    for begun in (0, 1, 5, len(whole)):
        before = context.statistics()["memory"].decodes
        rest = [label.tolist() for _, label in batches(samples, batching, Share(), seed, skip=8 * begun)]
        assert rest == whole[begun:]
        if memory == 1000:
            assert context.statistics()["memory"].decodes - before <= 3 * (13 - begun) + 3


def test_a_state_that_does_not_fit_is_told_in_a_sentence():
    """States of other versions, of several passes, and of too few shares."""
    course = Course(20, 2, 1, (1,), 5, False, {"0/0": 3})
    with pytest.raises(StoreError, match="nothing of worker 0 of rank 1, and the pass had 2 ranks of 1 workers"):
        Course.of(course.to_json()).rest([0, 10, 20])
    with pytest.raises(StoreError, match="not one of this fsstore"):
        Course.of({**course.to_json(), "version": 2})
    with pytest.raises(StoreError, match="are of several passes"):
        Course.of([course.to_json(), replace(course, seed=(2,)).to_json()])
