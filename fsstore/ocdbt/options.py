"""The JSON members of the `ocdbt` store: their parsing, canonical form, and what they mean for opening."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from fsstore.context.resource_kinds import duration_text
from fsstore.errors import JsonError, StoreError
from fsstore.kvstore.contract.request import key_bytes
from fsstore.kvstore.spec.opening import as_directory
from fsstore.ocdbt.commit import Options
from fsstore.ocdbt.format.config import Constraints, parse_constraints
from fsstore.ocdbt.format.varint import U64
from fsstore.ocdbt.history import Choice
from fsstore.ocdbt.sink import NodeLayout
from fsstore.values.json_value import Fields, Json, boolean, expected, integer, number, obj, quote, string

__all__ = [
    "choice_of",
    "format_time",
    "format_version",
    "options_from",
    "parse_time",
    "parse_version",
    "take_members",
]

_PREFIXES = ("value_data_prefix", "btree_node_data_prefix", "version_tree_node_data_prefix")
_TARGET = 2**31  # bytes of a data file: TensorStore's default
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?Z", re.ASCII)


def parse_time(text: str) -> int:
    """Return the nanoseconds since the epoch that a time such as `2025-01-01T00:00:00.5Z` means."""
    match = _TIME.fullmatch(text)
    error = StoreError(f"Invalid OCDBT commit time {quote(text)}: Failed to parse input")
    if match is None:
        raise error
    try:
        moment = datetime.fromisoformat(match[1]).replace(tzinfo=UTC)
    except ValueError:
        raise error from None
    seconds = round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds())
    value = seconds * 10**9 + int(((match[2] or "") + "0" * 9)[:9])
    if not 0 <= value <= U64:
        raise StoreError(f"Invalid OCDBT commit time {quote(text)}: out of range")
    return value


def format_time(nanoseconds: int) -> str:
    """Return the inverse of `parse_time`, with as many digits as needed."""
    seconds, rest = divmod(nanoseconds, 10**9)
    try:
        text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return f"{nanoseconds} ns"
    fraction = f".{rest:09}".rstrip("0") if rest else ""
    return f"{text.rjust(19, '0')}{fraction}Z"


def parse_version(text: str) -> Json:
    """Return the `version` member that `v5` or a time in a URL means."""
    try:
        if re.fullmatch(r"v[0-9]+", text):
            if len(text) > 30 or not 1 <= int(text[1:]) <= U64:
                raise StoreError("Invalid generation number")
            return int(text[1:])
        return format_time(parse_time(text))
    except StoreError as error:
        raise StoreError(f"Invalid OCDBT version: {quote(text)}: {error.message}") from None


def format_version(version: Json) -> str:
    """Return the text of a `version` member, as in URLs and messages."""
    return f"v{version}" if isinstance(version, int) else str(version)


def choice_of(version: Json) -> Choice | None:
    """Return what a canonical `version` member chooses; None is the newest."""
    if version is None:
        return None
    return (
        Choice("time", parse_time(version))
        if isinstance(version, str)
        else Choice("generation", int(str(version)))
    )


def _version(value: Any) -> Json:
    if not isinstance(value, str):
        return integer(1, U64)(value)
    try:
        return format_time(parse_time(value))
    except StoreError as error:
        raise JsonError(error.message) from None


def _unsigned(value: Any) -> int:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= U64:
        raise expected("64-bit unsigned integer", value)
    return value


def take_members(fields: Fields) -> dict[str, Json]:
    """Take the members from `fields`; return them in canonical form without those equal to their defaults."""
    out: dict[str, Json] = {}
    if "config" in fields:
        constraints = fields.take("config", parse_constraints, default=Constraints({}))
        if constraints.given:
            out["config"] = constraints.to_json()
    if "manifest" in fields:
        out["manifest"] = fields.take("manifest", _store)
    if "version" in fields:
        out["version"] = fields.take("version", _version)
    for name in ("assume_config", "single_writer"):
        if fields.take(name, boolean, default=False):
            out[name] = True
    for name in _PREFIXES:
        prefix = fields.take(name, string, default="d/")
        if prefix != "d/":
            out[name] = prefix
    target = fields.take("target_data_file_size", _unsigned, default=_TARGET)
    if target != _TARGET:
        out["target_data_file_size"] = target
    for name in ("threshold_bytes", "merged_bytes"):
        whole = f"experimental_read_coalescing_{name}"
        if whole in fields:
            out[whole] = fields.take(whole, _unsigned)
    if "experimental_read_coalescing_interval" in fields:
        out["experimental_read_coalescing_interval"] = fields.take(
            "experimental_read_coalescing_interval", duration_text
        )
    return out


def _store(value: Any) -> Json:
    """Return the spec of the store of the manifests: a directory, like the base."""
    from fsstore.kvstore.spec.parse import kv_spec

    try:
        spec = kv_spec(value if isinstance(value, str) else obj(value))
    except JsonError:
        raise
    except StoreError as error:
        raise JsonError(str(error)) from None
    spec.path = as_directory(spec.path)
    json: Json = spec.to_json()
    return json


def options_from(members: Mapping[str, Any]) -> Options:
    """Return how a store opened with canonical `members` writes."""
    prefixes = [key_bytes(str(members.get(name, "d/"))) for name in _PREFIXES]
    layout = NodeLayout(
        prefixes[0], prefixes[1], prefixes[2], int(number(members.get("target_data_file_size", _TARGET)))
    )
    return Options(
        parse_constraints(members.get("config", {})),
        members.get("assume_config") is True,
        members.get("single_writer") is True,
        layout,
    )
