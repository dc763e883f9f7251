"""The place of a group: an open store, the format that stands there, and what its consolidated metadata say.

Opening goes into archives, databases and reference sets, and reads the documents of the root and nothing below it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fsstore.context.context import Context
from fsstore.driver.attributes import change_document
from fsstore.driver.auto import Hierarchy, Node, enter_group, hierarchy, hierarchy_documents
from fsstore.errors import FailedPreconditionError, NotFoundError, StoreError
from fsstore.format.attributes import (
    DOCUMENTS,
    N5_WORDS,
    WORDS,
    ZARR2_WORDS,
    ZARR3_WORDS,
    NodeKind,
    NodeWords,
    group_problem,
    inline_metadata,
    is_document,
    parsed,
)
from fsstore.kvstore.contract.ability import KeepsDirectories, able
from fsstore.kvstore.contract.driver import KvPrefix, Read, ReadResult, Write, begin_creating
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.spec_parse import OpenKv, as_directory, holds_values, kv_spec, place_spec, with_root
from fsstore.kvstore.spec_value import KvSpecValue, with_storage_options
from fsstore.reference.mapping import References
from fsstore.runtime.together import ChangedError, until_unchanged
from fsstore.values.json_value import same
from fsstore.values.registry import decode_path, split_pipeline

# The key-value store that a place of a dataset means, whatever people name it by.

_ARRAY_SCHEMES = ("zarr", "zarr2", "zarr3", "n5", "auto")


def store_spec(source: Any, storage_options: Mapping[str, Any] | None = None) -> KvSpecValue:
    """Return the key-value store of a group; an array scheme at the end of a URL only names the format.

    A dictionary that is neither a spec nor holds values is the JSON of a reference set.  `storage_options` are those
    of the root.
    """
    if isinstance(source, str):
        source = with_root(source)
    if isinstance(source, str) and "|" in source:
        last = split_pipeline(source)[-1]
        if last.scheme in _ARRAY_SCHEMES:
            spec = store_spec(source[: source.rindex("|")], storage_options)
            return spec / decode_path(last.rest) if last.rest else spec
    if isinstance(source, References):
        from fsstore import references

        source = references.store(source)
    source = _shown(source)
    if isinstance(source, dict) and source and "driver" not in source and not holds_values(source):
        from fsstore import references

        source = references.store(source)
    return with_storage_options(place_spec(source), storage_options)


def _shown(source: Any) -> Any:
    """Return the store that shows a dataset of many files, and anything else as it is."""
    if isinstance(source, str | dict):
        return source
    from fsstore.combine.combined import Combined

    return source.store if isinstance(source, Combined) else source


def allowing(source: KvSpecValue, prefixes: Sequence[str]) -> KvSpecValue:
    """Return the place of a reference set such that nothing is read but what stands below prefixes of URLs.

    A source that is not said to be anything else is taken for one.
    """
    named = kv_spec({"driver": "reference", "base": {"driver": "memory"}, "allow": [*prefixes]})
    at: KvSpecValue | None = source
    above = []
    while at is not None and at.kind.id != named.kind.id:
        above.append(at)
        at = at.base
    if at is None:
        return named.replace(base=source)
    found = at.replace(members={**at.members, **named.members})
    for each in reversed(above):
        found = each.replace(base=found)
    return found


# Removing what lies below a path: metadata first where a reader must not see fill values in place of data.
#
# A path is taken with its slash, so a node `l` never stands for keys that merely begin with that letter.


async def delete_documents(place: KvPrefix, *, but: str | None = None) -> None:
    """Delete the documents of a node, and then those of everything below it, `but` those below one path.

    From the first deletion on a reader finds no array there, rather than one whose chunks are missing.
    """
    await place.write_many([Write(name, None) for name in sorted(DOCUMENTS)])
    if place.driver.features.listable:
        every = [key async for batch in place.documents() for key in batch.names if is_document(key)]
        found = [key for key in every if but is None or not key.startswith(but)]
        await place.write_many([Write(key, None) for key in sorted(found, key=lambda key: key.count("/"))])


async def delete_tree(place: KvPrefix) -> None:
    """Delete all keys below a place, documents first."""
    await delete_documents(place)
    await place.delete_range(KeyRange())


async def remove_tree(place: KvPrefix) -> None:
    """Delete all keys below a place, and the directory that it is where there are such things."""
    await delete_tree(place)
    await remove_directory(place)


async def remove_directory(place: KvPrefix) -> None:
    """Remove the directory that a place is, where there are such things and it is empty."""
    keeping = able(place.driver, KeepsDirectories)
    if keeping is not None and place.path:
        await keeping.remove_directory(place.path)


# Consolidated metadata: all documents of a hierarchy in one, made, kept true, and compared with what stands
# there.
#
# zarr v2 keeps them in `.zmetadata`, zarr v3 inside the `zarr.json` of the group. A reader that relies on
# them sees the hierarchy as it was when they were written; so every change made through a group is made
# there, too.

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


def with_documents(stored: Mapping[str, bytes], changed: Mapping[str, bytes], words: NodeWords) -> dict[str, bytes]:
    """Return the document with consolidated metadata, under its key, once some documents have changed.

    `stored` has the documents of the root as they are; nothing is returned if they hold metadata without consolidating.
    """
    key = root_document(words)
    if key is None:
        return {}
    before = parsed(stored[key], key) if key in stored else {}
    if words.group in stored and not is_consolidated(before, words):
        return {}
    known = {name: parsed(value, name) for name, value in changed.items()}
    entries = {**_entries(before, words), **_collected(known, words)}
    return {key: _document(known.get(key, before), entries, words)}


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
        if answer.state == "value" and is_consolidated(parsed(bytes(answer.value), group.describe(key)), words):
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
        own = parsed(bytes(answer.value), group.describe(words.attributes)) if answer.state == "value" else None
        await change_document(group, ".zmetadata", partial(_with_own, group, words, own))
        now = await group.read(words.attributes)
        if (now.state, now.value) != (answer.state, answer.value):
            raise ChangedError

    await until_unchanged(attempt, partial(group.describe, words.attributes))


def _with_own(group: KvPrefix, words: NodeWords, own: Mapping[str, Any] | None, stored: bytes | None) -> bytes | None:
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
        return {key: value for key, value in documents.items() if key.rpartition("/")[2] in ZARR2_WORDS.documents}
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
    if words.zarr_format == 3:
        return name.strip("/")
    head, _, last = name.rpartition("/")
    return head if last in _DOCUMENTS else name


_NOTHING: Mapping[str, ReadResult] = {}
_KEYS = ("zarr.json", ".zgroup", ".zarray", ".zattrs", "attributes.json", ".zmetadata")
_BESIDE = (".zmetadata", ".zgroup", ".zattrs")
"""Those of `_KEYS` that detection does not ask for."""


@dataclass(frozen=True, slots=True)
class Found:
    """A group or an array of a format at a path, and its attributes; `kind` is None where there is nothing."""

    kind: NodeKind | None
    words: NodeWords
    attributes: Mapping[str, Any]
    document: Mapping[str, Any]
    consolidated: Mapping[str, Any] = field(default_factory=dict)
    """The document with the consolidated metadata of a group, if it has them."""
    answers: Mapping[str, ReadResult] = field(default_factory=dict)
    """The documents that told it, by key: opening the array need not read them again."""


@dataclass(frozen=True, slots=True)
class Place:
    """An open store at the root of a hierarchy."""

    store: OpenKv
    context: Context
    words: NodeWords
    consolidated: bool
    """Whether consolidated metadata are believed where they are."""
    writable: bool
    believed: Mapping[str, Any] = field(default_factory=dict)
    """The document with consolidated metadata, as it was when the group was opened."""

    @property
    def prefix(self) -> KvPrefix:
        """The driver and the path of the root."""
        return self.store.prefix

    def below(self, path: str) -> KvPrefix:
        """Return the driver and the path of a node."""
        return self.prefix.join(as_directory(path))

    async def look(self, path: str, node: Node | None = None) -> Found:
        """Return what stands at a path, by its own documents; only those of its format if a listing has named it."""
        place, words = self.below(path), self.words
        if node is not None and node.zarr_format == words.zarr_format:
            found = await look(place, words, keys=words.documents)
            if found.kind is not None:
                return found
        return await look(place, words)

    async def contradicts(self, path: str, found: Found) -> bool:
        """Whether consolidated metadata say something else about a path than what was found there."""
        root = root_document(self.words)
        if not self.consolidated or root is None or says_the_same(self.believed, self.words, path, found.document):
            return False
        answer = await self.prefix.read(root)  # they may have been renewed since
        now = parsed(bytes(answer.value), self.prefix.describe(root)) if answer.state == "value" else {}
        return not says_the_same(now, self.words, path, found.document)

    async def listed(self, path: str = "") -> Hierarchy:
        """Return the nodes at and below a path; the paths are relative to it."""
        root = root_document(self.words)
        if self.consolidated and root is not None:
            answer = await self.prefix.read(root)
            if answer.state == "value" and is_consolidated(
                parsed(bytes(answer.value), self.prefix.describe(root)), self.words
            ):
                return _part(await hierarchy(self.prefix, known={root: answer}), path)
        return await hierarchy(self.below(path), consolidated=False)


def _part(whole: Hierarchy, path: str) -> Hierarchy:
    if not path:
        return whole
    cut = len(path) + 1

    def inside(at: str) -> bool:
        return f"{at}/".startswith(f"{path}/")

    nodes = {at[cut:]: replace(node, path=at[cut:]) for at, node in whole.nodes.items() if inside(at)}
    return Hierarchy(
        nodes,
        {at[cut:]: error for at, error in whole.damaged.items() if inside(at)},
        {at[cut:]: why for at, why in whole.left_out.items() if inside(at)},
    )


async def look(
    place: KvPrefix,
    preferred: NodeWords | None = None,
    *,
    keys: Sequence[str] = _KEYS,
    known: Mapping[str, ReadResult] = _NOTHING,
) -> Found:
    """Return what stands at a place, by the documents there; a format found elsewhere wins where several fit.

    `known` are answers to reads of whole documents that were made just now.
    """
    missing = [key for key in keys if key not in known]
    read = await place.read_many([Read(key) for key in missing]) if missing else ()
    answers = {**known, **dict(zip(missing, read, strict=True))}
    found = {key: bytes(answers[key].value) for key in keys if answers[key].state == "value"}
    order = sorted(WORDS.values(), key=lambda words: words is not preferred)
    for words in order:
        kind, document = _kind(place, words, found)
        if kind is not None:
            beside = found.get(words.attributes)
            holder = {} if beside is None else parsed(beside, place.describe(words.attributes))
            root = root_document(words)
            collected = parsed(found[root], place.describe(root)) if root in found else {}
            own = {key: answers[key] for key in words.documents if key in answers}
            return Found(kind, words, words.attributes_of(holder), document, collected, own)
    return Found(None, preferred or ZARR3_WORDS, {}, {})


def _kind(place: KvPrefix, words: NodeWords, found: Mapping[str, bytes]) -> tuple[NodeKind | None, Mapping[str, Any]]:
    if words is ZARR2_WORDS:
        for key in (words.array, words.group):
            if key in found:
                document = parsed(found[key], place.describe(key))
                return ("array" if key == words.array else "group"), document
        return ("group", {}) if ".zmetadata" in found else (None, {})
    if words.group not in found:
        return None, {}
    document = parsed(found[words.group], place.describe(words.group))
    if words is N5_WORDS:
        return ("array" if "dimensions" in document else "group"), document
    kind = document.get("node_type")
    if kind not in ("array", "group"):
        raise StoreError(f'{place.describe(words.group)} is neither an array nor a group: its "node_type" is {kind!r}')
    if kind == "group" and (problem := group_problem(document)) is not None:
        raise FailedPreconditionError(f"Error reading {place.describe(words.group)}: {problem}")
    return ("array" if kind == "array" else "group"), document


async def open_place(
    store: OpenKv, context: Context, mode: str, words: NodeWords | None, *, consolidated: bool
) -> tuple[Place, Found]:
    """Return the place of a group, created if the mode says so, and what stands at it.

    Modes are zarr's: `r` and `r+` want a group that is there, `a` makes one if there is none, `w-` wants none, and
    `w` deletes everything below first.
    """
    directory, known = store, _NOTHING
    if mode == "a":
        begin_creating(store.driver)
    if mode in ("r", "r+", "a"):  # a new place holds nothing to enter
        directory, entered = await enter_group(store, context, _BESIDE)
        known = entered.answers
    directory = directory.as_directory()
    prefix = directory.prefix
    if mode != "r":
        begin_creating(prefix.driver)
    found = await look(prefix, known=known)
    place = Place(directory, context, found.words, consolidated, writable=mode != "r")
    if found.kind == "array":
        raise StoreError(f"{prefix.describe()} is an array and no group; `fsstore.open` opens it")
    if mode == "w-" and found.kind is not None:
        raise StoreError(f'There is a group at {prefix.describe()} already; mode="a" opens it')
    if mode == "w":
        await delete_tree(prefix)
        found = replace(found, kind=None)
    if found.kind is None and mode in ("a", "w", "w-"):
        return await _create(place, words or ZARR3_WORDS)
    if found.kind is None:
        return await _implicit(place)
    return replace(place, believed=found.consolidated), found


async def _create(place: Place, words: NodeWords) -> tuple[Place, Found]:
    for key, value in words.new_group({}).items():
        await place.prefix.write(key, value)
    return replace(place, words=words), Found("group", words, {}, {})


async def _implicit(place: Place) -> tuple[Place, Found]:
    """Return a group without a document of its own, which is one by what lies below it."""
    nodes, damaged, _ = await hierarchy(place.prefix, consolidated=False)
    if not nodes and not damaged:
        raise NotFoundError(
            f'There is no array or group at {place.prefix.describe()}; check the path, or create a group with mode="a"'
        )
    first: Node | None = next(iter(nodes.values()), None)
    words = WORDS[first.zarr_format] if first is not None else ZARR3_WORDS
    return replace(place, words=words), Found("group", words, {}, {})
