"""What can be combined besides files that are scanned: zarr hierarchies and reference sets; and thousands of files."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from fsstore import references

sys.path.insert(0, str(Path(__file__).parent))

from many_files import expected, series, write

sys.path.pop(0)


def _values(place, name="t"):
    with xr.open_dataset(str(place), engine="fsstore") as found:
        return found[name].values


@pytest.mark.parametrize("version", [2, 3])
def test_zarr_hierarchies_are_combined(tmp_path, version):
    """Hierarchies of either version become references to their chunks, layered where codecs differ."""
    for number in range(3):
        data = xr.Dataset({"t": ("time", np.arange(4.0) + number)}, {"time": np.arange(4) + 4 * number})
        encoding = {"t": {"compressors": None}} if number == 1 else {}
        data.to_zarr(tmp_path / f"{number}.zarr", zarr_format=version, consolidated=False, encoding=encoding)
    places = [str(tmp_path / f"{number}.zarr") for number in range(3)]
    combined = references.combine(places, "time").result()
    assert not combined.is_references
    combined.save(tmp_path / "all.mosaic")
    np.testing.assert_array_equal(
        _values(tmp_path / "all.mosaic"), (np.arange(4.0) + np.arange(3)[:, None]).ravel()
    )


def test_reference_sets_are_combined(tmp_path):
    """Sets that other tools made are files like others."""
    files = series(2)
    paths = [tmp_path / f"{number}.nc" for number in range(2)]
    for path, of in zip(paths, files, strict=True):
        write(path, of)
        references.scan(path).save(path.with_suffix(".json"))
    combined = references.combine([path.with_suffix(".json") for path in paths], "time").result()
    combined.save(tmp_path / "all.mosaic")
    np.testing.assert_array_equal(_values(tmp_path / "all.mosaic", "v"), expected(paths, files))


@pytest.mark.long
def test_ten_thousand_files(tmp_path):
    """Ten thousand files take memory in proportion to their columns, and hold the values of each."""
    import h5py

    count = 10_000
    for number in range(count):
        with h5py.File(tmp_path / f"{number:05}.h5", "w") as file:
            time = file.create_dataset("time", data=np.array([float(number)]))
            time.make_scale("time")
            file.create_dataset("t", data=np.array([number * 2.0])).dims[0].attach_scale(time)
    tracemalloc.start()
    combined = references.combine(str(tmp_path / "*.h5"), "time").result()
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert combined.batch.nbytes / count < 2 * 80
    assert kept / count < 4000
    combined.save(tmp_path / "all.mosaic")
    np.testing.assert_array_equal(_values(tmp_path / "all.mosaic"), np.arange(count) * 2.0)


def test_a_small_file_far_away_takes_two_requests(tmp_path, object_server):
    """What tells the format is what the scan begins with: the first 64 KiB, or, in a second request, all that there is."""
    files = series(3)
    for number, of in enumerate(files):
        write(tmp_path / f"{number}.nc", of)
        object_server.put(f"d/{number}.nc", (tmp_path / f"{number}.nc").read_bytes())
    urls = [f"{object_server.url}/d/{number}.nc" for number in range(3)]
    combined = references.combine(urls, "time").result()
    assert combined.report.dims == {"time": 12}
    assert object_server.count() == 6
    assert object_server.count("HEAD") == 0
