"""Storage generations of entries: opaque bytes that change when a value does.

That of an inline value is derived from the value, that of an indirect one from where it lies; so a conditional write
needs no more than the leaf.  Short values stand for themselves, being shorter than any hash, which halves the time of
looking thousands of them up.  TensorStore derives its own by another hash; neither is stored.
"""

from __future__ import annotations

from hashlib import blake2b

from fsstore.kvstore.contract.driver import NO_VALUE
from fsstore.ocdbt.format.data_file import Location

__all__ = ["value_generation"]

_DIGEST = 20  # bytes


def value_generation(value: bytes | Location | None) -> bytes:
    """Return the generation of an entry with this value or place, or of a missing one."""
    if value is None:
        return NO_VALUE
    if isinstance(value, bytes):
        short = len(value) < _DIGEST
        return b"\0" + (value if short else blake2b(b"\1" + value, digest_size=_DIGEST).digest())
    (base, relative), offset, length = value
    sizes = b"\0%d:%d:%d:" % (offset, length, len(base))
    return b"\0" + blake2b(sizes + base + relative, digest_size=_DIGEST).digest()
