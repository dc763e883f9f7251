"""The codecs of zarr version 2: filters and compressors of numcodecs and of the libraries that register with it.

Each reads the configuration that numcodecs writes and gives the same bytes.

* `compressor_v2`: compressor and filters of zarr v2 as one pipeline, and the blocks of N5
* `numcodecs_v2`: the allowed codecs of numcodecs by name, and their `numcodecs.*` names in zarr v3
* `filters`: flat data, and filters of numcodecs written out here: elementwise ones, delta, shuffle, base64, LZ4, json2,
  msgpack2
* `numeric_v2`: pcodec and zfpy
* `fits_v2`: numbers, table rows and compressed tiles of FITS
* `imagecodecs_v2`: encodings of chunks of TIFF files
* `kerchunk_v2`: the codecs that kerchunk's scanners name, and filters of HDF5
"""
