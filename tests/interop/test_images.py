"""Image files as arrays, compared with tensorstore 0.1.86."""

from __future__ import annotations

import imagecodecs
import numpy as np
import pytest
import tensorstore
import tifffile

import fsstore as ts

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


@pytest.mark.parametrize("name", ["png", "tiff"])
def test_wider_elements_are_refused(tmp_path, name):
    """Images of other types than uint8 are refused, as TensorStore does."""
    data = imagecodecs.png_encode(GRAY.astype("u2")) if name == "png" else _tiff(GRAY.astype("u2"))
    (tmp_path / "image").write_bytes(data)
    for library in (ts, tensorstore):
        with pytest.raises(NotImplementedError, match="only supports uint8"):
            library.open(f"file://{tmp_path}/image").result()


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
