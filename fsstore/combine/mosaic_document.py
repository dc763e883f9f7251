"""The document of a virtual dataset: a header and columns, checked when it is read.

A saved document is replaced in one step by one that refers to the values that were copied into it."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fsstore.combine.mosaic import CellAxis, Decoding, FileFact, Layered, Mosaic, Pieces, PieceSource
from fsstore.combine.mosaic_stored import Column, StoredColumns, from_bytes, to_json, to_parquet
from fsstore.errors import FailedPreconditionError, JsonError, NotFoundError, StoreError
from fsstore.kvstore.contract.driver import KvPrefix, ReadResult
from fsstore.kvstore.contract.request import KeyRange, key_text
from fsstore.reference.table.keys import check_key
from fsstore.reference.table.refset import TableBuilder, TableSet
from fsstore.reference.table.set_state import State, Taking, add_page, with_references
from fsstore.reference.table.table import ABSENT, INLINE, WHOLE, Block, Rows, Table
from fsstore.runtime import execution
from fsstore.values.json_value import Fields, array_of, boolean, integer, obj, quote, string

# A virtual dataset as a header and columns, and back; every number is checked before it is believed.

_PLACE = "place"
"""The fact that names where the document was saved.  Elsewhere it is a copy, and its files may be copies, too."""

_SIZE = integer(0, 2**62)
_STEP = integer(1, 2**62)


def stored_of(mosaic: Mosaic, scan: Mapping[str, Column] | None = None, place: KvPrefix | None = None) -> StoredColumns:
    """Return a dataset as a header and columns, to be saved at a place where its files are those it names now."""
    table = mosaic.references.table
    columns: dict[str, Column] = {}
    header: dict[str, Any] = {**mosaic.facts}
    if mosaic.as_scanned and place is not None:
        header[_PLACE] = _name_of(place)
    columns["urls"] = list(table.urls)
    columns["inline"] = [bytes(table.inline[number]) for number in range(len(table.inline))]
    columns["keys"] = list(table.loose)
    _put_rows(columns, "keys", table.rows.take(list(table.loose.values())))
    header["blocks"] = []
    for number, (family, block) in enumerate(table.blocks.items()):
        header["blocks"].append({
            "prefix": family[0].decode(), "separators": family[1].decode(), "grid": list(block.grid),
            "dense": block.index is None,
        })  # fmt: skip
        _put_rows(columns, f"block/{number}", block.rows)
        if block.index is not None:
            columns[f"block/{number}/index"] = block.index
    header["layered"] = [_layered_json(columns, number, each) for number, each in enumerate(mosaic.layered.values())]
    columns["files/url"] = [fact.url for fact in mosaic.files]
    columns["files/size"] = np.array([fact.size for fact in mosaic.files], np.int64)
    columns["files/generation"] = [fact.generation for fact in mosaic.files]
    return StoredColumns(header, columns, scan or {})


def _put_rows(columns: dict[str, Column], name: str, rows: Rows) -> None:
    columns[f"{name}/url"] = rows.url.astype(np.int64)
    columns[f"{name}/offset"] = np.asarray(rows.offset)
    columns[f"{name}/length"] = np.asarray(rows.length)


def _layered_json(columns: dict[str, Column], number: int, each: Layered) -> dict[str, Any]:
    head = f"layered/{number}"
    pieces = each.pieces
    columns[f"{head}/source"] = np.asarray(pieces.source, np.int64)
    columns[f"{head}/origin"] = np.ascontiguousarray(pieces.origin, np.int64).reshape(-1)
    if pieces.cell is not None:
        columns[f"{head}/cell"] = pieces.cell
    for axis in pieces.axes:
        columns[f"{head}/start/{axis.dimension}"] = axis.start
        columns[f"{head}/stop/{axis.dimension}"] = axis.stop
    return {
        "path": each.path,
        "dtype": each.dtype,
        "shape": list(each.shape),
        "chunks": list(each.chunks),
        "fill": each.fill,
        "attributes": dict(each.attributes),
        "axes": [axis.dimension for axis in pieces.axes],
        "everywhere": pieces.cell is None,
        **({"zarr_format": 3, "dims": list(each.dims)} if each.version == 3 else {}),
        "sources": [
            {
                "path": source.path,
                "shape": list(source.shape),
                "zarr_format": source.version,
                "decoding": source.decoding.to_json(),
            }
            for source in each.sources
        ],
    }


def _name_of(place: KvPrefix) -> str:
    """Return a name of a place that does not tell it: documents are given to others."""
    return hashlib.sha256(place.describe().encode("utf-8", "surrogateescape")).hexdigest()[:32]


def mosaic_of(stored: StoredColumns, scan: Any = None, place: KvPrefix | None = None) -> Mosaic:
    """Return the dataset of a document found at a place; raises `JsonError` for what cannot be right."""
    try:
        return _mosaic(stored, scan, place)
    except JsonError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        raise JsonError(f"The virtual dataset is damaged: {type(error).__name__}: {error}") from error


def _mosaic(stored: StoredColumns, scan: Any, place: KvPrefix | None) -> Mosaic:
    header = dict(stored.header)
    noted = header.pop(_PLACE, None)
    as_scanned = place is not None and noted == _name_of(place)
    table = _table(stored, header.pop("blocks", []))
    listed = header.pop("layered", [])
    if not isinstance(listed, list):
        raise JsonError("The layered arrays are a list")
    layered = {}
    for number, value in enumerate(listed):
        each = _layered(stored, number, value)
        layered[each.path] = each
    names = (stored.texts("files/url"), stored.ints("files/size"), stored.texts("files/generation"))
    if len({len(each) for each in names}) != 1:
        raise JsonError("The columns of files have several lengths")
    files = [FileFact(url, int(size), tag) for url, size, tag in zip(*names, strict=True)]
    for fact in files:
        bytes.fromhex(fact.generation)
    found = Mosaic(TableSet(table), layered, files, header, scan, as_scanned)
    found.check()
    return found


def _table(stored: StoredColumns, blocks: Any) -> Table:
    urls, inline, keys = stored.texts("urls"), stored.values("inline"), stored.texts("keys")
    for key in keys:
        why = check_key(key)
        if why is not None:
            raise JsonError(f"A key cannot be used: {why}")
    made = {}
    for number, value in enumerate(array_of(obj)(blocks)):
        block = _block(stored, number, value, (len(urls), len(inline)))
        made[block.family] = block
    rows = _rows(stored, "keys", (len(urls), len(inline)))
    if len(rows.url) != len(keys):
        raise JsonError("There are not as many references as keys")
    return Table(urls, inline, {key: at for at, key in enumerate(keys)}, rows, made)


def _block(stored: StoredColumns, number: int, value: Any, limits: tuple[int, int]) -> Block:
    fields = Fields(value)
    prefix, separators = fields.require("prefix", string), fields.require("separators", string)
    grid = tuple(fields.require("grid", array_of(_STEP)))
    dense = fields.require("dense", boolean)
    fields.finish()
    total = math.prod(grid)
    if len(separators) != len(grid) or set(separators) - set("./") or not grid or total >= 2**62:
        raise JsonError(f"The chunk grid number {number} is none")
    if prefix and (not prefix.startswith("/") or check_key(prefix[1:] + "/0") is not None):
        raise JsonError(f"The prefix of the chunk grid number {number} cannot be used")
    rows = _rows(stored, f"block/{number}", limits)
    index = None if dense else stored.ints(f"block/{number}/index")
    if index is None:
        if len(rows.url) != total:
            raise JsonError(f"The chunk grid number {number} has {total} chunks, but {len(rows.url)} references")
    elif (
        len(index) != len(rows.url)
        or not len(index)
        or index[0] < 0
        or index[-1] >= total
        or (index[1:] <= index[:-1]).any()
    ):
        raise JsonError(f"The references of the chunk grid number {number} are not in order")
    return Block((prefix.encode(), separators.encode()), grid, index, rows)


def _rows(stored: StoredColumns, name: str, limits: tuple[int, int]) -> Rows:
    url, offset, length = (stored.ints(f"{name}/{each}") for each in ("url", "offset", "length"))
    if not len(url) == len(offset) == len(length):
        raise JsonError(f'The columns of "{name}" have several lengths')
    urls, inline = limits
    if len(url) and (int(url.min()) < INLINE or int(url.max()) >= urls):
        raise JsonError(f'References of "{name}" name a URL that is not there')
    held = url == INLINE
    if ((offset < 0) | (length < WHOLE)).any() or (offset[held] >= inline).any():
        raise JsonError(f'References of "{name}" have an offset or a length that cannot be')
    wrong = (url >= 0) & (length == WHOLE) & (offset != 0)
    if wrong.any() or (offset > 2**62).any() or (length > 2**62).any():
        raise JsonError(f'References of "{name}" have an offset or a length that cannot be')
    assert ABSENT > INLINE
    return Rows(url.astype(np.int32), offset, length)


def _layered(stored: StoredColumns, number: int, value: Any) -> Layered:
    fields = Fields(value)
    head = f"layered/{number}"
    shape = tuple(fields.require("shape", array_of(_SIZE)))
    dimensions = fields.require("axes", array_of(integer(0, 31)))
    everywhere = fields.require("everywhere", boolean)
    axes = tuple(CellAxis(at, stored.ints(f"{head}/start/{at}"), stored.ints(f"{head}/stop/{at}")) for at in dimensions)
    source, origin = stored.ints(f"{head}/source"), stored.ints(f"{head}/origin")
    if len(origin) != len(source) * len(axes):
        raise JsonError("The pieces of an array have columns of several lengths")
    cell = None if everywhere else stored.ints(f"{head}/cell")
    pieces = Pieces(shape, axes, source, origin.reshape(len(source), len(axes)), cell)
    path, chunks = fields.require("path", string), tuple(fields.require("chunks", array_of(_STEP)))
    if check_key(f"{path}/.zarray") is not None or len(chunks) != len(shape):
        raise JsonError(f"The layered array number {number} has a path or chunks that cannot be used")
    sources = tuple(map(_source, fields.require("sources", array_of(obj))))
    dtype, fill = fields.require("dtype", string), fields.take("fill", _fill)
    attributes = fields.take("attributes", obj, default={})
    version = fields.take("zarr_format", integer(2, 3), default=2)
    dims = tuple(fields.take("dims", array_of(string), default=[]))
    fields.finish()
    if version == 3 and len(dims) != len(shape):
        raise JsonError(f"The layered array number {number} does not name each of its dimensions")
    return Layered(path, dtype, shape, chunks, fill, attributes, sources, pieces, version, dims)


def _fill(value: Any) -> Any:
    if value is not None and not isinstance(value, str | int | float | bool):
        raise JsonError("A fill value is a number or a text")
    return value


def _source(value: Any) -> PieceSource:
    fields = Fields(value)
    path = fields.require("path", string)
    shape = tuple(fields.require("shape", array_of(_SIZE)))
    version = fields.require("zarr_format", integer(2, 3))
    decoding = Decoding.from_json(fields.take("decoding", obj, default={}))
    fields.finish()
    if check_key(f"{path}/.zarray") is not None:
        raise JsonError("The path of a source cannot be used")
    return PieceSource(path, shape, version, decoding)


_COPIED = "copied"
"""The fact that names what was copied: paths with a slash at the end, and single documents."""
_PARQUET = b"PAR1"


async def load_mosaic(base: KvPrefix, *, with_scan: bool = False) -> tuple[Mosaic, ReadResult]:
    """Return the dataset at a place, and the answer that had its document."""
    found = await base.read()
    if found.state != "value":
        raise NotFoundError(
            f"There is no virtual dataset at {base.describe()}; `combine` saves one under a name such as all.mosaic"
        )

    def parsed() -> Mosaic:
        stored: StoredColumns = from_bytes(found.value, with_scan=with_scan)
        return mosaic_of(stored, stored if with_scan else None, base)

    try:
        return await execution.offload(parsed, kind="compute"), found
    except StoreError as error:
        raise error.within(f"Error opening virtual dataset {base.describe()}") from error


def document_like(mosaic: Mosaic, before: ReadResult, place: KvPrefix) -> bytes:
    """Return the document of a dataset that was loaded with its scan, in the form of the one before."""
    stored = stored_of(mosaic, {} if mosaic.scan is None else mosaic.scan.scan, place)
    return to_parquet(stored) if bytes(before.value[:4]) == _PARQUET else to_json(stored)


async def with_copy(mosaic: Mosaic, taking: Taking) -> Mosaic:
    """Return a dataset with what it takes of a copy."""
    kept = {path: each for path, each in mosaic.layered.items() if not taking.deletes(f"{path}/" if path else "")}
    used = {source.path for each in kept.values() for source in each.sources}
    unused = {source.path for each in mosaic.layered.values() for source in each.sources} - used
    gone = [*taking.deleted, *(KeyRange.prefix(f"{path}/") for path in sorted(unused))]
    state = await with_references(State(mosaic.references), replace(taking, deleted=gone))
    heads = [key_text(each.common_prefix) for each in taking.deleted]
    single = [key for key in taking.writes if not key.startswith(tuple(heads))]
    copied = sorted({*_copied(mosaic), *heads, *single})
    assert isinstance(state.base, TableSet)
    return replace(mosaic, references=state.base, layered=kept, facts={**mosaic.facts, _COPIED: copied})


def with_copied(whole: Mosaic, before: Mosaic) -> Mosaic:
    """Return a dataset, put together anew from files, with what had been copied into it before."""
    whole, copied = replace(whole, as_scanned=before.as_scanned), _copied(before)
    if not copied:
        return whole
    builder = TableBuilder()
    for names, found in whole.references.batches(KeyRange()):
        add_page(builder, names, found)
    for head in copied:
        is_path = not head or head.endswith("/")
        ranged = KeyRange.prefix(head) if is_path else KeyRange(head, head + "\0")
        listed = [name for names, _ in whole.references.batches(ranged) for name in names]
        if is_path and (listed or any(f"{path}/".startswith(head) for path in whole.layered)):
            raise FailedPreconditionError(
                f"{quote(head.rstrip('/'))} was replaced by a copy, and the files have it too; leave it out of them, or"
                " combine them anew"
            )
        for names, found in before.references.batches(ranged):
            add_page(builder, names, found)
    return replace(whole, references=TableSet(builder.finish()), facts={**whole.facts, _COPIED: list(copied)})


def _copied(mosaic: Mosaic) -> tuple[str, ...]:
    found = mosaic.facts.get(_COPIED)
    return tuple(each for each in found if isinstance(each, str)) if isinstance(found, list) else ()
