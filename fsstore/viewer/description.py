"""An array in words, as the page shows it: JSON without numbers that JSON lacks, and without secrets."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fsstore.errors import StoreError
from fsstore.viewer.picture import is_number
from fsstore.viewer.subject import Shown, Subject

__all__ = ["codec_names", "describe", "described_members", "plain_json"]

_ROWS = ("y", "lat", "latitude", "row", "rows", "northing", "projection_y_coordinate")
_COLUMNS = ("x", "lon", "longitude", "col", "column", "columns", "easting", "projection_x_coordinate")
_DEEPEST = 40


def describe(shown: Shown) -> dict[str, Any]:
    """Return what the page tells of an array, and how it first shows it."""
    store, zeroed = shown.store, shown.zeroed
    try:
        spec = store.spec().to_json()
    except StoreError:  # arrays of live objects have none
        spec = {}
    dtype = store.dtype.numpy_dtype
    chunks = list(store.chunk_layout.read_chunk.shape or (None,) * store.rank)
    written = list(store.chunk_layout.write_chunk.shape or (None,) * store.rank)
    rows, columns, colours = _first_view(shown)
    found: dict[str, Any] = plain_json({
        "path": shown.path, "driver": spec.get("driver", store._driver.kind.id), "url": _url(store),
        "shape": list(store.shape), "origin": list(store.origin), "names": list(shown.names), "dtype": store.dtype.name,
        "units": shown.attributes.get("units", ""), "long_name": shown.attributes.get("long_name", ""),
        "itemsize": dtype.itemsize, "bytes": store.size * dtype.itemsize, "drawable": is_number(dtype),
        "is_time": dtype.kind == "M", "chunks": chunks, "shards": written if written != chunks else None,
        "codec": codec_names(spec), "fill_value": None if store.fill_value is None else str(store.fill_value),
        "attributes": dict(shown.attributes), "axes": list(shown.axes),
        "levels": [{"shape": list(each.store.shape), "factors": list(each.factors)} for each in shown.levels],
        "rows": rows, "columns": columns, "colours": colours, "at": _first_place(shown, rows, columns),
        "rank": zeroed.rank,
    })  # fmt: skip
    return found


def _url(store: Any) -> str:
    try:
        return str(store.url)
    except StoreError:
        return ""


def _first_view(shown: Shown) -> tuple[int | None, int | None, int | None]:
    """Return the dimensions that go down and across in the first picture, and the one that holds colours, if any."""
    store, rank = shown.store, shown.store.rank
    if rank < 2:
        return None, (0 if rank else None), None
    names = [name.lower() for name in shown.names]
    rows = next((number for number, name in enumerate(names) if name in _ROWS), None)
    columns = next((number for number, name in enumerate(names) if name in _COLUMNS), None)
    for number, each in enumerate(shown.axes):
        if rows is None and each is not None and each["up"]:
            rows = number
    is_colour = store.dtype.name == "uint8" and rank > 2
    if rows is None or columns is None or rows == columns:
        last = rank - 1 if is_colour and store.shape[-1] in (3, 4) else rank
        rows, columns = last - 2, last - 1
    others = [number for number in range(rank) if number not in (rows, columns)]
    colours = next(
        (number for number in others if is_colour and store.shape[number] in (3, 4) and number == rank - 1),
        None,
    )
    return rows, columns, colours


def _first_place(shown: Shown, *drawn: int | None) -> list[int]:
    """Return where the other dimensions stand first: in the middle of a depth, at the beginning of all else."""
    return [
        size // 2 if name.lower() in ("z", "depth") and len(shown.levels) > 1 and number not in drawn else 0
        for number, (name, size) in enumerate(zip(shown.names, shown.store.shape, strict=True))
    ]


def codec_names(spec: Mapping[str, Any]) -> list[Any] | None:
    """Return the names of the codecs that a spec tells of."""
    metadata = spec.get("metadata", {})
    for name in ("codecs", "compressor", "compression"):
        if name in metadata:
            codecs = metadata[name] if isinstance(metadata[name], list) else [metadata[name]]
            names = [
                each.get("name", each.get("id", each.get("type"))) if isinstance(each, dict) else each
                for each in codecs
            ]
            return [name for name in names if name is not None]
    return None


def described_members(subject: Subject) -> dict[str, Any]:
    """Return the tree: arrays and groups by path, and what is wrong with others."""
    members, damaged = subject.members()
    listed = [
        {"path": path}
        if entry is None
        else {
            "path": path, "dtype": entry.dtype, "shape": list(entry.shape),
            "about": entry.attributes.get("long_name") or entry.attributes.get("standard_name") or "",
        }
        for path, entry in members.items()
    ]  # fmt: skip
    tree: dict[str, Any] = plain_json({
        "group": subject.is_group, "members": listed, "damaged": damaged,
        "root_is_image": subject.is_group and "" in subject.images(),
        "images": sorted(subject.images()) if subject.is_group else [],
    })  # fmt: skip
    return tree


def plain_json(value: Any, depth: int = 0) -> Any:
    """Return a value as strict JSON has it: numbers that it lacks, and what it does not know, as text."""
    if depth > _DEEPEST:
        return "\u2026"
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain_json(each, depth + 1) for name, each in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [plain_json(each, depth + 1) for each in value]
    return plain_json(value.tolist(), depth + 1) if hasattr(value, "tolist") else str(value)
