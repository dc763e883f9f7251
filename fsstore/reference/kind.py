"""The `reference` kind: its JSON members, its URL (`<base>|reference:<path>`), and how it is opened.

target       URL that stands for null URLs
targets      {prefix: kvstore spec, URL or storage options}; the longest prefix of a URL wins
rewrite      {old prefix: new prefix} of URLs, before anything else
templates    {name: text} replacing or adding templates
allow        [prefix]: nothing else is read
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fsstore.errors import JsonError, StoreError
from fsstore.kvstore.contract.batch import Limits, limits_from
from fsstore.kvstore.contract.driver import AdapterKind, KvDriver, KvOpening, KvPrefix
from fsstore.kvstore.engine.secret import guard, guard_urls, reveal
from fsstore.reference.document.json_document import JsonDocument
from fsstore.reference.document.parquet_change import ParquetDocument
from fsstore.reference.document.parquet_set import ParquetSet
from fsstore.reference.driver import reference_driver
from fsstore.reference.load import Reading, load
from fsstore.reference.table.set_state import Overlay, State
from fsstore.reference.target.policy import beside, normalize_prefix
from fsstore.reference.target.targets import OpenTarget, check_prefixes, open_in
from fsstore.values.json_value import Fields, Json, array_of, expected, obj, optional, string
from fsstore.values.url import encode_path


def _strings(value: Any) -> dict[str, str]:
    return {name: string(text) for name, text in obj(value).items()}


def targets_of(value: Any) -> dict[str, Any]:
    """Return the member `targets`, its credentials hidden from JSON, messages and pickles."""
    found = {prefix: _guarded(how) for prefix, how in obj(value).items()}
    for prefix, how in found.items():
        if how is None or isinstance(how, bool | int | float | list):
            raise expected(f"a kvstore spec, URL or storage options for {prefix!r}", how)
    check_prefixes(found)
    return found


def _guarded(how: Any) -> Any:
    return guard(dict(how)) if isinstance(how, Mapping) else guard(how) if isinstance(how, str) else how


def _allow(value: Any) -> list[str]:
    found = array_of(string)(value)
    try:
        for prefix in found:
            normalize_prefix(prefix)
    except StoreError as error:
        raise JsonError(error.message) from error
    return found


def reach_members(fields: Fields) -> dict[str, Json]:
    """Take the members that say what a set, or a file that refers to others, may read."""
    taken: dict[str, Any] = {
        "targets": fields.take("targets", targets_of),
        "rewrite": guard_urls(fields.take("rewrite", _strings)),
        "allow": guard_urls(fields.take("allow", optional(_allow))),
    }
    return {name: value for name, value in taken.items() if value is not None and value != {}}


@dataclass(frozen=True, slots=True)
class ReferenceKind(AdapterKind):
    """The static side of the adapter."""

    id: str = "reference"
    schemes: tuple[str, ...] = ("reference", "kerchunk")
    resources: tuple[str, ...] = ("range_coalescing",)

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the members of the kind."""
        taken: dict[str, Any] = {
            "target": guard_urls(fields.take("target", optional(string))),
            "templates": guard_urls(fields.take("templates", _strings)),
        }
        taken = {name: value for name, value in taken.items() if value is not None and value != {}}
        return {**taken, **reach_members(fields)}

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:  # options have no URL form
        """Return the URL component."""
        return "reference:" + encode_path(path)

    async def open(self, opening: KvOpening) -> KvDriver:
        """Return the opened adapter.

        A set that does not exist can be opened where it can be made; then it is an error to read it.
        """
        base = opening.below
        means = limits_from(opening.resources), open_in(opening.context)
        return await open_reference(base, opening.members, means)


KIND = ReferenceKind()


async def open_reference(
    base: KvPrefix,
    members: Mapping[str, Any],
    means: tuple[Limits, OpenTarget] | None = None,
) -> KvDriver:
    """Return the key-value store of the set at `base`."""
    features = base.driver.features
    writable = features.writable and features.conditional_write
    how = "writing to it, or opening an array in it with `create=True`, makes it" if writable else ""
    reading = Reading(
        reveal(members.get("target")), reveal(members.get("templates")), create=writable, creates=how
    )

    async def stored() -> State:
        return await load(base, reading)

    state = await stored()
    document = ParquetDocument(stored) if isinstance(state.base, ParquetSet) else JsonDocument(base, stored)
    overlay = Overlay(state, document if writable else None, writable=writable)
    parent = await beside(base)
    return reference_driver(
        overlay,
        members,
        base=parent,
        described=f"reference set {base.describe()}",
        means=means,
    )
