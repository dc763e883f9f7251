"""GRIB files are what cfgrib makes of them: datasets, coordinates, attributes and values."""

from __future__ import annotations

import warnings

import cfgrib
import eccodes
import numpy as np
import pytest
import xarray as xr

import fsstore as ts
from fsstore import references
from fsstore.context.context import Context
from fsstore.errors import DataLossError, FailedPreconditionError, StoreError
from fsstore.kvstore.spec_parse import kv_spec, open_kv
from fsstore.runtime import execution

GRID = {
    "Ni": 12,
    "Nj": 7,
    "iDirectionIncrementInDegrees": 30,
    "jDirectionIncrementInDegrees": 30,
    "latitudeOfFirstGridPointInDegrees": 90,
    "latitudeOfLastGridPointInDegrees": -90,
    "longitudeOfFirstGridPointInDegrees": 0,
    "longitudeOfLastGridPointInDegrees": 330,
}
SURFACE, PRESSURE = "regular_ll_sfc_grib2", "regular_ll_pl_grib2"


def message(sample=SURFACE, seed=0, **keys):
    """Return a message of random values."""
    handle = eccodes.codes_grib_new_from_samples(sample)
    try:
        given = {**(GRID if sample.startswith("regular_ll") else {}), **keys}
        packing = given.pop("packingType", None)
        for key, value in given.items():
            eccodes.codes_set(handle, key, value)
        if not sample.startswith("sh"):
            size = given["Ni"] * given["Nj"] if "Ni" in given else eccodes.codes_get_size(handle, "values")
            values = np.round(np.random.default_rng(seed).normal(280, 5, size), 2)
            values[::5] = given.get("missingValue", values[0])
            eccodes.codes_set_values(handle, values)
        if packing:
            eccodes.codes_set(handle, "packingType", packing)
        return eccodes.codes_get_message(handle)
    finally:
        eccodes.codes_release(handle)


def cube(names=("t", "u"), levels=(1000, 850, 500), steps=(0, 6)):
    """Return messages of parameters on levels, at steps."""
    return [
        message(PRESSURE, number, shortName=name, level=level, stepRange=step)
        for number, (name, level, step) in enumerate(
            (name, level, step) for name in names for level in levels for step in steps
        )
    ]


PACKINGS = ("grid_simple", "grid_complex", "grid_complex_spatial_differencing", "grid_ccsds", "grid_jpeg")
FILES = {
    "one": lambda: [message(shortName="2t")],
    "levels": cube,
    "incomplete": lambda: cube()[:-1],
    "shuffled": lambda: cube()[::-1],
    "mixed": lambda: [*cube(("t",)), *(message(shortName=name) for name in ("2t", "10u", "sp"))],
    "times": lambda: [message(shortName="2t", dataDate=20200101 + day, stepRange=step) for day in range(3) for step in (0, 3)],
    "members": lambda: [message(shortName="2t", productDefinitionTemplateNumber=1, number=each) for each in (1, 2, 5)],
    "missing": lambda: [message(shortName="2t", bitmapPresent=1, missingValue=9999)],
    "accumulated": lambda: [message(shortName="tp", stepType="accum", stepRange=each) for each in ("0-6", "0-12")],
    "reduced": lambda: [message("reduced_gg_sfc_grib2", shortName="2t")],
    "gaussian": lambda: [message("regular_gg_sfc_grib2", shortName="2t")],
    "polar": lambda: [message("polar_stereographic_sfc_grib2", shortName="2t")],
    "rotated": lambda: [message("rotated_ll_sfc_grib2", shortName="2t")],
    "spectral": lambda: [message("sh_pl_grib2", level=level) for level in (500, 850)],
    "edition 1": lambda: [message("regular_ll_pl_grib1", level, shortName="t", level=level) for level in (1000, 500)],
    "junk": lambda: [*cube(("t",)), b"\n\n between GRIB \n", message(PRESSURE, shortName="u", level=1000), bytes(40)],
    **{packing: lambda packing=packing: [message(shortName="2t", packingType=packing)] for packing in PACKINGS},
}  # fmt: skip


def write(folder, name):
    """Write a file, and return its path."""
    path = folder / "a.grib"
    path.write_bytes(b"".join(FILES[name]()))
    return path


def by_cfgrib(path):
    """Return the datasets that cfgrib finds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [each.load() for each in cfgrib.open_datasets(path, backend_kwargs={"indexpath": ""})]


def hierarchy(path):
    """Return what the scanner shows."""
    opened = execution.call(open_kv(kv_spec(f"file://{path}|grib:"), Context()))
    return execution.call(opened.driver.hierarchy())


def plain(attributes):
    """Return attributes as they compare: arrays as lists, without what says when a dataset was opened."""
    return {name: np.asarray(value).tolist() for name, value in attributes.items() if name != "history"}


@pytest.mark.parametrize("name", FILES)
def test_datasets_are_those_of_cfgrib(name, tmp_path):
    """Every dataset of cfgrib is one of ours: variables, dimensions, coordinates, values and attributes."""
    path = write(tmp_path, name)
    wanted = by_cfgrib(path)
    assert wanted
    groups = sorted({entry.path.rpartition("/")[0] for entry in ts.list_arrays(f"file://{path}")})
    found = [xr.open_dataset(f"file://{path}", engine="fsstore", group=group or None).load() for group in groups]
    for want in wanted:
        got = next(each for each in found if set(each.data_vars) >= set(want.data_vars))[list(want.data_vars)]
        xr.testing.assert_equal(got, want)
        assert plain(got.attrs) == plain(want.attrs)
        for each in want.variables:
            assert plain(got[each].attrs) == plain(want[each].attrs), each


def test_a_far_file_with_an_index_beside_it(tmp_path):
    """Heads by an index and heads by the chain describe the same, and an index of another file does no harm."""
    from fsstore.scan.grib_message import idx_offsets

    messages, at, lines = cube(), 0, []
    for number, each in enumerate(messages, 1):
        lines.append(f"{number}:{at}:d=2020010100:TMP:level:anl:")
        at += len(each)
    assert idx_offsets("\n".join(lines).encode(), at)[:2] == [0, len(messages[0])]
    assert idx_offsets(b"1:0:d=\n2:999999:d=\n", 100) == []


def test_fields_of_one_message(tmp_path):
    """A message of several fields gives all of them, each decoded from a message made of its own sections."""
    first, second = (message(PRESSURE, 1, level=1000, shortName="t"), message(PRESSURE, 2, level=500, shortName="t"))

    def sections(data):
        out, at = {}, 16
        while data[at : at + 4] != b"7777":
            size = int.from_bytes(data[at : at + 4], "big")
            out[data[at + 4]] = data[at : at + size]
            at += size
        return out

    parts = sections(second)
    body = first[16:-4] + b"".join(parts[number] for number in (4, 5, 6, 7)) + b"7777"
    (tmp_path / "a.grib").write_bytes(first[:8] + (16 + len(body)).to_bytes(8, "big") + body)
    got = xr.open_dataset(f"file://{tmp_path}/a.grib", engine="fsstore")["t"]
    for level, data in ((1000, first), (500, second)):
        handle = eccodes.codes_new_from_message(data)
        want = eccodes.codes_get_values(handle).astype("f4").reshape(7, 12)
        eccodes.codes_release(handle)
        np.testing.assert_array_equal(got.sel(isobaricInhPa=level), want)


def test_rows_that_are_scanned_back_and_forth(tmp_path):
    """Where every other row is scanned the other way, values stand beside the longitudes that they belong to."""
    data = message(shortName="2t", alternativeRowScanning=1)
    (tmp_path / "a.grib").write_bytes(data)
    got = xr.open_dataset(f"file://{tmp_path}/a.grib", engine="fsstore")["t2m"]
    handle = eccodes.codes_new_from_message(data)
    raw = eccodes.codes_get_values(handle).astype("f4").reshape(7, 12)
    eccodes.codes_release(handle)
    np.testing.assert_array_equal(got[0], raw[0])
    np.testing.assert_array_equal(got[1], raw[1, ::-1])


def test_a_saved_scan_reads_the_same(tmp_path):
    """References of a GRIB file are saved and read without the scanner: ranges of messages."""
    path = write(tmp_path, "levels")
    references.open(f"file://{path}").save(f"file://{tmp_path}/a.json")
    want = xr.open_dataset(f"file://{path}", engine="fsstore").load()
    got = xr.open_dataset(f"file://{tmp_path}/a.json|reference:", engine="fsstore").load()
    xr.testing.assert_equal(got, want)


def test_damage_costs_one_message(tmp_path):
    """A message that is cut off is noted with its offset, and the others are shown; a file of nothing is refused."""
    messages = cube(("t",))
    path = tmp_path / "a.grib"
    path.write_bytes(b"".join(messages)[:-30])
    found = hierarchy(path)
    assert list(found.grids)[-1] == "t"
    at = sum(map(len, messages[:-1]))
    assert "claims" in found.notes[f"message at offset {at}"]
    path.write_bytes(b"GRIB\0\0\0\2" + bytes(100))
    with pytest.raises(StoreError, match=r"Error opening GRIB file .*a\.grib"):
        ts.list_arrays(f"file://{path}|grib:")


def test_a_damaged_chunk_is_an_error(tmp_path):
    """A message without its end is an error that names the chunk, not missing values."""
    data = bytearray(message(shortName="2t"))
    data[-4:] = b"xxxx"
    (tmp_path / "a.grib").write_bytes(data)
    array = ts.open(f"file://{tmp_path}/a.grib|grib:t2m").result()
    with pytest.raises((DataLossError, StoreError), match=r"t2m/0\.0.*a\.grib"):
        array.read().result()


def test_without_eccodes_the_extra_is_named(tmp_path, monkeypatch):
    """A missing library is said with what installs it."""
    import sys

    path = write(tmp_path, "one")
    monkeypatch.setitem(sys.modules, "eccodes", None)
    with pytest.raises(StoreError, match=r"pip install 'fsstore\[grib\]'"):
        ts.list_arrays(f"file://{path}")


def listed(path):
    """Return the arrays of a file that is opened without saying what it is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [each.path for each in ts.list_arrays(f"file://{path}")]


def test_a_bulletin_begins_with_its_heading(tmp_path):
    """A file whose first message stands behind the heading of a bulletin is recognised, and has its values."""
    path = tmp_path / "a"
    path.write_bytes(b"\x01\r\r\n123\r\r\nHHXE85 ECMG 131200\r\r\n0123456789" + message(shortName="2t"))
    assert "t2m" in listed(path)
    assert np.isfinite(ts.open_group(f"file://{path}").result()["t2m"].read().result()).all()


@pytest.mark.parametrize(("filler", "known"), [(b"Content-Type: image/grib\r\n", True), (b"\0" * 80, False)])
def test_an_answer_of_a_web_service_is_recognised(filler, known, tmp_path):
    """A heading of letters before the first message does not hide it; other bytes are another format's."""
    path = tmp_path / "a"
    path.write_bytes(filler * 20 + message(shortName="2t"))
    if known:
        assert "t2m" in listed(path)
    else:
        with pytest.raises(FailedPreconditionError, match="Failed to detect format"):
            listed(path)


def test_points_that_nobody_can_compute_are_named(tmp_path):
    """The values of a plane whose points ecCodes does not know are shown; its latitudes are left out by name."""
    path = tmp_path / "a.grib2"
    path.write_bytes(message("polar_stereographic_sfc_grib2", shortName="2t", shapeOfTheEarth=5))
    with pytest.warns(UserWarning, match="itude. is left out: ecCodes cannot compute the points"):
        assert "latitude" not in [each.path for each in ts.list_arrays(f"file://{path}")]
    with pytest.warns(UserWarning, match="itude"):
        found = xr.open_dataset(path, engine="fsstore")
    assert found["t2m"].size == 496
    assert np.isfinite(found["t2m"].values).all()


def test_axes_that_contradict_each_other_leave_the_values(tmp_path):
    """A grid that runs north by its flags and south by its ends has its values, without latitudes and longitudes."""
    path = tmp_path / "a.grib2"
    path.write_bytes(message(shortName="2t", jScansPositively=1))
    with pytest.warns(UserWarning, match="itude. is left out: ecCodes cannot compute the points of a grid regular_ll"):
        assert "latitude" not in [each.path for each in ts.list_arrays(f"file://{path}")]
    array = ts.open(f"file://{path}|grib:t2m").result()
    assert array.domain.labels == ("y", "x")
    assert np.isfinite(array.read().result()).all()


def test_steps_in_an_unknown_unit_leave_the_values(tmp_path):
    """A message whose step unit nobody knows has its values, and no step."""
    made = bytearray(message(shortName="2t"))
    at = next(start for number, start, _ in sections_of(made) if number == 4)
    made[at + 17] = 77
    path = tmp_path / "a.grib2"
    path.write_bytes(made)
    found = listed(path)
    assert "t2m" in found
    assert "step" not in found


def sections_of(data):
    """Yield the number, the start and the end of each section of a message of edition 2."""
    at = 16
    while at + 5 < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        yield data[at + 4], at, at + size
        at += size


def test_unknown_parameters_are_told_apart(tmp_path):
    """Fields of parameters that ecCodes has no name for stand in arrays of their own, by the numbers of the parameter."""
    path = tmp_path / "a.grib2"
    unknown = [message(seed=seed, discipline=0, parameterCategory=19, parameterNumber=200 + seed) for seed in (1, 2)]
    path.write_bytes(b"".join(unknown))
    names = [name for name in listed(path) if name.startswith("paramId")]
    assert names == ["paramId_0_0_19_201", "paramId_0_0_19_202"]


def test_a_repeated_message_does_not_hide_its_array(tmp_path):
    """Of messages that say the same the first is read; the others are named below it."""
    path = tmp_path / "a.grib2"
    path.write_bytes(message(shortName="2t", seed=1) + message(shortName="2t", seed=2))
    group = ts.open_group(f"file://{path}").result()
    assert group["t2m"].shape == (7, 12)
    assert "repeated is left out: of messages that say the same, the first count: 1 do not" in group.tree()
