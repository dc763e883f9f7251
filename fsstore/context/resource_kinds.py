"""The kinds of context resources: their JSON, their defaults, and the values that drivers get.

A kind turns JSON into a canonical configuration (defaults left out) and a configuration into a value.  Adding a kind
is one entry of `KINDS`.
"""

from __future__ import annotations

import itertools
import os
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from fsstore.errors import JsonError
from fsstore.runtime import fork
from fsstore.runtime.cache import CachePool, DiskCache
from fsstore.values.json_value import MISSING, Fields, Json, Parser, boolean, expected, integer, number, one_of, string

# The contents of an in-memory store, which live as long as the context that holds them.

_NO_VALUE = b"\x02"  # the generation of a missing key, as the contract of key-value stores has it


class MemoryStorage:
    """The contents of one in-memory store: the value of the context resource `memory_key_value_store`.

    `lock` guards everything.  Values are never changed in place, so readers hold it only to look them up.
    """

    __slots__ = ("_counter", "_moved", "_sorted", "lock", "values")

    def __init__(self) -> None:
        self.values: dict[str, tuple[bytes | memoryview, bytes]] = {}
        self.lock = fork.lock()
        self._counter = itertools.count()
        self._sorted: list[bytes] | None = None  # the keys, as they were before those in `_moved` came or went
        self._moved: set[str] = set()

    def apply(self, changes: Mapping[str, bytes | memoryview | None]) -> None:
        """Store values, and delete keys that have none; Ctrl-C comes before all of it or after all."""
        new = {key: (value, self._next_generation()) for key, value in changes.items() if value is not None}
        gone = [key for key, value in changes.items() if value is None and key in self.values]
        self._note(*gone, *(new.keys() - self.values.keys()))
        try:
            self._replace(new, gone)
        except BaseException:
            self._replace(new, gone)
            raise

    def _replace(self, new: Mapping[str, tuple[bytes | memoryview, bytes]], gone: Sequence[str]) -> None:
        self.values.update(new)
        for key in gone:
            self.values.pop(key, None)

    def _next_generation(self) -> bytes:
        return b"\0" + next(self._counter).to_bytes(8, "little")

    def generation(self, key: str) -> bytes:
        """Return the current generation of a key."""
        found = self.values.get(key)
        return _NO_VALUE if found is None else found[1]

    def put(self, key: str, value: bytes | memoryview | None) -> bytes:
        """Store a value, or delete the key; return the new generation."""
        values = self.values
        if (key in values) == (value is None):
            self._note(key)  # first: Ctrl-C may come between any two steps
        if value is None:
            values.pop(key, None)
            return _NO_VALUE
        generation = self._next_generation()
        values[key] = (value, generation)
        return generation

    def keys_in(self, inclusive_min: bytes, exclusive_max: bytes) -> list[bytes]:
        """Return the keys of a range, sorted as bytes; an empty `exclusive_max` is no bound."""
        ordered = self._ordered()
        low = bisect_left(ordered, inclusive_min)
        high = bisect_left(ordered, exclusive_max) if exclusive_max else len(ordered)
        return ordered[low:high]

    def _note(self, *keys: str) -> None:
        """Remember that keys may come or go."""
        if self._sorted is not None:
            self._moved.update(keys)
            if len(self._moved) * len(self._sorted).bit_length() > len(self._sorted):
                self._sorted = None  # sorting anew takes less than finding the place of each

    def _ordered(self) -> list[bytes]:
        """Return all keys in order: sorted anew, or with the few that came or went since the last time."""
        if self._sorted is None:
            self._sorted = _in_order(self.values)
        elif self._moved:
            ordered = self._sorted.copy()
            for key in self._moved:
                data = key.encode("utf-8", "surrogateescape")
                at = bisect_left(ordered, data)
                is_listed = ordered[at : at + 1] == [data]
                if is_listed and key not in self.values:
                    del ordered[at]
                elif key in self.values and not is_listed:
                    ordered.insert(at, data)
            self._sorted = ordered
        self._moved = set()
        return self._sorted


def _in_order(keys: Iterable[str]) -> list[bytes]:
    """Return keys as bytes, sorted; the order of text is that of its UTF-8, and much faster to make."""
    try:
        return [key.encode() for key in sorted(keys)]
    except UnicodeEncodeError:  # surrogates stand for bytes that come elsewhere
        return sorted(key.encode("utf-8", "surrogateescape") for key in keys)


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
        taken = {name: fields.take(name, parser, default=default) for name, (parser, default) in defaults.items()}
        fields.finish()
        return {name: item for name, item in taken.items() if item != defaults[name][1]}

    return parse


def _cache(value: Any) -> Json:
    members = _members({"total_bytes_limit": (integer(0), 0), "read_ahead": (integer(0), 0)})
    config: dict[str, Json] = members(value)  # type: ignore[assignment]  # an object, though JSON may be more
    if "read_ahead" in config and "total_bytes_limit" not in config:
        raise JsonError("read_ahead needs memory for what it reads: give total_bytes_limit, too")
    return config


_DISK_BYTES = 10**10


def _disk_cache(config: Mapping[str, Any]) -> DiskCache:
    """Return the cache of a configuration, or the one that the environment names."""
    path = config.get("path") or os.environ.get("FSSTORE_CACHE_PATH", "")
    limit = config.get("total_bytes_limit") or int(os.environ.get("FSSTORE_CACHE_BYTES", _DISK_BYTES))
    return DiskCache(str(Path(path).expanduser().absolute()) if path else "", limit)


def _limit(value: Any) -> int | str:
    if value == "shared" and isinstance(value, str):
        return "shared"
    try:
        return integer(1)(value)
    except JsonError:
        raise expected('positive integer or "shared"', value) from None


def _concurrency(name: str) -> ResourceKind:
    return ResourceKind(
        name, _members({"limit": (_limit, "shared")}), lambda config: Concurrency(**config), {}, {"limit": "shared"}
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
        ResourceKind(
            "disk_cache",
            _members({"path": (string, ""), "total_bytes_limit": (integer(1), _DISK_BYTES)}),
            _disk_cache,
            {},
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
            "memory_key_value_store", _members({}), lambda _: MemoryStorage(), {}, elsewhere=ELSEWHERE, has_state=True
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
