"""Key-value stores whose values lie many to a file, and one whose keys lie in several stores.

* `grid`: the shard of zarr v3, as a file and as a store
* `key_stack`: ranges of keys, each from a store of its own
* `rewriting`: changing a shard: read, merged, and written under the condition that no other writer changed it
* `uint64_driver`: the store of Neuroglancer's shards
* `uint64_layout`: the file of Neuroglancer's shards, without I/O
"""
