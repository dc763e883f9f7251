"""The wished properties of an array, whatever stores it: constraints that are merged, checked and completed.

`Schema` wraps one frozen value; `ChunkLayout` and `CodecSpec` are parts of it.  A driver turns a schema into
metadata, and metadata into a schema.

* `chunk_layout`: how an array is, or should be, cut into chunks
* `chunk_shape`: the choice of a chunk shape from constraints: pure arithmetic, TensorStore's results to the element
* `constraint`: hard and soft constraints, how two of them become one, and the fill value
* `layout_value`: the constraints of a ChunkLayout as one frozen value: merging, finalizing, JSON
* `schema`: what an array should be like, whatever the driver stores it with, and how it is opened
* `value`: all constraints of a schema as one frozen value, and the one on the encoding
"""
