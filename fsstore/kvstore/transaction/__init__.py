"""Transactions: what has been changed and not yet written, and how a commit writes it.

`ledger` holds the state, `pending_changes` the changes of one store, `transactional` shows a driver as it would be
after the commit.

* `commit`: writing the changes of a transaction to a store
* `transaction`: transactions as users see them
"""
