"""Images whose headers lie: decoders written in C must not read past their data, work for seconds or print.

Most of it runs in a process of its own, on data that end at a page without access: reading on ends that process.
"""

from __future__ import annotations

import struct
import subprocess
import sys
import time

import numpy as np
import pytest

import fsstore as ts
from fsstore.codec.image_header import checked_image
from fsstore.errors import DataLossError, StoreError

imagecodecs = pytest.importorskip("imagecodecs", reason="the extra `images` brings it")

PIXELS = (np.arange(32 * 24 * 3) * 7 % 251).astype("u1").reshape(32, 24, 3)


def altered(data: bytes, at: int, form: str, *values: int) -> bytes:
    """Return data with numbers of the header replaced."""
    out = bytearray(data)
    struct.pack_into(form, out, at, *values)
    return bytes(out)


def opened(kind: str, data: bytes) -> np.ndarray:
    """Return the pixels of an image in memory."""
    base = ts.KvStore.open({"f": data}).result() / "f"
    return np.asarray(ts.open({"driver": kind}, kvstore=base).result().read().result())


@pytest.mark.parametrize(
    ("at", "form", "values"),
    [
        (18, "<2i", (64, 64)), (18, "<2i", (24, 33)), (18, "<2i", (400, 32)), (18, "<2i", (-24, 32)), (18, "<2i", (0, 32)), (22, "<i", (-(2**31),)),
        (28, "<H", (32,)), (28, "<H", (7,)), (34, "<I", (2**31,)), (10, "<I", (5000,)), (10, "<I", (2,)), (14, "<I", (2**31,)),
        (30, "<I", (1,)), (46, "<I", (2**20,)), (0, "<H", (0,)),
    ],
)  # fmt: skip
def test_rows_that_a_header_promises_must_be_there(at, form, values):
    """A bitmap is refused unless stride times height lies within the file, whatever size the header gives itself."""
    data = altered(imagecodecs.bmp_encode(PIXELS), at, form, *values)
    with pytest.raises(StoreError):
        opened("bmp", data)


@pytest.mark.parametrize("shape", [(32, 24, 3), (5, 3), (1, 1), (7, 2, 3)])
@pytest.mark.parametrize("said", [None, 0])
def test_sound_bitmaps_are_read(shape, said):
    """What encoders write is accepted, also without a size of the image."""
    pixels = np.resize(PIXELS, shape)
    data = imagecodecs.bmp_encode(pixels)
    data = data if said is None else altered(data, 34, "<I", said)
    assert np.array_equal(opened("bmp", data).reshape(shape), pixels)


GUARDED = """
import ctypes, mmap, random, sys
import numpy as np, imagecodecs
from fsstore.codec.image_header import checked_image
from fsstore.errors import StoreError
kind, rounds = sys.argv[1], int(sys.argv[2])
libc = ctypes.CDLL(None); libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
page = mmap.PAGESIZE; area = np.frombuffer(mmap.mmap(-1, 5 * page), "u1")
assert libc.mprotect(area.ctypes.data + 4 * page, page, 0) == 0
pixels = (np.arange(32 * 24 * 3) * 7 % 251).astype("u1").reshape(32, 24, 3)
seed = getattr(imagecodecs, kind + "_encode")(pixels)
chance = random.Random(7)
for _ in range(rounds):
    data = bytearray(seed)
    for _ in range(chance.choice((1, 1, 2, 4))):
        at = chance.randrange(min(len(data), 90) if chance.random() < 0.7 else len(data))
        if chance.random() < 0.15: del data[at:]
        else: data[at:at + 4] = chance.choice((0, 1, 255, 2**16, 2**31, 2**31 - 1, chance.randrange(2**32))).to_bytes(4, "little")
        if not data: break
    try: data = checked_image(kind, bytes(data))
    except StoreError: continue
    view = area[4 * page - len(data):4 * page]; view[:] = np.frombuffer(data, "u1")
    try:
        if kind == "bmp": imagecodecs.bmp_decode(view)
        else: getattr(imagecodecs, kind + "_decode")(view, out=np.empty(pixels.shape, "u1"))
    except Exception: pass
print("alive")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs mprotect")
@pytest.mark.parametrize("kind", ["bmp", "png", "jpegls"])
def test_nothing_is_read_behind_the_data(kind):
    """Mutated images at the edge of memory are decoded or refused, and the process lives."""
    done = subprocess.run([sys.executable, "-c", GUARDED, kind, "1500"], capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, b"alive"), done.stderr[-500:]


def test_a_jpeg_ls_whose_end_is_cut_off_takes_no_time():
    """Its decoder looks for bits that are not there for seconds, unless the end is marked."""
    data = imagecodecs.jpegls_encode(PIXELS)
    assert np.array_equal(imagecodecs.jpegls_decode(checked_image("jpegls", data)), PIXELS)
    begin = time.process_time()
    with pytest.raises(Exception, match="JPEG-LS"):
        imagecodecs.jpegls_decode(checked_image("jpegls", data[:100]))
    assert time.process_time() - begin < 0.5


@pytest.mark.parametrize("data", [b"", b"\x89P", b"\x89PNG\r\n\x1a\n"])
def test_a_signature_that_is_cut_off_is_none(data):
    """PNG's signature is compared by a library that does not ask how much there is."""
    with pytest.raises(DataLossError, match="png"):
        checked_image("png", data)


@pytest.mark.parametrize("entries", [65, 65535])
def test_directories_of_jpeg_xr_are_small(entries):
    """The decoder prints a line for each entry that it does not know."""
    data = imagecodecs.jpegxr_encode(PIXELS)
    assert checked_image("jpegxr", data) == data
    (at,) = struct.unpack_from("<I", data, 4)
    with pytest.raises(DataLossError, match="jpegxr"):
        checked_image("jpegxr", altered(data, at, "<H", entries))
