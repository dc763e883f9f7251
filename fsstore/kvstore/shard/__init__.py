"""Key-value stores whose values lie many to a file, and one whose keys lie in several stores.

`uint64_layout` is the file of Neuroglancer's shards, without I/O; `uint64_read` finds and reads values in them;
`uint64_driver` is that store.  `grid_layout` is the shard of zarr v3, without I/O;
`grid_driver` is that store.  `rewriting` is how both change a file: read, merged, and written
under the condition that nobody else wrote meanwhile.
`key_stack` spreads keys over several stores.
"""
