"""Arrays of small chunks behind references, decoded many at a time: the same numbers, and damage by name."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
from numcodecs import Zstd

import fsstore as ts
from fsstore.errors import StoreError

ENCODERS = {
    "raw": (None, bytes),
    "zlib": ({"id": "zlib", "level": 1}, zlib.compress),
    "zstd": ({"id": "zstd", "level": 1}, Zstd(1).encode),
}


def write_set(folder, values, chunk, *, codec="raw", order="C", gap=0, missing=(), fill=7):
    """Write the chunks of an array into one file with gaps between them, and the set; return the references."""
    compressor, encode = ENCODERS[codec]
    counts = [-(-size // step) for size, step in zip(values.shape, chunk, strict=True)]
    padded = np.full([n * step for n, step in zip(counts, chunk, strict=True)], fill, values.dtype)
    padded[tuple(map(slice, values.shape))] = values
    refs, body = {}, b""
    for place in np.ndindex(*counts):
        part = padded[tuple(slice(n * step, (n + 1) * step) for n, step in zip(place, chunk, strict=True))]
        if place in missing:
            continue
        encoded = encode(part.tobytes(order))
        refs["x/" + ".".join(map(str, place))] = ["values.bin", len(body), len(encoded)]
        body += encoded + b"\xee" * gap
    document = {
        "zarr_format": 2, "shape": values.shape, "chunks": chunk, "dtype": values.dtype.str, "order": order,
        "compressor": compressor, "filters": None, "fill_value": fill,
    }  # fmt: skip
    (folder / "values.bin").write_bytes(body)
    save(folder, {"x/.zarray": json.dumps(document), **refs})
    return refs


def save(folder, refs):
    """Write the document of a set."""
    (folder / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))


def opened(folder):
    """Return the array of the set."""
    return ts.open(f"file://{folder}/refs.json|reference:x/|zarr2:").result()


@pytest.mark.parametrize("codec", ENCODERS)
@pytest.mark.parametrize(
    ("dtype", "order", "gap"), [("<i4", "C", 0), (">f8", "C", 3), ("<u2", "F", 8), ("<i4", "F", 1)]
)
def test_small_chunks_are_the_numbers_that_were_written(tmp_path, codec, dtype, order, gap):
    """Whole reads, boxes that cut chunks, strides and lists agree with NumPy, with all chunks and without some."""
    values = np.random.default_rng(1).integers(0, 1000, (37, 50)).astype(dtype)
    for missing in ((), ((0, 0), (3, 4), (9, 12))):
        write_set(tmp_path, values, [4, 4], codec=codec, order=order, gap=gap, missing=missing)
        expected = values.copy()
        for row, column in missing:
            expected[row * 4 : row * 4 + 4, column * 4 : column * 4 + 4] = 7
        array = opened(tmp_path)
        for index in (np.s_[:], np.s_[4:32, 8:48], np.s_[3:31, 5:47], np.s_[::3, 10:], np.s_[:, [3, 40, 8]], np.s_[5]):
            np.testing.assert_array_equal(array[index].read().result(), expected[index])


@pytest.mark.parametrize("codec", ENCODERS)
def test_one_damaged_chunk_among_many_is_named(tmp_path, codec):
    """A chunk of another length than the others fails the read with its key, whatever decodes them."""
    values = np.arange(4000, dtype="<i4")
    refs = write_set(tmp_path, values, [10], codec=codec)
    for change in (-1, 1):
        url, offset, length = refs["x/123"]
        document = json.loads((tmp_path / "refs.json").read_text())["refs"]
        save(tmp_path, {**document, "x/123": [url, offset, length + change]})
        if codec == "raw" or change < 0:
            with pytest.raises(StoreError, match=r'"x/123" in reference set'):
                opened(tmp_path).read().result()


def test_chunks_that_are_all_too_long_are_refused(tmp_path):
    """Chunks of one wrong size at equal distances are damage too, not numbers."""
    refs = write_set(tmp_path, np.arange(400, dtype="<i4"), [10])
    document = json.loads((tmp_path / "refs.json").read_text())["refs"]
    longer = {key: [url, offset, 44] for key, (url, offset, _) in refs.items() if key != "x/39"}
    save(tmp_path, {**document, **longer})
    with pytest.raises(StoreError, match=r'"x/0" in reference set'):
        opened(tmp_path)[:390].read().result()
