"""Opening a stored set: which form it has, decompressing it, parsing it.

The form is found by looking, not by the name: a value at the path is a JSON document, plain or compressed by gzip,
zstd, bz2 or xz (told by their magic numbers); a `.zmetadata` below the path is a parquet directory.  Decompression is
bounded.
"""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fsstore.errors import DataLossError, NotFoundError, ResourceExhaustedError, StoreError
from fsstore.kvstore.contract import NO_VALUE, KvPrefix, ReadResult
from fsstore.kvstore.reference.json_refs import from_json
from fsstore.kvstore.reference.location import directory, name_of
from fsstore.kvstore.reference.overlay import State
from fsstore.kvstore.reference.parquet_refs import ParquetSet
from fsstore.kvstore.reference.refset import TableSet
from fsstore.kvstore.reference.table import Table

__all__ = ["Reading", "decompress", "load"]

MAX_DOCUMENT = 8 * 2**30
_STEP = 1 << 20
_MAGIC = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ\x00")


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read a document: the URL that stands for null, template overrides, whether it may be absent."""

    target: str | None = None
    templates: Mapping[str, str] | None = None
    create: bool = False


async def load(base: KvPrefix, reading: Reading) -> State:
    """Return the state of the set at `base`; raises `NotFoundError` where there is none and `create` is false."""
    name = name_of(base)
    likely_directory = name.endswith(("/", ".parq", ".parquet"))
    document = None if likely_directory else await _document(base)
    if document is None or document.state != "value":
        inside = await directory(base)
        found = await _probe(inside, ".zmetadata")
        if found is not None and found.state == "value":
            try:
                return State(ParquetSet(inside, found.value), {}, found.generation)
            except StoreError as error:
                raise error.within(f"Error opening {inside.describe('.zmetadata')}") from error
        if likely_directory and not name.endswith("/"):
            document = await _document(base)
    if document is None or document.state != "value":
        if reading.create:
            return State(TableSet(Table()), {}, NO_VALUE)
        raise NotFoundError(
            f"There is no reference set at {base.describe()}: neither a document nor a parquet directory"
        )
    try:
        parsed = from_json(decompress(document.value), target=reading.target, overrides=reading.templates)
    except StoreError as error:
        raise error.within(f"Error opening reference set {base.describe()}") from error
    return State(parsed, {}, document.generation)


async def _document(base: KvPrefix) -> ReadResult | None:
    """Read a document; some stores answer a directory's path with an error, which then is no document."""
    try:
        return await base.read()
    except StoreError:
        if await _probe(await directory(base), ".zmetadata") is not None:
            return None
        raise


async def _probe(base: KvPrefix, key: str) -> ReadResult | None:
    try:
        return await base.read(key)
    except StoreError:
        return None


def decompress(data: Any, limit: int | None = None) -> bytes | bytearray | memoryview:
    """Return a document decompressed; one that is not compressed is returned as it is.

    The result has at most `limit` bytes: by default a thousand times the compressed size, or 256 MiB.
    """
    head = bytes(data[:6])
    magic = next((magic for magic in _MAGIC if head.startswith(magic)), None)
    if magic is None:
        return data if isinstance(data, bytes) else memoryview(data)
    if limit is None:
        limit = min(MAX_DOCUMENT, max(2**28, 1000 * len(data)))
    make: Mapping[bytes, Callable[[], Any]] = {
        _MAGIC[0]: _Deflate,
        _MAGIC[2]: bz2.BZ2Decompressor,
        _MAGIC[3]: lambda: lzma.LZMADecompressor(memlimit=2**30),
    }
    if magic == _MAGIC[1]:
        return _zstd(bytes(data), limit)
    try:
        return _streams(make[magic], bytes(data), limit)
    except (zlib.error, OSError, lzma.LZMAError, EOFError) as error:
        raise DataLossError(f"The document is compressed, but damaged: {error}") from error


class _Deflate:
    """`zlib`'s decompressor with the manners of `bz2`'s."""

    def __init__(self) -> None:
        self._machine = zlib.decompressobj(31)

    def decompress(self, data: bytes, limit: int) -> bytes:
        return self._machine.decompress(self._machine.unconsumed_tail + data, limit)

    @property
    def eof(self) -> bool:
        return self._machine.eof

    @property
    def needs_input(self) -> bool:
        return not self._machine.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._machine.unused_data


def _streams(make: Callable[[], Any], rest: bytes, limit: int) -> bytearray:
    """Return concatenated compressed streams, decompressed in steps of bounded size."""
    out = bytearray()
    while rest.startswith(_MAGIC):
        machine, at = make(), 0
        while not machine.eof:
            piece = rest[at : at + _STEP] if machine.needs_input else b""
            if machine.needs_input and not piece:
                raise DataLossError("The document is compressed, but cut off")
            at += len(piece)
            out += machine.decompress(piece, _STEP)
            _check_size(out, limit)
        rest = machine.unused_data + rest[at:]
    return out


def _zstd(data: bytes, limit: int) -> bytearray:
    """Return all frames of a zstd document."""
    import zstandard

    out = bytearray()
    try:
        with zstandard.ZstdDecompressor(max_window_size=2**31).stream_reader(
            data, read_across_frames=True
        ) as stream:
            while piece := stream.read(_STEP):
                out += piece
                _check_size(out, limit)
    except zstandard.ZstdError as error:
        raise DataLossError(f"The document is compressed, but damaged: {error}") from error
    return out


def _check_size(out: bytearray, limit: int) -> None:
    if len(out) > limit:
        raise ResourceExhaustedError(f"The document decompresses to more than {limit} bytes")
