"""The door for authors of stores, formats, scanners and extensions of zarr v3: contracts, and values that cross them.

A plug-in is one module with a `KIND` (a store: `KvKind`; an array driver: `DriverKind`, for chunked formats
`ChunkedKind` makes it of a `Format`), a `SCANNER` of a file format, or the class of a codec, a chunk grid, a chunk key
encoding or a data type of zarr v3, named in an entry point of the author's package:

    [project.entry-points."fsstore.kvstores"]    # or fsstore.formats, .codecs, .chunk_grids, …
    sqlite = "sqlite_store:KIND"

`kvstores`, `drivers` (of the group `fsstore.formats`), `codecs`, `chunk_grids`, `chunk_key_encodings`, `data_types`,
`detections` and `scanners` are the tables behind these groups; `kvstores.add("sqlite", "sqlite_store:KIND")` adds an
entry for one process.  A `Detection` makes `auto` recognise what a driver or a store of the same name reads.  Nothing
else is promised.
"""

from fsstore.chunk.model import ChunkKeys, ChunkModel, WholeKeys
from fsstore.codec.contract import (
    BoundCodec,
    ByteSpec,
    ChunkSpec,
    Codec,
    CodecFactory,
    Member,
    Members,
    Options,
    read_options,
)
from fsstore.codec.contract import Kind as CodecStage
from fsstore.driver.chunked import ChunkedKind
from fsstore.driver.contract import ArrayDriver, DriverKind, OpenArray, Opening
from fsstore.errors import (
    AbortedError,
    AlreadyExistsError,
    DataLossError,
    DeadlineExceededError,
    FailedPreconditionError,
    JsonError,
    NotFoundError,
    OutOfRangeError,
    PermissionDeniedError,
    ResourceExhaustedError,
    StoreError,
    UnavailableError,
    UnimplementedError,
    UrlError,
)
from fsstore.format.contract import ChunkedArray, Format
from fsstore.format.extension import ChunkGrid, DataTypeExtension, ExtensionFactory, KeyNaming
from fsstore.kvstore.contract.ability import (
    CopiesRanges,
    ListsDocuments,
    MayBeMissing,
    PassesOn,
    ReadsNow,
    ReadsWhole,
    SyncsTogether,
    TakesAllAtOnce,
    TakesValues,
    WritesAtOnce,
    WritesLate,
    WritesNow,
)
from fsstore.kvstore.contract.driver import (
    NO_VALUE,
    UNKNOWN,
    Buffer,
    Entry,
    Features,
    KvDriver,
    KvKind,
    KvOpening,
    KvPrefix,
    LateWrite,
    Read,
    ReadResult,
    RootKind,
    Stamp,
    Write,
    now,
)
from fsstore.kvstore.contract.request import KeyRange, key_bytes, key_text, resolve_range
from fsstore.reference.table.table import Rows
from fsstore.scan.chunk_table import Columns, Strided
from fsstore.scan.contract import MADE, SELF, ChunkTable, FileScanner, ScanHierarchy, ScannedFile
from fsstore.scan.hierarchy import Array as ScannedArray
from fsstore.scan.hierarchy import HierarchyBuilder
from fsstore.scan.kind import ScanKind
from fsstore.scan.source import ScanSource
from fsstore.values.detection import Detection
from fsstore.values.json_value import (
    Fields,
    Json,
    array_of,
    boolean,
    integer,
    number,
    obj,
    one_of,
    optional,
    quote,
    string,
)
from fsstore.values.registry import (
    chunk_grids,
    chunk_key_encodings,
    codecs,
    data_types,
    detections,
    drivers,
    kvstores,
    scanners,
)
from fsstore.values.url import decode_path, encode_path, reject_query

__all__ = [
    "MADE",
    "NO_VALUE",
    "SELF",
    "UNKNOWN",
    "AbortedError",
    "AlreadyExistsError",
    "ArrayDriver",
    "BoundCodec",
    "Buffer",
    "ByteSpec",
    "ChunkGrid",
    "ChunkKeys",
    "ChunkModel",
    "ChunkSpec",
    "ChunkTable",
    "ChunkedArray",
    "ChunkedKind",
    "Codec",
    "CodecFactory",
    "CodecStage",
    "Columns",
    "CopiesRanges",
    "DataLossError",
    "DataTypeExtension",
    "DeadlineExceededError",
    "Detection",
    "DriverKind",
    "Entry",
    "ExtensionFactory",
    "FailedPreconditionError",
    "Features",
    "Fields",
    "FileScanner",
    "Format",
    "HierarchyBuilder",
    "Json",
    "JsonError",
    "KeyNaming",
    "KeyRange",
    "KvDriver",
    "KvKind",
    "KvOpening",
    "KvPrefix",
    "LateWrite",
    "ListsDocuments",
    "MayBeMissing",
    "Member",
    "Members",
    "NotFoundError",
    "OpenArray",
    "Opening",
    "Options",
    "OutOfRangeError",
    "PassesOn",
    "PermissionDeniedError",
    "Read",
    "ReadResult",
    "ReadsNow",
    "ReadsWhole",
    "ResourceExhaustedError",
    "RootKind",
    "Rows",
    "ScanHierarchy",
    "ScanKind",
    "ScanSource",
    "ScannedArray",
    "ScannedFile",
    "Stamp",
    "StoreError",
    "Strided",
    "SyncsTogether",
    "TakesAllAtOnce",
    "TakesValues",
    "UnavailableError",
    "UnimplementedError",
    "UrlError",
    "WholeKeys",
    "Write",
    "WritesAtOnce",
    "WritesLate",
    "WritesNow",
    "array_of",
    "boolean",
    "chunk_grids",
    "chunk_key_encodings",
    "codecs",
    "data_types",
    "decode_path",
    "detections",
    "drivers",
    "encode_path",
    "integer",
    "key_bytes",
    "key_text",
    "kvstores",
    "now",
    "number",
    "obj",
    "one_of",
    "optional",
    "quote",
    "read_options",
    "reject_query",
    "resolve_range",
    "scanners",
    "string",
]
