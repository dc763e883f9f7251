"""The `sharding_indexed` codec: a chunk cut into sub-chunks, encoded one by one and found through an index.

`ShardLayout` knows where sub-chunks lie in the array and in the bytes; parts of a shard are read and written through
it.  `StoredParts` sees a shard as runs of sub-chunks: unchanged neighbours are copied as one piece, so that a change of
a few sub-chunks costs these few and a copy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from fsstore.codec.buffers import SHARD_PORTION_PARTS, copy_elements, missing_element, rows_equal_fill
from fsstore.codec.chain import BoundChain, CodecChain, encode_rows, in_rows, rows_together
from fsstore.codec.contract import Array, Buffer, ByteSpec, ChunkSpec, Configured, Kind, Member, Members
from fsstore.errors import DataLossError, StoreError
from fsstore.index.value import MAX_RANK
from fsstore.runtime import execution
from fsstore.runtime.tuning import CACHE_BYTES, FEW, HELD_BYTES, PIECE_BYTES
from fsstore.schema.constraint import braced
from fsstore.values.json_value import Json, array_of, integer, one_of

S = TypeVar("S")
T = TypeVar("T")
Entries = npt.NDArray[np.uint64]
MISSING = 2**64 - 1
"""The offset and the length of a sub-chunk that is not in the shard."""
NO_SIZE = 2**63 - 1
"""The size of a shard that is not known: no entry may end beyond it."""
_NEAR = 2**62  # the sum of two such numbers is no nonsense


def shard_damage(message: str) -> DataLossError:
    """Return an error that blames the codec itself: shards are read in part without a chain that would."""
    error = DataLossError(message)
    error.blame('codec "sharding_indexed"')
    return error


def blocks_of(array: Array, part: Sequence[int]) -> Array:
    """Return a view of an array cut into parts: the first dimensions count them, the last are those of a part."""
    cuts = [cut for size, each in zip(array.shape, part, strict=True) for cut in (size // each, each)]
    rank = len(part)
    return array.reshape(cuts).transpose([*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)])


class ShardLayout:
    """How shards of one array are laid out.

    `grid` counts the sub-chunks along each dimension, `count` all of them, `sub_shape` is their shape, `inner` the
    chain that encodes them (its own `shard` is set when shards are nested), `index_size` the bytes of the index.
    """

    __slots__ = (
        "_fill",
        "_full_index",
        "_index",
        "at_start",
        "chunk",
        "count",
        "grid",
        "index_size",
        "inner",
        "sub_shape",
    )

    def __init__(self, chunk: ChunkSpec, inner: BoundChain, index: BoundChain, *, at_start: bool) -> None:
        self.chunk, self.inner, self._index, self.at_start = chunk, inner, index, at_start
        self._fill = missing_element(chunk.dtype, chunk.fill_value)
        self._full_index: Buffer | None = None  # of any shard that has all its sub-chunks, all of one size
        self.sub_shape = inner.chunk.shape
        self.grid = index.chunk.shape[:-1]
        self.count = math.prod(self.grid)
        self.index_size: int = index.encoded_size or 0

    def index_span(self, shard_size: int) -> tuple[int, int]:
        """Return where the index begins and ends in a shard of `shard_size` bytes."""
        if shard_size < self.index_size:
            raise shard_damage(
                f"Existing shard has size of {shard_size} bytes, but expected at least {self.index_size} bytes"
            )
        return (0, self.index_size) if self.at_start else (shard_size - self.index_size, shard_size)

    def decode_index(self, data: Buffer, shard_size: int | None = None) -> Entries:
        """Return the rows of an encoded index, one per sub-chunk in grid order, all of them valid.

        Where the size of the shard is known, rows are checked against it and against each other.  Raises
        `DataLossError`.
        """
        return self.checked(self.unpacked(data), range(self.count), shard_size)

    def unpacked(self, data: Buffer) -> Entries:
        """Return the rows of an encoded index, not checked; raises `DataLossError`."""
        try:
            entries: Entries = self._index.decode(data).reshape(self.count, 2)
        except StoreError as error:
            damaged = DataLossError(f"Error decoding shard index: {error.message}")
            damaged.culprit = error.culprit
            raise damaged from error
        return entries

    def unpacked_together(self, encoded: Sequence[Buffer]) -> Sequence[Entries] | None:
        """Return the rows of several encoded indexes, not checked; None if they must be taken one by one."""
        run = self._index.decode_run_to_scratch(encoded) if len(encoded) <= self._index.run_length else None
        if run is None:
            return None
        entries: Entries = run.astype(np.uint64).reshape(len(encoded), self.count, 2)  # a copy
        return list(entries)

    def checked(
        self, entries: Entries, numbers: Sequence[int] | npt.NDArray[np.int64], shard_size: int | None
    ) -> Entries:
        """Return some rows of an index, all of them valid; see `decode_index`."""
        if shard_size is None and entries.max(initial=0) < _NEAR:  # nearly always: nothing missing or wrong
            return entries
        offset, length = entries[:, 0], entries[:, 1]
        end = offset + length  # wraps around where the row is nonsense
        missing = (offset == MISSING) & (length == MISSING)
        bad = ~missing & ((offset == MISSING) | (end < offset) | (end > 2**63 - 1))
        if bad.any():
            row = int(np.argmax(bad))
            raise shard_damage(
                f"Invalid shard index entry {numbers[row]} with offset={offset[row]}, length={length[row]}"
            )
        if shard_size is None:
            return entries
        outside = ~missing & (end > shard_size)
        if outside.any():
            row = int(np.argmax(outside))
            raise shard_damage(
                f"Shard index entry {numbers[row]} with byte range [{offset[row]}, {end[row]}) is invalid "
                f"for shard of size {shard_size}"
            )
        _check_apart(entries[~missing & (length > 0)])
        return entries

    def split(self, shard: Buffer) -> list[memoryview | None]:
        """Return views of the encoded sub-chunks of a whole shard in grid order, None for missing ones."""
        view = memoryview(shard)
        start, stop = self.index_span(len(view))
        entries = self.decode_index(view[start:stop], len(view))
        return [None if at == MISSING else view[at : at + n] for at, n in entries.tolist()]

    def assemble(self, parts: Iterable[Buffer | None]) -> bytes:
        """Return the shard of encoded sub-chunks in grid order: contiguous, without gaps, None for missing ones."""
        return b"".join(itertools.chain.from_iterable(self.portions(parts)))

    def portions(self, parts: Iterable[Buffer | None]) -> Iterator[list[Buffer]]:
        """Yield the pieces that `assemble` joins, about a megabyte at a time.

        If the index comes last, the sub-chunks are asked for as they are yielded.
        """
        portion: list[Buffer] = []
        if self.at_start:
            parts = list(parts)
            portion.append(self.index_of([_length(part) for part in parts]))
        lengths: list[int] = []
        size = 0
        for part in parts:
            lengths.append(_length(part))
            if part is None:
                continue
            portion.append(part)
            size += lengths[-1]
            if size >= PIECE_BYTES or len(portion) >= SHARD_PORTION_PARTS:
                yield portion
                portion, size = [], 0
        if not self.at_start:
            portion.append(self.index_of(lengths))
        if portion:
            yield portion

    def index_of(self, lengths: Sequence[int]) -> Buffer:
        """Return the encoded index of sub-chunks that follow each other; a length below zero is a missing one."""
        if len(lengths) != self.count:
            raise ValueError(f"a shard has {self.count} sub-chunks, not {len(lengths)}")
        is_full = set(lengths) == {self.inner.encoded_size}
        if is_full and self._full_index is not None:
            return self._full_index
        length = np.array(lengths, np.int64)
        end = np.cumsum(np.maximum(length, 0)) + (self.index_size if self.at_start else 0)
        entries = np.stack([end - length, length], axis=1).astype(np.uint64)
        entries[length < 0] = MISSING
        encoded = self._index.encode(entries.reshape((*self.grid, 2)))
        if is_full:
            self._full_index = encoded
        return encoded

    def positions(self) -> Iterator[tuple[int, ...]]:
        """Return the grid positions of the sub-chunks in the order of the index."""
        return itertools.product(*map(range, self.grid))

    def blocks(self, array: Array) -> Array:
        """Return a view of a chunk-shaped array whose first dimensions are the grid and the last a sub-chunk."""
        return blocks_of(array, self.sub_shape)

    def describe(self, position: Sequence[int]) -> str:
        """Return how messages call the sub-chunk at a grid position."""
        return f"shard entry {braced(position)}/{braced(self.grid)}"

    @property
    def shares_cores(self) -> bool:
        """Whether `encode_parts` uses every core: compressing many sub-chunks is worth it, copying them is not."""
        enough = self.count >= 2 * FEW and self.count * self.inner.effort >= CACHE_BYTES
        return self.inner.encoded_size is None and enough

    def map_parts(self, encode: Callable[[S], T], parts: Sequence[S], size: int) -> Iterator[T]:
        """Yield the results of `encode` for parts of about `size` bytes, on every core if that is worth it.

        They are not made far ahead of a slow taker.
        """
        if not self.shares_cores:
            return map(encode, parts)
        return execution.map_in_order(encode, parts, ahead=max(2, HELD_BYTES // size))

    def encode_parts(self, array: Array, *, elide: bool = True) -> Iterator[Buffer | None]:
        """Yield the encoded sub-chunks of a chunk in grid order; None for those that equal the fill value.

        They are copied and compared many at a time, which stay in the cache until they are encoded.
        """
        blocks, size = self.blocks(array.astype(self.chunk.dtype, copy=False)), self.inner.decoded_size
        most = PIECE_BYTES // size
        if self.shares_cores:
            most = min(rows_together(self.inner), max(self.count, CACHE_BYTES // size) // (2 * FEW))
        boxes = list(grid_boxes(self.grid, max(1, most)))
        encoded = self.map_parts(
            lambda at: self._encode_box(blocks[(*at, ...)], elide=elide), boxes, max(1, most) * size
        )
        return itertools.chain.from_iterable(encoded)

    def _encode_box(self, box: Array, *, elide: bool) -> Iterable[Buffer | None]:
        rows = in_rows(self.inner, box)
        if not elide:
            return encode_rows(self.inner, rows, elide=False)
        filled = rows_equal_fill(rows, self._fill)
        if not filled.any():
            return list(encode_rows(self.inner, rows))
        encoded = encode_rows(self.inner, rows[~filled])
        return [None if is_filled else next(encoded) for is_filled in filled.tolist()]

    def decode_into(self, shard: Buffer, out: Array) -> None:
        """Decode a whole shard into `out`, a chunk-shaped array; missing sub-chunks become the fill value."""
        blocks = self.blocks(out)
        if self._decode_flat(shard, blocks):
            return
        parts = self.split(shard)
        if None in parts:
            out[...] = self._fill
        first = 0
        for index in grid_boxes(self.grid, self.inner.run_length):
            box = blocks[(*index, ...)]
            count = math.prod(box.shape) // math.prod(self.sub_shape)
            self._decode_run(parts[first : first + count], first, box)
            first += count

    def _decode_run(self, parts: Sequence[Buffer | None], first: int, box: Array) -> None:
        """Decode sub-chunks, numbered from `first`, into the box that they fill; pass over those that are missing."""
        present = [(place, part) for place, part in enumerate(parts) if part is not None]
        run = self.inner.decode_run_to_scratch([part for _, part in present]) if len(present) > 1 else None
        if run is not None and len(present) == len(parts):
            copy_elements(box, run.reshape(box.shape))
            return
        grid = box.shape[: box.ndim - len(self.sub_shape)]
        positions: list[tuple[int | slice, ...]] = list(itertools.product(*map(range, grid)))
        for row, (place, part) in enumerate(present):
            target = box[(*positions[place], ...)]
            if run is not None:
                copy_elements(target, run[row])
                continue
            try:
                self.inner.decode(part, target)
            except StoreError as error:
                position = next(itertools.islice(self.positions(), first + place, None))
                raise error.within(f"Error reading {self.describe(position)}") from error.__cause__

    def _decode_flat(self, shard: Buffer, blocks: Array) -> bool:
        """Decode all sub-chunks at once where they are plain elements, complete and in order."""
        flat, size = self.inner.flat_dtype, self.inner.encoded_size
        if flat is None or size is None:
            return False
        length = memoryview(shard).nbytes
        start, stop = self.index_span(length)
        entries = self.decode_index(memoryview(shard)[start:stop], length)
        first = int(entries[0, 0])
        wanted = np.uint64(first) + np.arange(self.count, dtype=np.uint64) * np.uint64(size)
        if first == MISSING or (entries[:, 1] != size).any() or (entries[:, 0] != wanted).any():
            return False
        elements = np.frombuffer(shard, flat, count=self.count * size // flat.itemsize, offset=first)
        copy_elements(blocks, elements.reshape(blocks.shape))
        return True


def present_in(entries: Entries) -> npt.NDArray[np.bool_]:
    """Return which sub-chunks the rows of an index say are there."""
    return np.not_equal(entries[:, 0], np.uint64(MISSING))


def are_sound(entries: Entries, owners: npt.NDArray[np.int64], sizes: Sequence[int]) -> bool:
    """Return whether rows of several indexes are valid: row `i` is of a shard of `sizes[owners[i]]` bytes.

    `ShardLayout.checked` says what is wrong with the rows of one.
    """
    known = min(sizes) < NO_SIZE
    if not known and entries.max(initial=0) < _NEAR:  # nearly always: nothing missing or wrong
        return True
    present = present_in(entries)
    if (entries[~present, 1] != MISSING).any():
        return False
    entries, owners = entries[present], owners[present]
    offset, length = entries[:, 0], entries[:, 1]
    end = offset + length  # wraps around where the row is nonsense
    limits = np.array(sizes, np.uint64)
    if ((end < offset) | (end > limits[owners])).any():
        return False
    if not known:
        return True
    limits[limits == NO_SIZE] = 0
    whole = (limits[owners] > 0) & (length > 0)
    behind = np.stack([offset + (np.cumsum(limits) - limits)[owners], length], axis=1)
    return not _clashes(behind[whole])[0].any()


def shard_of(chain: BoundChain) -> ShardLayout | None:
    """Return the layout of the shards that a chain encodes, or None if it encodes no shards."""
    return chain.shard if isinstance(chain.shard, ShardLayout) else None


def grid_boxes(grid: Sequence[int], most: int) -> Iterator[tuple[int | slice, ...]]:
    """Yield indexes of a grid, in its order: boxes of sub-chunks that follow each other, `most` or fewer.

    Copied together they fill rows of the array; one by one, each would write a few bytes to rows far apart, which
    takes twice as long.
    """
    outer, inner = list(grid), 1
    while outer and inner * outer[-1] <= most:
        inner *= outer.pop()
    if not outer:
        yield ()
        return
    length, step = outer.pop(), max(1, most // inner)
    for position in itertools.product(*map(range, outer)):
        for begin in range(0, length, step):
            yield (*position, slice(begin, begin + step))


def _length(part: Buffer | None) -> int:
    return -1 if part is None else memoryview(part).nbytes


def _check_apart(entries: Entries) -> None:
    """Refuse rows that share some of their bytes; equal sub-chunks may share all of them."""
    clash, start, stop = _clashes(entries)
    if clash.any():
        one = int(np.argmax(clash))
        raise shard_damage(
            f"Shard index entries with byte ranges [{start[one]}, {stop[one]}) and "
            f"[{start[one + 1]}, {stop[one + 1]}) overlap"
        )


def _clashes(entries: Entries) -> tuple[npt.NDArray[np.bool_], Entries, Entries]:
    """Return which rows, by their start, share some bytes with the next one, where they start and where they stop."""
    order = np.argsort(entries[:, 0], kind="stable")
    start, stop = entries[order, 0], entries[order].sum(axis=1)
    return (start[1:] < stop[:-1]) & ((start[1:] != start[:-1]) | (stop[1:] != stop[:-1])), start, stop


# The `sharding_indexed` codec.

_MAX_ENTRIES = 1 << 30  # TensorStore's limit


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(array_of(integer(1))(value))


def sub_chunk_grid(chunk: tuple[int, ...], sub: tuple[int, ...]) -> tuple[int, ...]:
    """Return how many sub-chunks there are along each dimension, or raise `StoreError` when they do not fit."""
    if len(sub) != len(chunk):
        raise StoreError(
            f"sharding_indexed sub-chunk shape of {braced(sub)} is not compatible with array of rank {len(chunk)}"
        )
    if any(size % part for size, part in zip(chunk, sub, strict=True)):
        raise StoreError(
            f"sharding_indexed sub-chunk shape of {braced(sub)} does not evenly divide chunk shape of {braced(chunk)}"
        )
    grid = tuple(size // part for size, part in zip(chunk, sub, strict=True))
    if int(np.prod(grid, dtype=object)) > _MAX_ENTRIES:
        raise StoreError(f"grid shape of {braced(grid)} has more than {_MAX_ENTRIES} entries")
    return grid


@dataclass(frozen=True, slots=True)
class ShardingCodec(Configured):
    """A shard of sub-chunks of `chunk_shape`, each encoded by `codecs`; `index_codecs` encode the index."""

    chunk_shape: tuple[int, ...]
    codecs: CodecChain
    index_codecs: CodecChain
    index_location: str = "end"

    name: ClassVar[str] = "sharding_indexed"
    kind: ClassVar[Kind] = "array_to_bytes"
    members: ClassVar[Members] = {
        "chunk_shape": Member(_shape, stored=True),
        "codecs": Member(CodecChain.from_json, stored=True),
        "index_codecs": Member(CodecChain.from_json, stored=True),
        "index_location": Member(one_of("start", "end")),
    }

    def to_json(self) -> dict[str, Json]:
        """Return the configuration as stored; the location of the index only if it comes first."""
        out: dict[str, Json] = {
            "chunk_shape": list(self.chunk_shape),
            "codecs": self.codecs.to_json(),
            "index_codecs": self.index_codecs.to_json(),
        }
        if self.index_location != "end":
            out["index_location"] = self.index_location
        return out

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundSharding:
        """Return the codec for chunks like `decoded`."""
        if not isinstance(decoded, ChunkSpec):
            raise StoreError('"sharding_indexed" codec requires an array')
        if len(decoded.shape) >= MAX_RANK:  # the index has one more dimension than other readers accept
            raise StoreError(
                f"Rank of {len(decoded.shape)} exceeds maximum rank of {MAX_RANK - 1} supported for sharding_indexed"
            )
        grid = sub_chunk_grid(decoded.shape, self.chunk_shape)
        inner = self.codecs.bind(ChunkSpec(decoded.dtype, self.chunk_shape, decoded.fill_value))
        index = self.index_codecs.bind(ChunkSpec(np.dtype(np.uint64), (*grid, 2)))
        if index.encoded_size is None:
            raise StoreError("Invalid index_codecs specified: only fixed-size encodings are supported")
        return BoundSharding(ShardLayout(decoded, inner, index, at_start=self.index_location == "start"))


class BoundSharding:
    """Whole shards of one layout."""

    __slots__ = ("encoded", "scratch_size", "shard")

    def __init__(self, layout: ShardLayout) -> None:
        self.shard = layout
        self.encoded = ByteSpec(itemsize=0)
        self.scratch_size = layout.inner.working_size

    def encode(self, data: Array) -> bytes:
        """Return the shard; sub-chunks that are bitwise the fill value are left out."""
        return self.shard.assemble(self.shard.encode_parts(data))

    def decode(self, data: Buffer) -> Array:
        """Return the array of a shard, with the fill value for missing sub-chunks."""
        chunk = self.shard.chunk
        out = np.empty(chunk.shape, chunk.dtype)
        self.shard.decode_into(data, out)
        return out

    def decode_array(self, data: Buffer, out: Array) -> None:
        """Decode a shard into `out`."""
        self.shard.decode_into(data, out)


Run: TypeAlias = "tuple[Sequence[int], Sequence[Buffer]]"
"""The lengths of sub-chunks that follow each other, below zero for one that is missing, and their bytes in order."""


@dataclass(frozen=True, slots=True)
class StoredParts:
    """The encoded sub-chunks of a whole shard, by their numbers."""

    shard: memoryview
    entries: Entries

    @classmethod
    def of(cls, shard: Buffer | None, layout: ShardLayout) -> StoredParts:
        """Return the sub-chunks of a shard, none if there is no shard."""
        if shard is None:
            return cls(memoryview(b""), np.full((layout.count, 2), MISSING, np.uint64))
        view = memoryview(shard)
        start, stop = layout.index_span(len(view))
        return cls(view, layout.decode_index(view[start:stop], len(view)))

    def __getitem__(self, number: int) -> Buffer | None:
        """Return an encoded sub-chunk, None if it is missing."""
        offset, length = self.entries[number].tolist()
        return None if offset == MISSING else self.shard[offset : offset + length]

    def runs(self, first: int, stop: int, changed: Mapping[int, Buffer | None]) -> Iterator[Run]:
        """Yield the sub-chunks of some numbers as one run, some of them `changed`, by number in ascending order.

        Stored ones that lie one behind the other, with no changed one between, are one piece.
        """
        if len(changed) == stop - first:
            yield from map(run_of_one, changed.values())
            return
        entries = self.entries[first:stop]
        lengths = np.where(present_in(entries), entries[:, 1].view(np.int64), -1)
        places = np.array(list(changed), np.int64) - first
        kept = lengths >= 0
        kept[places] = False
        at = np.flatnonzero(kept)
        begin = entries[at, 0].astype(np.int64)
        end = begin + lengths[at]
        group = np.searchsorted(places, at)
        cuts = np.flatnonzero((begin[1:] != end[:-1]) | (group[1:] != group[:-1]))
        heads, tails = [0, *(cuts + 1).tolist()][: len(at)], [*cuts.tolist(), -1][: len(at)]
        columns = (at[heads] + first, begin[heads], end[tails])
        pieces: dict[int, Buffer] = {
            number: self.shard[low:high]
            for number, low, high in zip(*[column.tolist() for column in columns], strict=True)
        }
        lengths[places] = [-1 if part is None else memoryview(part).nbytes for part in changed.values()]
        pieces |= {number: part for number, part in changed.items() if part is not None}
        yield lengths.tolist(), [pieces[number] for number in sorted(pieces)]


def run_of_one(part: Buffer | None) -> Run:
    """Return the run of one sub-chunk."""
    return ((-1,), ()) if part is None else ((memoryview(part).nbytes,), (part,))


def in_portions(numbers: Sequence[int], layout: ShardLayout) -> Iterator[Sequence[int]]:
    """Yield the numbers of some sub-chunks, of about a megabyte at a time."""
    most = max(1, PIECE_BYTES // layout.inner.decoded_size)
    for begin in range(0, len(numbers), most):
        yield numbers[begin : begin + most]


def portions_of_runs(layout: ShardLayout, runs: Iterable[Run]) -> Iterator[list[Buffer]]:
    """Yield the shard of some runs, about a megabyte at a time, as soon as it is there if the index comes last.

    `ShardLayout.portions` does so with single sub-chunks: small raw ones take a fifth longer as runs of one.
    """
    portion: list[Buffer] = []
    if layout.at_start:
        runs = list(runs)
        portion.append(layout.index_of(list(itertools.chain.from_iterable(run[0] for run in runs))))
    lengths: list[int] = []
    size = 0
    for run_lengths, pieces in runs:
        lengths += run_lengths
        portion += pieces
        size += sum([memoryview(piece).nbytes for piece in pieces])
        if size >= PIECE_BYTES or len(portion) >= SHARD_PORTION_PARTS:
            yield portion
            portion, size = [], 0
    if not layout.at_start:
        portion.append(layout.index_of(lengths))
    if portion:
        yield portion
