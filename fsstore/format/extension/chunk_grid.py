"""The chunk grids of zarr v3: `regular` and `rectilinear`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from fsstore.errors import FailedPreconditionError
from fsstore.index.interval import MAX_FINITE
from fsstore.values.json_value import Fields, Json, array_of, integer, one_of

__all__ = ["RectilinearGrid", "RegularGrid"]

_MAX_LISTED = 1 << 22  # chunks along a dimension: a few bytes in a document may stand for many


@dataclass(frozen=True, slots=True)
class RegularGrid:
    """Chunks of one shape."""

    chunk_shape: tuple[int, ...]

    name: ClassVar[str] = "regular"

    @classmethod
    def from_json(cls, configuration: Mapping[str, Json]) -> Self:
        """Return the grid of a configuration."""
        fields = Fields(configuration)
        shape = fields.require("chunk_shape", array_of(integer(1, MAX_FINITE)))
        fields.finish()
        return cls(tuple(shape))

    def to_json(self) -> dict[str, Json]:
        """Return the configuration."""
        return {"chunk_shape": list(self.chunk_shape)}

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.chunk_shape)

    def sizes(self, shape: Sequence[int]) -> Sequence[int]:
        """Return the size of the chunks along each dimension."""
        return self.chunk_shape


@dataclass(frozen=True, slots=True)
class RectilinearGrid:
    """Chunks whose sizes are listed along each dimension, with runs `[size, how often]`, or one size for all."""

    chunk_shapes: tuple[Any, ...]

    name: ClassVar[str] = "rectilinear"
    chunk_shape: ClassVar[None] = None

    @classmethod
    def from_json(cls, configuration: Mapping[str, Json]) -> Self:
        """Return the grid of a configuration."""
        fields = Fields(configuration)
        fields.take("kind", one_of("inline"))
        shapes = fields.require("chunk_shapes", array_of(_along))
        fields.finish()
        return cls(tuple(shapes))

    def to_json(self) -> dict[str, Json]:
        """Return the configuration."""
        return {"kind": "inline", "chunk_shapes": list(self.chunk_shapes)}

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.chunk_shapes)

    def sizes(self, shape: Sequence[int]) -> Sequence[int | Sequence[int]]:
        """Return the sizes of the chunks along each dimension, with runs written out."""
        return [sizes if isinstance(sizes, int) else _listed(sizes) for sizes in self.chunk_shapes]


def _run(value: Any) -> Json:
    if isinstance(value, list):
        return array_of(integer(1, MAX_FINITE), length=2)(value)
    return integer(1, MAX_FINITE)(value)


def _along(value: Any) -> Json:
    return array_of(_run)(value) if isinstance(value, list) else integer(1, MAX_FINITE)(value)


def _listed(sizes: Sequence[Any]) -> list[int]:
    runs = [(size, 1) if isinstance(size, int) else size for size in sizes]
    count = sum(repeats for _, repeats in runs)
    if count > _MAX_LISTED:
        raise FailedPreconditionError(f"A dimension of {count} chunks of listed sizes is not supported")
    return [size for size, repeats in runs for _ in range(repeats)]
