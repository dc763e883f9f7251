"""The chunk key encodings of zarr v3: `default` and `v2`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

from fsstore.chunk.plan.keys import KeyEncoding
from fsstore.values.json_value import Fields, Json, one_of

__all__ = ["DefaultKeys", "Version2Keys"]


@dataclass(frozen=True, slots=True)
class DefaultKeys:
    """Keys such as `c/1/2`."""

    separator: str

    name: ClassVar[str] = "default"
    usual: ClassVar[str] = "/"

    @classmethod
    def from_json(cls, configuration: Mapping[str, Json]) -> Self:
        """Return the encoding of a configuration."""
        fields = Fields(configuration)
        separator: str = fields.take("separator", one_of(".", "/"), default=cls.usual)
        fields.finish()
        return cls(separator)

    def to_json(self) -> dict[str, Json]:
        """Return the configuration, where it is not as by default."""
        return {} if self.separator == self.usual else {"separator": self.separator}

    def keys(self) -> KeyEncoding:
        """Return what makes the keys."""
        return KeyEncoding("c", self.separator, "c")


class Version2Keys(DefaultKeys):
    """Keys such as `1.2`, as in zarr version 2."""

    __slots__ = ()

    name: ClassVar[str] = "v2"
    usual: ClassVar[str] = "."

    def keys(self) -> KeyEncoding:
        """Return what makes the keys."""
        return KeyEncoding("", self.separator, "0")
