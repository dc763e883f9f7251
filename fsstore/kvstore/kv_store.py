"""`KvStore`: the public class of key-value stores, TensorStore's Python interface.

A façade: it parses arguments, binds path and transaction, and passes a coroutine to the runtime.  Operations on a
driver that waits run on the event loop; others run at once in the caller, except writes that sync to disk, which run in
pool threads so that many of them overlap.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, ClassVar, TypeVar

from fsstore.context.context import Context, context_of
from fsstore.errors import StoreError, UnimplementedError
from fsstore.kvstore import operation as result
from fsstore.kvstore.contract import driver as contract
from fsstore.kvstore.contract.ability import CopiesRanges, ReadsNow, able
from fsstore.kvstore.contract.driver import UNKNOWN, KvDriver, KvPrefix, Read, Write
from fsstore.kvstore.contract.request import EntryColumns, key_bytes, key_text
from fsstore.kvstore.contract.request import KeyRange as Range
from fsstore.kvstore.operation import (
    FRESH,
    Batch,
    answer,
    begin_read,
    begin_write,
    partial_read,
    put,
    queued,
    value_bytes,
    write_here,
)
from fsstore.kvstore.spec_parse import KvSpec, OpenKv, kv_spec, open_kv, opening_waits
from fsstore.kvstore.spec_value import (
    Engine,
    KvSpecValue,
    PlaceLike,
    Specified,
    join_path,
    with_engine,
    with_storage_options,
)
from fsstore.kvstore.transaction import Transaction, TransactionalDriver, check_rebinding, check_transaction
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.future import Future
from fsstore.runtime.tuning import WRITERS
from fsstore.values.json_value import as_flag, as_seconds, pretty, require_kind

T = TypeVar("T")
Key = str | bytes


class KvStore(Specified):
    """Keys and values below a path.  Keys are `str` (UTF-8) or `bytes`; the path is a prefix of every key.

    >>> store = KvStore.open("memory://").result()
    >>> store["a"] = b"value"
    >>> store.read("a").result().value
    b'value'
    >>> store.list().result()
    [b'a']
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__", "_open", "_transaction")

    KeyRange: ClassVar[type[Range]] = Range
    ReadResult: ClassVar[type[result.KvReadResult]] = result.KvReadResult
    Spec: ClassVar[type[KvSpec]] = KvSpec
    TimestampedStorageGeneration: ClassVar[type[result.TimestampedStorageGeneration]] = (
        result.TimestampedStorageGeneration
    )
    __iter__: ClassVar[None] = None  # `[]` takes keys, so Python's fallback over 0, 1, 2... would mislead

    _open: OpenKv
    _transaction: Transaction | None

    def __init__(self) -> None:
        raise TypeError("KvStore has no constructor; KvStore.open(...) returns a future of one")

    @classmethod
    def of(cls, opened: OpenKv, transaction: Transaction | None = None) -> KvStore:
        """Return the façade of an opened store."""
        self = object.__new__(cls)
        self._open, self._transaction = opened, transaction
        return self

    @staticmethod
    def open(
        spec: PlaceLike,
        *,
        context: Context | None = None,
        transaction: Transaction | None = None,
        single_writer: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        engine: Engine | None = None,
    ) -> Future[KvStore]:
        """Open a store given by a spec, JSON, a URL, or a live filesystem or mapping.

        `single_writer` promises that only this process writes to a live object: conditions are then checked here, and
        parts of chunks can be written.  `storage_options` are fsspec's options for the root.  `engine` selects the
        library that serves it: `"fsspec"` is fsspec's filesystem of that protocol.
        """
        check_transaction(transaction)
        parsed = with_storage_options(kv_spec(spec, single_writer=single_writer), storage_options)
        parsed = with_engine(parsed, engine)
        opening = _open_store(parsed, context_of(context), transaction)
        return execution.start(opening, waits=opening_waits(parsed))

    @property
    def path(self) -> str:
        """The prefix of every key; may be set."""
        return self._open.path

    @path.setter
    def path(self, path: Key) -> None:
        self._open = self._open.at(self._open.spec.kind.check_path(key_text(path)))

    @property
    def url(self) -> str:
        """The equivalent URL pipeline; raises `UnimplementedError` if there is none."""
        return self._open.effective_spec().url

    @property
    def base(self) -> KvStore | None:
        """The store below an adapter, or None."""
        return None if self._open.base is None else KvStore.of(self._open.base, self._transaction)

    @property
    def transaction(self) -> Transaction | None:
        """The transaction the store is bound to, or None; may be set."""
        return self._transaction

    @transaction.setter
    def transaction(self, transaction: Transaction | None) -> None:
        check_rebinding(None, transaction)
        self._transaction = transaction

    def with_transaction(self, transaction: Transaction | None) -> KvStore:
        """Return the same store bound to a transaction, or to none."""
        check_rebinding(self._transaction, transaction)
        return KvStore.of(self._open, transaction)

    def spec(self, *, retain_context: bool | None = None, unbind_context: bool | None = None) -> KvSpec:
        """Return a spec that opens the same store.

        By default context resources are left out; `retain_context` keeps them bound, `unbind_context` writes them as a
        `context`.
        """
        spec = self._open.effective_spec()
        retained = as_flag("retain_context", retain_context)
        unbound = as_flag("unbind_context", unbind_context)
        if retained:
            return KvSpec.showing(spec)
        return KvSpec(spec.to_json()) if unbound else KvSpec.showing(spec.unbound())

    def standing_spec(self) -> KvSpecValue:
        """Return the spec that opens the same store; a store bound to a transaction has none."""
        if self._transaction is not None:
            raise StoreError("A store bound to a transaction cannot stand in a spec: give it as `kvstore=`")
        return self._open.effective_spec()

    def copy(self) -> KvStore:
        """Return a copy with a path of its own."""
        return KvStore.of(self._open, self._transaction)

    __copy__ = copy

    def __truediv__(self, component: Key) -> KvStore:
        """Return the store with `component` joined to its path by one slash."""
        other = self.copy()
        other.path = join_path(self.path, key_text(component))
        return other

    def __add__(self, suffix: Key) -> KvStore:
        """Return the store with `suffix` appended to its path without a slash."""
        other = self.copy()
        other.path = self.path + key_text(suffix)
        return other

    @property
    def prefix(self) -> KvPrefix:
        """The driver under the transaction, and the path, for adapters and arrays."""
        return KvPrefix(self._driver(), self._open.path)

    def _driver(self) -> KvDriver:
        if self._transaction is None:
            return self._open.driver
        return TransactionalDriver(self._open.driver, self._transaction.ledger)

    def read(
        self,
        key: Key,
        *,
        if_not_equal: Key | None = None,
        staleness_bound: float | None = None,
        batch: Batch | None = None,
        byte_range: slice | None = None,
    ) -> Future[result.KvReadResult]:
        """Return the value of a key, or the bytes `byte_range` of it.

        A missing key is a result with `state="missing"`.  `if_not_equal` is a generation whose value need not be sent;
        an answer from `staleness_bound` or later is fresh enough.  With a `batch` the read waits for its submission.
        """
        whole = self._open.path + key if type(key) is str else self._key(key)
        known = UNKNOWN if if_not_equal is None else key_bytes(if_not_equal)
        if byte_range is None and staleness_bound is None:
            request = tuple.__new__(Read, (whole, 0, None, known, FRESH))
        else:
            request = partial_read(whole, known, byte_range, staleness_bound)
        if batch is not None and type(batch) is not Batch:  # tested here because reads join by the thousand
            require_kind("batch", batch, Batch)
        if self._transaction is not None:
            return self._transaction.ledger.track(lambda: begin_read(self._driver(), request, batch))
        driver = self._open.driver
        return begin_read(driver, request) if batch is None else batch.read(driver, request)

    def write(
        self, key: Key, value: Key | None, *, if_equal: Key | None = None
    ) -> Future[result.TimestampedStorageGeneration]:
        """Store `value` under a key, or delete the key if it is None; return the new generation.

        If `if_equal` is not the current generation, nothing changes and the returned generation is empty.
        """
        condition = UNKNOWN if if_equal is None else key_bytes(if_equal)
        request = tuple.__new__(Write, (self._key(key), value_bytes(value), condition))
        driver = self._open.driver
        if self._transaction is not None:
            return put(self._transaction, driver, request)
        if value is not None and driver.features.slow_writes:
            return queued(driver, request)
        return begin_write(driver, request)

    def delete_range(self, range: Range) -> Future[None]:  # noqa: A002  # TensorStore's name
        """Delete every key in a range, relative to the path."""
        if range is None:
            raise TypeError("range must be a KvStore.KeyRange, not None")
        require_kind("range", range, Range)
        return self._begin(lambda: self.prefix.delete_range(range), slow=True)

    def list(  # TensorStore's name
        self,
        range: Range | None = None,  # noqa: A002  # TensorStore's name
        strip_prefix_length: int = 0,
    ) -> Future[Any]:
        """Return the keys of a range as `bytes`, relative to the path, without `strip_prefix_length` bytes."""
        require_kind("range", range, Range)
        if operator.index(strip_prefix_length) < 0:
            raise StoreError(f"strip_prefix_length must not be negative: {strip_prefix_length}")
        path = key_bytes(self._open.path)
        keys = Range.prefix(path) if range is None else range.with_prefix(path)
        return self._begin(lambda: _keys(self._driver(), keys, len(path) + strip_prefix_length))

    def experimental_copy_range_to(
        self,
        target: KvStore,
        source_range: Range | None = None,
        source_staleness_bound: float | None = None,  # a copy always reads the newest keys
    ) -> Future[None]:
        """Copy keys to a path of the same database, or of one around it, without copying values.

        Raises `UnimplementedError` if the driver cannot.  A transaction of the target copies values.
        """
        if not isinstance(target, KvStore):
            raise TypeError(f"target must be a KvStore, not {type(target).__name__}")
        require_kind("source_range", source_range, Range)
        as_seconds("source_staleness_bound", source_staleness_bound)
        if self._transaction is not None:
            return futures.failed(UnimplementedError("Source transactions not supported"))
        copying = able(target._driver(), CopiesRanges)
        if copying is None:
            return futures.failed(UnimplementedError("CopyRange not supported"))
        keys = (source_range or Range()).with_prefix(self.path)
        cut = len(key_bytes(self.path))
        return target._begin(lambda: copying.copy_range(self._open.driver, keys, cut, target.path), slow=True)

    def __getitem__(self, key: Key) -> bytes:
        """Return the value of a key; raise `KeyError` when it is missing."""
        found = self._find(key)
        if found.state == "missing":
            raise KeyError(key)
        value = found.value
        return value if type(value) is bytes else bytes(value)

    def __setitem__(self, key: Key, value: Key | None) -> None:
        """Store a value and wait until it is durable; None deletes."""
        if self._open.driver.features.waits or self._transaction is not None:
            self.write(key, value).result()
        else:  # the caller waits anyway, and spares a hop to a pool thread
            write_here(self._open.driver, Write(self._key(key), value_bytes(value)))

    def __delitem__(self, key: Key) -> None:
        """Delete a key; a missing one is fine."""
        self[key] = None

    def __contains__(self, key: Key) -> bool:
        """Return whether the key has a value."""
        return self._find(key).state == "value"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, KvStore) or self._transaction is not other._transaction:
            return False
        return self._open is other._open or self._open.effective_spec() == other._open.effective_spec()

    def __hash__(self) -> int:
        return hash((self._open.spec.kind.id, id(self._transaction)))

    def __repr__(self) -> str:
        try:
            return pretty("KvStore", self._open.effective_spec().to_json())
        except UnimplementedError:
            return "KvStore(...)"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the spec with its resources; a store bound to a transaction refuses."""
        if self._transaction is not None:
            raise StoreError("Cannot serialize bound transaction")
        return _reopen, (self._open.effective_spec(),)

    def _find(self, key: Key) -> contract.ReadResult | result.KvReadResult:
        """Return the answer to a read; without a future if the driver never waits."""
        if self._transaction is not None:
            return self.read(key).result()
        driver = self._open.driver
        if isinstance(driver, ReadsNow):
            return driver.read_now(tuple.__new__(Read, (self._key(key), 0, None, UNKNOWN, FRESH)))
        return self.read(key).result() if driver.features.waits else answer(driver, Read(self._key(key)))

    def _key(self, key: Key) -> str:
        if isinstance(key, str):
            return self._open.path + key
        if not isinstance(key, bytes):
            raise TypeError(f"a key is str or bytes, not {type(key).__name__}")
        return self._open.path + key_text(key)

    def _begin(self, operation: Callable[[], Coroutine[Any, Any, T]], *, slow: bool = False) -> Future[T]:
        """Start an operation: on the event loop, here, or on a pool thread if it is slow and blocks."""
        features = self._open.driver.features
        if self._transaction is not None:
            return self._transaction.ledger.track(lambda: execution.start(operation(), waits=features.waits))
        if slow and features.slow_writes:
            return _in_thread(operation())
        return execution.start(operation(), waits=features.waits)


async def _open_store(spec: KvSpecValue, context: Context, transaction: Transaction | None) -> KvStore:
    return KvStore.of(await open_kv(spec, context), transaction)


def _reopen(spec: KvSpecValue) -> KvStore:
    """Return the pickled store; resources pickled together are still shared."""
    return execution.call(_open_store(spec, Context(), None), waits=opening_waits(spec))


async def _keys(driver: KvDriver, keys: Range, cut: int) -> list[bytes]:
    found: list[bytes] = []
    async for page in driver.scan(keys):
        found += EntryColumns.of(page).keys_from(cut)
    return found


def _in_thread(operation: Coroutine[Any, Any, T]) -> Future[T]:
    future: Future[T] = futures.pending()

    def work() -> None:
        try:
            futures.resolve(future, execution.drive(operation))
        except Exception as error:  # noqa: BLE001  # the future carries it
            futures.fail(future, error)

    execution.hand_over(work, kind="io", limit=WRITERS)
    return future
