"""`verify` says what it compared, finds every difference of metadata and bits, and raises no false alarm."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest

import fsstore as ts

EVERYTHING = (
    "missing",
    "extra",
    "shape",
    "dtype",
    "fill_value",
    "dimension_names",
    "attributes",
    "keys",
    "sizes",
    "values",
)
CHANGES = {
    "attributes": {"attributes": {"units": "K"}},
    "fill_value": {"fill_value": 7},
    "dimension_names": {"dimension_names": ["z"]},
    "dtype": {"data_type": "uint32"},
}


def group_of(folder):
    """Return a group with an attribute, a group and an array in it."""
    group = ts.open_group(folder, mode="w").result()
    group.attrs["title"] = "first"
    group.create_group("inner", attributes={"deep": 1}).result()
    array = group.create_array(
        "inner/a", shape=[4], dtype="i4", codec=None, attributes={"units": "degC"}, dimension_names=["x"]
    ).result()
    array[:] = np.array([-1, -2, -3, -4], "i4")
    return group


def changed(path, **members):
    """Change members of a document."""
    document = json.loads(path.read_text())
    document.update(members)
    path.write_text(json.dumps(document))


@pytest.fixture
def pair(tmp_path):
    """A group and its copy."""
    group_of(tmp_path / "a")
    ts.copy(str(tmp_path / "a"), tmp_path / "b", verify="values").result()
    return tmp_path / "b", tmp_path / "a"


def test_a_report_says_what_was_compared(pair):
    """Of two equal places everything is named, in the report, its text and its JSON."""
    found = ts.verify(*pair).result()
    assert found
    assert found.compared == EVERYTHING
    assert f"compared: {', '.join(EVERYTHING)}" in str(found)
    assert found.to_json()["compared"] == list(EVERYTHING)
    assert ts.verify(*pair, level="keys").result().compared == EVERYTHING[:-2]
    assert ts.verify(pair[0]).result().compared == ()


@pytest.mark.parametrize("level", ["keys", "values"])
@pytest.mark.parametrize("kind", CHANGES)
def test_changed_metadata_are_found(pair, kind, level):
    """A change of an attribute, the fill value, a name or the type is a finding, unless it is ignored by name."""
    ours, theirs = pair
    changed(ours / "inner/a/zarr.json", **CHANGES[kind])
    found = ts.verify(ours, theirs, level=level).result()
    assert {each.kind for each in found.findings} == (
        {kind, "differs"} if (kind, level) == ("dtype", "values") else {kind}
    )
    ignored = ts.verify(ours, theirs, level="keys", ignore=[kind]).result()
    assert ignored
    assert kind not in ignored.compared
    assert f"ignored: {kind}" in str(ignored)


@pytest.mark.parametrize("path", ["", "inner"])
def test_attributes_of_groups_are_compared(pair, path):
    """Groups are compared as arrays are, the root included."""
    ours, theirs = pair
    changed(ours / path / "zarr.json", attributes={"other": 2})
    found = ts.verify(ours, theirs).result()
    assert {(each.array, each.kind) for each in found.findings} == {(path, "attributes")}
    assert len(found.findings) == 2
    assert ts.verify(ours, theirs, ignore="attributes").result()


def test_members_are_compared(pair):
    """Arrays and groups that one side lacks are named, and may be ignored by name."""
    ours, theirs = pair
    ts.open_group(ours, mode="r+").result().create_group("more").result()
    ts.open_group(theirs, mode="r+").result().create_group("other").result()
    found = ts.verify(ours, theirs).result()
    assert (found.missing, found.extra) == (("other",), ("more",))
    assert not found
    assert ts.verify(ours, theirs, ignore=["missing", "extra"]).result()


def test_an_array_is_no_group(pair):
    """A group where the other has an array is a finding of its own."""
    found = ts.verify(pair[0] / "inner", pair[1] / "inner/a").result()
    assert [each.kind for each in found.findings] == ["node"]


BITS = [
    ("float32", np.array([0.0, 1], "f4"), np.array([-0.0, 1], "f4")),
    ("float64", np.array([0x7FF8000000000000], "u8").view("f8"), np.array([0x7FF8000000000001], "u8").view("f8")),
    ("complex64", np.array([1 + 0j], "c8"), np.array([complex(1, -0.0)], "c8")),
    ("bfloat16", np.array([0x7FC0], "u2"), np.array([0x7FC1], "u2")),
    ("float8_e5m2", np.array([0x7E], "u1"), np.array([0x7F], "u1")),
    ('[["a","<f4"],["b","<i2"]]', np.array([(0.0, 1)], "f4,i2"), np.array([(-0.0, 1)], "f4,i2")),
]


@pytest.mark.parametrize(("kind", "one", "other"), BITS, ids=[each[0] for each in BITS])
def test_bits_are_compared(tmp_path, kind, one, other):
    """The sign of zero and the payload of NaN count, and are shown; as numbers they are equal."""
    native = ts.dtype(kind).numpy_dtype
    for name, values in (("a", one), ("b", other)):
        spec = {"driver": "zarr", "kvstore": f"file://{tmp_path}/{name}/"}
        array = ts.open(spec, create=True, dtype=kind, shape=values.shape).result()
        array[:] = values.view(native)
    found = ts.verify(tmp_path / "a", tmp_path / "b").result()
    assert [each.kind for each in found.findings] == ["differs"]
    first, _, second = found.findings[0].what.partition("first at ")[2].partition(": ")[2].partition(", not ")
    assert first != second
    assert ts.verify(tmp_path / "a", tmp_path / "b", ignore=["bits"]).result()


SPECIAL = [
    ("float32", [1, np.nan, -0.0]), ("bfloat16", [1, np.nan]), ("float8_e4m3fn", [1, np.nan]), ("float8_e5m2", [1, np.nan]),
    ("datetime64[ns]", ["2020-01-01", "NaT"]), ("timedelta64[s]", [5, "NaT"]), ("complex128", [complex(np.nan, 1)]),
    ('[["a","<f4"],["b","<M8[s]"]]', [(np.nan, "NaT")]), ("U3", ["a", ""]), ("ustring", ["a", ""]), ("bool", [True]),
    ("int4", [-3, 7]),
]  # fmt: skip


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize(("kind", "values"), SPECIAL, ids=[each[0] for each in SPECIAL])
def test_good_copies_raise_no_alarm(tmp_path, kind, values, version):
    """What is not equal to itself is the same as itself: NaN, NaT, and structures that hold them."""
    native = ts.dtype(kind).numpy_dtype
    held = np.empty(len(values), native)
    for number, value in enumerate(values):
        held[number] = value
    driver = {2: "zarr", 3: "zarr3"}[version]
    spec = {"driver": driver, "kvstore": f"file://{tmp_path}/a/"}
    array = ts.open(spec, create=True, dtype=kind, shape=held.shape).result()
    array[:] = held
    report = ts.copy(array, tmp_path / "b", schema={"codec": None}, verify="values").result()
    assert report.arrays == ("",)


def test_a_damaged_source_is_a_line_of_the_report(tmp_path):
    """Where `against` cannot be read, the report says so, and goes on with the rest; a repair leaves it as it is."""
    group = ts.open_group(tmp_path / "a", mode="w").result()
    for name in ("good", "broken"):
        group.create_array(name, shape=[4], dtype="i4", chunks=[2]).result()[:] = 1
    ts.copy(str(tmp_path / "a"), tmp_path / "b").result()
    (tmp_path / "a/broken/c/1").write_bytes(b"x")
    for options in ({}, {"repair": True}):
        found = ts.verify(tmp_path / "b", tmp_path / "a", **options).result()
        assert [(each.array, each.kind, each.start) for each in found.findings] == [("broken", "against", (2,))]
    (tmp_path / "a/broken/zarr.json").write_text("{")
    found = ts.verify(tmp_path / "b", tmp_path / "a").result()
    assert [(each.array, each.kind) for each in found.findings] == [("broken", "against")]
    found = ts.verify(tmp_path / "a", tmp_path / "b").result()
    assert [(each.array, each.kind) for each in found.findings] == [("broken", "damaged")]
    found = ts.verify(tmp_path / "a/broken").result()
    assert [each.kind for each in found.findings] == ["damaged"]


@pytest.mark.parametrize(
    "wish", [{"attributes": {"a": 1}}, {"fill_value": 5}, {"dimension_names": ["p"]}, {"dtype": "i8"}]
)
def test_what_a_copy_was_asked_for_is_expected(tmp_path, wish):
    """The check of a copy knows its schema; without it, what is other than in the source is named."""
    array = group_of(tmp_path / "a")["inner/a"]
    ts.copy(array, tmp_path / "b", schema=wish, verify="values").result()
    (kind,) = wish
    assert ts.verify(tmp_path / "b", array, schema=wish).result()
    assert {each.kind for each in ts.verify(tmp_path / "b", array).result().findings} == {kind}


def test_the_command_line_reports(pair):
    """`fsstore verify` names differences and what was compared, and `--ignore` takes names."""
    ours, theirs = pair
    changed(ours / "inner/a/zarr.json", fill_value=7)
    command = [sys.executable, "-m", "fsstore", "verify", str(ours), "--against", str(theirs)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "inner/a: its fill_value is 7, and not 0" in found.stdout
    assert "compared: missing, extra, shape" in found.stdout
    (theirs / "zarr.json").write_text("{")
    damaged = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (damaged.returncode, damaged.stderr) == (1, "")
    assert "/: What it is compared with: " in damaged.stdout
    (theirs / "zarr.json").write_text((ours / "zarr.json").read_text())
    good = subprocess.run([*command, "--ignore", "fill_value"], capture_output=True, text=True, check=False)
    assert (good.returncode, good.stderr) == (0, "")


def test_an_unknown_difference_is_refused(pair):
    """Names that say nothing are errors."""
    with pytest.raises(ValueError, match="ignore names some of attributes"):
        ts.verify(*pair, ignore=["colour"])


def test_a_shard_that_is_not_stored_takes_no_memory(tmp_path):
    """A document of 400 bytes describes 2^24 sub-chunks; checking that they are absent takes no memory for each."""
    count = 2**24
    index = {"chunk_shape": [1], "codecs": ["bytes"], "index_codecs": ["bytes", "crc32c"]}
    metadata = {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [count]}},
        "codecs": [{"name": "sharding_indexed", "configuration": index}],
    }
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/", "metadata": metadata}
    ts.open(spec, create=True, dtype="uint8", shape=[count]).result()
    tracemalloc.start()
    try:
        found = ts.verify(tmp_path / "a").result()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (bool(found), found.absent) == (True, 1)
    assert peak < 2 * count  # of the elements themselves and a mask, and nothing for each sub-chunk
