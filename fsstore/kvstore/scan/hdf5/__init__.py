"""HDF5 files, NetCDF 4 files among them.

h5py reads the structure: groups, types, attributes.  Chunk indexes are parsed here, in NumPy and in few rounds, and the
values of chunks never pass through h5py, unless no codec can decode them.

* `attribute`: attributes as JSON
* `dataset`: what one dataset is: its type, its layout, its filters, and where its values are
* `datatype`: the data types of HDF5 as those of NumPy, and which of them are stored as NumPy would store them
* `dimension`: the names of dimensions, as NetCDF 4 means them
* `filter_pipeline`: filters as codecs of zarr v2, and chunks for which some of them were skipped
* `index`: chunk indexes: where the chunks of a dataset are, for all six kinds
* `index_array`: the indexes that are arrays: fixed and extensible
* `index_tree`: the indexes that are B-trees of version 1 and 2
* `index_value`: what a chunk index is read with, and what it gives: chunks as columns
* `layout_message`: object headers, as far as it takes to find where a chunk index begins
* `library`: values that HDF5 itself reads, where no codec can
* `mapping`: which part of a virtual dataset comes from which part of another one
* `open_file`: an HDF5 file opened by h5py over cached blocks: a miss is an exception
* `storage`: how the values of a dataset become chunks: as they are stored, in pieces of one run of bytes, or read by
  HDF5
* `walk`: the objects of a file: links followed, groups and datasets described
"""
