"""HDF5 files of every layout, index, filter and type, written by h5py: `CORPUS` maps names to functions that fill one."""

from __future__ import annotations

import contextlib
import ctypes
import pickle
import sys
from pathlib import Path

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t, h5z

try:
    import hdf5plugin
except ImportError:  # its filters are left out then
    hdf5plugin = None

VALUES = np.arange(120, dtype="i4").reshape(10, 12)
LIBRARIES = [
    ("earliest", "v108"),
    ("v108", "v108"),
    ("v110", "v110"),
    ("v112", "v112"),
    ("v114", "v114"),
    ("v200", "v200"),
    ("latest", "latest"),
]
CORPUS: dict[str, tuple[object, dict]] = {}


def add(name, fill, **options):
    """Add a file."""
    CORPUS[name] = (fill, options)


def write(name: str, folder: Path) -> Path:
    """Return the path of a file, written unless it is there."""
    path = folder / f"{name}.h5"
    if not path.exists():
        fill, options = CORPUS[name]
        with h5py.File(path, "w", **options) as file:
            fill(file)
    return path


def simple(data=VALUES, chunks=(4, 5), **options):
    """Return what writes one dataset."""
    return lambda file: file.create_dataset("v", data=data, chunks=chunks, **options)


def low_level(prepare, shape=(10, 12), most=None, name=b"v"):
    """Return what writes one dataset through a property list that `prepare` changes."""

    def fill(file):
        plist = h5p.create(h5p.DATASET_CREATE)
        prepare(plist)
        found = h5d.create(file.id, name, h5t.NATIVE_INT32, h5s.create_simple(shape, most), plist)
        found.write(h5s.ALL, h5s.ALL, VALUES)

    return fill


def early(plist):
    """Allocate chunks at once: the implicit index."""
    plist.set_chunk((4, 5))
    plist.set_alloc_time(h5d.ALLOC_TIME_EARLY)


def plain_edges(plist):
    """Store chunks at the edge without filters: h5py has no function for it, its library has."""
    names = [line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libhdf5" in line]
    library = ctypes.CDLL(next(name for name in names if "_hl" not in name))
    library.H5Pset_chunk_opts.argtypes = [ctypes.c_int64, ctypes.c_uint]
    plist.set_chunk((4, 5))
    plist.set_shuffle()
    plist.set_deflate(4)
    assert library.H5Pset_chunk_opts(plist.id, 2) >= 0


def sparse(file):
    """Write some rows of many."""
    found = file.create_dataset("v", (100, 100), "f8", chunks=(10, 10), maxshape=(None, 100), fillvalue=3.5)
    found[5:8] = 1
    found[95] = 2


def shrunk(file):
    """Leave chunks outside of the shape."""
    file.create_dataset("v", data=VALUES, chunks=(4, 5), maxshape=(20, 24)).resize((5, 6))


def _layouts():
    many = np.arange(30000, dtype="i2").reshape(1500, 20)
    rows = np.arange(40000, dtype="i4").reshape(-1, 4)
    cube = np.arange(3 * 7 * 6).reshape(3, 7, 6)
    return {
        "fixed": simple(),
        "first": simple(maxshape=(None, 12)),
        "second": simple(maxshape=(10, None)),
        "both": simple(maxshape=(None, None)),
        "larger": simple(maxshape=(20, 24)),
        "deflated": simple(compression="gzip"),
        "second_deflated": simple(maxshape=(10, None), compression="gzip", shuffle=True, fletcher32=True),
        "single": simple(chunks=(10, 12)),
        "single_deflated": simple(chunks=(10, 12), compression="gzip"),
        "implicit": low_level(early),
        "middle": simple(cube, (2, 3, 4), maxshape=(3, None, 6)),
        "pages": simple(many, (1, 5)),
        "extensible_pages": simple(rows, (4, 4), maxshape=(None, 4), compression="gzip"),
        "tree": simple(rows, (4, 4), maxshape=(None, None), compression="gzip"),
        "sparse": sparse,
        "shrunk": shrunk,
        "compact": low_level(lambda plist: plist.set_layout(h5d.COMPACT)),
        "contiguous": lambda file: file.create_dataset("v", data=VALUES),
    }


for low, high in LIBRARIES:
    for layout, maker in _layouts().items():
        add(f"{layout}-{low}-{high}", maker, libver=(low, high))
    add(f"user_block-{low}-{high}", simple(compression="lzf"), libver=(low, high), userblock_size=1024)
add("plain_edges", low_level(plain_edges), libver="latest")
add("plain_edges_extensible", low_level(plain_edges, most=(h5s.UNLIMITED, 12)), libver="latest")

_random = np.random.default_rng(1)
SMOOTH = np.cumsum(_random.integers(-5, 6, 90 * 140)).astype("i4").reshape(90, 140)
ROUGH = _random.integers(-(2**31), 2**31, 90 * 140).astype("i4").reshape(90, 140)
WAVES = np.cumsum(_random.normal(size=90 * 140)).reshape(90, 140)

FILTERS = {
    "gzip": {"compression": "gzip"},
    "gzip_shuffle": {"compression": "gzip", "shuffle": True},
    "gzip_all": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "lzf_all": {"compression": "lzf", "shuffle": True, "fletcher32": True},
    "szip": {"compression": "szip"},
    "szip_nn": {"compression": "szip", "compression_opts": ("nn", 16)},
    "scaleoffset": {"scaleoffset": 0},
    "fletcher32": {"fletcher32": True},
    "shuffle": {"shuffle": True},
}
if hdf5plugin is not None:
    FILTERS |= {
        "blosc": dict(hdf5plugin.Blosc()),
        "blosc_zstd_bits": dict(hdf5plugin.Blosc(cname="zstd", shuffle=hdf5plugin.Blosc.BITSHUFFLE)),
        "blosc_snappy": dict(hdf5plugin.Blosc(cname="snappy")),
        "blosc_zlib": dict(hdf5plugin.Blosc(cname="zlib")),
        "blosc2": dict(hdf5plugin.Blosc2()),
        "bitshuffle": dict(hdf5plugin.Bitshuffle(cname="none")),
        "bitshuffle_lz4": dict(hdf5plugin.Bitshuffle(cname="lz4")),
        "bitshuffle_zstd": dict(hdf5plugin.Bitshuffle(cname="zstd")),
        "lz4": dict(hdf5plugin.LZ4()),
        "lz4_blocks": dict(hdf5plugin.LZ4(nbytes=512)),
        "zstd": dict(hdf5plugin.Zstd()),
        "bzip2": dict(hdf5plugin.BZip2()),
    }
    for label, each in {
        "rate": hdf5plugin.Zfp(rate=8),
        "accuracy": hdf5plugin.Zfp(accuracy=1e-3),
        "reversible": hdf5plugin.Zfp(reversible=True),
    }.items():
        add(f"zfp_{label}", simple(WAVES, (40, 50), **dict(each)))
for label, each in FILTERS.items():
    for kind, data in {
        "smooth": SMOOTH,
        "rough": ROUGH,
        "short": SMOOTH.astype("i2"),
        "octets": SMOOTH.astype("u1"),
        "big": SMOOTH.astype(">i4"),
    }.items():
        add(f"{label}-{kind}", simple(data, (40, 50), **each))
for kind in ("f4", "f8"):
    add(f"scaleoffset-{kind}", simple(WAVES.astype(kind), (40, 50), scaleoffset=3))
    add(f"szip-{kind}", simple(WAVES.astype(kind), (40, 50), compression="szip"))

for label, each in {
    "shuffle": {"shuffle": True},
    "lzf": {"compression": "lzf"},
    "gzip": {"compression": "gzip"},
}.items():
    add(f"scaleoffset_{label}", simple(SMOOTH, (40, 50), scaleoffset=0, **each))
ANY_TYPES = ("u1", "<i2", ">i4", "<u8", ">f4", "<f8", "f2", "?", ">c8", "S5", "text", "enum")


def any_values(chance, kind, shape):
    """Return a type and random values of it."""
    if kind == "text":
        words = chance.choice(["", "a", "bc", "é☃", "longer text"], shape)
        return h5py.string_dtype(), words.astype(object)
    if kind == "enum":
        return h5py.enum_dtype({"A": 1, "B": 2, "C": 5}, "i2"), chance.choice([1, 2, 5], shape).astype("i2")
    return np.dtype(kind), chance.integers(0, 100, shape).astype(kind)


def any_options(chance, kind, shape):
    """Return options of a dataset: whether and how it is cut, how it may grow, its filters and its fill value."""
    options = {}
    if chance.random() < 0.75:
        options["chunks"] = tuple(int(chance.integers(1, size + 1)) for size in shape)
        if chance.random() < 0.5:
            ends = [None if chance.random() < 0.5 else size + int(chance.integers(9)) for size in shape]
            options["maxshape"] = tuple(ends)
        options["shuffle"] = bool(chance.random() < 0.3)
        if kind[1:] in ("i2", "i4", "u8") and chance.random() < 0.3:
            options["scaleoffset"] = 0
        else:
            options["fletcher32"] = bool(kind != "text" and chance.random() < 0.2)
        options["compression"] = chance.choice([None, "gzip", "lzf"])
    if chance.random() < 0.3 and kind in ("u1", "<i2", ">f4", "<f8"):
        options["fillvalue"] = int(chance.integers(1, 9))
    return options


def any_datasets(seed):
    """Return what writes datasets of random types, shapes and filters: whole, in part or not at all, and resized."""

    def fill(file):
        chance = np.random.default_rng(seed)
        for number in range(4):
            shape = tuple(int(each) for each in chance.integers(1, 25, chance.integers(1, 4)))
            kind = str(chance.choice(ANY_TYPES))
            dtype, values = any_values(chance, kind, shape)
            options = any_options(chance, kind, shape)
            place = f"g{chance.integers(2)}/d{number}" if chance.random() < 0.4 else f"d{number}"
            made = file.create_dataset(place, shape, dtype, **options)
            written = chance.integers(4)
            if written == 0:
                made[: shape[0] // 2] = values[: shape[0] // 2]
            elif written:
                made[...] = values
            if "maxshape" in options and chance.random() < 0.5:
                ends = zip(shape, options["maxshape"], strict=True)
                made.resize([int(chance.integers(1, (end or size + 10) + 1)) for size, end in ends])

    return fill


for number in range(40):
    low, high = LIBRARIES[number % len(LIBRARIES)]
    add(f"any-{number}", any_datasets(number), libver=(low, high))


def nbit(file):
    """Write integers of eleven bits through the n-bit filter, which drops the other ones."""
    plist = h5p.create(h5p.DATASET_CREATE)
    plist.set_chunk((4,))
    plist.set_filter(h5z.FILTER_NBIT, h5z.FLAG_MANDATORY, ())
    kind = h5t.STD_I16LE.copy()
    kind.set_precision(11)
    found = h5d.create(file.id, b"v", kind, h5s.create_simple((10,)), plist)
    found.write(h5s.ALL, h5s.ALL, np.arange(-500, 500, 100, dtype="i2"))


def direct(file):
    """Write chunks past the library, with filters skipped."""
    found = file.create_dataset("v", (8,), "i4", chunks=(4,), compression="gzip", shuffle=True, fletcher32=True)
    found.id.write_direct_chunk((0,), np.arange(4, dtype="i4").tobytes(), 0b111)
    found[4:] = [5, 6, 7, 8]
    other = file.create_dataset("w", (8,), "i4", chunks=(4,), compression="gzip", shuffle=True)
    planes = np.arange(4, dtype="i4").view("u1").reshape(4, 4).T.tobytes()
    other.id.write_direct_chunk((0,), planes, 0b10)
    other[4:] = 9


def fills(file):
    """Leave values unwritten."""
    file.create_dataset("contiguous", (5,), "i2", fillvalue=-7)
    file.create_dataset("chunked", (5,), "f4", chunks=(2,), fillvalue=np.nan)
    found = file.create_dataset("both", (6,), "i4", chunks=(3,), fillvalue=7)
    found.attrs["_FillValue"] = np.int32(9)
    found[:3] = 1
    file.create_dataset("texts", (3,), h5py.string_dtype(), chunks=(1,))
    file.create_dataset("octets", (3,), "S3", chunks=(1,), fillvalue=b"abc")


def _typed(file, name, kind, values, memory=None):
    found = h5d.create(file.id, name, kind, h5s.create_simple(values.shape))
    found.write(h5s.ALL, h5s.ALL, values, memory)


def types(file):
    """Write one dataset of each type."""
    for kind in ("i1", ">u8", "f2", ">f4", "f8", "c8", "c16", "bool"):
        file[kind.replace(">", "be_")] = np.array([0, 1, 1, 0]).astype(kind)
    file["S5"] = np.array([b"ab", b"cdefg"], "S5")
    file["texts"] = np.array(["héllo", "", "x" * 50], h5py.string_dtype())
    file["ascii"] = np.array(["a", "b"], h5py.string_dtype("ascii"))
    file["one_text"], file["one_number"] = "scalar", 3.25
    file["nothing"] = np.zeros((0, 3), "f4")
    file.create_dataset("enum", data=[0, 1, 2], dtype=h5py.enum_dtype({"A": 0, "B": 1, "C": 2}, "i2"))
    file.create_dataset("triples", (4,), np.dtype(("<i2", (3,))))[...] = np.arange(12).reshape(4, 3)
    file["opaque"] = np.array([b"ab", b"cd"], "V2")
    file["times"] = np.array(["2020-01-01", "2021-01-01"], "M8[s]").astype(h5py.opaque_dtype("M8[s]"))
    chunked = np.array([f"s{number}" for number in range(100)], object)
    file.create_dataset("chunked_texts", data=chunked, dtype=h5py.string_dtype(), chunks=(7,), compression="gzip")
    kind = h5t.STD_I16LE.copy()
    kind.set_precision(11)
    kind.set_offset(2)
    _typed(file, b"shifted", kind, np.array([-5, 3, 7, 100, -1000], "i2"))
    for name, padding in ((b"spaces", h5t.STR_SPACEPAD), (b"ended", h5t.STR_NULLTERM)):
        kind = h5t.C_S1.copy()
        kind.set_size(4)
        kind.set_strpad(padding)
        _typed(file, name, kind, np.array([b"ab", b"xyz"], "S4"), kind if padding == h5t.STR_NULLTERM else None)
    kind = h5t.IEEE_F32LE.copy()
    kind.set_fields(15, 7, 8, 0, 7)
    kind.set_size(2)
    kind.set_ebias(127)
    _typed(file, b"brain", kind, np.array([1, 2.5, -3, 100], "f4"))


def structures(file):
    """Write records."""
    packed = np.dtype([("a", "i4"), ("b", "f8")])
    file["packed"] = np.array([(1, 2.5), (3, 4.5)], packed)
    gaps = np.dtype([("a", "i1"), ("b", "f8")], align=True)
    file["gaps"] = np.array([(1, 2.5), (3, 4.5)], gaps)
    file.create_dataset("chunked", (3,), packed, chunks=(1,))[1:] = np.array([(7, 1.5)], packed)


def links(file):
    """Write links of every kind, cycles and what leads nowhere."""
    group = file.create_group("g/h")
    group["x"] = np.arange(3)
    file["soft"], file["hard"] = h5py.SoftLink("/g/h/x"), group["x"]
    group["soft2"] = h5py.SoftLink("x")
    file["chain"] = h5py.SoftLink("soft")
    file["nowhere"], file["away"] = h5py.SoftLink("/nope"), h5py.ExternalLink("other.h5", "/x")
    group["cycle"] = file["g"]
    file["loop"] = h5py.SoftLink("/loop")
    file.create_dataset("lists", (2,), h5py.vlen_dtype("i4"))[0] = [1, 2, 3]
    file["reference"], file["empty"] = group["x"].ref, h5py.Empty("f4")
    with contextlib.suppress(ValueError):
        file["a type"] = np.dtype("f8")


for label, maker in {
    "nbit": nbit,
    "direct": direct,
    "fills": fills,
    "types": types,
    "structures": structures,
    "links": links,
}.items():
    add(label, maker)
add("types-latest", types, libver="latest")


def datasets(file):
    """Return the names of all datasets of a file, those behind soft links left out."""
    found = []
    file.visititems(lambda name, node: found.append(name) if isinstance(node, h5py.Dataset) else None)
    return found


def expected(dataset):
    """Return what h5py reads, strings as text, and records field by field."""
    if dataset.dtype.names:
        return {field: dataset[field] for field in dataset.dtype.names}
    value = np.asarray(dataset[()])
    if dataset.dtype.kind == "O":
        texts = [each.decode() if isinstance(each, bytes) else each for each in value.ravel().tolist()]
        return np.array(texts, object).reshape(value.shape)
    return value


def write_all(folder: Path) -> None:
    """Write every file, and beside it what h5py reads of it, or why it cannot be made."""
    for name in CORPUS:
        try:
            with h5py.File(write(name, folder)) as file:
                found = {each: expected(file[each]) for each in datasets(file)} if name != "links" else {}
        except Exception as error:  # its test tells
            found = error
        (folder / f"{name}.pickle").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    write_all(Path(sys.argv[1]))
