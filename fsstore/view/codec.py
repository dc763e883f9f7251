"""How chunks are encoded, said in the words of the other version of zarr, where both have the words.

Elements in either byte order, in the order of C or Fortran, not compressed or compressed by zstd, gzip or blosc are
the same bytes in both versions.  Everything else (filters, checksums, other compressors, shards) has no translation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from fsstore.values.json_value import Json

__all__ = ["codecs_v3", "pipeline_v2"]

_SHUFFLES = {0: "noshuffle", 1: "shuffle", 2: "bitshuffle"}


def codecs_v3(metadata: Mapping[str, Any], native: np.dtype[Any]) -> list[Json] | None:
    """Return the codecs of zarr v3 that a v2 document with elements of `native` amounts to, or None."""
    if metadata.get("filters") or native.kind not in "biufc":
        return None
    compressor = _compressor_v3(metadata["compressor"], native)
    if compressor is None:
        return None
    rank = len(metadata["shape"])
    transposed = metadata["order"] == "F" and rank > 1
    order: Json = list(range(rank))[::-1]
    first: list[Json] = [{"name": "transpose", "configuration": {"order": order}}] if transposed else []
    return [*first, _endian(np.dtype(metadata["dtype"])), *compressor]


def _endian(stored: np.dtype[Any]) -> Json:
    if stored.itemsize == 1:
        return {"name": "bytes"}
    swapped = stored.newbyteorder("<") != stored
    return {"name": "bytes", "configuration": {"endian": "big" if swapped else "little"}}


def _compressor_v3(compressor: Mapping[str, Any] | None, native: np.dtype[Any]) -> list[Json] | None:
    if compressor is None:
        return []
    name = compressor["id"]
    if name == "gzip":
        return [{"name": "gzip", "configuration": {"level": compressor["level"]}}]
    if name == "zstd":
        checksum = bool(compressor.get("checksum", False))
        return [{"name": "zstd", "configuration": {"level": compressor["level"], "checksum": checksum}}]
    if name != "blosc":
        return None
    shuffle = compressor["shuffle"]
    if shuffle == -1:  # chosen by the size of the elements
        shuffle = 2 if native.itemsize == 1 else 1
    options = {name: compressor[name] for name in ("cname", "clevel", "blocksize")}
    typesize = compressor.get("typesize") or native.itemsize
    return [
        {"name": "blosc", "configuration": {**options, "shuffle": _SHUFFLES[shuffle], "typesize": typesize}}
    ]


def pipeline_v2(codecs: Sequence[Mapping[str, Any]], native: np.dtype[Any]) -> dict[str, Json] | None:
    """Return `dtype`, `order` and `compressor` of zarr v2 that codecs of v3 amount to, or None."""
    if native.kind not in "biufc":
        return None
    order, rest = "C", list(codecs)
    if rest and rest[0]["name"] == "transpose":
        axes = list(rest.pop(0)["configuration"]["order"])
        if axes != list(range(len(axes)))[::-1]:
            return None
        order = "F"
    if not rest or rest[0]["name"] != "bytes" or len(rest) > 2:
        return None
    compressor = _compressor_v2(rest[1]) if len(rest) == 2 else {}
    if compressor is None:
        return None
    big = (rest[0].get("configuration") or {}).get("endian") == "big"
    return {
        "dtype": native.newbyteorder(">" if big else "<").str,
        "order": order,
        "compressor": compressor or None,
    }


def _compressor_v2(codec: Mapping[str, Any]) -> dict[str, Json] | None:
    options = codec.get("configuration") or {}
    if codec["name"] in ("gzip", "zstd"):
        return {"id": codec["name"], "level": options["level"]}
    if codec["name"] != "blosc":
        return None
    shuffle = next(number for number, name in _SHUFFLES.items() if name == options["shuffle"])
    kept = {name: options[name] for name in ("cname", "clevel", "blocksize")}
    return {"id": "blosc", **kept, "shuffle": shuffle}
