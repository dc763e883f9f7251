"""The targets of `coverage_fuzz`: files of every format, as bytes by name, and the URLs at which they are used."""

from __future__ import annotations

import base64
import io
import json
import tempfile
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

import fsstore as ts
from fsstore import references

Target: TypeAlias = tuple[dict[str, bytes], tuple[str, ...]]
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
V2 = {"zarr_format": 2, "shape": [10, 12], "chunks": [4, 6], "dtype": "<i4", "compressor": None, "fill_value": 0,
      "order": "C", "filters": None}  # fmt: skip
VALUES = (np.arange(120).reshape(10, 12) * 7 + 3).astype("<i4")
REPOSITORY = Path(__file__).parents[1] / "data" / "icechunk" / "version2.json"


def held(context: ts.Context) -> dict[str, bytes]:
    """Return all that is in the memory of a context."""
    base = ts.KvStore.open("memory://", context=context).result()
    return {key.decode(): bytes(base.read(key).result().value) for key in base.list().result()}


def array(spec: dict[str, Any], url: str, values: Any = VALUES) -> Target:
    """Return an array that is opened by its format and by detection."""
    context = ts.Context()
    store = ts.open({"kvstore": "memory://a/", **spec}, create=True, context=context).result()
    store.write(values).result()
    return held(context), (url, "memory://a/#")


def zarr3(*codecs: Any, **more: Any) -> Target:
    """Return an array of zarr v3."""
    grid = {"name": "regular", "configuration": {"chunk_shape": [4, 6]}}
    metadata = {"shape": [10, 12], "data_type": "int32", "chunk_grid": grid, "codecs": [*codecs], "fill_value": -1}
    return array({"driver": "zarr3", "metadata": {**metadata, **more}}, "memory://a/|zarr3:")


def shards() -> Target:
    """Return an array of shards whose index has no checksum."""
    inner = {"chunk_shape": [2, 3], "codecs": [LITTLE, "gzip"], "index_codecs": [LITTLE]}
    return zarr3({"name": "sharding_indexed", "configuration": inner})


def zarr2(**more: Any) -> Target:
    """Return an array of zarr v2."""
    metadata = {"shape": [10, 12], "chunks": [4, 6], "dtype": "<i4", "fill_value": -1, **more}
    return array({"driver": "zarr", "metadata": metadata}, "memory://a/|zarr2:")


def n5() -> Target:
    """Return an array of N5."""
    metadata = {"dimensions": [10, 12], "blockSize": [4, 6], "dataType": "int32", "compression": {"type": "gzip"}}
    return array({"driver": "n5", "metadata": metadata}, "memory://a/|n5:")


def volume(**more: Any) -> Target:
    """Return a precomputed volume of labels."""
    scale = {"size": [10, 12, 1], "chunk_size": [4, 6, 1], "encoding": "compressed_segmentation", "resolution": [1, 1, 1],
             "compressed_segmentation_block_size": [2, 2, 2], **more}  # fmt: skip
    whole = {"type": "segmentation", "data_type": "uint32", "num_channels": 1}
    spec = {"driver": "neuroglancer_precomputed", "scale_metadata": scale, "multiscale_metadata": whole}
    return array(spec, "memory://a/|neuroglancer-precomputed:", VALUES[..., None, None].astype("u4"))


def sharded_volume() -> Target:
    """Return a precomputed volume in shards."""
    sharding = {"@type": "neuroglancer_uint64_sharded_v1", "preshift_bits": 1, "hash": "identity", "minishard_bits": 1,
                "shard_bits": 1, "minishard_index_encoding": "gzip", "data_encoding": "raw"}  # fmt: skip
    return volume(sharding=sharding)


def archive() -> Target:
    """Return a zip of an array."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as opened:
        for key, value in zarr2()[0].items():
            opened.writestr(key, value)
    return {"z.zip": file.getvalue()}, ("memory://z.zip|zip:", "memory://z.zip|zip:a/|zarr2:")


def reference_document() -> Target:
    """Return a reference set in JSON, with generated keys."""
    gen = {"key": "v/{{i}}.0", "url": "{{u}}", "offset": "{{i * 48}}", "length": "48", "dimensions": {"i": {"stop": 3}}}
    refs = {".zgroup": '{"zarr_format": 2}', "v/.zarray": json.dumps({**V2, "shape": [10, 3], "chunks": [4, 3]}),
            "v/.zattrs": "{}", "x": "base64:AAAA", "y": ["{{u}}", 0, 10]}  # fmt: skip
    document = {"version": 1, "templates": {"u": "data.bin"}, "gen": [gen], "refs": refs}
    files = {"d/r.json": json.dumps(document).encode(), "d/data.bin": bytes(200)}
    return files, ("memory://d/r.json|reference:", "memory://d/r.json|reference:v/|zarr2:")


def reference_table() -> Target:
    """Return a reference set in parquet."""
    refs: dict[str, Any] = {".zgroup": '{"zarr_format": 2}'}
    refs["v/.zarray"] = json.dumps({**V2, "shape": [40], "chunks": [4]})
    refs |= {f"v/{number}": ["data.bin", number * 16, 16] for number in range(9)}
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "r.parq"
        references.open(refs).save(root, record_size=4)
        paths = [path for path in root.rglob("*") if path.is_file()]
        files = {f"d/r.parq/{path.relative_to(root)}": path.read_bytes() for path in paths}
    files["d/data.bin"] = bytes(200)
    return files, ("memory://d/r.parq/|reference:", "memory://d/r.parq/|reference:v/|zarr2:")


def database() -> Target:
    """Return a database with a tree of several levels, not compressed."""
    context = ts.Context()
    config = {"max_decoded_node_bytes": 300, "compression": None, "version_tree_arity_log2": 1}
    spec = {"driver": "ocdbt", "base": "memory://a/", "config": config}
    store = ts.KvStore.open(spec, context=context).result()
    for number in range(4):
        for key in range(4):
            store.write(f"k{number}{key}", b"v" * 30 * key).result()
    return held(context), ("memory://a/|ocdbt:",)


def repository() -> Target:
    """Return a repository of icechunk."""
    files = json.loads(REPOSITORY.read_text())["basic"]["files"]
    return {f"a/{key}": base64.b64decode(text) for key, text in files.items()}, ("memory://a/|icechunk:",)


def hdf5(libver: str) -> Target:
    """Return an HDF5 file of several structures."""
    import h5py

    out = io.BytesIO()
    with h5py.File(out, "w", libver=libver) as file:
        for name, most in {"fixed": (10, 12), "one": (10, None), "two": (None, None)}.items():
            file.create_dataset(f"g/{name}", data=VALUES, chunks=(4, 6), maxshape=most, compression="gzip")
        file["texts"] = np.array(["a", "bcd"], h5py.string_dtype())
        file["run"] = VALUES
        file.attrs["title"] = "damaged"
    return {"a.h5": out.getvalue()}, ("memory://a.h5|hdf5:", "memory://a.h5|hdf5:g/one/|zarr2:")


def netcdf3() -> Target:
    """Return a NetCDF 3 file with records."""
    from scipy.io import netcdf_file

    out = io.BytesIO()
    with netcdf_file(out, "w") as file:
        file.createDimension("t", None)
        file.createDimension("x", 5)
        file.createVariable("a", "i2", ("t", "x"))[:] = np.arange(35).reshape(7, 5)
        file.createVariable("b", "f8", ("x",))[:] = np.arange(5)
        file.title = "damaged"
        file.flush()
        data = out.getvalue()
    return {"a.nc": data}, ("memory://a.nc|netcdf3:", "memory://a.nc|netcdf3:a/|zarr2:")


def image(kind: str) -> Target:
    """Return a picture."""
    import imagecodecs

    pixels = (np.arange(12 * 10 * 3) % 251).astype("u1").reshape(12, 10, 3)
    data = getattr(imagecodecs, f"{kind}_encode")(pixels)
    return {f"a.{kind}": bytes(data)}, (f"memory://a.{kind}|{kind}:#", f"memory://a.{kind}#")


def levels() -> Target:
    """Return a TIFF file of two sizes, in tiles."""
    import tifffile

    out = io.BytesIO()
    with tifffile.TiffWriter(out) as file:
        grey = VALUES.astype("u1").repeat(3, axis=0)
        file.write(grey, subifds=1, tile=(16, 16), compression="zlib")
        file.write(grey[::2, ::2], subfiletype=1, tile=(16, 16), compression="zlib")
    return {"a.tif": out.getvalue()}, ("memory://a.tif|tiff:", "memory://a.tif|tiff:0/|zarr2:")


def units() -> Target:
    """Return a FITS file with an image, and one in tiles."""
    from astropy.io import fits

    out = io.BytesIO()
    packed = fits.CompImageHDU(VALUES, name="P", compression_type="RICE_1", tile_shape=(4, 12))
    fits.HDUList([fits.PrimaryHDU(VALUES), packed]).writeto(out)
    return {"a.fits": out.getvalue()}, ("memory://a.fits|fits:", "memory://a.fits|fits:P/|zarr2:")


def message() -> Target:
    """Return a GRIB message of few points."""
    import eccodes

    handle = eccodes.codes_grib_new_from_samples("regular_ll_pl_grib2")
    for key, value in {"Ni": 4, "Nj": 3, "shortName": "t"}.items():
        eccodes.codes_set(handle, key, value)
    eccodes.codes_set_values(handle, np.arange(12.0))
    return {"a.grib": eccodes.codes_get_message(handle)}, ("memory://a.grib|grib:", "memory://a.grib|grib:t/|zarr2:")


TARGETS: dict[str, Callable[[], Target]] = {
    "zarr3": partial(zarr3, LITTLE, "gzip"),
    "zarr3 blosc": partial(zarr3, LITTLE, "blosc"),
    "zarr3 n5_default": partial(
        zarr3,
        {
            "name": "n5_default",
            "configuration": {
                "codecs": [
                    {"name": "transpose", "configuration": {"order": [1, 0]}},
                    {"name": "bytes", "configuration": {"endian": "big"}},
                    {"name": "gzip", "configuration": {"level": 1}},
                ]
            },
        },
    ),
    "zarr3 zfp": partial(zarr3, {"name": "zfp", "configuration": {"mode": "reversible"}}),
    "shards": shards,
    "zarr2": partial(zarr2, compressor={"id": "zlib", "level": 1}),
    "zarr2 filters": partial(zarr2, compressor={"id": "zstd", "level": 1}, filters=[{"id": "delta", "dtype": "<i4"}]),
    "n5": n5,
    "precomputed": volume,
    "precomputed shards": sharded_volume,
    "zip": archive,
    "reference json": reference_document,
    "reference parquet": reference_table,
    "ocdbt": database,
    "icechunk": repository,
    "hdf5 earliest": partial(hdf5, "earliest"),
    "hdf5 latest": partial(hdf5, "latest"),
    "netcdf3": netcdf3,
    "tiff": levels,
    "fits": units,
    "grib": message,
    "png": partial(image, "png"),
    "bmp": partial(image, "bmp"),
}
