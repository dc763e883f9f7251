"""Data that an older release wrote is read: `tests/data/upgrade` has what each wrote, and a place for the next one.

`python tests/unit/test_upgrade.py NAME`, run with the package of that release on the path, adds a file of that name.
"""

from __future__ import annotations

import base64
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import fsstore as ts

DATA = Path(__file__).parents[1] / "data" / "upgrade"
VALUES = np.arange(60, dtype="uint32").reshape(6, 10) % 7
SHARDS = {
    "name": "sharding_indexed",
    "configuration": {
        "chunk_shape": [2, 2],
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, {"name": "zstd"}, {"name": "crc32c"}],
    },
}
GRID = {"name": "regular", "configuration": {"chunk_shape": [4, 4]}}
VOLUME = {
    "encoding": "compressed_segmentation",
    "compressed_segmentation_block_size": [2, 2, 1],
    "chunk_size": [4, 4, 1],
}
SPECS = {
    "v2": {"driver": "zarr", "metadata": {"chunks": [4, 4], "compressor": {"id": "blosc", "cname": "lz4"}}},
    "v2 fortran": {"driver": "zarr", "metadata": {"chunks": [4, 4], "order": "F", "compressor": {"id": "zlib"}}},
    "v3": {"driver": "zarr3", "metadata": {"chunk_grid": GRID, "dimension_names": ["y", "x"], "attributes": {"a": 1}}},
    "v3 shards": {"driver": "zarr3", "metadata": {"chunk_grid": GRID, "codecs": [SHARDS]}},
    "n5": {"driver": "n5", "metadata": {"blockSize": [4, 4], "compression": {"type": "gzip"}}},
    "volume": {
        "driver": "neuroglancer_precomputed",
        "scale_metadata": VOLUME,
        "multiscale_metadata": {"num_channels": 1},
    },
}
"""Every format that is written, with a codec and chunks that the array does not fill."""


def write(folder: Path) -> None:
    """Write an array of each kind, and a database of two versions."""
    for name, spec in SPECS.items():
        values = VALUES[:, :, np.newaxis, np.newaxis] if name == "volume" else VALUES
        given = {**spec, "kvstore": f"file://{folder}/{name.replace(' ', '_')}/"}
        array = ts.open(given, create=True, dtype="uint32", shape=list(values.shape)).result()
        array[:5].write(values[:5]).result()
    database = ts.KvStore.open({"driver": "ocdbt", "base": f"file://{folder}/database/"}).result()
    for value in (b"first", b"second"):
        database.write("key", value).result()
        database.write(f"large {value.decode()}", value * 400).result()


def check(folder: Path) -> None:
    """Compare everything that is read with what was written, and write the rows that were left."""
    wanted = np.where(np.arange(6)[:, None] < 5, VALUES, 0)
    for name, spec in SPECS.items():
        given = {"driver": spec["driver"], "kvstore": f"file://{folder}/{name.replace(' ', '_')}/"}
        array = ts.open(given).result()
        assert np.array_equal(array.read().result().reshape(6, 10), wanted), name
        array[5:].write(VALUES[5:].reshape(array[5:].shape)).result()
        assert np.array_equal(ts.open(given).result().read().result().reshape(6, 10), VALUES), name
    base = f"file://{folder}/database/"
    newest = ts.KvStore.open({"driver": "ocdbt", "base": base}).result()
    assert newest.list().result() == [b"key", b"large first", b"large second"]
    assert (newest["key"], newest["large first"]) == (b"second", b"first" * 400)
    assert ts.KvStore.open({"driver": "ocdbt", "base": base, "version": 2}).result()["key"] == b"first"


@pytest.mark.parametrize("path", sorted(DATA.glob("*.json")), ids=lambda path: path.stem)
def test_what_an_older_release_wrote_is_read_and_goes_on(path, tmp_path):
    """Arrays of each format and a database have their values, take new ones, and older versions are still there."""
    for name, text in json.loads(path.read_text(encoding="ascii")).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(base64.b64decode(text))
    check(tmp_path)


def test_what_this_release_writes_passes_the_same(tmp_path):
    """The check is not one that only old data pass."""
    write(tmp_path)
    check(tmp_path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        write(Path(place))
        found = {
            str(path.relative_to(place)): base64.b64encode(path.read_bytes()).decode("ascii")
            for path in sorted(Path(place).rglob("*"))
            if path.is_file()
        }
    (DATA / f"{sys.argv[1]}.json").write_text(json.dumps(found, indent=0) + "\n", encoding="ascii")
