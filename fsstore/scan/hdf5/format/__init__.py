"""The structures of HDF5 files, parsed: bytes in, values out, read through a `Reader` that raises where one is missing.

Damaged structures raise `DamagedError` with their offset; those of a kind not known here raise `UnknownError`.

* `attribute`: attribute messages
* `dataspace`: shapes
* `datatype`: data types as they are described in the file
* `dense`: attributes and links outside of the header of their object: in a heap, found by a tree
* `filter`: filter pipelines
* `fractal_heap`: fractal heaps: objects of any size in blocks that double
* `global_heap`: global heaps: values of any length
* `layout`: where and how the values of a dataset are stored
* `link`: links as messages
* `object_header`: the messages of an object
* `reader`: how structures are read: addresses, checks and checksums
* `superblock`: where a file begins
* `symbol_table`: links of groups of the first kind: a tree of names
* `tree2`: B-trees of version 2
"""
