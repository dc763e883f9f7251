"""Reference sets (kerchunk): open, look into, combine, write, make and check them.

    from fsstore import references

    refs = references.open("s3://bucket/refs.json.zst")
    refs.inspect()                        # hosts, codecs and bytes, before anything is fetched
    refs.rewrite({"s3://old/": "s3://new/"}).save("file:///data/refs.parquet")
    references.scan(["a.nc", "b.nc"], concat_dims=["time"]).save("file:///data/both.json")
    assert references.verify("file:///data/both.json")

To read arrays through a set, open `<url>|reference:` with `fsstore.open` or `fsstore.KvStore.open`; a set in memory has
`references.store`.  This module is the door; what is behind it lives in `fsstore.kvstore.reference`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace as replaced
from itertools import islice
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fsstore.combine.checking import undecodable, verify_targets
from fsstore.combine.combined import Combined, CombinedSaving, dataset_at
from fsstore.combine.report import ArrayReport, CombineError, CombineReport, Difference
from fsstore.combine.verbs import append, changed_files, combine, drop, replace
from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.reference.collection.live_set import live_state, live_targets
from fsstore.kvstore.reference.collection.references import References, Saving
from fsstore.kvstore.reference.document.json_refs import from_mapping
from fsstore.kvstore.reference.driver import driver_in_memory
from fsstore.kvstore.reference.kind import targets_of
from fsstore.kvstore.reference.load import Reading, Way, document_at, load
from fsstore.kvstore.reference.state.refset import TableSet
from fsstore.kvstore.reference.state.set_state import State
from fsstore.kvstore.reference.table.value import Located
from fsstore.kvstore.reference.target.location import beside
from fsstore.kvstore.reference.target.targets import open_with_spec
from fsstore.kvstore.reference.tools.report import Report, Touched
from fsstore.kvstore.reference.tools.scan import ScanError, Scanned, scan_files
from fsstore.kvstore.reference.tools.scan import combine as combine_documents
from fsstore.kvstore.reference.tools.verify import MAX_PROBLEMS, Problem, SetVerification
from fsstore.kvstore.root.live import is_live_set
from fsstore.kvstore.scan.as_references import (
    document_of,
    format_of,
    references_of,
    scan_at,
    scanned_format,
)
from fsstore.kvstore.scan.driver import ScanDriver
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.runtime import execution
from fsstore.values.json_value import quote

__all__ = [
    "ArrayReport",
    "CombineError",
    "CombineReport",
    "Combined",
    "CombinedSaving",
    "Difference",
    "Located",
    "Problem",
    "References",
    "Report",
    "Saving",
    "ScanError",
    "Scanned",
    "SetVerification",
    "Touched",
    "append",
    "changed_files",
    "combine",
    "drop",
    "inspect",
    "open",
    "replace",
    "scan",
    "store",
    "verify",
]


_SETS, _AT_ONCE = re.compile(r"\.(?:json|parq|parquet)\b|/\Z"), 16


async def _open(source: Any, reading: Reading, way: Way = Way()) -> References:  # noqa: B008  # frozen
    found = await _look(source, reading, way)
    return found.references if isinstance(found, Combined) else found


async def _look(source: Any, reading: Reading, way: Way) -> References | Combined:
    if isinstance(source, References | Combined):
        return source
    if isinstance(source, Mapping) and "driver" not in source:
        state = State(from_mapping(source, target=reading.target, overrides=reading.templates))
        return References(state, "in memory")
    if is_live_set(source):
        state, place = await live_state(source, reading)
        return References(state, "in memory" if place is None else place.describe(), place=place)
    base = await document_at(source, way)
    if base.driver.id == "icechunk":
        return await _of_snapshot(base)
    found = await _scanned(source, base)
    if found is not None:
        return References(State(found), base.describe(), place=await beside(base))
    try:
        return References(await load(base, reading), base.describe(), place=await beside(base))
    except StoreError:
        dataset = await dataset_at(base)
        if dataset is None:
            raise
        return dataset


async def _scanned(source: Any, base: KvPrefix) -> TableSet | None:
    """Return the references of a file of a scanned format, or of the adapter that shows one; None for a set."""
    url = source if isinstance(source, str) else fspath(source) if isinstance(source, PathLike) else ""
    if isinstance(base.driver, ScanDriver):
        return (await references_of(base.driver, url.rpartition("|")[0]))[0] if url else None
    if not url or _SETS.search(url):
        return None
    try:
        name = await format_of(base)
    except StoreError:  # `load` says what is wrong
        return None
    return None if name is None else (await scan_at(base, name, url))[0]


async def _of_snapshot(base: KvPrefix) -> References:
    """Return the references of a snapshot of an Icechunk repository, from where that lies."""
    from fsstore.kvstore.icechunk.driver import IcechunkDriver
    from fsstore.kvstore.icechunk.export import references_of

    assert isinstance(base.driver, IcechunkDriver)
    state = State(from_mapping(await references_of(base.driver, base.path)))
    return References(state, base.describe(), place=base.driver.repository.base)


def open(  # noqa: A001  # the door is a module: references.open
    source: Any,
    *,
    target: str | None = None,
    templates: Mapping[str, str] | None = None,
    create: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    context: Any = None,
) -> References:
    """Return the reference set at a URL, path or kvstore spec, in a mapping, or in a live `ReferenceFileSystem`.

    A file of another format (HDF5, TIFF, ...) is scanned: what comes is the set of its chunks, to be saved for others;
    `...|icechunk:` gives that of a snapshot.  A virtual dataset is a set if no array is layered; `Combined.open` opens
    any.  `target` stands in for null URLs, `templates` replaces or adds some; with `create` a missing set is an empty
    one.  `storage_options` and `context` are for the place.
    Raises `NotFoundError` if there is none, and `JsonError` with every malformed reference.

    >>> refs = open({"x/0": ["s3://bucket/file", 10, 20], "x/1": "inline"})
    >>> refs["x/0"]
    Located(url='s3://bucket/file', offset=10, length=20)
    >>> refs["x/1"]
    b'inline'
    """
    reading = Reading(target, templates, create=create, creates="`create=True` begins one")
    return execution.call(_open(source, reading, Way(storage_options, context)))


def store(
    source: Any,
    *,
    targets: Mapping[str, Any] | None = None,
    rewrite: Mapping[str, str] | None = None,
    allow: Sequence[str] | None = None,
    target: str | None = None,
) -> KvStore:
    """Return the key-value store of a set in memory: a mapping, `References`, or a live `ReferenceFileSystem`.

    Relative URLs start from where the set lies, those of a mapping from the working directory.  Writes change this
    store only.  That of a mapping is pickled with the references it has by then, without credentials in `targets`.
    """
    from fsstore.kvstore.spec.opening import OpenKv
    from fsstore.kvstore.spec.spec_value import KvSpecValue, kv_kind

    refs = execution.call(_open(source, Reading(target)))
    granted = {**live_targets(source), **targets_of(targets or {})}
    members = {"targets": granted, "rewrite": rewrite, "allow": allow}
    driver = driver_in_memory(refs.state, members, refs.place)
    kind = kv_kind("memory")
    if kind is None:
        raise StoreError("the memory key-value store is not registered")
    return KvStore.of(OpenKv(driver, "", KvSpecValue.of(kind, "").replace(live=driver)))


def inspect(source: Any, *, storage_options: Mapping[str, Any] | None = None, context: Any = None) -> Report:
    """Return the places, codecs, arrays and bytes of a set or a virtual dataset; only the document itself is read."""
    return execution.call(_look(source, Reading(), Way(storage_options, context))).inspect()


def scan(
    urls: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    inline_threshold: int = 0,
    concat_dims: Sequence[str] = (),
    combine_options: Mapping[str, Any] | None = None,
    on_error: Literal["raise", "skip"] = "raise",
    progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> References:
    """Return the reference set of one or more files: HDF5, NetCDF 3, GRIB 2, FITS, TIFF, zarr.

    Relative paths start from the working directory; saved elsewhere, the set still finds its files.
    Chunks of up to `inline_threshold` bytes stand in the set itself.
    Several files are combined along `concat_dims`, by kerchunk, which also scans groups of zarr and, where they are
    combined or `options` are given, messages of GRIB, in processes of their own.  Files that fail are named in a
    `ScanError`, or left out with `on_error="skip"`; parts of a file that are left out are named in a warning.
    `options` are `format`, `storage_options`, and those of kerchunk's scanner.
    """
    listed = [fspath(url) for url in ([urls] if isinstance(urls, str | PathLike) else urls)]
    wishes = _Wishes(inline_threshold, bool(concat_dims), options, progress)
    sets = execution.call(_scanned_here(listed, wishes))
    if len(listed) == 1 and listed[0] in sets.found:
        _warn_of(listed[0], sets.notes[listed[0]])
        here = execution.call(document_at(f"{Path.cwd()}/"))
        return References(State(sets.found[listed[0]]), f"scan of {listed[0]}", place=here)
    if inline_threshold:
        options["inline_threshold"] = inline_threshold
    scanned = scan_files([url for url in listed if url not in sets.done], options, progress=progress)
    scanned.failures.update(sets.failures)
    scanned.documents.update({url: [document_of(found)] for url, found in sets.found.items()})
    scanned.left_out.update({url: "; ".join(notes) for url, notes in sets.notes.items() if notes})
    if scanned.failures and (on_error == "raise" or not scanned.documents):
        raise ScanError(scanned.failures)
    for url, parts in scanned.left_out.items():
        warnings.warn(f"The set of {url} lacks {parts}", stacklevel=2)
    documents = [document for url in listed for document in scanned.documents.get(url, [])]
    arguments = {**({"concat_dims": list(concat_dims)} if concat_dims else {}), **(combine_options or {})}
    state = State(combine_documents(documents, arguments))
    return References(
        state, f"scan of {len(listed)} files", place=execution.call(document_at(f"{Path.cwd()}/"))
    )


def _warn_of(url: str, notes: Sequence[str]) -> None:
    if notes:
        warnings.warn(f"The set of {url} lacks {'; '.join(notes)}", stacklevel=3)


class _Here(NamedTuple):
    """The files that were scanned in this process: their sets, what those lack, and why others failed."""

    found: dict[str, TableSet]
    notes: dict[str, list[str]]
    failures: dict[str, str]

    @property
    def done(self) -> set[str]:
        """The files that no other scanner is asked for."""
        return {*self.found, *self.failures}


class _Wishes(NamedTuple):
    """How files are scanned: which chunks are inline, whether they are combined, and options of scanners."""

    inline: int
    combined: bool
    options: Mapping[str, Any]
    progress: Callable[[int, int, str], None] | None


async def _scanned_here(urls: Sequence[str], wishes: _Wishes) -> _Here:
    """Scan the files whose formats have a scanner of ours, some of them at the same time.

    Messages of GRIB that are combined, or chosen by options, are left to kerchunk: it takes them one by one.
    """
    sets, options = _Here({}, {}, {}), wishes.options
    given = scanned_format(options["format"]) if "format" in options else None
    if "format" in options and given is None:
        return sets
    others = sorted(set(options) - {"format", "storage_options"})

    async def one(url: str) -> None:
        try:
            place = await _target(url, options.get("storage_options"))
            name = given or await format_of(place)
            if name is None or (name == "grib" and (wishes.combined or others)):
                return
        except StoreError:  # kerchunk may know what is there, or how to say what is not
            return
        try:
            if others:
                raise UnimplementedError(f"scanning {name} has no options {', '.join(others)}")
            sets.found[url], notes = await scan_at(place, name, url, wishes.inline)
            sets.notes[url] = [f"{quote(path)}: {why}" for path, why in sorted(notes.items())]
        except StoreError as error:
            sets.failures[url] = error.message
        if wishes.progress is not None:
            wishes.progress(len(sets.done), len(urls), url)

    for start in range(0, len(urls), _AT_ONCE):
        await execution.gather(map(one, urls[start : start + _AT_ONCE]))
    return sets


async def _target(url: str, storage_options: Mapping[str, Any] | None) -> KvPrefix:
    return await open_with_spec(url, storage_options) if storage_options else await document_at(url)


def verify(
    source: Any,
    *,
    decode: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    context: Any = None,
    **members: Any,
) -> SetVerification:
    """Return what is wrong between a set and its targets: missing, unreachable or short ones.

    With `decode` every array is opened, and every chunk that has a reference is read and decoded as well.
    `members` are those of the `reference` kvstore: `target`, `targets`, `rewrite`, `templates`, `allow`.
    For a virtual dataset, files that have changed since they were scanned are named too.

    >>> bool(verify({"x/0": "inline"}))
    True
    """
    reading = Reading(members.pop("target", None), members.pop("templates", None))
    refs = execution.call(_look(source, reading, Way(storage_options, context)))
    if isinstance(refs, Combined):
        return refs.verify(decode=decode, **members)
    if not members.get("targets"):
        members["targets"] = live_targets(source)
    found = execution.call(verify_targets(refs, members))
    if not decode:
        return found
    damaged = tuple(islice(undecodable(refs, store(refs, **members)), MAX_PROBLEMS))
    return replaced(found, problems=found.problems + damaged)
