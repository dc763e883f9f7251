"""Reference sets (kerchunk): open, look into, combine, write, make and check them.

    from fsstore import references

    refs = references.open("s3://bucket/refs.json.zst")
    refs.inspect()                        # hosts, codecs and bytes, before anything is fetched
    refs.rewrite({"s3://old/": "s3://new/"}).save("file:///data/refs.parquet")
    references.scan("a.nc").save("file:///data/a.json")
    assert references.verify("file:///data/a.json")

To read arrays through a set, open `<url>|reference:` with `fsstore.open` or `fsstore.KvStore.open`; a set in memory has
`references.store`.  This module is the door; what is behind it lives in `fsstore.reference`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace as replaced
from itertools import islice
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Literal

from fsstore.combine.combined import Combined, CombinedSaving, dataset_at, undecodable, verify_targets
from fsstore.combine.facts import ArrayReport, CombineError, CombineReport, Difference
from fsstore.combine.verbs import append, changed_files, combine, drop, replace
from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.root.live import is_live_set
from fsstore.reference.driver import driver_in_memory
from fsstore.reference.json_document import from_mapping
from fsstore.reference.kind import Reading, Way, document_at, live_state, live_targets, load, targets_of
from fsstore.reference.mapping import References, Saving
from fsstore.reference.policy import beside
from fsstore.reference.report import MAX_PROBLEMS, Problem, Report, SetVerification, Touched
from fsstore.reference.table.refset import TableSet
from fsstore.reference.table.set_state import State
from fsstore.reference.table.table import Located
from fsstore.runtime import execution
from fsstore.scan.as_references import format_of, references_of, scan_at
from fsstore.scan.document.dmrpp import references_by
from fsstore.scan.driver import ScanDriver
from fsstore.values import registry
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

_SETS = re.compile(r"\.(?:json|parq|parquet)\b|/\Z")


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
    from fsstore.icechunk.driver import IcechunkDriver, references_of

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
    from fsstore.kvstore.spec_parse import OpenKv
    from fsstore.kvstore.spec_value import KvSpecValue, kv_kind

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
    url: str | PathLike[str],
    *,
    inline_threshold: int = 0,
    storage_options: Mapping[str, Any] | None = None,
    by: Literal["fsstore", "kerchunk"] = "fsstore",
    dmrpp: str | PathLike[str] | None = None,
) -> References:
    """Return the reference set of a file: HDF5, NetCDF 3, GRIB, FITS, TIFF, DMR++, and HDF4 with `by="kerchunk"`.

    A relative path starts from the working directory; saved elsewhere, the set still finds its file.
    Chunks of up to `inline_threshold` bytes stand in the set itself.
    Whatever the set lacks of the file is named in a warning.
    `combine` makes one set of many files, or of a zarr hierarchy.  `by="kerchunk"` has kerchunk's translators read the
    file, through the same stores.  With `dmrpp`, the DMR++ document there is used instead of scanning an HDF5 file;
    that of another file is refused with `FailedPreconditionError`.
    """
    path = fspath(url)
    if by not in ("fsstore", "kerchunk"):
        raise StoreError(f'A file is scanned by "fsstore" or "kerchunk", not {quote(str(by))}')

    async def run() -> tuple[References, Mapping[str, str]]:
        place = await document_at(path, Way(storage_options))
        if dmrpp is not None:
            described = await document_at(fspath(dmrpp), Way(storage_options))
            found, notes = await references_by(place, path, described, inline_threshold)
            return References(State(found), f"scan of {path}", place=await document_at(f"{Path.cwd()}/")), notes
        if by == "kerchunk":
            from fsstore.filesystem.kerchunk import by_kerchunk

            refs = await by_kerchunk(place, path, inline_threshold)
            return References(refs.state, refs._described, place=await document_at(f"{Path.cwd()}/")), {}
        name = await format_of(place)
        if name is None:
            known = ", ".join(registry.scanners.names())
            raise StoreError(f"Cannot scan {quote(path)}: its format is not one of {known}")
        found, notes = await scan_at(place, name, path, inline_threshold)
        return References(State(found), f"scan of {path}", place=await document_at(f"{Path.cwd()}/")), notes

    refs, notes = execution.call(run())
    if notes:
        missing = "; ".join(f"{quote(path)}: {why}" for path, why in sorted(notes.items()))
        warnings.warn(f"The set of {path} lacks {missing}", stacklevel=2)
    return refs


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
