"""Names of objects: Crockford's base 32 of their bytes, upper case, without padding, zero bits appended at the end."""

from __future__ import annotations

from fsstore.errors import StoreError
from fsstore.values.json_value import quote

__all__ = ["OBJECT_BYTES", "decode_identifier", "encode_identifier"]

OBJECT_BYTES = 12
"""The size of the identifiers of snapshots, manifests and chunks."""

_DIGITS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_VALUES = {digit: value for value, digit in enumerate(_DIGITS)} | {"O": 0, "I": 1, "L": 1}


def encode_identifier(raw: bytes) -> str:
    """Return the name of an identifier.

    >>> encode_identifier(bytes.fromhex("0b1cc8d6787580f0e33a6534"))
    '1CECHNKREP0F1RSTCMT0'
    """
    count = -(-len(raw) * 8 // 5)
    number = int.from_bytes(raw, "big") << (count * 5 - len(raw) * 8)
    return "".join(_DIGITS[number >> (5 * place) & 31] for place in reversed(range(count)))


def decode_identifier(text: str) -> bytes:
    """Return the bytes of the identifier of an object; lower case and the letters O, I and L are read as digits.

    >>> encode_identifier(decode_identifier("1cechnkrep0f1rstcmt1"))
    '1CECHNKREP0F1RSTCMT0'
    """
    digits = [_VALUES.get(char, -1) for char in text.upper()] if text.isascii() else []
    if len(digits) != 20 or min(digits) < 0:
        raise StoreError(f"Expected the 20 characters of an Icechunk identifier, but received: {quote(text)}")
    number = 0
    for digit in digits:
        number = number << 5 | digit
    return (number >> 4).to_bytes(OBJECT_BYTES, "big")
