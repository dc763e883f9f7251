"""The constraints of a `Schema` as one frozen value: merging, views, JSON; and `CodecSpec`, the one on the encoding.

Rank, type, domain, chunk layout, codec, fill value and units of dimensions; a constraint that is None (or -1) is open.
Constraints with a number of dimensions agree on it.  Messages name the constraint and the earlier value.

`Spec.update` and `open` take constraints in the coordinates of the spec's transform; the schema of a spec speaks of the
array.  Layout and units move with their dimensions, a domain through the inverse of the transform.  Constraints that
a transform cannot carry are refused, never dropped.

A `CodecSpec` is a value of one driver's JSON, such as `{"driver": "zarr3", "codecs": [...]}`.  The codecs of that
driver know what the members mean and how two specs merge; they are imported when a spec is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

from fsstore.errors import JsonError, StoreError
from fsstore.index.interval import inverse_affine
from fsstore.index.transform import IndexDomain, IndexTransform, identity
from fsstore.index.value import MAX_RANK, check_rank, domain_from_json, domain_to_json
from fsstore.schema.chunk_layout import backward, forward, units_backward, units_forward
from fsstore.schema.constraint import Fill, fill_from_json, merge_domains
from fsstore.schema.layout_value import LayoutValue, layout_from_json, located
from fsstore.values import dtypes
from fsstore.values.dtypes import dtype_of
from fsstore.values.json_value import (
    Json,
    WrittenAsJson,
    as_flag,
    combined,
    dumps,
    expected,
    integer,
    json_like,
    obj,
    pretty,
    quote,
    string,
)
from fsstore.values.registry import codec_specs
from fsstore.values.units import Units, merge_units, units_from_json

_ALIASES: Final = {"zarr2": "zarr", "neuroglancer-precomputed": "neuroglancer_precomputed"}
_MISSING: Any = object()


def _merger(driver: Any) -> Callable[[Json, Json], dict[str, Json]]:
    if driver is _MISSING:
        problem = JsonError("Expected string, but member is missing")
    elif not isinstance(driver, str):
        problem = expected("string", driver)
    elif (merge := codec_specs.get(driver)) is None:
        problem = JsonError(f"{quote(driver)} is not registered")
    else:
        return merge
    raise problem.within('Error parsing object member "driver"')


class CodecSpec(WrittenAsJson):
    """A constraint on encoding, from its JSON.  Immutable.

    `driver` is `zarr`, `zarr3`, `n5` or `neuroglancer_precomputed`.  Parameters that are left out are left open.

    >>> CodecSpec({"driver": "zarr", "compressor": None})
    CodecSpec({'compressor': None, 'driver': 'zarr', 'filters': None})
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__", "_json")

    _json: dict[str, Json]

    def __init__(self, json: Any) -> None:
        """Take the JSON form, or another spec.  Raises `JsonError` with every problem."""
        if isinstance(json, CodecSpec):
            self._json = json._json
            return
        members = obj(json_like(json))
        driver = members.get("driver", _MISSING)
        if isinstance(driver, str):
            members["driver"] = driver = _ALIASES.get(driver, driver)
        merged = _merger(driver)(members, {"driver": driver})
        self._json = dict(sorted(merged.items()))

    @property
    def driver(self) -> str:
        """The driver whose chunks this is for."""
        driver = self._json["driver"]
        assert isinstance(driver, str)
        return driver

    def to_json(self, include_defaults: bool = False) -> dict[str, Json]:
        """Return the JSON form, as a copy of the top level; nothing has defaults."""
        as_flag("include_defaults", include_defaults)
        return dict(self._json)

    def __eq__(self, other: object) -> bool:
        """Return whether the driver and all members are the same."""
        return self._json == other._json if isinstance(other, CodecSpec) else NotImplemented

    def __hash__(self) -> int:
        """Return a hash that agrees with equality."""
        return hash(self.driver)

    def __repr__(self) -> str:
        """Return `CodecSpec({...})`."""
        return pretty("CodecSpec", self._json)

    def __reduce__(self) -> tuple[type[CodecSpec], tuple[dict[str, Json]]]:
        """Pickle by JSON."""
        return (CodecSpec, (self._json,))


def merge_codecs(existing: CodecSpec | None, new: CodecSpec | None) -> CodecSpec | None:
    """Return the spec that grants both; None grants anything.

    Raises `StoreError` for different drivers and for parameters that conflict.
    """
    if existing is None or new is None:
        return existing or new
    if existing.driver != new.driver:
        raise StoreError(f"Cannot merge codec spec {dumps(existing._json)} with {dumps(new._json)}")
    return CodecSpec(_merger(existing.driver)(existing._json, new._json))


@dataclass(frozen=True, slots=True)
class SchemaValue:
    """The constraints on an array, whatever the driver."""

    rank: int = -1
    dtype: dtypes.dtype | None = None
    domain: IndexDomain | None = None
    layout: LayoutValue = field(default_factory=LayoutValue)
    codec: CodecSpec | None = None
    fill: Fill | None = None
    units: Units | None = None

    def with_rank(self, rank: int, what: str = "rank") -> SchemaValue:
        """Return the value with its rank set; `what` is the constraint that brings it."""
        check_rank(rank)
        if self.rank not in (-1, rank):
            raise StoreError(
                f"Rank specified by {what} ({rank}) does not match existing rank specified by schema ({self.rank})"
            )
        if self.rank < 0 and self.fill is not None and self.fill.array.ndim > rank:
            shape = ", ".join(map(str, self.fill.array.shape))
            raise StoreError(
                f"Rank specified by {what} ({rank}) is incompatible with existing fill_value of shape {{{shape}}}"
            )
        return replace(self, rank=rank)

    def with_dtype(self, new: dtypes.dtype) -> SchemaValue:
        """Return the value with its type set."""
        if self.dtype not in (None, new):
            assert self.dtype is not None
            raise StoreError(f"Specified dtype ({new.name}) does not match existing value ({self.dtype.name})")
        return replace(self, dtype=new)

    def with_domain(self, new: IndexDomain, what: str = "domain") -> SchemaValue:
        """Return the value with a domain merged in."""
        ranked = self.with_rank(new.rank, what)
        merged = merge_domains(self.domain, new)
        if self.fill is not None and merged is not None:
            try:
                self.fill.check_shape(merged.shape)
            except StoreError as error:
                raise error.within("domain is incompatible with fill_value") from None
        return replace(ranked, domain=merged)

    def with_layout(self, new: LayoutValue) -> SchemaValue:
        """Return the value with constraints on the chunk layout merged in."""
        ranked = self if new.rank < 0 else self.with_rank(new.rank, "chunk_layout")
        return replace(ranked, layout=self.layout.merged(new))

    def with_codec(self, new: CodecSpec) -> SchemaValue:
        """Return the value with constraints on encoding merged in."""
        return replace(self, codec=merge_codecs(self.codec, new))

    def with_fill(self, new: Fill) -> SchemaValue:
        """Return the value with its fill value set."""
        if self.fill is not None and self.fill.converted(self.dtype) != new.converted(self.dtype):
            raise StoreError(f"Specified fill_value ({new}) does not match existing value in schema ({self.fill})")
        new.check_rank(self.rank)
        if self.domain is not None:
            try:
                new.check_shape(self.domain.shape)
            except StoreError as error:
                raise error.within("fill_value is incompatible with domain") from None
        return self if self.fill is not None else replace(self, fill=new)

    def with_units(self, new: Units) -> SchemaValue:
        """Return the value with units of dimensions merged in."""
        ranked = self.with_rank(len(new), "dimension_units")
        # TensorStore names the new units first.
        merged = new if self.units is None else merge_units(new, self.units)
        return replace(ranked, units=_said(merged))

    def merged(self, other: SchemaValue) -> SchemaValue:
        """Return both constraints as one."""
        out = self if other.rank < 0 else self.with_rank(other.rank)
        out = out if other.dtype is None else out.with_dtype(other.dtype)
        out = out if other.domain is None else out.with_domain(other.domain)
        out = out.with_layout(other.layout)
        out = out if other.codec is None else out.with_codec(other.codec)
        out = out if other.fill is None else out.with_fill(other.fill)
        return out if other.units is None else out.with_units(other.units)

    def viewed(self, change: Callable[[IndexTransform], IndexTransform]) -> SchemaValue:
        """Return the constraints on a view, whose transform is `change` of the identity."""
        if self.rank < 0:
            raise StoreError("Cannot perform indexing operations on schema with unspecified rank")
        domain = self.domain
        if domain is None:
            open_bounds = [True] * self.rank
            domain = IndexDomain(rank=self.rank, implicit_lower_bounds=open_bounds, implicit_upper_bounds=open_bounds)
        transform = change(identity(domain))
        origin = None if self.domain is None else self.domain.origin
        return replace(
            self,
            rank=transform.input_rank,
            domain=None if self.domain is None else transform.domain,
            layout=forward(self.layout, transform),
            fill=None if self.fill is None else self.fill.through(transform, origin),
            units=None if self.units is None else _said(units_forward(self.units, transform)),
        )

    def to_json(self) -> dict[str, Json]:
        """Return the members that say something, sorted."""
        out: dict[str, Json] = {}
        layout = self.layout.to_json()
        layout.pop("rank", None)
        if layout:
            out["chunk_layout"] = layout
        if self.codec is not None:
            out["codec"] = self.codec.to_json()
        if self.units is not None:
            out["dimension_units"] = [None if unit is None else unit.to_json() for unit in self.units]
        if self.domain is not None:
            out["domain"] = domain_to_json(self.domain)
        if self.dtype is not None:
            out["dtype"] = self.dtype.to_json()
        if self.fill is not None:
            try:
                out["fill_value"] = self.fill.to_json()
            except StoreError as error:
                raise error.within('Error converting object member "fill_value"') from None
        if self.rank >= 0:
            out["rank"] = self.rank
        return out


def _said(units: Units) -> Units | None:
    """Return the units, or None where they say nothing."""
    return units if any(unit is not None for unit in units) else None


def _dtype_from_json(json: Any) -> dtypes.dtype:
    try:
        return dtype_of(string(json))
    except JsonError:
        raise
    except StoreError:
        raise StoreError(f"Unsupported data type: {quote(json)}") from None


_MEMBERS: Final[dict[str, Callable[[SchemaValue, Any], SchemaValue]]] = {
    "rank": lambda value, json: value.with_rank(integer(0, MAX_RANK)(json)),
    "dtype": lambda value, json: value.with_dtype(_dtype_from_json(json)),
    "domain": lambda value, json: value.with_domain(domain_from_json(IndexDomain, json)),
    "chunk_layout": lambda value, json: value.with_layout(layout_from_json(json)),
    "codec": lambda value, json: value.with_codec(CodecSpec(json)),
    "fill_value": lambda value, json: value.with_fill(fill_from_json(json, value.dtype)),
    "dimension_units": lambda value, json: value.with_units(units_from_json(json)),
}


def schema_from_json(json: Any) -> SchemaValue:
    """Parse the JSON form; every problem is reported with its member."""
    members, value, problems = obj(json), SchemaValue(), list[JsonError]()
    for name, read in _MEMBERS.items():
        if name not in members:
            continue
        try:
            value = read(value, members.pop(name))
        except StoreError as error:
            problems.append(located(error, name))
    if members:
        problems.append(JsonError("Object includes extra members: " + ", ".join(map(quote, sorted(members)))))
    if problems:
        raise combined(problems)
    return value


# Constraints given for a view, as constraints on the array below it.


def beneath(value: SchemaValue, transform: IndexTransform) -> SchemaValue:
    """Return `value`, constraints on the input space of `transform`, as constraints on its output space."""
    if value.rank not in (-1, transform.input_rank):
        raise StoreError(
            f"Cannot inverse transform schema of rank {value.rank} by index transform of rank"
            f" {transform.input_rank} -> {transform.output_rank}"
        )
    return replace(
        value,
        rank=-1 if value.rank < 0 else transform.output_rank,
        domain=None if value.domain is None else _domain(value.domain, transform),
        layout=backward(value.layout, transform),
        fill=None if value.fill is None else _fill(value.fill, transform),
        units=None if value.units is None else units_backward(value.units, transform),
    )


def _domain(domain: IndexDomain, transform: IndexTransform) -> IndexDomain:
    where = "Error transforming domain: Cannot specify domain through a transform with"
    bounds, labels = [], []
    used: set[int] = set()
    for number in range(transform.output_rank):
        output = transform.output[number]
        dimension = output.input_dimension
        if dimension is None:
            raise StoreError(f"{where} a {'constant' if output.index_array is None else 'array'} output index map")
        stride = output.stride or 1
        if abs(stride) != 1:
            raise StoreError(f"{where} a non-unit-stride output index map")
        if dimension in used:
            raise StoreError(f"{where} several output dimensions of input dimension {dimension}")
        used.add(dimension)
        bounds.append(inverse_affine(domain.bounds(dimension), -output.offset * stride, stride))
        labels.append(domain.labels[dimension])
    if len(used) != transform.input_rank:
        raise StoreError(f"{where} an input dimension without output dimension")
    return IndexDomain._of_bounds(bounds, labels)


def _fill(fill: Fill, transform: IndexTransform) -> Fill:
    where = "Error transforming fill_value: Cannot transform input array through"
    rank, array = transform.input_rank, fill.array
    full = array.reshape((1,) * (rank - array.ndim) + array.shape)
    kept: list[int | None] = []
    for number in range(transform.output_rank):
        output = transform.output[number]
        if output.index_array is not None:
            raise StoreError(f"{where} array output index map")
        if output.input_dimension is not None and output.stride != 1:
            raise StoreError(f"{where} non-unit-stride output index map")
        kept.append(output.input_dimension)
    lost = [dimension for dimension in range(rank) if dimension not in kept and full.shape[dimension] != 1]
    if lost or any(kept.count(dimension) > 1 for dimension in kept if dimension is not None):
        raise StoreError(f"{where} a transform that is not one to one")
    order = [dimension for dimension in kept if dimension is not None]
    rest = [dimension for dimension in range(rank) if dimension not in order]
    sizes = [1 if dimension is None else full.shape[dimension] for dimension in kept]
    moved = full.transpose(order + rest).reshape(sizes)
    while moved.ndim and moved.shape[0] == 1:
        moved = moved[0]
    return Fill(moved, fill.dtype)
