"""Half-open ranges of keys, compared as bytes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["KeyRange", "key_bytes", "key_text", "prefix_end"]


def key_bytes(key: str | bytes) -> bytes:
    """Return the bytes of a key; surrogate escapes become the bytes they stand for."""
    try:
        return key if isinstance(key, bytes) else key.encode("utf-8", "surrogateescape")
    except AttributeError:
        raise TypeError(f"a key is str or bytes, not {type(key).__name__}") from None


def key_text(key: str | bytes) -> str:
    """Return a key as `str`; bytes that are not UTF-8 become surrogate escapes."""
    try:
        return key if isinstance(key, str) else key.decode("utf-8", "surrogateescape")
    except AttributeError:
        raise TypeError(f"a key is str or bytes, not {type(key).__name__}") from None


def prefix_end(prefix: bytes) -> bytes:
    """Return the first key after all keys that start with `prefix`; empty (unbounded) if there is none."""
    stripped = prefix.rstrip(b"\xff")
    return stripped[:-1] + bytes([stripped[-1] + 1]) if stripped else b""


@dataclass(frozen=True, slots=True, init=False)
class KeyRange:
    """The keys `k` with `inclusive_min <= k < exclusive_max`; an empty `exclusive_max` is no bound.

    >>> KeyRange("a", "b").contains("abc")
    True
    >>> KeyRange("b", "a").empty
    True
    """

    __module__ = "fsstore"
    __qualname__ = "KvStore.KeyRange"

    inclusive_min: bytes
    exclusive_max: bytes

    def __init__(self, inclusive_min: str | bytes = b"", exclusive_max: str | bytes = b"") -> None:
        object.__setattr__(self, "inclusive_min", key_bytes(inclusive_min))
        object.__setattr__(self, "exclusive_max", key_bytes(exclusive_max))

    @classmethod
    def prefix(cls, prefix: str | bytes) -> KeyRange:
        """Return the range of all keys that start with `prefix`."""
        data = key_bytes(prefix)
        return cls(data, prefix_end(data))

    @property
    def empty(self) -> bool:
        """Whether no key can lie in the range."""
        return bool(self.exclusive_max) and self.inclusive_min >= self.exclusive_max

    @property
    def unbounded(self) -> bool:
        """Whether every key lies in the range."""
        return not self.inclusive_min and not self.exclusive_max

    def copy(self) -> KeyRange:
        """Return an equal range."""
        return KeyRange(self.inclusive_min, self.exclusive_max)

    def contains(self, key: str | bytes) -> bool:
        """Return whether the key lies in the range."""
        data = key_bytes(key)
        return data >= self.inclusive_min and (not self.exclusive_max or data < self.exclusive_max)

    def with_prefix(self, prefix: str | bytes) -> KeyRange:
        """Return the range of the same keys with `prefix` in front."""
        data = key_bytes(prefix)
        if not data:
            return self
        end = data + self.exclusive_max if self.exclusive_max else prefix_end(data)
        return KeyRange(data + self.inclusive_min, end)

    @property
    def common_prefix(self) -> bytes:
        """The longest prefix that all keys of the range share; useful to narrow a listing."""
        low, high = self.inclusive_min, self.exclusive_max
        if not high:
            return b""
        length = 0
        while length < min(len(low), len(high)) and low[length] == high[length]:
            length += 1
        # [p, successor(p)) holds exactly the keys that start with p, although p and its successor differ
        for size in range(len(low), length, -1):
            if prefix_end(low[:size]) == high:
                return low[:size]
        return low[:length]

    def __repr__(self) -> str:
        """Return the form TensorStore prints."""
        return f"KvStore.KeyRange({self.inclusive_min!r}, {self.exclusive_max!r})"
