"""Consolidated metadata: all documents of a hierarchy in one, made, kept true, and compared with what stands there.

zarr v2 keeps them in `.zmetadata`, zarr v3 inside the `zarr.json` of the group.  A reader that relies on them sees the
hierarchy as it was when they were written; so every change made through a group is made there, too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from fsstore.driver.attributes import change_document
from fsstore.driver.hierarchy import hierarchy_documents
from fsstore.errors import StoreError
from fsstore.format.attributes import ZARR2_WORDS, ZARR3_WORDS, NodeWords, inline_metadata, parsed
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.runtime.attempt import ChangedError, until_unchanged
from fsstore.values.json_value import same

__all__ = [
    "consolidate",
    "consolidated",
    "is_consolidated",
    "levels_above",
    "renew",
    "renew_attributes",
    "root_document",
    "says_the_same",
]

_DOCUMENTS = (*ZARR2_WORDS.documents, "zarr.json")


def root_document(words: NodeWords) -> str | None:
    """Return the key of the document that holds consolidated metadata in a format, or None if it has none."""
    return {3: "zarr.json", 2: ".zmetadata"}.get(words.zarr_format)


def levels_above(path: str) -> list[str]:
    """Return the paths of the groups that a path lies in, the outermost first: `a/b/c` has ``, `a`, `a/b`."""
    parts = path.split("/")[:-1]
    return ["/".join(parts[:depth]) for depth in range(len(parts) + 1)] if path else []


async def consolidate(place: KvPrefix, words: NodeWords) -> list[str]:
    """Write the consolidated metadata of the group at a place; return the paths whose entries have changed.

    Unreadable documents are an error, because a reader that relies on the result would miss the nodes they describe.
    """
    key = root_document(words)
    if key is None:
        raise StoreError(f"N5 has no consolidated metadata: {place.describe()}")
    before: dict[str, Any] | None = None
    fresh = await _fresh(place, words)

    async def attempt() -> None:
        nonlocal fresh
        entries = fresh

        def changed(stored: bytes | None) -> bytes:
            nonlocal before
            document = {} if stored is None else parsed(stored, place.describe(key))
            before = _entries(document, words) if before is None else before
            return _document(document, entries, words)

        await change_document(place, key, changed)
        fresh = await _fresh(place, words)
        if fresh != entries:
            raise ChangedError

    await until_unchanged(attempt, lambda: f"The hierarchy below {place.describe()}")
    if not before:
        return []
    return sorted({_path(name, words) for name in {*before, *fresh} if before.get(name) != fresh.get(name)})


async def _fresh(place: KvPrefix, words: NodeWords) -> dict[str, Any]:
    """Return the entries of what is below a group now; unreadable documents are an error."""
    found = await hierarchy_documents(place)
    for error in found.damaged.values():
        raise error.within(f"The metadata below {place.describe()} cannot be consolidated")
    return _collected(found.found, words)


def consolidated(documents: Mapping[str, bytes], words: NodeWords) -> dict[str, bytes]:
    """Return the document with the consolidated metadata of a group, under its key, given all documents below it."""
    key = root_document(words)
    if key is None:
        return {}
    known = {name: parsed(value, name) for name, value in documents.items()}
    return {key: _document(known.get(key, {}), _collected(known, words), words)}


async def renew(place: KvPrefix, words: NodeWords, path: str, *, gone: bool = False) -> None:
    """Update the entries for a path, and for everything below it, in all consolidated metadata above, up to the place.

    With `gone` the entries are removed.  Groups without consolidated metadata do not change.
    """
    key = root_document(words)
    if key is None:
        return
    for level in levels_above(path):
        group = place.join(f"{level}/" if level else "")
        answer = await group.read(key)
        if answer.state == "value" and is_consolidated(
            parsed(bytes(answer.value), group.describe(key)), words
        ):
            await _renew_one(group, key, words, path[len(level) :].lstrip("/"), gone=gone)


async def renew_attributes(place: KvPrefix, words: NodeWords, path: str) -> None:
    """Update the attributes of a group in the consolidated metadata of the group itself and of all groups above it.

    In zarr v3 one document holds attributes and consolidated metadata; in zarr v2 `.zmetadata` repeats the attributes.
    """
    if path:
        await renew(place, words, path)
    if words.zarr_format != 2:
        return
    group = place.join(f"{path}/" if path else "")

    async def attempt() -> None:
        answer = await group.read(words.attributes)
        own = (
            parsed(bytes(answer.value), group.describe(words.attributes)) if answer.state == "value" else None
        )
        await change_document(group, ".zmetadata", partial(_with_own, group, words, own))
        now = await group.read(words.attributes)
        if (now.state, now.value) != (answer.state, answer.value):
            raise ChangedError

    await until_unchanged(attempt, partial(group.describe, words.attributes))


def _with_own(
    group: KvPrefix, words: NodeWords, own: Mapping[str, Any] | None, stored: bytes | None
) -> bytes | None:
    """Return consolidated metadata of zarr v2 that repeat the attributes of their group; None if there are none."""
    if stored is None:
        return None
    document = parsed(stored, group.describe(".zmetadata"))
    if not is_consolidated(document, words):
        return stored
    entries = {name: entry for name, entry in _entries(document, words).items() if name != words.attributes}
    return _document(document, entries if own is None else {**entries, words.attributes: own}, words)


def is_consolidated(document: Mapping[str, Any], words: NodeWords) -> bool:
    """Whether a root document holds consolidated metadata, even if of nothing."""
    return _inner(document, words) is not None


def says_the_same(root: Mapping[str, Any], words: NodeWords, path: str, document: Mapping[str, Any]) -> bool:
    """Whether consolidated metadata, if there are any, agree with the document of the array at a path."""
    if not is_consolidated(root, words):
        return True
    entries = _entries(root, words)
    return same(entries.get(path if words.zarr_format == 3 else f"{path}/{words.array}"), document)


async def _renew_one(group: KvPrefix, key: str, words: NodeWords, path: str, *, gone: bool) -> None:
    async def attempt() -> None:
        fresh = {} if gone else await _below(group, words, path)
        change = partial(_with_entries, group.describe(key), words, path, fresh)
        await change_document(group, key, change)
        if not gone and fresh != await _below(group, words, path):
            raise ChangedError

    await until_unchanged(attempt, group.join(path).describe)


async def _below(group: KvPrefix, words: NodeWords, path: str) -> dict[str, Any]:
    """Return the entries of what is at a path of a group, and below it, now."""
    found = (await hierarchy_documents(group.join(f"{path}/"))).found
    return _collected({f"{path}/{name}": document for name, document in found.items()}, words)


def _with_entries(
    where: str, words: NodeWords, path: str, fresh: Mapping[str, Any], stored: bytes | None
) -> bytes | None:
    """Return a root document in which entries take the place of those at a path and below; None if there is none."""
    if stored is None:
        return None
    document = parsed(stored, where)
    entries = _entries(document, words).items()
    kept = {name: each for name, each in entries if not f"{_path(name, words)}/".startswith(f"{path}/")}
    return _document(document, {**kept, **fresh}, words)


def _collected(documents: Mapping[str, Any], words: NodeWords) -> dict[str, Any]:
    """Return documents under the names by which consolidated metadata know them."""
    if words.zarr_format == 2:
        return {
            key: value for key, value in documents.items() if key.rpartition("/")[2] in ZARR2_WORDS.documents
        }
    names = {key: key.rpartition("/")[0] for key in documents if key.rpartition("/")[2] == ZARR3_WORDS.array}
    return {
        path: {name: part for name, part in documents[key].items() if name != "consolidated_metadata"}
        for key, path in names.items()
        if path and isinstance(documents[key], dict)
    }


def _entries(document: Mapping[str, Any], words: NodeWords) -> dict[str, Any]:
    return dict(_inner(document, words) or {})


def _inner(document: Mapping[str, Any], words: NodeWords) -> Mapping[str, Any] | None:
    inner = document.get("metadata") if words.zarr_format == 2 else inline_metadata(document)
    return inner if isinstance(inner, Mapping) else None


def _document(stored: Mapping[str, Any], entries: Mapping[str, Any], words: NodeWords) -> bytes:
    collected = dict(sorted(entries.items()))
    if words.zarr_format == 2:
        document: dict[str, Any] = {"metadata": collected, "zarr_consolidated_format": 1}
    else:
        inline = {"kind": "inline", "must_understand": False, "metadata": collected}
        document = {"zarr_format": 3, "node_type": "group", **stored, "consolidated_metadata": inline}
    return json.dumps(document, separators=(",", ":")).encode()


def _path(name: str, words: NodeWords) -> str:
    """Return the path of the node that an entry is about."""
    if words.zarr_format == 3:
        return name.strip("/")
    head, _, last = name.rpartition("/")
    return head if last in _DOCUMENTS else name
