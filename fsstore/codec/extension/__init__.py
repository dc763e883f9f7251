"""Codecs that the registry of zarr v3 extensions defines, each a class.

`scalar` reads numbers of an array's type from JSON; `scale_offset` and `cast_value` change values, `rounding` holds
the arithmetic of the latter; `bitround` drops bits of precision; `reshape` changes the shape; `packbits` packs the bits
of elements into bytes; `n5_default` makes blocks of N5, `zfp` streams of zfp, and `zfp_expert` those
that name their parameters one by one.
"""
