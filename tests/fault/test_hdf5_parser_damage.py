"""Damaged metadata of HDF5 files, parsed with and without a look at their checksums: errors of ours, in bounds."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc

import h5py
import numpy as np
import pytest

import fsstore as ts
from fsstore.context.context import Context
from fsstore.errors import DataLossError, StoreError
from fsstore.kvstore.spec_parse import kv_spec, open_kv
from fsstore.runtime import execution
from fsstore.scan.contract import ScanSource
from fsstore.scan.hdf5 import walk
from fsstore.scan.hdf5.structure import Reader
from fsstore.scan.hdf5.walk import OpenHdf5

NUMBERS = [0, 1, 0xFF, 0xFFFF, 2**31 - 1, 2**32 - 1, 2**62, 2**63, 2**64 - 1]


class Strict(OpenHdf5):
    """A file that h5py must not open."""

    def library(self):
        raise AssertionError("h5py is asked")


def parse(data: bytes) -> walk.Objects:
    """Return what a file of these bytes holds."""

    async def scan():
        place = (await open_kv(kv_spec("memory://damaged"), Context())).prefix
        await place.write("", data)
        file = Strict(await ScanSource(place).begin())
        return await file.run(walk.Walk(file).step)

    return execution.call(scan())


def write(path, **options):
    """Write a file with every structure that is parsed."""
    with h5py.File(path, "w", **options) as file:
        for owner in (file, file.create_group("g", track_order=True), file.create_dataset("v", (4, 4), "i2")):
            owner.attrs["text"], owner.attrs["texts"] = "a text", ["a", "bcd", "é"]
            owner.attrs["numbers"], owner.attrs["record"] = np.arange(5), np.array((1, 2), "i4,f8")
            for number in range(12):
                owner.attrs[f"a{number}"] = np.full(number + 1, number)
            owner.attrs.create("kind", 1, dtype=h5py.enum_dtype({"A": 0, "B": 1}, "i2"))
        for number in range(20):
            file.create_group(f"many{number}")
        file["x"], file["soft"] = np.arange(4), h5py.SoftLink("/g")
        file["x"].make_scale("x")
        file["v"].dims[0].attach_scale(file["x"])
        file["type"] = np.dtype("f4")
        file.create_dataset("typed", (2,), file["type"], fillvalue=3)
        for number, most in enumerate([(6, 6), (None, 6), (None, None)]):
            file.create_dataset(
                f"c{number}", (6, 6), "f4", maxshape=most, chunks=(2, 3), compression="gzip", shuffle=True
            )
    return path.read_bytes()


def damaged(data: bytes, places: list[int], chance: random.Random) -> bytes:
    """Return a file with something wrong in its metadata."""
    out = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 3))):
        at = min(chance.choice(places) + chance.randrange(64), len(out) - 9)
        width = chance.choice((1, 1, 2, 4, 8))
        number = chance.choice((*NUMBERS, chance.randrange(256), chance.choice(places))) & (256**width - 1)
        out[at : at + width] = number.to_bytes(width, "little")
    return bytes(out)


def structures(data: bytes) -> list[int]:
    """Return where structures begin, and every eighth byte of what has no signature."""
    marks = (b"OHDR", b"OCHK", b"FRHP", b"FHDB", b"FHIB", b"BTHD", b"BTLF", b"BTIN", b"TREE", b"SNOD", b"HEAP", b"GCOL")
    return [at for at in range(len(data)) if data[at : at + 4] in marks] + list(range(0, len(data), 8))


@pytest.mark.parametrize("checked", [True, False], ids=["with checksums", "without"])
@pytest.mark.parametrize("libver", ["earliest", "latest"])
def test_damaged_metadata(libver, checked, tmp_path, monkeypatch):
    """Numbers that make no sense anywhere in the metadata cost one object or the file, and little time and memory."""
    data = write(tmp_path / "a.h5", libver=libver)
    whole = parse(data)
    assert len(whole.datasets) == 6
    assert not whole.notes.keys() - {"soft"}
    if not checked:
        monkeypatch.setattr(Reader, "verify", lambda *args: None)
    places, refused, left_out = structures(data), 0, 0
    for seed in range(300):
        chance = random.Random(seed)
        broken = damaged(data, places, chance) if seed % 10 else data[: chance.randrange(len(data))]
        began = time.monotonic()
        try:
            found = parse(broken)
            left_out += bool(found.notes.keys() - {"soft"})
        except StoreError:
            refused += 1
        assert time.monotonic() - began < 5, seed
    assert refused + left_out > 30


def test_a_damaged_header_costs_one_object(tmp_path):
    """An object whose checksum is wrong is left out with its offset; all others are shown."""
    data = bytearray(write(tmp_path / "a.h5", libver="latest"))
    with h5py.File(tmp_path / "a.h5") as file:
        address = h5py.h5g.get_objinfo(file["x"].id).objno[0]
    data[address + 30] ^= 1
    found = parse(bytes(data))
    assert f"offset {address}: the checksum of an object header" in found.notes["x"]
    assert "v" in found.datasets


def test_strings_that_are_shown_again_and_again_are_refused(tmp_path):
    """Four thousand references to one string of a mebibyte are no four gibibytes."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["v"] = np.arange(3)
        file["v"].attrs["texts"] = ["x" * 2**20] + ["y"] * 4000
    data = path.read_bytes()
    size = struct.pack("<I", 2**20)
    heap = next(at for at in range(len(data)) if data[at : at + 4] == size and data[at + 16 : at + 20] == b"\1\0\0\0")
    first = data[heap : heap + 16]
    data = data[:heap] + first * 4001 + data[heap + 16 * 4001 :]
    tracemalloc.start()
    found = parse(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert "again and again" in found.notes["v"]
    assert peak < 100 * 2**20


def test_chains_of_headers_end(tmp_path):
    """A header that goes on where it began is damage."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        found = file.create_group("g")
        for number in range(6):
            found.attrs[f"a{number}"] = number
        address = h5py.h5g.get_objinfo(found.id).objno[0]
    data = bytearray(path.read_bytes())
    at = data.index(b"\x10\0\x10\0", address)
    data[at + 8 : at + 24] = struct.pack("<QQ", address + 16, 200)
    assert "without end" in parse(bytes(data)).notes["g"]


INDEXES = {
    "fixed": ({}, 30, b"FAHD", b"FADB"),
    "fixed in pages": ({}, 3000, b"FAHD", b"FADB"),
    "extensible": ({"maxshape": (None,)}, 30, b"EAHD", b"EAIB", b"EADB"),
    "extensible in pages": ({"maxshape": (None,)}, 20_000, b"EAHD", b"EASB", b"EADB"),
    "tree": ({"maxshape": (None, None)}, 30, b"BTHD", b"BTLF"),
    "tree of two levels": ({"maxshape": (None, None)}, 300, b"BTHD", b"BTIN", b"BTLF"),
}


def read(path):
    """Return the array of a file, opened anew."""
    return ts.open(f"file://{path}|hdf5:x", context=ts.Context()).result().read().result()


@pytest.mark.parametrize("index", INDEXES)
def test_every_flipped_bit_of_a_chunk_index_raises(index, tmp_path):
    """Indexes with checksums never give other values or fill values: header, blocks, pages, inner nodes and leaves."""
    options, count, *signatures = INDEXES[index]
    shape = (count, 1) if index.startswith("tree") else (count,)
    values = np.arange(1, count + 1, dtype="i4").reshape(shape)
    chunks = (1,) * len(shape)
    with h5py.File(tmp_path / "a.h5", "w", libver="latest") as file:
        file.create_dataset("x", data=values, chunks=chunks, **options)
    assert (read(tmp_path / "a.h5") == values).all()
    whole, damaged_file = (tmp_path / "a.h5").read_bytes(), tmp_path / "b.h5"
    for signature in signatures:
        for ahead in range(0, 28, 4):
            data = bytearray(whole)
            data[whole.rindex(signature) + ahead] ^= 1 << (ahead % 8)
            damaged_file.write_bytes(data)
            with pytest.raises(StoreError):
                read(damaged_file)
    if "pages" in index:
        data = bytearray(whole)
        data[whole.rindex(signatures[-1]) + 2000] ^= 8
        damaged_file.write_bytes(data)
        with pytest.raises(DataLossError, match="checksum"):
            read(damaged_file)


@pytest.mark.parametrize("field", range(3))
@pytest.mark.parametrize("bit", [0, 2, 10, 40])
def test_chunks_are_where_chunks_can_be(field, bit, tmp_path):
    """A flipped bit in the place of a chunk in an index without checksums raises; no chunk reads as fill values."""
    values = np.arange(1, 721.0).reshape(24, 30)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(5, 7))
        info = file["x"].id.get_chunk_info(7)
    data = bytearray((tmp_path / "a.h5").read_bytes())
    key = struct.pack("<IIQQQ", info.size, 0, *info.chunk_offset, 0)
    data[data.index(key) + 8 + 8 * field + bit // 8] ^= 1 << bit % 8
    (tmp_path / "b.h5").write_bytes(data)
    with pytest.raises(DataLossError, match="where none can be"):
        read(tmp_path / "b.h5")


def test_chunks_that_share_bytes_are_refused(tmp_path):
    """A damaged address that leads into another chunk does not give its values twice."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.arange(40.0), chunks=(10,))
        places = [file["x"].id.get_chunk_info(number).byte_offset for number in range(4)]
    data = bytearray((tmp_path / "a.h5").read_bytes())
    at = data.index(struct.pack("<QQQ", 20, 0, places[2])) + 16
    data[at : at + 8] = struct.pack("<Q", places[1] + 8)
    (tmp_path / "b.h5").write_bytes(data)
    with pytest.raises(DataLossError, match="two chunks share bytes"):
        read(tmp_path / "b.h5")


@pytest.mark.parametrize("mask", [0, 1, 2, 3])
@pytest.mark.parametrize("stored", [b"\1", b"\1\2\3"])
def test_a_chunk_without_room_for_its_checksum_is_damaged(stored, mask, tmp_path):
    """Also where a filter was skipped, so that the others are undone here."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        made = file.create_dataset("x", (4,), "i4", chunks=(4,), shuffle=True, compression="gzip", fletcher32=True)
        made.id.write_direct_chunk((0,), stored, filter_mask=mask)
    with pytest.raises(StoreError, match="checksum|decompress|fletcher32|zlib"):
        read(tmp_path / "a.h5")
