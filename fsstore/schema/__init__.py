"""The wished properties of an array, whatever stores it: constraints that are merged, checked and completed.

`Schema` wraps one frozen value (`value`); `ChunkLayout` and `CodecSpec` are parts of it.  A driver turns a schema into
metadata, and metadata into a schema; how an array is opened (`open_mode`) is decided here too.

* `chunk_layout`: how an array is, or should be, cut into chunks
* `chunk_shape`: the choice of a chunk shape from constraints: pure arithmetic, TensorStore's results to the element
* `codec_spec`: how the elements of chunks should be encoded, as a constraint of a schema
* `constraint`: hard and soft constraints, and how two of them become one
* `fill`: the fill value of a schema: an array that broadcasts to the domain, its JSON, and views of it
* `layout_value`: the constraints of a ChunkLayout as one frozen value: merging, finalizing, JSON
* `schema`: what an array should be like, whatever the driver stores it with
"""
