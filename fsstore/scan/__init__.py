"""Files of other formats, shown as zarr hierarchies.

Their chunks are byte ranges of the file, found when they are needed.

A *scanner* knows one format: it answers the structure of a file first, and the chunk table of an array when the array
is touched.  The adapter here is the same for all formats; it reads chunks with the machinery of reference sets.

* `as_references`: a scanned file as a set of references that can be saved: a scan that nobody has to make again
* `chunk_table`: chunk tables: where the chunks of one array are, as columns or as a formula
* `contract`: the contract of scanners, and the values that cross it
* `driver`: the key-value store that shows a scanned file
* `fits`: FITS files, parsed here without another library: images, tables, and images compressed tile by tile
* `grib`: GRIB files of both editions: messages found here, described and decoded by ecCodes
* `hdf5`: HDF5 files, NetCDF 4 files among them
* `hierarchy`: the documents of zarr v2 for what a scanner found
* `kind`: the kinds of the scanned formats: their JSON, their URLs, and how they are opened
* `linked_hdf5`: HDF5 files together with the files they refer to
* `netcdf3`: NetCDF 3: the classic format, its 64-bit offsets and its 64-bit data
* `saved_index`: a scan that was saved, used in place of scanning again
* `scanned_set`: a scanned file as a reference set: keys resolved in batches, chunk tables on first touch
* `signature`: how scanned formats are recognised by their first bytes, for automatic detection
* `tiff`: TIFF files, BigTIFF, COG, GeoTIFF and OME-TIFF among them, parsed here without another library
* `source`: the file a scanner reads: a block cache over a key-value store, in rounds
* `targets`: what a scanned file reads from: itself, in one generation, and the places it refers to
"""
