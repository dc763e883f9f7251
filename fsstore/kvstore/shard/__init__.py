"""Key-value stores whose values lie many to a file, and one whose keys lie in several stores.

* `grid`: the shard of zarr v3, as a file and as a store; changing a shard under a condition
* `key_stack`: ranges of keys, each from a store of its own
"""
