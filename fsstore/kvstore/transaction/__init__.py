"""Transactions: changes that are not yet written, and how a commit writes them.

* `ledger`: the state of a transaction, the changes of each store, and the commit
* `transaction`: the class that users see, and a driver as it would be after the commit
"""
