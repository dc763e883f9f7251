"""Writing a view of an array to the array itself gives what NumPy gives with a copy on the right side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import fsstore as ts
from fsstore.errors import FailedPreconditionError

COUNT = 4_000_000
HALF = COUNT // 2
SOURCES = {
    "reversed": lambda array: array[::-1],
    "cast": lambda array: array.astype("int32").astype("int64")[::-1],
    "opened again": lambda array: ts.open(array.spec()).result()[::-1],
    "through a link": lambda array: linked(array)[::-1],
    "in a transaction": lambda array: array.with_transaction(ts.Transaction())[::-1],
    "stacked": lambda array: ts.concat([array[HALF:], array[:HALF].translate_to[COUNT]], axis=0).translate_to[0],
}


def linked(array):
    """Open an array by another name of its directory."""
    place = Path(array.kvstore.path)
    link = place.with_name("link")
    if not link.exists():
        link.symlink_to(place, target_is_directory=True)
    return ts.open(f"file://{link}/").result()


def made(folder, count):
    """Return an array of many chunks that holds its indices."""
    layout = ts.ChunkLayout(chunk_shape=[100_000])
    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/a/", "metadata": {"codecs": ["bytes"]}}
    array = ts.open(spec, create=True, dtype="int64", shape=[count], chunk_layout=layout).result()
    array[:] = np.arange(count)
    return array


@pytest.mark.parametrize("view", SOURCES.values(), ids=SOURCES)
def test_a_view_is_read_before_it_is_written_over(tmp_path, view):
    """Whatever way leads back to the array, no element that was just written is read."""
    array = made(tmp_path, COUNT)
    source = view(array)
    expected = source.read().result()
    array.write(source).result()
    assert np.array_equal(array.read().result(), expected)


def test_a_view_too_large_to_be_read_before_is_refused(tmp_path):
    """Nothing is written then, and the error says what to do."""
    array = made(tmp_path, 9_000_000)
    with pytest.raises(FailedPreconditionError, match="array that it is written to"):
        array.write(array[::-1]).result()
    assert np.array_equal(array[:200_000].read().result(), np.arange(200_000))
