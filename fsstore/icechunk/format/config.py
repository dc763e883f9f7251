"""Where virtual chunks lie by name: the containers of a repository's configuration.

Only `vcc://NAME/...` needs them.  Anything else in a configuration (endpoints, credentials, anonymous access) is
never followed: whoever wrote the repository would decide where requests of the reader go.  Version 1 writes YAML, of
which the few lines looked for have a fixed form; version 2 writes a FlexBuffer.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any

from fsstore.errors import DataLossError

__all__ = ["containers_of_flexbuffer", "containers_of_yaml"]

_MEMBER = re.compile(r"    (name|url_prefix): *(.*?)\s*\Z")
_DEEPEST = 64
_MOST_VALUES = 100_000
_FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q"}
_NULL, _INT, _UINT, _FLOAT, _KEY, _STRING, _MAP, _VECTOR, _BOOL = 0, 1, 2, 3, 4, 5, 9, 10, 26


def containers_of_yaml(text: str) -> dict[str, str]:
    """Return URL prefixes by name.

    >>> containers_of_yaml("virtual_chunk_containers:\\n  s3://b/:\\n    name: b\\n    url_prefix: s3://b/\\n")
    {'b': 's3://b/'}
    """
    out: dict[str, str] = {}
    inside, found = False, dict[str, str]()
    for line in [*text.splitlines(), "end:"]:
        if inside and (match := _MEMBER.match(line)):
            found[match[1]] = match[2].strip("'\"")
        elif line[:3].strip():  # the next container, or the next member of the configuration
            _put(out, found)
            found = {}
            if line[0] != " ":
                inside = line.startswith("virtual_chunk_containers:")
    return out


def containers_of_flexbuffer(data: bytes) -> dict[str, str]:
    """Return URL prefixes by name."""
    config = _Flex(data).root() if data else None
    containers = config.get("virtual_chunk_containers") if isinstance(config, Mapping) else None
    out: dict[str, str] = {}
    if isinstance(containers, Mapping):
        for each in containers.values():
            if isinstance(each, Mapping):
                _put(out, each)
    return out


def _put(out: dict[str, str], container: Mapping[str, Any]) -> None:
    name, prefix = container.get("name"), container.get("url_prefix")
    if isinstance(name, str) and isinstance(prefix, str) and name not in ("", "null", "~"):
        out[name] = prefix


class _Flex:
    """A FlexBuffer: the types that configurations are written with; others are None."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._values = 0

    def root(self) -> Any:
        """Return the value."""
        data = self._data
        if len(data) < 3 or data[-1] not in _FORMATS:
            raise self._damaged(len(data))
        return self._value(len(data) - 2 - data[-1], data[-1], data[-2], 0)

    def _value(self, at: int, width: int, packed: int, depth: int) -> Any:
        self._values += 1
        if depth > _DEEPEST or self._values > _MOST_VALUES:
            raise self._damaged(at)
        kind, inner = packed >> 2, 1 << (packed & 3)
        if kind in (_NULL, _INT, _FLOAT):
            return None
        number = self._uint(at, width)
        if kind in (_UINT, _BOOL):
            return number
        start = at - number
        if kind == _KEY:
            return self._text(start, self._data.find(b"\0", max(start, 0)))
        if kind == _STRING:
            return self._text(start, start + self._uint(start - inner, inner))
        if kind == _VECTOR:
            return self._vector(start, inner, depth)
        if kind == _MAP:
            keys_at = start - 3 * inner
            keys = keys_at - self._uint(keys_at, inner)
            key_width = self._uint(start - 2 * inner, inner)
            values = self._vector(start, inner, depth)
            names = [
                self._value(keys + key_width * number, key_width, _KEY << 2, depth + 1)
                for number in range(len(values))
            ]
            return dict(zip(names, values, strict=True))
        return None

    def _vector(self, start: int, width: int, depth: int) -> list[Any]:
        count = self._uint(start - width, width)
        types = start + count * width
        if types + count > len(self._data):
            raise self._damaged(start)
        return [
            self._value(start + width * number, width, self._data[types + number], depth + 1)
            for number in range(count)
        ]

    def _uint(self, at: int, width: int) -> int:
        if width not in _FORMATS or not 0 <= at <= len(self._data) - width:
            raise self._damaged(at)
        return int(struct.unpack_from("<" + _FORMATS[width], self._data, at)[0])

    def _text(self, start: int, stop: int) -> str:
        if not 0 <= start <= stop <= len(self._data):
            raise self._damaged(start)
        return self._data[start:stop].decode("utf-8", "replace")

    @staticmethod
    def _damaged(at: int) -> DataLossError:
        return DataLossError(f"The configuration in the repository is damaged; at offset {max(at, 0)} of it")
