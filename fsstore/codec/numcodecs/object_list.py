"""The numcodecs codecs `json2` and `msgpack2`: the elements as one list that ends in their dtype and shape.

Written out here because numcodecs allocates whatever shape and dtype the data state, and parses whatever they hold.
The list is nested as the chunk is shaped, whatever its order in memory.

Parsing makes an object of a byte or two, `[]` or `{}`, which takes as much memory as dozens of them.  So what the
objects may take is limited: by a sum over the text before JSON is parsed, and while MessagePack is, which refuses its
extension types, timestamps among them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np

from fsstore.codec.contract import Array, ByteSpec
from fsstore.codec.size import FREE_BYTES, too_large
from fsstore.errors import FailedPreconditionError, StoreError, UnimplementedError
from fsstore.values.json_value import Json

__all__ = ["BoundObjectList", "Json2", "MsgPack2", "parsed_size"]

_ENCODINGS = ("utf-8", "utf8", "ascii", "utf-16", "utf-32", "latin-1")
_TEXT = re.compile(r'"(?:[^"\\]|\\.)*+"', re.DOTALL)
# what CPython takes at most for a list, a dict and a short text, and for a number with its place in a list
_LIST, _DICT, _SHORT, _PLACE = 88, 232, 64, 41
_ELEMENT = 128  # bytes that an element may take besides
_LONGEST = 1 << 20  # entries of a list, unless the chunk has more


class Notation(Protocol):
    """How lists are written."""

    @property
    def name(self) -> str:
        """The name of the codec."""
        ...

    def write(self, items: list[Any]) -> bytes:
        """Return `items` encoded."""
        ...

    def read(self, data: Any, limit: int, shape: tuple[int, ...]) -> Any:
        """Return what `data` encodes, or raise `ResourceExhaustedError` if it takes more than `limit` bytes."""
        ...


@dataclass(frozen=True, slots=True)
class Json2:
    """JSON text."""

    encoding: str
    name: str = "json2"

    @classmethod
    def from_options(cls, options: Mapping[str, Json]) -> Self:
        """Return the notation of the options of numcodecs."""
        encoding = str(options.get("encoding", "utf-8"))
        if encoding.lower() not in _ENCODINGS:
            raise StoreError(f'"json2" codec does not support the encoding {encoding}')
        return cls(encoding)

    def write(self, items: list[Any]) -> bytes:
        """Return `items` as text."""
        return json.dumps(items, separators=(",", ":"), sort_keys=True).encode(self.encoding)

    def read(self, data: Any, limit: int, shape: tuple[int, ...]) -> Any:
        """Return what the text says."""
        text = str(data, self.encoding)
        # texts within the text may hold any of the signs that are counted; leaving them out takes longer
        if parsed_size(text) > limit and parsed_size(_TEXT.sub('""', text)) > limit:
            raise too_large(limit)
        return json.loads(text)


def parsed_size(text: str) -> int:
    """Return how much memory the objects in a JSON text take at most, but for the characters of long texts."""
    lists, dicts = text.count("["), text.count("{")
    values = 1 + lists + dicts + text.count(",")
    return values * _PLACE + lists * _LIST + dicts * _DICT + text.count('"') // 2 * _SHORT


@dataclass(frozen=True, slots=True)
class MsgPack2:
    """MessagePack, by the package `msgpack`."""

    single: bool
    binary: bool
    raw: bool
    name: str = "msgpack2"

    @classmethod
    def from_options(cls, options: Mapping[str, Json]) -> Self:
        """Return the notation of the options of numcodecs; raises `UnimplementedError` without the package."""
        cls.require()
        return cls(
            bool(options.get("use_single_float", False)),
            bool(options.get("use_bin_type", True)),
            bool(options.get("raw", False)),
        )

    @staticmethod
    def require() -> None:
        """Raise `UnimplementedError` unless the package is there."""
        try:
            import msgpack  # noqa: F401  only whether it is there counts
        except ImportError:
            raise UnimplementedError(
                "Codec \"msgpack2\" needs msgpack: pip install 'fsstore[codecs]'"
            ) from None

    def write(self, items: list[Any]) -> bytes:
        """Return `items` packed."""
        import msgpack

        packed: bytes = msgpack.packb(items, use_bin_type=self.binary, use_single_float=self.single)
        return packed

    def read(self, data: Any, limit: int, shape: tuple[int, ...]) -> Any:
        """Return what is packed; a list inside an element has at most a million items."""
        import msgpack

        left = limit

        def spend(size: int) -> None:
            nonlocal left
            left -= size
            if left < 0:
                raise too_large(limit)

        def counted_list(items: list[Any]) -> list[Any]:
            spend(_LIST + _PLACE * len(items))
            return items

        def counted_dict(items: dict[Any, Any]) -> dict[Any, Any]:
            spend(_DICT + (_SHORT + _PLACE) * len(items))
            return items

        return msgpack.unpackb(
            data,
            raw=self.raw,
            list_hook=counted_list,
            object_hook=counted_dict,
            ext_hook=_refuse_extension,
            max_ext_len=0,
            # a list is allocated when its length is read
            max_array_len=min(len(data), max((_LONGEST, *(size + 2 for size in shape)))),
        )


def _refuse_extension(code: int, _: bytes) -> Any:
    raise FailedPreconditionError(f"Invalid msgpack2 data: extension type {code} is refused")


class BoundObjectList:
    """The codec for chunks whose shape in memory is `shape`, the reverse of the chunk's own with `reverse`."""

    __slots__ = ("_notation", "_shape", "_step", "encoded")

    def __init__(self, shape: tuple[int, ...], notation: Notation, *, reverse: bool) -> None:
        self._step = -1 if reverse else 1
        self._shape = shape[:: self._step]
        self._notation = notation
        self.encoded = ByteSpec(itemsize=0)

    def encode(self, data: Any) -> bytes:
        """Return the elements as a list."""
        stored = np.asarray(data).reshape(self._shape[:: self._step])
        array = stored.transpose() if self._step == -1 else stored
        items = array.tolist() if array.ndim else [array.item()]
        try:
            return self._notation.write([*items, array.dtype.str, list(self._shape)])
        except (TypeError, ValueError, OverflowError) as error:
            raise StoreError(f'"{self._notation.name}" codec cannot encode: {error}') from None

    def decode(self, data: Any) -> Array:
        """Return the elements as a flat object array in the order in memory."""
        count = math.prod(self._shape)
        limit = 4 * (FREE_BYTES + len(data)) + _ELEMENT * count
        try:
            *rows, _, shape = self._notation.read(data, limit, self._shape)
        except StoreError:
            raise
        except (ValueError, TypeError, RecursionError, LookupError, MemoryError) as error:
            raise self._invalid(str(error) or type(error).__name__) from None
        if shape != list(self._shape):
            raise self._invalid(f"expected shape {list(self._shape)}")
        out = np.empty(count, object)
        flat: list[Any] = rows
        for size in self._shape[1:]:
            if not all(isinstance(row, list) and len(row) == size for row in flat):
                raise self._invalid("elements do not fill the shape")
            flat = [item for row in flat for item in row]
        if len(flat) != count:
            raise self._invalid("elements do not fill the shape")
        for position, item in enumerate(flat):
            out[position] = item
        array = out.reshape(self._shape)
        return (array.transpose() if self._step == -1 else array).reshape(-1)

    def _invalid(self, reason: str) -> FailedPreconditionError:
        return FailedPreconditionError(f"Invalid {self._notation.name} data: {reason}")
