"""Key-value stores: roots reach the place of the bytes, adapters rewrite requests to a base store.

`contract` is the contract of drivers and their kinds.

For users, and the layers below them:

* `kv_store`: `KvStore`, TensorStore's Python interface of a key-value store
* `operation`: reads and writes in the form of the public interface, batches of reads, and the queue of writes
* `spec_parse`: specs from JSON, URLs and live objects; opening them; and `KvStore.Spec`, the public class
* `spec_value`: the value behind `KvStore.Spec`, and the options that callers give with a place
* `transaction`: changes not yet written: the public class, and a driver that shows the state after the commit
* `ledger`: the state of a transaction, the changes of each store, and the commit
* `same_place`: whether two places are the same, or one lies in the other, under any name

Roots: `memory`, `local` files, and `root` for all stores behind a client library: one driver (`engine`) over the
clients in `client`, and `web`, an HTTP client of our own.

Adapters:

* `zip_driver`: the members of a ZIP archive; `zip_directory` parses its directory without I/O, and `zip_writing`
  rewrites the archive for every change and replaces the old one under a condition
* `compressed`: the values of any other store, decompressed from gzip, zstd, bz2 or xz, read-only
* `shard`: the shard of zarr v3, as a file and as a store; changing a shard under a condition
* `key_stack`: ranges of keys, each from a store of its own
* `dated_file`: a file of a store that knows no versions, with its date for one

Stores that are products of their own stand beside this package: `fsstore.ocdbt`, `fsstore.icechunk`,
`fsstore.reference`, `fsstore.scan` and `fsstore.precomputed`.
"""
