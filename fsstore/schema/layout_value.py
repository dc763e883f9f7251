"""The constraints of a `ChunkLayout` as one frozen value: merging, finalizing, JSON.

The rank, the order of elements inside the innermost chunks, the origin of the chunk grid, and three grids: the
chunks that are written, read, and coded as one.  All operations return a new value.

Knows nothing of domains and transforms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from fsstore.errors import JsonError, StoreError
from fsstore.index.value import MAX_RANK, check_rank
from fsstore.schema.constraint import (
    Bound,
    Vector,
    braced,
    checked_rank,
    hard,
    merge_bound,
    merge_vector,
    soft,
)
from fsstore.schema.layout_grid import MAX_SIZE, GridValue, located
from fsstore.values.json_value import Json, array_of, combined, integer, obj, optional

__all__ = ["GRIDS", "GridName", "LayoutValue", "layout_from_json", "merge_grids"]

GridName: TypeAlias = Literal["write_chunk", "read_chunk", "codec_chunk"]
GRIDS: Final[tuple[GridName, ...]] = ("write_chunk", "read_chunk", "codec_chunk")
_SOFT: Final = "_soft_constraint"


@dataclass(frozen=True, slots=True)
class LayoutValue:
    """The constraints on a chunk layout.  `rank` is -1 when unknown and is the rank of every part."""

    rank: int = -1
    inner_order: Bound[tuple[int, ...]] = None
    grid_origin: Vector[int] = None
    write_chunk: GridValue = field(default_factory=GridValue)
    read_chunk: GridValue = field(default_factory=GridValue)
    codec_chunk: GridValue = field(default_factory=GridValue)

    def with_rank(self, rank: int) -> LayoutValue:
        """Return the value with its rank set."""
        if checked_rank(rank, self.rank) == self.rank:
            return self
        grids: dict[str, Any] = {name: self.grid(name).with_rank(rank) for name in GRIDS}
        return replace(self, rank=rank, **grids)

    def grid(self, name: GridName) -> GridValue:
        """Return one of the three grids."""
        if name == "write_chunk":
            return self.write_chunk
        return self.read_chunk if name == "read_chunk" else self.codec_chunk

    def with_grid(self, name: GridName, change: Callable[[GridValue], GridValue]) -> LayoutValue:
        """Return the value with one grid changed; a rank it brings is everybody's."""
        changed = change(self.grid(name))
        ranked = self if changed.rank < 0 else self.with_rank(changed.rank)
        part: dict[str, Any] = {name: changed}
        return replace(ranked, **part)

    def with_inner_order(self, order: Sequence[int], *, is_hard: bool) -> LayoutValue:
        """Return the value with an order of dimensions, outermost first, merged in."""
        check_rank(len(order))
        if sorted(order) != list(range(len(order))):
            raise StoreError(f"Invalid permutation: {braced(order)}")
        ranked = self.with_rank(len(order))
        merged = merge_bound(self.inner_order, (tuple(order), is_hard) if order else None, braced)
        return replace(ranked, inner_order=merged)

    def with_grid_origin(self, origin: Sequence[int | None], *, is_hard: bool) -> LayoutValue:
        """Return the value with an origin of the chunk grid merged in."""
        ranked = self.with_rank(len(origin))
        for dimension, position in enumerate(origin):
            if position is not None and not -MAX_SIZE <= position <= MAX_SIZE:
                raise StoreError(f"Invalid value for dimension {dimension}: {{{position}}}")
        new = tuple(None if position is None else (position, is_hard) for position in origin)
        merged = merge_vector(self.grid_origin, new)
        return replace(ranked, grid_origin=merged if merged and any(merged) else None)

    def merged(self, other: LayoutValue) -> LayoutValue:
        """Return both constraints as one.  Messages begin with the part that conflicts."""
        with _setting("inner_order" if other.inner_order is not None else "grid_origin"):
            out = self if other.rank < 0 else self.with_rank(other.rank)
        parts: dict[str, Any] = {}
        with _setting("inner_order"):
            parts["inner_order"] = merge_bound(self.inner_order, other.inner_order, braced)
        with _setting("grid_origin"):
            parts["grid_origin"] = merge_vector(self.grid_origin, other.grid_origin)
        for name in GRIDS:
            parts[name] = merge_grids(out.grid(name), other.grid(name), name)
        return replace(out, **parts)

    def required(self) -> LayoutValue:
        """Return what must hold: hard order, origin and shapes; not sizes that stand for all of a dimension."""
        order = self.inner_order if self.inner_order is not None and self.inner_order[1] else None
        grids: dict[str, Any] = {
            name: GridValue(self.rank, shape=_hard_only(self.grid(name).shape, lambda size: size > 0))
            for name in GRIDS
        }
        return LayoutValue(self.rank, inner_order=order, grid_origin=_hard_only(self.grid_origin), **grids)

    def finalized(self) -> LayoutValue:
        """Return the precise layout: preferences and targets dropped, read chunks completed from write chunks.

        Raises `StoreError` where the grid origin is not known or a write chunk is not made of read chunks.
        """
        if self.rank < 0:
            raise StoreError("rank must be specified")
        for dimension, position in enumerate(hard(self.grid_origin, self.rank) or ()):
            if position is None:
                raise StoreError(f"No grid_origin hard constraint for dimension {dimension}")
        shapes = {name: hard(self.grid(name).shape, self.rank) or () for name in GRIDS}
        write = shapes["write_chunk"]
        read = tuple(a or b for a, b in zip(shapes["read_chunk"], write, strict=True))
        if any(w and r and w % r for w, r in zip(write, read, strict=True)):
            raise StoreError(
                f"write chunk shape {braced([size or 0 for size in write])} is not a multiple of "
                f"read chunk shape {braced([size or 0 for size in read])}"
            )
        shapes["read_chunk"] = read
        grids: dict[str, Any] = {
            name: GridValue(self.rank).with_shape(shape, is_hard=True) for name, shape in shapes.items()
        }
        return replace(self, **grids)

    def to_json(self) -> dict[str, Json]:
        """Return the members that say something; `rank` only where nothing else tells it."""
        out: dict[str, Json] = {}
        if self.inner_order is not None:
            order, is_hard = self.inner_order
            out["inner_order" if is_hard else "inner_order" + _SOFT] = list(order)
        for suffix, chosen in (("", hard), (_SOFT, soft)):
            origin = chosen(self.grid_origin, self.rank)
            if origin and any(position is not None for position in origin):
                out["grid_origin" + suffix] = list(origin)
        ranked = bool(out)
        for name in GRIDS:
            grid = self.grid(name)
            ranked = ranked or grid.shape is not None or grid.aspect_ratio is not None
            if members := grid.to_json():
                out[name] = members
        if self.rank >= 0 and not ranked:
            out["rank"] = self.rank
        return dict(sorted(out.items()))


def _hard_only(vector: Vector[int], says: Callable[[int], bool] = lambda _: True) -> Vector[int]:
    kept = tuple(bound if bound and bound[1] and says(bound[0]) else None for bound in vector or ())
    return kept if any(kept) else None


class _setting:  # noqa: N801  # reads as a statement
    """Put `Error setting <what>` before the message of a `StoreError`."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Locate the error."""
        if isinstance(error, StoreError):
            raise error.within(f"Error setting {self._what}") from None


def merge_grids(existing: GridValue, new: GridValue, name: str) -> GridValue:
    """Return both grids as one.  Messages begin with `Error setting <name> <part>`."""
    with _setting(f"{name} shape"):
        shaped = existing.merged(GridValue(new.rank, shape=new.shape))
    with _setting(f"{name} aspect_ratio"):
        shaped = shaped.merged(GridValue(aspect_ratio=new.aspect_ratio))
    with _setting(f"{name} elements"):
        return shaped.merged(GridValue(elements=new.elements))


_ORDER: Final = optional(array_of(integer(0, MAX_RANK - 1)))
_ORIGIN: Final = optional(array_of(optional(integer())))


def _with_member(value: LayoutValue, name: str, json: Any) -> LayoutValue:
    is_hard = not name.endswith(_SOFT)
    if name == "rank":
        return value.with_rank(integer(0, MAX_RANK)(json))
    if name.startswith("inner_order"):
        order = _ORDER(json)
        return value if order is None else value.with_inner_order(order, is_hard=is_hard)
    if name.startswith("grid_origin"):
        origin = _ORIGIN(json)
        return value if origin is None else value.with_grid_origin(origin, is_hard=is_hard)
    if name != "chunk":
        return value.with_grid(_grid_name(name), lambda grid: grid.merged_json(json))
    for each in ("write_chunk", "read_chunk"):
        value = value.with_grid(_grid_name(each), lambda grid: grid.merged_json(json))
    return value.with_grid("codec_chunk", lambda grid: grid.merged_json(json, elements_and_shape=False))


def _grid_name(name: str) -> GridName:
    return GRIDS[GRIDS.index(name)]


_MEMBERS: Final = (
    "rank",
    "inner_order",
    "inner_order_soft_constraint",
    "grid_origin",
    "grid_origin_soft_constraint",
    "chunk",
    *GRIDS,
)


def layout_from_json(json: Any) -> LayoutValue:
    """Parse the JSON form; every problem is reported with its member."""
    members, value, problems = obj(json), LayoutValue(), list[JsonError]()
    for name in _MEMBERS:
        if name not in members:
            continue
        try:
            value = _with_member(value, name, members.pop(name))
        except StoreError as error:
            problems.append(located(error, name))
    if members:
        names = ", ".join(f'"{name}"' for name in sorted(members))
        problems.append(JsonError(f"Object includes extra members: {names}"))
    if problems:
        raise combined(problems)
    return value
