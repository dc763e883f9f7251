"""Key-value stores: roots reach a place where bytes are kept, adapters rewrite requests to a base store.

`contract` says what a driver promises, and what is registered for it.

For users, and what stands below them:

* `kv_store`: `KvStore`, TensorStore's Python interface of a key-value store
* `operation`: reads and writes as users ask for them, their results, batches of reads, and the queue of writes
* `spec_parse`: specs from JSON, URLs and live objects; opening them; and `KvStore.Spec`, the class that users see
* `spec_value`: the value that the library works with, and the options that a caller gives beside a place
* `transaction`: changes that are not yet written: the class that users see, and a driver as after the commit
* `ledger`: the state of a transaction, the changes of each store, and the commit
* `same_place`: whether two places are the same, or one lies in the other, whatever they are called

Roots: `memory`, `local` files, and `root` for everything that a client library reaches: one driver (`engine`) over the
clients in `client`, of which `web` speaks HTTP by itself.

Adapters:

* `zip_driver`: the members of a ZIP archive; `zip_directory` is its directory, bytes to a table without I/O, and
  `zip_writing` makes the archive anew for every change and replaces the old one under a condition
* `compressed`: the values of any other store, decompressed from gzip, zstd, bz2 or xz, read-only
* `shard`: the shard of zarr v3, as a file and as a store; changing a shard under a condition
* `key_stack`: ranges of keys, each from a store of its own
* `dated_file`: a file of a store that knows no versions, with its date for one

Stores that are products of their own stand beside this package: `fsstore.ocdbt`, `fsstore.icechunk`,
`fsstore.reference`, `fsstore.scan` and `fsstore.precomputed`.
"""
