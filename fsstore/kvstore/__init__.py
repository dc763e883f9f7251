"""Key-value stores: roots reach a place where bytes are kept, adapters rewrite requests to a base store.

`contract` says what a driver promises, and what is registered for it; `tuning` has the numbers that tune all
stores, each with what it trades.

* for users: `store` is `KvStore`, `spec` reads what names one, `transaction` changes several keys at once;
* roots: `memory`, `local` files, and `root` for everything that a
  client library reaches: one driver (`engine`) over the clients in `client`, of which `web` speaks HTTP by itself;
* adapters: `archive` (zip, and values compressed as a whole), `shard` (many values to a file, and several stores
  under one root).

Stores that are products of their own stand beside this package: `fsstore.ocdbt`, `fsstore.icechunk`,
`fsstore.reference` and `fsstore.scan`.
"""
