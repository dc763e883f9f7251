"""The driver of chunked arrays in a key-value store, for all formats: kinds, options, opening.

`zarr3` and `zarr` are this driver with their formats.  The metadata of an array is shared by all handles of a context
(`metadata_entry`); input and output are `chunked_array`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsstore.chunk.write.request import finish
from fsstore.driver.attributes import renew_collected
from fsstore.driver.chunked_array import ChunkedDriver, ChunkedOptions, StoredKind
from fsstore.driver.contract import OpenArray, Opening, Role
from fsstore.driver.metadata_entry import MetadataEntry
from fsstore.driver.probe import instead_of_metadata
from fsstore.errors import AlreadyExistsError, FailedPreconditionError, NotFoundError, StoreError, UrlError
from fsstore.format.contract import FIELD, OCTETS, WHOLE, ChunkedArray, Format
from fsstore.format.n5 import N5
from fsstore.format.zarr2 import Zarr2
from fsstore.format.zarr3 import Zarr3
from fsstore.index import IndexDomain
from fsstore.index.transform import identity
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, begin_creating
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.spec_parse import OpenKv
from fsstore.schema.schema import OpenMode, Schema
from fsstore.values.json_value import Fields, Json, one_of
from fsstore.values.registry import decode_path, encode_path, reject_query


@dataclass(frozen=True, slots=True)
class ChunkedKind(StoredKind):
    """The driver kind of a format."""

    format: Format
    role: Role = "store"
    has_mode: bool = True
    resources: tuple[str, ...] = ("cache_pool", "data_copy_concurrency", "metadata_cache_pool")

    @property
    def id(self) -> str:
        """The `driver` member in JSON."""
        return self.format.id

    @property
    def schemes(self) -> tuple[str, ...]:
        """The URL scheme."""
        return (self.format.scheme,)

    @property
    def defaults(self) -> Mapping[str, Json]:
        """Members printed by `to_json(include_defaults=True)`."""
        metadata: Json = {"node_type": "array"} if self.format.id == "zarr3" else {}
        return {**ChunkedOptions.defaults(), **OpenMode.defaults(), "metadata": metadata}

    def members(self, fields: Fields) -> dict[str, Any]:
        """Take the kind's own JSON members."""
        out: dict[str, Any] = {}
        metadata = fields.take("metadata", self.format.constraints)
        if self.format.id == "zarr" and "key_encoding" in fields:
            legacy = fields.take("key_encoding", one_of(".", "/"))
            metadata = {**(metadata or {}), "dimension_separator": legacy}
        if metadata:
            out["metadata"] = metadata
        for name, parser in self.format.options.items():
            chosen = fields.take(name, parser)
            if chosen:
                out[name] = chosen
        if FIELD in out and OCTETS in out:
            fields.problem(f'"{FIELD}" and "{OCTETS}" are mutually exclusive')
        return out | ChunkedOptions.taken(fields)

    def constrain(self, members: Mapping[str, Any], schema: Schema) -> Schema:
        """Return the schema merged with the constraints of the metadata."""
        return self.format.constrain_schema(members.get("metadata", {}), self._chosen(members), schema)

    def known(self, members: Mapping[str, Any], schema: Schema, bases: Sequence[Schema]) -> Schema:
        """Return the schema merged with the constraints of the metadata; upper bounds follow the stored array."""
        known = self.format.implied_schema(members.get("metadata", {}), self._chosen(members), schema)
        if schema.domain is None or known.domain is None:
            return known
        fixed = self.constrain(members, Schema()).domain
        bounds = [True] * known.domain.rank
        if fixed is not None and fixed.rank == known.domain.rank:
            bounds = list(fixed.implicit_upper_bounds)
        domain = known.domain
        return known.over(
            IndexDomain(
                inclusive_min=domain.inclusive_min,
                exclusive_max=domain.exclusive_max,
                implicit_lower_bounds=domain.implicit_lower_bounds,
                implicit_upper_bounds=bounds,
                labels=domain.labels,
            )
        )

    def _chosen(self, members: Mapping[str, Any]) -> dict[str, Any]:
        if not members:
            return {}
        return {name: members[name] for name in (*self.format.options, WHOLE) if name in members}

    def from_url(self, rest: str) -> tuple[str, dict[str, Any]]:
        """Return the path of the component, which is below the key-value store, and its members."""
        reject_query(rest)
        return decode_path(rest), {}

    def to_url(self, members: Mapping[str, Any]) -> str:
        """Return `zarr3:`; a selected field or another document has no URL."""
        for name in self.format.options:
            if members.get(name):
                what = "selected_field" if name == FIELD else name
                raise UrlError(f"{self.format.scheme} URL syntax not supported with {what} specified")
        return f"{self.format.scheme}:{encode_path('')}"

    async def open_in(self, kvstore: OpenKv, opening: Opening, mode: OpenMode, options: ChunkedOptions) -> OpenArray:
        """Open or create the array."""
        chosen = self._chosen(opening.members)
        entry = MetadataEntry.shared(self.format, kvstore, chosen, options.metadata_pool)
        array = await _find_or_create(_ArrayOpening(self, opening, entry, chosen), mode, options)
        driver = ChunkedDriver(self, kvstore, entry, array, options, mode)
        return opening.view_of(driver, identity(_labeled(driver.domain(), opening.schema)))


@dataclass(frozen=True, slots=True)
class _ArrayOpening:
    """One opening of one array."""

    kind: ChunkedKind
    opening: Opening
    entry: MetadataEntry
    chosen: Mapping[str, Any]

    @property
    def constraints(self) -> Mapping[str, Any]:
        metadata: Mapping[str, Any] = self.opening.members.get("metadata", {})
        return metadata

    def create(self) -> ChunkedArray:
        try:
            return self.kind.format.create(self.constraints, self.chosen, self.opening.schema)
        except StoreError as error:
            where = f'Error writing {self.entry.describe()}: Cannot create using specified "metadata" and schema'
            raise error.within(where) from error

    def check(self, array: ChunkedArray) -> None:
        self.kind.format.check(array, self.constraints, self.chosen, self.opening.schema)


def _labeled(domain: IndexDomain, schema: Schema) -> IndexDomain:
    """Return the domain with the requested labels instead of those of the stored array."""
    wanted = schema.domain
    if wanted is None or not any(wanted.labels):
        return domain
    labeled: IndexDomain = domain.label[wanted.labels]
    return labeled


async def _find_or_create(job: _ArrayOpening, mode: OpenMode, options: ChunkedOptions) -> ChunkedArray:
    entry = job.entry
    if mode.create:
        begin_creating(entry.store.driver)
    if mode.assume_metadata:
        return job.create()
    if mode.assume_cached_metadata:
        return entry.array or job.create()
    if mode.delete_existing:
        await finish(entry.store)
        await entry.store.delete_range(KeyRange())
        entry.forget()
    elif mode.open:
        found = await entry.read(fresh_after=options.metadata_fresh_after(), documents=job.opening.documents)
        if found is not None:
            job.check(found)
            return found
        if not mode.create:
            instead = await instead_of_metadata(entry.store)
            raise NotFoundError(f"Metadata at {entry.describe()} does not exist{instead}")
    array = job.create()
    if await _store(job, array):
        if mode.delete_existing:  # consolidated metadata may still list the array
            await renew_collected(entry.store, entry.key)
        options.pool.discard_groups(entry.place)
        return array
    if not mode.open:
        raise AlreadyExistsError(f"Error writing {entry.describe()}")
    found = await entry.read(fresh_after=float("inf"))
    if found is None:
        raise FailedPreconditionError(f"{entry.describe()} appeared and vanished while the array was created")
    job.check(found)
    return found


async def _store(job: _ArrayOpening, array: ChunkedArray) -> bool:
    """Store the metadata of a new array; return False if there is one already."""
    entry = job.entry
    features = entry.store.driver.features
    condition = NO_VALUE
    if not features.create_only:
        # Without an atomic create, checking for the document first is the best that can be done.
        if (await entry.store.read(entry.key)).state == "value":
            return False
        condition = UNKNOWN
    stamp = await entry.store.write(entry.key, job.kind.format.encode(array), condition)
    if condition == NO_VALUE and stamp.generation == UNKNOWN:
        return False
    entry.stored(array, stamp.generation, stamp.time)
    return True


ZARR3 = ChunkedKind(Zarr3())
ZARR2 = ChunkedKind(Zarr2())
N5_KIND = ChunkedKind(N5())
