"""What is parsed of HDF5 files is what h5py says of them: every object, attribute, type and link."""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from h5py import h5d, h5p, h5s, h5t

sys.path.insert(0, str(Path(__file__).parent))
from hdf5_walks import assert_same

sys.path.pop(0)

LIBRARIES = [("earliest", "v108"), ("v108", "v110"), ("v110", "v110"), ("v200", "v200"), ("latest", "latest")]


def attributes(owner, *, many):
    """Give an object attributes of every type, and `many` more."""
    found = owner.attrs
    for kind in ("i1", "u2", ">i4", "<u8", "f2", ">f4", "f8", "bool"):
        found[f"one {kind}"] = np.array(1, kind)
        found[f"list {kind}"] = np.arange(6).reshape(2, 3).astype(kind)
    found["text"], found["accents"], found["nothing"] = "text", "hé😀", ""
    found["texts"] = ["a", "bcd", "", "é"]
    found["octets"], found["list of octets"] = np.bytes_(b"abc"), np.array([b"ab", b"c"], "S4")
    found["empty"], found["empty text"] = h5py.Empty("f4"), h5py.Empty(h5py.string_dtype())
    found["no numbers"], found["no texts"] = np.zeros((0, 3)), np.zeros(0, h5py.string_dtype())
    found["complex"], found["record"] = 1 + 2j, np.array((1, 2.0), [("a", "i4"), ("b", "f8")])
    found["opaque"] = np.void(b"abc")
    found.create("enumeration", 1, dtype=h5py.enum_dtype({"A": 0, "B": 1}, "i2"))
    found["reference"] = owner.ref
    lists = np.empty(2, object)
    lists[:] = [np.arange(3, dtype="i4"), np.zeros(0, "i4")]
    found.create("lists", lists, dtype=h5py.vlen_dtype("i4"))
    found["nan"], found["infinite"] = np.nan, -np.inf
    for number in range(many):
        found[f"a{number}"] = number


def deep(file):
    """Write groups in groups, many links, and objects under several names."""
    group = file
    for number in range(30):
        group = group.create_group(f"g{number}")
    for number in range(300):
        group.create_group(f"many {number} é")
    file["again"] = group
    file["soft"], file["away"] = h5py.SoftLink("/g0/g1"), h5py.ExternalLink("other.h5", "/x/y")
    file["v"] = np.arange(3)
    group["v again"] = file["v"]


def named(file):
    """Write named types, and what is of them."""
    file["type"], file["record type"] = np.dtype(">i4"), np.dtype([("a", "i4"), ("b", "S3")])
    for name, values in {"type": [1, 2], "record type": [(1, b"abc"), (2, b"d")]}.items():
        found = file.create_dataset(f"of {name}", (2,), file[name])
        found[...] = np.array(values, file[name].dtype)
        found.attrs.create("own", np.array(values, file[name].dtype), dtype=file[name])
    file["type"].attrs["note"] = "of a type"


def shapes(file):
    """Write shapes and limits of many kinds."""
    file["scalar"], file["none"], file["no rows"] = 1.5, h5py.Empty("i4"), np.zeros((0, 4))
    for name, most in {"a": (None, 5), "b": (7, None), "c": (None, None), "d": (9, 9)}.items():
        file.create_dataset(name, (3, 5), "i2", maxshape=most, chunks=(2, 2), fillvalue=7)
    for name, kind, value in (("e", ">f4", np.nan), ("f", "S3", b"ab"), ("g", "u8", 2**64 - 1)):
        file.create_dataset(name, (3,), kind, fillvalue=value)
    file.create_dataset("h", (3,), h5py.string_dtype(), fillvalue="é")
    file.create_dataset("i", (3,), [("a", "i4"), ("b", "f8")], fillvalue=np.array((1, 2), "i4,f8"))
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_fill_time(h5d.FILL_TIME_NEVER)
    h5d.create(file.id, b"j", h5t.STD_I32LE, h5s.create_simple((2,)), plist)


def scales(file):
    """Write dimension scales."""
    file["x"], file["y"], file["z"] = np.arange(3), np.arange(4), np.arange(4.0)
    for name in "xyz":
        file[name].make_scale(name)
    file["v"] = np.zeros((3, 4, 2))
    file["v"].dims[0].attach_scale(file["x"])
    file["v"].dims[1].attach_scale(file["y"])
    file["v"].dims[1].attach_scale(file["z"])
    for number in range(40):
        found = file.create_dataset(f"w{number}", (3,), "f4")
        found.dims[0].attach_scale(file["x"])


def all_attributes(many):
    """Return what writes attributes for a group and a dataset."""

    def fill(file):
        attributes(file, many=many)
        attributes(file.create_dataset("v", (2,), "f4"), many=many)
        attributes(file.create_group("g", track_order=True), many=many)

    return fill


def large(file):
    """Write attributes that do not fit into blocks of a heap, and so many that it has blocks in blocks."""
    group = file.create_group("g", track_order=True)
    for number, size in enumerate((10, 3000, 5000, 70_000, 200_000)):
        if size < 60_000 or file.libver[0] not in ("earliest", "v18"):
            group.attrs[f"huge{number}"] = np.arange(size, dtype="u1")
    for number in range(400):
        group.attrs[f"a{number}"] = np.full(100 + number, number, "u2")


FILES = {
    "few attributes": (all_attributes(0), {}),
    "many attributes": (all_attributes(60), {}),
    "attributes in order": (all_attributes(60), {"track_order": True}),
    "deep": (deep, {}),
    "deep in order": (deep, {"track_order": True}),
    "named": (named, {}),
    "shapes": (shapes, {}),
    "scales": (scales, {}),
    "large": (large, {}),
    "user block": (all_attributes(20), {"userblock_size": 2048}),
    "paged": (all_attributes(20), {"fs_strategy": "page", "fs_page_size": 4096}),
}


@pytest.mark.parametrize("libver", LIBRARIES, ids="-".join)
@pytest.mark.parametrize("name", FILES)
def test_structures_are_those_of_h5py(name, libver, tmp_path):
    """Groups, attributes, links, types and scales of files of every version."""
    fill, options = FILES[name]
    if "fs_strategy" in options and libver[1] == "v108":
        pytest.skip("older libraries have no pages")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver, **options) as file:
        fill(file)
    found = assert_same(path)
    assert found.groups
