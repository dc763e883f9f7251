"""The numcodecs `json2` codec: the elements as one JSON list that ends in their dtype and shape.

Written out here because numcodecs allocates whatever shape and dtype the data state.  The list is nested as the chunk
is shaped, whatever its order in memory.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from fsstore._json import Json
from fsstore.codec.bound_chain import Array
from fsstore.codec.contract import ByteSpec
from fsstore.errors import FailedPreconditionError, StoreError

__all__ = ["BoundJson2"]


class BoundJson2:
    """JSON of chunks whose shape in memory is `shape`, the reverse of the chunk's own with `reverse`."""

    __slots__ = ("_shape", "_step", "encoded", "encoding")

    def __init__(self, shape: tuple[int, ...], options: Mapping[str, Json], *, reverse: bool) -> None:
        self._step = -1 if reverse else 1
        self._shape = shape[:: self._step]
        self.encoding = str(options.get("encoding", "utf-8"))
        if self.encoding.lower() not in ("utf-8", "utf8", "ascii", "utf-16", "utf-32", "latin-1"):
            raise StoreError(f'"json2" codec does not support the encoding {self.encoding}')
        self.encoded = ByteSpec(itemsize=0)

    def encode(self, data: Any) -> bytes:
        """Return the elements as JSON text."""
        stored = np.asarray(data).reshape(self._shape[:: self._step])
        array = stored.transpose() if self._step == -1 else stored
        items = array.tolist() if array.ndim else [array.item()]
        try:
            text = json.dumps(
                [*items, array.dtype.str, list(self._shape)], separators=(",", ":"), sort_keys=True
            )
        except (TypeError, ValueError) as error:
            raise StoreError(f'"json2" codec cannot encode: {error}') from None
        return text.encode(self.encoding)

    def decode(self, data: Any) -> Array:
        """Return the elements as a flat object array in the order in memory."""
        try:
            items = json.loads(str(data, self.encoding))
            *rows, _, shape = items
        except (ValueError, TypeError, RecursionError, LookupError) as error:
            raise FailedPreconditionError(f"Invalid json2 data: {error}") from None
        if shape != list(self._shape):
            raise FailedPreconditionError(f"Invalid json2 data: expected shape {list(self._shape)}")
        out = np.empty(math.prod(self._shape), object)
        flat: list[Any] = rows
        for size in self._shape[1:]:
            if not all(isinstance(row, list) and len(row) == size for row in flat):
                raise FailedPreconditionError("Invalid json2 data: elements do not fill the shape")
            flat = [item for row in flat for item in row]
        if len(flat) != len(out):
            raise FailedPreconditionError("Invalid json2 data: elements do not fill the shape")
        for position, item in enumerate(flat):
            out[position] = item
        array = out.reshape(self._shape)
        return (array.transpose() if self._step == -1 else array).reshape(-1)
