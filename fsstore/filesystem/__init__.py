"""The reverse direction: stores and arrays of fsstore shown to others as fsspec filesystems.

`kv` is a store as a filesystem: `kv_place` finds it, `kv_read` and `listing` read it, `read_batcher` makes one batch
of what is begun at once, `kv_file` is an open file of it. `protocols` and `pipeline` are what fsspec finds by name,
`place` leads from what they are given to a store, and `blocking` is the half of every filesystem that waits.

* `mapper`: the keys of any pipeline as a MutableMapping, the form old tools take stores in
"""
