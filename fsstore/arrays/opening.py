"""`open`: from a spec and keyword arguments to an open array, as users hold it."""

from __future__ import annotations

from typing import Any, Unpack

from fsstore.arrays.spec import begun, check_able, open_spec
from fsstore.arrays.spec_parse import OPEN_OPTIONS, apply_options, array_spec
from fsstore.arrays.spec_value import OpenOptions, SpecLike
from fsstore.arrays.store import TensorStore
from fsstore.context.context import Context, context_of
from fsstore.kvstore.store.operation import Batch, checked
from fsstore.kvstore.transaction.transaction import Transaction, check_transaction
from fsstore.runtime.future import Future, meant
from fsstore.values.argument import as_flag


def open(  # noqa: A001  # TensorStore's name
    spec: SpecLike,
    *,
    read: bool | None = None,
    write: bool | None = None,
    context: Context | None = None,
    transaction: Transaction | None = None,
    batch: Batch | None = None,
    **options: Unpack[OpenOptions],
) -> Future[TensorStore]:
    """Open or create the array that `spec` describes: JSON, a URL, a `Spec`, or a key-value store to look into.

    A path of a local file or directory will do too.  Keyword arguments add to the spec: `create`, `open`,
    `delete_existing`, `dtype`, `shape`, `chunk_layout`, `fill_value`, ... as in TensorStore, and `storage_options`,
    those of the root in fsspec's words. zarr's words are understood besides: `mode` (`r`, `r+`, `a`, `w`, `w-`),
    `chunks`, `shards`, and a `codec` by its name ("zstd", "gzip", "blosc").  `read=True` or `write=True` alone
    restricts what the store may be used for.

    >>> store = open("memory://|zarr3:", create=True, dtype="int32", shape=[3]).result()
    >>> store.write([1, 2, 3]).result()
    >>> store.read().result()
    array([1, 2, 3], dtype=int32)
    """
    unknown = sorted(set(options) - OPEN_OPTIONS)
    if unknown:
        hint = meant(unknown[0], OPEN_OPTIONS | {"read", "write", "transaction", "batch"})
        raise TypeError(f"open() got an unexpected keyword argument: {', '.join(unknown)}{hint}")
    if options.get("mode") == "r" and read is None and write is None:
        read = True
    check_transaction(transaction)
    if transaction is None:
        transaction = _transaction_of(options.get("kvstore"))
    bound = apply_options(array_spec(spec), options).bound(context_of(context))
    read, write = as_flag("read", read), as_flag("write", write)
    readable, writable = read or not write, write or not read

    async def begin() -> TensorStore:
        opened = await open_spec(bound, transaction=transaction, writable=writable)
        check_able(opened.driver, read=read, write=write)
        return TensorStore._of(opened, readable=readable, writable=writable)

    if batch is not None:
        return checked(batch).later(lambda: begun(begin, bound))
    return begun(begin, bound)


def _transaction_of(place: Any) -> Any:
    """Return the transaction of a store; filesystems have ones too, of another kind."""
    return place.transaction if hasattr(place, "with_transaction") else None
