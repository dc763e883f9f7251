"""The `transpose` codec: dimension i of the encoded array is dimension `order[i]` of the decoded one.

Both directions are views, so a transpose costs nothing until elements are copied.  `"C"` and `"F"`, which old files
hold, are kept as they were written; newly created arrays get the list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Self

from fsstore.codec.configuration import Configured, Member, Members, Options
from fsstore.codec.contract import Array, ByteSpec, ChunkSpec, Kind
from fsstore.errors import JsonError, StoreError
from fsstore.schema.constraint import braced
from fsstore.values.json_value import Json, array_of, integer, one_of

__all__ = ["BoundTranspose", "Order", "TransposeCodec", "permutation"]

Order = tuple[int, ...] | str


def _parse_order(value: Any) -> Order:
    try:
        return _parse_permutation(value)
    except JsonError as error:
        try:
            return one_of("C", "F")(value)
        except JsonError as other:
            raise JsonError(f"No matching value binder: {error}; {other}") from None


def _parse_permutation(value: Any) -> tuple[int, ...]:
    order = tuple(array_of(integer())(value))
    if sorted(order) != list(range(len(order))):
        raise JsonError(f"{braced(order)} is not a valid permutation")
    return order


def permutation(order: Order, rank: int) -> tuple[int, ...]:
    """Return `order` as a permutation of `rank` dimensions, or raise `StoreError` when it is none."""
    if isinstance(order, str):
        return tuple(range(rank)) if order == "C" else tuple(range(rank))[::-1]
    if len(order) != rank:
        raise StoreError(f"{braced(order)} is not a valid dimension permutation for a rank {rank} array")
    return order


@dataclass(frozen=True, slots=True)
class TransposeCodec(Configured):
    """Permutes dimensions by `order`: a permutation, `"C"` (none) or `"F"` (reversal)."""

    order: Order

    name: ClassVar[str] = "transpose"
    kind: ClassVar[Kind] = "array_to_array"
    members: ClassVar[Members] = {"order": Member(_parse_order, stored=True)}
    always: ClassVar[frozenset[str]] = frozenset({"order"})

    @classmethod
    def complete(cls, options: Options, decoded: ChunkSpec) -> Self:
        """Return the codec with `"C"` and `"F"` spelled out for the rank of `decoded`."""
        return cls(permutation(options["order"], len(decoded.shape)))

    def to_json(self) -> dict[str, Json]:
        """Return the configuration as stored."""
        return {"order": self.order if isinstance(self.order, str) else list(self.order)}

    def bind(self, decoded: ChunkSpec | ByteSpec) -> BoundTranspose:
        """Return the codec for chunks like `decoded`."""
        if not isinstance(decoded, ChunkSpec):
            raise StoreError('"transpose" codec requires an array')
        return BoundTranspose(decoded, permutation(self.order, len(decoded.shape)))


class BoundTranspose:
    """The permutation of chunks of one rank."""

    __slots__ = ("encoded", "inverse", "order")

    def __init__(self, decoded: ChunkSpec, order: tuple[int, ...]) -> None:
        self.order = order
        self.inverse = tuple(sorted(range(len(order)), key=order.__getitem__))
        shape = tuple(decoded.shape[axis] for axis in order)
        self.encoded = ChunkSpec(decoded.dtype, shape, decoded.fill_value)

    def encode(self, data: Array) -> Array:
        """Return a view of `data` with its dimensions permuted."""
        return data.transpose(self.order)

    def decode(self, data: Array) -> Array:
        """Return a view of `data` with its dimensions put back."""
        return data.transpose(self.inverse)
