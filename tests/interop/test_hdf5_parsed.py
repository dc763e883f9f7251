"""What is parsed of HDF5 files is what h5py says of them: every object, attribute, type and link."""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
from h5py import h5d, h5f, h5p, h5s, h5t
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import fsstore as ts
from fsstore.scan.hdf5.parsed import numpy_of
from fsstore.scan.hdf5.structure import datatype_of

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
    for number in range(600):
        group.attrs[f"a{number}"] = f"{number} " + "x" * (1000 + number)


def elsewhere(file):
    """Write datasets whose values lie in others and in raw files, and types that NumPy has not."""
    for name, kind in {"whole": h5t.COMPLEX_IEEE_F32BE, "time": h5t.UNIX_D32LE}.items():
        if name == "time" or file.libver == ("latest", "latest"):
            h5d.create(file.id, name.encode(), kind, h5s.create_simple((2,)))
    for bits, bias in ((7, 127), (3, 7)):
        kind = h5t.IEEE_F32BE.copy()
        kind.set_fields(15, bits, 15 - bits, 0, bits)
        kind.set_size(2)
        kind.set_ebias(bias)
        h5d.create(file.id, f"float {bits}".encode(), kind, h5s.create_simple((2,)))
    file.create_dataset("dates", (2,), h5py.opaque_dtype("M8[s]"))
    file.attrs["long"] = np.longdouble(1.5)
    raw = [(f"raw {number}.bin", 3 * number, size) for number, size in enumerate((8, h5f.UNLIMITED))]
    file.create_dataset("raw", (4,), "i4", external=raw)
    if file.libver[1] == "v108":
        return
    parts = {
        "stacked": (lambda n: (n, np.s_[:]), (3, 4, 5)),
        "interleaved": (lambda n: (np.s_[n::3], np.s_[::2, ::2]), (6, 3)),
        "blocks": (lambda n: (np.s_[:, 6 * n + 1 : 6 * n + 6], np.s_[:]), (4, 18)),
    }
    for name, (place, shape) in parts.items():
        layout = h5py.VirtualLayout(shape, "f4")
        for number in range(3):
            key, part = place(number)
            layout[key] = h5py.VirtualSource(f"s{number // 2}.h5", "a/name", shape=(4, 5))[part]
        file.create_virtual_dataset(name, layout, fillvalue=3)
    layout = h5py.VirtualLayout((1, 4), "i4", maxshape=(None, 4))
    layout[: h5s.UNLIMITED] = h5py.VirtualSource(".", "v", shape=(1, 4), maxshape=(None, 4))[: h5s.UNLIMITED]
    file.create_virtual_dataset("endless", layout)
    file.create_virtual_dataset("of nothing", h5py.VirtualLayout((2,), "i4"))


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
    "elsewhere": (elsewhere, {}),
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


def test_netcdf_files_are_parsed(tmp_path):
    """A file as netCDF-C writes it: dimensions, characters, enumerations, records, lists, groups, coordinates of two axes."""
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w") as file:
        for name, size in {"time": None, "lat": 4, "lon": 5, "name_len": 3}.items():
            file.createDimension(name, size)
        file.setncatts({"title": "a title", "numbers": np.arange(3), "empty": ""})
        file.createVariable("time", "f8", ("time",))[:] = np.arange(3)
        file.createVariable("lat", "f4", ("lat", "lon"))[:] = 1
        for number in range(12):
            found = file.createVariable(
                f"v{number}", "i2", ("time", "lat", "lon"), zlib=True, shuffle=True, fill_value=-number
            )
            found.setncatts({f"a{each}": each / 3 for each in range(number)})
            found[:] = number
        file.createVariable("name", "S1", ("lat", "name_len"))[:] = b"a"
        file.createVariable("text", str, ("lat",))[:] = np.array(["a", "b", "é", ""], object)
        colour = file.createEnumType("u1", "colour", {"red": 0, "blue": 1})
        file.createVariable("paint", colour, ("lat",))[:] = 1
        record = file.createCompoundType(np.dtype([("x", "f4"), ("y", "i2")]), "pair")
        file.createVariable("pairs", record, ("lat",))
        file.createVariable("lists", file.createVLType("i4", "list"), ("lat",))
        group = file.createGroup("inner")
        group.createDimension("own", 2)
        group.createVariable("w", "f8", ("own", "lat"))[:] = 2
    found = assert_same(path)
    assert len(found.datasets) > 15


KINDS = st.sampled_from(["i1", "<u2", ">i4", "<i8", "f2", ">f4", "<f8", "S4", "bool", "c8", "M8[s]", "V3"])
NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="/\0.", exclude_categories=["Cs"]), min_size=1, max_size=8
)
NUMBERS = st.sampled_from(["i1", "<u2", ">i4", "<i8", "f2", ">f4", "<f8", "S4", "bool", "c8"])
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)
DATASETS = st.fixed_dictionaries(
    {
        "shape": st.lists(st.integers(0, 5), max_size=3).map(tuple),
        "dtype": KINDS
        | st.lists(KINDS, min_size=1, max_size=3).map(lambda each: [(f"f{at}", one) for at, one in enumerate(each)]),
        "chunked": st.booleans(),
        "endless": st.booleans(),
        "compression": st.sampled_from([None, "gzip", "lzf"]),
        "attributes": st.dictionaries(NAMES, st.tuples(st.none() | NUMBERS, TEXTS), max_size=14),
    }
)


def fill_at_random(owner, children, depth=0):
    """Write groups and datasets into a group."""
    for name, child in children.items():
        if "shape" not in child:
            fill_at_random(owner.create_group(name, track_order=bool(len(name) % 2)), child, depth + 1)
            continue
        shape, kind = child["shape"], np.dtype(child["dtype"])
        options = {}
        if child["chunked"] and shape and all(shape) and not kind.hasobject:
            options = {"chunks": tuple(max(1, each - 1) for each in shape), "compression": child["compression"]}
            options["maxshape"] = (None, *shape[1:]) if child["endless"] else None
        stored = h5py.opaque_dtype(kind) if kind.kind == "M" else kind
        if kind.names and any(kind[each].kind == "M" for each in kind.names):
            continue
        found = owner.create_dataset(name, shape, stored, **options)
        for key, (kind, text) in child["attributes"].items():
            numbers = np.arange(2 + len(key))
            found.attrs[key] = text if kind is None else numbers.astype("S" if kind == "S4" else kind)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(NAMES, DATASETS | st.dictionaries(NAMES, DATASETS, max_size=3), max_size=12),
    st.sampled_from(LIBRARIES),
    st.booleans(),
)
def test_files_of_any_structure(tmp_path, children, libver, track_order):
    """Files of any names, types, shapes and attributes are parsed as h5py describes them."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=libver, track_order=track_order) as file:
        fill_at_random(file, children)
    assert_same(path)


def old_layout(path, name, pack):
    """Rewrite the message of the layout of a dataset in the form of the first libraries, which is as long."""
    with h5py.File(path) as file:
        found = file[name].id
        address = h5py.h5g.get_objinfo(found).objno[0]
    data = bytearray(path.read_bytes())
    at = address + 16
    while data[at : at + 2] != b"\x08\0":
        at += 8 + struct.unpack_from("<H", data, at + 2)[0]
    size = struct.unpack_from("<H", data, at + 2)[0]
    body = pack(bytes(data[at + 8 : at + 8 + size]))
    assert len(body) <= size
    data[at + 8 : at + 8 + size] = body.ljust(size, b"\0")
    path.write_bytes(data)


@pytest.mark.parametrize("version", [1, 2])
def test_layouts_of_the_first_libraries(version, tmp_path):
    """Layouts of version 1 and 2, which no library writes any more, are read as h5py reads them."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver=("earliest", "v108")) as file:
        file["run"] = np.arange(5, dtype="i4")
        file.create_dataset("chunks", data=np.arange(10, dtype="i4"), chunks=(4,))
    old_layout(path, "run", lambda body: bytes((version, 2, 1, 0, 0, 0, 0, 0)) + body[2:10] + struct.pack("<2I", 5, 4))
    old_layout(path, "chunks", lambda body: bytes((version, 2, 2, 0, 0, 0, 0, 0)) + body[3:11] + body[11:19])
    with h5py.File(path) as file:
        assert file["run"][...].tolist() == list(range(5))
        assert file["chunks"][...].tolist() == list(range(10))
    assert_same(path)
    for name, size in {"run": 5, "chunks": 10}.items():
        assert ts.open(f"file://{path}|hdf5:{name}").result().read().result().tolist() == list(range(size))


def test_records_of_the_first_libraries():
    """Members of records that say themselves that they are arrays, as no library writes them any more, are as h5py has them."""

    def member(name, offset, kind, sides):
        sizes = (*sides, 0, 0, 0, 0)[:4]
        return name.ljust(8, b"\0") + struct.pack("<IB11x4I", offset, len(sides), *sizes) + kind.encode()[2:]

    body = struct.pack("<B3sI", 0x16, b"\2\0\0", 4 + 8 * 6)
    body += member(b"a", 0, h5t.STD_I32LE, ()) + member(b"values", 4, h5t.IEEE_F64BE, (2, 3))
    dtype = h5t.decode(b"\3\0" + body).dtype
    assert dtype["values"].shape == (2, 3)
    assert numpy_of(datatype_of(None, body, 0)) == dtype


def test_unwritten_values_behind_a_block_of_the_user(tmp_path):
    """A run of bytes that was never written reads as the fill value, and not as what lies before the file."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", userblock_size=1024) as file:
        file.create_dataset("v", (4,), "i4", fillvalue=7)
        file["end"] = np.zeros(5000)
    assert ts.open(f"file://{path}|hdf5:v").result().read().result().tolist() == [7] * 4


def test_files_of_matlab_are_detected(tmp_path):
    """MATLAB 7.3 writes HDF5 behind 512 bytes of its own, which begin with its name."""
    path = tmp_path / "a.mat"
    with h5py.File(path, "w", userblock_size=512) as file:
        file.create_dataset("x", data=np.arange(6.0), chunks=(2,), compression="gzip")
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(124) + b"\x00\x02IM")
    assert ts.open_group(path).result()["x"].read().result().tolist() == list(range(6))
    assert ts.open(f"file://{path}|hdf5:x").result().shape == (6,)


def test_files_without_h5py(tmp_path, monkeypatch):
    """What is parsed needs no h5py; what needs it says so."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("v", data=np.arange(6), chunks=(2,), compression="gzip")
        file["texts"] = ["a", "b"]
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert ts.open(f"file://{path}|hdf5:v").result().read().result().tolist() == list(range(6))
    with pytest.raises(ts.errors.UnimplementedError, match=r"pip install 'fsstore\[hdf5\]'"):
        ts.open(f"file://{path}|hdf5:texts").result().read().result()
