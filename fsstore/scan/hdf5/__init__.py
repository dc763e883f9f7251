"""HDF5 files, NetCDF 4 files among them, together with the files they refer to.

Structures and chunk indexes are parsed here: bytes in, values out.  Damaged structures raise `DamagedError` with their
offset, those of a kind not known here `UnknownError`; either costs one object.  The values of chunks never pass through
h5py, unless no codec can decode them.  Other files are read under the policy of reference sets.

* `structure`: the reader of checked bytes, object headers, dataspaces, datatypes
* `heap`: B-trees of version 2, fractal heaps, and the attributes and links stored in them
* `layout`: the superblock, links and symbol tables, layouts and filters of datasets, global heaps
* `index`: where the chunks of a dataset lie
* `dataset`: a dataset as a value: its type, its shape, its dimensions, the mapping of a virtual one
* `parsed`: groups, datasets and attributes by their bytes in the file
* `filters`: filters as codecs of zarr v2; values that HDF5 itself reads, where no codec can
* `walk`: an open file over cached blocks, the walk over its objects and links, and the files to which links lead
* `storage`: how the values of a dataset become chunks
* `scanner`: the scanner of HDF5, and virtual datasets: one table of the chunks of many files, or a stack of pieces
"""
