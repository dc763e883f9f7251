"""A chunk grid, a chunk key encoding and a data type of zarr version 3 as another package would add them.

"chunk_grid": {"name": "example.growing", "configuration": {"first": 10, "factor": 2}}
"chunk_key_encoding": {"name": "example.suffixed", "configuration": {"suffix": ".bin"}}
"data_type": "example.rgb"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from fsstore import plugin


@dataclass(frozen=True, slots=True)
class GrowingGrid:
    """Along one dimension, chunks of which each is `factor` times as long as the one before."""

    first: int
    factor: int

    name: ClassVar[str] = "example.growing"
    rank: ClassVar[int] = 1
    chunk_shape: ClassVar[None] = None  # there is none that all chunks have

    @classmethod
    def from_json(cls, configuration: Mapping[str, plugin.Json]) -> Self:
        """Return the grid of a configuration; every problem of it is reported."""
        fields = plugin.Fields(configuration)
        first = fields.require("first", plugin.integer(1, 2**30))
        factor = fields.take("factor", plugin.integer(2, 16), default=2)
        fields.finish()
        return cls(first, factor)

    def to_json(self) -> dict[str, plugin.Json]:
        """Return the configuration as stored."""
        return {"first": self.first, "factor": self.factor}

    def sizes(self, shape: Sequence[int]) -> list[list[int]]:
        """Return the sizes of as many chunks as an array of this shape needs; more follow when it grows."""
        sizes = [self.first]
        while sum(sizes) < shape[0]:
            sizes.append(sizes[-1] * self.factor)
        return [sizes]


@dataclass(frozen=True, slots=True)
class SuffixedKeys(plugin.WholeKeys):
    """Keys such as `1-2.bin`."""

    suffix: str

    name: ClassVar[str] = "example.suffixed"

    @classmethod
    def from_json(cls, configuration: Mapping[str, plugin.Json]) -> Self:
        """Return the encoding of a configuration."""
        fields = plugin.Fields(configuration)
        suffix = fields.take("suffix", plugin.string, default=".bin")
        fields.finish()
        return cls(suffix)

    def to_json(self) -> dict[str, plugin.Json]:
        """Return the configuration, where it is not as by default."""
        return {} if self.suffix == ".bin" else {"suffix": self.suffix}

    def keys(self) -> plugin.ChunkKeys:
        """Return what makes the keys, which is the encoding itself."""
        return self

    def key(self, chunk: Iterable[int]) -> str:
        """Return the key of a chunk."""
        return "-".join(str(int(number)) for number in chunk) + self.suffix

    def numbers(self, key: str, rank: int) -> tuple[int, ...] | None:
        """Return the numbers of the chunk whose key this is, or None for every other key."""
        parts = key.removesuffix(self.suffix).split("-") if rank else []
        if not all(part.isascii() and part.isdigit() for part in parts):
            return None
        numbers = tuple(map(int, parts))
        return numbers if len(numbers) == rank and self.key(numbers) == key else None


@dataclass(frozen=True, slots=True)
class RgbType:
    """Colours: three bytes, and a fill value such as `"#ff8000"`."""

    name: ClassVar[str] = "example.rgb"
    native: ClassVar[np.dtype[Any]] = np.dtype([("r", "u1"), ("g", "u1"), ("b", "u1")])

    @classmethod
    def from_json(cls, configuration: Mapping[str, plugin.Json]) -> Self:
        """Return the type; it has no configuration."""
        plugin.Fields(configuration).finish()
        return cls()

    def to_json(self) -> dict[str, plugin.Json]:
        """Return the configuration."""
        return {}

    def fill_from_json(self, value: plugin.Json) -> Any:
        """Return the colour that a text names."""
        text = plugin.string(value)
        try:
            octets = bytes.fromhex(text.removeprefix("#"))
        except ValueError:
            octets = b""
        if len(octets) != 3 or text[:1] != "#":
            raise plugin.JsonError(f"Expected a colour such as #ff8000, but received: {plugin.quote(text)}")
        return np.frombuffer(octets, self.native)[0]

    def fill_to_json(self, value: Any) -> plugin.Json:
        """Return a colour as text."""
        return "#" + np.asarray(value, self.native).tobytes().hex()
