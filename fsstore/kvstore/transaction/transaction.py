"""Transactions as users see them; `ledger` is their inside."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from fsstore.errors import StoreError, refuse_pickling
from fsstore.kvstore.transaction.ledger import Ledger
from fsstore.runtime.future import Future
from fsstore.values.argument import as_flag

__all__ = ["Transaction", "check_rebinding", "check_transaction"]


class Transaction:
    """Changes of key-value stores and arrays that are seen inside, and written together when committed.

    Bind stores with `with_transaction`, or open them with `transaction=`.  `atomic` requires that everything is
    written in one step: on a store that cannot do that, changing a second key fails.  `repeatable_read` requires that
    what was read inside is still stored at the commit.  Nothing is visible outside before the commit, and a
    transaction that is dropped without one leaves nothing.

    As a context manager, synchronous or not, it commits at the end and aborts on an exception.

    >>> with Transaction() as transaction:
    ...     transaction.open
    True
    >>> transaction.open, transaction.commit_started
    (False, True)
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__", "ledger")
    __reduce__ = refuse_pickling

    def __init__(self, atomic: bool = False, repeatable_read: bool = False) -> None:
        self.ledger = Ledger(
            atomic=as_flag("atomic", atomic), repeatable_read=as_flag("repeatable_read", repeatable_read)
        )

    @property
    def atomic(self) -> bool:
        """Whether all changes must be made in one step."""
        return self.ledger.atomic

    @property
    def open(self) -> bool:
        """Whether more operations may join."""
        return self.ledger.phase == "open"

    @property
    def commit_started(self) -> bool:
        """Whether the commit was asked for."""
        return self.ledger.phase in ("waiting", "writing")

    @property
    def aborted(self) -> bool:
        """Whether the transaction was aborted."""
        return self.ledger.phase == "aborted"

    @property
    def future(self) -> Future[None]:
        """Done when everything is written; fails when something could not be, or with the abort.

        Waiting for it asks for the commit.
        """
        return self.ledger.future

    def commit_async(self) -> Future[None]:
        """Begin to commit and return `future`; without effect after a commit or an abort."""
        self.ledger.commit()
        return self.ledger.future

    def commit_sync(self) -> None:
        """Commit and wait until everything is written."""
        self.commit_async().result()

    def abort(self) -> None:
        """Drop all changes; without effect once the commit was asked for."""
        self.ledger.abort()

    def __enter__(self) -> Self:
        """Return the transaction."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or abort after an exception."""
        if kind is None:
            self.commit_sync()
        else:
            self.abort()

    async def __aenter__(self) -> Self:
        """Return the transaction."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit without blocking, or abort after an exception."""
        if kind is None:
            await self.commit_async()
        else:
            self.abort()


def check_transaction(transaction: object) -> None:
    """Raise unless an argument is a transaction, or None."""
    if transaction is not None and not isinstance(transaction, Transaction):
        raise TypeError(f"transaction must be a Transaction or None, not {type(transaction).__name__}")


def check_rebinding(bound: Transaction | None, transaction: object) -> None:
    """Raise unless a store bound to one transaction may be bound to another, or to none."""
    if bound is not None and not (bound.aborted or bound.future.done()):
        raise StoreError("Cannot rebind transaction when existing transaction is uncommitted")
    check_transaction(transaction)
