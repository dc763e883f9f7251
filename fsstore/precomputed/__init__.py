"""Neuroglancer's precomputed volumes: their scales as arrays, their shards as a key-value store.

A volume is a directory with one document, `info`, that describes the same image in several resolutions, its scales.
`|neuroglancer-precomputed:` opens one scale as an array of x, y, z and channel, whose domain may begin anywhere;
creating an array adds a scale to the document.  Chunks are raw, PNG, JPEG or compressed segmentation, in files of
their own or in shards.  The same shards hold meshes, skeletons and annotations; a key-value store of its own reads
and writes them as values by 64-bit numbers.

* `driver`: the array driver: a scale found or added, opened as a chunked array
* `format`: a scale as a `ChunkedArray`: constraints against stored scales, and new scales
* `info`: the document, the keys of chunks, and the sharding of a scale
* `codec`: the bytes of chunks
* `shards`: the key-value store over shards
* `shard_layout`: one shard: its entries, indexes and values, bytes in and bytes out
"""
