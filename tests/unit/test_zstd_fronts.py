"""Fronts of zstd frames: what lies behind the last wanted element is not decompressed, and the values are the same."""

from __future__ import annotations

import random

import numpy as np
import pytest
import zstandard

import fsstore as ts
from fsstore.codec.contract import ByteSpec
from fsstore.codec.zstd import BoundZstd, ZstdCodec
from fsstore.errors import StoreError

SIZE = 700_001
SHAPE, CHUNK = (96, 80, 50), (64, 48, 40)


def sample(size):
    """Return bytes that compress, but not to nothing, in several blocks."""
    noise = np.random.default_rng(3).integers(0, 9, size, np.uint8)
    return (np.arange(size) // 90_000).astype(np.uint8) + noise


def bound(*, checksum=False):
    """Return the codec for the sample."""
    return ZstdCodec(1, checksum).bind(ByteSpec(SIZE))


@pytest.mark.parametrize("level", [-5, 1, 19])
@pytest.mark.parametrize("form", [bytes, memoryview, bytearray])
def test_fronts_hold_what_the_whole_holds(level, form):
    """Any span decodes to the bytes that decoding everything gives there, and nothing behind it is touched."""
    values = sample(SIZE)
    codec = ZstdCodec(level).bind(ByteSpec(SIZE))
    data = form(codec.encode(values))
    rng = random.Random(5)
    for stop in [1, 131_071, 131_072, 131_073, SIZE, *(rng.randrange(1, SIZE) for _ in range(20))]:
        out = np.zeros(SIZE, np.uint8)
        assert codec.decode_span(data, out, (rng.randrange(stop), stop))
        assert (out[:stop] == values[:stop]).all()
        assert not out[stop:].any()


def test_what_is_no_whole_frame_is_left_to_decode():
    """Data that are cut off anywhere or go on, and frames of other sizes, are not taken for the sake of their front."""
    values = sample(SIZE)
    good = bound().encode(values)
    shorter, unsized = zstandard.compress(values[:-1]), zstandard.ZstdCompressor(write_content_size=False)
    others = [good + b"x", good + good, shorter, unsized.compress(values), b"", values.tobytes()]
    for data in [*others, *(good[:end] for end in range(1, len(good), 9973)), good[:-1]]:
        assert not bound().decode_span(data, np.zeros(SIZE, np.uint8), (0, 10))


@pytest.mark.parametrize("size", [600_000, 300_000, 131_072, 80_000])
def test_a_frame_that_holds_more_or_less_than_it_says_is_no_value(size):
    """A header that was changed is found out, whichever library decodes, also where a block ends just there."""
    for held in (size + 1, size + 131_072, size - 1):
        data = bytearray(zstandard.compress(sample(held), 1))
        header = zstandard.frame_header_size(bytes(data))
        data[header - 4 : header] = size.to_bytes(4, "little")
        assert zstandard.frame_content_size(bytes(data)) == size
        codec = ZstdCodec(1).bind(ByteSpec(size))
        assert not codec.decode_into(bytes(data), np.zeros(size, np.uint8))
        with pytest.raises(StoreError):
            codec.decode(bytes(data))


def test_a_front_that_is_damaged_is_left_to_decode():
    """A block that cannot be decoded is never taken for values."""
    good = bytearray(bound().encode(sample(SIZE)))
    at = zstandard.frame_header_size(bytes(good)) + 3
    good[at : at + 200] = b"\xff" * 200
    assert not bound().decode_span(bytes(good), np.zeros(SIZE, np.uint8), (0, 10))


def test_a_checksum_is_looked_at():
    """A frame with a checksum is decoded to its end."""
    data = bound(checksum=True).encode(sample(SIZE))
    assert not bound().decode_span(data, np.zeros(SIZE, np.uint8), (0, 10))


def array_of(order=None, *, checksum=False):
    """Return a store, an array in it whose chunks are several blocks of zstd, and the values."""
    codecs = [{"name": "bytes"}, {"name": "zstd", "configuration": {"level": 1, "checksum": checksum}}]
    if order is not None:
        codecs.insert(0, {"name": "transpose", "configuration": {"order": order}})
    metadata = {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(CHUNK)}},
        "data_type": "uint16", "shape": list(SHAPE), "codecs": codecs,
    }  # fmt: skip
    array = ts.open({"driver": "zarr3", "kvstore": "memory://", "metadata": metadata}, create=True).result()
    values = sample(int(np.prod(SHAPE))).reshape(SHAPE).astype("uint16")
    array[...] = values
    return array.kvstore, array, values


@pytest.fixture
def stops(monkeypatch):
    """Return how many bytes of each chunk of which only a front was decoded there were."""
    seen = []
    decode_span = BoundZstd.decode_span

    def noting(self, data, out, span):
        seen.append(span[1])
        return decode_span(self, data, out, span)

    monkeypatch.setattr(BoundZstd, "decode_span", noting)
    return seen


def selections(count):
    """Return random selections of the array."""
    rng = random.Random(11)
    for _ in range(count):
        terms = []
        for size in SHAPE:
            low = rng.randrange(size)
            high = rng.randint(low + 1, min(size, low + rng.choice([1, 9, size])))
            terms.append(rng.choice([low, *[slice(low, high, rng.choice([1, 1, 3]))] * 3]))
        yield tuple(terms)


@pytest.mark.parametrize("order", [None, [2, 0, 1]], ids=["C", "transposed"])
def test_selections_of_large_chunks(stops, order):
    """Selections read alone and together equal NumPy's, and many need the front of a chunk only."""
    _, array, values = array_of(order)
    picked = list(selections(150))
    for terms in picked:
        assert (np.asarray(array[terms].read().result()) == values[terms]).all()
    assert len(stops) > 50
    assert max(stops) <= 0.8 * np.prod(CHUNK) * 2
    for terms, future in [(terms, array[terms].read()) for terms in picked]:
        assert (np.asarray(future.result()) == values[terms]).all()


@pytest.mark.parametrize("checksum", [False, True])
def test_damage_behind_the_front(checksum):
    """A chunk that is cut off behind what is wanted is damaged, and so is one that its checksum disowns."""
    store, array, values = array_of(checksum=checksum)
    good = store["c/0/0/0"]
    assert (array[0, :9, :9].read().result() == values[0, :9, :9]).all()
    bad = [good[:-9]] + [good[:-90] + bytes([good[-90] ^ 1]) + good[-89:]] * checksum
    for damaged in bad:
        store["c/0/0/0"] = damaged
        with pytest.raises(StoreError, match="c/0/0/0"):
            array[0, :9, :9].read().result()
