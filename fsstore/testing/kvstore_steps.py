"""The verbs in which the checks of key-value store drivers are written: run, read, write, list, expect a failure."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeAlias, TypeVar

from fsstore.errors import UnimplementedError
from fsstore.kvstore.contract.driver import Entry, KvPrefix, Read, ReadResult, Stamp, Write
from fsstore.kvstore.contract.key_range import KeyRange
from fsstore.runtime import execution

__all__ = [
    "Check",
    "Factory",
    "fails",
    "filled",
    "keys_of",
    "read",
    "refuses",
    "run",
    "scan",
    "value",
    "write",
]

T = TypeVar("T")
Factory: TypeAlias = Callable[[Mapping[str, bytes]], KvPrefix]
Check: TypeAlias = Callable[[Factory], None]


def filled(store: KvPrefix, contents: Mapping[str, bytes]) -> KvPrefix:
    """Return `store` after writing `contents` to it."""
    run(store, store.write_many([Write(key, value) for key, value in contents.items()]))
    return store


def run(store: KvPrefix, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end; where the driver says it never waits, a coroutine that suspends fails here."""
    return execution.call(coroutine, waits=store.driver.features.waits)


def read(store: KvPrefix, *reads: Read) -> list[ReadResult]:
    """Return the answers to a batch of reads."""
    return list(run(store, store.read_many(reads)))


def write(store: KvPrefix, *writes: Write) -> list[Stamp]:
    """Return the stamps of a batch of writes."""
    return run(store, store.write_many(writes))


def scan(store: KvPrefix, keys: KeyRange | None = None) -> list[Entry]:
    """Return everything a listing yields."""

    async def collect() -> list[Entry]:
        return [entry async for batch in store.scan(keys) for entry in batch]

    return run(store, collect())


def keys_of(store: KvPrefix, keys: KeyRange | None = None) -> set[str]:
    """Return the keys a listing yields."""
    return {entry.key for entry in scan(store, keys)}


def value(store: KvPrefix, key: str) -> bytes | None:
    """Return the value of a key, or None when it is missing."""
    result = read(store, Read(key))[0]
    return bytes(result.value) if result.state == "value" else None


def fails(kind: type[Exception], call: Callable[[], object]) -> Exception:
    """Return the error that `call` raises, which must be of that kind."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} expected, but nothing was raised")


def refuses(call: Callable[[], object]) -> None:
    """Insist that `call` is declared impossible."""
    fails(UnimplementedError, call)
