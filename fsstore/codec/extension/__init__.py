"""Codecs from the registry of zarr v3 extensions, each a class.

* `numeric`: codecs that change values: bitround, cast_value, scale_offset
* `arrangement`: codecs that change the arrangement of elements: packbits, reshape, n5_default
* `zfp`: streams of zfp
"""
