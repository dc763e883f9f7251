"""The kinds of context resources: their JSON, their defaults, and the values that drivers get.

A kind turns JSON into a canonical configuration (defaults left out) and a configuration into a value.  Adding a kind
is one entry of `KINDS`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from fsstore.context.memory_storage import MemoryStorage
from fsstore.errors import JsonError
from fsstore.runtime.cache_pool import CachePool
from fsstore.values.json_value import (
    MISSING,
    Fields,
    Json,
    Parser,
    boolean,
    expected,
    integer,
    number,
    one_of,
    string,
)

__all__ = [
    "ELSEWHERE",
    "KINDS",
    "REQUEST_DEADLINE",
    "REQUEST_RETRIES",
    "Coalescing",
    "Concurrency",
    "Locking",
    "ResourceKind",
    "duration",
    "duration_text",
    "kind_of",
    "kind_of_member",
]

_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(h|ms|m|s|us|ns)")


def duration(value: Any) -> float:
    """Parse a duration such as `"60s"` or `"1m30s"` to seconds."""
    if not isinstance(value, str):
        raise expected("string", value)
    text = value.lstrip("+-")
    parts = _DURATION.findall(text)
    if text == "0":
        return 0.0
    if "".join(amount + unit for amount, unit in parts) != text or not parts:
        raise expected('duration such as "60s"', value)
    sign = -1.0 if value.startswith("-") else 1.0
    return sign * sum(float(amount) * _UNITS[unit] for amount, unit in parts)


def duration_text(value: Any) -> str:
    """Parse a duration, left as it is."""
    duration(value)
    return string(value)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """How many operations run at once; "shared" leaves it to the process-wide pools."""

    limit: int | Literal["shared"] = "shared"

    @property
    def threads(self) -> int | None:
        """The number of threads, or None for the shared pool."""
        return None if self.limit == "shared" else self.limit


@dataclass(frozen=True, slots=True)
class Locking:
    """How local files are locked for writing, and how long to wait for a lock file."""

    mode: str = "os"
    acquire_timeout_s: float = 60.0


@dataclass(frozen=True, slots=True)
class Coalescing:
    """When ranges of one key are read together: bytes between them, and bytes of the merged range."""

    max_gap: int | None = None
    max_size: int | None = None


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of resource.  `parse` gives the canonical configuration, `create` the value of one."""

    name: str
    parse: Callable[[Any], Json]
    create: Callable[[Any], Any]
    default: Json = None
    members: Mapping[str, Json] | None = None
    """Default members, for `to_json(include_defaults=True)`; None where TensorStore does not add them."""
    elsewhere: Any = None
    """The value that stands for one in the memory of another process; None where a value can be made anywhere."""
    has_state: bool = False
    """Whether each resource has a value of its own; else the value never changes."""
    usual: Any = field(init=False)
    """The value of the default configuration, which all resources share; `MISSING` if each has its own."""

    def __post_init__(self) -> None:
        """Make the value that is shared."""
        usual = MISSING if self.has_state else self.create(self.default)
        object.__setattr__(self, "usual", usual)

    def to_json(self, config: Json, *, include_defaults: bool = False) -> Json:
        """Return the configuration, with default members on request."""
        if include_defaults and self.members is not None and isinstance(config, dict):
            return {**self.members, **config}
        return config


def _members(defaults: Mapping[str, tuple[Parser[Any], Json]]) -> Callable[[Any], Json]:
    def parse(value: Any) -> Json:
        fields = Fields(value)
        taken = {
            name: fields.take(name, parser, default=default) for name, (parser, default) in defaults.items()
        }
        fields.finish()
        return {name: item for name, item in taken.items() if item != defaults[name][1]}

    return parse


def _cache(value: Any) -> Json:
    members = _members({"total_bytes_limit": (integer(0), 0), "read_ahead": (integer(0), 0)})
    config: dict[str, Json] = members(value)  # type: ignore[assignment]  # an object, though JSON may be more
    if "read_ahead" in config and "total_bytes_limit" not in config:
        raise JsonError("read_ahead needs memory for what it reads: give total_bytes_limit, too")
    return config


def _limit(value: Any) -> int | str:
    if value == "shared" and isinstance(value, str):
        return "shared"
    try:
        return integer(1)(value)
    except JsonError:
        raise expected('positive integer or "shared"', value) from None


def _concurrency(name: str) -> ResourceKind:
    return ResourceKind(
        name,
        _members({"limit": (_limit, "shared")}),
        lambda config: Concurrency(**config),
        {},
        {"limit": "shared"},
    )


def _locking_value(config: Mapping[str, Any]) -> Locking:
    return Locking(config.get("mode", "os"), duration(config.get("acquire_timeout", "60s")))


ELSEWHERE: Any = object()
"""The value of a memory store that is in another process."""


REQUEST_RETRIES: Mapping[str, Any] = {"initial_delay": "1s", "max_delay": "32s", "max_retries": 32}
"""The defaults of resources that say how often a failed request to a server is tried again."""

REQUEST_DEADLINE = "10s"
"""The default of their member `deadline`: how long a server may fail or be silent."""


def _deadline_text(value: Any) -> str:
    if duration(value) <= 0:
        raise expected("positive duration", value)
    return string(value)


def _retries(name: str, defaults: Mapping[str, Any]) -> ResourceKind:
    parsers = {"initial_delay": duration_text, "max_delay": duration_text, "max_retries": integer(0)}
    members = {member: (parser, defaults[member]) for member, parser in parsers.items()}
    # TensorStore has no deadline, so it is no member of the defaults that `to_json` adds
    parse = _members({**members, "deadline": (_deadline_text, REQUEST_DEADLINE)})
    return ResourceKind(name, parse, dict, {}, defaults)


KINDS: Mapping[str, ResourceKind] = {
    kind.name: kind
    for kind in (
        ResourceKind(
            "cache_pool",
            _cache,
            lambda config: CachePool(config.get("total_bytes_limit", 0), config.get("read_ahead", 0)),
            {},
            {"total_bytes_limit": 0},
            has_state=True,
        ),
        _concurrency("data_copy_concurrency"),
        _concurrency("file_io_concurrency"),
        ResourceKind("file_io_sync", boolean, bool, True),
        ResourceKind(
            "file_io_locking",
            _members(
                {
                    "mode": (one_of("os", "lockfile", "none", "non_atomic"), "os"),
                    "acquire_timeout": (duration_text, "60s"),
                }
            ),
            _locking_value,
            {},
        ),
        ResourceKind("file_io_memmap", boolean, bool, False),
        ResourceKind(
            "file_io_mode",
            _members({"mode": (one_of("default", "memmap", "direct"), "default")}),
            lambda config: config.get("mode", "default"),
            {},
        ),
        _retries("file_io_retries", {**REQUEST_RETRIES, "max_retries": 0}),
        ResourceKind(
            "memory_key_value_store",
            _members({}),
            lambda _: MemoryStorage(),
            {},
            elsewhere=ELSEWHERE,
            has_state=True,
        ),
        ResourceKind(
            "range_coalescing",
            _members({"max_gap": (integer(0), None), "max_size": (integer(1), None)}),
            lambda config: Coalescing(**config),
            {},
        ),
        ResourceKind(
            "ocdbt_coordinator",
            _members({"address": (string, None), "lease_duration": (duration_text, None)}),
            dict,
            {},
        ),
        *(_concurrency(f"{place}_request_concurrency") for place in ("gcs", "s3", "http", "abfs")),
        *(_retries(f"{place}_request_retries", REQUEST_RETRIES) for place in ("gcs", "s3", "http", "abfs")),
        ResourceKind("gcs_user_project", _members({"project_id": (string, None)}), dict, {}),
        ResourceKind("aws_credentials", partial(lambda value: Fields(value).rest()), dict, {}),
        ResourceKind(
            "experimental_gcs_rate_limiter",
            _members({"read_rate": (number, None), "write_rate": (number, None)}),
            dict,
            {},
        ),
        ResourceKind(
            "experimental_s3_rate_limiter",
            _members({"read_rate": (number, None), "write_rate": (number, None)}),
            dict,
            {},
        ),
    )
}
"""Every kind by name."""


_MEMBERS_OF_TYPE = {"metadata_cache_pool": "cache_pool", "coordinator": "ocdbt_coordinator"}
"""Spec members whose name is not the type of their resource."""


def kind_of(key: str) -> ResourceKind | None:
    """Return the kind of a resource key such as `cache_pool` or `cache_pool#name`."""
    return KINDS.get(key.partition("#")[0])


def kind_of_member(name: str) -> ResourceKind | None:
    """Return the kind of resource that a spec member gives."""
    return KINDS.get(_MEMBERS_OF_TYPE.get(name, name))
