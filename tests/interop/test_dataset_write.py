"""Datasets of xarray written by us: modes, growing, regions, encodings, places, schedulers, and who reads them back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import dask
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

import fsstore as ts
import fsstore.interop.xarray  # the accessor
from fsstore.errors import AlreadyExistsError, FailedPreconditionError, StoreError

DAYS = pd.date_range("2000", periods=100)
pytestmark = pytest.mark.filterwarnings("ignore:Consolidated metadata:UserWarning")


def days(first, count, chunk=2):
    """Return some days of a dataset, in blocks of dask that fit to no chunks."""
    values = np.arange(first * 7, (first + count) * 7, dtype="f8").reshape(count, 7) * 1.5
    dataset = xr.Dataset(
        {"t": (("time", "x"), values, {"units": "K"}), "mean": ("time", values.mean(1))},
        coords={"time": DAYS[first : first + count], "x": np.arange(7) * 10.0, "height": 2.0},
        attrs={"title": "days"},
    )
    return dataset.chunk(time=chunk, x=3)


@pytest.fixture
def opened():
    """Return what opens a dataset in the context of the test."""

    def open_it(place, **options):
        return xr.open_dataset(place, engine="fsstore", **options).load()

    return open_it


PLACES = {"directory": "file://{}/a.zarr/", "zip": "file://{}/a.zip|zip:", "database": "file://{}/a.ocdbt/|ocdbt:"}


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize("place", PLACES)
def test_a_dataset_grows_by_the_day(tmp_path, opened, place, zarr_format):
    """The first call makes it and the next ones make it longer, in every kind of place."""
    url = PLACES[place].format(tmp_path)
    schema = {"zarr_format": zarr_format, "chunks": {"time": 3}}
    for first, count in ((0, 5), (5, 1), (6, 8)):
        ts.write_dataset(days(first, count), url, append="time", schema=schema)
    xr.testing.assert_identical(opened(url), days(0, 14).load())


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_others_read_what_is_written(tmp_path, zarr_format):
    """The zarr engine of xarray, zarr-python and TensorStore find the same values."""
    tensorstore = pytest.importorskip("tensorstore")
    schema = {"zarr_format": zarr_format, "chunks": {"time": 4, "x": 5}}
    ts.write_dataset(days(0, 6), tmp_path / "a.zarr", append="time", schema=schema)
    ts.write_dataset(days(6, 3), tmp_path / "a.zarr", append="time")
    expected = days(0, 9).load()
    xr.testing.assert_identical(xr.open_zarr(tmp_path / "a.zarr").load(), expected)
    assert np.array_equal(zarr.open_group(tmp_path / "a.zarr", mode="r")["t"][:], expected.t)
    driver = "zarr" if zarr_format == 2 else "zarr3"
    spec = {"driver": driver, "kvstore": {"driver": "file", "path": f"{tmp_path}/a.zarr/t/"}}
    assert np.array_equal(tensorstore.open(spec).result().read().result(), expected.t)


def test_the_accessor_writes_datasets_arrays_and_trees(tmp_path, opened):
    """`fsstore.write` stands on all three; an array is found again, and a tree has its groups."""
    days(0, 4).fsstore.write(tmp_path / "set")
    days(0, 4).t.fsstore.write(tmp_path / "array")
    tree = xr.DataTree.from_dict({"/": xr.Dataset({"year": 2000}), "/deep/er": days(2, 5)})
    tree.fsstore.write(tmp_path / "tree")
    xr.testing.assert_identical(opened(tmp_path / "set"), days(0, 4).load())
    found = opened(tmp_path / "array").t
    assert found.identical(days(0, 4).t.load().drop_attrs(deep=False).assign_attrs(units="K"))
    read = xr.open_datatree(tmp_path / "tree", engine="fsstore").load()
    xr.testing.assert_identical(read["deep/er"].to_dataset(inherit=False), days(2, 5).load())
    assert list(read.groups) == ["/", "/deep", "/deep/er"]


def test_what_exists_is_kept_replaced_or_refused(tmp_path, opened):
    """Nothing is written over unless that is asked for; a replaced dataset leaves nothing of the old one."""
    place = tmp_path / "a.zarr"
    ts.write_dataset(days(0, 4), place)
    with pytest.raises(AlreadyExistsError, match=r'mode="w" replaces it'):
        ts.write_dataset(days(1, 4), place)
    assert ts.write_dataset(days(1, 4), place, if_exists="skip").skipped
    xr.testing.assert_identical(opened(place), days(0, 4).load())
    ts.write_dataset(days(1, 3)[["mean"]], place, if_exists="replace")
    xr.testing.assert_identical(opened(place), days(1, 3)[["mean"]].load())
    assert not (place / "t").exists()


def test_variables_are_added(tmp_path, opened):
    """Mode `a` adds variables, and writes over those that exist."""
    ts.write_dataset(days(0, 4), tmp_path / "a.zarr")
    more = days(0, 4)[["mean"]] + 1
    ts.write_dataset(more.assign(new=more["mean"] * 2), tmp_path / "a.zarr", mode="a")
    found = opened(tmp_path / "a.zarr")
    assert np.array_equal(found["mean"], days(0, 4)["mean"] + 1)
    assert np.array_equal(found["new"], found["mean"] * 2)
    assert np.array_equal(found["t"], days(0, 4).t)


def grown(place):
    """Make a dataset of six days."""
    ts.write_dataset(days(0, 6), place, schema={"chunks": {"time": 4}})


def test_values_that_are_stored_already_are_refused_left_out_or_replaced(tmp_path, opened):
    """An append of some days twice is no dataset with these days twice."""
    place = tmp_path / "a.zarr"
    grown(place)
    again = days(4, 4) * -1
    with pytest.raises(FailedPreconditionError, match="2 of 4 values of 'time' are stored already"):
        ts.write_dataset(again, place, append="time")
    ts.write_dataset(again, place, append="time", overlap="skip")
    found = opened(place)
    assert np.array_equal(found.t[:6], days(0, 6).t)
    assert np.array_equal(found.t[6:], days(6, 2).t * -1)
    ts.write_dataset(again, place, append="time", overlap="replace")
    assert np.array_equal(opened(place).t[4:], again.t)
    assert ts.write_dataset(again, place, append="time", overlap="skip").skipped


def test_gaps_and_other_orders_are_refused_unless_chosen(tmp_path, opened):
    """What follows in the step of the stored days is appended; with a gap or before them only when asked."""
    place = tmp_path / "a.zarr"
    grown(place)
    with pytest.raises(FailedPreconditionError, match=r"1 days apart and end with 2000-01-06, and 2000-01-08"):
        ts.write_dataset(days(7, 2), place, append="time")
    ts.write_dataset(days(7, 2), place, append="time", order="increasing")
    with pytest.raises(FailedPreconditionError, match="do not follow the stored ones in their order"):
        ts.write_dataset(days(6, 1), place, append="time", order="increasing")
    ts.write_dataset(days(6, 1), place, append="time", order="any")
    assert list(opened(place).time.values) == list(DAYS[[0, 1, 2, 3, 4, 5, 7, 8, 6]].values)


def test_what_would_not_fit_is_refused_before_anything_is_written(tmp_path, opened):
    """Other coordinates, fewer or more variables, and values that the stored units cannot say."""
    place = tmp_path / "a.zarr"
    grown(place)
    with pytest.raises(FailedPreconditionError, match="The coordinate 'x' is not the stored one"):
        ts.write_dataset(days(6, 1).assign_coords(x=np.arange(7.0)), place, append="time")
    with pytest.raises(FailedPreconditionError, match="'mean' is missing"):
        ts.write_dataset(days(6, 1)[["t"]], place, append="time")
    with pytest.raises(FailedPreconditionError, match="'new' is not stored"):
        ts.write_dataset(days(6, 1).assign(new=days(6, 1).t), place, append="time")
    with pytest.raises(StoreError, match="no dimension 'day'"):
        ts.write_dataset(days(6, 1), place, append="day")
    celsius = days(6, 1)
    celsius.t.attrs["units"] = "degC"
    with pytest.raises(FailedPreconditionError, match='units of its array, which is "K" and not "degC"'):
        ts.write_dataset(celsius, place, append="time")
    hours = days(6, 1).assign_coords(time=DAYS[6:7] + pd.Timedelta("6h"))
    with (
        pytest.warns(UserWarning, match="can't be serialized faithfully"),
        pytest.raises(FailedPreconditionError, match="units of its array"),
    ):
        ts.write_dataset(hours, place, append="time", order="increasing")
    xr.testing.assert_identical(opened(place), days(0, 6).load())


def test_packing_and_calendar_of_the_target_are_used(tmp_path, opened):
    """Integers with a scale, and times in a calendar and unit of their own, grow in these."""
    times = xr.date_range("2000-02-28", periods=6, calendar="noleap", use_cftime=True)
    data = xr.Dataset({"t": ("time", np.arange(6) / 4)}, coords={"time": times})
    encoding = {
        "t": {"dtype": "i2", "scale_factor": 0.25, "add_offset": 1.0, "_FillValue": -9},
        "time": {"units": "hours since 1999-01-01", "dtype": "i4"},
    }
    ts.write_dataset(data[{"time": slice(0, 3)}], tmp_path / "a.zarr", encoding=encoding)
    ts.write_dataset(data[{"time": slice(3, 6)}].chunk(time=1), tmp_path / "a.zarr", append="time")
    raw = opened(tmp_path / "a.zarr", decode_cf=False)
    assert raw.t.dtype == np.int16
    assert list(raw.t.values) == [-4, -3, -2, -1, 0, 1]
    assert (raw.time.units, raw.time.calendar) == ("hours since 1999-01-01", "noleap")
    xr.testing.assert_equal(opened(tmp_path / "a.zarr"), data)


def test_a_value_that_the_type_cannot_hold_is_refused(tmp_path):
    """Dask finds out late; then nothing is visible of the write."""
    data = xr.Dataset({"n": ("time", np.arange(4, dtype="u1"))})
    ts.write_dataset(data, tmp_path / "a.zarr")
    large = xr.Dataset({"n": ("time", np.array([5, 300]))}).chunk(time=1)
    with pytest.raises(FailedPreconditionError, match="The value 300 of 'n' cannot be stored as uint8"):
        ts.write_dataset(large, tmp_path / "a.zarr", append="time")
    assert xr.open_dataset(tmp_path / "a.zarr", engine="fsstore").sizes == {"time": 4}


@pytest.mark.parametrize("region", ["auto", {"time": slice(3, 8)}, {"time": "auto"}])
def test_a_region_is_written_where_its_coordinates_are(tmp_path, opened, region):
    """Values elsewhere stay; other jobs hold no claim meanwhile."""
    ts.write_dataset(days(0, 12), tmp_path / "a.zarr", schema={"chunks": {"time": 5, "x": 4}})
    ts.write_dataset(days(3, 5) * -1, tmp_path / "a.zarr", region=region)
    found, before = opened(tmp_path / "a.zarr"), days(0, 12).load()
    assert np.array_equal(found.t[3:8], before.t[3:8] * -1)
    assert np.array_equal(found.t[:3], before.t[:3])
    assert np.array_equal(found.t[8:], before.t[8:])
    assert found.time.equals(before.time)


def test_a_region_at_the_wrong_place_is_refused(tmp_path):
    """A slice whose coordinates are others, a value that is not stored, and too few places."""
    place = tmp_path / "a.zarr"
    grown(place)
    with pytest.raises(FailedPreconditionError, match="The coordinate 'time' is not the stored one"):
        ts.write_dataset(days(1, 2), place, region={"time": slice(2, 4)})
    with pytest.raises(FailedPreconditionError, match="2000-01-07 of 'time' is not stored"):
        ts.write_dataset(days(5, 2), place, region="auto")
    with pytest.raises(FailedPreconditionError, match="has not the 2 places"):
        ts.write_dataset(days(1, 2), place, region={"time": slice(2, 5)})


def test_a_template_takes_regions(tmp_path, opened):
    """`compute=False` writes metadata and coordinates; jobs fill it region by region."""
    template = days(0, 9)
    ts.write_dataset(template, tmp_path / "a.zarr", compute=False, schema={"chunks": {"time": 4}})
    assert np.isnan(opened(tmp_path / "a.zarr").t).all()
    for first, count in ((0, 3), (6, 3), (3, 3)):
        ts.write_dataset(days(first, count), tmp_path / "a.zarr", region="auto")
    xr.testing.assert_identical(opened(tmp_path / "a.zarr"), template.load())


@pytest.mark.parametrize("scheduler", ["threads", "processes", "synchronous"])
@pytest.mark.parametrize("memory", ["512MB", 2000])
def test_blocks_share_chunks_and_nothing_is_lost(tmp_path, opened, scheduler, memory):
    """Whether they are joined along the chunks, or the memory is too small and conditions guard each."""
    rng = np.random.default_rng(1)
    values = rng.random((40, 50))
    data = xr.Dataset({"v": (("y", "x"), values)}).chunk(y=7, x=11)
    encoding = {"v": {"chunks": (10, 16), "shards": (20, 32)}}
    with dask.config.set(scheduler=scheduler, num_workers=2):
        ts.write_dataset(data, tmp_path / "a.zarr", encoding=encoding, max_memory=memory)
    assert np.array_equal(opened(tmp_path / "a.zarr").v, values)


def test_blocks_of_other_sizes_choose_a_chunk(tmp_path, opened):
    """Blocks of dask that differ in size are written without being asked for chunks."""
    data = xr.Dataset({"v": ("x", np.arange(20))}).chunk(x=(3, 8, 2, 7))
    ts.write_dataset(data, tmp_path / "a.zarr")
    assert opened(tmp_path / "a.zarr").v.encoding["chunks"] == (8,)
    assert np.array_equal(opened(tmp_path / "a.zarr").v, np.arange(20))


def test_memory_of_this_process_is_not_written_from_another(opened):
    """Other processes would write to a memory of their own: that is an error and not a loss."""
    with (
        dask.config.set(scheduler="processes"),
        pytest.raises(FailedPreconditionError, match="in the memory of this one"),
    ):
        ts.write_dataset(days(0, 2), "memory://a/")


def test_a_failing_block_leaves_the_old_dataset(tmp_path, opened):
    """An error of a block is the caller's; the target is as it was, and the same call works once that is mended."""
    place = tmp_path / "a.zarr"
    grown(place)

    def fail(block):
        raise ArithmeticError("no value")

    wrong = days(6, 4)
    wrong["t"] = wrong.t.copy(data=wrong.t.data.map_blocks(fail, dtype="f8", meta=np.empty((0, 0))))
    with pytest.raises(ArithmeticError, match="no value"):
        ts.write_dataset(wrong, place, append="time")
    xr.testing.assert_identical(opened(place), days(0, 6).load())
    ts.write_dataset(days(6, 4), place, append="time")
    xr.testing.assert_identical(opened(place), days(0, 10).load())


@pytest.mark.parametrize("mode", ["w", "a"])
@pytest.mark.parametrize("engine", ["fsstore", "zarr"])
@pytest.mark.parametrize("chunks", [None, {}])
def test_a_dataset_is_not_written_over_what_it_is_read_from(tmp_path, opened, mode, engine, chunks):
    """Replacing would delete what is still to be read, and a kill would leave some of it changed twice."""
    place = tmp_path / "a.zarr"
    grown(place)
    with xr.open_dataset(place, engine=engine, chunks=chunks) as lazy:
        changed = lazy if chunks is None else lazy.assign(t=lazy.t + 1)
        with pytest.raises(FailedPreconditionError, match="are read from"):
            ts.write_dataset(changed, place, mode=mode)
        xr.testing.assert_identical(opened(place), days(0, 6).load())
        ts.write_dataset(changed, tmp_path / "b.zarr")
        ts.write_dataset(changed.load(), place, mode=mode)


def untold(dataset, place, monkeypatch, **options):
    """Write a dataset in a process that ends when the metadata are written, and does not tell so."""

    async def end(*_arguments):
        raise InterruptedError

    with monkeypatch.context() as patched:
        patched.setattr("fsstore.interop.dataset_commit.forget", end)
        with pytest.raises(InterruptedError):
            ts.write_dataset(dataset, place, **options)


def test_an_append_whose_end_was_not_told_is_there_once(tmp_path, monkeypatch):
    """The same call learns that its values are there: by its coordinate, or by its id where there is none."""
    place = tmp_path / "a.zarr"
    grown(place)
    untold(days(6, 2), place, monkeypatch, append="time")
    assert ts.write_dataset(days(6, 2), place, append="time").skipped
    plain = xr.Dataset({"v": ("time", np.arange(3))})
    ts.write_dataset(plain, tmp_path / "b.zarr")
    for _ in range(2):
        untold(plain, tmp_path / "b.zarr", monkeypatch, append="time", append_id="one")
        assert ts.write_dataset(plain, tmp_path / "b.zarr", append="time", append_id="one").skipped
    for found, size in ((place, 8), (tmp_path / "b.zarr", 9)):
        assert xr.open_dataset(found, engine="fsstore").sizes["time"] == size
        assert not (found / ".fsstore-job").exists()


def test_what_was_taken_away_since_is_appended_again(tmp_path, monkeypatch):
    """A note of an append does not count once the dataset was made shorter."""
    plain = xr.Dataset({"v": ("time", np.arange(3))})
    ts.write_dataset(plain, tmp_path / "a.zarr")
    untold(plain, tmp_path / "a.zarr", monkeypatch, append="time", append_id="one")
    ts.write_dataset(plain[{"time": [0]}], tmp_path / "a.zarr", append="time", append_id="two")
    ts.open_group(tmp_path / "a.zarr", mode="r+").result().resize(time=3).result()
    assert not ts.write_dataset(plain, tmp_path / "a.zarr", append="time", append_id="one").skipped
    assert xr.open_dataset(tmp_path / "a.zarr", engine="fsstore").v.data.tolist() == [0, 1, 2] * 2


def test_progress_is_told(tmp_path):
    """The last word is all bytes of all variables."""
    told = []
    data = days(0, 20)
    ts.write_dataset(data, tmp_path / "a.zarr", progress=told.append)
    assert told[-1].ended
    assert told[-1].nbytes == told[-1].total_bytes == data.nbytes
    assert told[-1].tasks == told[-1].total


def test_wrong_words_are_refused(tmp_path):
    """Modes and options that exclude each other, and names that do not exist."""
    for options in (
        {"mode": "x"}, {"mode": "w", "if_exists": "raise"}, {"append": "time", "region": "auto"},
        {"mode": "w", "append": "time"}, {"overlap": "often"}, {"order": "none"},
    ):  # fmt: skip
        with pytest.raises(ValueError, match=r"mode|append|overlap|order"):
            ts.write_dataset(days(0, 2), tmp_path / "a.zarr", **options)
    with pytest.raises(TypeError, match="Expected a Dataset"):
        ts.write_dataset([1], tmp_path / "a.zarr")
    with pytest.raises(TypeError, match="no 'chunk'"):
        ts.write_dataset(days(0, 2), tmp_path / "a.zarr", schema={"chunk": {}})
    with pytest.raises(StoreError, match="'nothing', which is no variable"):
        ts.write_dataset(days(0, 2), tmp_path / "a.zarr", encoding={"nothing": {}})


def test_a_shard_that_is_replaced_meanwhile_is_read_whole(tmp_path):
    """The draft of a write reads stored values of one shard, not the index of one and parts of the next."""
    from fsstore.interop.dataset_draft import stored_variables
    from fsstore.interop.zarr import ZarrStore

    dataset = xr.Dataset({"t": ("x", np.zeros(4000, "i4"))})
    ts.write_dataset(dataset, tmp_path, encoding={"t": {"shards": (4000,), "chunks": (40,)}})
    array = ts.open(tmp_path / "t").result()
    dice, ended = np.random.default_rng(0), Event()

    def rewrite():
        while not ended.is_set():  # one version has equal numbers, of as many bits as it likes: chunks differ in size
            values = np.where(dice.random(4000) < dice.random(), dice.integers(2**30), -1)
            array.write(values.astype("i4")).result()

    with ThreadPoolExecutor(1) as writers:
        writing = writers.submit(rewrite)
        try:
            for _ in range(60):
                variable = stored_variables(ZarrStore(tmp_path), "")["t"]
                values = np.asarray(variable[3500:])
                assert len(np.unique(values[values >= 0])) <= 1
        finally:
            ended.set()
        writing.result()


def test_a_bucket_takes_datasets(moto_bucket, s3_credentials):
    """Appends and regions on S3, whose conditions guard chunks that are shared."""
    endpoint, bucket = moto_bucket
    options = {"endpoint_url": endpoint}
    url = f"s3://{bucket}/grows.zarr"
    for first in (0, 5):
        ts.write_dataset(days(first, 5), url, append="time", schema={"chunks": {"time": 3}}, storage_options=options)
    ts.write_dataset(days(4, 3) * 2, url, region="auto", storage_options=options)
    found = xr.open_dataset(url, engine="fsstore", storage_options=options).load()
    expected = days(0, 10).load()
    expected.t[4:7] *= 2
    expected["mean"][4:7] *= 2
    xr.testing.assert_identical(found, expected)
