"""The coalescer covers what was asked, exactly, within its limits."""

import asyncio
from itertools import accumulate

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fsstore.kvstore.contract.batch import Limits, coalesce, read_merged
from fsstore.kvstore.contract.driver import Read, ReadResult

SIZES = st.lists(st.integers(0, 400), max_size=60)
IN_A_ROW = SIZES.map(lambda sizes: list(zip(accumulate(sizes, initial=7), sizes, strict=False)))
RANGES = st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 400)), max_size=60) | IN_A_ROW


@given(RANGES, st.integers(0, 300), st.integers(1, 2000))
def test_spans_cover_every_range_within_the_limits(ranges, gap, limit):
    """Each range lies in its span; spans are ordered, tight, free of large holes, and large only if a range is."""
    starts = np.array([start for start, _ in ranges], np.int64)
    stops = starts + np.array([size for _, size in ranges], np.int64)
    spans = coalesce(starts, stops, gap, limit)
    assert (spans.starts[spans.where] + spans.offset == starts).all()
    assert (spans.stops[spans.where] >= stops).all()
    assert (np.diff(spans.starts) >= 0).all()
    for number, (low, high) in enumerate(zip(spans.starts, spans.stops, strict=True)):
        members = sorted(zip(starts[spans.where == number], stops[spans.where == number], strict=True))
        assert members[0][0] == low
        assert max(stop for _, stop in members) == high
        assert high - low <= max(limit, max(stop - start for start, stop in members))
        reach = members[0][1]
        for start, stop in members:
            assert start <= reach + gap
            reach = max(reach, stop)


@given(RANGES)
def test_negative_gap_merges_nothing(ranges):
    """With a gap of -1 every range is its own span."""
    starts = np.array([start for start, _ in ranges], np.int64)
    stops = starts + np.array([size for _, size in ranges], np.int64)
    spans = coalesce(starts, stops, -1, 10)
    assert sorted(spans.where.tolist()) == list(range(len(ranges)))
    assert (spans.stops[spans.where] == stops).all()


READS = st.lists(
    st.builds(
        lambda key, start, size, open_end: Read(key, start, None if open_end else start + size),
        st.sampled_from("abc"),
        st.integers(0, 800),
        st.integers(0, 200),
        st.booleans(),
    ),
    max_size=40,
)


@given(READS, st.integers(-1, 100), st.integers(1, 500))
def test_merged_reads_give_what_single_reads_give(reads, gap, limit):
    """`read_merged` answers each request as the store would alone; a missing key stays missing."""
    data = {key: np.random.default_rng(ord(key)).bytes(1000) for key in "ab"}

    async def fetch(merged):
        out = []
        for read in merged:
            found = read.key in data
            value = data[read.key][read.start : read.stop] if found else b""
            out.append(ReadResult("value" if found else "missing", value, read.key.encode(), 1.0))
        return out

    merged = asyncio.run(read_merged(reads, Limits(gap, limit), fetch))
    single = asyncio.run(fetch(reads))
    assert [result._replace(value=bytes(result.value)) for result in merged] == single


def test_merged_results_are_slices_of_one_read():
    """Neighbouring ranges cost one request, and their values share its memory."""
    seen = []

    async def fetch(merged):
        seen.extend(merged)
        return [ReadResult("value", bytes(read.stop - read.start)) for read in merged]

    reads = [Read("k", 10 * i, 10 * i + 10) for i in range(1000)]
    results = asyncio.run(read_merged(reads, Limits(), fetch))
    assert [(read.start, read.stop) for read in seen] == [(0, 10000)]
    assert len({id(result.value.obj) for result in results}) == 1
