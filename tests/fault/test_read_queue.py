"""Reads that are made together fail one by one, as each would alone."""

import numpy as np
import pytest

import fsstore as ts
from fsstore.codec.chain import BoundChain
from fsstore.errors import ResourceExhaustedError

VALUES = np.arange(1, 41, dtype="<i4")


@pytest.mark.parametrize(
    ("raised", "kind", "message"),
    [
        (MemoryError("no room"), ResourceExhaustedError, r'"c/1": There is not enough memory for a chunk'),
        (ZeroDivisionError("a codec's fault"), ZeroDivisionError, "a codec's fault"),
    ],
)
def test_whatever_a_codec_raises_fails_the_reads_of_its_chunk(monkeypatch, raised, kind, message):
    """No other read fails, and the error says what it says when the chunk is read alone."""
    spec = {"driver": "zarr3", "kvstore": "memory://", "schema": {"chunk_layout": {"chunk": {"shape": [4]}}}}
    store = ts.open(spec, create=True, dtype=ts.int32, shape=[40]).result()
    store.write(VALUES).result()
    bad = VALUES[4:8].tobytes()

    def fails(decode):
        def fail(self, data, *how):
            if bytes(data) == bad:
                raise raised
            return decode(self, data, *how)

        return fail

    joined = BoundChain._joined

    def join(self, parts):
        if bad in map(bytes, parts):
            raise raised
        return joined(self, parts)

    for name in ["decode", "decode_to_scratch"]:
        monkeypatch.setattr(BoundChain, name, fails(getattr(BoundChain, name)))
    monkeypatch.setattr(BoundChain, "_joined", join)
    reads = [store[start : start + 2].read() for start in range(0, 40, 2)]
    for number, read in enumerate(reads):
        if number in (2, 3):
            with pytest.raises(kind, match=message):
                read.result()
        else:
            assert read.result().tolist() == VALUES[2 * number : 2 * number + 2].tolist()
    with pytest.raises(kind, match=message):
        store[4:6].read().result()
