"""Pages that only libtiff decodes: old JPEG, LogLuv and sparse colours have the values that its other users show."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import imagecodecs
import numpy as np
import pytest
import rasterio
from PIL import Image

import fsstore as ts
from fsstore import references
from fsstore.errors import StoreError

sys.path.insert(0, str(Path(__file__).parent))
from tiff_pages import Page, joined, logarithms, old_jpeg_stream, old_jpeg_tables, page

sys.path.pop(0)

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
_ROWS, _COLUMNS = np.mgrid[:40, :56]
COLOURS = np.stack([_COLUMNS * 4, _ROWS * 6, _COLUMNS + _ROWS], axis=-1).astype("u1")
GREY = COLOURS[..., 0]
NOISE = np.random.default_rng(7)


def read(path, name="0"):
    """Return the values of an array."""
    return ts.open(f"file://{path}|tiff:{name}").result().read().result()


def written(path, *pages, letter="<"):
    """Write pages, and return the path."""
    path.write_bytes(joined(*pages, letter=letter))
    return path


OLD_JPEG = {
    **{f"stream {sampling}": old_jpeg_stream(COLOURS, sampling) for sampling in (0, 1, 2)},
    **{f"tables {sampling}": old_jpeg_tables(COLOURS, sampling) for sampling in (0, 1, 2)},
    **{f"strips {sampling}": old_jpeg_tables(COLOURS, sampling, strips=3) for sampling in (0, 1, 2)},
}


@pytest.mark.parametrize("letter", "<>")
@pytest.mark.parametrize("name", OLD_JPEG)
def test_old_jpeg_has_the_colours_that_gdal_and_pillow_show(name, letter, tmp_path):
    """Streams, and tables beside strips, at each sampling, to the last bit; and they are those of the picture.

    Of several strips libtiff 4.7 shows other colours where numbers stand the other way round, to all its users.
    """
    path = written(tmp_path / "a.tif", OLD_JPEG[name], letter=letter)
    got = read(path)
    with rasterio.open(path) as file:
        np.testing.assert_array_equal(got, np.moveaxis(file.read(), 0, -1))
    np.testing.assert_array_equal(got, np.asarray(Image.open(path)))
    if letter == "<" or "strips" not in name:
        assert np.abs(got.astype(int) - COLOURS).mean() < 2


@pytest.mark.parametrize("made", [old_jpeg_stream(GREY), old_jpeg_tables(GREY), old_jpeg_tables(GREY, strips=3)])
def test_old_jpeg_without_colours(made, tmp_path):
    """Grey pictures have the values that imagecodecs shows; GDAL and Pillow show none."""
    path = written(tmp_path / "a.tif", made)
    got = read(path)
    np.testing.assert_array_equal(got, imagecodecs.tiff_decode(path.read_bytes()))
    assert np.abs(got.astype(int) - GREY).max() <= 2


def test_tags_that_old_jpeg_may_lack(tmp_path):
    """Without the number of bits and samples they are those of three colours, and RGB is taken for YCbCr."""
    whole = OLD_JPEG["stream 2"]
    tags = {tag: value for tag, value in whole.tags.items() if tag not in (258, 277, 339)}
    want = read(written(tmp_path / "a.tif", whole))
    for name, more in {"b": {}, "c": {262: (3, [2])}}.items():
        path = written(tmp_path / name, Page({**tags, **more}, whole.parts))
        np.testing.assert_array_equal(read(path), want)


def test_later_pages_are_read_as_their_own(tmp_path):
    """Each page is decoded from the whole file with its own directory, also after the scan was saved."""
    pages = [old_jpeg_tables(np.roll(COLOURS, 9 * number, axis=1)) for number in range(3)]
    alone = [read(written(tmp_path / f"{number}", each)) for number, each in enumerate(pages)]
    path = written(tmp_path / "a.tif", *pages)
    np.testing.assert_array_equal(read(path), np.stack(alone))
    assert not np.array_equal(alone[0], alone[1])
    references.scan(f"file://{path}").save(tmp_path / "a.json")
    again = ts.open(f"file://{tmp_path}/a.json|reference:0/|zarr2:").result().read().result()
    np.testing.assert_array_equal(again, np.stack(alone))


GREYS = {"logl": (16, 1), "logl signed": (16, 2), "logl light": (32, 3)}


@pytest.mark.parametrize("name", GREYS)
def test_logarithms_of_light_are_those_of_gdal(name, tmp_path):
    """LogL is shown as codes, or as light where the file says that its samples are floats."""
    bits, form = GREYS[name]
    codes = NOISE.integers(15000, 18000, (12, 20)).astype("u2")
    path = written(tmp_path / "a.tif", logarithms(codes, colours=False, bits=bits, form=form))
    got = read(path)
    with rasterio.open(path) as file:
        np.testing.assert_array_equal(got, file.read(1), strict=True)


@pytest.mark.parametrize(("bits", "form"), [(16, 1), (16, 2), (32, 3)])
def test_logarithms_with_colours_are_light(bits, form, tmp_path):
    """LogLuv is shown as XYZ in floats, as libtiff decodes it, whichever samples the file names."""
    codes = (NOISE.integers(15000, 18000, (12, 20)) << 16 | NOISE.integers(60, 120, (12, 20)) << 8 | 170).astype("u4")
    path = written(tmp_path / "a.tif", logarithms(codes, colours=True, bits=bits, form=form))
    got = read(path)
    np.testing.assert_array_equal(got, imagecodecs.tiff_decode(path.read_bytes()), strict=True)
    light = np.exp2(((codes >> 16) + 0.5) / 256 - 64)  # as the format defines it
    np.testing.assert_allclose(got[..., 1], light, rtol=1e-5)


@pytest.mark.parametrize("compression", [1, 5, 8])
@pytest.mark.parametrize("sampling", [(2, 1), (2, 2), (4, 2)])
def test_fewer_colours_than_pixels(compression, sampling, tmp_path):
    """YCbCr whose colours belong to several pixels, outside of JPEG, is shown as the colours that GDAL shows."""
    across, down = sampling
    data = NOISE.integers(0, 256, 40 * 56 // (across * down) * (across * down + 2)).astype("u1").tobytes()
    encoded = {1: data, 5: imagecodecs.lzw_encode(data), 8: imagecodecs.zlib_encode(data)}[compression]
    path = written(tmp_path / "a.tif", page((40, 56, 3), compression, 6, [bytes(encoded)], sampling=sampling))
    with rasterio.open(path) as file:
        np.testing.assert_array_equal(read(path), np.moveaxis(file.read(), 0, -1))


def test_damage_is_an_error_or_numbers(tmp_path):
    """Flipped bits and cuts end in errors of fsstore, or in values of the shape that the file says."""
    chance, ended = random.Random(3), {"read": 0, "refused": 0}
    for number, made in enumerate([OLD_JPEG["stream 2"], OLD_JPEG["strips 1"]] * 40):
        data = bytearray(joined(made))
        for _ in range(chance.choice((1, 3))):
            data[chance.randrange(8, len(data))] = chance.randrange(256)
        path = tmp_path / f"{number}"
        path.write_bytes(data if number % 4 else data[: chance.randrange(len(data))])
        try:
            ended["read"] += read(path).size > 0
        except StoreError as error:
            ended["refused"] += 1
            assert str(path) in str(error)
    assert min(ended.values()) > 10
