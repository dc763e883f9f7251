"""HDF5 files, NetCDF 4 files among them.

Structure and chunk indexes are parsed here (`format`, `index`); h5py describes what is unknown there.  The values of
chunks never pass through h5py, unless no codec can decode them.

* `attribute`: attributes as JSON, read by h5py
* `dataset`: what one dataset is: its type, its layout, its filters, and where its values are
* `datatype`: the data types of HDF5 as those of NumPy, and which of them are stored as NumPy would store them
* `described`: datasets described by h5py, where their headers hold what is not parsed here
* `dimension`: the names of dimensions, as NetCDF 4 means them
* `filter_pipeline`: filters as codecs of zarr v2, and chunks for which some of them were skipped
* `library`: values that HDF5 itself reads, where no codec can
* `mapping`: which part of a virtual dataset comes from which part of another one
* `open_file`: an HDF5 file over cached blocks, parsed here, and opened by h5py where it has to be
* `parsed`: groups and datasets by their headers
* `parsed_attribute`: attributes by their bytes in the file
* `parsed_type`: data types by their descriptions in the file
* `storage`: how the values of a dataset become chunks: as they are stored, in pieces of one run of bytes, or read by
  HDF5
* `text_length`: what strings of any length claim to be long, looked at before HDF5 makes room for them
* `walk`: the objects of a file: links followed, groups and datasets described
"""
