"""The reverse direction: stores and arrays of fsstore shown to others as fsspec filesystems.

`kv` shows a store as a filesystem: `kv_place` finds the store, `kv_read` and `listing` read it, and `read_batcher`
makes one batch of the reads that begin together.
fsspec finds `protocols` and `pipeline` by name; `place` turns what it hands them into a store, and `blocking` is the
half of every filesystem that waits.

* `mapper`: the keys of any pipeline as a MutableMapping, the form old tools take stores in
"""
