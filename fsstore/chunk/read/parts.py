"""Reading a part of chunks whose bytes are their elements.

An element, or a piece of a row, lies in a small part of such a chunk.  Where a request wants the same part of every
chunk, that part is read instead: the request is planned in a grid in which chunks are no larger than it, and each of
these is a range of bytes of a stored chunk.  Everything after that sees small chunks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple

from fsstore.chunk.plan.grid import Axis, PartAxis
from fsstore.chunk.plan.request import Affine, Constant, OutputMap
from fsstore.chunk.plan.source import ByteRange, Source
from fsstore.chunk.read.window import ReadRequest
from fsstore.chunk.tuning import PARTS_FROM_BYTES
from fsstore.codec.chain import BoundChain
from fsstore.codec.contract import Array
from fsstore.errors import OutOfRangeError, StoreError
from fsstore.kvstore.contract.batch import are_of_size
from fsstore.kvstore.contract.driver import ReadResult
from fsstore.kvstore.contract.request import resolve_range

__all__ = ["in_parts"]


class _SamePart(NamedTuple):
    """A box of every chunk of a request whose bytes follow each other: its first element, its shape, and the grid."""

    first: int
    shape: tuple[int, ...]
    axes: tuple[Axis, ...]


def in_parts(request: ReadRequest) -> ReadRequest:
    """Return the request over parts of chunks, if that is worth it."""
    chunks, maps, out = request
    model = chunks.model
    if chunks.part_bytes is None or model.chain.decoded_size * out.size < PARTS_FROM_BYTES:
        return request  # also where nothing is wanted
    part = _same_part(maps, out, model.axes, model.chain)
    itemsize = model.chain.chunk.dtype.itemsize
    size = itemsize * math.prod(part.shape)
    spared = model.chain.decoded_size - size
    if spared < chunks.part_bytes or spared * _count(maps, out, part.axes) < PARTS_FROM_BYTES:
        return request
    source = _PartSource(chunks.source, model.chain, part.first * itemsize, size)
    return ReadRequest(chunks.in_parts(part.axes, part.shape, source), maps, out)


def _same_part(maps: Sequence[OutputMap], out: Array, axes: Sequence[Axis], chain: BoundChain) -> _SamePart:
    """Return the smallest part that holds what is wanted of each chunk: as its bytes are ordered, one position of the
    outer dimensions, some of the next, and all of the others.
    """
    assert chain.order is not None
    whole = chain.chunk.shape
    shape, cut, first = list(whole), list(axes), 0
    stride = math.prod(whole)
    for axis in chain.order:
        ends = _ends(maps[axis], out)
        number, start, size = axes[axis].chunk_around(0 if ends is None else ends[0])
        if ends is None or ends[1] >= start + size:
            break
        stride //= size
        low, count = ends[0] - start, ends[1] - ends[0] + 1
        first += low * stride
        shape[axis], cut[axis] = count, PartAxis(number, ends[0], count)
        if count > 1:
            break
    return _SamePart(first, tuple(shape), tuple(cut))


def _count(maps: Sequence[OutputMap], out: Array, axes: Sequence[Axis]) -> int:
    """Return how many chunks a request touches, at least; lists may touch more."""
    count = 1
    for output_map, axis in zip(maps, axes, strict=True):
        low, high = _ends(output_map, out) or (0, 0)
        count *= axis.chunk_of(high) - axis.chunk_of(low) + 1
    return count


def _ends(output_map: OutputMap, out: Array) -> tuple[int, int] | None:
    """Return the least and the largest position, None if they are listed."""
    if isinstance(output_map, Constant):
        return output_map.position, output_map.position
    if not isinstance(output_map, Affine):
        return None
    first, step, axis = output_map
    last = first + step * (out.shape[axis] - 1)
    return min(first, last), max(first, last)


class _PartSource:
    """The same part of each chunk: `size` bytes from `first` on of what `chain` decodes.

    A chunk of another size than it should have is damaged, wherever the part lies; such a chunk is read whole, to say
    what is wrong with it.
    """

    __slots__ = ("_chain", "_first", "_stop", "_whole")

    def __init__(self, whole: Source, chain: BoundChain, first: int, size: int) -> None:
        self._whole, self._chain = whole, chain
        self._first, self._stop = first, first + size

    def identities(self, keys: Sequence[str]) -> Sequence[ByteRange]:
        """Return how the parts of chunks are called: as the ranges that they are."""
        return list(map(ByteRange, keys, repeat(self._first), repeat(self._stop)))

    async def read_many(self, ranges: Sequence[ByteRange]) -> Sequence[ReadResult]:
        """Return an answer for each range of a part."""
        answers = await self.read_whole([each.identity for each in ranges])
        return [_range_of(each, answer) for each, answer in zip(ranges, answers, strict=True)]

    async def read_whole(self, identities: Sequence[ByteRange]) -> Sequence[ReadResult]:
        """Return an answer for each part."""
        size = self._chain.decoded_size
        try:
            answers = await self._whole.read_many(identities)
        except OutOfRangeError:
            pass
        else:
            if are_of_size(answers, size):
                return answers
        whole = await self._whole.read_whole([part.identity for part in identities])
        return [self._cut(identity, answer) for identity, answer in zip(identities, whole, strict=True)]

    def _cut(self, identity: ByteRange, answer: ReadResult) -> ReadResult:
        """Return a part of a chunk that was read whole, or raise what is wrong with the chunk."""
        if answer.state != "value":
            return answer
        try:
            self._chain.decode(answer.value)
        except StoreError as error:
            raise error.within(f"Error reading {self.describe(identity)}") from error
        return answer._replace(value=memoryview(answer.value)[identity.start : identity.stop])

    def describe(self, identity: ByteRange) -> str:
        """Return how messages call the chunk."""
        return self._whole.describe(identity.identity)

    def remembering(self) -> _PartSource:
        """Return the source itself: keys lead to values."""
        return self


def _range_of(wanted: ByteRange, answer: ReadResult) -> ReadResult:
    """Return the answer with a range of its value."""
    if answer.state != "value":
        return answer
    start, stop = resolve_range(wanted.start, wanted.stop, len(answer.value))
    return answer._replace(value=memoryview(answer.value)[start:stop])
