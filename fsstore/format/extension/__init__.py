"""The points where zarr v3 is extended beside its codecs: chunk grids, chunk key encodings and data types.

Metadata name what stands at such a point, `{"name": …, "configuration": {…}}`.  A name is one registered class, ours
and those of other packages alike.

* `axes`: the chunk boundaries that the grid of metadata gives an array of a shape
* `chunk_grid`: the chunk grids of zarr v3: regular and rectilinear
* `chunk_key`: the chunk key encodings of zarr v3: default and v2
* `contract`: what stands at each point, and how metadata that name it are read
"""
