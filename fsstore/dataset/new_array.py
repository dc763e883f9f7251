"""The specs of new arrays, from the words in which people describe them: shape, type, chunks, shards, codec.

Nothing here reads or writes; the result is the JSON of a spec, which the driver of the format completes and checks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from operator import index
from typing import Any

import numpy as np

from fsstore.errors import StoreError
from fsstore.format.attributes import ARRAY_DIMENSIONS, NodeWords
from fsstore.format.zarr3_document import octet_type
from fsstore.schema.schema import LEVELS
from fsstore.values.dtypes import dtype as dtype_of
from fsstore.values.json_value import show

__all__ = ["NewArray", "dtype_name", "new_array"]

_UNCOMPRESSED = {"ustring": "vlen-utf8", "string": "vlen-bytes"}
"""The codecs of zarr version 3 for elements that differ in size."""


@dataclass(frozen=True, slots=True)
class NewArray:
    """The wishes for an array to be created.

    `codec` is `"zstd"`, `"gzip"`, `"blosc"`, None for no compression, or JSON in the words of the format.
    """

    shape: tuple[int, ...]
    dtype: str
    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None
    codec: Any = "zstd"
    fill_value: Any = None
    dimension_names: Sequence[str | None] | None = None
    attributes: Mapping[str, Any] = field(default_factory=dict)

    def metadata(self, words: NodeWords) -> dict[str, Any]:
        """Return the `metadata` member of a spec for the format."""
        if self.shards is not None and words.zarr_format != 3:
            raise ValueError(
                "Shards exist in zarr version 3 only; leave `shards` out, or create the group with zarr_format=3"
            )
        self._check_sides()
        if words.zarr_format == 3:
            return self._zarr3()
        if words.zarr_format == 2:
            chunks = {} if self.chunks is None else {"chunks": list(self.chunks)}
            return {"shape": list(self.shape), **chunks, "compressor": self._plain("id")}
        for name in ("units", "resolution"):
            if not isinstance(self.attributes.get(name, []), list):
                raise StoreError(
                    f"The attribute {show(name)} is a list in N5, with one entry a dimension; give it another name"
                )
        chunks = {} if self.chunks is None else {"blockSize": list(self.chunks)}
        named = (
            {} if self.dimension_names is None else {"axes": [name or "" for name in self.dimension_names]}
        )
        compression = self._plain("type") or {"type": "raw"}
        return {
            **self.attributes,
            "dimensions": list(self.shape),
            **chunks,
            **named,
            "compression": compression,
        }

    def _check_sides(self) -> None:
        for name, sides in (("chunks", self.chunks), ("shards", self.shards)):
            if sides is not None and (len(sides) != len(self.shape) or min(sides, default=1) < 1):
                raise ValueError(
                    f"{name} are positive integers, one for each dimension of an array of shape"
                    f" {list(self.shape)}, not {list(sides)}"
                )
        if self.shards and self.chunks and any(map(int.__mod__, self.shards, self.chunks)):
            raise ValueError(
                f"Shards of shape {list(self.shards)} do not consist of whole chunks of shape {list(self.chunks)};"
                " make each side a multiple of that of a chunk"
            )

    def stored_attributes(self, words: NodeWords) -> dict[str, Any]:
        """Return the attributes that are stored in a document of their own, where the format has one."""
        if words.zarr_format != 2:
            return {}
        named = {}
        if self.dimension_names is not None:
            named = {
                ARRAY_DIMENSIONS: [
                    name or f"dim_{number}" for number, name in enumerate(self.dimension_names)
                ]
            }
        return {**self.attributes, **named}

    def _zarr3(self) -> dict[str, Any]:
        out: dict[str, Any] = {"shape": list(self.shape)}
        outer = self.shards or self.chunks
        if outer is not None:
            out["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": list(outer)}}
        codecs = self._codecs()
        if self.shards is not None:
            inner = {"chunk_shape": list(self.chunks or self.shards), "codecs": codecs}
            codecs = [{"name": "sharding_indexed", "configuration": inner}]
        out["codecs"] = codecs
        octet = octet_type(self.dtype)
        if octet is not None:
            out["data_type"] = octet.json
        if self.dimension_names is not None:
            out["dimension_names"] = list(self.dimension_names)
        if self.attributes:
            out["attributes"] = dict(self.attributes)
        return out

    def _codecs(self) -> list[Any]:
        if self.codec is None:
            return [_UNCOMPRESSED.get(self.dtype, "bytes")]
        if not isinstance(self.codec, str):
            return [self.codec] if isinstance(self.codec, Mapping) else list(self.codec)
        _check_codec(self.codec)
        if self.codec == "blosc":
            return ["blosc"]
        return [{"name": self.codec, "configuration": {"level": LEVELS[self.codec]}}]

    def _plain(self, name: str) -> Any:
        if not isinstance(self.codec, str):
            return self.codec
        _check_codec(self.codec)
        if self.codec == "blosc":
            return (
                {name: "blosc"}
                if name == "id"
                else {name: "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}
            )
        return {name: self.codec, "level": LEVELS[self.codec]}


def _check_codec(codec: str) -> None:
    if codec not in LEVELS:
        raise ValueError(
            f"{show(codec)} is no codec that has a short name; use {', '.join(LEVELS)}, None, or its JSON"
        )


_OPTIONS = ("chunks", "shards", "codec", "fill_value", "dimension_names", "attributes")


def new_array(shape: Sequence[int], dtype: Any, options: Mapping[str, Any]) -> NewArray:
    """Return what a caller asks for, with the names of options checked."""
    for name in options:
        if name not in _OPTIONS:
            close = get_close_matches(name, _OPTIONS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(_OPTIONS)} and overwrite"
            raise TypeError(f"There is no option {name!r} for a new array; {hint}")
    given = {name: value for name, value in options.items() if value is not None or name == "codec"}
    for name in ("chunks", "shards"):
        if name in given:
            given[name] = tuple(map(index, given[name]))
    return NewArray(tuple(map(index, shape)), dtype_name(dtype), **given)


def dtype_name(kind: Any) -> str:
    """Return TensorStore's name of a data type given by any name or object that NumPy or fsstore knows."""
    try:
        return str(dtype_of(kind).name)
    except (TypeError, ValueError):
        pass  # NumPy may know it
    try:
        return str(dtype_of(np.dtype(kind)).name)
    except TypeError as error:
        raise TypeError(
            f"There is no data type {kind!r}; name one of NumPy or fsstore, such as float32"
        ) from error
