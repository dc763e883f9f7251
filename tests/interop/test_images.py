"""Image files as arrays, compared with tensorstore 0.1.86."""

from __future__ import annotations

import struct
import zlib

import imagecodecs
import numpy as np
import pytest
import tensorstore
import tifffile

import fsstore as ts
from fsstore.codec.image_header import image_size, tiff_pages
from fsstore.errors import ResourceExhaustedError

RGB = np.random.default_rng(7).integers(0, 255, (9, 7, 3), np.uint8)
GRAY = np.ascontiguousarray(RGB[..., 0])
RGBA = np.concatenate([RGB, RGB[..., :1]], axis=2)


def _tiff(pixels, **options):
    import io

    buffer = io.BytesIO()
    tifffile.imwrite(buffer, pixels, **options)
    return buffer.getvalue()


IMAGES = {
    "jpeg": imagecodecs.jpeg8_encode(RGB),
    "gray.jpeg": imagecodecs.jpeg8_encode(GRAY),
    "png": imagecodecs.png_encode(RGB),
    "gray.png": imagecodecs.png_encode(GRAY),
    "alpha.png": imagecodecs.png_encode(RGBA),
    "webp": imagecodecs.webp_encode(RGB, lossless=True),
    "bmp": imagecodecs.bmp_encode(RGB),
    "gray.bmp": imagecodecs.bmp_encode(GRAY),
    "avif": imagecodecs.avif_encode(RGB),
    "tiff": _tiff(RGB),
    "gray.tiff": _tiff(GRAY),
}


@pytest.mark.parametrize("name", IMAGES)
def test_images_open_as_in_tensorstore(tmp_path, name):
    """An image is detected by content, with the domain, values, spec and URL of TensorStore."""
    (tmp_path / "image").write_bytes(IMAGES[name])
    url = f"file://{tmp_path}/image"
    ours, theirs = ts.open(url).result(), tensorstore.open(url).result()
    assert ours.url == theirs.url
    assert ours.spec().to_json() == theirs.spec().to_json()
    assert ours.schema.to_json() == theirs.schema.to_json()
    assert ours.mode == theirs.mode == "r"
    if name != "avif":  # lossy, and each library has its own conversion of colours
        assert np.array_equal(ours.read().result(), theirs.read().result())
    assert np.array_equal(ours[2:4, ::2, 0].read().result(), ours.read().result()[2:4, ::2, 0])


@pytest.mark.parametrize("name", ["jpeg", "png", "webp", "bmp", "avif", "tiff"])
def test_damaged_images_are_refused(tmp_path, name):
    """A truncated image, and bytes that are none, raise errors of this library."""
    for data in (IMAGES[name][:40], b"\0" * 100, b""):
        (tmp_path / "image").write_bytes(data)
        with pytest.raises(ValueError, match="Error reading"):
            ts.open(f"file://{tmp_path}/image|{name}:").result()


WIDER = {
    "png": imagecodecs.png_encode(RGB.astype("u2")),
    "gray.png": imagecodecs.png_encode(GRAY.astype("u2")),
    "tiff": _tiff(RGB.astype("u2")),
    "big.tiff": _tiff(RGBA.astype("u2"), bigtiff=True, byteorder=">"),
    "gray.tiff": _tiff(GRAY.astype("f4")),
}


@pytest.mark.parametrize("name", WIDER)
def test_wider_elements_are_refused(tmp_path, name, monkeypatch):
    """Images of other types than uint8 are refused, as TensorStore does; ours before it decodes anything."""
    (tmp_path / "image").write_bytes(WIDER[name])
    kind = name.rpartition(".")[2]
    monkeypatch.setattr(imagecodecs, f"{kind}_decode", lambda *_: pytest.fail("was decoded"))
    for library in (ts, tensorstore):
        with pytest.raises(NotImplementedError, match="only supports uint8"):
            library.open(f"file://{tmp_path}/image").result()


def test_jpeg_of_twelve_bits(tmp_path):
    """Is refused by its header."""
    pixels = np.zeros((8, 8), "u2")
    (tmp_path / "image").write_bytes(imagecodecs.jpeg_encode(pixels, bitspersample=12))
    with pytest.raises(NotImplementedError, match="only supports uint8 images, not samples of 12 bits"):
        ts.open(f"file://{tmp_path}/image").result()


@pytest.mark.parametrize("bits", [10, 12])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_avif_of_more_bits(tmp_path, monkeypatch, bits, channels):
    """Is refused by its header too, wherever in the file that stands; one of eight bits is read."""
    pixels = np.zeros((8, 9, channels), "u2")
    data = imagecodecs.avif_encode(pixels, bitspersample=bits)
    pad = b"\0\0\0\x01free" + (116).to_bytes(8, "big") + bytes(100)
    at = int.from_bytes(data[:4], "big")
    place = tmp_path / "image"
    place.write_bytes(imagecodecs.avif_encode(pixels.astype("u1")))
    assert ts.open(f"file://{place}").result().shape[:2] == (8, 9)
    monkeypatch.setattr(imagecodecs, "avif_decode", lambda *_: pytest.fail("was decoded"))
    for stored in (data, data[:at] + pad + data[at:]):
        place.write_bytes(stored)
        with pytest.raises(NotImplementedError, match=f"only supports uint8 images, not samples of {bits} bits"):
            ts.open(f"file://{place}").result()


def test_pages(tmp_path):
    """A TIFF file of several pages is opened by page."""
    (tmp_path / "image").write_bytes(_tiff(np.stack([GRAY, GRAY + 1]), photometric="minisblack"))
    for library in (ts, tensorstore):
        with pytest.raises(ValueError, match="Multi-page TIFF image encountered"):
            library.open(f"file://{tmp_path}/image").result()
        spec = {"driver": "tiff", "page": 1, "kvstore": f"file://{tmp_path}/image"}
        assert np.array_equal(library.open(spec).result().read().result()[..., 0], GRAY + 1)


def test_a_header_that_promises_too_much(tmp_path):
    """The size in a header is believed only up to a limit."""
    data = bytearray(IMAGES["png"])
    data[16:24] = b"\x00\x10\x00\x00" * 2
    (tmp_path / "image").write_bytes(bytes(data))
    with pytest.raises(ValueError, match="RESOURCE_EXHAUSTED"):
        ts.open(f"file://{tmp_path}/image").result()


def test_images_are_read_only(tmp_path):
    """Writing is refused."""
    (tmp_path / "image").write_bytes(IMAGES["png"])
    with pytest.raises(ValueError, match="does not support writing"):
        ts.open(f"file://{tmp_path}/image").result()[...] = 0


def tiff_header(order, is_big, sizes):
    """Return the directories of a TIFF file, one a page of a width and a height, and nothing else."""
    offset, count, entry = ("Q", "Q", "HHQQ") if is_big else ("I", "H", "HHII")
    start = struct.pack(order + ("HHHQ" if is_big else "HI"), *((43, 8, 0, 16) if is_big else (42, 8)))
    data = (b"II" if order == "<" else b"MM") + start
    for number, (width, height) in enumerate(sizes, 1):
        long = 16 if is_big else 4
        tags = [struct.pack(order + entry, 256, long, 1, width), struct.pack(order + entry, 257, long, 1, height)]
        end = len(data) + struct.calcsize(order + count) + sum(map(len, tags)) + struct.calcsize(order + offset)
        data += struct.pack(order + count, 2) + b"".join(tags)
        data += struct.pack(order + offset, end if number < len(sizes) else 0)
    return data


def _png_of_palette(numbers, colours):
    """Return a PNG whose pixels are numbers of colours."""

    def part(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    rows, columns = numbers.shape
    head = part(b"IHDR", struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0))
    lines = zlib.compress(b"".join(b"\0" + bytes(line) for line in numbers))
    return b"\x89PNG\r\n\x1a\n" + head + part(b"PLTE", bytes(colours)) + part(b"IDAT", lines) + part(b"IEND", b"")


def test_colours_are_those_that_are_meant(tmp_path):
    """Palettes are applied, the unused byte of a bitmap is no channel, and an alpha channel is one, not two."""
    numbers, colours = GRAY % 3, np.array([[9, 8, 7], [0, 255, 0], [1, 2, 3]], np.uint8)
    header = struct.pack("<2sIHHIIiiHHIIiiII", b"BM", 54 + 252, 0, 0, 54, 40, 7, 9, 1, 32, 0, 252, 0, 0, 0, 0)
    for name, data, want, their_channels in (
        ("a.png", _png_of_palette(numbers, colours), colours[numbers], 1),
        ("a.bmp", header + RGBA[::-1, :, [2, 1, 0, 3]].tobytes(), RGB, 4),
        ("a.tiff", _tiff(RGBA, photometric="rgb", extrasamples=["unassalpha"]), RGBA, 5),
    ):
        (tmp_path / name).write_bytes(data)
        spec = {"driver": name[2:], "kvstore": f"file://{tmp_path}/{name}"}
        assert ts.open(spec).result().read().result().tolist() == want.tolist()
        assert tensorstore.open(spec).result().shape == (9, 7, their_channels)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("is_big", [False, True])
def test_sizes_of_tiff(order, is_big):
    """The sizes of the pages of a TIFF file are read in both byte orders and with both widths of offsets."""
    data = tiff_header(order, is_big, [(7, 5), (40000, 30000)])
    assert [(size.width, size.height) for size in tiff_pages(data)] == [(7, 5), (40000, 30000)]
    assert image_size("tiff", data, 1).nbytes == 40000 * 30000
    assert image_size("tiff", data[:-30], 1).nbytes == 0


def test_sizes_of_jpeg():
    """The size of a JPEG file is found behind other segments, padding, and bytes that decoders pass over."""
    data = imagecodecs.jpeg8_encode(np.zeros((6, 9, 3), "u1"))
    for between in (b"", b"\xff\xff", b"\0\0", b"\xff\0", b"\xff\xd0"):
        assert image_size("jpeg", data[:2] + between + data[2:]) == (9, 6, 3, 8)
    assert image_size("jpeg", data[:20]).nbytes == 0


@pytest.mark.parametrize("kind", ["jpeg", "tiff"])
def test_promises_are_refused(tmp_path, kind):
    """A file of a few bytes that promises more than a gigabyte is refused before it is decoded."""
    if kind == "tiff":
        data = tiff_header("<", False, [(40000, 40000)])
    else:
        data = imagecodecs.jpeg8_encode(np.zeros((8, 8, 3), "u1"))
        frame = data.index(b"\xff\xc0")
        data = data[: frame + 5] + struct.pack(">2H", 60000, 60000) + data[frame + 9 :]
    (tmp_path / "image").write_bytes(data)
    with pytest.raises(ResourceExhaustedError, match="pixels of . samples, more than fit in 1 GiB"):
        ts.open({"driver": kind, "kvstore": f"file://{tmp_path}/image"}).result()
