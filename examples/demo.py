"""The shortest tour: an array made and opened again by its URL, and one inside a NetCDF file opened by URL alone."""

from __future__ import annotations

import shlex
import sys
import tempfile
from pathlib import Path

import numpy as np

import fsstore as ts

DATA = Path(__file__).parent / "data"


def local_array() -> None:
    """Write a zarr v3 array into a temporary directory and read a slice of it back."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"{Path(folder).as_uri()}/waves.zarr/|zarr3:"
        rows, columns = np.ogrid[:600, :800]
        waves = (np.sin(rows / 40) * np.cos(columns / 60)).astype(np.float32)

        chunks = ts.ChunkLayout(chunk_shape=[200, 200])
        created = ts.open(url, create=True, dtype="float32", shape=waves.shape, chunk_layout=chunks).result()
        created.write(waves).result()

        array = ts.open(url).result()
        part = array[100:400:100, 50:450:100].read().result()
        print(f"{array.url}\n{array.domain} {array.dtype}\n{part}")
        assert np.array_equal(part, waves[100:400:100, 50:450:100])


def referenced_array() -> None:
    """Read a variable of a NetCDF file through the kerchunk references that lie beside it."""
    url = f"{(DATA / 'ocean.json').as_uri()}|reference:sst/|zarr2:"
    temperature = ts.open(url).result()
    july = temperature[6, ::4, ::9].read().result()
    print(f"{temperature.url}\n{temperature.domain} {temperature.dtype}\n{july}")


if __name__ == "__main__":
    local_array()
    print()
    referenced_array()
    print(f"\nlook at it: {shlex.join([sys.executable, '-m', 'fsstore', 'view', str(DATA / 'ocean.json')])}")
