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
from fsstore.kvstore.contract.coalesce import Limits, limits_from
from fsstore.kvstore.contract.driver import KvDriver, KvPrefix
from fsstore.kvstore.contract.kind import AdapterKind, KvOpening
from fsstore.kvstore.engine.secret import guard
from fsstore.kvstore.reference.collection.refset import TableSet
from fsstore.kvstore.reference.collection.set_state import Overlay, State
from fsstore.kvstore.reference.document.writer import JsonDocument
from fsstore.kvstore.reference.load import Reading, load
from fsstore.kvstore.reference.location import beside
from fsstore.kvstore.reference.parquet.document import ParquetDocument
from fsstore.kvstore.reference.parquet.refs import ParquetSet
from fsstore.kvstore.reference.target.fetch import Fetcher
from fsstore.kvstore.reference.target.policy import Policy, normalize, normalize_prefix
from fsstore.kvstore.reference.target.targets import (
    OpenTarget,
    Targets,
    check_prefixes,
    open_in,
    open_with_spec,
)
from fsstore.values.json_value import Fields, Json, array_of, expected, obj, optional, string
from fsstore.values.url import encode_path

__all__ = [
    "KIND",
    "ReferenceKind",
    "driver_in_memory",
    "open_reference",
    "policy_of",
    "reach_members",
    "reference_driver",
    "targets_of",
]

_LOCAL_DRIVERS = ("file", "memory")


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
        "rewrite": fields.take("rewrite", _strings),
        "allow": fields.take("allow", optional(_allow)),
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
            "target": fields.take("target", optional(string)),
            "templates": fields.take("templates", _strings),
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
        base = opening.base
        if base is None:
            raise JsonError('The "reference" key-value store needs a base')
        limits, opener = limits_from(opening.resources), open_in(opening.context)
        return await open_reference(base, opening.members, limits=limits, open_target=opener)


KIND = ReferenceKind()


def _home(base: KvPrefix) -> str | None:
    """Return the prefix of the place of a set: its host."""
    url = base.driver.spec().get("base_url") or base.driver.spec().get("url")
    try:
        normal = normalize(url) if isinstance(url, str) else None
    except StoreError:
        return None
    return None if normal is None else "/".join(normal.split("/")[:3]) + "/"


def _is_local(driver: KvDriver) -> bool:
    """Return whether a store surely lies on this machine: itself, or what it is an adapter over."""
    if driver.id in _LOCAL_DRIVERS:
        return True
    below = getattr(driver, "base", None)
    if isinstance(below, KvPrefix):
        return _is_local(below.driver)
    return str(driver.spec().get("url", "")).startswith(("file:", "local:", "memory:"))


def policy_of(base: KvPrefix | None, members: Mapping[str, Any]) -> Policy:
    """Return what a set at `base` may read, given the members of its spec."""
    allow = members.get("allow")
    granted = [*check_prefixes(members.get("targets") or {})]
    replacing = (members.get("rewrite") or {}).values()
    granted += [normalize_prefix(new) for new in replacing if new.startswith("/") or "://" in new]
    return Policy(
        "local" if base is None or _is_local(base.driver) else "remote",
        home=None if base is None else _home(base),
        allow=None if allow is None else tuple(normalize_prefix(prefix) for prefix in allow),
        granted=tuple(granted),
    )


async def open_reference(
    base: KvPrefix,
    members: Mapping[str, Any],
    *,
    limits: Limits | None = None,
    open_target: OpenTarget = open_with_spec,
) -> KvDriver:
    """Return the key-value store of the set at `base`."""
    features = base.driver.features
    writable = features.writable and features.conditional_write
    how = "writing to it, or opening an array in it with `create=True`, makes it" if writable else ""
    reading = Reading(members.get("target"), members.get("templates"), create=writable, creates=how)

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
        limits=limits,
        open_target=open_target,
        described=f"reference set {base.describe()}",
    )


def driver_in_memory(state: State, members: Mapping[str, Any], base: KvPrefix | None = None) -> KvDriver:
    """Return the key-value store over a set in memory; what is written changes this store only."""
    overlay = Overlay(state, None, writable=True)
    return reference_driver(overlay, members, base=base, described="reference set in memory")


def reference_driver(
    overlay: Overlay,
    members: Mapping[str, Any],
    *,
    base: KvPrefix | None,
    described: str,
    limits: Limits | None = None,
    open_target: OpenTarget = open_with_spec,
) -> KvDriver:
    """Return the key-value store over an opened set; `base` is the directory it lies in."""
    from fsstore.kvstore.reference.driver import ReferenceDriver

    targets = Targets(
        open_target,
        policy_of(base, members),
        base,
        check_prefixes(members.get("targets") or {}),
        members.get("rewrite") or {},
    )
    fetcher = Fetcher(targets, limits or Limits(), described)
    return ReferenceDriver(overlay, fetcher, waits=_waits(overlay, targets), members=members)


def _waits(overlay: Overlay, targets: Targets) -> bool:
    """Return whether reading may suspend: not if all is known to lie in local files."""
    base = overlay.state.base
    document = targets.base
    if base.waits or not isinstance(base, TableSet) or base.gens:
        return True
    if document is not None and document.driver.features.waits and overlay.writable:
        return True
    try:
        return not all(targets.local(url) for url in base.table.urls)
    except StoreError:
        return True
