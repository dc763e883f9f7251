"""The contract of a key-value store driver, and of the kind by which it is registered.

A driver maps string keys to byte strings.  Array code, adapters and the `KvStore` façade see nothing else
of storage.  The batch is the primitive: `read_many` and `write_many` return one answer for each request of a
batch, in order.

Every driver promises the following (`fsstore.testing` checks each driver):

* A missing key is `state="missing"`, never an exception.  Any other failure is an exception that names the
  key through `describe_key`: never "missing", or the reader would see fill values in place of data.
* A byte range that reaches outside the value raises `OutOfRangeError`; a short read is an error.
* If `if_not_equal` is the current generation, the answer is `state="unspecified"`, without the value.
* If a driver can find the size of a value without reading it, the answer to an empty range, `[0, 0)`, contains it.
  So an empty range asks whether a key exists, how large its value is, and which generation it has.
* A write whose `if_equal` does not hold changes nothing, and its answer has the generation `UNKNOWN`.
  `if_equal=NO_VALUE` writes only if the key is missing.  A driver that cannot promise this atomically
  declares so in `features` and raises `UnimplementedError`: it never pretends.
* A write is visible as a whole or not at all, and durable once it is answered (unless its options say otherwise).
* `value=None` deletes; deleting a missing key is fine, and its answer is `NO_VALUE`.
* An ability is something that only some drivers can do: a class that they name among their bases (`ability`).
* Returned values may be any read-only buffer; the caller must not change them.
* If `features.waits` is false, no coroutine of the driver ever suspends, so `runtime.execution` may drive it inline on
  any thread.  All drivers are thread-safe.

A `KvKind` is the static side of a driver.  `KvStore.Spec`, URL pipelines and detection are written once, over
kinds; adding a key-value store is one new file with a `KIND` and one registry line.

A reader that knows how large a value may be reads it inside `values_up_to`.  Engines whose storage announces the size
of a value before its bytes (HTTP, S3) give the announcement to `check_announced`, which refuses larger values before
they are received.  Other engines ignore the limit, and so do reads of ranges.  The limit is a context variable because
it belongs to the reader, like a deadline: every store between reader and engine would otherwise have to pass it on.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

from fsstore.context.context import Context
from fsstore.errors import OutOfRangeError, ResourceExhaustedError, StoreError, UnimplementedError
from fsstore.kvstore.contract.ability import KnowsSizes, ListsDocuments, MayBeMissing, ShowsFile, able
from fsstore.kvstore.contract.request import (
    NO_VALUE,
    UNKNOWN,
    Buffer,
    Entry,
    EntryColumns,
    KeyRange,
    LateValue,
    LateWrite,
    Read,
    ReadResult,
    ReadUpTo,
    Stamp,
    State,
    Write,
    now,
)
from fsstore.values.json_value import Fields, Json, boolean, one_of
from fsstore.values.registry import decode_path, reject_query

__all__ = [
    "ENGINES",
    "NO_VALUE",
    "UNKNOWN",
    "AdapterKind",
    "Buffer",
    "Entry",
    "Features",
    "KindDefaults",
    "KvDriver",
    "KvKind",
    "KvOpening",
    "KvPrefix",
    "LateValue",
    "LateWrite",
    "Read",
    "ReadOnly",
    "ReadResult",
    "ReadUpTo",
    "RootKind",
    "Stamp",
    "StandsOver",
    "State",
    "Write",
    "begin_creating",
    "check_announced",
    "known_size",
    "limit_of",
    "now",
    "refuse_way",
    "take_engine",
    "take_way",
    "values_up_to",
]


# The members that select how a root is reached: the library that serves it (`engine`; by default the store's first
# usable one), and whether this is its only writer.  The engine `fsspec` is the filesystem of the protocol for every
# store.


_BUCKET = ("obstore", "fsspec")
ENGINES: Mapping[str, tuple[str, ...]] = {
    "file": ("fsstore", "fsspec"),
    "memory": ("fsstore", "fsspec"),
    "http": ("fsstore", "obstore", "fsspec"),
    "s3": _BUCKET,
    "gcs": _BUCKET,
    "gcs_grpc": _BUCKET,
    "abfs": _BUCKET,
    "fsspec": ("fsspec",),
}
"""The engines of each kind of root, by its JSON name."""


def take_engine(fields: Fields, kind: str) -> dict[str, Json]:
    """Take `engine`."""
    engine = fields.take("engine", one_of(*ENGINES[kind]))
    return {"engine": engine} if engine else {}


def take_way(fields: Fields, kind: str) -> dict[str, Json]:
    """Take `engine`, and `single_writer`, the promise that no other process writes to this store."""
    alone = fields.take("single_writer", boolean, default=False)
    return take_engine(fields, kind) | ({"single_writer": True} if alone else {})


def refuse_way(members: Mapping[str, Json], *names: str) -> None:
    """Raise if a URL would leave out one of these members."""
    for name in names:
        if members.get(name):
            raise UnimplementedError(f"URL syntax not supported with explicit {name}")


@dataclass(frozen=True, slots=True)
class Features:
    """The abilities of a driver, for callers to consult in advance."""

    waits: bool = True
    """Whether coroutines may suspend, as over a network; false for memory and local files."""
    writable: bool = True
    listable: bool = True
    create_only: bool = False
    """Whether `if_equal=NO_VALUE` is honoured atomically."""
    conditional_write: bool = False
    """Whether `if_equal=<any generation>` is honoured atomically, against every writer of the store."""
    conditional_delete: bool = True
    """Whether conditions also protect deletions, given `conditional_write`; on S3 they protect writes only.

    Deleting with `if_equal=NO_VALUE` changes nothing, and works wherever conditions do.
    """
    atomic_transactions: bool = False
    """Whether several writes can be applied as one step (see `kvstore/transaction.py`)."""
    sorted_scan: bool = False
    empty_key: bool = False
    """Whether a value is expected at the empty key, as in a store of one decompressed file."""
    coarse_generations: bool = False
    """Whether two writes may leave the same generation, because the clock of the store is too slow."""
    written_as_one: bool = False
    """Whether each batch of writes rewrites everything, so that changes should be collected in one transaction."""
    reads_parts: bool = False
    """Whether a part of a value is read in less time than all of it, and the answer tells the size of the whole."""
    slow_writes: bool = False
    """Whether writes block for long although the driver never suspends (a sync to disk), so that a pool thread is
    worthwhile.
    """


class KvDriver(Protocol):
    """A key-value store.  The module docstring states the promises."""

    id: ClassVar[str]

    async def read_many(self, reads: Sequence[Read]) -> Sequence[ReadResult]:
        """Return one result for each of `reads`, in order: a list, or a sequence that makes them on demand."""
        ...

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply `writes` (of distinct keys) and return one stamp for each, in order."""
        ...

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete every key in the range."""
        ...

    def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in the range in batches of any size, sorted if `features.sorted_scan`.

        A batch is a list, or `EntryColumns`, which makes entries on demand.
        """
        ...

    def describe_key(self, key: str) -> str:
        """Return the name of the key in messages: `local file "/a/b"`, `"x" in ...`."""
        ...

    def spec(self) -> Mapping[str, Json]:
        """Return the JSON members that are now in effect.

        `driver`, `path`, `base`, context resources, and members equal to their defaults are left out.
        """
        ...

    @property
    def features(self) -> Features:
        """The abilities of the driver."""
        ...


class ReadOnly:
    """A driver that refuses writes."""

    __slots__ = ()

    async def write_many(self: KvDriver, writes: Sequence[Write]) -> list[Stamp]:
        """Refuse."""
        raise UnimplementedError(f"KeyValueStore does not support writing: {self.describe_key('')}")

    async def delete_range(self: KvDriver, keys: KeyRange) -> None:
        """Refuse."""
        raise UnimplementedError(f"KeyValueStore does not support writing: {self.describe_key('')}")


class KvPrefix(NamedTuple):
    """A driver and a path that is put before every key: the place of an adapter or an array.

    A path is a pure prefix of keys, not a directory.
    """

    driver: KvDriver
    path: str = ""

    async def read(self, key: str = "", start: int = 0, stop: int | None = None) -> ReadResult:
        """Return the answer to a single read."""
        return (await self.driver.read_many([Read(self.path + key, start, stop)]))[0]

    async def read_up_to(self, size: int, key: str = "") -> ReadResult:
        """Return the first bytes of a value, or the last ones for a negative `size`; all of it if it is shorter."""
        span = (0, size) if size >= 0 else (size, None)
        try:
            return (await self.driver.read_many([ReadUpTo(self.path + key, *span)]))[0]
        except OutOfRangeError:
            return await self.read(key)

    async def read_many(self, reads: Sequence[Read]) -> Sequence[ReadResult]:
        """Return the answers to `reads`, whose keys are relative to the path."""
        path = self.path
        if path:
            reads = [Read(path + key, start, stop, known, bound) for key, start, stop, known, bound in reads]
        return await self.driver.read_many(reads)

    async def write(self, key: str, value: Buffer | None, if_equal: bytes = UNKNOWN) -> Stamp:
        """Return the stamp of a single write."""
        return (await self.driver.write_many([Write(self.path + key, value, if_equal)]))[0]

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Return the stamps of `writes`, whose keys are relative to the path."""
        path = self.path
        if path:
            writes = [write._replace(key=path + write.key) for write in writes]
        return await self.driver.write_many(writes)

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete the keys of a range relative to the path."""
        await self.driver.delete_range(keys.with_prefix(self.path))

    async def scan(self, keys: KeyRange | None = None) -> AsyncIterator[EntryColumns]:
        """Yield batches of entries of a range relative to the path, with relative keys."""
        async for batch in self.driver.scan((keys or KeyRange()).with_prefix(self.path)):
            yield EntryColumns.of(batch).below(self.path)

    async def documents(self) -> AsyncIterator[EntryColumns]:
        """Yield batches of the entries below the path; a driver may leave out keys that end in a number.

        If the driver `ListsDocuments`, finding the metadata of ten arrays need not list a million chunks.
        """
        lists = able(self.driver, ListsDocuments)
        scan = self.driver.scan if lists is None else lists.documents
        async for batch in scan(KeyRange().with_prefix(self.path)):
            yield EntryColumns.of(batch).below(self.path)

    def left_out(self) -> dict[str, str]:
        """Return the reason for each object below the path that the driver does not show, by relative path (see
        `ShowsFile`).
        """
        leaves = able(self.driver, ShowsFile)
        every = {} if leaves is None else leaves.left_out()
        cut = len(self.path)
        return {path[cut:]: why for path, why in every.items() if path.startswith(self.path) and path[cut:]}

    def describe(self, key: str = "") -> str:
        """Return the name for messages of a key below the path."""
        return self.driver.describe_key(self.path + key)

    def join(self, path: str) -> KvPrefix:
        """Return the prefix with `path` appended as it is."""
        return KvPrefix(self.driver, self.path + path)


class StandsOver:
    """An adapter over one place of another store, all of whose bytes come from there."""

    __slots__ = ()
    base: KvPrefix


def begin_creating(driver: KvDriver) -> None:
    """Announce writes, before the first read, to a store that may not exist yet."""
    missing = able(driver, MayBeMissing)
    if missing is not None:
        missing.begin_creating()


async def known_size(place: KvPrefix, key: str) -> int | None:
    """Return the size of a value if the store knows it without a request, or None."""
    knows = able(place.driver, KnowsSizes)
    return None if knows is None else await knows.known_size(place.path + key)


# The kind of a store: its names, its JSON, its URLs, how it is opened.


@dataclass(frozen=True, slots=True)
class KvOpening:
    """Everything a kind needs to open a driver.

    `members` is what `KvKind.members` returned; `resources` maps the names in `KvKind.resources` to the values of the
    context resources (`context.Resource.value`); `base` is the opened store below an adapter. `path` is the path of the
    spec, for kinds whose path selects the store; others ignore it. In `context` a kind opens further stores, such as
    the targets of references or a database's manifests.
    """

    members: Mapping[str, Json] = field(default_factory=dict)
    resources: Mapping[str, Any] = field(default_factory=dict)
    base: KvPrefix | None = None
    path: str = ""
    context: Context | None = None

    @property
    def below(self) -> KvPrefix:
        """The opened store below an adapter; an error if there is none."""
        if self.base is None:
            raise StoreError('"base" must be specified')
        return self.base


class KvKind(Protocol):
    """A kind of key-value store.  Implementations are plain frozen objects, one a module, called `KIND`."""

    @property
    def id(self) -> str:
        """The `driver` member in JSON."""
        ...

    @property
    def schemes(self) -> tuple[str, ...]:
        """URL schemes (`"file"`, `"zip"`, `("gs",)`), the preferred one first; may be empty."""
        ...

    @property
    def role(self) -> Literal["root", "adapter"]:
        """Whether it stands at the start of a URL pipeline (`scheme://path`) or after a store (`scheme:path`)."""
        ...

    @property
    def resources(self) -> tuple[str, ...]:
        """Names of the context resources it takes as members; the resource type is the name's."""
        ...

    @property
    def defaults(self) -> Mapping[str, Json]:
        """Members with the values that are left out of JSON, for `to_json(include_defaults=True)`."""
        ...

    @property
    def single_file(self) -> bool:
        """Whether the empty path can be a file."""
        ...

    @property
    def sequential(self) -> bool:
        """Whether reading the end of a value costs reading all of it."""
        ...

    def members(self, fields: Fields) -> dict[str, Json]:
        """Take the kind's own JSON members from `fields` and return them in canonical form, defaults left out.

        The caller takes `driver`, `path`, `base`, `context` and the resources, and calls `fields.finish`.  Values stay
        JSON.
        """
        ...

    def check_path(self, path: str) -> str:
        """Return the path in canonical form, or raise `StoreError` (`file` refuses `..`)."""
        ...

    def base_path(self, path: str) -> str:
        """Return the path of the base store in the form the adapter needs (`ocdbt` appends `/`)."""
        ...

    def from_url(self, scheme: str, rest: str) -> tuple[str, dict[str, Json]]:
        """Return path and members of a URL component; `rest` follows `scheme://` (root) or `scheme:` (adapter).

        `rest` is still percent-encoded; `fsstore.values.registry.decode_path` decodes it.
        """
        ...

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:
        """Return the URL component, scheme included, or raise `UnimplementedError` if no URL can express it."""
        ...

    def with_options(self, members: Mapping[str, Json], options: Mapping[str, Any]) -> dict[str, Json]:
        """Return the members of a root with `storage_options` put in, or raise an error that names an unknown one.

        Raises `UnimplementedError` if the kind has no options.
        """
        ...

    async def open(self, opening: KvOpening) -> KvDriver:
        """Return the opened driver."""
        ...


class KindDefaults:
    """The usual kind: any path is valid, members have no defaults to print, and values can be read in parts."""

    __slots__ = ()
    defaults: ClassVar[Mapping[str, Json]] = {}
    single_file: bool = False
    sequential: bool = False

    def with_options(self, members: Mapping[str, Json], options: Mapping[str, Any]) -> dict[str, Json]:
        """Refuse all: only stores behind a client library have options."""
        raise UnimplementedError("This kind of store has no storage options")

    def check_path(self, path: str) -> str:
        """Return the path: any string begins a key."""
        return path

    def base_path(self, path: str) -> str:
        """Return the path of the base unchanged."""
        return path

    def from_url(self, scheme: str, rest: str) -> tuple[str, dict[str, Json]]:
        """Return the path of a URL component, which holds nothing else."""
        reject_query(rest)
        return decode_path(rest), {}

    def to_url(self, path: str, members: Mapping[str, Json]) -> str:
        """Refuse: URLs cannot express the members."""
        raise UnimplementedError("URL representation not supported")


class RootKind(KindDefaults):
    """The usual kind at the start of a URL."""

    role: Literal["root"] = "root"


class AdapterKind(KindDefaults):
    """The usual kind behind a store in a URL."""

    __slots__ = ()
    role: Literal["adapter"] = "adapter"


# The greatest size of a whole value for its reader.

_LIMIT: ContextVar[int | None] = ContextVar("fsstore_value_limit", default=None)


@contextmanager
def values_up_to(limit: int | None) -> Iterator[None]:
    """Make reads of whole values in the block fail if the value announces more than `limit` bytes; None: any."""
    token = _LIMIT.set(limit)
    try:
        yield
    finally:
        _LIMIT.reset(token)


def limit_of(read: Read) -> int | None:
    """Return the greatest number of bytes in the answer to a read; None: any."""
    return _LIMIT.get() if read.start == 0 and read.stop is None else None


def check_announced(size: int | None, limit: int | None) -> None:
    """Raise `ResourceExhaustedError` if a value announces more bytes than its reader can use."""
    if size is not None and limit is not None and size > limit:
        raise ResourceExhaustedError(f"The value has {size} bytes, more than the {limit} that can be needed; refused")
