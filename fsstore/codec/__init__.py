"""Codecs: bytes to arrays and back, without I/O.

`contract` says what a codec promises.

* chains: `chain` is what is stored, `chain_spec` what is wished for, `chain_resolve` leads from one to the other, and
  `bound_chain` is what the chunk engine calls, in `steps` from codec to codec; `compressor_v2` is the chain of zarr v2,
  `configuration` reads members;
* one codec or family each: `endian`, `transpose`, `vlen`, `crc32c`, `deflate`, `zstd`, `blosc` with `blosc_snappy`,
  `lz4`, `shuffle`, `delta`, `elementwise`, `base64_text`, `object_list`, `n5_block`; `sharding`, whose arithmetic is
  `shard_layout`;
* from elsewhere: `numcodecs_v2`, `numcodecs_v3`, `numeric_v2`, `kerchunk_v2` and `imagecodecs_v2`, by the contract of
  `foreign_v2`;
* shared: `stream` works in bounded steps, `size` says how much may come, `fill` what is left out, `flat` what
  elements look like in a row, `scratch` where they are for a moment, `working_size` how much memory all that takes.
"""
