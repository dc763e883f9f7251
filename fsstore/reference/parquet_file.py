"""The files of a parquet set: references, and the documents of its arrays.

A file of references has the columns `path`, `offset`, `size`, `raw`; each may be absent.  A row with `raw` is inline;
else one without `path` is no reference; else one with offset and size zero is a whole target; else a range.

Written by pandas through two engines in many versions, the files differ in how they say nothing: an empty `raw` column
may have the type null or int32, nulls may be missing altogether.  pyarrow reads them as they are, without pandas, and
keeps the dictionary of URLs; fastparquet is used when pyarrow is not installed.

A kept table knows the generation of its file, so it can be replaced under the condition that nobody else did.

The documents stand in `.zmetadata` as JSON objects; their text is kept as it is, byte for byte, but for white space
around it. Only documents and chunks of arrays have a place in a parquet set.
"""

from __future__ import annotations

import io
import json
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fsstore.errors import DataLossError, JsonError, ResourceExhaustedError, UnimplementedError
from fsstore.kvstore.contract.driver import KvPrefix, Read
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.json_scan import Buffer, JsonMember, MemberSink, Scanner
from fsstore.reference.table.keys import Grid, check_key, grid_of
from fsstore.reference.table.refset import MEMBER, ORIGINS, Origins, Run, ScanRecord, parse_origins, saved_origins
from fsstore.reference.table.table import ABSENT, INLINE, WHOLE, Rows, decode_text, encode_text
from fsstore.runtime import fork
from fsstore.runtime.tuning import KEPT_BYTES
from fsstore.values.json_value import Fields, integer, show

# One parquet file of references, read into columns.

MAX_BYTES = 2**31
UrlIds = Callable[[Sequence[str]], "np.ndarray[Any, np.dtype[np.int32]]"]


@dataclass(frozen=True, slots=True)
class Partition:
    """The rows of one file; inline rows point into `raw`."""

    rows: Rows
    raw: Sequence[bytes | None]

    @property
    def nbytes(self) -> int:
        """The memory it takes, about."""
        return self.rows.nbytes + sum(33 + len(value) for value in self.raw if value is not None)


@dataclass(frozen=True, slots=True)
class _Columns:
    """A file as any engine gives it: codes into URLs (-1 for null), numbers, and raw values or None for none."""

    codes: np.ndarray[Any, Any]
    urls: list[str]
    offset: np.ndarray[Any, Any]
    size: np.ndarray[Any, Any]
    raw: list[bytes | None] | None


def read_partition(data: Any, url_ids: UrlIds, where: str) -> Partition:
    """Return the rows of a file.  `where` names it in messages; `url_ids` numbers URLs."""
    try:
        columns = _read(data)
    except (DataLossError, ResourceExhaustedError, UnimplementedError) as error:
        raise error.within(where) from error
    except Exception as error:  # the engines raise errors of their own, and of all kinds, on damaged files
        raise DataLossError(f"{where} is not a parquet file of references: {error}") from error
    codes = columns.codes
    if len(codes) and not (codes.min() >= -1 and codes.max() < len(columns.urls)):
        raise DataLossError(f"{where} has rows whose path is none of its {len(columns.urls)} URLs")
    ids = np.append(url_ids(columns.urls), np.int32(ABSENT))
    url = ids[columns.codes].astype(np.int32)
    offset, length = columns.offset.astype(np.int64), columns.size.astype(np.int64)
    length[(offset == 0) & (length == 0)] = WHOLE
    bad = (url >= 0) & ((offset < 0) | (length < WHOLE) | (columns.size < 0) | (offset >= 2**62) | (length >= 2**62))
    if bad.any() or "" in columns.urls:
        row = int(np.flatnonzero(bad)[0]) if bad.any() else 0
        raise DataLossError(f"{where} has a malformed reference in row {row}: offset {offset[row]}, size {length[row]}")
    raw = columns.raw or []
    if columns.raw is not None:
        filled = [row for row, value in enumerate(raw) if value is not None]
        url[filled], offset[filled] = INLINE, filled
        length[filled] = [len(raw[row] or b"") for row in filled]
    return Partition(Rows(url, offset, length), raw)


def _read(data: Any) -> _Columns:
    try:
        import pyarrow.parquet
    except ImportError:
        return _with_fastparquet(data)
    return _with_pyarrow(pyarrow, data)


def _with_pyarrow(pyarrow: Any, data: Any) -> _Columns:
    buffer = pyarrow.py_buffer(data)
    file = pyarrow.parquet.ParquetFile(pyarrow.BufferReader(buffer))
    groups = [file.metadata.row_group(number) for number in range(file.metadata.num_row_groups)]
    if sum(group.total_byte_size for group in groups) > MAX_BYTES or file.metadata.num_rows > 10**8:
        raise ResourceExhaustedError("A parquet file of references claims to be larger than 2 GiB")
    names = [name for name in ("path", "offset", "size", "raw") if name in file.schema_arrow.names]
    if not names:
        raise DataLossError("it has none of the columns path, offset, size, raw")
    if "path" in names and pyarrow.types.is_string(file.schema_arrow.field("path").type):
        source = pyarrow.BufferReader(buffer)
        file = pyarrow.parquet.ParquetFile(source, metadata=file.metadata, read_dictionary=["path"])
    table = file.read(columns=names, use_threads=False)
    count = table.num_rows

    def number(name: str) -> np.ndarray[Any, Any]:
        if name not in names:
            return np.zeros(count, np.int64)
        return _numbers(_single(table.column(name).cast(pyarrow.int64())), 0)

    codes, urls = np.full(count, -1), []
    if "path" in names and table.column("path").null_count < count:
        path = _single(table.column("path").unify_dictionaries())
        path = path if hasattr(path, "indices") else path.dictionary_encode()
        codes = _numbers(path.indices.cast(pyarrow.int64()), -1)
        urls = [_text(url) for url in path.dictionary.to_pylist()]
    raw = None
    if "raw" in names and table.column("raw").null_count < count:
        raw = [_raw(value) for value in table.column("raw").to_pylist()]
    return _Columns(codes, urls, number("offset"), number("size"), raw)


def _single(column: Any) -> Any:
    array = column.combine_chunks()
    return array.chunk(0) if hasattr(array, "chunk") else array


def _numbers(array: Any, missing: int) -> np.ndarray[Any, Any]:
    """Return an array of 64-bit integers, `missing` for nulls.

    pyarrow's own conversions import pandas, which takes ten times as long as reading a file.
    """
    count, start = len(array), array.offset
    valid, data = array.buffers()
    if data is None or array.null_count == count:
        return np.full(count, missing, np.int64)
    values = np.frombuffer(data, np.int64)[start : start + count]
    if not array.null_count:
        return values
    bits = np.unpackbits(np.frombuffer(valid, np.uint8), bitorder="little")[start : start + count]
    return np.where(bits, values, missing)


def _with_fastparquet(data: Any) -> _Columns:
    try:
        import fastparquet
        import pandas as pd
    except ImportError:
        raise UnimplementedError(
            "Reading references in parquet needs pyarrow: pip install 'fsstore[parquet]'"
        ) from None
    frame = fastparquet.ParquetFile(io.BytesIO(bytes(data))).to_pandas()
    count = len(frame)
    codes, urls = np.full(count, -1), []
    if "path" in frame:
        codes, names = pd.factorize(frame["path"])
        urls = [_text(name) for name in names]
    offset, size = (
        np.asarray(frame[name].fillna(0), np.int64) if name in frame else np.zeros(count, np.int64)
        for name in ("offset", "size")
    )
    raw = None
    if "raw" in frame and not frame["raw"].isna().all():
        raw = [None if pd.isna(value) else _raw(value) for value in frame["raw"]]
    return _Columns(np.asarray(codes), urls, offset, size, raw)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _raw(value: Any) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    raise DataLossError(f"the column raw holds {type(value).__name__}, not bytes")


# The files `<array>/refs.<k>.parq` of a parquet set, loaded when they are asked for and kept up to a
# budget.

_NAME = re.compile(r"(?:(.*)/)?refs\.(0|[1-9][0-9]{0,17})\.parq", re.DOTALL)

Where: TypeAlias = tuple[str, int]
"""The path of an array, and the number of a file."""


class Loaded(NamedTuple):
    """A file as it was read: its rows, or None if there is none, and its generation."""

    partition: Partition | None
    generation: bytes


def file_name(where: Where) -> str:
    """Return the name of a file below the directory of the set."""
    path, record = where
    return f"{path}/refs.{record}.parq" if path else f"refs.{record}.parq"


def where_of(name: str) -> Where | None:
    """Return which file of a set has a name, None if it is no such name: the inverse of `file_name`."""
    match = _NAME.fullmatch(name)
    return None if match is None else (match[1] or "", int(match[2]))


class PartitionFiles:
    """The files below `base`, a directory; its path ends with a slash.  Their rows point into `urls`."""

    def __init__(self, base: KvPrefix) -> None:
        self.base = base
        self.urls: list[str] = []
        self._ids: dict[str, int] = {}
        self._kept: OrderedDict[Where, Loaded] = OrderedDict()
        self._size = 0
        self._changes = 0
        self._lock = fork.lock()

    async def load(self, files: Sequence[Where]) -> dict[Where, Loaded]:
        """Return files; those that are not kept are read together."""
        with self._lock:
            found = {where: self._kept[where] for where in files if where in self._kept}
            for where in found:
                self._kept.move_to_end(where)
            changes = self._changes
        absent = [where for where in files if where not in found]
        if not absent:
            return found
        results = await self.base.read_many([Read(file_name(where)) for where in absent])
        for where, result in zip(absent, results, strict=True):
            file = None
            if result.state == "value":
                file = read_partition(result.value, self._url_ids, self.base.describe(file_name(where)))
            found[where] = Loaded(file, result.generation)
            self._keep(where, found[where], changes)
        return found

    def _keep(self, where: Where, file: Loaded, changes: int) -> None:
        """Keep what was read, unless files were replaced while it was."""
        with self._lock:
            if where not in self._kept and changes == self._changes:
                self._kept[where] = file
                self._size += _cost(file)
            while self._size > KEPT_BYTES and len(self._kept) > 1:
                self._size -= _cost(self._kept.popitem(last=False)[1])

    def replace(self, where: Where, old: Loaded | None, new: Loaded | None) -> None:
        """Keep `new` in place of `old` (None: of whatever is kept), or forget it."""
        with self._lock:
            self._changes += 1
            kept = self._kept.get(where)
            if kept is None or (old is not None and kept is not old):
                return
            self._size -= _cost(self._kept.pop(where))
            if new is not None:
                self._kept[where] = new
                self._size += _cost(new)

    async def listed(self, path: str) -> list[int]:
        """Return the numbers of the files of an array."""
        prefix = f"{path}/refs." if path else "refs."
        found = []
        async for batch in self.base.scan(KeyRange.prefix(prefix)):
            found += [where[1] for entry in batch if (where := where_of(entry.key)) and where[0] == path]
        return sorted(found)

    def _url_ids(self, urls: Sequence[str]) -> np.ndarray[Any, np.dtype[np.int32]]:
        with self._lock:
            for url in urls:
                if url not in self._ids:
                    self.urls.append(url)
                    self._ids[url] = len(self._ids)
            return np.array([self._ids[url] for url in urls], np.int32)


def _cost(file: Loaded) -> int:
    return 64 if file.partition is None else file.partition.nbytes


MAX_RECORD_SIZE = 10_000_000
_CLAIM = "fsstore_claim"


def is_object(value: bytes) -> bool:
    """Return whether a value is the text of a JSON object, as `.zmetadata` can hold it."""
    try:
        return isinstance(json.loads(value.decode()), dict)
    except (ValueError, RecursionError):
        return False


def format_metadata(
    metadata: Mapping[str, bytes],
    record_size: int,
    scanned: ScanRecord | None = None,
    *,
    origins: Origins = None,
    claim: str = "",
) -> bytes:
    """Return a `.zmetadata`; the documents stand in it as they are, and what is no document as text.

    A `claim` of a writer makes it another one than all before, and says nothing to readers.
    """
    texts = {
        key: value.strip() if is_object(value) else json.dumps(encode_text(value)).encode()
        for key, value in sorted(metadata.items())
    }
    members = b",".join(json.dumps(key).encode() + b":" + text for key, text in texts.items())
    record = b"" if scanned is None else b',"%b":%b' % (MEMBER.encode(), json.dumps(scanned.json()).encode())
    for name, value in saved_origins(origins).items():
        record += b',"%b":%b' % (name.encode(), json.dumps(value).encode())
    claimed = b"" if not claim else b',"%b":%b' % (_CLAIM.encode(), json.dumps(claim).encode())
    return b'{"metadata":{' + members + b'},"record_size":%d' % record_size + record + claimed + b"}"


class _Metadata:
    """Takes the members of the `metadata` object: keys and the JSON text of their values."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.parsed: dict[str, Any] = {}
        self.problems: list[str] = []

    def run(self, run: Run) -> bool:
        """Want metadata one by one, as their text."""
        return False

    def batch(self, members: dict[str, Any]) -> bool:
        """Want metadata one by one, as their text."""
        return False

    def enter(self, key: str) -> MemberSink | None:  # the contract of sinks
        return None

    def member(self, member: JsonMember) -> None:
        key, found = member.key, member.parse()
        why = check_key(key)
        if why is not None:
            self.problems.append(f"Error in metadata {show(key)}: {why}")
        elif isinstance(found, dict):
            self.values[key], self.parsed[key] = member.text, found
        elif isinstance(found, str):
            value = self.values[key] = decode_text(found)
            if is_object(value):
                self.parsed[key] = json.loads(value)
        else:
            self.problems.append(f"Error in metadata {show(key)}: Expected object, but received: {show(found)[:80]}")


class _MetadataMembers:
    """Takes the members of a `.zmetadata`."""

    def __init__(self) -> None:
        self.metadata = _Metadata()
        self.others: dict[str, Any] = {}
        self.complete = False

    def run(self, run: Run) -> bool:
        """Want members one by one."""
        return False

    def batch(self, members: dict[str, Any]) -> bool:
        """Want metadata one by one, as their text."""
        return False

    def enter(self, key: str) -> MemberSink | None:
        self.complete |= key == "metadata"
        return self.metadata if key == "metadata" else None

    def member(self, member: JsonMember) -> None:
        self.others[member.key] = member.parse()


def parse_metadata(data: Buffer) -> tuple[dict[str, bytes], dict[str, Grid], int, ScanRecord | None, Origins]:
    """Return the metadata documents, the grids of the arrays, the record size, what was scanned, and the origins."""
    scanner, document = Scanner((data,)), _MetadataMembers()
    if scanner.first() != b"{":
        raise scanner.damaged("an object")
    scanner.members(document)
    scanner.finish()
    found = document.metadata
    if not document.complete:
        found.problems.append('Error parsing object member "metadata": Expected object')
    fields = Fields({name: value for name, value in document.others.items() if name == "record_size"})
    record_size = fields.require("record_size", integer(1, MAX_RECORD_SIZE))
    try:
        fields.finish()
    except JsonError as error:
        found.problems += error.problems
    grids = {}
    for key, value in found.parsed.items():
        path, _, name = key.rpartition("/")
        if name not in (".zarray", "zarr.json"):
            continue
        try:
            grid = grid_of(path, value)
        except JsonError as error:
            found.problems += error.within(f"Error in metadata {show(key)}").problems
            continue
        if grid is not None:
            grids[path] = grid
    if found.problems:
        raise JsonError(found.problems[:100])
    others = document.others
    record, origins = ScanRecord.parse(others.get(MEMBER)), parse_origins(others.get(ORIGINS))
    return found.values, grids, record_size, record, origins  # noqa: PD011  # a dictionary
