"""Smaller chunks of sets whose chunks are not compressed: the same values, by ranges of the same bytes."""

from __future__ import annotations

import base64
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fsstore as ts
from fsstore import references

KINDS = st.sampled_from(["<i2", ">f4", "<f8", "|u1"])


@st.composite
def cuts(draw):
    """Give a shape, chunks, an order, and parts of these chunks that are ranges."""
    ndim = draw(st.integers(1, 3))
    parts = [draw(st.integers(1, 3)) for _ in range(ndim)]
    steps = [draw(st.integers(1, 3)) for _ in range(ndim)]
    order = draw(st.sampled_from("CF"))
    axes = list(range(ndim)) if order == "C" else list(range(ndim))[::-1]
    last = draw(st.integers(0, ndim - 1))
    chunks = [part * step for part, step in zip(parts, steps)]
    new = list(chunks)
    for at, axis in enumerate(axes):
        if at < last:
            new[axis] = 1
        elif at == last:
            new[axis] = steps[axis]
    shape = [draw(st.integers(1, 2 * chunk + 1)) for chunk in chunks]
    return shape, chunks, new, order


def _set(folder, shape, chunks, order, kind, version, held, separator="."):
    """Write an array as raw chunks in one file, and return its set, some chunks inline, some absent."""
    values = np.arange(math.prod(shape)).reshape(shape).astype(kind)
    counts = [-(-size // step) for size, step in zip(shape, chunks)]
    refs, data = {}, b"header"
    want = np.full(shape, 7, kind)
    for number, place in enumerate(np.ndindex(*counts)):
        padded = np.zeros(chunks, kind)
        sides = tuple(slice(at * step, (at + 1) * step) for at, step in zip(place, chunks))
        padded[tuple(slice(0, size) for size in values[sides].shape)] = values[sides]
        key = separator.join(map(str, place)) if version == 2 else "/".join(["c", *map(str, place)])
        how = held[number % len(held)]
        raw = padded.tobytes(order)
        if how == "absent":
            continue
        want[sides] = values[sides]
        if how == "inline":
            refs[f"g/v/{key}"] = "base64:" + base64.b64encode(raw).decode()
        else:
            refs[f"g/v/{key}"] = [(folder / "data").as_uri(), len(data), len(raw)]
            data += raw
    (folder / "data").write_bytes(data)
    if version == 2:
        refs["g/v/.zarray"] = json.dumps({
            "zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": kind, "fill_value": 7, "order": order,
            "filters": None, "compressor": None, "dimension_separator": separator,
        })  # fmt: skip
        refs["g/v/.zattrs"] = "{}"
    else:
        refs["g/v/zarr.json"] = json.dumps({
            "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": np.dtype(kind).name,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunks}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}}, "fill_value": 7,
            "codecs": [{"name": "bytes", "configuration": {"endian": "big" if kind[0] == ">" else "little"}}],
        })  # fmt: skip
    refs["other/.zarray"] = json.dumps({
        "zarr_format": 2, "shape": [1], "chunks": [1], "dtype": "|u1", "fill_value": 0, "order": "C",
        "filters": None, "compressor": None,
    })  # fmt: skip
    refs["other/0"] = "x"
    return references.open(refs), want


@given(cuts(), KINDS, st.sampled_from([2, 3]), st.lists(st.sampled_from(["file", "inline", "absent"]), min_size=1, max_size=4), st.sampled_from("./"))  # fmt: skip
@settings(max_examples=60, deadline=None)
def test_values_stay(tmp_path_factory, cut, kind, version, held, separator):
    """Whatever the shape, the chunks, the order and the version, values are those that were there."""
    shape, chunks, new, order = cut
    if version == 3 and order == "F":
        order, new = "C", chunks[:1] + list(chunks[1:])
    folder = tmp_path_factory.mktemp("raw")
    refs, want = _set(folder, shape, chunks, order, kind, version, held, separator)
    made = refs.rechunk("g/v", new)
    driver = "zarr" if version == 2 else "zarr3"
    array = ts.open({"driver": driver, "kvstore": references.store(made).spec() / "g/v/"}).result()
    assert array.chunk_layout.read_chunk.shape == tuple(new)
    np.testing.assert_array_equal(array.read().result(), want)
    assert made["other/0"] == b"x"
    again = made.rechunk("g/v", new)
    assert dict(again) == dict(made)


REFUSED = {
    "compressed": ({"compressor": {"id": "zlib", "level": 1}}, [1, 6], "encoded by zlib"),
    "filtered": ({"filters": [{"id": "shuffle", "elementsize": 2}]}, [1, 6], "encoded by shuffle"),
    "objects": ({"dtype": "|O"}, [1, 6], r"type is \|O"),
    "no part": ({}, [3, 6], "no parts"),
    "larger": ({}, [8, 6], "no parts"),
    "nothing": ({}, [0, 6], "no parts"),
    "no range": ({}, [2, 3], "no ranges"),
    "dimensions": ({}, [1], "2 dimensions"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_cut_is_refused(tmp_path, name):
    """Encoded chunks, and parts that are no ranges, are errors that say why."""
    changes, chunks, why = REFUSED[name]
    refs, _ = _set(tmp_path, [8, 6], [4, 6], "C", "<i2", 2, ["file"])
    plain = json.loads(refs["g/v/.zarray"])
    changed = references.open({"g/v/.zarray": json.dumps({**plain, **changes})})
    with pytest.raises(ValueError, match=why):
        refs.merge(changed).rechunk("g/v", chunks)


def test_a_chunk_of_another_length_is_refused(tmp_path):
    """Bytes that are not those of a raw chunk are not cut."""
    refs, _ = _set(tmp_path, [8, 6], [4, 6], "C", "<i2", 2, ["file"])
    short = references.open({"g/v/1.0": [(tmp_path / "data").as_uri(), 54, 40]})
    with pytest.raises(ValueError, match=r'"g/v/1.0" has 40 bytes; .* has 48'):
        refs.merge(short).rechunk("g/v", [1, 6])
    with pytest.raises(ValueError, match="no array"):
        refs.rechunk("g/w", [1, 6])


def test_arrays_are_left_out_and_renamed(tmp_path):
    """`without` and `rename` change keys; where they would change nothing they are errors."""
    refs, _ = _set(tmp_path, [8, 6], [4, 6], "C", "<i2", 2, ["file"])
    assert {key.split("/")[0] for key in refs.without("g")} == {"other"}
    assert "v/0.0" in refs.rename("g/v/", "v/")
    with pytest.raises(ValueError, match="nothing at"):
        refs.without("g/w")
    with pytest.raises(ValueError, match="Nothing to rename"):
        refs.rename("h/", "i/")
