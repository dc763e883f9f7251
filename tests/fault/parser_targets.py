"""The parsers of `test_parser_fuzz`: what each makes of bytes in memory, and files to begin with.

A parser is called as it is, without opening a store, so that a mutated file takes about a millisecond: of a scanned file
the structure and the chunk tables, of a database or a repository one object with its checksum or compression repaired,
of an array its document.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numcodecs import Zstd

from fsstore.codec.image_header import checked_image, image_size
from fsstore.format.n5 import N5
from fsstore.format.zarr2 import Zarr2
from fsstore.format.zarr3 import Zarr3
from fsstore.icechunk.document import decode_manifest, decode_repo, decode_snapshot
from fsstore.icechunk.encoding import open_envelope, root_table
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.memory import MemoryDriver
from fsstore.kvstore.zip_directory import find_end, parse_directory
from fsstore.ocdbt.encoding import BTREE_NODE, MANIFEST, VERSION_NODE, seal, unseal
from fsstore.ocdbt.manifest import decode_manifest as decode_database
from fsstore.ocdbt.manifest import decode_version_node
from fsstore.ocdbt.node import decode_node
from fsstore.precomputed.info import parse_info
from fsstore.reference.json_document import from_json
from fsstore.runtime.execution import drive
from fsstore.scan.contract import FileScanner, ScanSource
from fsstore.scan.fits import SCANNER as FITS
from fsstore.scan.grib import SCANNER as GRIB
from fsstore.scan.hdf5.scanner import SCANNER as HDF5
from fsstore.scan.netcdf3 import SCANNER as NETCDF3
from fsstore.scan.tiff import SCANNER as TIFF

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1] / "interop"))
import fuzz_targets
from tiff_pages import joined, logarithms, old_jpeg_stream, old_jpeg_tables

sys.path.pop(0)
sys.path.pop(0)

GREY = (np.arange(30 * 40) % 251).astype("u1").reshape(30, 40)


@dataclass(frozen=True)
class Parser:
    """What is called, and files that it takes as they are."""

    parse: Callable[[bytes], object]
    seeds: list[bytes]


def scanned(scanner: FileScanner, data: bytes) -> object:
    """Return the structure of a file, and where its chunks are."""

    async def scan() -> object:
        place = KvPrefix(MemoryDriver())
        await place.write("", data)
        file = await scanner.scan(await ScanSource(place).begin(), {})
        return [await file.tables([path]) for path in file.hierarchy.grids]

    return drive(scan())


def listed(data: bytes) -> object:
    """Return the members of an archive."""
    end = find_end(data)
    start, size = end.directory_offset, end.directory_size
    if end.expected_size != len(data):  # as the store asks
        return None
    return parse_directory(data[start : start + size], end.entries, shift=0, limit=start, known=data[:start])


def pictured(data: bytes) -> object:
    """Return what is said of the size of a picture, of each kind."""
    return [image_size(kind, data) for kind in ("png", "bmp", "jpeg", "tiff", "avif")]


def checked(kind: str, data: bytes) -> object:
    """Return a picture whose header is believed."""
    return checked_image(kind, data)


def written(write: Callable[[Path], object]) -> list[bytes]:
    """Return the files that a function writes into a folder."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return [path.read_bytes() for path in sorted(Path(folder).iterdir())]


def pictures(folder: Path) -> None:
    """Write TIFF files of many structures."""
    import tifffile

    stack = np.stack([GREY] * 6).reshape(2, 3, 30, 40)
    write = tifffile.imwrite
    write(folder / "tiles.tif", GREY, tile=(16, 16), compression="zlib", predictor=True)
    write(folder / "strips.tif", GREY.astype("f4"), rowsperstrip=16, compression="lzw", bigtiff=True)
    write(folder / "ome.tif", stack, ome=True, metadata={"axes": "TZYX"}, compression="zlib")
    write(folder / "run.tif", stack, imagej=True, metadata={"axes": "TZYX"}, byteorder=">", compression=None)
    with tifffile.TiffWriter(folder / "levels.tif") as file:
        file.write(GREY, subifds=1, tile=(16, 16), compression="jpeg")
        file.write(GREY[::2, ::2], subfiletype=1, tile=(16, 16), compression="jpeg")
    codes = GREY.astype("u2") + 16000
    old = old_jpeg_stream(np.stack([GREY] * 3, axis=-1), 2), old_jpeg_tables(GREY, strips=2)
    (folder / "old.tif").write_bytes(joined(*old, logarithms(codes, colours=False, bits=16, form=1)))


def units(folder: Path) -> None:
    """Write FITS files of images, packed images and tables."""
    from astropy.io import fits

    image = GREY.astype("i4")
    packed = fits.CompImageHDU(image, name="P", compression_type="RICE_1", tile_shape=(16, 16))
    columns = [
        fits.Column("n", "5A", array=["abc", "de", "f"]),
        fits.Column("u", "I", bzero=32768, array=np.array([1, 40000, 65535], "u2")),
        fits.Column("b", "11X", array=np.ones((3, 11), bool)),
        fits.Column("m", "6E", dim="(3,2)", array=np.arange(18).reshape(3, 2, 3)),
        fits.Column("l", "PJ()", array=np.array([[1], [2, 3], [4]], object)),
    ]
    text = fits.TableHDU.from_columns([fits.Column("x", format="F10.3", array=[1.5, -2.25, 1e3])])
    fits.HDUList([fits.PrimaryHDU(image.astype("u2")), fits.ImageHDU(image / 3, name="A")]).writeto(folder / "a")
    fits.HDUList([fits.PrimaryHDU(), packed]).writeto(folder / "b", checksum=True)
    fits.HDUList([fits.PrimaryHDU(), fits.BinTableHDU.from_columns(columns), text]).writeto(folder / "c")


def messages(folder: Path) -> None:
    """Write GRIB files of both editions, on a grid of few points."""
    import eccodes

    for name, sample in {"a": "regular_ll_pl_grib1", "b": "regular_ll_pl_grib2"}.items():
        found = b""
        for level in (1000, 500):
            handle = eccodes.codes_grib_new_from_samples(sample)
            for key, value in {"level": level, "Ni": 4, "Nj": 3}.items():
                eccodes.codes_set(handle, key, value)
            eccodes.codes_set_values(handle, np.arange(12.0))
            found += eccodes.codes_get_message(handle)
            eccodes.codes_release(handle)
        (folder / name).write_bytes(found)


def database() -> dict[str, Parser]:
    """Return the parsers of the objects of a database, whose lengths and checksums are repaired."""
    decoders = {MANIFEST: decode_database}
    decoders |= {VERSION_NODE: partial(decode_version_node, context=b""), BTREE_NODE: partial(decode_node, context=b"")}
    names = {MANIFEST: "ocdbt manifest", VERSION_NODE: "ocdbt versions", BTREE_NODE: "ocdbt node"}
    bodies: dict[bytes, list[bytes]] = {}
    for value in fuzz_targets.database()[0].values():
        at = 0
        while value[at : at + 4] in decoders:
            end = at + int.from_bytes(value[at + 4 : at + 12], "little")
            bodies.setdefault(value[at : at + 4], []).append(unseal(value[at : at + 4], value[at:end], "object"))
            at = end
    return {
        names[magic]: Parser(lambda body, magic=magic: decoders[magic](seal(magic, body, None)), found)
        for magic, found in bodies.items()
    }


def repository() -> dict[str, Parser]:
    """Return the parsers of the objects of a repository, which are compressed again."""
    out: dict[str, Parser] = {}
    pack = Zstd(level=1)
    for key, value in fuzz_targets.repository()[0].items():
        kind = {"repo": "repository", "manifests": "manifest", "snapshots": "snapshot"}.get(key.split("/")[1])
        if kind is None:
            continue
        payload = open_envelope(value, kind).payload
        own = root_table(payload).raw(0, 12)
        decode = {"repository": decode_repo}.get(kind)
        if decode is None:
            decode = partial(decode_snapshot if kind == "snapshot" else decode_manifest, expected=own)
        head = value[:39]
        out[f"icechunk {kind}"] = Parser(
            lambda data, head=head, decode=decode: decode(head + bytes(pack.encode(data))), [payload]
        )
    return out


def parsers() -> dict[str, Parser]:
    """Return all parsers by name."""
    out = {name: Parser(partial(scanned, kind), written(write)) for name, kind, write in (
        ("tiff", TIFF, pictures), ("fits", FITS, units), ("grib", GRIB, messages),
    )}  # fmt: skip
    for libver in ("earliest", "latest"):
        out[f"hdf5 {libver}"] = Parser(partial(scanned, HDF5), list(fuzz_targets.hdf5(libver)[0].values()))
    out["netcdf3"] = Parser(partial(scanned, NETCDF3), list(fuzz_targets.netcdf3()[0].values()))
    out["zip"] = Parser(listed, list(fuzz_targets.archive()[0].values()))
    for name, form, key, made in (
        ("zarr2", Zarr2(), ".zarray", fuzz_targets.zarr2(compressor={"id": "zlib", "level": 1})),
        ("zarr3", Zarr3(), "zarr.json", fuzz_targets.shards()),
        ("n5", N5(), "attributes.json", fuzz_targets.n5()),
    ):
        out[name] = Parser(lambda data, form=form: form.decode(data, {}), [made[0][f"a/{key}"]])
    out["precomputed"] = Parser(parse_info, [fuzz_targets.sharded_volume()[0]["a/info"]])
    out["reference json"] = Parser(from_json, [fuzz_targets.reference_document()[0]["d/r.json"]])
    for kind in ("png", "bmp"):
        out[kind] = Parser(partial(checked, kind), list(fuzz_targets.image(kind)[0].values()))
    out["sizes of pictures"] = Parser(pictured, [*out["png"].seeds, *out["bmp"].seeds, out["tiff"].seeds[0]])
    return {**out, **database(), **repository()}
