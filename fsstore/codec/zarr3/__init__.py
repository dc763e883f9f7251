"""The codecs of zarr version 3, a module each.

Each is a frozen dataclass whose fields are its JSON configuration; bind checks it against a chunk and returns what
encodes and decodes.

* `blosc`: the blosc codec, and Blosc for zarr v2
* `blosc_snappy`: Blosc buffers with snappy inside, which the blosc library of numcodecs is built without
* `crc32c`: the crc32c codec: four bytes of checksum, little endian, after the data
* `deflate`: the gzip codec, and deflate with gzip, zlib or no framing for zarr v2
* `endian`: the bytes codec: the elements of a chunk in C order, little or big endian
* `transpose`: the transpose codec: dimension i of the encoded array is dimension order[i] of the decoded one
* `vlen`: the vlen-utf8 and vlen-bytes codecs: strings of any length, as zarr-python and numcodecs store them
* `zstd`: the zstd codec, and Zstandard for zarr v2
"""
