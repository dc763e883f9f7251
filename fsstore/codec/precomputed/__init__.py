"""Chunks of the Neuroglancer precomputed format: arrays of channel, z, y and x to bytes and back.

`chain` binds the encodings (raw, png, jpeg, compressed_segmentation) to chunks of one shape; `segmentation` holds
compressed_segmentation, in NumPy; `image` holds png and jpeg, which imagecodecs makes.
"""
