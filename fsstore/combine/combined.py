"""`Combined`: what combining makes, in memory: to be read, looked into, saved, and added to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from fsstore.combine.report import CombineReport
from fsstore.combine.scan.facts import FileBatch
from fsstore.combine.scan.many import stored_bytes
from fsstore.combine.scan.scan_columns import batch_columns
from fsstore.combine.scan.scanning import place_of
from fsstore.errors import AlreadyExistsError, StoreError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvPrefix
from fsstore.kvstore.reference.collection.references import References
from fsstore.kvstore.reference.load import PARQUET_NAMES
from fsstore.kvstore.reference.state.set_state import State
from fsstore.kvstore.reference.target.location import beside, name_of
from fsstore.kvstore.reference.tools.relocation import Moving, moving, written_as
from fsstore.kvstore.store.kv_store import KvStore
from fsstore.mosaic.document import stored_of
from fsstore.mosaic.driver import mosaic_driver
from fsstore.mosaic.stored import StoredColumns
from fsstore.mosaic.value import Mosaic
from fsstore.runtime import execution
from fsstore.values.json_value import quote

__all__ = ["Combined", "CombinedSaving", "document_bytes", "moved_batch", "moved_mosaic"]

CombinedSaving = Literal[
    "mosaic", "mosaic.json", "json", "json.zst", "json.gz", "json.bz2", "json.xz", "parquet"
]
_SETS = (".json", ".json.zst", ".json.zstd", ".json.gz", ".json.bz2", ".json.xz", *PARQUET_NAMES)


class Combined:
    """Many files as one dataset.  `report` says how they agree; `mosaic` is the dataset as a value."""

    def __init__(
        self,
        mosaic: Mosaic,
        report: CombineReport,
        batch: FileBatch,
        place: KvPrefix,
        wishes: Mapping[str, Any],
    ) -> None:
        self.mosaic, self.report, self.batch = mosaic, report, batch
        self.place, self.wishes = place, dict(wishes)

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
        from fsstore.kvstore.spec.opening import OpenKv
        from fsstore.kvstore.spec.spec_value import KvSpecValue, kv_kind

        driver = mosaic_driver(self.mosaic, {}, base=self.place, described="combined files")
        kind = kv_kind("memory")
        assert kind is not None
        return KvStore.of(OpenKv(driver, "", KvSpecValue.of(kind, "").replace(live=driver)))

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

    async def _save(
        self, url: Any, how: CombinedSaving | None, *, overwrite: bool, relative: str | None
    ) -> None:
        base = await place_of(url)
        name = name_of(base)
        of_a_set = how is None and not name.endswith(".mosaic.json") and name.endswith(_SETS)
        if of_a_set or how not in (None, "mosaic", "mosaic.json"):
            form: Any = how
            await execution.offload(
                lambda: self.references.save(url, form, overwrite=overwrite, relative=relative)
            )
            return
        move = moving(self.place, await beside(base), relative)
        as_json = how == "mosaic.json" or (how is None and name.endswith(".json"))
        batch = moved_batch(self.batch, move)
        data = document_bytes(moved_mosaic(self.mosaic, move), batch, self.wishes, as_json=as_json)
        if_equal = UNKNOWN
        if not overwrite and base.driver.features.create_only:
            if_equal = NO_VALUE
        elif not overwrite and (await base.read("", 0, 0)).state == "value":
            raise AlreadyExistsError(f"There is something at {base.describe()}; pass overwrite=True")
        stamp = await base.write("", data, if_equal)
        if stamp.generation == UNKNOWN and if_equal == NO_VALUE:
            raise AlreadyExistsError(f"There is something at {base.describe()}; pass overwrite=True")

    def __repr__(self) -> str:
        """Return what it is."""
        how = "" if self.is_references else f", {len(self.mosaic.layered)} arrays in layers"
        return f"<Combined: {len(self.mosaic.files)} files{how}>"


def document_bytes(mosaic: Mosaic, batch: FileBatch, wishes: Mapping[str, Any], *, as_json: bool) -> bytes:
    """Return the document of a dataset, with what is needed to add files."""
    header, columns = batch_columns(batch)
    kept = replace(mosaic, facts={**mosaic.facts, "options": dict(wishes), "scan": header})
    stored: StoredColumns = stored_of(kept, columns)
    return stored_bytes(stored, as_json=as_json)


def moved_mosaic(mosaic: Mosaic, move: Moving | None) -> Mosaic:
    """Return a dataset whose relative URLs are written in another way."""
    if move is None:
        return mosaic
    from fsstore.kvstore.reference.state.refset import TableSet

    table = mosaic.references.table
    urls = _moved_all(table.urls, move)
    files = [fact._replace(url=written_as(fact.url, move)) for fact in mosaic.files]
    return replace(mosaic, references=TableSet(replace(table, urls=urls)), files=files)


def moved_batch(batch: FileBatch, move: Moving | None) -> FileBatch:
    """Return a batch whose relative URLs are written in another way."""
    if move is None:
        return batch
    files = [fact._replace(url=written_as(fact.url, move)) for fact in batch.files]
    return replace(batch, files=files, urls=_moved_all(batch.urls, move))


def _moved_all(urls: Sequence[str], move: Moving) -> list[str]:
    return [written_as(url, move) for url in urls]
