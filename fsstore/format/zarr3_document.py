"""The members of `zarr.json`, complete as stored or partial as constraints of a spec, and its data types."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from fsstore.codec.chain import CodecChain
from fsstore.codec.chain_spec import ChainSpec
from fsstore.errors import JsonError, NotJsonError, StoreError
from fsstore.format.contract import Field, is_chosen, select_field
from fsstore.format.extension import DataTypeExtension, extension_json, read_extension
from fsstore.format.stored_json import fill_from_v3, fill_to_v3, load_lenient, usual_v3
from fsstore.index.interval import MAX_FINITE
from fsstore.values import registry
from fsstore.values.dtypes import dtype, dtype_of
from fsstore.values.json_value import (
    Fields,
    Json,
    Parser,
    array_of,
    boolean,
    dumps,
    expected,
    integer,
    obj,
    one_of,
    optional,
    quote,
    string,
)
from fsstore.values.units import Unit

_CORE = (
    "bool", "int2", "int4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
    "float8_e3m4", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float4_e2m1fn", "uint2", "uint4", "float6_e2m3fn", "float6_e3m2fn", "float8_e4m3",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
_RAW = re.compile(r"r([1-9][0-9]{0,6})")
_TIME_UNITS = ("Y", "M", "W", "D", "h", "m", "s", "ms", "us", "μs", "ns", "ps", "fs", "as", "generic")
_LENGTH_LIMIT = 2**28  # bytes of one element: opening an array makes a few for its fill value


@dataclass(frozen=True, slots=True)
class DataType:
    """A data type: what `dtype` shows, how elements are held in memory, and the JSON as stored."""

    dtype: dtype
    native: np.dtype[Any]
    json: Json
    extension: DataTypeExtension | None = None
    """The data type of another package, which knows how metadata write its fill values."""

    @property
    def name(self) -> str:
        """The name of the data type in metadata."""
        return str(self.json["name"] if isinstance(self.json, dict) else self.json)

    def fill_from_json(self, value: Any) -> Any:
        """Return the fill value of metadata as a scalar of the NumPy type."""
        if self.extension is not None:
            return self.extension.fill_from_json(value)
        return fill_from_v3(value, self.native, self.name)

    def fill_to_json(self, value: Any) -> Json:
        """Return a scalar of the NumPy type as metadata have it."""
        if self.extension is not None:
            return self.extension.fill_to_json(value)
        return fill_to_v3(value, self.native, self.name)


def _length(value: Any, *, unit: int = 1) -> int:
    length = integer(0, _LENGTH_LIMIT)(value)
    if length % unit:
        raise JsonError(f"Expected a multiple of {unit}, but received: {length}")
    return length // unit


def _configured(value: Any, members: dict[str, Parser[Any]]) -> dict[str, Any]:
    fields = Fields(value)
    taken = {name: fields.require(name, parser) for name, parser in members.items()}
    fields.finish()
    return taken


def _time(kind: str) -> Any:
    def parse(configuration: Any) -> np.dtype[Any]:
        taken = _configured(configuration, {"unit": one_of(*_TIME_UNITS), "scale_factor": integer(1, 2**31 - 1)})
        if taken["unit"] == "generic":
            return np.dtype(kind)
        scale = "" if taken["scale_factor"] == 1 else str(taken["scale_factor"])
        return np.dtype(f"{kind}[{scale}{taken['unit']}]")

    return parse


def _fixed(kind: str, unit: int = 1) -> Any:
    def parse(configuration: Any) -> np.dtype[Any]:
        taken = _configured(configuration, {"length_bytes": lambda value: _length(value, unit=unit)})
        return np.dtype(f"{kind}{max(1, taken['length_bytes'])}")

    return parse


def _struct(configuration: Any) -> np.dtype[Any]:
    fields = _configured(configuration, {"fields": array_of(_struct_field)})["fields"]
    names = [name for name, _ in fields]
    if len(set(names)) != len(names) or not names:
        raise JsonError(f"Expected fields of distinct names, but received: {names}")
    return np.dtype([(name, native) for name, native in fields])


def _struct_field(value: Any) -> tuple[str, np.dtype[Any]]:
    if isinstance(value, list):
        if len(value) != 2:
            raise expected("pair of name and data type", value)
        return string(value[0]), parse_data_type(value[1]).native
    taken = _configured(value, {"name": string, "data_type": parse_data_type})
    return taken["name"], taken["data_type"].native


_CONFIGURED = {
    "numpy.datetime64": _time("M8"),
    "numpy.timedelta64": _time("m8"),
    "fixed_length_utf32": _fixed("U", 4),
    "null_terminated_bytes": _fixed("S"),
    "raw_bytes": _fixed("V"),
    "fixed_length_bytes": _fixed("S"),
    "struct": _struct,
    "structured": _struct,
}


def parse_data_type(value: Any) -> DataType:
    """Return the data type of a metadata member: a name, or an object with name and configuration."""
    if isinstance(value, str):
        return _named(value)
    fields = Fields(value)
    name = fields.require("name", string)
    configuration = fields.take("configuration", obj, default={})
    fields.take("must_understand", boolean)
    fields.finish()
    reader = _CONFIGURED.get(name)
    if reader is None:
        kind = _named(name, configuration)
        if configuration and kind.extension is None:
            raise JsonError(f"{name} data type takes no configuration")
        return kind
    try:
        native = reader(configuration)
    except JsonError as error:
        raise error.within('Error parsing object member "configuration"') from None
    return DataType(dtype_of(native), native, {"name": name, "configuration": configuration})


def shown_field(kind: DataType, options: Mapping[str, Any]) -> Field:
    """Return the shown part of elements; of a structure with several fields, all of them unless one is chosen.

    That is more than TensorStore shows, but what zarr-python does.
    """
    if is_chosen(options) or len(kind.native.names or ()) == 1:
        return select_field(kind.native, options)
    return Field(kind.dtype, kind.native)


def _named(name: str, configuration: Mapping[str, Json] | None = None) -> DataType:
    """Return the type called so: one of ours, or one that another package has registered."""
    if name in _CORE:
        kind = dtype_of(name)
        return DataType(kind, kind.numpy_dtype, name)
    raw = _RAW.fullmatch(name)
    if raw and int(raw[1]) % 8 == 0:
        native: np.dtype[Any] = np.dtype(f"V{int(raw[1]) // 8}")
        return DataType(dtype_of(native), native, name)
    if name == "string":
        return DataType(dtype_of("ustring"), np.dtype(object), name)
    if name in ("variable_length_bytes", "bytes"):
        return DataType(dtype_of("string"), np.dtype(object), name)
    if registry.data_types.get(name) is None:
        raise JsonError(f"{name} data type is not one of the supported data types: " + ", ".join(_CORE))
    value = {"name": name, "configuration": configuration or {}}
    extension: DataTypeExtension = read_extension(value, registry.data_types)
    json = extension_json(extension)
    stored: Json = json if "configuration" in json else name
    return DataType(dtype_of(extension.native), extension.native, stored, extension)


def octet_type(name: str) -> DataType | None:
    """Return the extension that holds elements of one byte: TensorStore has names for them, and zarr v3 no type."""
    names = {"char": "null_terminated_bytes", "byte": "raw_bytes"}
    if name not in names:
        return None
    return parse_data_type({"name": names[name], "configuration": {"length_bytes": 1}})


def stored_type(kind: dtype) -> DataType:
    """Return how zarr v3 stores a dtype; raises `StoreError` if it cannot."""
    if kind.name in _CORE:
        return DataType(kind, kind.numpy_dtype, kind.name)
    if kind.name in ("ustring", "string"):
        return _named("string" if kind.name == "ustring" else "variable_length_bytes")
    if kind.name in ("json", "char", "byte"):
        raise StoreError(f"Data type not supported: {kind.name}")
    native = kind.numpy_dtype
    if native.kind in "Mm":
        unit, scale = np.datetime_data(native)
        name = "numpy.datetime64" if native.kind == "M" else "numpy.timedelta64"
        return parse_data_type({"name": name, "configuration": {"unit": unit, "scale_factor": scale}})
    names = {"U": "fixed_length_utf32", "S": "null_terminated_bytes", "V": "raw_bytes"}
    if native.fields is None and native.kind in names:
        return parse_data_type({"name": names[native.kind], "configuration": {"length_bytes": native.itemsize}})
    if native.fields is not None:
        return parse_data_type({"name": "struct", "configuration": {"fields": _field_json(native)}})
    raise StoreError(f"Data type not supported: {kind.name}")


def older_type(kind: DataType) -> DataType:
    """Return the type with structures called `structured`, as zarr-python before `struct` was registered knows them.

    Every reader of `struct` reads that too.
    """
    return parse_data_type(_older_json(kind.json))


def _older_json(json: Json) -> Json:
    if not isinstance(json, dict) or json["name"] != "struct":
        return json
    configuration: Any = json["configuration"]
    pairs: list[Json] = [
        [name, _older_json(each)]
        for name, each in (
            field if isinstance(field, list) else (field["name"], field["data_type"])
            for field in configuration["fields"]
        )
    ]
    return {"name": "structured", "configuration": {"fields": pairs}}


def _field_json(native: np.dtype[Any]) -> list[Json]:
    out: list[Json] = []
    for name in native.names or ():
        part = native.fields[name][0] if native.fields is not None else native
        if part.subdtype is not None:
            raise StoreError(f"Data type not supported: field {name} is an array")
        out.append({"name": name, "data_type": stored_type(dtype_of(part)).json})
    return out


def load_document(data: bytes) -> Any:
    """Return the JSON of a stored document in its usual form.

    Attributes may hold NaN, infinities and halves of characters, other members may not.
    """
    return load_lenient(data, usual_v3, free="attributes")


def _grid(value: Any) -> dict[str, Json]:
    return extension_json(read_extension(value, registry.chunk_grids))


def _key_encoding(value: Any) -> dict[str, Json]:
    return extension_json(read_extension(value, registry.chunk_key_encodings))


def _no_transformers(value: Any) -> None:
    if array_of(obj)(value):
        raise JsonError("No storage transformers supported")


def _attributes(value: Any) -> dict[str, Json]:
    attributes = obj(value)
    if "dimension_units" in attributes:
        try:
            attributes["dimension_units"] = _unit_list(attributes["dimension_units"])
        except JsonError as error:
            raise error.within('Error parsing object member "dimension_units"') from None
    return attributes


def _wished_attributes(value: Any) -> dict[str, Json]:
    """Return attributes of a spec, which may hold anything that is JSON."""
    try:
        dumps(obj(value), allow_nan=True)
    except TypeError as error:
        raise NotJsonError(str(error)) from None
    return _attributes(value)


def _unit_list(value: Any) -> list[Json]:
    def unit(item: Any) -> str | None:
        if item is None:
            return None
        try:
            return Unit(string(item)).text()
        except StoreError as error:
            raise JsonError(error.message) from None

    return list(array_of(unit)(value))


def _data_type(value: Any) -> Json:
    return parse_data_type(value).json


_REQUIRED: Mapping[str, Parser[Any]] = {
    "zarr_format": integer(3, 3),
    "node_type": one_of("array"),
    "shape": array_of(integer(0, MAX_FINITE)),
    "data_type": _data_type,
    "chunk_grid": _grid,
    "chunk_key_encoding": _key_encoding,
}


def parse_document(value: Any, *, stored: bool) -> dict[str, Any]:
    """Return the members of a document in canonical form.

    A `stored` one must be complete; a spec's may leave out anything, and then any non-empty one names the node type.
    Raises `JsonError` with every problem.
    """
    fields = Fields(value)
    if stored:
        _check_kind(value)
    take: Callable[[str, Parser[Any]], Any] = fields.require if stored else fields.take
    out = {name: take(name, parser) for name, parser in _REQUIRED.items()}
    chain = CodecChain if stored else ChainSpec
    has_type, fill_given = "data_type" in value, "fill_value" in fields
    out["codecs"] = take("codecs", lambda item: chain.from_json(item).to_json())
    out["fill_value"] = take("fill_value", lambda item: _fill(item, out["data_type"], has_type=has_type))
    out["attributes"] = fields.take("attributes", _attributes if stored else _wished_attributes) or None
    out["dimension_names"] = fields.take("dimension_names", array_of(optional(string)))
    fields.take("storage_transformers", _no_transformers)
    if value.get("consolidated_metadata") is None:  # as zarr-python wrote it for arrays
        fields.take("consolidated_metadata", lambda item: item)
    unknown = {name: _ignorable(fields, name, member) for name, member in fields.rest().items()}
    _check_ranks(fields, out)
    fields.finish()
    given = {name: member for name, member in out.items() if member is not None}
    if fill_given:
        given["fill_value"] = out["fill_value"]
    if stored and not any(name is not None for name in given.get("dimension_names", ())):
        given.pop("dimension_names", None)
    if not stored and given:
        given["node_type"] = "array"
    return {**given, **unknown}


def _check_kind(value: Mapping[str, Any]) -> None:
    """Refuse a document of another version or of a group for that alone: what else it lacks is no mistake in it."""
    kind = ("zarr_format", "node_type")
    fields = Fields({name: value[name] for name in kind if name in value})
    for name in kind:
        fields.take(name, _REQUIRED[name])
    fields.finish()


def _ignorable(fields: Fields, name: str, member: Any) -> Any:
    if not isinstance(member, dict) or member.get("must_understand") is not False:
        fields.problem(f'Unsupported metadata field {quote(name)} is not marked {{"must_understand": false}}')
    return member


def _fill(value: Any, data_type: Any, *, has_type: bool) -> Json:
    if data_type is None:
        if has_type:  # a problem that is reported already
            return None
        raise JsonError('must be specified in conjunction with "data_type"')
    kind = parse_data_type(data_type)
    return kind.fill_to_json(kind.fill_from_json(value))


def _check_ranks(fields: Fields, out: Mapping[str, Any]) -> None:
    ranks = {name: len(out[name]) for name in ("shape", "dimension_names") if out.get(name) is not None}
    if out.get("chunk_grid"):
        ranks["chunk_grid"] = read_extension(out["chunk_grid"], registry.chunk_grids).rank
    units = (out.get("attributes") or {}).get("dimension_units")
    if units is not None:
        ranks["dimension_units"] = len(units)
    if len(set(ranks.values())) > 1:
        told = ", ".join(f"{quote(name)} has rank {rank}" for name, rank in ranks.items())
        fields.problem(f"Members disagree on the rank: {told}")


def stored_units(metadata: Mapping[str, Any], rank: int) -> tuple[Unit | None, ...] | None:
    """Return the units of the dimensions, or None when no dimension has one."""
    units = (metadata.get("attributes") or {}).get("dimension_units")
    if units is None or len(units) != rank:
        return None
    found = tuple(None if unit is None else Unit(unit) for unit in units)
    return found if any(unit is not None for unit in found) else None
