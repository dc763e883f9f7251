"""The wished properties of an array, whatever stores it: constraints that are merged, checked and completed.

`Schema` wraps one frozen value (`value`); `ChunkLayout` and `CodecSpec` are parts of it.  A driver turns a schema into
metadata, and metadata into a schema; how an array is opened (`open_mode`, `staleness`) is decided here too.

* `base_schema`: constraints given for a view, as constraints on the array below it
* `chunk_layout`: how an array is, or should be, cut into chunks
* `chunk_shape`: the choice of a chunk shape from constraints: pure arithmetic, TensorStore's results to the element
* `codec_spec`: how the elements of chunks should be encoded, as a constraint of a schema
* `constraint`: hard and soft constraints, and how two of them become one
* `divisors`: divisors of integers up to 2^63, in bounded time: Miller-Rabin finds primes, Pollard's rho splits the
  rest
* `domain_merge`: two constraints on a domain as one: unknown bounds and labels take the other side
* `familiar`: keyword arguments of zarr-python and numpy, put in the words of specs
* `fill`: the fill value of a schema: an array that broadcasts to the domain, its JSON, and views of it
* `layout_grid`: chunkLayout.Grid: what is asked of one grid of chunks, whatever the grid is for
* `layout_transform`: what an index transform makes of a chunk layout and of units
* `layout_value`: the constraints of a ChunkLayout as one frozen value: merging, finalizing, JSON
* `schema`: what an array should be like, whatever the driver stores it with
"""
