"""The constraints of a `ChunkLayout` as frozen values: merging, finalizing, JSON.

`ChunkLayout.Grid` states three facts about one grid of chunks, each required or preferred: the chunk's shape per
dimension (-1 means the whole dimension and is always a preference), the aspect ratio per dimension, and the number of
elements.  `GridValue` is the frozen value with its merge; `GridConstraints` is the public object around it, which
changes by `update`.

`LayoutValue` has the rank, the order of elements inside the innermost chunks, the origin of the chunk grid, and three
grids: the chunks that are written, read, and coded as one.  All operations return a new value.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

import numpy as np

from fsstore.errors import JsonError, StoreError
from fsstore.index.value import MAX_RANK, check_rank
from fsstore.schema.constraint import (
    Bound,
    ConstraintFace,
    Vector,
    braced,
    checked_rank,
    hard,
    merge_bound,
    merge_vector,
    soft,
)
from fsstore.values.json_value import Json, array_of, as_flag, combined, integer, json_error, number, obj, optional

# `ChunkLayout.Grid`: what is asked of one grid of chunks, whatever the grid is for.

MAX_SIZE: Final = 2**62 - 2
_INT64: Final = range(-(2**63), 2**63)
_SOFT: Final = "_soft_constraint"


def integers(values: Any, name: str) -> list[int | None]:
    """Return a sequence of integers and None as a list, or raise `TypeError` that names the argument."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence | np.ndarray):
        raise TypeError(f"Invalid {name}")
    try:
        out = [None if value is None else operator.index(value) for value in values]
    except TypeError:
        raise TypeError(f"Invalid {name}") from None
    if any(value is not None and value not in _INT64 for value in out):
        raise TypeError(f"Invalid {name}")
    return out


def numbers(values: Any, name: str) -> list[float | None]:
    """Return a sequence of numbers and None as a list of floats, or raise `TypeError`."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence | np.ndarray):
        raise TypeError(f"Invalid {name}")
    if any(value is not None and not hasattr(value, "__float__") for value in values):
        raise TypeError(f"Invalid {name}")
    return [None if value is None else float(value) for value in values]


def _vector(values: Iterable[Any], is_hard: bool) -> Vector[Any]:
    """Return the constraint of each value; 0 and None say nothing."""
    bounds: list[Bound[Any]] = [(value, is_hard) if value else None for value in values]
    return tuple(bounds) if any(bound is not None for bound in bounds) else None


def located(error: StoreError, member: str) -> JsonError:
    """Return an error with the JSON member it is in."""
    return json_error(error).within(f'Error parsing object member "{member}"')


def _shown(value: float) -> str:
    return f"{value:g}"


@dataclass(frozen=True, slots=True)
class GridValue:
    """The constraints on one grid.  `rank` is -1 when unknown; vectors that say nothing are None."""

    rank: int = -1
    shape: Vector[int] = None
    aspect_ratio: Vector[float] = None
    elements: Bound[int] = None

    def with_rank(self, rank: int) -> GridValue:
        """Return the value with its rank set."""
        return replace(self, rank=checked_rank(rank, self.rank))

    def with_shape(self, shape: Sequence[int | None], *, is_hard: bool) -> GridValue:
        """Return the value with a shape merged in."""
        rank = checked_rank(len(shape), self.rank)
        for dimension, size in enumerate(shape):
            if size is not None and not -1 <= size <= MAX_SIZE:
                raise StoreError(f"Invalid value for dimension {dimension}: {{{size}}}")
        new = _vector(shape, is_hard)
        if new is not None and is_hard:
            new = tuple((-1, False) if bound is not None and bound[0] == -1 else bound for bound in new)
        return replace(self, rank=rank, shape=merge_vector(self.shape, new))

    def with_aspect_ratio(self, ratio: Sequence[float | None], *, is_hard: bool) -> GridValue:
        """Return the value with an aspect ratio merged in."""
        rank = checked_rank(len(ratio), self.rank)
        for dimension, part in enumerate(ratio):
            if part is not None and not (part >= 0 and math.isfinite(part)):
                raise StoreError(f"Invalid value for dimension {dimension}: {{{part:g}}}")
        new = _vector(ratio, is_hard)
        return replace(self, rank=rank, aspect_ratio=merge_vector(self.aspect_ratio, new, _shown))

    def with_elements(self, elements: int, *, is_hard: bool) -> GridValue:
        """Return the value with a number of elements merged in."""
        if not 0 <= elements <= MAX_SIZE:
            raise StoreError(f"Invalid value: {elements}")
        return replace(self, elements=merge_bound(self.elements, (elements, is_hard)))

    def merged(self, other: GridValue) -> GridValue:
        """Return both constraints as one."""
        rank = self.rank if other.rank < 0 else checked_rank(other.rank, self.rank)
        return GridValue(
            rank,
            merge_vector(self.shape, other.shape),
            merge_vector(self.aspect_ratio, other.aspect_ratio, _shown),
            merge_bound(self.elements, other.elements),
        )

    def softened(self) -> GridValue:
        """Return the same constraints as preferences."""
        return GridValue(
            self.rank,
            self.shape and tuple(bound and (bound[0], False) for bound in self.shape),
            self.aspect_ratio and tuple(bound and (bound[0], False) for bound in self.aspect_ratio),
            self.elements and (self.elements[0], False),
        )

    def to_json(self) -> dict[str, Json]:
        """Return the members that say something."""
        out: dict[str, Json] = {}
        for name, vector in (("shape", self.shape), ("aspect_ratio", self.aspect_ratio)):
            for suffix, chosen in (("", hard(vector, self.rank)), (_SOFT, soft(vector, self.rank))):
                if chosen and any(value is not None for value in chosen):
                    out[name + suffix] = list(chosen)
        if self.elements is not None:
            out["elements" + ("" if self.elements[1] else _SOFT)] = self.elements[0]
        return dict(sorted(out.items()))

    def merged_json(self, json: Any, *, elements_and_shape: bool = True) -> GridValue:
        """Return the value with a JSON object merged in; every problem is reported with its member.

        Without `elements_and_shape` only aspect ratios are taken, the other members are checked.
        """
        members = obj(json)
        value, problems = self, list[JsonError]()
        for name in _MEMBERS:
            if name not in members:
                continue
            given = members.pop(name)
            try:
                added = _from_member(value, name, given)
            except StoreError as error:
                problems.append(located(error, name))
            else:
                value = added if elements_and_shape or name.startswith("aspect") else value
        if members:
            names = ", ".join(f'"{name}"' for name in sorted(members))
            problems.append(JsonError(f"Object includes extra members: {names}"))
        if problems:
            raise combined(problems)
        return value


_MEMBERS: Final = (
    "shape",
    "shape_soft_constraint",
    "aspect_ratio",
    "aspect_ratio_soft_constraint",
    "elements",
    "elements_soft_constraint",
)


def _from_member(value: GridValue, name: str, json: Any) -> GridValue:
    kind, is_hard = name.removesuffix(_SOFT), not name.endswith(_SOFT)
    if kind == "shape":
        return value.with_shape(array_of(optional(integer()))(json), is_hard=is_hard)
    if kind == "aspect_ratio":
        return value.with_aspect_ratio(array_of(optional(number))(json), is_hard=is_hard)
    return value.with_elements(integer()(json), is_hard=is_hard)


def _from_argument(value: GridValue, name: str, given: Any) -> GridValue:
    kind, is_hard = name.removesuffix(_SOFT), not name.endswith(_SOFT)
    if kind == "shape":
        return value.with_shape(integers(given, name), is_hard=is_hard)
    if kind == "aspect_ratio":
        return value.with_aspect_ratio(numbers(given, name), is_hard=is_hard)
    if kind == "grid":
        if not isinstance(given, GridConstraints):
            raise TypeError(f"Invalid {name}")
        return value.merged(given._value if is_hard else given._value.softened())
    try:
        count = operator.index(given)
    except TypeError:
        raise TypeError(f"Invalid {name}") from None
    if count not in _INT64:
        raise TypeError(f"Invalid {name}")
    return value.with_rank(count) if kind == "rank" else value.with_elements(count, is_hard=is_hard)


class GridConstraints(ConstraintFace):
    """Constraints on one grid of chunks: `Grid(shape=[100, None], elements=10000)` or `Grid(json)`.

    Keyword arguments: `rank`, and each of `shape`, `aspect_ratio`, `elements`, `grid` (another one) as it is
    or with the suffix `_soft_constraint`.
    """

    __module__ = "fsstore"
    __qualname__ = "ChunkLayout.Grid"
    __slots__ = ()
    _value: GridValue

    def __init__(self, json: Any = None, **constraints: Any) -> None:
        """Take JSON, or constraints by name."""
        self._value = GridValue()
        if not constraints and json is not None:
            self._value = self._value.merged_json(json)
        elif json is not None:
            raise TypeError("Grid takes json or constraints by name, not both")
        self.update(**constraints)

    def update(self, **constraints: Any) -> None:
        """Add constraints, named as in the constructor.  Raises and changes nothing where they conflict."""
        value = self._value
        for name in ("rank", *_MEMBERS, "grid", "grid_soft_constraint"):
            given = constraints.pop(name, None)
            if given is None:
                continue
            try:
                value = _from_argument(value, name, given)
            except StoreError as error:
                raise error.within(f"Invalid {name}") from None
        if constraints:
            raise TypeError(f"Grid has no constraint called {', '.join(sorted(constraints))}")
        self._value = value

    @property
    def rank(self) -> int | None:
        """Number of dimensions, or None."""
        return None if self._value.rank < 0 else self._value.rank

    ndim = rank

    @property
    def shape(self) -> tuple[int | None, ...] | None:
        """Required chunk shape."""
        return hard(self._value.shape, self._value.rank) or None

    @property
    def shape_soft_constraint(self) -> tuple[int | None, ...] | None:
        """Preferred chunk shape."""
        return soft(self._value.shape, self._value.rank) or None

    @property
    def aspect_ratio(self) -> tuple[float | None, ...] | None:
        """Required aspect ratio."""
        return hard(self._value.aspect_ratio, self._value.rank) or None

    @property
    def aspect_ratio_soft_constraint(self) -> tuple[float | None, ...] | None:
        """Preferred aspect ratio."""
        return soft(self._value.aspect_ratio, self._value.rank) or None

    @property
    def elements(self) -> int | None:
        """Required number of elements."""
        elements = self._value.elements
        return elements[0] if elements is not None and elements[1] else None

    @property
    def elements_soft_constraint(self) -> int | None:
        """Preferred number of elements."""
        elements = self._value.elements
        return elements[0] if elements is not None and not elements[1] else None

    def to_json(self, include_defaults: bool = False) -> dict[str, Json]:
        """Return the JSON form; nothing has defaults."""
        as_flag("include_defaults", include_defaults)
        return self._value.to_json()


GridName: TypeAlias = Literal["write_chunk", "read_chunk", "codec_chunk"]
GRIDS: Final[tuple[GridName, ...]] = ("write_chunk", "read_chunk", "codec_chunk")


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
            name: GridValue(self.rank, shape=_hard_only(self.grid(name).shape, lambda size: size > 0)) for name in GRIDS
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


_LAYOUT_MEMBERS: Final = (
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
    for name in _LAYOUT_MEMBERS:
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
