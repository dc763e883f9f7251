"""`ChunkLayout`: how an array is, or should be, cut into chunks, and layouts and units seen through a transform.

A dimension is the same in both spaces of a transform where one output dimension, and no other and no index array,
comes from one input dimension: `output = offset + stride * input`.  `forward` takes a layout of the output space to
the input space, as a view of an array shows it: chunk sizes are divided by their common divisor with the stride,
aspect ratios by the stride; the grid origin is the first position whose cell begins at or after it.  Dimensions that
are not the same say nothing.  `backward` takes constraints on a view to constraints on the array below: sizes and
ratios are multiplied by the stride, and a requirement on a dimension that the array does not have is an error.  The
order of elements follows the dimensions; those that do not exist on the other side come last.

`ChunkLayout` is the public object around `LayoutValue`.  It changes only by `update`, which changes all or nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, TypeAlias, TypedDict, Unpack, overload

from fsstore.errors import OutOfRangeError, StoreError
from fsstore.index.transform import IndexDomain, IndexTransform
from fsstore.schema.constraint import Bound, ConstraintFace, Vector, hard, soft
from fsstore.schema.layout_value import (
    GRIDS,
    MAX_SIZE,
    GridName,
    GridValue,
    LayoutValue,
    integers,
    layout_from_json,
    merge_grids,
    numbers,
)
from fsstore.schema.layout_value import GridConstraints as ChunkGrid
from fsstore.values.json_value import Json, WrittenAsJson, as_flag, json_like, pretty
from fsstore.values.units import Unit, Units

# Chunk layouts and units seen through an index transform.


class LayoutAxis(NamedTuple):
    """One dimension of both spaces: `output = offset + stride * input`."""

    input: int
    output: int
    offset: int
    stride: int


def _axes(transform: IndexTransform) -> list[LayoutAxis]:
    """Return the output dimensions that come from a single input dimension, in order."""
    axes = []
    for dimension in range(transform.output_rank):
        output = transform.output[dimension]
        if output.input_dimension is not None and output.stride:
            axes.append(LayoutAxis(output.input_dimension, dimension, output.offset, output.stride))
    return axes


def _shared(transform: IndexTransform, axes: list[LayoutAxis]) -> list[LayoutAxis]:
    """Return the axes that are the same dimension in both spaces."""
    uses = [0] * transform.input_rank
    for axis in axes:
        uses[axis.input] += 1
    for dimension in range(transform.output_rank):
        array = transform.output[dimension].index_array
        if array is not None:
            for used, size in enumerate(array.shape):
                uses[used] += size != 1
    return [axis for axis in axes if uses[axis.input] == 1]


def forward(layout: LayoutValue, transform: IndexTransform) -> LayoutValue:
    """Return the layout of the input space of `transform`, given that of its output space."""
    if layout.rank < 0:
        return layout
    axes = _axes(transform)
    shared = _shared(transform, axes)
    rank = transform.input_rank

    def moved(vector: Vector[Any], change: Callable[[Any, LayoutAxis], Any]) -> Vector[Any]:
        out: list[Bound[Any]] = [None] * rank
        for axis in shared:
            bound = vector and vector[axis.output]
            if bound:
                out[axis.input] = (change(bound[0], axis), bound[1])
        return tuple(out) if any(bound is not None for bound in out) else None

    order = layout.inner_order
    if order is not None:
        place = {output: position for position, output in enumerate(order[0])}
        order = (_sorted([(axis.input, place[axis.output]) for axis in axes], rank), order[1])
    grids: dict[str, Any] = {
        name: GridValue(
            rank,
            moved(
                layout.grid(name).shape, lambda size, axis: size // math.gcd(size, axis.stride) if size > 0 else size
            ),
            moved(layout.grid(name).aspect_ratio, lambda ratio, axis: ratio / abs(axis.stride)),
            layout.grid(name).elements,
        )
        for name in GRIDS
    }
    origin = moved(layout.grid_origin, _origin_forward)
    return replace(layout, rank=rank, inner_order=order, grid_origin=origin, **grids)


def backward(layout: LayoutValue, transform: IndexTransform) -> LayoutValue:
    """Return the layout of the output space of `transform` that is asked for by one of its input space.

    Raises `StoreError` where something required has no place there.
    """
    if layout.rank < 0:
        return layout
    axes = _axes(transform)
    rank = transform.output_rank

    def moved(what: str, vector: Vector[Any], change: Callable[[Any, LayoutAxis], Any]) -> Vector[Any]:
        if vector is None:
            return None
        _nothing_lost(what, vector, axes)
        out: list[Bound[Any]] = [None] * rank
        for axis in axes:
            bound = vector[axis.input]
            if bound:
                out[axis.output] = (_within_range(change(bound[0], axis), what, axis), bound[1])
        return tuple(out) if any(bound is not None for bound in out) else None

    order = layout.inner_order
    if order is not None:
        place = {dimension: position for position, dimension in enumerate(order[0])}
        order = (_sorted([(axis.output, place[axis.input]) for axis in axes], rank), order[1])
    origin = moved("grid_origin", layout.grid_origin, _origin_backward)
    grids: dict[str, Any] = {}
    for name in GRIDS:
        grid, place_name = layout.grid(name), f"{name}: Error transforming"
        shape = moved(
            f"{place_name} shape", grid.shape, lambda size, axis: size * abs(axis.stride) if size > 0 else size
        )
        ratio = moved(f"{place_name} aspect_ratio", grid.aspect_ratio, lambda ratio, axis: ratio * abs(axis.stride))
        grids[name] = GridValue(rank, shape, ratio, grid.elements)
    return replace(layout, rank=rank, inner_order=order, grid_origin=origin, **grids)


def _sorted(places: list[tuple[int, int]], rank: int) -> tuple[int, ...]:
    """Return the dimensions by the first place given to each, those without a place last."""
    first = [rank + len(places)] * rank
    for dimension, position in places:
        first[dimension] = min(first[dimension], position)
    return tuple(sorted(range(rank), key=lambda dimension: (first[dimension], dimension)))


def _nothing_lost(what: str, vector: Vector[Any], axes: list[LayoutAxis]) -> None:
    kept = {axis.input for axis in axes}
    for dimension, bound in enumerate(vector or ()):
        if bound is not None and bound[1] and dimension not in kept:
            raise StoreError(
                f"Error transforming {what}: No output dimension corresponds to input dimension {dimension}"
            )


def _within_range(value: Any, what: str, axis: LayoutAxis) -> Any:
    if isinstance(value, int) and abs(value) > MAX_SIZE:
        raise OutOfRangeError(
            f"Error transforming {what}: Error transforming input dimension {axis.input} -> output dimension "
            f"{axis.output}: Integer overflow with offset {axis.offset} and stride {axis.stride}"
        )
    return value


def _origin_forward(origin: int, axis: LayoutAxis) -> int:
    # A reversed dimension begins its cells where they ended: the boundary lies before `origin`.
    return -((axis.offset + (axis.stride < 0) - origin) // axis.stride)


def _origin_backward(origin: int, axis: LayoutAxis) -> int:
    return axis.offset + axis.stride * (origin - (axis.stride < 0))


def units_forward(units: Units, transform: IndexTransform) -> Units:
    """Return the units of the input space: a stride of k makes steps of k units."""
    out: list[Unit | None] = [None] * transform.input_rank
    for axis in _shared(transform, _axes(transform)):
        unit = units[axis.output]
        out[axis.input] = unit and unit * abs(axis.stride)
    return tuple(out)


def units_backward(units: Units, transform: IndexTransform) -> Units:
    """Return the units of the output space, or raise `StoreError` where one has no place there."""
    axes = _axes(transform)
    kept = {axis.input for axis in axes}
    for dimension, unit in enumerate(units):
        if unit is not None and dimension not in kept:
            raise StoreError(
                "Error transforming dimension_units: No output dimension corresponds to "
                f"input dimension {dimension} with unit {unit}"
            )
    out: list[Unit | None] = [None] * transform.output_rank
    for axis in axes:
        unit = units[axis.input]
        out[axis.output] = unit and unit / abs(axis.stride)
    return tuple(out)


_Sizes: TypeAlias = Sequence[int | None]
_Ratios: TypeAlias = Sequence[float | None]


class ChunkLayoutOptions(TypedDict, total=False):
    """The constraints of a chunk layout by name; those called `..._soft_constraint` give way.  None is not given."""

    rank: int | None
    inner_order: Sequence[int] | None
    inner_order_soft_constraint: Sequence[int] | None
    grid_origin: _Sizes | None
    grid_origin_soft_constraint: _Sizes | None
    chunk: ChunkGrid | None
    write_chunk: ChunkGrid | None
    read_chunk: ChunkGrid | None
    codec_chunk: ChunkGrid | None
    chunk_shape: _Sizes | None
    chunk_shape_soft_constraint: _Sizes | None
    chunk_aspect_ratio: _Ratios | None
    chunk_aspect_ratio_soft_constraint: _Ratios | None
    chunk_elements: int | None
    chunk_elements_soft_constraint: int | None
    write_chunk_shape: _Sizes | None
    write_chunk_shape_soft_constraint: _Sizes | None
    write_chunk_aspect_ratio: _Ratios | None
    write_chunk_aspect_ratio_soft_constraint: _Ratios | None
    write_chunk_elements: int | None
    write_chunk_elements_soft_constraint: int | None
    read_chunk_shape: _Sizes | None
    read_chunk_shape_soft_constraint: _Sizes | None
    read_chunk_aspect_ratio: _Ratios | None
    read_chunk_aspect_ratio_soft_constraint: _Ratios | None
    read_chunk_elements: int | None
    read_chunk_elements_soft_constraint: int | None
    codec_chunk_shape: _Sizes | None
    codec_chunk_shape_soft_constraint: _Sizes | None
    codec_chunk_aspect_ratio: _Ratios | None
    codec_chunk_aspect_ratio_soft_constraint: _Ratios | None
    codec_chunk_elements: int | None
    codec_chunk_elements_soft_constraint: int | None
    finalize: bool | None


_SOFT: Final = "_soft_constraint"
_INNER: Final = ("inner_order", "inner_order_soft_constraint")
_ORIGIN: Final = ("grid_origin", "grid_origin_soft_constraint")
_PREFIXES: Final[dict[str, tuple[GridName, ...]]] = {
    "chunk_": ("write_chunk", "read_chunk"),
    "write_chunk_": ("write_chunk",),
    "read_chunk_": ("read_chunk",),
    "codec_chunk_": ("codec_chunk",),
}
# Constraint name -> the grids it is for, the fact, whether it is required.  In the order they are applied.
_GRID_FACTS: Final[dict[str, tuple[tuple[GridName, ...], str, bool]]] = {
    f"{prefix}{fact}{suffix}": (GRIDS if prefix == "chunk_" and fact == "aspect_ratio" else names, fact, not suffix)
    for fact in ("shape", "aspect_ratio", "elements")
    for prefix, names in _PREFIXES.items()
    for suffix in ("", _SOFT)
}
CONSTRAINTS: Final = ("rank", *_INNER, *_ORIGIN, "chunk", *GRIDS, *_GRID_FACTS, "finalize")
"""The names `ChunkLayout(...)` and `update(...)` take, in the order they are applied."""


def _integer(given: Any, name: str) -> int:
    try:
        count = operator.index(given)
    except TypeError:
        raise TypeError(f"Invalid {name}") from None
    if not -(2**63) <= count < 2**63:
        raise TypeError(f"Invalid {name}")
    return count


def _with_fact(value: LayoutValue, name: str, given: Any) -> LayoutValue:
    names, fact, is_hard = _GRID_FACTS[name]
    add = GridValue()
    for target in names:
        try:
            if fact == "shape":
                add = GridValue().with_shape(integers(given, name), is_hard=is_hard)
            elif fact == "aspect_ratio":
                add = GridValue().with_aspect_ratio(numbers(given, name), is_hard=is_hard)
            else:
                add = GridValue().with_elements(_integer(given, name), is_hard=is_hard)
        except StoreError as error:
            raise error.within(f"Error setting {target} {fact}") from None
        value = _with_grid(value, target, add)
    return value


def _with_grid(value: LayoutValue, target: GridName, add: GridValue) -> LayoutValue:
    return value.with_grid(target, lambda grid: merge_grids(grid, add, target))


def _with_chunk(value: LayoutValue, name: str, given: Any) -> LayoutValue:
    if not isinstance(given, ChunkGrid):
        raise TypeError(f"Invalid {name}")
    if name != "chunk":
        return _with_grid(value, GRIDS[GRIDS.index(name)], given._value)
    for target in GRIDS[:2]:
        value = _with_grid(value, target, given._value)
    ratio = GridValue(given._value.rank, aspect_ratio=given._value.aspect_ratio)
    return _with_grid(value, "codec_chunk", ratio)


def _with_constraint(value: LayoutValue, name: str, given: Any) -> LayoutValue:
    if name == "rank":
        rank = _integer(given, name)
        return value if rank == -1 else value.with_rank(rank)
    if name == "finalize":
        return value.finalized() if as_flag("finalize", given) else value
    if name in _GRID_FACTS:
        return _with_fact(value, name, given)
    if name not in _INNER + _ORIGIN:
        return _with_chunk(value, name, given)
    numbered = integers(given, name)
    try:
        if name in _ORIGIN:
            return value.with_grid_origin(numbered, is_hard=name == _ORIGIN[0])
        order = [-1 if dimension is None else dimension for dimension in numbered]
        return value.with_inner_order(order, is_hard=name == _INNER[0])
    except StoreError as error:
        raise error.within(f"Error setting {name.removesuffix(_SOFT)}") from None


class ChunkLayout(ConstraintFace, WrittenAsJson):
    """Constraints on a chunk layout, from JSON or by name.

    Names: `rank`, `inner_order`, `grid_origin`, `chunk`, `write_chunk`, `read_chunk`, `codec_chunk` (each a
    `ChunkLayout.Grid`), and `shape`, `aspect_ratio`, `elements` with one of the prefixes `chunk_`, `write_chunk_`,
    `read_chunk_`, `codec_chunk_`.  All but rank and the grids also exist with the suffix `_soft_constraint`.
    `finalize=True` makes a precise layout of what is required.

    >>> ChunkLayout(grid_origin=[5, 6], read_chunk_shape=[100, 200]).read_chunk_template
    { [5, 105), [6, 206) }
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__",)
    Grid: TypeAlias = ChunkGrid
    _value: LayoutValue

    @overload
    def __init__(self, json: Mapping[str, Any] | ChunkLayout) -> None: ...
    @overload
    def __init__(self, **constraints: Unpack[ChunkLayoutOptions]) -> None: ...
    def __init__(self, *args: Any, **constraints: Any) -> None:
        """Take JSON (or another layout), or constraints by name."""
        json = constraints.pop("json") if "json" in constraints and not args else None
        if args or json is not None:
            if len(args) > 1 or constraints:
                raise TypeError("ChunkLayout takes json or constraints by name, not both")
            given = args[0] if args else json
            self._value = given._value if isinstance(given, ChunkLayout) else layout_from_json(json_like(given))
            return
        self._value = LayoutValue()
        self.update(**constraints)

    def update(self, **constraints: Unpack[ChunkLayoutOptions]) -> None:
        """Add constraints, named as in the constructor.  Raises and changes nothing where they conflict."""
        unknown = sorted(set(constraints) - set(CONSTRAINTS))
        if unknown:
            raise TypeError(f"ChunkLayout has no constraint called {', '.join(unknown)}")
        value = self._value
        for name in CONSTRAINTS:
            given = constraints.get(name)
            if given is None:
                continue
            try:
                value = _with_constraint(value, name, given)
            except StoreError as error:
                raise error.within(f"Invalid {name}") from None
        self._value = value

    @property
    def rank(self) -> int:
        """Number of dimensions, -1 when unknown."""
        return self._value.rank

    ndim = rank

    @property
    def inner_order(self) -> tuple[int, ...] | None:
        """Required order of dimensions inside the innermost chunks, outermost first."""
        order = self._value.inner_order
        return order[0] if order is not None and order[1] else None

    @property
    def inner_order_soft_constraint(self) -> tuple[int, ...] | None:
        """Preferred order of dimensions."""
        order = self._value.inner_order
        return order[0] if order is not None and not order[1] else None

    @property
    def grid_origin(self) -> tuple[int | None, ...] | None:
        """Required origin of the chunk grid."""
        return hard(self._value.grid_origin, self._value.rank)

    @property
    def grid_origin_soft_constraint(self) -> tuple[int | None, ...] | None:
        """Preferred origin of the chunk grid."""
        return soft(self._value.grid_origin, self._value.rank)

    @property
    def write_chunk(self) -> ChunkGrid:
        """Constraints on chunks for writing, as a copy."""
        return ChunkGrid._of(self._value.write_chunk)

    @property
    def read_chunk(self) -> ChunkGrid:
        """Constraints on chunks for reading, as a copy."""
        return ChunkGrid._of(self._value.read_chunk)

    @property
    def codec_chunk(self) -> ChunkGrid:
        """Constraints on the blocks a codec works in, as a copy."""
        return ChunkGrid._of(self._value.codec_chunk)

    @property
    def read_chunk_template(self) -> IndexDomain:
        """The read chunk at the grid origin; dimensions where either is not required are unbounded."""
        return _template(self._value, "read_chunk")

    @property
    def write_chunk_template(self) -> IndexDomain:
        """The write chunk at the grid origin; dimensions where either is not required are unbounded."""
        return _template(self._value, "write_chunk")

    def to_json(self) -> dict[str, Json]:
        """Return the JSON form."""
        return self._value.to_json()

    def through(self, transform: IndexTransform) -> ChunkLayout:
        """Return the layout of a view: of the input space, given this one of the output space."""
        return self._of(forward(self._value, transform))

    def beneath(self, transform: IndexTransform) -> ChunkLayout:
        """Return the constraints on an array that this one on a view of it means."""
        return self._of(backward(self._value, transform))

    def __repr__(self) -> str:
        """Return `ChunkLayout({...})`."""
        return pretty("ChunkLayout", self.to_json())


def _template(value: LayoutValue, name: GridName) -> IndexDomain:
    if value.rank < 0:
        raise StoreError("Rank of chunk layout is unspecified")
    infinity = 2**62 - 1
    lower, upper = [-infinity] * value.rank, [infinity + 1] * value.rank
    origin, shape = hard(value.grid_origin, value.rank) or (), hard(value.grid(name).shape, value.rank) or ()
    for dimension, (position, size) in enumerate(zip(origin, shape, strict=True)):
        if position is None or size is None:
            continue
        if position + size > infinity:
            raise StoreError(
                f"Incompatible grid origin/chunk shape for dimension {dimension}: "
                f"({position}, {size}) do not specify a valid sized index interval"
            )
        lower[dimension], upper[dimension] = position, position + size
    return IndexDomain(inclusive_min=lower, exclusive_max=upper)
