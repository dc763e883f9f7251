"""The result of combining: read, inspected, checked against its files, moved and saved."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice
from typing import Any, Literal

import numpy as np

from fsstore.combine.facts import CombineReport, FileBatch, batch_columns, batch_of
from fsstore.combine.mosaic import HIDDEN, FileFact, Mosaic
from fsstore.combine.mosaic_document import load_mosaic, stored_of
from fsstore.combine.mosaic_driver import MosaicDriver, changed, mosaic_driver
from fsstore.combine.mosaic_stored import SMALLEST_DOCUMENT, StoredColumns, is_mosaic, to_bytes
from fsstore.combine.scanning import place_of
from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvPrefix
from fsstore.kvstore.engine.secret import reveal
from fsstore.kvstore.kv_store import KvStore
from fsstore.reference.kind import PARQUET_NAMES
from fsstore.reference.mapping import Moving, References, moving, written_as
from fsstore.reference.policy import already_there, beside, name_of, replaced
from fsstore.reference.report import MAX_PROBLEMS, Problem, Report, SetVerification, verify_state
from fsstore.reference.table.keys import Grid
from fsstore.reference.table.refset import TableSet
from fsstore.reference.table.set_state import State
from fsstore.reference.table.table import Located, is_url
from fsstore.reference.targets import Targets, check_prefixes, open_with_spec, policy_of
from fsstore.runtime import execution
from fsstore.runtime.tuning import AT_ONCE
from fsstore.values.json_value import quote

# Checking sets and datasets against their files: are these there, long enough, unchanged, and can they be
# decoded?


async def verify_targets(refs: References, members: Mapping[str, Any]) -> SetVerification:
    """Return what is wrong between references and their targets."""
    prefixes = check_prefixes(members.get("targets") or {})
    rewrite = reveal(members.get("rewrite")) or {}
    targets = Targets(
        open_with_spec, policy_of(refs.place, members, refs.state.base.origins), refs.place, prefixes, rewrite
    )
    return await verify_state(refs.state, targets)


async def changes(driver: MosaicDriver) -> dict[str, str]:
    """Return how files differ from what they were when they were scanned, of those that do."""
    out: dict[str, str] = {}
    files = driver.mosaic.files

    async def one(fact: FileFact) -> None:
        try:
            why = await changed(driver.references, fact)
        except StoreError as error:
            why = f"cannot be reached: {error.message}"
        if why:
            out[fact.url] = why

    for start in range(0, len(files), AT_ONCE):
        await execution.gather(one(fact) for fact in files[start : start + AT_ONCE])
    return {fact.url: out[fact.url] for fact in files if fact.url in out}


def undecodable(refs: References, store: KvStore) -> Iterator[Problem]:
    """Yield the arrays that cannot be opened through a store of a set, and the chunks that cannot be decoded."""
    grids = refs.arrays
    for path, options in _array_options(refs):
        if not path.startswith(HIDDEN):
            head = f"{path}/" if path else ""
            keys = (key.removeprefix(head) for names, _ in refs.batches(head) for key in names)
            yield from _of_array(store, path, options, (grids.get(path), keys))


def undecodable_pieces(driver: MosaicDriver, store: KvStore) -> Iterator[Problem]:
    """Yield the layered arrays of a dataset that cannot be opened, and the chunks that cannot be made."""
    for path, array in driver.mosaic.layered.items():
        grid = array.grid
        keys = (grid.keys(np.array([number]))[0].removeprefix(f"{path}/") for number in range(grid.count))
        yield from _of_array(store, path, {"driver": "zarr"}, (grid, keys))


def _of_array(
    store: KvStore, path: str, options: Mapping[str, Any], chunks: tuple[Grid | None, Iterator[str]]
) -> Iterator[Problem]:
    from fsstore.arrays.store import open as open_array

    try:
        array = open_array({**options, "kvstore": store.spec() / (f"{path}/" if path else "")}).result()
    except StoreError as error:
        yield Problem(path, f"the array cannot be opened: {error}")
        return
    for key, region in _regions(path, chunks, array.shape):
        try:
            array[region].read().result()
        except StoreError as error:
            yield Problem(path, str(error), (key,), 1)


def _regions(
    path: str, chunks: tuple[Grid | None, Iterator[str]], shape: Sequence[int]
) -> Iterator[tuple[str, tuple[slice, ...]]]:
    """Yield the chunks that are there, with what they hold of the array; all of it, where that is not known."""
    grid, names = chunks
    head = f"{path}/" if path else ""
    if grid is None or grid.count == 1:  # some writers use keys of their own for a single chunk
        yield path if grid is None else grid.key((0,) * len(grid.shape)), (slice(None),) * len(shape)
        return
    for name in names:
        number = grid.number(name)
        if number is not None:
            index = map(int, np.unravel_index(number, grid.shape))
            corners = zip(index, grid.chunk, shape, strict=False)  # a field may have dimensions of its own
            yield (head + name, tuple(slice(at * step, min((at + 1) * step, size)) for at, step, size in corners))


def _array_options(refs: References) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the path of each array, with how to open it."""
    for names, found in refs.batches():
        for position, key in enumerate(names):
            path, _, name = key.rpartition("/")
            is_metadata = name in (".zarray", "zarr.json")
            options = _options_of(name, found.value(position)) if is_metadata else {}
            if options:
                yield path, options


def _options_of(name: str, value: bytes | Located | None) -> dict[str, Any]:
    """Return how to open the array that a document describes, nothing for a group.

    If fields differ, the first is named: whole chunks are decoded for it.
    """
    try:
        document = json.loads(value) if isinstance(value, bytes) else None
    except ValueError:
        document = None  # opening says what is wrong
    match document:
        case {"node_type": "group"}:
            return {}
        case {"dtype": [[field, *_], *_]}:
            return {"driver": "zarr", "field": field}
        case _:
            return {"driver": "zarr" if name == ".zarray" else "zarr3"}


CombinedSaving = Literal["mosaic", "mosaic.json", "json", "json.zst", "json.gz", "json.bz2", "json.xz", "parquet"]
_SETS = (".json", ".json.zst", ".json.zstd", ".json.gz", ".json.bz2", ".json.xz", *PARQUET_NAMES)


class Combined:
    """Many files as one dataset.  `report` says how they agree; `mosaic` is the dataset as a value."""

    def __init__(
        self,
        mosaic: Mosaic,
        report: CombineReport | None,
        batch: FileBatch | None,
        place: KvPrefix | None,
        wishes: Mapping[str, Any],
    ) -> None:
        self.mosaic, self.report, self.batch = mosaic, report, batch
        self.place, self.wishes = place, dict(wishes)

    @classmethod
    def open(cls, url: Any) -> Combined:
        """Return the dataset that was saved at a URL or kvstore spec, to be looked into, moved and saved again."""

        async def run() -> Combined:
            base = await place_of(url)
            found = await dataset_at(base)
            if found is None:
                raise StoreError(f"There is no virtual dataset at {base.describe()}, but something else")
            return found

        opened: Combined = execution.call(run())
        return opened

    @property
    def is_references(self) -> bool:
        """Whether a reference set can hold all of it: no array is layered."""
        return not self.mosaic.layered

    @property
    def references(self) -> References:
        """The reference set; raises `StoreError` if some arrays are layered, because it would lack them."""
        if not self.is_references:
            layered = ", ".join(map(quote, self.mosaic.layered))
            raise StoreError(
                f"A reference set cannot hold {layered}, whose files differ; save a virtual dataset instead (.mosaic)"
            )
        return References(State(self.mosaic.references), "combined files", place=self.place)

    @property
    def store(self) -> KvStore:
        """The key-value store that shows it as a zarr hierarchy."""
        return _shown(self._driver({}))

    def _driver(self, members: Mapping[str, Any]) -> MosaicDriver:
        return mosaic_driver(self.mosaic, members, base=self.place, described="combined files")

    def inspect(self) -> Report:
        """Return what reading it would touch; nothing is fetched."""
        report = References(State(self.mosaic.references)).inspect()
        shown = [path for path in report.arrays if not path.startswith(HIDDEN)]
        return replace(report, arrays=tuple(sorted([*shown, *self.mosaic.layered])))

    def rewrite(self, changes: Mapping[str, str]) -> Combined:
        """Return the dataset with the longest prefix of each URL that `changes` names replaced.

        Raises `StoreError` if no URL begins with any of them.
        """
        urls = self.mosaic.references.table.urls
        if urls and not any(url.startswith(tuple(changes)) for url in urls):
            wanted = ", ".join(map(quote, changes)) or "no prefix"
            raise StoreError(f"Nothing to rewrite: no URL begins with {wanted}; the first is {quote(urls[0])}")

        def changed_url(url: str) -> str:
            made = replaced(url, changes)
            if not made or not is_url(made):
                raise StoreError(f"Cannot rewrite {quote(url)} to {quote(made)}: that is no URL")
            return made

        mosaic = replace(_mosaic_with(self.mosaic, changed_url), as_scanned=False)
        batch = None if self.batch is None else _batch_with(self.batch, changed_url)
        return Combined(mosaic, self.report, batch, self.place, self.wishes)

    def verify(self, *, decode: bool = False, **members: Any) -> SetVerification:
        """Return what is wrong between it and its files: missing, short and changed ones.

        With `decode` every chunk of every array is read.  `members` are those of the `mosaic` kvstore.
        """
        refs = References(State(self.mosaic.references), "combined files", place=self.place)
        driver = self._driver(members)
        found = execution.call(verify_targets(refs, members))
        known = {problem.url for problem in found.problems}
        problems = list(found.problems)
        for url, why in execution.call(changes(driver)).items():
            if url not in known:
                problems.append(Problem(url, why))
        if decode:
            store = _shown(driver)
            damaged = chain(undecodable(refs, store), undecodable_pieces(driver, store))
            problems += islice(damaged, MAX_PROBLEMS)
        return replace(found, problems=tuple(problems))

    def save(
        self,
        url: Any,
        format: CombinedSaving | None = None,  # noqa: A002  # the word users know
        *,
        overwrite: bool = False,
        relative: str | None = None,
    ) -> None:
        """Write it to a URL or kvstore spec, atomically.

        Names that end in `.json`, `.parquet` and the like save a reference set for every tool that reads these, which
        cannot hold layered arrays, nor what is needed to add files.  All others save a virtual dataset: parquet, or
        JSON where the name ends in `.mosaic.json`.  Relative URLs name from there what they name here; `relative` is
        put before them instead.
        """
        execution.call(self._save(url, format, overwrite=overwrite, relative=relative))

    async def _save(self, url: Any, how: CombinedSaving | None, *, overwrite: bool, relative: str | None) -> None:
        base = await place_of(url)
        name = name_of(base)
        of_a_set = how is None and not name.endswith(".mosaic.json") and name.endswith(_SETS)
        if of_a_set or how not in (None, "mosaic", "mosaic.json"):
            form: Any = how
            await execution.offload(lambda: self.references.save(url, form, overwrite=overwrite, relative=relative))
            return
        move = moving(self.place, await beside(base), relative)
        as_json = how == "mosaic.json" or (how is None and name.endswith(".json"))
        batch = None if self.batch is None else moved_batch(self.batch, move)
        mosaic = moved_mosaic(self.mosaic, move)
        if relative is not None:  # the files may be others there
            mosaic = replace(mosaic, as_scanned=False)
        data = document_bytes(mosaic, batch, self.wishes, as_json=as_json, place=base)
        if_equal = UNKNOWN
        if not overwrite and base.driver.features.create_only:
            if_equal = NO_VALUE
        elif not overwrite and (await base.read("", 0, 0)).state == "value":
            raise already_there(base)
        stamp = await base.write("", data, if_equal)
        if stamp.generation == UNKNOWN and if_equal == NO_VALUE:
            raise already_there(base)

    def __repr__(self) -> str:
        """Return what it is."""
        how = "" if self.is_references else f", {len(self.mosaic.layered)} arrays in layers"
        return f"<Combined: {len(self.mosaic.files)} files{how}>"


def _shown(driver: MosaicDriver) -> KvStore:
    from fsstore.kvstore.spec_parse import OpenKv
    from fsstore.kvstore.spec_value import KvSpecValue, kv_kind

    kind = kv_kind("memory")
    assert kind is not None
    return KvStore.of(OpenKv(driver, "", KvSpecValue.of(kind, "").replace(live=driver)))


async def dataset_at(base: KvPrefix) -> Combined | None:
    """Return the dataset at a place, or what a store of one shows; None where something else is."""
    if isinstance(base.driver, MosaicDriver):
        mosaic, place = base.driver.mosaic, base.driver.references.fetcher.targets.base
    else:
        try:
            head = await base.read("", 0, SMALLEST_DOCUMENT)
        except StoreError:  # smaller than any document, or a directory
            return None
        if head.state != "value" or not is_mosaic(bytes(head.value)):
            return None
        mosaic, place = (await load_mosaic(base, with_scan=True))[0], await beside(base)
    scan = mosaic.facts.get("scan")
    batch = None if mosaic.scan is None or not scan else batch_of(scan, mosaic.scan)
    report = CombineReport.from_json(mosaic.facts.get("report"))
    return Combined(mosaic, report, batch, place, mosaic.facts.get("options") or {})


def document_bytes(
    mosaic: Mosaic, batch: FileBatch | None, wishes: Mapping[str, Any], *, as_json: bool, place: KvPrefix
) -> bytes:
    """Return the document of a dataset for a place, with what is needed to add files, where that is known."""
    header, columns = ({}, {}) if batch is None else batch_columns(batch)
    kept = replace(mosaic, facts={**mosaic.facts, "options": dict(wishes), "scan": header})
    stored: StoredColumns = stored_of(kept, columns, place)
    return to_bytes(stored, as_json=as_json)


def moved_mosaic(mosaic: Mosaic, move: Moving | None) -> Mosaic:
    """Return a dataset whose relative URLs are written in another way."""
    return mosaic if move is None else _mosaic_with(mosaic, lambda url: written_as(url, move))


def moved_batch(batch: FileBatch, move: Moving | None) -> FileBatch:
    """Return a batch whose relative URLs are written in another way."""
    return batch if move is None else _batch_with(batch, lambda url: written_as(url, move))


def _mosaic_with(mosaic: Mosaic, url_of: Callable[[str], str]) -> Mosaic:
    table = mosaic.references.table
    moved = TableSet(replace(table, urls=[url_of(url) for url in table.urls]))
    return replace(mosaic, references=moved, files=[fact._replace(url=url_of(fact.url)) for fact in mosaic.files])


def _batch_with(batch: FileBatch, url_of: Callable[[str], str]) -> FileBatch:
    files = [fact._replace(url=url_of(fact.url)) for fact in batch.files]
    return replace(batch, files=files, urls=[url_of(url) for url in batch.urls])
