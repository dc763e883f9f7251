"""Keeping consolidated metadata true when one array below them changes.

Groups may hold the documents of everything below in one: `.zmetadata` in zarr v2, a member of `zarr.json` in v3.  A
reader that believes them takes an array for what it was when they were written: too short after an append, and of
another type after it was replaced.  So an array that changes, or whose attributes do, says so in every group above it
that has such a document and knows the array.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any

from fsstore.driver.attributes import Attributes, change_document
from fsstore.driver.contract import ArrayDriver
from fsstore.driver.tuning import METADATA_ATTEMPTS
from fsstore.errors import AbortedError, PermissionDeniedError, UnimplementedError
from fsstore.format.attributes import parsed, words_of
from fsstore.kvstore.contract.driver import KvPrefix, Read
from fsstore.values.json_value import quote

__all__ = ["attributes_of", "renew_collected"]

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
        for _ in range(METADATA_ATTEMPTS):
            documents = await _read(array, (key, *others))
            entries = _entries(name, documents)

            def changed(
                stored: bytes | None, entries: Mapping[str, Any] = entries, at: KvPrefix = group
            ) -> bytes | None:
                return None if stored is None else _renewed(parsed(stored, at.describe(root)), root, entries)

            await change_document(group, root, changed)
            if await _read(array, (key, *others)) == documents:
                break
        else:
            raise AbortedError(
                f"{array.describe(key)} was changed by other writers {METADATA_ATTEMPTS} times in a row"
            )


def attributes_of(driver: ArrayDriver, *, writable: bool) -> Attributes:
    """Return the attributes of the stored array that a driver shows, through views and conversions.

    Changes are told to the consolidated metadata above it.
    """
    while driver.kvstore is None and driver.base is not None:
        driver = driver.base.driver
    words = words_of(driver.kind.id)
    if words is None or driver.kvstore is None:
        raise UnimplementedError(
            f"The {quote(driver.kind.id)} driver has no attributes; arrays of zarr and N5 have"
        )
    refusal = (
        ""
        if writable
        else "The array was opened for reading; open it with `write=True` to change its attributes"
    )
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
        except (
            PermissionDeniedError
        ):  # what object stores say of keys that are not there and may not be listed
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
    return {
        key: bytes(answer.value) for key, answer in zip(keys, answers, strict=True) if answer.state == "value"
    }


def _entries(name: str, documents: Mapping[str, bytes]) -> dict[str, Any]:
    """Return the documents of an array by the names under which they are collected."""
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
