"""The codecs of zarr version 2: filters and compressors of numcodecs and of the libraries that register with it.

Each reads the configuration that numcodecs writes and gives the same bytes.

* `base64_text`: the numcodecs base64 codec: bytes as text of 64 letters, four for every three bytes
* `compressor_v2`: compressor and filters of zarr v2, and the pipeline they make with the order of the chunk
* `delta`: the delta filter of numcodecs for numbers that keep their data type: the first, and then by what each one
  differs
* `elementwise`: codecs that look at each element by itself, applied to a large chunk block by block
* `fits_v2`: what FITS does to its values: scaled and unsigned numbers, rows of tables, images compressed tile by tile
* `flat`: flat data: what the codecs of zarr v2 see of a chunk, elements in a row or bytes
* `foreign_v2`: the contract of codecs that other packages bring into zarr v2, most of which are read, never written
* `hdf5_v2`: the filters of HDF5 that nothing else has: szip, scale-offset, bitshuffle and LZ4 in blocks, shuffle of
  odd sizes
* `imagecodecs_v2`: what chunks of TIFF files are encoded with, as tifffile, kerchunk and VirtualiZarr name it:
  imagecodecs_…
* `kerchunk_v2`: the codecs that kerchunk's scanners name: messages of GRIB, tables of FITS, members of zip files,
  parts of records
* `lz4`: LZ4 as numcodecs frames it: the decoded size as a signed 32-bit little-endian number, then one block
* `n5_block`: blocks of the N5 format: a header, then the elements, first dimension fastest, big-endian and perhaps
  compressed
* `numcodecs_v2`: the numcodecs codecs that stored arrays may name: filters and compressors of zarr v2, numcodecs.*
  of v3
* `numcodecs_v3`: the numcodecs.* and imagecodecs_* names of zarr v3: the same codecs as in v2, each in its place of
  a chain
* `numeric_v2`: the numcodecs codecs that compress numbers as numbers, pcodec and zfpy, by the packages of these
  names
* `object_list`: the numcodecs codecs json2 and msgpack2: the elements as one list that ends in their dtype and
  shape
* `shuffle`: the shuffle filter of numcodecs and HDF5: the first bytes of all elements, then their second bytes, and
  so on
* `tiff_v2`: what only TIFF does to its chunks: strips of two heights, samples of any number of bits, bits in the other
  order
"""
