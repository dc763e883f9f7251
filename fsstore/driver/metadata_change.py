"""Changes of a stored array's metadata, each by a write under a condition: `Attributes`, and another shape.

`Attributes` are those of an array or a group as a mapping, read at once.  A change reads the document, changes it and
stores it on the condition that it is still the one that was read, again and again until that holds: additions of
another writer stay.  Consolidated metadata above an array are kept true when it changes.

A resize acts through a view of the array.  The document is replaced by a conditional write, so that two resizes never
mix.  Only then are the chunks outside the new shape deleted, so a resize that fails loses nothing.  If it is
interrupted, it leaves chunks behind that reappear when the array grows.  Chunks that are partly outside do not change.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from operator import ge
from typing import Any, TypeAlias

from fsstore.chunk.model import ChunkModel
from fsstore.chunk.write.request import finish
from fsstore.driver.contract import ArrayDriver, ResizeBounds, ResizeOptions
from fsstore.driver.metadata_entry import MetadataEntry
from fsstore.errors import FailedPreconditionError, PermissionDeniedError, StoreError, UnimplementedError
from fsstore.format.attributes import NodeWords, parsed, words_of
from fsstore.format.contract import ChunkedArray
from fsstore.index import IndexDomain, IndexTransform
from fsstore.index.interval import MAX_FINITE
from fsstore.index.output_map import ARRAY, SINGLE
from fsstore.kvstore.contract.ability import Modifies, able
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvPrefix, Read, Write
from fsstore.runtime import execution
from fsstore.runtime.attempt import ChangedError, until_unchanged
from fsstore.runtime.tuning import MANY_CHUNKS, PAGE
from fsstore.values.json_value import loads, quote, show

Changed: TypeAlias = Callable[[], Awaitable[None]]
"""Work that has to follow a change: renewing consolidated metadata, for one."""


class Attributes(MutableMapping[str, Any]):
    """The attributes of an array or a group.

    They are read when they are first asked for, and kept; `refresh` reads them again.  Assigning, deleting and `update`
    store one new document and wait until it is durable.  Values are JSON: text, numbers, lists, dictionaries, None.

    >>> import fsstore as ts
    >>> store = ts.open("memory://|zarr3:", create=True, dtype="int8", shape=[3]).result()
    >>> store.attrs["units"] = "K"
    >>> store.attrs
    {'units': 'K'}
    """

    __slots__ = ("_changed", "_known", "_place", "_refusal", "_words")

    def __init__(
        self,
        place: KvPrefix,
        words: NodeWords,
        *,
        known: Mapping[str, Any] | None = None,
        changed: Changed | None = None,
        refusal: str = "",
    ) -> None:
        self._place, self._words = place, words
        self._known = None if known is None else dict(known)
        self._changed, self._refusal = changed, refusal

    def refresh(self) -> Attributes:
        """Read the attributes again, and return them."""
        self._known = execution.call(self._read(), waits=self._place.driver.features.waits)
        return self

    def asdict(self) -> dict[str, Any]:
        """Return a copy as a dictionary."""
        return dict(self._all())

    def put(self, attributes: Mapping[str, Any]) -> None:
        """Replace all attributes."""
        self._change(lambda _: dict(attributes))

    def update(self, *others: Any, **named: Any) -> None:
        """Add several attributes with one write."""
        added = dict(*others, **named)
        self._change(lambda now: {**now, **added})

    def clear(self) -> None:
        """Remove all attributes with one write."""
        self.put({})

    def __getitem__(self, name: str) -> Any:
        """Return an attribute; raise `KeyError` if there is none of that name."""
        return self._all()[name]

    def __setitem__(self, name: str, value: Any) -> None:
        """Store an attribute and wait until it is durable."""
        self._change(lambda now: {**now, name: value})

    def __delitem__(self, name: str) -> None:
        """Remove an attribute; raise `KeyError` if there is none of that name."""

        def without(now: dict[str, Any]) -> dict[str, Any]:
            del now[name]
            return now

        self._change(without)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self._all())

    def __len__(self) -> int:
        """Return how many attributes there are."""
        return len(self._all())

    def __repr__(self) -> str:
        """Return them as a dictionary is printed."""
        return repr(dict(self._all()))

    def _all(self) -> dict[str, Any]:
        if self._known is None:
            self.refresh()
        assert self._known is not None
        return self._known

    async def _read(self) -> dict[str, Any]:
        answer = await self._place.read(self._words.attributes)
        if answer.state != "value":
            return {}
        return self._words.attributes_of(parsed(bytes(answer.value), self._where))

    @property
    def _where(self) -> str:
        return self._place.describe(self._words.attributes)

    def _change(self, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        if self._refusal:
            raise StoreError(self._refusal)
        self._known = execution.call(self._changing(edit), waits=self._place.driver.features.waits)

    async def _changing(self, edit: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
        now: dict[str, Any] = {}

        def changed(stored: bytes | None) -> bytes:
            nonlocal now
            before = {} if stored is None else self._words.attributes_of(parsed(stored, self._where))
            now = checked(edit(before))
            return self._words.with_attributes(stored, now, self._where)

        await change_document(self._place, self._words.attributes, changed)
        if self._changed is not None:
            await self._changed()
        return now


def checked(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as they will be read again; raise `TypeError` if one is no JSON."""
    for name, value in attributes.items():
        if not isinstance(name, str):
            raise TypeError(f"The name of an attribute is text, not {show(name)[:80]}")
        try:
            json.dumps(value)
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(
                f"The attribute {show(name)} cannot be stored as JSON ({error}); convert NumPy values with `.tolist()`"
            ) from None
    found: dict[str, Any] = loads(json.dumps(dict(attributes)), lenient=True)
    return found


async def change_document(place: KvPrefix, key: str, changed: Callable[[bytes | None], bytes | None]) -> bytes | None:
    """Replace a document by what `changed` makes of it, unless that is None; return what is stored then.

    Nothing that another writer stores meanwhile is lost: the change is made again on top of it.
    """

    async def attempt() -> bytes | None:
        answer = await place.read(key)
        stored = bytes(answer.value) if answer.state == "value" else None
        wanted = changed(stored)
        if wanted is None or wanted == stored:
            return stored
        condition = NO_VALUE if stored is None else answer.generation
        if (await place.write(key, wanted, condition)).generation == UNKNOWN:
            raise ChangedError
        return wanted

    return await until_unchanged(attempt, partial(place.describe, key))


# Keeping consolidated metadata true when one array below them changes.

_ROOTS = {".zarray": (".zmetadata", ".zgroup"), "zarr.json": ("zarr.json", "zarr.json")}


async def renew_collected(array: KvPrefix, key: str, *others: str) -> None:
    """Say in all consolidated metadata above an array what its documents are now.

    `key` is the one that makes it an array, `others` are beside it.  The search goes up through groups and ends at the
    first place that is none.
    """
    if key not in _ROOTS:
        return
    root, _ = _ROOTS[key]
    async for group, name in _groups_above(array, key):
        attempt = partial(_renew_once, array, (key, *others), (group, root, name))
        await until_unchanged(attempt, partial(array.describe, key))


async def _renew_once(array: KvPrefix, keys: Sequence[str], above: tuple[KvPrefix, str, str]) -> None:
    group, root, name = above
    documents = await _read(array, keys)
    entries = _entries(name, documents)

    def changed(stored: bytes | None) -> bytes | None:
        return None if stored is None else _renewed(parsed(stored, group.describe(root)), root, entries)

    await change_document(group, root, changed)
    if await _read(array, keys) != documents:
        raise ChangedError


def attributes_of(driver: ArrayDriver, *, writable: bool) -> Attributes:
    """Return the attributes of the stored array that a driver shows, through views and conversions.

    Changes are told to the consolidated metadata above it.
    """
    while driver.kvstore is None and driver.base is not None:
        driver = driver.base.driver
    words = words_of(driver.kind.id)
    if words is None or driver.kvstore is None:
        raise UnimplementedError(f"The {quote(driver.kind.id)} driver has no attributes; arrays of zarr and N5 have")
    refusal = "" if writable else "The array was opened for reading; open it with `write=True` to change its attributes"
    place = driver.kvstore.prefix
    beside = () if words.attributes == words.array else (words.attributes,)
    told = partial(renew_collected, place, words.array, *beside)
    return Attributes(place, words, changed=told, refusal=refusal)


async def _groups_above(array: KvPrefix, key: str) -> AsyncIterator[tuple[KvPrefix, str]]:
    """Yield the groups above with consolidated metadata that know the array, and the path of the array in each."""
    root, marker = _ROOTS[key]
    path, name = array.path.rstrip("/"), ""
    while path:
        path, slash, last = path.rpartition("/")
        name = f"{last}/{name}" if name else last
        group = KvPrefix(array.driver, path + slash)
        try:
            answers = await group.read_many([Read(each) for each in dict.fromkeys((root, marker))])
        except PermissionDeniedError:  # what object stores say of keys that are not there and may not be listed
            return
        if all(answer.state != "value" for answer in answers):
            return
        if answers[0].state == "value":
            found = parsed(bytes(answers[0].value), group.describe(root))
            collected = _collected(found, root)
            if collected is not None and (name in collected or f"{name}/{key}" in collected):
                yield group, name


async def _read(array: KvPrefix, keys: Sequence[str]) -> dict[str, bytes]:
    answers = await array.read_many([Read(key) for key in keys])
    return {key: bytes(answer.value) for key, answer in zip(keys, answers, strict=True) if answer.state == "value"}


def _entries(name: str, documents: Mapping[str, bytes]) -> dict[str, Any]:
    return {
        name if key == "zarr.json" else f"{name}/{key}": parsed(data, f"{name}/{key}")
        for key, data in documents.items()
    }


def _collected(document: Mapping[str, Any], root: str) -> dict[str, Any] | None:
    outer = document if root == ".zmetadata" else document.get("consolidated_metadata")
    inner = outer.get("metadata") if isinstance(outer, Mapping) else None
    return dict(inner) if isinstance(inner, Mapping) else None


def _renewed(document: Mapping[str, Any], root: str, entries: Mapping[str, Any]) -> bytes | None:
    """Return a root document with entries replaced; None if it says the same, or is not consolidated any more."""
    collected = _collected(document, root)
    if collected is None or entries.items() <= collected.items():
        return None
    new = {**collected, **entries}
    if root == ".zmetadata":
        return json.dumps({**document, "metadata": new}).encode()
    outer = {**document["consolidated_metadata"], "metadata": new}
    return json.dumps({**document, "consolidated_metadata": outer}).encode()


Interval = tuple[int | None, int | None]


@dataclass(frozen=True, slots=True)
class ResizeTarget:
    """The new extent of each dimension of the array, None where it stays; `shown` bounds what the view shows."""

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
    """Return the change of the array that new bounds of a view need; None if none.

    `tied` is the leave to change what the view hides; the last `fixed` dimensions of the array have their extent.
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
    """Raise unless each dimension of the array follows a dimension of the view of its own, or is one place of it."""
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
    """Return the part of a dimension of the array that a view shows: bounds that are implicit hide nothing."""
    if output.method != SINGLE:
        return output.offset, output.offset + 1
    dimension = output.input_dimension
    low = None if domain.implicit_lower_bounds[dimension] else domain.inclusive_min[dimension]
    high = None if domain.implicit_upper_bounds[dimension] else domain.exclusive_max[dimension]
    return _below(output, (low, high))


# Deleting the chunks that a smaller shape has left outside an array, once the smaller shape is stored.

_Numbers = Sequence[int]


async def delete_outside(entry: MetadataEntry, old: ChunkedArray, new: ChunkedArray) -> None:
    """Delete the chunks of `old` that have no element of `new`, nor of the array as others have made it since."""
    counts = _counts(old)
    kept = tuple(map(min, counts, _counts(new)))
    async for chunks in _outside(entry.store, old.model, counts, kept):
        left = chunks
        while left:
            left = await _delete(entry, old, left)


async def _delete(entry: MetadataEntry, old: ChunkedArray, chunks: Sequence[_Numbers]) -> list[_Numbers]:
    """Delete chunks unless the array has them again; return those that another writer has just written."""
    keys = {old.model.key(numbers): numbers for numbers in chunks}
    seen = await _stored(entry.store, keys)
    newest = await entry.read(fresh_after=math.inf)
    if newest is None or not entry.is_same(old, newest):
        return []  # what lies there is not of this array any more
    present = _counts(newest)
    gone = [Write(key, None, generation) for key, generation in seen.items() if any(map(ge, keys[key], present))]
    stamps = await entry.store.write_many(gone) if gone else []
    return [
        keys[write.key]
        for write, stamp in zip(gone, stamps, strict=True)
        if write.if_equal != UNKNOWN and stamp.generation == UNKNOWN
    ]


def _counts(array: ChunkedArray) -> tuple[int, ...]:
    """Return how many chunks an array has along each dimension."""
    return tuple(
        axis.chunk_of(extent - 1) + 1 if extent else 0
        for axis, extent in zip(array.model.axes, array.shape, strict=True)
    )


async def _stored(store: KvPrefix, keys: Iterable[str]) -> dict[str, bytes]:
    """Return the generations of what is stored; of all keys none where they are no conditions for deleting.

    That is also so in a transaction, which would fail by them when a part of it is stored.
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
    """Yield the numbers of chunks of which fewer are kept, in batches."""
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
            await finish(self._entry.store)  # what was begun in the larger shape
            await delete_outside(self._entry, old, new)
        return new

    async def _attempt(self, target: ResizeTarget) -> tuple[ChunkedArray, ChunkedArray]:
        """Replace the metadata; return those before and after."""
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
        """Return whether other fields than the one shown would be resized, without leave."""
        model = self._current().model
        shared = model.component is not None and len(model.chain.chunk.dtype.names or ()) > 1
        return shared and not self._options.resize_tied_bounds
