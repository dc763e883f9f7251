"""What can be combined besides files that are scanned: zarr hierarchies and reference sets; and thousands of files."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from fsstore import references

sys.path.insert(0, str(Path(__file__).parent))

from many_files import WIDE, expected, series, wide_files, write

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
    np.testing.assert_array_equal(_values(tmp_path / "all.mosaic"), (np.arange(4.0) + np.arange(3)[:, None]).ravel())


def test_a_hierarchy_beside_an_object_of_its_name_is_combined(tmp_path, moto_url, monkeypatch):
    """Buckets may hold an object where a directory would be; a mere object that is no file of data is told so."""
    import s3fs

    for name, value in {"AWS_ENDPOINT_URL": moto_url, "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}.items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{tmp_path.name.replace('_', '-')}"
    files = s3fs.S3FileSystem(endpoint_url=moto_url, key="a", secret="b", skip_instance_cache=True)
    files.mkdir(bucket)
    data = xr.Dataset({"t": ("time", np.arange(4.0))}, {"time": np.arange(4)})
    data.to_zarr(tmp_path / "0.zarr", zarr_format=2, consolidated=False)
    for path in (tmp_path / "0.zarr").rglob("*"):
        if path.is_file():
            files.pipe_file(f"{bucket}/{path.relative_to(tmp_path)}", path.read_bytes())
    files.pipe_file(f"{bucket}/0.zarr", b"a mark of some tool")
    files.pipe_file(f"{bucket}/note.txt", b"hello")
    with pytest.warns(UserWarning, match=r"left out.*note\.txt"):
        combined = references.combine([f"s3://{bucket}/0.zarr", f"s3://{bucket}/note.txt"], "time").result()
    assert combined.report.dims == {"time": 4}
    assert "begins like no format" in combined.report.left_out[f"s3://{bucket}/note.txt"]


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


_WIDE = """
import json, pathlib, resource, sys, time
from fsstore import references
from fsstore.combine import verbs
from fsstore.combine import many

def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

spent = {}
def timed(module, name):
    plain = getattr(module, name)
    def work(*arguments):
        began = time.process_time()
        try:
            return plain(*arguments)
        finally:
            spent[name] = spent.get(name, 0) + time.process_time() - began
    setattr(module, name, work)

folder = sys.argv[1]
paths = sorted(map(str, pathlib.Path(folder).glob("*.nc")))
references.combine(paths[:20], "time").result()  # what is imported and known after it is no part of the growth
timed(many, "timed_scan")
timed(verbs, "assemble")
before, began = resident(), time.process_time()
combined = references.combine(paths, "time").result()
whole, grown = time.process_time() - began, resident() - before
count = sum(len(each.number) for each in combined.batch.variables.values())
combined.save(folder + "/all.mosaic")
print(json.dumps({
    "whole": whole, **spent, "grown": grown, "count": count, "columns": combined.batch.nbytes,
    "saved": pathlib.Path(folder, "all.mosaic").stat().st_size, "references": combined.is_references,
}))
"""


def _wide_measured(folder, count):
    paths = wide_files(folder, count)
    done = subprocess.run(
        [sys.executable, "-c", _WIDE, str(folder)], capture_output=True, text=True, check=True, timeout=1200
    )
    found = json.loads(done.stdout)
    assert found["references"]
    assert found["count"] == count * (len(WIDE) + 1)
    with xr.open_dataset(str(folder / "all.mosaic"), engine="fsstore", decode_times=False) as data:
        np.testing.assert_array_equal(data["time"].values, np.arange(4.0 * count))
        for name in ("v00", "v07", "v19"):
            want = (np.arange(count) + int(name[1:]) / 100).astype("f4")
            np.testing.assert_array_equal(data[name][:, 2].values, np.repeat(want, 4))
    for path in paths:
        path.unlink()
    return found


def test_files_of_twenty_variables(tmp_path):
    """Files of twenty variables take time in their scan, and memory in proportion to their columns."""
    found = _wide_measured(tmp_path, 200)
    assert found["columns"] / found["count"] < 56
    assert found["assemble"] < 0.1 * found["whole"]
    assert found["timed_scan"] > 0.85 * found["whole"]


@pytest.mark.long
def test_ten_thousand_files_of_twenty_variables(tmp_path):
    """So do ten thousand, which take less than 300 bytes of memory a reference, of which columns are 52."""
    found = _wide_measured(tmp_path, 10_000)
    print(found)
    assert found["columns"] / found["count"] < 56
    assert found["grown"] / found["count"] < 300
    assert found["saved"] / found["count"] < 8
    assert found["timed_scan"] > 0.95 * found["whole"]


def test_a_small_file_far_away_takes_one_request(tmp_path, object_server):
    """What tells the format is what the scan begins with: the first 64 KiB, or all that there is."""
    files = series(3)
    for number, of in enumerate(files):
        write(tmp_path / f"{number}.nc", of)
        object_server.put(f"d/{number}.nc", (tmp_path / f"{number}.nc").read_bytes())
    urls = [f"{object_server.url}/d/{number}.nc" for number in range(3)]
    combined = references.combine(urls, "time").result()
    assert combined.report.dims == {"time": 12}
    assert object_server.count() == 3
    assert object_server.count("HEAD") == 0
