"""The verbs: `combine`, and what is done to a saved dataset: `append`, `replace`, `drop`, `changed_files`.

Changing a dataset scans new files only.  The document is written under the condition that it still is what was read:
readers see the old extent or the new one, and of two writers at once the second does it again on top of the first.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import partial
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np

from fsstore.combine.assembly import OnDifference, Wishes, assemble
from fsstore.combine.checking import changes
from fsstore.combine.combined import Combined, document_bytes, moved_batch
from fsstore.combine.coordinates import Coordinates, CoordinatesOf, with_given_of
from fsstore.combine.naming import Naming
from fsstore.combine.order import OnOverlap
from fsstore.combine.report import CombineError, CombineReport
from fsstore.combine.scan.facts import FileBatch, joined
from fsstore.combine.scan.many import ScanMeans, scan_many, written_out
from fsstore.combine.scan.scan_columns import batch_of
from fsstore.combine.scan.scanning import Wanted, place_of
from fsstore.combine.tuning import SAVE_ATTEMPTS
from fsstore.errors import AbortedError, NotFoundError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import UNKNOWN, KvPrefix
from fsstore.mosaic.driver import mosaic_driver
from fsstore.mosaic.saved import load_mosaic, with_copied
from fsstore.reference.target.location import beside
from fsstore.reference.tools.relocation import moving
from fsstore.runtime import execution
from fsstore.runtime.future import Future
from fsstore.values.json_value import quote

__all__ = ["append", "changed_files", "combine", "drop", "replace"]


async def _here() -> KvPrefix:
    return await place_of(f"{Path.cwd()}/")


def combine(
    places: Any,
    dim: str | Sequence[str] = (),
    *,
    dry_run: bool = False,
    on_difference: OnDifference = "layer",
    on_overlap: OnOverlap = "raise",
    coords: Mapping[str, CoordinatesOf] | None = None,
    variables: Mapping[str, str | None] | None = None,
    as_coordinates: Sequence[str] = (),
    along: Mapping[str, str] | None = None,
    executor: Executor | None = None,
    batch: int | None = None,
    progress: Any = None,
    journal: Any = None,
) -> Future[Any]:
    """Begin to combine files along one dimension or several; the result is a `Combined`, to be read or saved.

    `places` are paths, URLs, patterns with wildcards, or an iterable of these: files of scanned formats, zarr
    hierarchies, reference sets.  Each is scanned once; coordinates put them in order.  A dimension that no file has is
    made, one step a file, from scalar coordinates of its name or from `coords`: for a dimension a value for each file,
    a compiled pattern of their URLs (the first group, or groups called year, month, day, hour, minute, second),
    `attr:name` for an attribute of each file, or a function of the URL.

    Where files differ in how a variable is stored or packed, it becomes a stack of pieces (`layer`), an error
    (`raise`), or most files win (`skip`).  Anything that would give wrong numbers is an error; so are other values of
    a variable that does not grow, which are compared in all files.  Files with equal or overlapping coordinates are
    an error too, unless the `first` or the `last` wins.  With `dry_run` the result is the report alone.

    `variables` renames variables, with their dimensions, or drops those that are None; `as_coordinates` tells readers
    which are coordinates.  `along`, such as `{"orbit": "time"}`, gives variables that do not grow a dimension: the
    value of each file is repeated for its steps.  An `executor` is given batches of files that take some seconds, or of
    `batch` files; a file that fails is left out and named in the report.  With `journal`, a directory, a run that was
    killed goes on where it was.
    """
    dims = (dim,) if isinstance(dim, str) else tuple(dim)
    wishes = _checked(Wishes(dims, on_difference, on_overlap, dict(along or {})))
    given, naming = Coordinates.of(coords, dims), Naming(variables or {}, as_coordinates)
    means = ScanMeans(executor, batch, progress, journal)
    options = {**asdict(wishes), "variables": dict(naming.names), "as_coordinates": list(naming.coordinates)}
    options.update(dims=list(dims), coords=given.to_json())

    async def run() -> Combined | CombineReport:
        urls = await written_out(places)
        found = naming.apply(await _scanned(urls, naming.in_files(dims), given, means, warns=not dry_run))
        mosaic, report = await execution.offload(assemble, found, wishes, kind="compute")
        return report if dry_run else Combined(mosaic, report, found, await _here(), options)

    return execution.start(run())


async def _scanned(
    urls: Sequence[str], dims: Sequence[str], given: Coordinates, means: ScanMeans, *, warns: bool = True
) -> FileBatch:
    found = await scan_many(urls, Wanted(tuple(dims), tuple(given.attributes)), means)
    if warns and found.failed and found.files:
        count = f"{len(found.failed)} of {len(urls)} files cannot be scanned and are left out"
        warnings.warn(f"{count}, as the report says: {found.failures}", stacklevel=2)
    return given.put(found, urls)


def _checked(wishes: Wishes) -> Wishes:
    if wishes.on_difference not in ("layer", "raise", "skip"):
        raise ValueError(f'on_difference is "layer", "raise" or "skip", not {wishes.on_difference!r}')
    if wishes.on_overlap not in ("raise", "first", "last"):
        raise ValueError(f'on_overlap is "raise", "first" or "last", not {wishes.on_overlap!r}')
    for path, dim in wishes.along.items():
        if dim not in wishes.dims:
            raise CombineError(f"{quote(path)} cannot be repeated: files are not combined along {quote(dim)}")
    return wishes


def append(
    dataset: Any,
    places: Any,
    *,
    executor: Executor | None = None,
    progress: Any = None,
    journal: Any = None,
    coords: Mapping[str, CoordinatesOf] | None = None,
) -> Future[CombineReport]:
    """Begin to add files to a saved virtual dataset; only these are scanned.  The result is the report of the whole.

    Files that the dataset has already are an error: `replace` scans them again.  Where coordinates of the others were
    given by value, those of the new files are `coords`; patterns and attributes are known.
    """

    def change(before: FileBatch, new: FileBatch) -> FileBatch:
        known = {fact.url for fact in before.files}
        doubled = [fact.url for fact in new.files if fact.url in known]
        if doubled:
            raise CombineError(f"The dataset has {quote(doubled[0])} already; `replace` scans it again")
        return joined([before, new])

    means = ScanMeans(executor, None, progress, journal)
    return execution.start(_change(dataset, places, means, change, coords=coords))


def replace(
    dataset: Any,
    places: Any,
    *,
    executor: Executor | None = None,
    progress: Any = None,
) -> Future[CombineReport]:
    """Begin to scan files of a saved dataset again, which have changed; the others stay as they are."""

    def change(before: FileBatch, new: FileBatch) -> FileBatch:
        known = {fact.url: at for at, fact in enumerate(before.files)}
        unknown = [fact.url for fact in new.files if fact.url not in known]
        if unknown:
            raise CombineError(f"The dataset has no file {quote(unknown[0])}; `append` adds it")
        if new.failed:
            url, why = next(iter(new.failed.items()))
            raise CombineError(f"{quote(url)} cannot be scanned: {why}")
        mine = {fact.url for fact in new.files}
        kept = np.array([at for at, fact in enumerate(before.files) if fact.url not in mine], np.int64)
        both = joined([before.only(kept), with_given_of(new, before)])
        rank = [known[fact.url] for fact in both.files]
        return both.only(np.argsort(np.array(rank, np.int64), kind="stable"))

    means = ScanMeans(executor, None, progress)
    return execution.start(_change(dataset, places, means, change, keeps=True))


def drop(dataset: Any, places: Any) -> Future[CombineReport]:
    """Begin to take files out of a saved dataset: by their URLs as the dataset has them, or patterns of these."""
    wanted = [fspath(each) for each in ([places] if isinstance(places, str | PathLike) else places)]

    def change(before: FileBatch, new: FileBatch) -> FileBatch:
        del new
        gone = {fact.url for fact in before.files if any(_fits(fact.url, each) for each in wanted)}
        for each in wanted:
            if not any(_fits(url, each) for url in gone):
                raise NotFoundError(f"The dataset has no file {quote(each)}")
        kept = np.array([at for at, fact in enumerate(before.files) if fact.url not in gone], np.int64)
        return before.only(kept)

    return execution.start(_change(dataset, [], ScanMeans(), change))


def _fits(url: str, wanted: str) -> bool:
    return url == wanted or fnmatchcase(url, wanted) or url.endswith("/" + wanted)


async def _change(
    dataset: Any,
    places: Any,
    means: ScanMeans,
    change: Callable[[FileBatch, FileBatch], FileBatch],
    *,
    coords: Mapping[str, CoordinatesOf] | None = None,
    keeps: bool = False,
) -> CombineReport:
    base = await place_of(dataset)
    if not base.driver.features.conditional_write:
        raise UnimplementedError(f"{base.describe()} lies where two writers could undo each other's changes")
    given = [places] if isinstance(places, str | PathLike) else list(places)
    urls = await written_out(given) if given else []
    new: FileBatch | None = None
    for _ in range(SAVE_ATTEMPTS):
        mosaic, answer = await load_mosaic(base, with_scan=True)
        before = batch_of(mosaic.facts.get("scan") or {}, mosaic.scan)
        options = dict(mosaic.facts.get("options") or {})
        wishes = _wishes(options)
        if new is None:
            known = options.get("coords") if urls else {}
            rules = Coordinates(coords or {}).for_more(known, wishes.dims, keeps=keeps)
            names = Naming.of_json(options.get("variables"), options.get("as_coordinates"))
            dims = names.in_files(wishes.dims)
            found = await _scanned(urls, dims, rules, means) if urls else FileBatch()
            found = names.apply(found, are_all=False)
            new = moved_batch(found, moving(await _here(), await beside(base)))
        after = change(before, new)
        whole, report = await execution.offload(assemble, after, wishes, kind="compute")
        whole = await execution.offload(with_copied, whole, mosaic)
        as_json = bytes(answer.value[:4]) != b"PAR1"
        data = await execution.offload(
            partial(document_bytes, whole, after, options, as_json=as_json, place=base)
        )
        stamp = await base.write("", data, answer.generation)
        if stamp.generation != UNKNOWN:
            return report
    raise AbortedError(f"Too many writers compete for {base.describe()}")


def _wishes(options: Mapping[str, Any]) -> Wishes:
    dims, difference, overlap = options.get("dims"), options.get("on_difference"), options.get("on_overlap")
    if not isinstance(dims, list) or not isinstance(difference, str) or not isinstance(overlap, str):
        raise StoreError("The dataset does not say how it was combined, and cannot be added to")
    along = options.get("along")
    along = {str(path): str(dim) for path, dim in along.items()} if isinstance(along, Mapping) else {}
    return _checked(Wishes(tuple(map(str, dims)), difference, overlap, along))  # type: ignore[arg-type]  # checked


def changed_files(dataset: Any, **members: Any) -> Future[dict[str, str]]:
    """Begin to compare files with what they were when they were scanned; the result says how those differ that do.

    `members` are those of the `mosaic` kvstore: `targets`, `rewrite`, `allow`.
    """

    async def run() -> dict[str, str]:
        base = await place_of(dataset)
        mosaic, _ = await load_mosaic(base)
        driver = mosaic_driver(
            mosaic, members, base=await beside(base), described=f"virtual dataset {base.describe()}"
        )
        return await changes(driver)

    return execution.start(run())
