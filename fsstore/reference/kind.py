"""The `reference` kind: its JSON members, its URL (`<base>|reference:<path>`), and how a stored set is opened.

target       URL that stands for null URLs
targets      {prefix: kvstore spec, URL or storage options}; the longest prefix of a URL wins
rewrite      {old prefix: new prefix} of URLs, before anything else
templates    {name: text} replacing or adding templates
allow        [prefix]: nothing else is read

The form of a set is found by looking, not by the name: a value at the path is a JSON document, plain or compressed by
gzip, zstd, bz2 or xz (told by their magic numbers); a `.zmetadata` below the path is a parquet directory.  Only for a
set that is yet to be made the name decides.  Decompression is bounded.  A large document is parsed while it is read
piece by piece from a local file, or decompressed; it never is in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from fsstore.context.context import context_of
from fsstore.errors import AbortedError, JsonError, NotFoundError, OutOfRangeError, StoreError
from fsstore.kvstore.contract.batch import Limits, limits_from
from fsstore.kvstore.contract.driver import AdapterKind, Buffer, KvDriver, KvOpening, KvPrefix, ReadResult
from fsstore.kvstore.engine.secret import guard, guard_urls, reveal
from fsstore.kvstore.spec_parse import open_kv, place_spec
from fsstore.kvstore.spec_value import with_storage_options
from fsstore.reference.driver import reference_driver
from fsstore.reference.json_document import JsonDocument, Pieces, from_json, from_mapping
from fsstore.reference.parquet_change import ParquetDocument
from fsstore.reference.parquet_file import PartitionFiles, format_metadata
from fsstore.reference.parquet_set import ParquetSet
from fsstore.reference.policy import beside, directory, name_of, normalize_prefix
from fsstore.reference.table.refset import TableSet
from fsstore.reference.table.set_state import Overlay, State
from fsstore.reference.table.table import Table
from fsstore.reference.targets import OpenTarget, check_prefixes, open_in
from fsstore.runtime import execution
from fsstore.runtime.tuning import REQUEST_BYTES
from fsstore.values.detection import method_of, pieces, usual_limit
from fsstore.values.json_value import Fields, Json, array_of, expected, obj, optional, string
from fsstore.values.registry import encode_path


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
        found = await base.read("", 0, REQUEST_BYTES)
    except OutOfRangeError:
        return None
    return found if found.state != "value" or _is_large(base, found) else None


def _is_large(base: KvPrefix, found: ReadResult) -> bool:
    size = len(found.value)
    return base.driver.id == "file" and size == REQUEST_BYTES and method_of(bytes(found.value[:6])) is None


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
                found = execution.drive(base.read("", at, at + REQUEST_BYTES))
            except OutOfRangeError:
                found = execution.drive(base.read("", at))

    return read


def decompress(data: Any, limit: int | None = None) -> Pieces:
    """Return the function that gives a document piece by piece, decompressed to at most `limit` bytes."""
    method = method_of(bytes(data[:6]))
    if method is None:
        return lambda: (data,)
    return partial(pieces, method, data, usual_limit(len(data)) if limit is None else limit)


# Reference sets inside live objects: fsspec's `ReferenceFileSystem`.

_OWN = ("file", "local", "http", "https")
_HARMLESS = frozenset({"asynchronous", "skip_instance_cache", "loop", "use_listings_cache", "auto_mkdir"})


async def live_state(source: Any, reading: Reading) -> tuple[State, KvPrefix | None]:
    """Return the references of a filesystem, and the place of their directory if they are parquet."""
    references = source.references
    if isinstance(references, dict):
        return State(from_mapping(references, target=reading.target)), None
    base = await _parquet_place(references)
    return await load(base, reading), base


async def _parquet_place(references: Any) -> KvPrefix:
    from fsstore.context.context import Context
    from fsstore.kvstore.root.live import filesystem_prefix
    from fsstore.kvstore.spec_parse import kv_spec, open_kv

    root = references.root.rstrip("/") + "/"
    if "file" in references.fs.protocol:
        return (await open_kv(kv_spec({"driver": "file", "path": root}), Context())).prefix
    return filesystem_prefix(references.fs, root)


def live_targets(source: Any) -> dict[str, Any]:
    """Return the filesystems of a `ReferenceFileSystem` by prefix, where their paths are bucket and key."""
    fetching = getattr(source, "fss", {}).items()
    return {f"{protocol}://": filesystem for protocol, filesystem in fetching if protocol and protocol not in _OWN}


def live_driver(source: Any) -> KvDriver | None:
    """Return the read-only store over a `ReferenceFileSystem`, or None if only its own code can fetch.

    That is so when URLs without a protocol are not local files, and when its web filesystem carries options (headers,
    usually), which here belong to a host and there go to every one.
    """
    for protocol, filesystem in source.fss.items():
        options = getattr(filesystem, "storage_options", None) or {}
        if protocol in ("http", "https") and set(options) - _HARMLESS:
            return None
    target = source.target if isinstance(getattr(source, "target", None), str) else None
    state, base = execution.call(live_state(source, Reading(target)))
    bare = source.fss.get(None)
    if bare is not None and not _is_local(bare) and _has_bare_urls(state):
        return None
    return reference_driver(
        Overlay(state, None, writable=False),
        {"targets": live_targets(source)},
        base=base,
        described="a live reference filesystem",
    )


def _has_bare_urls(state: State) -> bool:
    """Return whether URLs of a set in memory lack a protocol; those of parquet are not looked through."""
    table = getattr(state.base, "table", None)
    return table is not None and any("://" not in url for url in table.urls)


def _is_local(filesystem: Any) -> bool:
    inner = getattr(filesystem, "sync_fs", filesystem)
    protocol = inner.protocol
    return "file" in ((protocol,) if isinstance(protocol, str) else protocol)


def _strings(value: Any) -> dict[str, str]:
    return {name: string(text) for name, text in obj(value).items()}


def targets_of(value: Any) -> dict[str, Any]:
    """Return the member `targets`, its credentials hidden from JSON, messages and pickles."""
    found = {prefix: _guarded(how) for prefix, how in obj(value).items()}
    for prefix, how in found.items():
        if how is None or isinstance(how, bool | int | float | list):
            raise expected(f"a kvstore spec, URL or storage options for {prefix!r}", how)
    check_prefixes(found)
    return found


def _guarded(how: Any) -> Any:
    return guard(dict(how)) if isinstance(how, Mapping) else guard(how) if isinstance(how, str) else how


def _allow(value: Any) -> list[str]:
    found = array_of(string)(value)
    try:
        for prefix in found:
            normalize_prefix(prefix)
    except StoreError as error:
        raise JsonError(error.message) from error
    return found


def reach_members(fields: Fields) -> dict[str, Json]:
    """Take the members that say what a set, or a file that refers to others, may read."""
    taken: dict[str, Any] = {
        "targets": fields.take("targets", targets_of),
        "rewrite": guard_urls(fields.take("rewrite", _strings)),
        "allow": guard_urls(fields.take("allow", optional(_allow))),
    }
    return {name: value for name, value in taken.items() if value is not None and value != {}}


@dataclass(frozen=True, slots=True)
class ReferenceKind(AdapterKind):
    """The static side of the adapter."""

    id: str = "reference"
    schemes: tuple[str, ...] = ("reference", "kerchunk")
    resources: tuple[str, ...] = ("range_coalescing",)

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the members of the kind."""
        taken: dict[str, Any] = {
            "target": guard_urls(fields.take("target", optional(string))),
            "templates": guard_urls(fields.take("templates", _strings)),
        }
        taken = {name: value for name, value in taken.items() if value is not None and value != {}}
        return {**taken, **reach_members(fields)}

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:  # options have no URL form
        """Return the URL component."""
        return "reference:" + encode_path(path)

    async def open(self, opening: KvOpening) -> KvDriver:
        """Return the opened adapter.

        A set that does not exist can be opened where it can be made; then it is an error to read it.
        """
        base = opening.below
        means = limits_from(opening.resources), open_in(opening.context)
        return await open_reference(base, opening.members, means)


KIND = ReferenceKind()


async def open_reference(
    base: KvPrefix, members: Mapping[str, Any], means: tuple[Limits, OpenTarget] | None = None
) -> KvDriver:
    """Return the key-value store of the set at `base`."""
    features = base.driver.features
    writable = features.writable and features.conditional_write
    how = "writing to it, or opening an array in it with `create=True`, makes it" if writable else ""
    reading = Reading(reveal(members.get("target")), reveal(members.get("templates")), create=writable, creates=how)

    async def stored() -> State:
        return await load(base, reading)

    state = await stored()
    document = ParquetDocument(stored) if isinstance(state.base, ParquetSet) else JsonDocument(base, stored)
    overlay = Overlay(state, document if writable else None, writable=writable)
    parent = await beside(base)
    return reference_driver(overlay, members, base=parent, described=f"reference set {base.describe()}", means=means)
