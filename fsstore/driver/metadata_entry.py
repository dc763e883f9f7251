"""The metadata of one stored array, shared by every handle of a context; and the resize of the array through a view.

All handles of one context see a resize at once, even those that show another field of the elements: they share one
document, and each view has its own array made of that document.  Both live as long as a handle does.  The store is the
handle's own: another handle may have been opened to write without waiting for the disk.

A resize replaces the document by a conditional write, so that two resizes never mix.  The chunks outside the new shape
are deleted only afterwards, so a resize that fails loses nothing.  An interrupted resize leaves chunks behind that
reappear when the array grows.  Chunks that are partly outside do not change.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product
from operator import ge
from typing import Any

from fsstore.chunk.model import ChunkModel
from fsstore.chunk.write.request import finish
from fsstore.context.context import ContextResource
from fsstore.driver.attributes import renew_collected
from fsstore.driver.contract import ResizeBounds, ResizeOptions
from fsstore.errors import DataLossError, FailedPreconditionError, PermissionDeniedError, StoreError, UnimplementedError
from fsstore.format.contract import ChunkedArray, Format, decode_stored
from fsstore.index import IndexDomain, IndexTransform
from fsstore.index.interval import MAX_FINITE
from fsstore.index.output_map import ARRAY, SINGLE
from fsstore.kvstore.contract.ability import Modifies, able
from fsstore.kvstore.contract.driver import UNKNOWN, KvPrefix, Read, ReadResult, Write
from fsstore.kvstore.spec_parse import OpenKv
from fsstore.runtime.cache import CachePool
from fsstore.runtime.together import ChangedError, until_unchanged
from fsstore.runtime.tuning import MANY_CHUNKS, PAGE
from fsstore.values.json_value import dumps, quote

_CHANGING = frozenset(("shape", "dimensions", "attributes"))  # `dimensions` is the shape in N5
_NONE: Mapping[str, ReadResult] = {}


def place_of(kvstore: OpenKv) -> str:
    """Return a text that is equal for key-value stores that hold the same data."""
    parts = []
    for spec in kvstore.spec.walk():
        if spec.live is not None:
            parts.append(f"live {id(spec.live)}")
            continue
        memory = spec.resources.get("memory_key_value_store")
        owner = 0
        if isinstance(memory, ContextResource):  # elsewhere, no two stores are known to be one
            owner = id(memory if memory.value is memory.kind.elsewhere else memory.value)
        members = json.dumps(spec.members, sort_keys=True, default=repr) if spec.members else ""
        parts.append(f"{spec.kind.id} {owner} {spec.path!r} {members}")
    return "\n".join([*parts, kvstore.path])


class _KnownArray:
    """A stored document as last read: the array of one of its views, its generation, and the time of the read.

    `is_written` says that it was stored by this process.
    """

    __slots__ = ("__weakref__", "array", "generation", "is_written", "time")

    def __init__(self) -> None:
        self.is_written = False
        self.keep(None, UNKNOWN, float("-inf"))

    def keep(self, array: ChunkedArray | None, generation: bytes, time: float) -> None:
        """Remember the stored state."""
        self.array, self.generation, self.time = array, generation, time


class _View:
    """The array that a view makes of the document, the document's array, and the owner of cached chunks."""

    __slots__ = ("__weakref__", "array", "owner", "seen")

    def __init__(self) -> None:
        self.array: ChunkedArray | None = None
        self.seen: ChunkedArray | None = None
        self.owner: tuple[ChunkedArray | None, Hashable] = (None, None)


class MetadataEntry:
    """The current metadata of an array for one handle; handles share the parts that they have in common.

    `identity` is the same for everything of a view, inside and outside of transactions; it ends with the `place`, which
    is the same for all views.
    """

    __slots__ = ("_document", "_options", "_view", "format", "identity", "key", "place", "store")

    def __init__(
        self, array_format: Format, store: KvPrefix, options: Mapping[str, Any], identity: tuple[str, ...]
    ) -> None:
        self.format = array_format
        self.store = store
        self.identity, self.place = identity, identity[-1]
        self.key: str = options.get("metadata_key") or array_format.document
        self._options = dict(options)
        self._document, self._view = _KnownArray(), _View()

    @classmethod
    def shared(
        cls, array_format: Format, kvstore: OpenKv, options: Mapping[str, Any], pool: CachePool
    ) -> MetadataEntry:
        """Return the entry of a handle; handles of one cache pool share an entry, as do handles in one transaction."""
        chosen = json.dumps(dict(options), sort_keys=True) if options else ""
        identity = (array_format.id, chosen, place_of(kvstore))
        made = cls(array_format, kvstore.prefix, options, identity)
        return made._share(kvstore, pool)

    def _share(self, kvstore: OpenKv, pool: CachePool) -> MetadataEntry:
        ledger = None if kvstore.ledger is None else id(kvstore.ledger)
        self._document = pool.share((self._of_all_views, ledger), self._document)
        self._view = pool.share((self.identity, ledger), self._view)
        return self

    @property
    def _of_all_views(self) -> tuple[str, ...]:
        # each scale of a document is an array of its own
        scale = self._options.get("scale_index")
        return "document", self.format.id, self.key if scale is None else f"{self.key} {scale}", self.place

    def within(self, kvstore: OpenKv, array: ChunkedArray, pool: CachePool) -> MetadataEntry:
        """Return the entry of a handle in a transaction; it has the state outside until something is written."""
        entry = MetadataEntry(self.format, kvstore.prefix, array.extra, self.identity)._share(kvstore, pool)
        if not entry._document.is_written:
            entry.keep(array, self.generation, self._document.time)
        elif entry._view.array is None:
            entry._view.array = array
        return entry

    def publish(self, pool: CachePool) -> None:
        """Make the handles outside read the metadata again, after the commit of this entry's transaction."""
        outside: _KnownArray | None = pool.shared((self._of_all_views, None))
        if outside is not None and self.array is not None:
            outside.keep(self.array, UNKNOWN, float("-inf"))

    @property
    def array(self) -> ChunkedArray | None:
        """The array as the view shows it, or None."""
        view = self._view
        newest, own = self._document.array, view.array
        if newest is None or own is None or newest is view.seen:
            return None if newest is None else own
        if newest.metadata != own.metadata:
            if _fixed(newest) != _fixed(own):
                return own  # another array: `check` tells the handles
            view.array = self.format.resized(replace(own, metadata=newest.metadata), newest.shape)
        view.seen = newest
        return view.array

    @property
    def generation(self) -> bytes:
        """The generation of the document that `array` was read from."""
        return self._document.generation

    def describe(self) -> str:
        """Return the name of the document in messages."""
        return self.store.describe(self.key)

    async def read(self, *, fresh_after: float, documents: Mapping[str, ReadResult] = _NONE) -> ChunkedArray | None:
        """Return the metadata, read again unless known at `fresh_after` or later; None if there is no document.

        `documents` are answers that are fresh enough, by key.
        """
        document, array = self._document, self.array
        if self._view.seen is not document.array:
            array = None
        if array is not None and document.time >= fresh_after:
            return array
        known = UNKNOWN if array is None else document.generation
        answer, attributes = await self._read_documents(known, documents)
        if answer.state == "missing":
            self.forget()
            return None
        if answer.state == "value" and (known == UNKNOWN or answer.generation != known):
            try:
                array = decode_stored(self.format, bytes(answer.value), self._options)
            except UnimplementedError:
                raise
            except StoreError as error:
                raise error.within(f"Error reading {self.describe()}") from error
            except RecursionError:  # structures nested hundreds of levels deep
                raise DataLossError(f"Error reading {self.describe()}: nested too deeply") from None
        if array is not None:
            array = self.format.named(array, attributes)
            self.keep(array, answer.generation, answer.time)
        return array

    async def _read_documents(
        self, known: bytes, documents: Mapping[str, ReadResult]
    ) -> tuple[ReadResult, bytes | None]:
        """Return the answer for the metadata document, unless it is the known one, and for the attributes beside it."""
        beside = self.format.attributes
        keys = [key for key in (self.key, beside) if key is not None and key not in documents]
        reads = [Read(key, if_not_equal=known if key == self.key else UNKNOWN) for key in keys]
        try:
            found = await self.store.read_many(reads) if reads else []
        except PermissionDeniedError:
            # object stores answer so for missing keys where listing is not allowed
            if keys[-1] != beside:
                raise
            found = await self.store.read_many(reads[:-1]) if reads[:-1] else []
        answers = {**documents, **dict(zip(keys, found, strict=False))}
        attributes = None if beside is None else answers.get(beside)
        if attributes is None or attributes.state != "value":
            return answers[self.key], None
        return answers[self.key], bytes(attributes.value)

    async def still_there(self, known: bytes) -> bytes:
        """Return the generation of the stored document without keeping the document: `known`, if that is still stored.

        Raises if there is no document, or one of another array.
        """
        read = Read(self.store.path + self.key, if_not_equal=known)
        (answer,) = await self.store.driver.read_many([read])
        if answer.state == "unspecified":
            return known
        if answer.state == "missing":
            raise FailedPreconditionError(f"Metadata at {self.describe()} does not exist")
        before = self.array
        if before is not None and answer.generation != known:
            self.check(before, decode_stored(self.format, bytes(answer.value), self._options))
        return answer.generation

    @property
    def newest(self) -> ChunkedArray | None:
        """The array of the document that was read or stored last, through any view."""
        return self._document.array

    async def reread(self, *, fresh_after: float) -> ChunkedArray:
        """Return the metadata of an open array, read again unless known at `fresh_after`; raise if it is gone."""
        array = await self.read(fresh_after=fresh_after)
        if array is None:
            raise FailedPreconditionError(f"Metadata at {self.describe()} does not exist")
        return array

    def is_same(self, one: ChunkedArray, other: ChunkedArray) -> bool:
        """Return whether both are states of one array, whatever their shapes."""
        before, after = _fixed(one), _fixed(other)
        return before == after or dumps(before, allow_nan=True) == dumps(after, allow_nan=True)

    def check(self, opened: ChunkedArray, found: ChunkedArray) -> None:
        """Raise unless `found` is the array that was opened, in any shape."""
        if self.is_same(opened, found):
            return
        before, after = _fixed(opened), _fixed(found)
        names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
        changes = ", ".join(
            f"{quote(name)} was {dumps(before.get(name))} and is {dumps(after.get(name))}" for name in names
        )
        raise FailedPreconditionError(
            f"Updated metadata at {self.describe()} is incompatible with existing metadata: {changes[:400]}"
        )

    def cache_owner(self, array: ChunkedArray) -> Hashable:
        """Return the owner of the cached chunks of the view: equal for handles whose chunks have the same contents."""
        known, owner = self._view.owner
        if known is not array:
            owner = self.identity, dumps(_fixed(array), allow_nan=True)
            self._view.owner = array, owner
        return owner

    def keep(self, array: ChunkedArray, generation: bytes, time: float) -> None:
        """Remember the stored state."""
        self._document.keep(array, generation, time)
        self._view.array = self._view.seen = array

    def stored(self, array: ChunkedArray, generation: bytes, time: float) -> None:
        """Remember what was just stored through this entry."""
        self.keep(array, generation, time)
        self._document.is_written = True

    def forget(self) -> None:
        """Forget what was read."""
        self._document.keep(None, UNKNOWN, float("-inf"))
        self._view.array = self._view.seen = None


def _fixed(array: ChunkedArray) -> dict[str, Any]:
    """Return the metadata that cannot change while an array is open: everything but the shape and the attributes."""
    return {name: value for name, value in array.metadata.items() if name not in _CHANGING}


class StoredPresence:
    """The check that an opened array is still stored, for readers that find a chunk missing."""

    __slots__ = ("_entry", "generation")

    def __init__(self, entry: MetadataEntry) -> None:
        self._entry, self.generation = entry, entry.generation

    async def is_as(self, known: bytes) -> bool:
        """Return whether the stored metadata are still of a generation; raise if the array is gone."""
        self.generation = await self._entry.still_there(known)
        return known in (UNKNOWN, self.generation)


Interval = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class ResizeTarget:
    """The new extent of each dimension of the array, None if unchanged; `shown` bounds the part in the view."""

    extents: tuple[int | None, ...]
    shown: tuple[Interval, ...]

    def check_hidden(self, shape: tuple[int, ...]) -> None:
        """Raise `FailedPreconditionError` where an array of this shape has elements that the view hides."""
        for dimension, ((low, high), extent) in enumerate(zip(self.shown, shape, strict=True)):
            hidden = None
            if low is not None and low > 0:
                hidden = f"[0, {low})"
            elif high is not None and high < extent:
                hidden = f"[{high}, {extent})"
            if hidden is not None:
                raise FailedPreconditionError(
                    f"Resize operation would also affect output dimension {dimension} over the interval {hidden} but"
                    " `resize_tied_bounds` was not specified"
                )


def target_of(transform: IndexTransform, bounds: ResizeBounds, *, tied: bool, fixed: int = 0) -> ResizeTarget | None:
    """Return the change of the array that new bounds of a view need; None if it needs none.

    `tied` permits changes of parts that the view hides; the last `fixed` dimensions of the array keep their extent.
    Raises `StoreError` for bounds that cannot be changed.
    """
    domain = transform.domain
    if len(bounds.inclusive_min) != domain.rank or len(bounds.exclusive_max) != domain.rank:
        raise StoreError(f"inclusive_min and exclusive_max must have rank {domain.rank}")
    requests = list(zip(bounds.inclusive_min, bounds.exclusive_max, strict=True))
    for dimension, request in enumerate(requests):
        _check_request(domain, dimension, request)
    if all(bound is None for request in requests for bound in request):
        return None
    if not tied:
        _check_maps(transform, requests)
    extents: list[int | None] = []
    for number, output in enumerate(transform.maps):
        request = requests[output.input_dimension] if output.method == SINGLE else (None, None)
        extents.append(_extent(number, output, request))
        if extents[-1] is not None and number >= transform.output_rank - fixed:
            raise _refused(output.input_dimension, "Cannot change explicit upper bound")
    shown = [(None, None) if tied else _shown(domain, output) for output in transform.maps]
    return ResizeTarget(tuple(extents), tuple(shown))


def _refused(dimension: int, why: str) -> StoreError:
    return StoreError(f"Invalid resize request for input dimension {dimension}: {why}")


def _check_request(domain: IndexDomain, dimension: int, request: Interval) -> None:
    low, high = request
    if low is not None and not domain.implicit_lower_bounds[dimension]:
        raise _refused(dimension, "Cannot change explicit lower bound")
    if high is not None and not domain.implicit_upper_bounds[dimension]:
        raise _refused(dimension, "Cannot change explicit upper bound")
    if high is None:
        return
    if high > MAX_FINITE:
        raise _refused(dimension, f"new upper bound {high} is above {MAX_FINITE}")
    least = domain.inclusive_min[dimension] if low is None else low
    if high < least and (low is not None or not domain.implicit_lower_bounds[dimension]):
        raise _refused(dimension, f"new upper bound {high} is below the lower bound {least}")


def _check_maps(transform: IndexTransform, requests: list[Interval]) -> None:
    """Raise unless each dimension of the array follows its own dimension of the view, or is fixed at one index."""
    seen: set[int] = set()
    for number, output in enumerate(transform.maps):
        if output.method == ARRAY:
            raise StoreError(
                f"Output dimension {number} has index array map but `resize_tied_bounds` was not specified"
            )
        if output.method != SINGLE:
            continue
        dimension = output.input_dimension
        if output.stride not in (1, -1) and requests[dimension] == (None, None):
            raise StoreError(
                f"Output dimension {number} depends on input dimension {dimension} with non-unit stride of"
                f" {output.stride} but `resize_tied_bounds` was not specified"
            )
        if dimension in seen:
            raise StoreError(
                f"Input dimension {dimension} corresponds to a diagonal but `resize_tied_bounds` was not specified"
            )
        seen.add(dimension)


def _extent(number: int, output: Any, request: Interval) -> int | None:
    """Return the new extent of a dimension of the array; its lower bound is 0."""
    if request == (None, None):
        return None
    if output.stride not in (1, -1):
        raise StoreError(
            f"Output dimension {number} depends on resized input dimension {output.input_dimension} with non-unit"
            f" stride of {output.stride}"
        )
    low, high = _below(output, request)
    if low is not None and low != 0:
        raise FailedPreconditionError(
            f"Cannot change inclusive lower bound of output dimension {number}, which is fixed at 0, to {low}"
        )
    if high is not None and not 0 <= high <= MAX_FINITE:
        raise _refused(output.input_dimension, f"output dimension {number} would have the upper bound {high}")
    return high


def _below(output: Any, interval: Interval) -> Interval:
    """Return the bounds in the array of an interval of the view, under a stride of 1 or -1."""
    low, high = interval
    if output.stride < 0:
        low, high = (None if high is None else 1 - high), (None if low is None else 1 - low)
    offset = output.offset
    return (None if low is None else low + offset), (None if high is None else high + offset)


def _shown(domain: IndexDomain, output: Any) -> Interval:
    """Return the part of a dimension of the array that a view shows: implicit bounds hide nothing."""
    if output.method != SINGLE:
        return output.offset, output.offset + 1
    dimension = output.input_dimension
    low = None if domain.implicit_lower_bounds[dimension] else domain.inclusive_min[dimension]
    high = None if domain.implicit_upper_bounds[dimension] else domain.exclusive_max[dimension]
    return _below(output, (low, high))


# Deletion of the chunks outside a smaller shape, once that shape is stored.

_Numbers = Sequence[int]


async def delete_outside(entry: MetadataEntry, old: ChunkedArray, new: ChunkedArray) -> None:
    """Delete the chunks of `old` without an element in `new`, or in the array as others have resized it since."""
    counts = _counts(old)
    kept = tuple(map(min, counts, _counts(new)))
    async for chunks in _outside(entry.store, old.model, counts, kept):
        left = chunks
        while left:
            left = await _delete(entry, old, left)


async def _delete(entry: MetadataEntry, old: ChunkedArray, chunks: Sequence[_Numbers]) -> list[_Numbers]:
    """Delete chunks unless the array covers them again; return those that another writer has just written."""
    keys = {old.model.key(numbers): numbers for numbers in chunks}
    seen = await _stored(entry.store, keys)
    newest = await entry.read(fresh_after=math.inf)
    if newest is None or not entry.is_same(old, newest):
        return []  # the stored chunks belong to another array by now
    present = _counts(newest)
    gone = [Write(key, None, generation) for key, generation in seen.items() if any(map(ge, keys[key], present))]
    stamps = await entry.store.write_many(gone) if gone else []
    return [
        keys[write.key]
        for write, stamp in zip(gone, stamps, strict=True)
        if write.if_equal != UNKNOWN and stamp.generation == UNKNOWN
    ]


def _counts(array: ChunkedArray) -> tuple[int, ...]:
    """Return the number of chunks along each dimension."""
    return tuple(
        axis.chunk_of(extent - 1) + 1 if extent else 0
        for axis, extent in zip(array.model.axes, array.shape, strict=True)
    )


async def _stored(store: KvPrefix, keys: Iterable[str]) -> dict[str, bytes]:
    """Return the generations of stored chunks; `UNKNOWN` for all keys where a deletion must not be conditional.

    So it is in a transaction, which such conditions would make fail once a part of it is stored.
    """
    features = store.driver.features
    guarded = features.conditional_write and features.conditional_delete
    if not guarded or able(store.driver, Modifies) is not None:
        return dict.fromkeys(keys, UNKNOWN)
    answers = await store.read_many([Read(key, 0, 0) for key in keys])
    return {key: answer.generation for key, answer in zip(keys, answers, strict=True) if answer.state != "missing"}


async def _outside(
    store: KvPrefix, model: ChunkModel, counts: _Numbers, kept: _Numbers
) -> AsyncIterator[Sequence[_Numbers]]:
    """Yield the numbers of the chunks that lie beyond the new count along some dimension, in batches."""
    number = math.prod(counts) - math.prod(kept)
    if number > MANY_CHUNKS and store.driver.features.listable:
        async for entries in store.scan():
            found = [model.numbers(entry.key) for entry in entries]
            yield [numbers for numbers in found if numbers is not None and any(map(ge, numbers, kept))]
        return
    named = _named(counts, kept) if number else iter(())
    while batch := list(islice(named, PAGE)):
        yield batch


def _named(counts: _Numbers, kept: _Numbers) -> Iterator[_Numbers]:
    for dimension in range(len(counts)):
        ranges = [
            *map(range, kept[:dimension]),
            range(kept[dimension], counts[dimension]),
            *map(range, counts[dimension + 1 :]),
        ]
        if all(ranges):
            yield from product(*ranges)


class Resize:
    """One resize of one array."""

    def __init__(
        self, entry: MetadataEntry, current: Callable[[], ChunkedArray], options: ResizeOptions, *, fixed: int
    ) -> None:
        self._entry, self._current, self._options, self._fixed = entry, current, options, fixed

    async def run(self, transform: IndexTransform, bounds: ResizeBounds) -> ChunkedArray:
        """Resize; return the new array."""
        tied = self._options.resize_tied_bounds
        target = target_of(transform, bounds, tied=tied, fixed=self._fixed)
        if target is None:
            return self._current()
        if self._affects_fields():
            raise FailedPreconditionError(
                "Resize operation would affect other fields but `resize_tied_bounds` was not specified"
            )
        old, new = await until_unchanged(partial(self._attempt, target), self._entry.describe)
        await renew_collected(self._entry.store, self._entry.key)
        if not self._options.resize_metadata_only:
            await finish(self._entry.store)  # writes that began in the larger shape
            await delete_outside(self._entry, old, new)
        return new

    async def _attempt(self, target: ResizeTarget) -> tuple[ChunkedArray, ChunkedArray]:
        """Replace the metadata; return the arrays before and after."""
        old = await self._entry.read(fresh_after=float("inf"))
        if old is None:
            raise FailedPreconditionError(f"Metadata at {self._entry.describe()} does not exist")
        target.check_hidden(old.shape)
        new_shape = tuple(
            size if wanted is None else wanted for size, wanted in zip(old.shape, target.extents, strict=True)
        )
        self._check_direction(old.shape, new_shape)
        if self._options.ask is not None:
            await self._options.ask(old)
        new = self._entry.format.resized(old, new_shape)
        self._entry.stored(new, *await self._replace_document(new))
        return old, new

    async def _replace_document(self, new: ChunkedArray) -> tuple[bytes, float]:
        entry = self._entry
        conditional = entry.store.driver.features.conditional_write
        condition = entry.generation if conditional else UNKNOWN
        stamp = await entry.store.write(entry.key, entry.format.encode(new), condition)
        if conditional and stamp.generation == UNKNOWN:
            raise ChangedError
        return stamp.generation, stamp.time

    def _check_direction(self, old: tuple[int, ...], new: tuple[int, ...]) -> None:
        for dimension, (before, after) in enumerate(zip(old, new, strict=True)):
            change = f"output dimension {dimension} from [0, {before}) to [0, {after})"
            if after > before and self._options.shrink_only:
                raise FailedPreconditionError(f"Resize operation would expand {change} but `shrink_only` was specified")
            if after < before and self._options.expand_only:
                raise FailedPreconditionError(f"Resize operation would shrink {change} but `expand_only` was specified")

    def _affects_fields(self) -> bool:
        """Return whether fields other than the one shown would be resized without permission."""
        model = self._current().model
        shared = model.component is not None and len(model.chain.chunk.dtype.names or ()) > 1
        return shared and not self._options.resize_tied_bounds
