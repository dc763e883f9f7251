"""Names of drivers, formats and codecs, where their code is, and the grammar of the URLs that name them.

A registry holds `"module:attribute"` strings and imports on first use, so that `import fsstore` stays cheap.
Plug-ins add entries through entry-point groups; a built-in name cannot be taken over.

    pipeline  = component *( "|" component )
    component = scheme "://" rest          a root key-value store
              / scheme [ ":" rest ]        an adapter or an array driver

The text is split at every bar first, so a literal bar must be written `%7C`; then each component at its first colon.
Schemes are case-sensitive.  Nothing here knows the meaning of a scheme and its `rest`: see `spec_parse`.
Percent-encoding keeps what TensorStore keeps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Generic, NamedTuple, TypeVar
from urllib.parse import quote, unquote_to_bytes

from fsstore.errors import UrlError
from fsstore.values.json_value import Json
from fsstore.values.json_value import quote as quote_text

# URL pipelines: a parser and its inverse.

_SAFE = "!$&'()*+,-./:;=_~"
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")


class Component(NamedTuple):
    """One part of a pipeline, still encoded, and where it starts in the whole text."""

    text: str
    scheme: str
    rest: str
    is_root: bool
    position: int = 0
    url: str = ""

    def error(self, message: str, hint: str = "") -> UrlError:
        """Return an error that points at this component."""
        return UrlError(message, self.url or self.text, self.position, len(self.text), hint=hint)


_MOST = 64  # components of a URL: each is a store over another, which takes a call or two to make


def split_pipeline(url: str) -> list[Component]:
    """Return the components of a pipeline.

    >>> [c.scheme for c in split_pipeline("file:///a.zip|zip:x|zarr3")]
    ['file', 'zip', 'zarr3']
    """
    if not url:
        raise UrlError("URL must be non-empty")
    components = []
    position = 0
    for text in url.split("|"):
        scheme, colon, rest = text.partition(":")
        is_root = rest.startswith("//")
        components.append(
            Component(text, scheme, rest[2:] if is_root else rest, bool(colon) and is_root, position, url)
        )
        position += len(text) + 1
        if len(components) > _MOST:
            raise UrlError(f"URL has more than {_MOST} components")
    return components


def join_pipeline(components: list[str]) -> str:
    """Return the URL of encoded components: the inverse of `split_pipeline`."""
    return "|".join(components)


def decode_path(rest: str) -> str:
    """Return a path with percent-escapes decoded; bytes that are not UTF-8 become surrogate escapes.

    >>> decode_path("a%20b/%C3%A9")
    'a b/é'
    """
    if "%" not in rest:
        return rest
    bad = _BAD_ESCAPE.search(rest)
    if bad:
        raise UrlError(f"Invalid percent-encoding at position {bad.start()}: {quote_text(rest)}", rest, bad.start())
    return unquote_to_bytes(rest).decode("utf-8", "surrogateescape")


def encode_path(path: str, *, safe: str = "") -> str:
    """Return a path percent-encoded, `safe` characters kept besides the usual ones.

    >>> encode_path("a b/é@1")
    'a%20b/%C3%A9%401'
    """
    return quote(path.encode("utf-8", "surrogateescape"), safe=_SAFE + safe)


def reject_query(rest: str) -> None:
    """Raise for a query string or fragment in an encoded path."""
    for mark, name in (("?", "Query string"), ("#", "Fragment identifier")):
        at = rest.find(mark)
        if at >= 0:
            raise UrlError(f"{name} not supported", rest, at)


T = TypeVar("T")


class Registry(Generic[T]):
    """Objects by name, loaded when asked for.  `group` is the entry-point group of plug-ins."""

    def __init__(self, group: str, builtin: Mapping[str, str]) -> None:
        self.group = group
        self._where = dict(builtin)
        self._loaded: dict[str, T] = {}
        self._plugins_read = False
        self._names: list[str] = []

    def _read_plugins(self) -> None:
        if self._plugins_read:  # twice at once does no harm
            return
        from importlib.metadata import entry_points  # costs as much as half of our own modules

        for entry in entry_points(group=self.group):
            self._where.setdefault(entry.name, entry.value)
        self._plugins_read = True

    def get(self, name: str) -> T | None:
        """Return the object called `name`, or None if the name is not registered."""
        if name in self._loaded:
            return self._loaded[name]
        where = self.where(name)
        if where is None:
            return None
        module, _, attribute = where.partition(":")
        try:
            found: Any = getattr(import_module(module), attribute)
        except ModuleNotFoundError as error:
            if f"{module}.".startswith(f"{error.name}.") and module.startswith("fsstore."):
                return None  # the package was taken out: the rest works without it
            raise
        self._loaded[name] = found
        return self._loaded[name]

    def add(self, name: str, where: str) -> None:
        """Register `name` for this process, as `"module:attribute"`; a name in use is refused."""
        self._read_plugins()
        if self._where.setdefault(name, where) != where:
            raise ValueError(f"{name!r} is already registered in {self.group} as {self._where[name]}")

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Forget at the end of a `with` block what was added within it, as tests of a plug-in want."""
        self._read_plugins()
        where, loaded = dict(self._where), dict(self._loaded)
        try:
            yield
        finally:
            self._where, self._loaded = where, loaded

    def where(self, name: str) -> str | None:
        """Return where the code of `name` is, as `"module:attribute"`, or None if the name is not registered."""
        if name not in self._where:
            self._read_plugins()
        return self._where.get(name)

    def names(self) -> list[str]:
        """Return all registered names, plug-ins included, sorted."""
        self._read_plugins()
        if len(self._names) != len(self._where):  # none ever goes
            self._names = sorted(self._where)
        return self._names.copy()


kvstores: Registry[Any] = Registry(
    "fsstore.kvstores",
    {
        "file": "fsstore.kvstore.local.driver:KIND",
        "memory": "fsstore.kvstore.memory:KIND",
        "fsspec": "fsstore.kvstore.root.cloud:FSSPEC",
        "s3": "fsstore.kvstore.root.cloud:S3",
        "gcs": "fsstore.kvstore.root.cloud:GCS",
        "gs": "fsstore.kvstore.root.cloud:GCS",
        "gcs_grpc": "fsstore.kvstore.root.cloud:GCS_GRPC",
        "http": "fsstore.kvstore.root.cloud:HTTP",
        "https": "fsstore.kvstore.root.cloud:HTTP",
        "abfs": "fsstore.kvstore.root.cloud:ABFS",
        "abfss": "fsstore.kvstore.root.cloud:ABFS",
        "az": "fsstore.kvstore.root.cloud:ABFS",
        "icechunk": "fsstore.icechunk.driver:KIND",
        "zip": "fsstore.kvstore.zip_driver:KIND",
        "gzip": "fsstore.kvstore.compressed:GZIP",
        "zstd": "fsstore.kvstore.compressed:ZSTD",
        "bz2": "fsstore.kvstore.compressed:BZ2",
        "xz": "fsstore.kvstore.compressed:XZ",
        "ocdbt": "fsstore.ocdbt.driver:KIND",
        "reference": "fsstore.reference.kind:KIND",
        "kerchunk": "fsstore.reference.kind:KIND",
        "dmrpp": "fsstore.scan.kind:DMRPP",
        "hdf5": "fsstore.scan.kind:HDF5",
        "fits": "fsstore.scan.kind:FITS",
        "grib": "fsstore.scan.kind:GRIB",
        "netcdf3": "fsstore.scan.kind:NETCDF3",
        "tiff": "fsstore.scan.kind:TIFF",
        "hdf4": "fsstore.filesystem.kerchunk:HDF4",
        "kvstack": "fsstore.kvstore.key_stack:KIND",
        "mosaic": "fsstore.combine.mosaic_driver:KIND",
        "neuroglancer_uint64_sharded": "fsstore.precomputed.shards:KIND",
        "zarr3_sharding_indexed": "fsstore.kvstore.shard:KIND",
    },
)
"""Kinds of key-value stores (`KvKind`), by JSON name and by URL scheme."""

drivers: Registry[Any] = Registry(
    "fsstore.formats",
    {
        "zarr3": "fsstore.driver.chunked:ZARR3",
        "zarr": "fsstore.driver.chunked:ZARR2",
        "zarr2": "fsstore.driver.chunked:ZARR2",
        "n5": "fsstore.driver.chunked:N5_KIND",
        "neuroglancer_precomputed": "fsstore.precomputed.driver:KIND",
        "neuroglancer-precomputed": "fsstore.precomputed.driver:KIND",
        "auto": "fsstore.driver.auto:KIND",
        "cast": "fsstore.driver.cast:KIND",
        "json": "fsstore.driver.json_element:KIND",
        "array": "fsstore.driver.array:KIND",
        "avif": "fsstore.driver.array:AVIF",
        "bmp": "fsstore.driver.array:BMP",
        "jpeg": "fsstore.driver.array:JPEG",
        "png": "fsstore.driver.array:PNG",
        "tiff": "fsstore.driver.array:TIFF",
        "webp": "fsstore.driver.array:WEBP",
        "stack": "fsstore.driver.stack:KIND",
        "downsample": "fsstore.driver.downsample:KIND",
    },
)
"""Kinds of TensorStore drivers, by JSON name and by URL scheme."""

codecs: Registry[Any] = Registry(
    "fsstore.codecs",
    {
        "bytes": "fsstore.codec.zarr3:BytesCodec",
        "transpose": "fsstore.codec.zarr3:TransposeCodec",
        "gzip": "fsstore.codec.deflate:GzipCodec",
        "zstd": "fsstore.codec.zstd:ZstdCodec",
        "blosc": "fsstore.codec.blosc:BloscCodec",
        "crc32c": "fsstore.codec.zarr3:Crc32cCodec",
        "sharding_indexed": "fsstore.codec.sharding:ShardingCodec",
        "vlen-utf8": "fsstore.codec.zarr3:VlenUtf8Codec",
        "vlen-bytes": "fsstore.codec.zarr3:VlenBytesCodec",
        "bitround": "fsstore.codec.numeric:BitroundCodec",
        "n5_default": "fsstore.codec.arrangement:N5DefaultCodec",
        "zfp": "fsstore.codec.zfp:ZfpCodec",
        "cast_value": "fsstore.codec.numeric:CastValueCodec",
        "packbits": "fsstore.codec.arrangement:PackbitsCodec",
        "reshape": "fsstore.codec.arrangement:ReshapeCodec",
        "scale_offset": "fsstore.codec.numeric:ScaleOffsetCodec",
    },
)
"""Codecs of zarr v3 (classes with the `Codec` contract), by name."""

codec_families: Registry[Any] = Registry(
    "fsstore.codec_families",
    {
        "imagecodecs_": "fsstore.codec.numcodecs.numcodecs_v2:find",
        "numcodecs.": "fsstore.codec.numcodecs.numcodecs_v2:find",
    },
)
"""Functions that find a codec of zarr v3 by its whole name, by what the names of their family begin with."""

codec_specs: Registry[Callable[[Json, Json], dict[str, Json]]] = Registry(
    "fsstore.codec_specs",
    {
        "n5": "fsstore.codec.numcodecs.compressor_v2:merge_n5_specs",
        "neuroglancer_precomputed": "fsstore.precomputed.codec:merge_specs",
        "zarr": "fsstore.codec.numcodecs.compressor_v2:merge_specs",
        "zarr3": "fsstore.codec.chain_spec:merge_specs",
    },
)
"""Functions that merge the JSON of two codec specs, by the name of the driver."""

chunk_grids: Registry[Any] = Registry(
    "fsstore.chunk_grids",
    {"rectilinear": "fsstore.format.extension:RectilinearGrid", "regular": "fsstore.format.extension:RegularGrid"},
)
"""Chunk grids of zarr v3 (classes with the `ChunkGrid` contract), by name."""

chunk_key_encodings: Registry[Any] = Registry(
    "fsstore.chunk_key_encodings",
    {"default": "fsstore.format.extension:DefaultKeys", "v2": "fsstore.format.extension:Version2Keys"},
)
"""Chunk key encodings of zarr v3 (classes with the `KeyNaming` contract), by name."""

data_types: Registry[Any] = Registry("fsstore.data_types", {})
"""Data types of other packages for zarr v3 (classes with the `DataTypeExtension` contract), by name."""

codecs_v2: Registry[Any] = Registry(
    "fsstore.codecs_v2",
    {
        "imagecodecs_bz2": "fsstore.codec.numcodecs.imagecodecs_v2:Compressed",
        "imagecodecs_deflate": "fsstore.codec.numcodecs.imagecodecs_v2:Compressed",
        "imagecodecs_lz4h5": "fsstore.codec.numcodecs.imagecodecs_v2:Compressed",
        "imagecodecs_lzf": "fsstore.codec.numcodecs.imagecodecs_v2:Compressed",
        "imagecodecs_lzma": "fsstore.codec.numcodecs.imagecodecs_v2:Compressed",
        "imagecodecs_lzw": "fsstore.codec.numcodecs.imagecodecs_v2:Compressed",
        "imagecodecs_packbits": "fsstore.codec.numcodecs.imagecodecs_v2:Compressed",
        "imagecodecs_zlib": "fsstore.codec.numcodecs.imagecodecs_v2:Compressed",
        "imagecodecs_zstd": "fsstore.codec.numcodecs.imagecodecs_v2:Compressed",
        "imagecodecs_bitorder": "fsstore.codec.numcodecs.imagecodecs_v2:BitOrder",
        "imagecodecs_packints": "fsstore.codec.numcodecs.imagecodecs_v2:PackedIntegers",
        "imagecodecs_delta": "fsstore.codec.numcodecs.imagecodecs_v2:Predictor",
        **{
            f"imagecodecs_ccitt{name}": "fsstore.codec.numcodecs.imagecodecs_v2:Fax" for name in ("rle", "fax3", "fax4")
        },
        "imagecodecs_floatpred": "fsstore.codec.numcodecs.imagecodecs_v2:Predictor",
        "imagecodecs_jpeg": "fsstore.codec.numcodecs.imagecodecs_v2:Image",
        "imagecodecs_jpeg2k": "fsstore.codec.numcodecs.imagecodecs_v2:Image",
        "imagecodecs_jpegls": "fsstore.codec.numcodecs.imagecodecs_v2:Image",
        "imagecodecs_jpegxl": "fsstore.codec.numcodecs.imagecodecs_v2:Image",
        "imagecodecs_jpegxr": "fsstore.codec.numcodecs.imagecodecs_v2:Image",
        "imagecodecs_lerc": "fsstore.codec.numcodecs.imagecodecs_v2:Image",
        "imagecodecs_png": "fsstore.codec.numcodecs.imagecodecs_v2:Image",
        "imagecodecs_tiff": "fsstore.codec.numcodecs.imagecodecs_v2:Image",
        "imagecodecs_webp": "fsstore.codec.numcodecs.imagecodecs_v2:Image",
        "tifffile": "fsstore.codec.numcodecs.imagecodecs_v2:Image",
        "FITSAscii": "fsstore.codec.numcodecs.kerchunk_v2:FitsAscii",
        "deflate": "fsstore.codec.numcodecs.kerchunk_v2:ZipMember",
        "fill_hdf_strings": "fsstore.codec.numcodecs.kerchunk_v2:HdfStrings",
        "fits_numbers": "fsstore.codec.numcodecs.fits_v2:FitsNumbers",
        "fits_rows": "fsstore.codec.numcodecs.fits_v2:FitsRows",
        "fits_tile": "fsstore.codec.numcodecs.fits_v2:FitsTile",
        "grib": "fsstore.codec.numcodecs.kerchunk_v2:Grib",
        "hdf5_bitshuffle": "fsstore.codec.numcodecs.kerchunk_v2:Hdf5Filter",
        "hdf5_lz4": "fsstore.codec.numcodecs.kerchunk_v2:Hdf5Filter",
        "hdf5_scaleoffset": "fsstore.codec.numcodecs.kerchunk_v2:Hdf5Filter",
        "hdf5_shuffle": "fsstore.codec.numcodecs.kerchunk_v2:Hdf5Filter",
        "hdf5_szip": "fsstore.codec.numcodecs.kerchunk_v2:Hdf5Filter",
        "pcodec": "fsstore.codec.numcodecs.numeric_v2:Pcodec",
        "record_member": "fsstore.codec.numcodecs.kerchunk_v2:RecordMember",
        "tiff_strips": "fsstore.codec.numcodecs.imagecodecs_v2:Strips",
        "zfpy": "fsstore.codec.numcodecs.numeric_v2:Zfpy",
    },
)
"""Codecs that zarr v2 metadata may name beside those that numcodecs always has (`ForeignCodec` classes), by id."""

live_filesystems: Registry[Any] = Registry(
    "fsstore.live_filesystems", {"ReferenceFileSystem": "fsstore.reference.kind:live_driver"}
)
"""Functions that make a store of a live filesystem, by the name of its class; None if only its own code can read."""

detections: Registry[Any] = Registry(
    "fsstore.detections",
    {
        "hdf5": "fsstore.scan.signature:HDF5",
        "icechunk": "fsstore.icechunk:DETECT",
        "icechunk 1": "fsstore.icechunk:DETECT_FIRST",
        "dmrpp": "fsstore.scan.signature:DMRPP",
        "fits": "fsstore.scan.signature:FITS",
        "grib": "fsstore.scan.signature:GRIB",
        "mosaic": "fsstore.combine.mosaic_stored:DETECT",
        "netcdf3": "fsstore.scan.signature:NETCDF3",
        "ocdbt": "fsstore.ocdbt:DETECT",
        "reference": "fsstore.reference:DETECT",
        "zarr2": "fsstore.format.zarr2:DETECT",
        "zarr3": "fsstore.format.zarr3:DETECT",
        "zip": "fsstore.kvstore.zip_directory:DETECT",
    },
)
"""Signatures of formats (`Detection`), by the name of the driver or store that reads them.

Images, compressed files and formats without a driver are recognised too; they are listed where they are described.
"""

scanners: Registry[Any] = Registry(
    "fsstore.scanners",
    {
        "hdf5": "fsstore.scan.hdf5.scanner:SCANNER",
        "dmrpp": "fsstore.scan.document.dmrpp:SCANNER",
        "fits": "fsstore.scan.fits:SCANNER",
        "grib": "fsstore.scan.grib:SCANNER",
        "netcdf3": "fsstore.scan.netcdf3:SCANNER",
        "tiff": "fsstore.scan.tiff:SCANNER",
    },
)
"""Scanners, which find the arrays of other files (`FileScanner`), by the name of the adapter that shows them."""

_DOORS = {
    "delete_member": "fsstore.job.delete:delete_member", "move": "fsstore.job.delete:move",
    "spans": "fsstore.observation:spans", "view": "fsstore.viewer.door:view",
    "write_dataset": "fsstore.interop.dataset_write:write_dataset",
}  # fmt: skip


def door(name: str) -> Any:
    """Return a function of a package above, for methods that are only a way to it."""
    module, _, attribute = _DOORS[name].partition(":")
    return getattr(import_module(module), attribute)
