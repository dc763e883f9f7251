"""Damaged metadata of HDF5 files, parsed with and without a look at their checksums: errors of ours, in bounds."""

from __future__ import annotations

import random
import struct
import time
import tracemalloc

import h5py
import numpy as np
import pytest

from fsstore.context.context import Context
from fsstore.errors import StoreError
from fsstore.kvstore.spec.opening import open_kv
from fsstore.kvstore.spec.parse import kv_spec
from fsstore.runtime import execution
from fsstore.scan.hdf5 import walk
from fsstore.scan.hdf5.format.reader import Reader, UnknownError
from fsstore.scan.hdf5.open_file import OpenHdf5
from fsstore.scan.source import ScanSource

NUMBERS = [0, 1, 0xFF, 0xFFFF, 2**31 - 1, 2**32 - 1, 2**62, 2**63, 2**64 - 1]


class Parsed(walk.Walk):
    """A walk that leaves nothing to h5py."""

    def _by_library(self, path, address):
        raise UnknownError("h5py would be asked")


class Strict(OpenHdf5):
    """A file that h5py must not open."""

    def library(self):
        raise UnknownError("h5py would be asked")


def parse(data: bytes) -> walk.Objects:
    """Return what a file of these bytes holds."""

    async def scan():
        place = (await open_kv(kv_spec("memory://damaged"), Context())).prefix
        await place.write("", data)
        file = Strict(await ScanSource(place).begin())
        return await file.run(Parsed(file).step)

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
    marks = (
        b"OHDR",
        b"OCHK",
        b"FRHP",
        b"FHDB",
        b"FHIB",
        b"BTHD",
        b"BTLF",
        b"BTIN",
        b"TREE",
        b"SNOD",
        b"HEAP",
        b"GCOL",
    )
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
        except (StoreError, UnknownError):
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
    heap = next(
        at for at in range(len(data)) if data[at : at + 4] == size and data[at + 16 : at + 20] == b"\1\0\0\0"
    )
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
