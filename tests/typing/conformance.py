"""Every built-in assigned to its contract.  Nothing here runs: `make check` proves it by type checking.

`tests/unit/test_packaging.py` fails when a registered name is not assigned here.
"""

from __future__ import annotations

from fsstore.codec.arrangement import N5DefaultCodec, PackbitsCodec, ReshapeCodec
from fsstore.codec.blosc import BloscCodec
from fsstore.codec.contract import Codec
from fsstore.codec.deflate import GzipCodec
from fsstore.codec.numeric import BitroundCodec, CastValueCodec, ScaleOffsetCodec
from fsstore.codec.sharding import ShardingCodec
from fsstore.codec.zarr3 import BytesCodec, Crc32cCodec, TransposeCodec, VlenBytesCodec, VlenUtf8Codec
from fsstore.codec.zfp import ZfpCodec
from fsstore.codec.zstd import ZstdCodec
from fsstore.combine.mosaic_driver import KIND as MOSAIC
from fsstore.combine.mosaic_driver import MosaicDriver
from fsstore.driver.array import AVIF, BMP, JPEG, PNG, TIFF, WEBP, ImageDriver, InMemoryDriver
from fsstore.driver.array import KIND as ARRAY
from fsstore.driver.auto import KIND as AUTO
from fsstore.driver.cast import KIND as CAST
from fsstore.driver.cast import CastDriver
from fsstore.driver.chunked import N5_KIND, ZARR2, ZARR3
from fsstore.driver.chunked_array import ChunkedDriver
from fsstore.driver.contract import ArrayDriver, DriverKind
from fsstore.driver.downsample import KIND as DOWNSAMPLE
from fsstore.driver.json_element import KIND as JSON
from fsstore.driver.json_element import JsonDriver
from fsstore.driver.stack import KIND as STACK
from fsstore.filesystem.kerchunk import HDF4
from fsstore.format.contract import Format
from fsstore.format.zarr2 import Zarr2
from fsstore.format.zarr3 import Zarr3
from fsstore.icechunk.driver import KIND as ICECHUNK
from fsstore.icechunk.driver import IcechunkDriver
from fsstore.kvstore.compressed import BZ2, GZIP, XZ, ZSTD, CompressedDriver
from fsstore.kvstore.contract.driver import KvDriver, KvKind
from fsstore.kvstore.engine.driver import EngineDriver
from fsstore.kvstore.key_stack import KIND as KVSTACK
from fsstore.kvstore.local.driver import KIND as FILE
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.memory import KIND as MEMORY
from fsstore.kvstore.memory import MemoryDriver
from fsstore.kvstore.root.cloud import ABFS, FSSPEC, GCS, GCS_GRPC, HTTP, S3
from fsstore.kvstore.shard import KIND as GRID_SHARD
from fsstore.kvstore.zip_driver import KIND as ZIP
from fsstore.kvstore.zip_driver import ZipDriver
from fsstore.ocdbt.driver import KIND as OCDBT
from fsstore.ocdbt.driver import OcdbtDriver
from fsstore.precomputed.driver import KIND as PRECOMPUTED
from fsstore.precomputed.shards import KIND as UINT64_SHARDED
from fsstore.reference.driver import ReferenceDriver
from fsstore.reference.kind import KIND as REFERENCE
from fsstore.scan.kind import DMRPP, FITS, GRIB, HDF5, NETCDF3
from fsstore.scan.kind import TIFF as TIFF_FILE

kinds: tuple[KvKind, ...] = (
    FILE,
    MEMORY,
    FSSPEC,
    S3,
    GCS,
    ABFS,
    HTTP,
    ICECHUNK,
    MOSAIC,
    OCDBT,
    REFERENCE,
    ZIP,
    GZIP,
    ZSTD,
    BZ2,
    XZ,
    GCS_GRPC,
    DMRPP,
    HDF5,
    FITS,
    HDF4,
    GRIB,
    NETCDF3,
    TIFF_FILE,
    GRID_SHARD,
    KVSTACK,
    UINT64_SHARDED,
)

stores: tuple[type[KvDriver], ...] = (
    LocalDriver,
    MemoryDriver,
    MosaicDriver,
    EngineDriver,
    IcechunkDriver,
    OcdbtDriver,
    ReferenceDriver,
    ZipDriver,
    CompressedDriver,
)

codecs: tuple[type[Codec], ...] = (
    BytesCodec,
    TransposeCodec,
    GzipCodec,
    ZstdCodec,
    BloscCodec,
    Crc32cCodec,
    ShardingCodec,
    VlenUtf8Codec,
    VlenBytesCodec,
    BitroundCodec,
    CastValueCodec,
    N5DefaultCodec,
    PackbitsCodec,
    ZfpCodec,
    ReshapeCodec,
    ScaleOffsetCodec,
)

driver_kinds: tuple[DriverKind, ...] = (
    ZARR3, ZARR2, N5_KIND, ARRAY, AUTO, CAST, DOWNSAMPLE, JSON, PRECOMPUTED, STACK,
)  # fmt: skip

images: tuple[DriverKind, ...] = (AVIF, BMP, JPEG, PNG, TIFF, WEBP)

drivers: tuple[type[ArrayDriver], ...] = (ChunkedDriver, InMemoryDriver, CastDriver, JsonDriver, ImageDriver)

formats: tuple[type[Format], ...] = (Zarr3, Zarr2)
