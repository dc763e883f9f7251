"""Formats: stored documents to one description of a stored array, and back.  No format does any input or output.

* `contract`: the contract of an array format: pure functions between stored documents, constraints and ChunkedArray
* `extension`: the points where zarr v3 is extended beside its codecs: chunk grids, key encodings and data types
* `field`: the part of a stored element that an array shows: all of it, one field of a structure, or its bytes
* `fill_value`: fill values in metadata: JSON to scalars and back, bit for bit
* `lenient`: what others have written into metadata, in the words of the specification
* `missing_value`: the value that marks missing data, as xarray looks for it in each format
* `n5`: N5: attributes.json to a ChunkedArray, and back
* `n5_match`: metadata constraints of N5 against schemas and stored datasets, and new datasets from them
* `node_words`: groups, attributes and names of dimensions in the words of each format
* `precomputed`: Neuroglancer precomputed volumes: info to a ChunkedArray of one scale, and back
* `schema_check`: what all formats check of a schema: against a stored array, and while one is created
* `zarr2`: zarr v2: .zarray to a ChunkedArray, and back
* `zarr2_dtype`: data types of zarr v2: NumPy's type strings, the bare names TensorStore adds, and lists of fields
* `zarr2_match`: metadata constraints of zarr v2 against schemas and stored arrays, and new metadata from them
* `zarr3`: zarr v3: zarr.json to a ChunkedArray, and back
* `zarr3_create`: creating zarr v3 metadata from a schema and metadata constraints
* `zarr3_document`: the members of zarr.json: complete as stored, partial as constraints of a spec
* `zarr3_dtype`: data types of zarr v3: their names and objects in metadata, and the types that hold their elements
* `zarr3_match`: metadata constraints of zarr v3 against schemas and stored arrays
"""
