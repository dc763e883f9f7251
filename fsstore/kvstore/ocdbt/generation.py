"""Storage generations of entries: opaque bytes that change when a value does.

That of an inline value is derived from the value, that of an indirect one from where it lies; so a conditional write
needs no more than the leaf.  TensorStore derives its own by another hash; neither is stored.
"""

from __future__ import annotations

from hashlib import blake2b

from fsstore.kvstore.ocdbt.data_file import Location

__all__ = ["value_generation"]


def value_generation(value: bytes | Location) -> bytes:
    """Return the generation of an entry with this value or place."""
    if isinstance(value, bytes):
        return b"\0" + blake2b(b"\1" + value, digest_size=20).digest()
    (base, relative), offset, length = value
    sizes = b"\0%d:%d:%d:" % (offset, length, len(base))
    return b"\0" + blake2b(sizes + base + relative, digest_size=20).digest()
