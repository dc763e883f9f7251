"""Chunks encoded as other file formats encode them: TIFF, GRIB, FITS, zip, HDF5 heaps; damaged and hostile ones too.

Sets are made in the run by tifffile, kerchunk and VirtualiZarr.  The oracle is the file, read by tifffile, ecCodes,
astropy and h5py.
"""

from __future__ import annotations

import builtins
import inspect
import io
import json
import struct
import zipfile

import imagecodecs
import numpy as np
import pytest
import tifffile
import tifffile.zarr as tifffile_zarr

import fsstore as ts
from fsstore import references
from fsstore.errors import DataLossError, FailedPreconditionError

RNG = np.random.default_rng(17)
GRAY = RNG.integers(0, 250, (64, 96), dtype="u1")
DEEP = np.add.outer(np.arange(64), np.arange(96)).astype("u2") * 300
COLOUR = RNG.integers(0, 250, (64, 96, 3), dtype="u1")
FLOATS = np.add.outer(np.arange(64.0), np.arange(96.0)).astype("f4") / 7


TILES = {"tile": (32, 48)}
TIFFS = {
    "lzw": (GRAY, {"compression": "lzw"}),
    "lzw, strips": (GRAY, {"compression": "lzw", "tile": None, "rowsperstrip": 16}),
    "lzw, swapped": (DEEP, {"compression": "lzw", "byteorder": ">"}),
    "packbits": (GRAY // 100, {"compression": "packbits"}),
    "deflate": (DEEP, {"compression": "deflate"}),
    "zstd": (DEEP, {"compression": "zstd"}),
    "lzma": (GRAY, {"compression": "lzma"}),
    "predictor": (DEEP, {"compression": "lzw", "predictor": 2}),
    "predictor, swapped": (DEEP, {"compression": "lzw", "predictor": 2, "byteorder": ">"}),
    "predictor, colours": (COLOUR, {"compression": "zstd", "predictor": 2, "photometric": "rgb"}),
    "floats": (FLOATS, {"compression": "deflate", "predictor": 3}),
    "floats, swapped": (FLOATS, {"compression": "deflate", "predictor": 3, "byteorder": ">"}),
    "doubles": (FLOATS.astype("f8"), {"compression": "zstd", "predictor": 3}),
    "jpeg": (GRAY, {"compression": "jpeg"}),
    "jpeg, colours": (COLOUR, {"compression": "jpeg", "photometric": "rgb"}),
    "jpeg, ycbcr": (COLOUR, {"compression": "jpeg", "photometric": "ycbcr", "subsampling": (2, 2)}),
    "jpeg2000": (DEEP, {"compression": "jpeg2000"}),
    "jpeg2000, colours": (COLOUR, {"compression": "jpeg2000", "photometric": "rgb"}),
    "jpegxl": (DEEP, {"compression": "jpegxl"}),
    "jpegxr": (GRAY, {"compression": "jpegxr"}),
    "lerc": (FLOATS, {"compression": "lerc"}),
    "png": (DEEP, {"compression": "png"}),
    "webp": (COLOUR, {"compression": "webp", "photometric": "rgb"}),
    "webp, alpha": (
        np.dstack([COLOUR, GRAY]),
        {"compression": "webp", "photometric": "rgb", "extrasamples": ["unassalpha"]},
    ),
    "planes": (COLOUR.transpose(2, 0, 1), {"compression": "lzw", "photometric": "rgb", "planarconfig": "separate"}),
    "pages": (np.stack([DEEP, DEEP + 1, DEEP + 2]), {"compression": "zstd", "photometric": "minisblack"}),
}  # fmt: skip


@pytest.mark.parametrize("name", TIFFS)
def test_tiff(tmp_path, name, tiff_references):
    """Every compression and predictor of TIFF that tifffile puts into a set, in both byte orders, as tifffile reads it."""
    data, options = TIFFS[name]
    tiff_references(tmp_path, data, **{**TILES, **options})
    expected = tifffile.imread(tmp_path / "a.tif")
    array = ts.open(f"file://{tmp_path}/r.json|reference:|zarr2:").result()
    found = array.read().result()
    assert found.dtype == expected.dtype.newbyteorder("=")
    assert np.array_equal(found, expected)
    assert np.array_equal(array[1:3, 30:60:7].read().result(), expected[1:3, 30:60:7])


def chunk_of(encoded, compressor=None, filters=None, shape=(64, 96), dtype="|u1"):
    """Return an array of one chunk, encoded as given, in a set in memory."""
    document = {
        "zarr_format": 2, "shape": list(shape), "chunks": list(shape), "dtype": dtype, "compressor": compressor,
        "filters": filters, "order": "C", "fill_value": None,
    }  # fmt: skip
    refs = {".zarray": json.dumps(document), ".".join("0" * len(shape)): bytes(encoded)}
    return ts.open({"driver": "zarr"}, kvstore=references.store(refs)).result()


def of_version_3(folder):
    """Turn the set in a folder into one of zarr version 3, as newer versions of tifffile write it."""
    document = json.loads((folder / "r.json").read_text())
    old = json.loads(document["refs"].pop(".zarray"))
    document["refs"].pop(".zattrs", None)
    compressor, (predictor,) = old["compressor"], old["filters"] or (None,)
    codecs = [] if compressor is None else [named(compressor)]
    little = {"name": "bytes", "configuration": {"endian": "big" if old["dtype"].startswith(">") else "little"}}
    packs = ("jpeg", "jpeg2k", "jpegxl", "jpegxr", "lerc", "png", "webp")
    if predictor and predictor["id"] == "imagecodecs_floatpred":
        codecs = [named(predictor), *codecs]
    elif not compressor or compressor["id"].removeprefix("imagecodecs_") not in packs:
        codecs = [*([named(predictor)] if predictor else []), little, *codecs]
    document["refs"] = {
        "zarr.json": json.dumps(
            {
                "zarr_format": 3,
                "node_type": "array",
                "shape": old["shape"],
                "data_type": np.dtype(old["dtype"]).name,
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": old["chunks"]}},
                "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
                "fill_value": 0,
                "codecs": codecs,
            }
        ),
        **{f"c/{key.replace('.', '/')}": ref for key, ref in document["refs"].items()},
    }
    (folder / "r.json").write_text(json.dumps(document))


def named(codec):
    """Return a codec of version 2 under its name in version 3."""
    name = {"zlib": "imagecodecs_zlib", "lzma": "imagecodecs_lzma"}.get(codec["id"], codec["id"])
    configuration = {key: value for key, value in codec.items() if key not in ("id", "shape", "dtype")}
    return {"name": name, "configuration": configuration}


@pytest.mark.parametrize("name", [name for name in TIFFS if name != "floats, swapped"])
def test_tiff_as_zarr_3(tmp_path, name, tiff_references):
    """The same files in sets of version 3, with imagecodecs' names of codecs."""
    data, options = TIFFS[name]
    tiff_references(tmp_path, data, **{**TILES, **options})
    of_version_3(tmp_path)
    array = ts.open(f"file://{tmp_path}/r.json|reference:|zarr3:").result()
    assert np.array_equal(array.read().result(), tifffile.imread(tmp_path / "a.tif"))


@pytest.mark.skipif(
    "zarr_format" not in inspect.signature(tifffile_zarr.ZarrTiffStore.write_fsspec).parameters,
    reason="this version of tifffile writes no sets of zarr version 3",
)
@pytest.mark.parametrize("name", TIFFS)
def test_sets_of_version_3_by_tifffile(tmp_path, name):
    """Sets of version 3 that tifffile writes."""
    data, options = TIFFS[name]
    tifffile.imwrite(tmp_path / "a.tif", data, **{**TILES, **options})
    with tifffile.imread(tmp_path / "a.tif", aszarr=True) as store, (tmp_path / "r.json").open("w") as file:
        store.write_fsspec(file, url=f"file://{tmp_path}/", version=1, zarr_format=3)
    array = ts.open(f"file://{tmp_path}/r.json|reference:|zarr3:").result()
    assert np.array_equal(array.read().result(), tifffile.imread(tmp_path / "a.tif"))


def test_sequences_of_tiff_files(tmp_path):
    """tifffile's set of a sequence of files, each of which is a chunk."""
    names = [f"{tmp_path}/t{n}.tif" for n in range(3)]
    for n, name in enumerate(names):
        tifffile.imwrite(name, DEEP + n, compression="zlib", predictor=True)
    with tifffile.TiffSequence(names).aszarr() as store:
        text = io.StringIO()
        store.write_fsspec(text, url=f"file://{tmp_path}/")
    (tmp_path / "r.json").write_text(text.getvalue())
    assert json.loads(json.loads(text.getvalue())[".zarray"])["compressor"] == {"id": "tifffile"}
    found = ts.open(f"file://{tmp_path}/r.json|reference:|zarr2:").result().read().result()
    assert np.array_equal(found, tifffile.imread(names))


RAW = DEEP.astype("<u2").tobytes()
BYTES = {
    "bz2": (imagecodecs.bz2_encode, {}),
    "deflate": (imagecodecs.deflate_encode, {}),
    "deflate, raw": (lambda data: imagecodecs.deflate_encode(data, raw=True), {"raw": True}),
    "lz4h5": (imagecodecs.lz4h5_encode, {}),
    "lzma": (imagecodecs.lzma_encode, {}),
    "lzf": (lambda data: imagecodecs.lzf_encode(data, header=True), {"header": True}),
    "lzf, bare": (lambda data: imagecodecs.lzf_encode(data, header=False), {"header": False}),
    "lzw": (imagecodecs.lzw_encode, {}),
    "packbits": (imagecodecs.packbits_encode, {}),
    "zlib": (imagecodecs.zlib_encode, {"level": 6}),
    "zstd": (imagecodecs.zstd_encode, {"level": None}),
}
TAILS = {"a byte": b"\1", "zeros": bytes(8), "text": b"no part of this"}


@pytest.mark.parametrize("tail", [*TAILS, "again"])
@pytest.mark.parametrize("name", [name for name in BYTES if name != "lzw"])
def test_what_follows_the_end_is_damage(name, tail):
    """Whatever it is, also the same once more; readers of TIFF go no further than the mark at the end of LZW."""
    encode, options = BYTES[name]
    codec = {"id": f"imagecodecs_{name.split(',')[0]}", **options}
    encoded = bytes(encode(RAW))
    with pytest.raises(FailedPreconditionError):
        chunk_of(encoded + TAILS.get(tail, encoded), codec, dtype="<u2").read().result()


IMAGES = {
    "jpeg": (imagecodecs.jpeg_encode, GRAY),
    "jpeg2k": (imagecodecs.jpeg2k_encode, DEEP),
    "jpegls": (imagecodecs.jpegls_encode, DEEP),
    "jpegxl": (imagecodecs.jpegxl_encode, DEEP),
    "jpegxr": (imagecodecs.jpegxr_encode, GRAY),
    "lerc": (imagecodecs.lerc_encode, FLOATS),
    "png": (imagecodecs.png_encode, DEEP),
    "tiff": (imagecodecs.tiff_encode, DEEP),
    "webp": (imagecodecs.webp_encode, COLOUR),
}


@pytest.mark.parametrize("name", BYTES)
def test_compressors_of_bytes(name):
    """As compressor and as filter before a shuffle; more or fewer bytes than the chunk has are refused."""
    encode, options = BYTES[name]
    codec = {"id": f"imagecodecs_{name.split(',')[0]}", **options}
    assert np.array_equal(chunk_of(encode(RAW), codec, dtype="<u2").read().result(), DEEP)
    filters = [{"id": "delta", "dtype": "<u2"}, codec]
    packed = encode(np.diff(DEEP.ravel(), prepend=np.uint16(0)).astype("<u2").tobytes())
    assert np.array_equal(chunk_of(packed, None, filters, dtype="<u2").read().result(), DEEP)
    for wrong in (RAW + b"\0\0", RAW[:-2]):
        with pytest.raises(FailedPreconditionError):
            chunk_of(encode(wrong), codec, dtype="<u2").read().result()


@pytest.mark.parametrize("name", IMAGES)
def test_images_as_chunks(name):
    """Images of the chunk's shape but for dimensions of one, numbers in either byte order; other images are refused."""
    encode, data = IMAGES[name]
    codec = {"id": f"imagecodecs_{name}"}
    expected = getattr(imagecodecs, f"{name}_decode")(encode(data))
    for shape, dtype in ((data.shape, data.dtype), ((1, *data.shape, 1), data.dtype.newbyteorder(">"))):
        found = chunk_of(encode(data), codec, None, shape, dtype.str).read().result()
        assert np.array_equal(found.reshape(data.shape), expected)
    for shape, dtype in (((32, *data.shape[1:]), data.dtype.str), (data.shape, "<i8")):
        with pytest.raises(FailedPreconditionError, match="data"):
            chunk_of(encode(data), codec, None, shape, dtype).read().result()


def test_two_images_in_a_box_are_measured_by_the_one_that_is_decoded():
    """A small JPEG 2000 header in a box before the image does not hide how large the image is."""
    large = imagecodecs.jpeg2k_encode(np.zeros((3000, 3000), "u1"), codecformat="jp2")
    small = imagecodecs.jpeg2k_encode(np.zeros((8, 8), "u1"), codecformat="j2k")
    codec = {"id": "imagecodecs_jpeg2k"}
    start = 12  # after the signature box
    box = (len(small) + 8).to_bytes(4, "big") + b"free" + small
    for data in (large, large[:start] + box + large[start:]):
        with pytest.raises(FailedPreconditionError, match="more than the 64"):
            chunk_of(data, codec, None, (8, 8)).read().result()
    with pytest.raises(FailedPreconditionError, match="header"):
        chunk_of(large[:200].replace(b"jp2c", b"jp2x"), codec, None, (8, 8)).read().result()


def grib_message():
    """Return a GRIB message of thirty-one rows of sixteen values, and the values."""
    import eccodes

    handle = eccodes.codes_grib_new_from_samples("regular_ll_sfc_grib2")
    message = eccodes.codes_get_message(handle)
    values = eccodes.codes_get_array(handle, "values").reshape(31, 16)
    eccodes.codes_release(handle)
    return message, values


def test_grib_messages():
    """Values and coordinates of a message in the type asked for; a message of another size is refused."""
    message, values = grib_message()
    for variable, dtype in (("t", "float64"), ("t", "float32"), ("latitude", None)):
        codec = {"id": "grib", "var": variable, "dtype": dtype}
        stored = np.dtype(dtype or "f8").str
        found = chunk_of(message, None, [codec], (31, 16), stored).read().result()
        if variable == "t":
            assert np.array_equal(found, values.astype(stored))
        else:
            assert found[0, 0] > found[-1, 0]
            assert (found == found[:, :1]).all()
    codec = {"id": "grib", "var": "t", "dtype": "float64"}
    with pytest.raises(FailedPreconditionError):
        chunk_of(message, None, [codec], (31, 15), "<f8").read().result()
    for damaged in (message[:-1], message[:40], message + b"7777", b"GRIB" + bytes(60) + b"7777"):
        with pytest.raises(FailedPreconditionError, match="grib"):
            chunk_of(damaged, None, [codec], (31, 16), "<f8").read().result()


def test_members_of_zip_files(tmp_path):
    """The codec that kerchunk gives to deflated members: header and all."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/member", RAW)
    data = (tmp_path / "a.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        stored = archive.getinfo("a/member").compress_size
    member = data[: 30 + len("a/member") + stored]
    codec = {"id": "deflate"}
    assert np.array_equal(chunk_of(member, codec, dtype="<u2").read().result(), DEEP)
    head = bytearray(member[: 30 + len("a/member")])
    head[14:26] = bytes(12)  # sizes that are told behind the data
    streamed = bytes(head) + member[len(head) :]
    for tail in (
        b"",
        struct.pack("<4s3I", b"PK\7\x08", 1, stored, len(RAW)),
        struct.pack("<3I", 1, stored, len(RAW)),
        struct.pack("<4sI2Q", b"PK\7\x08", 1, stored, len(RAW)),
        struct.pack("<I2Q", 1, stored, len(RAW)),
    ):
        assert np.array_equal(chunk_of(streamed + tail, codec, dtype="<u2").read().result(), DEEP)
    for damaged in (member[:20], b"PK\1\2" + member[4:], member[:-9], streamed + b"x", streamed + bytes(16)):
        with pytest.raises(FailedPreconditionError):
            chunk_of(damaged, codec, dtype="<u2").read().result()


def test_strings_of_an_hdf5_heap():
    """Identifiers become what the map says, or one text; an identifier that is not in the map is damage."""
    codec = {"id": "fill_hdf_strings", "dtype": "S4"}
    for texts, expected in (({"id-a": "é", "id-b": ""}, ["é", "", "é"]), ("same", ["same"] * 3), (None, [""] * 3)):
        array = chunk_of(b"id-aid-bid-a", None, [{**codec, "id_map": texts}], (3,), "|O")
        assert array.read().result().tolist() == expected
    with pytest.raises(FailedPreconditionError, match="id-c"):
        chunk_of(b"id-aid-bid-c", None, [{**codec, "id_map": {"id-a": "", "id-b": ""}}], (3,), "|O").read().result()


def test_members_of_records():
    """One member of records, with the elements of the array's type."""
    records = np.array([(1, 2.5), (3, -4.5)], "<i4, >f8")
    codec = {"id": "record_member", "member": "f1", "dtype": [["f0", "<i4"], ["f1", ">f8"]]}
    found = chunk_of(records.tobytes(), None, [codec], (2,), ">f8").read().result()
    assert found.tolist() == [2.5, -4.5]
    with pytest.raises(ValueError, match="f9"):
        chunk_of(b"", None, [{**codec, "member": "f9"}], (2,), ">f8")


def damaged(data):
    """Yield damaged versions of an encoding: flipped, cut and empty."""
    rng = np.random.default_rng(23)
    for position in rng.integers(0, len(data), 60).tolist():
        flipped = bytearray(data)
        flipped[position] ^= int(rng.integers(1, 256))
        yield bytes(flipped)
    for length in (0, 1, 7, len(data) // 2, len(data) - 1):
        yield data[:length]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*BYTES, *IMAGES])
def test_damage_is_an_error_or_an_array(name):
    """No damaged encoding gives anything but an array of the chunk's shape or an error of ours."""
    if name in BYTES:
        encode, options = BYTES[name]
        data, codec = DEEP, {"id": f"imagecodecs_{name.split(',')[0]}", **options}
        encoded = encode(RAW)
    else:
        encode, data = IMAGES[name]
        codec, encoded = {"id": f"imagecodecs_{name}"}, encode(data)
    refused = 0
    for bad in damaged(encoded):
        try:
            found = chunk_of(bad, codec, None, data.shape, data.dtype.str).read().result()
        except (DataLossError, FailedPreconditionError):
            refused += 1
        else:
            assert found.shape == data.shape
    assert refused


@pytest.mark.parametrize(
    ("codec", "match"),
    [({"id": "imagecodecs_lzw"}, r"fsstore\[images\]"), ({"id": "imagecodecs_png"}, r"fsstore\[images\]"),
     ({"id": "grib", "var": "t"}, r"fsstore\[grib\]")],
)  # fmt: skip
def test_a_missing_library_is_named(monkeypatch, codec, match):
    """Without the library of a codec, opening the array says what to install."""
    inner = builtins.__import__

    def without(name, *args, **kwargs):
        if name in ("imagecodecs", "eccodes"):
            raise ImportError(name)
        return inner(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(NotImplementedError, match=match):
        chunk_of(b"", codec, None, (4, 4), "<f8")


@pytest.mark.parametrize(
    ("codec", "match"),
    [({"id": "imagecodecs_jetraw"}, "jetraw"), ({"id": "imagecodecs_nonsense"}, "nonsense"), ({"id": "FITSVarBintable"}, "any length"),
     ({"id": "tifffile", "series": 2}, "series")],
)  # fmt: skip
def test_codecs_that_are_not_supported_are_refused_by_name(codec, match):
    """What cannot be decoded within bounds is refused when the array is opened."""
    with pytest.raises(NotImplementedError, match=match):
        chunk_of(b"", codec)


def test_what_scanners_encode_is_not_written():
    """An array whose chunks are images can be read, not written."""
    array = chunk_of(imagecodecs.png_encode(GRAY), {"id": "imagecodecs_png"})
    with pytest.raises(NotImplementedError, match="read, not written"):
        array.write(GRAY).result()
    assert np.array_equal(array.read().result(), GRAY)


@pytest.mark.parametrize("options", [{"compression": "gzip", "shuffle": True}, {"fletcher32": True}])
def test_filters_of_hdf5_as_virtualizarr_names_them(tmp_path, options, virtualize):
    """HDF5 filters beyond zlib, in sets by VirtualiZarr, as h5py reads the file."""
    import h5py

    with h5py.File(tmp_path / "a.h5", "w") as f:
        f.create_dataset("v", data=DEEP, chunks=(32, 48), **options)
    virtualize(tmp_path / "a.h5", tmp_path / "r.json")
    array = ts.open(f"file://{tmp_path}/r.json|reference:v/|zarr2:").result()
    assert np.array_equal(array.read().result(), DEEP)
