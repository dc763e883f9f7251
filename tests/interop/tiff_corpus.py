"""TIFF files of every compression, layout and sample type, made by tifffile and GDAL."""

from __future__ import annotations

import warnings

import numpy as np
import rasterio
import tifffile
from rasterio.transform import from_origin

CHANCE = np.random.default_rng(5)
GREY = np.cumsum(CHANCE.integers(0, 3, (75, 90)), axis=1).astype("u1")
COLOUR = np.stack([GREY, GREY[::-1], GREY[:, ::-1]], axis=-1)
LOSSLESS = ("zlib", "lzw", "packbits", "lzma", "zstd", "lerc", "jpegxl", "jpeg2000", "png", "jpegxr")
TYPES = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16")


def by_tifffile():
    """Return what to write by name: an array and the options of tifffile."""
    out = {"run": (GREY, {}), "bigtiff": (GREY, {"bigtiff": True}), "stack": (np.stack([GREY, GREY + 1]), {})}
    for form, image in {"grey": (GREY, "minisblack"), "colour": (COLOUR, "rgb")}.items():
        for compression in (None, *LOSSLESS, "jpeg", "webp"):
            if (compression, form) == ("webp", "grey"):
                continue
            options = {"compression": compression, "photometric": image[1]}
            out[f"{compression} {form} tiles"] = (image[0], {**options, "tile": (32, 48)})
            out[f"{compression} {form} strips"] = (image[0], {**options, "rowsperstrip": 16})
    for kind in TYPES:
        for order in "<>":
            options = {"byteorder": order, "compression": "zlib", "rowsperstrip": 16}
            out[f"{kind} {order}"] = (GREY.astype(kind), options)
            if kind not in ("u8", "i8", "c8", "c16"):
                out[f"{kind} {order} predicted"] = (GREY.astype(kind), {**options, "predictor": True})
    planes = np.moveaxis(COLOUR, -1, 0).astype("u2")
    apart = {"planarconfig": "separate", "photometric": "rgb", "compression": "zlib", "predictor": True}
    out["planes tiles"] = (planes, {**apart, "tile": (32, 48)})
    out["planes strips"] = (planes, {**apart, "rowsperstrip": 16})
    cube = np.stack([GREY + number for number in range(12)]).reshape(2, 2, 3, *GREY.shape)
    out["ome"] = (cube, {"ome": True, "metadata": {"axes": "TCZYX", "PhysicalSizeX": 0.5}})
    out["ome colour"] = (np.stack([COLOUR] * 2), {"ome": True, "metadata": {"axes": "ZYXS"}, "photometric": "rgb"})
    out["imagej"] = (cube[0], {"imagej": True, "metadata": {"axes": "TZYX"}})
    out["cut short"] = (cube[0], {"photometric": "minisblack", "metadata": {"axes": "CZYX"}, "truncate": True})
    out["bilevel"] = (GREY > 60, {"compression": "zlib", "photometric": "minisblack", "rowsperstrip": 16})
    out["palette"] = (GREY, {"photometric": "palette", "colormap": np.zeros((3, 256), "u2")})
    return out


def any_tiff(chance):
    """Return an array and options of tifffile that fit each other, by a generator of random numbers."""
    axes = str(chance.choice(["YX", "ZYX", "TZYX", "YXS", "TZCYX", "ZYXS"]))
    longest = {"Y": 70, "X": 70}
    shape = [3 if axis == "S" else int(chance.integers(1, longest.get(axis, 3) + 1)) for axis in axes]
    kind = np.dtype(str(chance.choice(["u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8"])))
    options = {
        "compression": chance.choice([None, "zlib", "lzw", "packbits", "zstd"]),
        "photometric": "rgb" if "S" in axes else "minisblack",
        "byteorder": str(chance.choice(["<", ">"])),
    }
    if chance.random() < 0.5:
        options["tile"] = tuple(int(chance.choice([16, 32, 48])) for _ in range(2))
    else:
        options["rowsperstrip"] = int(chance.integers(1, 40))
    options.update(
        [{}, {"ome": True, "metadata": {"axes": axes}}, {"bigtiff": True}, {"metadata": {"axes": axes}}][
            chance.integers(4)
        ]
    )
    return chance.integers(0, 100, shape).astype(kind), options


def by_gdal():
    """Return what to write by name: bands, and the options of GDAL."""
    grey = np.cumsum(CHANCE.integers(0, 4, (1, 600, 700)), axis=2).astype("u2")
    small = grey[:, :75, :90]
    bytes_of = (grey % 251).astype("u1")
    three, colours = np.concatenate([small] * 3), np.concatenate([bytes_of] * 3)
    cog = {"driver": "COG", "blocksize": 128}
    return {
        "cog": (grey, {**cog, "compress": "DEFLATE", "nodata": 0}),
        "cog lerc": (grey, {**cog, "compress": "LERC_ZSTD"}),
        "cog jpeg": (colours, {**cog, "compress": "JPEG"}),
        "cog webp": (colours, {**cog, "compress": "WEBP", "webp_lossless": True}),
        "cog predicted": (grey.astype("f4"), {**cog, "compress": "ZSTD", "predictor": "YES"}),
        "cog bands": (np.concatenate([grey] * 2), {**cog, "compress": "LZW", "predictor": "YES"}),
        "cog plain": (small, {"driver": "COG", "compress": "NONE"}),
        "one large tile": (small, {"tiled": True, "blockxsize": 128, "blockysize": 112}),
        "one wide tile of bands": (three, {"tiled": True, "blockxsize": 96, "blockysize": 80, "interleave": "pixel"}),
        "sparse": (grey * 0, {"tiled": True, "sparse_ok": True, "nodata": 7}),
        "bands apart": (three, {"interleave": "band", "compress": "DEFLATE", "tiled": True}),
        "bands together": (three, {"interleave": "pixel", "compress": "LZW"}),
        "12 bits": (small % 4096, {"nbits": 12}),
        "12 bits packed": (small % 4096, {"nbits": 12, "compress": "DEFLATE"}),
        "12 bits colour": (three % 4096, {"nbits": 12, "interleave": "pixel", "compress": "ZSTD"}),
        "5 bits": ((small % 32).astype("u1"), {"nbits": 5, "tiled": True}),
        "1 bit": ((small % 2).astype("u1"), {"nbits": 1}),
        "swapped": (small, {"endianness": "BIG", "compress": "DEFLATE", "predictor": 2}),
        "large": (small, {"bigtiff": "YES", "compress": "LZW"}),
        "jpeg ycbcr": (colours, {"compress": "JPEG", "photometric": "YCBCR", "tiled": True}),
        "jpeg strips": (colours, {"compress": "JPEG", "photometric": "YCBCR", "interleave": "pixel"}),
    }


def write_by_gdal(path, bands, options):
    """Write a georeferenced file."""
    options = {"driver": "GTiff", **options}
    count, height, width = bands.shape
    profile = {"count": count, "height": height, "width": width, "dtype": str(bands.dtype)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        place = {"crs": "EPSG:32633", "transform": from_origin(500_000, 5_000_000, 10, 20)}
        with rasterio.open(path, "w", **profile, **place, **options) as file:
            file.write(bands)


def write_by_tifffile(path, values, options):
    """Write a file."""
    options = dict(options)
    if options.pop("truncate", False):
        with tifffile.TiffWriter(path) as file:
            file.write(values, truncate=True, **options)
        return
    tifffile.imwrite(path, values, **options)
