"""A key-value store in a SQLite file, as another package would add it: `{"driver": "sqlite", "file": "/a/keys.db"}`.

In a URL the file ends with the first segment that ends in `.db`: `sqlite:///a/keys.db/prefix/of/keys`.

SQLite gives what the contract asks for: a transaction is visible as a whole or not at all, is durable when it is
committed, and `BEGIN IMMEDIATE` lets one writer in at a time, so conditions are tested against every writer.
Generations are row numbers, which `AUTOINCREMENT` never gives twice.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import ClassVar

from fsstore import plugin
from fsstore.plugin import NO_VALUE, UNKNOWN, Entry, Features, KeyRange, Read, ReadResult, Stamp, Write

_TABLE = "CREATE TABLE IF NOT EXISTS pairs (generation INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB UNIQUE, value BLOB)"
_DELETE = "DELETE FROM pairs WHERE key >= ?1 AND (?2 = x'' OR key < ?2)"  # an empty end is no end
_SCAN = "SELECT key, length(value) FROM pairs WHERE key >= ?1 AND (?2 = x'' OR key < ?2) ORDER BY key"


class SqliteDriver:
    """The keys of one file.  Each call has a connection of its own, so threads and forks share nothing."""

    id: ClassVar[str] = "sqlite"

    def __init__(self, file: str) -> None:
        self.file = file
        with self._connected() as database:
            database.execute(_TABLE)

    @property
    def features(self) -> Features:
        """What SQLite can do: everything, but slowly when it syncs."""
        return Features(waits=False, create_only=True, conditional_write=True, sorted_scan=True, slow_writes=True)

    @contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            with closing(sqlite3.connect(self.file, timeout=60, isolation_level=None)) as database:
                yield database
        except sqlite3.Error as error:
            raise plugin.StoreError(f"{error} in {self.file}") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._connected() as database:
            database.execute("BEGIN IMMEDIATE")
            yield database
            database.execute("COMMIT")

    async def read_many(self, reads: Sequence[Read]) -> list[ReadResult]:
        """Return one result for each of `reads`, all of the same moment."""
        with self._connected() as database:
            database.execute("BEGIN")
            return [self._read(database, read) for read in reads]

    def _read(self, database: sqlite3.Connection, read: Read) -> ReadResult:
        found = _find(database, read.key)
        if found is None:
            return ReadResult("missing", b"", NO_VALUE, plugin.now())
        value, generation = found
        if generation == read.if_not_equal:
            return ReadResult("unspecified", b"", generation, plugin.now())
        try:
            low, high = plugin.resolve_range(read.start, read.stop, len(value))
        except plugin.StoreError as error:
            raise error.within(f"Error reading {self.describe_key(read.key)}") from None
        return ReadResult("value", value[low:high], generation, plugin.now())

    async def write_many(self, writes: Sequence[Write]) -> list[Stamp]:
        """Apply each of `writes` whose condition holds, in one transaction of SQLite."""
        with self._transaction() as database:
            return [Stamp(_write(database, write), plugin.now()) for write in writes]

    async def delete_range(self, keys: KeyRange) -> None:
        """Delete every key in the range."""
        ends = [keys.inclusive_min, keys.exclusive_max]
        with self._transaction() as database:
            database.execute(_DELETE, ends)

    async def scan(self, keys: KeyRange) -> AsyncIterator[Sequence[Entry]]:
        """Yield the keys in the range, sorted, with the sizes of their values."""
        ends = [keys.inclusive_min, keys.exclusive_max]
        with self._connected() as database:
            rows = database.execute(_SCAN, ends).fetchall()
        yield [Entry(plugin.key_text(key), size) for key, size in rows]

    def describe_key(self, key: str) -> str:
        """Return how messages call a key."""
        return f'"{key}" in {self.file}'

    def spec(self) -> Mapping[str, plugin.Json]:
        """Return the members the driver was opened with."""
        return {"file": self.file}


def _find(database: sqlite3.Connection, key: str) -> tuple[bytes, bytes] | None:
    row = database.execute("SELECT value, generation FROM pairs WHERE key = ?", [plugin.key_bytes(key)]).fetchone()
    return None if row is None else (row[0], row[1].to_bytes(8, "big"))


def _write(database: sqlite3.Connection, write: Write) -> bytes:
    """Return the new generation, or `UNKNOWN` if the condition does not hold."""
    found = _find(database, write.key)
    current = NO_VALUE if found is None else found[1]
    if write.if_equal not in (UNKNOWN, current):
        return UNKNOWN
    key = plugin.key_bytes(write.key)
    if write.value is None:
        database.execute("DELETE FROM pairs WHERE key = ?", [key])
        return NO_VALUE
    made = database.execute("REPLACE INTO pairs (key, value) VALUES (?, ?)", [key, bytes(write.value)])
    return (made.lastrowid or 0).to_bytes(8, "big")


class SqliteKind(plugin.RootKind):
    """The static side: what the driver is called, and what its JSON and its URLs say."""

    id: str = "sqlite"
    schemes: tuple[str, ...] = ("sqlite",)
    resources: tuple[str, ...] = ()

    def members(self, fields: plugin.Fields) -> dict[str, plugin.Json]:
        """Take `file`."""
        return {"file": fields.require("file", plugin.string)}

    def from_url(self, scheme: str, rest: str) -> tuple[str, dict[str, plugin.Json]]:
        """Return the key prefix and the file of `sqlite:///a/keys.db/prefix`."""
        file, end, path = rest.partition(".db")
        if not end:
            raise plugin.StoreError('the file of a "sqlite" URL ends with ".db"')
        return plugin.decode_path(path.removeprefix("/")), {"file": plugin.decode_path(file + end)}

    def to_url(self, path: str, members: Mapping[str, plugin.Json]) -> str:
        """Return the URL of a key prefix."""
        return f"sqlite://{plugin.encode_path(str(members['file']))}/{plugin.encode_path(path)}"

    async def open(self, opening: plugin.KvOpening) -> plugin.KvDriver:
        """Return the driver of the file, which is made if it is missing."""
        return SqliteDriver(str(opening.members["file"]))


KIND = SqliteKind()
