"""Files of other formats, shown as zarr hierarchies.

Their chunks are byte ranges of the file, found when they are needed.

A *scanner* knows one format: it answers the structure of a file first, and the chunk table of an array when the array
is touched.  The adapter here is the same for all formats; it reads chunks with the machinery of reference sets.

* `contract`: the contract of scanners, and the file they read: a block cache over a key-value store, in rounds
* `hierarchy`: the zarr documents of the arrays that a scanner found, and tables of where their chunks lie
* `driver`: the key-value store that shows a scanned file: keys resolved in batches, chunk tables on first touch
* `targets`: the places a scanned file reads from, in one generation, and a saved scan in place of scanning again
* `kind`: the kinds of the scanned formats: their JSON, their URLs, how they are opened
* `signature`: how scanned formats are recognised by their first bytes, for automatic detection
* `as_references`: a scanned file as a set of references that can be saved

The formats:

* `hdf5`: HDF5 and NetCDF 4
* `document`: documents that describe arrays whose values lie in other files: DMR++
* `netcdf3`: NetCDF 3: the classic format, its 64-bit offsets and its 64-bit data
* `fits`: FITS files: images, tables, and images compressed tile by tile; `fits_header` reads their headers and columns
* `grib`: GRIB files of both editions as cubes; `grib_message` finds and describes their messages
* `tiff`: TIFF files, BigTIFF, COG, GeoTIFF and OME-TIFF among them; `tiff_directory` reads their directories and pages,
  `tiff_series` puts pages together, `tiff_metadata` reads geography and OME-XML
"""
