"""The members of `zarr.json`: complete as stored, partial as constraints of a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fsstore.codec.chain import CodecChain
from fsstore.codec.chain_spec import ChainSpec
from fsstore.errors import JsonError, NotJsonError, StoreError
from fsstore.format.extension.contract import extension_json, read_extension
from fsstore.format.lenient import load_lenient, usual_v3
from fsstore.format.zarr3_dtype import parse_data_type
from fsstore.index.interval import MAX_FINITE
from fsstore.values import registry
from fsstore.values.json_value import (
    Fields,
    Json,
    Parser,
    array_of,
    dumps,
    integer,
    obj,
    one_of,
    optional,
    quote,
    string,
)
from fsstore.values.units import Unit

__all__ = ["load_document", "parse_document", "stored_units"]


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


def _stored_codecs(value: Any) -> Json:
    return CodecChain.from_json(value).to_json()


def _wished_codecs(value: Any) -> Json:
    return ChainSpec.from_json(value).to_json()


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
    codecs = _stored_codecs if stored else _wished_codecs
    has_type, fill_given = "data_type" in value, "fill_value" in fields
    out["codecs"] = take("codecs", codecs)
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
