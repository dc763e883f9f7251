"""Keyword arguments in the words of zarr-python and numpy, put in those of specs: modes, chunks, codecs, types."""

from __future__ import annotations

from collections.abc import Mapping
from operator import index
from typing import Any

import numpy as np

from fsstore.errors import StoreError
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.codec_spec import CodecSpec
from fsstore.values.dtypes import dtype_of
from fsstore.values.json_value import show

__all__ = ["LEVELS", "codec_of", "in_our_words"]

LEVELS = {"zstd": 3, "gzip": 6, "blosc": 5}
"""The codecs that have a short name, and how hard they try."""

_MODES: Mapping[str, Mapping[str, bool]] = {
    "r": {"open": True},
    "r+": {"open": True},
    "a": {"open": True, "create": True},
    "w": {"create": True, "delete_existing": True},
    "w-": {"create": True},
}


def in_our_words(given: Mapping[str, Any], driver: str) -> dict[str, Any]:
    """Return keyword arguments without words of other libraries; `driver` is whose codecs are meant."""
    out = dict(given)
    mode = out.pop("mode", None)
    if mode is not None:
        if mode not in _MODES:
            raise ValueError(f"mode is one of {', '.join(_MODES)}, not {mode!r}")
        out = {**_MODES[mode], **out}
    if "chunks" in out or "shards" in out:
        if "chunk_layout" in out:
            raise StoreError("chunks and chunk_layout say the same twice; give one of them")
        out["chunk_layout"] = _layout(out.pop("chunks", None), out.pop("shards", None))
    if isinstance(out.get("dtype"), str):
        out["dtype"] = _dtype(out["dtype"])
    if isinstance(out.get("codec"), str):
        out["codec"] = CodecSpec(codec_of(out["codec"], driver))
    return out


def _layout(chunks: Any, shards: Any) -> ChunkLayout:
    if shards is None:
        return ChunkLayout(chunk_shape=_sides("chunks", chunks))
    if chunks is None:
        return ChunkLayout(write_chunk_shape=_sides("shards", shards))
    return ChunkLayout(read_chunk_shape=_sides("chunks", chunks), write_chunk_shape=_sides("shards", shards))


def _sides(name: str, sizes: Any) -> list[int]:
    try:
        return [index(size) for size in sizes]
    except TypeError:
        raise TypeError(f"{name} is a size for each dimension, such as [100, 100], not {sizes!r}") from None


def _dtype(name: str) -> Any:
    """Return the type of a name of ours, or of one of numpy's such as "f4" or "<i2"."""
    try:
        return dtype_of(name)
    except StoreError as error:
        try:
            found = np.dtype(name)
        except TypeError:
            raise error from None
        return dtype_of(found.newbyteorder("="))


def codec_of(name: str, driver: str) -> dict[str, Any]:
    """Return the codec spec of a short name for arrays of a driver."""
    if name not in LEVELS:
        raise ValueError(
            f"{show(name)} is no codec that has a short name; use {', '.join(LEVELS)}, or its JSON"
        )
    if driver in ("zarr3", "auto"):
        configured: dict[str, Any] = {} if name == "blosc" else {"configuration": {"level": LEVELS[name]}}
        return {"driver": "zarr3", "codecs": [{"name": name, **configured}]}
    if driver == "zarr":
        level = {"level": LEVELS[name]} if name != "blosc" else {}
        return {"driver": "zarr", "compressor": {"id": name, **level}}
    if driver == "n5":
        return {"driver": "n5", "compression": {"type": name, "level": LEVELS[name]}}
    raise StoreError(f"The driver {show(driver)} has no codecs with short names; give the JSON of one")
