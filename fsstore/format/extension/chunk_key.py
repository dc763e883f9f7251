"""The chunk key encodings of zarr v3: `default` and `v2`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from fsstore.chunk.plan.keys import KeyEncoding
from fsstore.values.json_value import Fields, Json, one_of

__all__ = ["DefaultKeys", "Version2Keys"]

_SEPARATOR = one_of(".", "/")


def _separator(configuration: Mapping[str, Json], default: str) -> str:
    fields = Fields(configuration)
    separator: str = fields.take("separator", _SEPARATOR, default=default)
    fields.finish()
    return separator


@dataclass(frozen=True, slots=True)
class DefaultKeys:
    """Keys such as `c/1/2`."""

    separator: str = "/"

    name: ClassVar[str] = "default"

    @classmethod
    def from_json(cls, configuration: Mapping[str, Json]) -> Self:
        """Return the encoding of a configuration."""
        return cls(_separator(configuration, "/"))

    def to_json(self) -> dict[str, Json]:
        """Return the configuration, where it is not as by default."""
        return {} if self.separator == "/" else {"separator": self.separator}

    def keys(self) -> KeyEncoding:
        """Return what makes the keys."""
        return KeyEncoding("c", self.separator, "c")


@dataclass(frozen=True, slots=True)
class Version2Keys:
    """Keys such as `1.2`, as in zarr version 2."""

    separator: str = "."

    name: ClassVar[str] = "v2"

    @classmethod
    def from_json(cls, configuration: Mapping[str, Json]) -> Self:
        """Return the encoding of a configuration."""
        return cls(_separator(configuration, "."))

    def to_json(self) -> dict[str, Json]:
        """Return the configuration, where it is not as by default."""
        return {} if self.separator == "." else {"separator": self.separator}

    def keys(self) -> KeyEncoding:
        """Return what makes the keys."""
        return KeyEncoding("", self.separator, "0")
