"""`Attributes`: the attributes of an array or a group as a mapping, read at once and written conditionally.

Every change reads the document, changes it and stores it on condition that nobody has replaced it meanwhile, and is
tried again until that holds: additions of other writers stay.  Consolidated metadata above an array are kept up to date
when the array changes.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from fsstore.driver.contract import ArrayDriver
from fsstore.errors import PermissionDeniedError, StoreError, UnimplementedError
from fsstore.format.attributes import NodeWords, parsed, words_of
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvPrefix, Read
from fsstore.runtime import execution
from fsstore.runtime.together import ChangedError, until_unchanged
from fsstore.values.json_value import loads, quote, show

Changed: TypeAlias = Callable[[], Awaitable[None]]
"""Work that follows a change, for example renewing consolidated metadata."""


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
        return len(self._all())

    def __repr__(self) -> str:
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
    """Return attributes as a reader will get them; raise `TypeError` if one has no form in JSON."""
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
    """Replace a document by the result of `changed`, unless that is None; return the document that is stored then.

    No change of another writer is lost: if the document was replaced meanwhile, `changed` is called again with the new
    one.
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


# Keeping consolidated metadata up to date when one array below them changes.

_ROOTS = {".zarray": (".zmetadata", ".zgroup"), "zarr.json": ("zarr.json", "zarr.json")}


async def renew_collected(array: KvPrefix, key: str, *others: str) -> None:
    """Copy the documents of an array into all consolidated metadata above it.

    `key` names the document that describes the array, `others` the documents beside it. The search goes up through
    groups and ends at the first directory that is no group.
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

    The consolidated metadata above the array follow every change.
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
    """Yield the groups above the array whose consolidated metadata list it, and the path of the array in each group."""
    root, marker = _ROOTS[key]
    path, name = array.path.rstrip("/"), ""
    while path:
        path, slash, last = path.rpartition("/")
        name = f"{last}/{name}" if name else last
        group = KvPrefix(array.driver, path + slash)
        try:
            answers = await group.read_many([Read(each) for each in dict.fromkeys((root, marker))])
        except PermissionDeniedError:  # object stores answer so for missing keys where listing is not allowed
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
    """Return a root document with entries replaced; None if nothing changes, or if it is not consolidated any more."""
    collected = _collected(document, root)
    if collected is None or entries.items() <= collected.items():
        return None
    new = {**collected, **entries}
    if root == ".zmetadata":
        return json.dumps({**document, "metadata": new}).encode()
    outer = {**document["consolidated_metadata"], "metadata": new}
    return json.dumps({**document, "consolidated_metadata": outer}).encode()
