"""The configuration of a database: its stored form, its JSON, and what a user may ask of it.

A `Config` is fixed when a database is created and stands at the start of every manifest.  A spec gives
`Constraints`: for an existing database what is given must agree, for a new one it supplies values.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from fsstore.errors import FailedPreconditionError, JsonError, StoreError
from fsstore.ocdbt.format.varint import U32, Cursor, encode
from fsstore.values.json_value import Fields, Json, expected, integer, one_of, optional, show, string

__all__ = ["MAX_INLINE", "Config", "Constraints", "ManifestKind", "complete_config", "parse_constraints"]

ManifestKind: TypeAlias = Literal["single", "numbered"]

MAX_INLINE = 1024 * 1024
"""The longest value a leaf may hold, whatever the configuration."""

_LEVELS = (-131072, 22)
_NAMES = (
    "uuid",
    "manifest_kind",
    "max_inline_value_bytes",
    "max_decoded_node_bytes",
    "version_tree_arity_log2",
)


@dataclass(frozen=True, slots=True)
class Config:
    """A complete configuration.  `level` is that of zstd, None for no compression."""

    uuid: bytes
    manifest_kind: ManifestKind = "single"
    max_inline_value_bytes: int = 100
    max_decoded_node_bytes: int = 8 * 1024 * 1024
    version_tree_arity_log2: int = 4
    level: int | None = 0

    def encoded(self) -> bytes:
        """Return the stored form."""
        parts = [
            self.uuid,
            bytes([self.manifest_kind == "numbered"]),
            encode(self.max_inline_value_bytes),
            encode(self.max_decoded_node_bytes),
            bytes([self.version_tree_arity_log2]),
            encode(self.level is not None),
        ]
        return b"".join(parts) + (b"" if self.level is None else struct.pack("<i", self.level))

    @classmethod
    def take(cls, cursor: Cursor) -> Config:
        """Return the configuration at the cursor."""
        uuid = cursor.take_bytes(16)
        kind = cursor.take_u8()
        if kind > 1:
            raise cursor.corrupt(f"Unknown manifest kind {kind}")
        inline, decoded = cursor.take(U32), cursor.take(U32)
        arity = cursor.take_u8()
        if not 1 <= arity <= 16:
            raise cursor.corrupt(f"Expected version_tree_arity_log2 in range [1, 16] but received: {arity}")
        method, level = cursor.take(U32), None
        if method > 1:
            raise cursor.corrupt(f"Unknown compression method {method}")
        if method == 1:
            level = cursor.take_fixed(1, 4, signed=True)[0]
            if not _LEVELS[0] <= level <= _LEVELS[1]:
                raise cursor.corrupt(f"Expected zstd level in range {list(_LEVELS)} but received: {level}")
        return cls(uuid, "numbered" if kind else "single", inline, decoded, arity, level)

    def to_json(self, *, kind: bool = False) -> dict[str, Json]:
        """Return the JSON form, as TensorStore prints it: without `manifest_kind` unless asked."""
        compression = (
            None if self.level is None else {"id": "zstd", **({"level": self.level} if self.level else {})}
        )
        out: dict[str, Json] = {
            "uuid": self.uuid.hex(),
            "max_inline_value_bytes": self.max_inline_value_bytes,
            "max_decoded_node_bytes": self.max_decoded_node_bytes,
            "version_tree_arity_log2": self.version_tree_arity_log2,
            "compression": compression,
        }
        return {**out, "manifest_kind": self.manifest_kind} if kind else out


@dataclass(frozen=True, slots=True)
class Constraints:
    """Members of a configuration a user gave, by name; `level` stands for `compression`, uuid is bytes."""

    given: Mapping[str, Any]

    def check(self, config: Config) -> None:
        """Raise `FailedPreconditionError` unless `config` agrees with everything given."""
        for name, value in self.given.items():
            actual = getattr(config, name)
            if actual != value:
                label = "compression" if name == "level" else name
                raise FailedPreconditionError(
                    f"Configuration mismatch on {label}: expected {_text(name, value)}"
                    f" but received {_text(name, actual)}"
                )

    def complete(self, default_kind: ManifestKind) -> Config:
        """Return the configuration of a new database; the uuid is random unless given."""
        return Config(**{"uuid": os.urandom(16), "manifest_kind": default_kind, **self.given})

    def to_json(self) -> dict[str, Json]:
        """Return the JSON form of what was given."""
        out: dict[str, Json] = {}
        for name, value in self.given.items():
            if name == "level":
                out["compression"] = (
                    None if value is None else {"id": "zstd", **({"level": value} if value else {})}
                )
            else:
                out[name] = value.hex() if name == "uuid" else value
        return out


def _text(name: str, value: Any) -> str:
    if name == "level":
        return show(None if value is None else {"id": "zstd", "level": value})
    return show(value.hex() if name == "uuid" else value)


def parse_constraints(value: Any) -> Constraints:
    """Return the constraints of a `config` member."""
    fields = Fields(value)
    parsers = (_uuid, one_of("single", "numbered"), integer(0, MAX_INLINE), integer(0, U32), integer(1, 16))
    given: dict[str, Any] = {}
    for name, parser in zip(_NAMES, parsers, strict=True):
        if name in fields:
            given[name] = fields.take(name, parser)
    if "compression" in fields:
        given["level"] = fields.take("compression", _compression)
    fields.finish()
    return Constraints(given)


def complete_config(value: Any) -> Config:
    """Return the configuration of a dump, which must say everything but `manifest_kind`."""
    constraints = parse_constraints(value)
    if len(set(constraints.given) - {"manifest_kind"}) != len(_NAMES):
        raise StoreError("Config is not fully specified")
    return constraints.complete("single")


def _uuid(value: Any) -> bytes:
    text = string(value)
    try:
        if len(text) == 32 and text.isalnum() and text.isascii():
            return bytes.fromhex(text)
    except ValueError:
        pass
    raise expected("string with 32 hex digits", value)


def _compression(value: Any) -> int | None:
    try:
        return optional(_zstd)(value)
    except JsonError as error:
        raise JsonError(
            f"No matching value binder: {expected('null', value).message}; {error.message}"
        ) from None


def _zstd(value: Any) -> int:
    fields = Fields(value)
    fields.require("id", one_of("zstd"))
    level: int = fields.take("level", integer(*_LEVELS), default=0)
    fields.finish()
    return level
