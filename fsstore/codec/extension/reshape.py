"""The `reshape` codec: another shape for the same elements in the same order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fsstore.codec.configuration import Configured, Member, Members
from fsstore.codec.contract import Array, ByteSpec, ChunkSpec, Kind
from fsstore.errors import JsonError, StoreError
from fsstore.schema.constraint import braced
from fsstore.values.json_value import Json, array_of, integer

__all__ = ["BoundReshape", "ReshapeCodec"]

_SIZE, _DIMENSIONS = integer(1), array_of(integer(0, 31))


def _entry(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_DIMENSIONS(value))
    return -1 if value == -1 and not isinstance(value, bool) else _SIZE(value)


def _parse_shape(value: Any) -> tuple[Any, ...]:
    shape = tuple(array_of(_entry)(value))
    if shape.count(-1) > 1:
        raise JsonError('At most one entry of "shape" may be -1')
    listed = [dimension for entry in shape if isinstance(entry, tuple) for dimension in entry]
    if any(later <= earlier for earlier, later in itertools.pairwise(listed)):
        raise JsonError('The dimensions that "shape" lists must increase')
    return shape


@dataclass(frozen=True, slots=True)
class ReshapeCodec(Configured):
    """Each entry of `shape` is a size, the dimensions whose product it is, or -1 for what is left."""

    shape: tuple[Any, ...]

    name: ClassVar[str] = "reshape"
    kind: ClassVar[Kind] = "array_to_array"
    members: ClassVar[Members] = {"shape": Member(_parse_shape, stored=True)}
    always: ClassVar[frozenset[str]] = frozenset({"shape"})

    def to_json(self) -> dict[str, Json]:
        """Return the configuration as stored."""
        return {"shape": [list(entry) if isinstance(entry, tuple) else entry for entry in self.shape]}

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundReshape:
        """Return the codec for chunks like `decoded`."""
        if not isinstance(decoded, ChunkSpec):
            raise StoreError('"reshape" codec requires an array')
        return BoundReshape(decoded, self._sizes(decoded.shape))

    def _sizes(self, before: tuple[int, ...]) -> tuple[int, ...]:
        refusal = StoreError(
            f'"reshape" codec cannot make {self.to_json()["shape"]} of a chunk of {braced(before)}'
        )
        sizes: list[int] = []
        for entry in self.shape:
            if isinstance(entry, tuple):
                if any(dimension >= len(before) for dimension in entry):
                    raise refusal
                sizes.append(math.prod(before[dimension] for dimension in entry))
            else:
                sizes.append(entry)
        if -1 in sizes:
            known = math.prod(size for size in sizes if size != -1)
            if not known or math.prod(before) % known:
                raise refusal
            sizes[sizes.index(-1)] = math.prod(before) // known
        if math.prod(sizes) != math.prod(before) or not self._keeps_order(before, sizes):
            raise refusal
        return tuple(sizes)

    def _keeps_order(self, before: tuple[int, ...], after: Sequence[int]) -> bool:
        """Return whether listed dimensions have as many elements around them as before."""
        for at, entry in enumerate(self.shape):
            if isinstance(entry, tuple) and entry:
                if math.prod(after[:at]) != math.prod(before[: entry[0]]):
                    return False
                if math.prod(after[at + 1 :]) != math.prod(before[entry[-1] + 1 :]):
                    return False
        return True


class BoundReshape:
    """The codec bound to chunks of one shape."""

    __slots__ = ("decoded", "encoded")

    def __init__(self, decoded: ChunkSpec, shape: tuple[int, ...]) -> None:
        self.decoded = decoded
        self.encoded = ChunkSpec(decoded.dtype, shape, decoded.fill_value)

    def encode(self, data: Array) -> Array:
        """Return the elements in the new shape."""
        return data.reshape(self.encoded.shape)

    def decode(self, data: Array) -> Array:
        """Return the elements in the shape of the chunk."""
        return data.reshape(self.decoded.shape)
