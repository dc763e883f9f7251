"""The driver of Neuroglancer precomputed volumes: each array is one scale, found or added in the document `info`.

Reading and writing are those of every chunked array; here is what differs: how a scale is chosen, that its domain may
begin anywhere, and that its chunks lie in a directory of their own or in shards.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fsstore.chunk.write.request import finish
from fsstore.driver.chunked_array import ChunkedDriver, ChunkedOptions, StoredKind
from fsstore.driver.contract import OpenArray, Opening, Role
from fsstore.driver.metadata_entry import MetadataEntry
from fsstore.errors import AlreadyExistsError, FailedPreconditionError, NotFoundError, StoreError, UrlError
from fsstore.format.contract import ChunkedArray
from fsstore.index import IndexDomain, IndexTransform
from fsstore.index.transform import identity
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, ReadResult, begin_creating
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.spec_parse import OpenKv
from fsstore.precomputed.format import (
    LABELS,
    Precomputed,
    build,
    check_scale,
    choose_scale,
    chunk_of,
    constrain,
    create_scale,
    implied,
)
from fsstore.precomputed.info import dump_info, parse_info, parse_multiscale, parse_scale
from fsstore.runtime.together import ChangedError, until_unchanged
from fsstore.schema.schema import OpenMode, Schema
from fsstore.values.json_value import Fields, Json, integer
from fsstore.values.registry import reject_query

_FORMAT: Any = Precomputed()


@dataclass(frozen=True, slots=True)
class PrecomputedKind(StoredKind):
    """The kind of `neuroglancer_precomputed`."""

    id: str = "neuroglancer_precomputed"
    schemes: tuple[str, ...] = ("neuroglancer-precomputed",)
    role: Role = "store"
    has_mode: bool = True
    resources: tuple[str, ...] = ("cache_pool", "data_copy_concurrency", "metadata_cache_pool")

    @property
    def defaults(self) -> Mapping[str, Json]:
        """Members printed by `to_json(include_defaults=True)`."""
        return {**ChunkedOptions.defaults(), **OpenMode.defaults()}

    def members(self, fields: Fields) -> dict[str, Any]:
        """Take the kind's own JSON members."""
        out: dict[str, Any] = {}
        multiscale = fields.take("multiscale_metadata", parse_multiscale) or {}
        scale = fields.take(
            "scale_metadata",
            lambda value: parse_scale(value, multiscale.get("data_type"), multiscale.get("num_channels"), stored=False),
        )
        number = fields.take("scale_index", integer(0, 2**63 - 1))
        if number is not None:
            out["scale_index"] = number
        if multiscale:
            out["multiscale_metadata"] = multiscale
        if scale:
            out["scale_metadata"] = scale
        return out | ChunkedOptions.taken(fields)

    def constrain(self, members: Mapping[str, Any], schema: Schema) -> Schema:
        """Return the schema with what the members say merged in."""
        return constrain(members, schema)

    def known(self, members: Mapping[str, Any], schema: Schema, bases: Sequence[Schema]) -> Schema:
        """Return the schema with the constraints of the members."""
        return implied(members, schema)

    def from_url(self, rest: str) -> tuple[str, dict[str, Any]]:
        """Refuse everything after the scheme."""
        reject_query(rest)
        if rest:
            raise UrlError("Path not supported")
        return "", {}

    def to_url(self, members: Mapping[str, Any]) -> str:
        """Return the scheme; scales other than the first have no URL."""
        if members.get("scale_index"):
            raise UrlError("neuroglancer-precomputed URL syntax not supported with non-zero scale_index")
        return "neuroglancer-precomputed:"

    async def open_in(self, kvstore: OpenKv, opening: Opening, mode: OpenMode, options: ChunkedOptions) -> OpenArray:
        """Open a scale, or add it."""
        array, answer = await _Finder(opening, kvstore, mode).run()
        entry = MetadataEntry.shared(_FORMAT, kvstore, array.extra, options.metadata_pool)
        if not mode.assume_metadata and answer.generation != UNKNOWN:
            entry.keep(array, answer.generation, answer.time)
        else:
            entry.keep(array, UNKNOWN, -math.inf)
        driver = PrecomputedDriver(self, kvstore, entry, array, options, mode)
        return opening.view_of(driver, identity(driver.domain()))


class _Finder:
    """One opening: reads the document, chooses a scale or adds one."""

    def __init__(self, opening: Opening, kvstore: OpenKv, mode: OpenMode) -> None:
        self.members, self.schema, self.mode = opening.members, opening.schema, mode
        self.store, self.documents = kvstore.prefix, opening.documents

    async def run(self) -> tuple[ChunkedArray, ReadResult]:
        """Return the scale, and the answer with the document it is in."""
        if self.mode.create:
            begin_creating(self.store.driver)
        if self.mode.assume_metadata or self.mode.assume_cached_metadata:
            return self._assumed(), ReadResult("missing")
        if self.mode.delete_existing:
            await finish(self.store)
            await self.store.delete_range(KeyRange())
        return await until_unchanged(self._attempt, partial(self.store.describe, "info"))

    async def _attempt(self) -> tuple[ChunkedArray, ReadResult]:
        answer = self.documents.get("info") or await self.store.read("info")
        self.documents = {}
        info = self._parsed(answer)
        if self.mode.open:
            found = self._found(info)
            if found is not None:
                return found, answer
        if not self.mode.create:
            raise NotFoundError(f"Metadata at {self.store.describe('info')} does not exist")
        made = await self._created(info, answer)
        if made is None:
            raise ChangedError
        return made

    def _parsed(self, answer: ReadResult) -> dict[str, Any] | None:
        if answer.state != "value":
            return None
        try:
            return parse_info(bytes(answer.value))
        except StoreError as error:
            message = f"Error reading {self.store.describe('info')}: {error.message}"
            raise FailedPreconditionError(message) from error

    def _found(self, info: Mapping[str, Any] | None) -> ChunkedArray | None:
        """Return the scale that is asked for; None if it is not there and may be added."""
        if info is None:
            return None
        try:
            number = choose_scale(info, self.members, self.schema)
        except NotFoundError:
            if self.mode.create:
                return None
            raise
        chunk = chunk_of(info["scales"][number], self.members)
        array = build(info, number, chunk)
        check_scale(array, self.schema)
        return array

    def _assumed(self) -> ChunkedArray:
        members = {name: value for name, value in self.members.items() if name != "scale_index"}
        info, _ = create_scale(None, members, self.schema)
        array = build(info, 0, info["scales"][0]["chunk_sizes"][0])
        number = self.members.get("scale_index", 0)
        return replace(
            array,
            constraints={**array.constraints, "scale_index": number},
            extra={**array.extra, "scale_index": number},
        )

    async def _created(
        self, info: Mapping[str, Any] | None, answer: ReadResult
    ) -> tuple[ChunkedArray, ReadResult] | None:
        """Return the scale that was added, None if another writer came between."""
        where = f"Error writing {self.store.describe('info')}"
        try:
            changed, number = create_scale(info, self.members, self.schema)
            array = build(changed, number, changed["scales"][number]["chunk_sizes"][0])
            document = dump_info(changed)
        except StoreError as error:
            raise error.within(where) from error
        features = self.store.driver.features
        guarded = features.create_only if info is None else features.conditional_write
        condition = (NO_VALUE if info is None else answer.generation) if guarded else UNKNOWN
        stamp = await self.store.write("info", document, condition)
        if guarded and stamp.generation == UNKNOWN:
            if info is None and not self.mode.open and self.mode.delete_existing:
                raise AlreadyExistsError(where)
            return None
        return array, ReadResult("value", document, stamp.generation, stamp.time)


class PrecomputedDriver(ChunkedDriver):
    """An open scale."""

    def domain(self) -> IndexDomain:
        """Return the domain; its bounds never change."""
        array = self.array
        ends = [low + size for low, size in zip(array.origin, array.shape, strict=True)]
        return IndexDomain(inclusive_min=array.origin, exclusive_max=ends, labels=LABELS)

    def members(self) -> Mapping[str, Any]:
        """Return the JSON members in effect."""
        try:
            array = self._current()
        except FailedPreconditionError:
            array = self.array
        return {**array.constraints, **self.options.to_json()}

    async def resolve(self, transform: IndexTransform, *, fix: bool = False) -> IndexTransform:
        """Return the view: its bounds never change."""
        if self._rechecks:
            await self._recheck()
        self._current()
        return transform

    async def resize(self, transform: IndexTransform, bounds: Any, options: Any) -> IndexTransform:
        """Refuse: scales keep their size."""
        if all(bound is None for bound in (*bounds.inclusive_min, *bounds.exclusive_max)):
            return transform
        for dimension, bound in enumerate(bounds.exclusive_max):
            if bound is not None:
                raise StoreError(
                    f"Invalid resize request for input dimension {dimension}: Cannot change explicit upper bound"
                )
        raise StoreError("Invalid resize request: Cannot change explicit lower bound")


KIND = PrecomputedKind()
"""The kind of `{"driver": "neuroglancer_precomputed"}`."""
