"""Codecs: arrays to bytes and back, without input or output.

* `contract`: what a codec promises, what some can do beyond it, and how their configurations are read
* `chain`: the codecs of an array one after the other, as stored and as bound to its chunks
* `chain_spec`: a chain as a spec asks for it, completed when an array is created
* `sharding`: the sharding codec, and the layout of shards
* `zarr3`: the codecs of zarr v3 that need no library: bytes, transpose, variable-length text and bytes, crc32c
* `blosc`, `deflate`, `zstd`: the compressors that zarr v2 and v3 share
* `numcodecs`: filters and compressors of zarr v2
* `arrangement`, `numeric`, `zfp`: codecs from the registry of zarr v3 extensions: order, values, streams of zfp
* `image_header`: checks of image headers before a decoder in C trusts them
* `buffers`: scratch memory, copies between strided arrays, comparison with the fill value
"""
