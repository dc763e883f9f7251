"""The base64 codec for chunks of several blocks: the text of the standard library, and nothing else is taken for it."""

from __future__ import annotations

import base64

import numpy as np
import pytest

from fsstore.codec.contract import ByteSpec
from fsstore.codec.numcodecs.filters import BoundBase64
from fsstore.errors import FailedPreconditionError

BLOCK = 3 << 16  # bytes
TEXT = BLOCK // 3 * 4
SIZES = [0, 1, 3, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 5 * BLOCK + 2]


def sample(size):
    """Return bytes of any value."""
    return np.random.default_rng(size).integers(0, 256, size, "u1").tobytes()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("known", [True, False])
def test_text_is_that_of_the_standard_library(size, known):
    """Both directions, wherever blocks end."""
    data = sample(size)
    bound = BoundBase64(ByteSpec(size if known else None))
    assert bytes(bound.encode(data)) == base64.b64encode(data)
    assert bytes(bound.encode(np.frombuffer(data, "u1"))) == base64.b64encode(data)
    assert bytes(bound.decode(base64.b64encode(data))) == data


@pytest.mark.parametrize("at", [0, 5, TEXT - 4, TEXT, TEXT + 8, 2 * TEXT - 4])
@pytest.mark.parametrize("piece", [b"!AAA", b"AA==", b"AAA=", b"A===", b"AA\nA"])
def test_what_is_no_text_is_refused(at, piece):
    """Letters that do not belong there, and padding before the end, in whichever block."""
    text = bytearray(base64.b64encode(sample(3 * BLOCK)))
    text[at : at + 4] = piece
    with pytest.raises(FailedPreconditionError):
        BoundBase64(ByteSpec(3 * BLOCK)).decode(bytes(text))


@pytest.mark.parametrize("change", [-4, -1, 1, 4])
def test_another_length_is_refused(change):
    """Data that are cut off or go on."""
    text = base64.b64encode(sample(3 * BLOCK)) + b"AAAA"
    with pytest.raises(FailedPreconditionError):
        BoundBase64(ByteSpec(3 * BLOCK)).decode(text[: len(text) - 4 + change])


def test_padding_that_stands_for_what_is_missing_is_refused():
    """The text has the length that is due, and fewer bytes."""
    text = base64.b64encode(sample(3 * BLOCK - 1))
    assert len(text) == 3 * TEXT
    with pytest.raises(FailedPreconditionError, match="Not enough data"):
        BoundBase64(ByteSpec(3 * BLOCK)).decode(text)
