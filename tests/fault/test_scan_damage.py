"""Damaged and hostile files of the scanned formats: errors of fsstore that name the file, in bounded time and memory."""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import subprocess
import sys
from pathlib import Path

import h5py
import netCDF4
import numpy as np
import pytest
import tifffile
from astropy.io import fits
from numcodecs.checksum32 import jenkins_lookup3

import fsstore as ts
from fsstore.codec.numcodecs.kerchunk_v2 import check_grib
from fsstore.errors import DataLossError, FailedPreconditionError, NotFoundError, StoreError, UnimplementedError
from fsstore.scan.hdf5.filters import encoded_plainly, undone
from fsstore.scan.hdf5.layout import Filter

PROGRAM = Path(__file__).with_name("scan_fuzz.py")


def write_files(folder):
    """Write a few files of many structures."""
    values = np.arange(240, dtype="i4").reshape(20, 12)
    for libver in ("earliest", "latest"):
        with h5py.File(folder / f"{libver}.h5", "w", libver=libver) as file:
            for name, maxshape in {"fixed": (20, 12), "one": (20, None), "two": (None, None)}.items():
                file.create_dataset(
                    f"g/{name}", data=values, chunks=(3, 5), maxshape=maxshape, compression="gzip", shuffle=True
                )
            file["texts"] = np.array(["a", "bcd"], h5py.string_dtype())
            file["run"] = values
            file.attrs["title"] = "damaged"
    for form in ("NETCDF3_CLASSIC", "NETCDF3_64BIT_DATA"):
        with netCDF4.Dataset(folder / f"{form}.nc", "w", format=form) as file:
            file.createDimension("t", None)
            file.createDimension("x", 5)
            file.createVariable("a", "i2", ("t", "x"))[:] = np.arange(35).reshape(7, 5)
            file.createVariable("b", "f8", ("x",))[:] = np.arange(5)


def write_images(folder):
    """Write a few TIFF files of many structures."""
    grey = np.cumsum(np.ones((60, 70), "u1"), axis=1).astype("u1")
    cube = np.stack([grey] * 6).reshape(2, 3, 60, 70)
    write = tifffile.imwrite
    write(folder / "tiles.tif", grey, tile=(16, 32), compression="zlib", predictor=True)
    write(folder / "strips.tif", grey.astype("f4"), rowsperstrip=16, compression="lzw", bigtiff=True)
    write(folder / "ome.tif", cube, ome=True, metadata={"axes": "TZYX"})
    write(folder / "run.tif", cube, imagej=True, metadata={"axes": "TZYX"}, byteorder=">")
    with tifffile.TiffWriter(folder / "levels.tif") as file:
        file.write(grey, subifds=2, tile=(16, 16), compression="jpeg")
        file.write(grey[::2, ::2], subfiletype=1, tile=(16, 16), compression="jpeg")
        file.write(grey[::4, ::4], subfiletype=1, tile=(16, 16), compression="packbits")


def write_units(folder):
    """Write a few FITS files of many structures."""
    image = np.cumsum(np.ones((30, 40), "i4"), axis=1).astype("i4")
    units = [fits.PrimaryHDU(image.astype("u2")), fits.ImageHDU(image / 3, name="A")]
    fits.HDUList(units).writeto(folder / "images.fits")
    packed = [
        fits.CompImageHDU(image, name=method, compression_type=method, tile_shape=(8, 16))
        for method in ("RICE_1", "GZIP_1", "GZIP_2")
    ]
    floats = fits.CompImageHDU((image / 7).astype("f4"), name="F", quantize_method=1, dither_seed=5)
    fits.HDUList([fits.PrimaryHDU(), *packed, floats]).writeto(folder / "packed.fits")
    columns = [
        fits.Column("n", "5A", array=["abc", "de", "f"]),
        fits.Column("u", "I", bzero=32768, array=np.array([1, 40000, 65535], "u2")),
        fits.Column("b", "11X", array=np.ones((3, 11), bool)),
        fits.Column("m", "6E", dim="(3,2)", array=np.arange(18).reshape(3, 2, 3)),
    ]
    text = [fits.Column("x", format="F10.3", array=[1.5, -2.25, 1e3])]
    tables = fits.BinTableHDU.from_columns(columns), fits.TableHDU.from_columns(text)
    fits.HDUList([fits.PrimaryHDU(), *tables]).writeto(folder / "tables.fits")


def write_messages(folder):
    """Write a few GRIB files of both editions, of many grids and packings."""
    import eccodes

    def message(sample, **keys):
        handle = eccodes.codes_grib_new_from_samples(sample)
        for key, value in keys.items():
            eccodes.codes_set(handle, key, value)
        size = eccodes.codes_get_size(handle, "values")
        eccodes.codes_set_values(handle, np.arange(size) % 97.0)
        found = eccodes.codes_get_message(handle)
        eccodes.codes_release(handle)
        return found

    levels = [message("regular_ll_pl_grib2", shortName="t", level=each) for each in (1000, 500)]
    (folder / "levels.grib").write_bytes(b"".join(levels))
    for packing in ("grid_simple", "grid_complex", "grid_ccsds", "grid_jpeg", "grid_png"):
        packed = message("regular_ll_sfc_grib2", packingType=packing)
        (folder / f"{packing}.grib").write_bytes(packed)
    (folder / "first.grib").write_bytes(message("regular_ll_pl_grib1") + message("polar_stereographic_sfc_grib2"))


class EndedByLibraryError(Exception):
    """A library in C has ended the process at a seed."""

    def __init__(self, seed):
        super().__init__(seed)
        self.seed = seed


def fuzz(folder, first, count, limit_s):
    """Run the program in a process of its own; return what it reports besides the seeds."""
    command = [sys.executable, str(PROGRAM), str(folder), str(first), str(count)]
    environment = {**os.environ, "PYTHONPATH": str(Path(ts.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False, env=environment)
    if done.returncode == -signal.SIGABRT and "ecCodes assertion failed" in done.stderr:
        assert "error" not in done.stdout
        raise EndedByLibraryError(int(done.stdout.split()[-1]))
    assert done.returncode == 0, f"{done.stdout[-300:]}\n{done.stderr[-2000:]}"
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_damaged_files(tmp_path):
    """Cut off, overwritten and shuffled files end in values or errors of fsstore that name the file."""
    write_files(tmp_path)
    *problems, summary = fuzz(tmp_path, 0, 60, 120)
    assert not problems
    assert summary["done"] == 60
    assert summary["read"] > 40


@pytest.mark.parametrize("write", [write_images, write_units, write_messages])
def test_damaged_images(tmp_path, write):
    """So do damaged TIFF, FITS and GRIB files."""
    write(tmp_path)
    *problems, summary = fuzz(tmp_path, 0, 20, 250)
    assert not problems
    assert summary["read"] > 3


WRITERS = {"arrays": write_files, "images": write_images, "units": write_units, "messages": write_messages}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(10))
@pytest.mark.parametrize("kind", WRITERS)
def test_damaged_files_at_length(tmp_path, kind, part):
    """The same ten thousand times; ecCodes, a library in C, may end its process, as the page on files says."""
    WRITERS[kind](tmp_path)
    first, end = 10_000 + part * 1000, 11_000 + part * 1000
    while first < end:
        try:
            assert len(fuzz(tmp_path, first, end - first, 900)) == 1
        except EndedByLibraryError as ended:
            assert kind == "messages"
            first = ended.seed + 1
        else:
            break


@pytest.mark.parametrize(("packing", "before"), [("grid_jpeg", b"\xff\x4f\xff\x51"), ("grid_png", b"IHDR")])
def test_images_in_messages_are_compared_with_their_values(packing, before, tmp_path):
    """ecCodes writes as many elements as an image has, whatever the message says, so it does not get larger ones."""
    write_messages(tmp_path)
    message = bytearray((tmp_path / f"{packing}.grib").read_bytes())
    check_grib(bytes(message))
    height = message.index(before) + (12 if packing == "grid_jpeg" else 8)
    message[height + 2 : height + 4] = b"\xff\xff"
    with pytest.raises(DataLossError, match="an image of"):
        check_grib(bytes(message))
    (tmp_path / "damaged.grib").write_bytes(message)
    entry = next(entry for entry in ts.list_arrays(f"file://{tmp_path}/damaged.grib|grib:") if len(entry.shape) > 1)
    array = ts.open({"driver": "zarr", "kvstore": f"file://{tmp_path}/damaged.grib|grib:{entry.path}/"}).result()
    with pytest.raises(StoreError, match="an image of"):
        array.read().result()
    for wrong in (message[: message.index(before)] + b"7777", message[:20] + b"\0\0\0\1" + message[24:]):
        with pytest.raises(DataLossError, match="Invalid GRIB message"):
            check_grib(bytes(wrong))


@pytest.mark.parametrize("place", [255, 33])
def test_vertical_coordinates_that_a_grid_lacks(place, tmp_path):
    """ecCodes crashes where edition 1 counts vertical coordinates behind the end of the grid, so it gets none such."""
    write_messages(tmp_path)
    message = bytearray((tmp_path / "first.grib").read_bytes())
    message = message[: int.from_bytes(message[4:7], "big")]
    check_grib(bytes(message))
    grid = 8 + int.from_bytes(message[8:11], "big")
    message[grid + 3 : grid + 5] = bytes((4, place))
    with pytest.raises(DataLossError, match="lacks 4 vertical coordinates"):
        check_grib(bytes(message))
    path = tmp_path / "damaged.grib"
    path.write_bytes(message)
    with pytest.raises(StoreError, match=r"damaged\.grib.*lacks 4 vertical coordinates"):
        ts.list_arrays(f"file://{path}|grib:")


@pytest.mark.parametrize("size", [0, 2**64 - 16, 2**64 - 1, 4096])
@pytest.mark.parametrize("which", ["object", "free space"])
def test_global_heaps_without_an_end_are_refused(size, which, tmp_path):
    """HDF5 walks through the objects of a heap by their sizes, for ever if one leads nowhere; it gets no such heap."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["texts"] = np.array(["a", "bcd"], h5py.string_dtype())
        file.attrs["title"] = "damaged"
    data = bytearray(path.read_bytes())
    heap = data.index(b"GCOL")
    at = heap + 16 + 8 if which == "object" else heap + 16 + 24 * 3 + 8
    data[at : at + 8] = struct.pack("<Q", size)
    path.write_bytes(data)
    with pytest.raises(DataLossError, match=r"a\.h5.*global heap at offset"):
        ts.list_arrays(f"file://{path}|hdf5:")


@pytest.mark.parametrize(
    "stored",
    [{}, {"chunks": (2,)}, {"chunks": (2,), "compression": "gzip", "shuffle": True}],
    ids=["run", "chunks", "filters"],
)
@pytest.mark.parametrize("userblock", [0, 512])
def test_strings_that_claim_to_be_long_are_looked_up(stored, userblock, tmp_path):
    """HDF5 makes room for the length that is said of a string; one that the file does not have gets none."""
    path, claimed = tmp_path / "a.h5", 3 * 10**8
    with h5py.File(path, "w", libver="latest", userblock_size=userblock) as file:
        file.create_dataset("v", data=np.array(["a", "long" * 300_000], h5py.string_dtype()), **stored)
    texts = _open(path, "hdf5").read().result().tolist()
    assert texts == ["a", "long" * 300_000]
    with h5py.File(path, "r+") as file:
        if stored:
            mask, data = file["v"].id.read_direct_chunk((0,))
            data = undone(data, _filters_of(file["v"]), mask, 32)
            changed = struct.pack("<I", claimed) + data[4:]
            file["v"].id.write_direct_chunk((0,), encoded_plainly(changed, _filters_of(file["v"])))
        else:
            offset = file["v"].id.get_offset()
    if not stored:
        data = bytearray(path.read_bytes())
        data[offset : offset + 4] = struct.pack("<I", claimed)
        path.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataLossError, match=f"an element of {claimed} bytes, of which the file has 1"):
        _open(path, "hdf5").read().result()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 * 1024


def _filters_of(dataset):
    """Return the filters of a dataset of h5py as ours."""
    plist = dataset.id.get_create_plist()
    return [Filter(*plist.get_filter(number)[::2], "") for number in range(plist.get_nfilters())]


def test_entries_without_bytes_are_refused(tmp_path):
    """An index in pages whose entries have no size is damage, not a division by zero."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("v", data=np.arange(3000, dtype="i4"), chunks=(1,), compression="gzip")
    data = bytearray(path.read_bytes())
    at = data.index(b"FAHD")
    data[at + 6] = 0
    data[at + 24 : at + 28] = jenkins_lookup3(bytes(data[at : at + 24])).to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(DataLossError, match='chunk index of "v".*no bytes'):
        _open(path, "hdf5").read().result()


def _open(path, scheme, name="v"):
    return ts.open({"driver": "zarr", "kvstore": f"file://{path}|{scheme}:{name}/"}).result()


def test_a_missing_file_is_not_found(tmp_path):
    """A file that does not exist is not an empty hierarchy."""
    with pytest.raises(NotFoundError):
        _open(tmp_path / "none.h5", "hdf5")


@pytest.mark.parametrize("scheme", ["hdf5", "netcdf3"])
def test_another_format_is_refused(tmp_path, scheme):
    """A file that is none of the format is refused by name."""
    (tmp_path / "x").write_bytes(b"something else" * 100)
    with pytest.raises(StoreError, match="Error opening .* file local file"):
        _open(tmp_path / "x", scheme)


def test_chunks_outside_of_the_file_are_named(tmp_path):
    """A chunk index whose entries lead out of the file is damage, and no fill values are read."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file.create_dataset("v", data=np.arange(100, dtype="i4"), chunks=(10,))
    data = bytearray(path.read_bytes())
    with h5py.File(path) as file:
        offset = file["v"].id.get_chunk_info(3).byte_offset
    at = data.index(struct.pack("<Q", offset))
    data[at : at + 8] = struct.pack("<Q", 10**9)
    path.write_bytes(data)
    with pytest.raises(DataLossError, match=r'chunk index of "v".*1000000000'):
        _open(path, "hdf5").read().result()


def test_a_cut_off_classic_file_is_named(tmp_path):
    """A NetCDF 3 file that ends early gives the values it has, and an error for the others."""
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        file.createDimension("t", None)
        file.createDimension("x", 1000)
        file.createVariable("v", "i4", ("t", "x"))[:] = np.arange(3000).reshape(3, 1000)
        file.createVariable("w", "i4", ("t", "x"))[:] = 1
    os.truncate(path, path.stat().st_size - 6000)
    array = _open(path, "netcdf3")
    assert array[0].read().result()[0] == 0
    with pytest.raises(DataLossError, match="cut off"):
        array[2].read().result()


def test_counts_that_no_file_holds_are_refused(tmp_path):
    """A header that claims four billion dimensions is refused at once."""
    path = tmp_path / "a.nc"
    path.write_bytes(b"CDF\x01" + struct.pack(">III", 0, 10, 2**32 - 2) + bytes(200))
    with pytest.raises((FailedPreconditionError, DataLossError)):
        _open(path, "netcdf3")


@pytest.mark.parametrize("begin", [2**62 + 1, 2**63, 2**64 - 8])
def test_offsets_that_no_file_has_leave_a_variable_out(begin, tmp_path, caplog):
    """A variable that begins beyond all numbers of offsets is left out by name; the others can be read."""
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w", format="NETCDF3_64BIT_DATA") as file:
        file.createDimension("x", 5)
        file.createVariable("v", "i4", ("x",))[:] = np.arange(5)
        file.createVariable("w", "i4", ("x",))[:] = np.arange(5) + 70
    data = bytearray(path.read_bytes())
    place = struct.pack(">Q", data.index(struct.pack(">5i", *range(70, 75))))
    at = data.index(place)
    data[at : at + 8] = struct.pack(">Q", begin)
    path.write_bytes(data)
    with caplog.at_level("INFO", "fsstore.kvstore"):
        assert _open(path, "netcdf3")[3].read().result() == 3
    assert '"w"' in caplog.text and "which no file has" in caplog.text
    with pytest.raises(UnimplementedError, match="is left out"):
        _open(path, "netcdf3", "w")


def test_a_variable_of_which_a_file_has_nearly_nothing_is_left_out(tmp_path, caplog):
    """A header of a short file that claims a petabyte: listing its chunks would take hours; the others can be read."""
    path = tmp_path / "a.nc"
    with netCDF4.Dataset(path, "w", format="NETCDF3_CLASSIC") as file:
        for name, size in (("x", 5), ("y", 2**20 - 1), ("z", 2**20 - 3)):
            file.createDimension(name, size)
        file.createVariable("v", "i4", ("x",))[:] = np.arange(5)
        file.createVariable("w", "f8", ("z",))
    data = bytearray(path.read_bytes())
    at = data.index(b"\0\0\0\1w\0\0\0") + 12
    assert data[at : at + 4] == struct.pack(">I", 2)  # the only dimension of w, which becomes two
    data[at - 4 : at + 4] = struct.pack(">3I", 2, 1, 2)
    path.write_bytes(data)
    store = ts.KvStore.open(f"file://{path}|netcdf3:").result()
    with caplog.at_level("INFO", "fsstore.kvstore"):
        assert sorted(store.list().result()) == [b".zattrs", b".zgroup", b"v/.zarray", b"v/.zattrs", b"v/0"]
    assert "and the file at" in caplog.text


def test_a_replaced_file_is_scanned_again(tmp_path):
    """An open store answers from the new file after it was replaced, never from a mixture."""
    path = tmp_path / "a.h5"
    for value in (1, 2):
        fresh = tmp_path / "fresh.h5"
        with h5py.File(fresh, "w") as file:
            if value == 2:
                file["other"] = np.zeros(1000)
            file.create_dataset("v", data=np.full(100, value), chunks=(10,))
        fresh.rename(path)
        store = ts.KvStore.open(f"file://{path}|hdf5:v/").result() if value == 1 else store  # noqa: F821
        assert store.read("3").result().value == np.full(10, value).tobytes()
