"""Opening a stored set: which form it has, decompressing it, parsing it.

The form is found by looking, not by the name: a value at the path is a JSON document, plain or compressed by gzip,
zstd, bz2 or xz (told by their magic numbers); a `.zmetadata` below the path is a parquet directory.  Only of a set that
is yet to be made the name decides.  Decompression is bounded.

A large document is read piece by piece from a local file, or decompressed so, while it is parsed: it never is in
memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from fsstore.context.context import context_of
from fsstore.errors import AbortedError, NotFoundError, OutOfRangeError, StoreError
from fsstore.kvstore.contract.driver import Buffer, KvPrefix, ReadResult
from fsstore.kvstore.spec.opening import open_kv
from fsstore.kvstore.spec.parse import place_spec
from fsstore.kvstore.spec.storage_option import with_storage_options
from fsstore.reference.document.json_refs import Pieces, from_json
from fsstore.reference.parquet.files import PartitionFiles
from fsstore.reference.parquet.metadata import format_metadata
from fsstore.reference.parquet.refs import ParquetSet
from fsstore.reference.state.refset import TableSet
from fsstore.reference.state.set_state import State
from fsstore.reference.table.table import Table
from fsstore.reference.target.location import directory, name_of
from fsstore.reference.tuning import LOADED_PIECE_BYTES
from fsstore.runtime import execution
from fsstore.values.detection import method_of, pieces, usual_limit

__all__ = ["PARQUET_NAMES", "Reading", "Way", "decompress", "document_at", "load"]


class Way(NamedTuple):
    """How a document is reached: the options of its root, and the context."""

    storage_options: Mapping[str, Any] | None = None
    context: Any = None


async def document_at(url: Any, way: Way = Way()) -> KvPrefix:  # noqa: B008  # frozen
    """Return the store and path of a document."""
    spec = with_storage_options(place_spec(url), way.storage_options)
    return (await open_kv(spec, context_of(way.context))).prefix


PARQUET_NAMES = ("/", ".parq", ".parquet")
"""How the names of parquet sets end."""
RECORD_SIZE = 10_000
"""References in a file of a new parquet set: every batch of writes makes the files it touches anew."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How to read a document: the URL that stands for null, template overrides, whether it may be absent.

    `creates` says what makes a set that does not exist, for the error.
    """

    target: str | None = None
    templates: Mapping[str, str] | None = None
    create: bool = False
    creates: str = ""


async def load(base: KvPrefix, reading: Reading) -> State:
    """Return the state of the set at `base`: a missing one, or `NotFoundError` if `create` is false, where is none."""
    name = name_of(base)
    likely_directory = name.endswith(PARQUET_NAMES)
    document = None if likely_directory else await _document(base)
    if document is None or document.state != "value":
        inside = await directory(base)
        found = await inside.read(".zmetadata")
        if found.state == "value":
            try:
                return State(ParquetSet(PartitionFiles(inside), found.value), {}, found.generation)
            except StoreError as error:
                raise error.within(f"Error opening {inside.describe('.zmetadata')}") from error
        if likely_directory and not name.endswith("/"):
            document = await _document(base)
    if document is None or document.state != "value":
        missing = _missing(base, reading.creates)
        if not reading.create:
            raise NotFoundError(missing)
        if not likely_directory:
            return State(TableSet(Table()), missing=missing)
        metadata = format_metadata({}, RECORD_SIZE)
        return State(ParquetSet(PartitionFiles(await directory(base)), metadata), missing=missing)
    try:
        data = _rest(base, document) if _is_large(base, document) else decompress(document.value)
        parse = partial(from_json, data, target=reading.target, overrides=reading.templates)
        parsed = await execution.offload(parse, kind="compute")
    except StoreError as error:
        raise error.within(f"Error opening reference set {base.describe()}") from error
    return State(parsed, {}, document.generation)


def _missing(base: KvPrefix, creates: str) -> str:
    """Return what to say of a set that does not exist."""
    advice = f"check its path; {creates}" if creates else "check its path"
    return f"There is no reference set at {base.describe()}: neither a document nor a parquet directory ({advice})"


async def _document(base: KvPrefix) -> ReadResult | None:
    """Read a document, or the first piece of a large one that `_rest` can read on.

    Some stores answer a directory's path with an error: where a parquet set is, that is no document.
    """
    try:
        return await _first_piece(base) or await base.read()
    except StoreError as error:
        try:
            inside = await (await directory(base)).read(".zmetadata")
        except StoreError:
            raise error from None
        if inside.state == "missing":
            raise
        return None


async def _first_piece(base: KvPrefix) -> ReadResult | None:
    """Return the first piece of a document that can be read piece by piece, or that there is none."""
    if base.driver.id != "file":
        return None
    try:
        found = await base.read("", 0, LOADED_PIECE_BYTES)
    except OutOfRangeError:
        return None
    return found if found.state != "value" or _is_large(base, found) else None


def _is_large(base: KvPrefix, found: ReadResult) -> bool:
    """Return whether what was read of a document is its first piece."""
    size = len(found.value)
    return (
        base.driver.id == "file" and size == LOADED_PIECE_BYTES and method_of(bytes(found.value[:6])) is None
    )


def _rest(base: KvPrefix, first: ReadResult) -> Pieces:
    """Return the function that reads the pieces of a local file, all of them of one generation."""

    def read() -> Iterator[Buffer]:
        found, at = first, 0
        while found.value:
            if found.generation != first.generation:
                raise AbortedError("The document changed while it was being read")
            yield found.value
            at += len(found.value)
            try:
                found = execution.drive(base.read("", at, at + LOADED_PIECE_BYTES))
            except OutOfRangeError:
                found = execution.drive(base.read("", at))

    return read


def decompress(data: Any, limit: int | None = None) -> Pieces:
    """Return the function that gives a document piece by piece, decompressed to at most `limit` bytes."""
    method = method_of(bytes(data[:6]))
    if method is None:
        return lambda: (data,)
    return partial(pieces, method, data, usual_limit(len(data)) if limit is None else limit)
