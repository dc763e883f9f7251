"""Variables that do not grow, of any size: equal in all files, or the files are not combined as if they were."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import xarray as xr

import fsstore as ts
from fsstore import references
from fsstore.combine import source_file
from fsstore.combine.source_file import Fingerprint, fingerprint_of

ROUGH = np.random.default_rng(5).normal(size=(512, 512)).astype("f4")  # 1 MB
ENCODINGS = {
    "alike": {"zlib": True, "chunksizes": (100, 512)},
    "chunks": {"zlib": True, "chunksizes": (512, 70)},
    "plain": {"contiguous": True},
    "type": {"dtype": "f8"},
}


def _write(path, number, static, encoding=None, **attrs):
    data = xr.Dataset(
        {"t": (("time",), np.arange(2.0) + number), "height": (("y", "x"), static, attrs)},
        coords={"time": np.arange(2) + 2 * number},
    )
    data.to_netcdf(path, encoding={"height": encoding or {}}, engine="netcdf4")
    return str(path)


def _series(folder, values, **encodings):
    first = {"zlib": True, "chunksizes": (100, 512)}
    return [
        _write(folder / f"{number}.nc", number, value, encodings.get(f"of{number}", first))
        for number, value in enumerate(values)
    ]


@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
def test_equal_ones_are_taken_once(tmp_path, encoding):
    """A megabyte that is equal in all files is that of the first, however the third encodes it."""
    paths = _series(tmp_path, [ROUGH] * 3, of2=encoding)
    combined = references.combine(paths, "time").result()
    assert combined.report.arrays["height"].how == "first file"
    combined.save(tmp_path / "all.mosaic")
    with xr.open_dataset(str(tmp_path / "all.mosaic"), engine="fsstore") as found:
        np.testing.assert_array_equal(found["height"].values, ROUGH)
        assert found.sizes["time"] == 6


@pytest.mark.parametrize("encoding", ENCODINGS.values(), ids=ENCODINGS)
def test_one_other_number_is_told(tmp_path, encoding):
    """One number of 262144 that differs in the third file is an error that names it, or leaves the file out."""
    other = ROUGH.copy()
    other[300, 301] += 1e-3
    paths = _series(tmp_path, [ROUGH, ROUGH, other, ROUGH], of2=encoding)
    for wish in ("layer", "raise"):
        with pytest.raises(references.CombineError, match='"height".*other values') as caught:
            references.combine(paths, "time", on_difference=wish).result()
        (values,) = (each for each in caught.value.report.arrays["height"].differences if each.what == "values")
        assert values.groups == {"those of most files": [paths[0], paths[1], paths[3]], "others": [paths[2]]}
    report = references.combine(paths, "time", on_difference="skip", dry_run=True).result()
    assert list(report.left_out) == [paths[2]]
    kept = references.combine(paths, "time", variables={"height": None}, dry_run=True).result()
    assert kept.files == 4


def test_files_that_are_added_are_compared_too(tmp_path):
    """Appending compares with what was combined, from what the dataset keeps: the old files are not read."""
    paths = _series(tmp_path, [ROUGH, ROUGH, ROUGH + 1, ROUGH])
    references.combine(paths[:2], "time").result().save(tmp_path / "all.mosaic")
    for path in paths[:2]:
        (tmp_path / path).unlink()
    with pytest.raises(references.CombineError, match="other values"):
        references.append(tmp_path / "all.mosaic", paths[2]).result()
    assert references.append(tmp_path / "all.mosaic", paths[3]).result().files == 3


@pytest.mark.parametrize("size", [3, 512])
def test_equal_bytes_that_mean_something_else_are_told(tmp_path, size):
    """Stored numbers that are equal, but have another scale, are other values."""
    paths = [
        _write(tmp_path / f"{number}.nc", number, ROUGH[:size], scale_factor=scale)
        for number, scale in enumerate([0.1, 0.1, 0.2])
    ]
    with pytest.raises(references.CombineError, match="scale_factor"):
        references.combine(paths, "time").result()


def test_every_difference_is_an_error_where_that_is_wished(tmp_path):
    """With `raise` another codec of a variable that does not grow is an error, as that of one that grows."""
    paths = _series(tmp_path, [ROUGH] * 2, of1={"contiguous": True})
    with pytest.raises(references.CombineError, match="height"):
        references.combine(paths, "time", on_difference="raise").result()


@pytest.mark.parametrize("fill", [0.0, 7.0])
def test_chunks_that_are_not_there_are_fill_values(tmp_path, fill):
    """A chunk that was not written equals one that was written full of the fill value, and no other."""
    for number, value in enumerate([None, fill, fill + 1]):
        group = ts.open_group(tmp_path / f"{number}.zarr", mode="w", zarr_format=2).result()
        times = group.create_array("time", shape=[2], dtype="f8", dimension_names=["time"]).result()
        times[:] = np.arange(2.0) + 2 * number
        static = group.create_array(
            "s/0", shape=[300, 100], dtype="f8", chunks=(100, 100), fill_value=fill, dimension_names=["y", "x"]
        ).result()
        static[:100] = 3.0
        if value is not None:
            static[100:200] = np.where(np.arange(100) == 50, value, fill)
    paths = [str(tmp_path / f"{number}.zarr") for number in range(3)]
    combined = references.combine(paths[:2], "time").result()
    combined.save(tmp_path / "all.mosaic")
    read = ts.open(f"file://{tmp_path}/all.mosaic|mosaic:s/0").result()[...].read().result()
    assert (read[:100] == 3).all() and (read[100:] == fill).all()
    with pytest.raises(references.CombineError, match="other values"):
        references.combine(paths, "time").result()


def test_a_new_dimension_reads_no_data(tmp_path, monkeypatch):
    """Where files become steps of a dimension that none has, large variables grow and are not read through."""
    monkeypatch.setattr(source_file, "Fingerprint", None)
    for number in range(2):
        xr.Dataset({"height": (("y", "x"), ROUGH + number)}).to_netcdf(tmp_path / f"{number}.nc")
    report = references.combine(str(tmp_path / "?.nc"), "run", coords={"run": [1, 2]}, dry_run=True).result()
    assert report.arrays["height"].shape == (2, 512, 512)


def test_memory_does_not_grow_with_the_variable(tmp_path):
    """Comparing 32 MB takes the memory of some chunks."""
    large = np.arange(2048 * 4096, dtype="f4").reshape(2048, 4096)
    references.combine(_series(tmp_path, [ROUGH]), "time", dry_run=True).result()
    paths = _series(tmp_path, [large], of0={"chunksizes": (64, 4096)})
    del large
    tracemalloc.start()
    try:
        references.combine(paths, "time", dry_run=True).result()
        assert tracemalloc.get_traced_memory()[1] < 20 * 2**20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "dtype", ["?", "i1", "u8", "i8", "f2", "f4", "f8", "c8", "c16", "M8[s]", "S5", "U3", "O", "V12"]
)
def test_fingerprints(dtype):
    """A fingerprint depends on every value and its place, not on the parts, their order or the byte order."""
    rng = np.random.default_rng(3)
    if dtype in ("S5", "U3", "O"):
        values = rng.integers(0, 999, (6, 7)).astype("U3").astype(dtype)
    elif dtype in ("?", "V12"):
        values = rng.bytes(6 * 7 * 12)
        values = np.frombuffer(values, "V12").reshape(6, 7) if dtype == "V12" else rng.random((6, 7)) > 0.5
    else:
        values = rng.integers(0, 99, (6, 7)).astype(dtype)
    want = fingerprint_of(values).tolist()
    parts = Fingerprint(values.shape, values.dtype)
    for rows, columns in [(slice(4, 6), slice(0, 7)), (slice(0, 4), slice(3, 7)), (slice(0, 4), slice(0, 3))]:
        parts.add((rows.start, columns.start), values[rows, columns])
    assert parts.value().tolist() == want
    if dtype != "O":
        assert fingerprint_of(values.astype(values.dtype.newbyteorder(">"))).tolist() == want
    others = {tuple(want)}
    for at in range(values.size - 1):
        other = values.copy().reshape(-1)
        if other[at] != other[at + 1]:
            other[[at, at + 1]] = other[[at + 1, at]]
            others.add(tuple(fingerprint_of(other.reshape(values.shape)).tolist()))
    assert len(others) > 10


def test_numbers_that_are_equal_have_one_fingerprint():
    """NaN equals NaN, -0 equals 0, and 3 equals 3.0; large integers are told apart, and so are units of time."""
    ones = [np.array(each, np.float64) for each in ([0.0, np.nan, 3], [-0.0, -np.nan, 3])]
    assert len({tuple(fingerprint_of(each).tolist()) for each in ones}) == 1
    numbers = [np.array([1, 2, 3], kind) for kind in ("i1", "u2", "i8", "u8", "f2", "f4", ">f8", "c16")]
    assert len({tuple(fingerprint_of(each).tolist()) for each in numbers}) == 1
    large = [np.array([2**60 + each], "i8") for each in range(-2, 3)] + [np.array([-(2**60)], "i8")]
    large += [np.array([2**64 - 2**60], "u8"), np.array([2.0**60])]
    assert len({tuple(fingerprint_of(each).tolist()) for each in large}) == len(large)
    times = [np.array([5], f"M8[{unit}]") for unit in ("s", "ms")]
    assert len({tuple(fingerprint_of(each).tolist()) for each in times}) == 2
