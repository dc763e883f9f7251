"""Metadata of other writers, put into the words of the specification.

Documents that are stored are brought into the form that readers of these formats have met for years, before they are
parsed strictly; what is asked for in a spec is not, and what is written is always in the strict form.

* NaN and infinities as bare words, which Python's JSON writes, where a fill value has text;
* `"0"` as fill value of integers and 0 as that of booleans (n5-zarr, bioformats2raw, zarrita);
* the level -1 of zlib and gzip, which means 6, and shuffles of blosc by name (n5-zarr, VirtualiZarr);
* chunks of size 0 along a dimension without elements (kerchunk);
* `"dimension_names": null` (zarrita, early zarr-python 3).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from fsstore.errors import DataLossError
from fsstore.values.json_value import check_text, dumps, loads

__all__ = ["load_lenient", "usual_v2", "usual_v3"]

_INTEGER = re.compile(r"[-+]?[0-9]{1,20}")
_INTEGER_V2 = re.compile(r"[<>|][iu][1248]")
_SHUFFLES = {"noshuffle": 0, "shuffle": 1, "bitshuffle": 2, "autoshuffle": -1}
_DEFAULT_LEVEL = 6  # of zlib
_BOOLEANS = {0: False, 1: True}


def load_lenient(data: bytes, usual: Any, *, free: str | None = None) -> Any:
    """Return the JSON of a stored document in its usual form.

    NaN, infinities and halves of characters may stand in the member `free`, and where `usual` finds a word for them.
    """
    try:
        return usual(loads(data))
    except DataLossError as error:
        strict = error
    try:
        value = usual(loads(data, lenient=True, unique=True))
        kept = {name: member for name, member in value.items() if name != free}
        dumps(kept)
        check_text(kept)
    except (DataLossError, ValueError, AttributeError):
        raise strict from None
    return value


def usual_v2(document: Any) -> Any:
    """Return a document `.zarray` with members as the specification has them."""
    if not isinstance(document, Mapping):
        return document
    out = dict(document)
    _give_elements(out, out, "chunks")
    if "fill_value" in out:
        out["fill_value"] = _fill(
            out["fill_value"], out.get("dtype") in ("|b1", "<b1", ">b1"), _is_integer(out)
        )
    out |= {"compressor": _codec(out["compressor"])} if "compressor" in out else {}
    if isinstance(out.get("filters"), list):
        out["filters"] = [_codec(each) for each in out["filters"]]
    return out


def usual_v3(document: Any) -> Any:
    """Return a document `zarr.json` of an array with members as the specification has them."""
    if not isinstance(document, Mapping):
        return document
    out = dict(document)
    if "dimension_names" in out and out["dimension_names"] is None:
        del out["dimension_names"]
    if "fill_value" in out:
        out["fill_value"] = _fill(out["fill_value"], out.get("data_type") == "bool", False)
    grid = out.get("chunk_grid")
    if isinstance(grid, Mapping) and isinstance(grid.get("configuration"), Mapping):
        configuration = dict(grid["configuration"])
        _give_elements(out, configuration, "chunk_shape")
        out["chunk_grid"] = {**grid, "configuration": configuration}
    return out


def _is_integer(document: Mapping[str, Any]) -> bool:
    kind = document.get("dtype")
    return isinstance(kind, str) and _INTEGER_V2.fullmatch(kind) is not None


def _give_elements(document: Mapping[str, Any], holder: dict[str, Any], name: str) -> None:
    """Make chunks of size 0 those of one element, in dimensions that have none."""
    shape, chunks = document.get("shape"), holder.get(name)
    if isinstance(shape, list) and isinstance(chunks, list) and len(shape) == len(chunks):
        pairs = zip(shape, chunks, strict=True)
        holder[name] = [1 if _is_zero(size) and _is_zero(step) else step for size, step in pairs]


def _is_zero(value: Any) -> bool:
    return value == 0 and not isinstance(value, bool)


def _fill(value: Any, boolean: bool, integer: bool) -> Any:
    if isinstance(value, list):
        return [_fill(each, boolean, integer) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if boolean and isinstance(value, int) and not isinstance(value, bool):
        return _BOOLEANS.get(value, value)
    if integer and isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    return value


def _codec(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    name = value.get("id")
    if name in ("zlib", "gzip") and value.get("level") == -1:
        return {**value, "level": _DEFAULT_LEVEL}
    shuffle = value.get("shuffle")
    if name == "blosc" and isinstance(shuffle, str) and shuffle in _SHUFFLES:
        return {**value, "shuffle": _SHUFFLES[shuffle]}
    return value
