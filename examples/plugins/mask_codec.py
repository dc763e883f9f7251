"""A codec as another package would add it: `{"name": "example.mask", "configuration": {"bits": 6}}`.

Keeps the highest bits of each byte and clears the others, so that what follows compresses better; a codec may lose
precision, but it must say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from fsstore import plugin


class BoundMask:
    """The codec for arrays of one type and shape."""

    def __init__(self, decoded: plugin.ChunkSpec, bits: int) -> None:
        self.encoded = decoded  # what goes out has the type and shape of what comes in
        self.mask = np.uint8(256 - 2 ** (8 - bits))

    def encode(self, data: Any) -> Any:
        """Return the array with its low bits cleared."""
        return data & self.mask

    def decode(self, data: Any) -> Any:
        """Return the array as it is: cleared bits do not come back."""
        return data


@dataclass(frozen=True, slots=True)
class MaskCodec:
    """Clears all but the highest `bits` bits of 8-bit unsigned integers."""

    bits: int

    name: ClassVar[str] = "example.mask"
    kind: ClassVar[plugin.CodecStage] = "array_to_array"
    members: ClassVar[plugin.Members] = {"bits": plugin.Member(plugin.integer(1, 8), stored=True)}

    @classmethod
    def from_json(cls, configuration: Mapping[str, plugin.Json]) -> Self:
        """Return the codec of a stored configuration; every problem of it is reported."""
        return cls(**plugin.read_options(cls.members, configuration))

    def to_json(self) -> dict[str, plugin.Json]:
        """Return the configuration as stored."""
        return {"bits": self.bits}

    def bind(self, decoded: plugin.ChunkSpec | plugin.ByteSpec) -> BoundMask:
        """Return the codec for chunks like `decoded`; all checks are here."""
        if not isinstance(decoded, plugin.ChunkSpec) or decoded.dtype != np.uint8:
            raise plugin.StoreError('"example.mask" takes arrays of uint8')
        return BoundMask(decoded, self.bits)
