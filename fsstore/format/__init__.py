"""Formats: stored documents to one description of a stored array, and back.  No format does any input or output.

* `contract`: the contract of an array format, the shown part of an element, and the checks that all formats share
* `zarr3`: zarr v3: its document to a ChunkedArray and back, constraints, new arrays
* `zarr3_document`: the members of that document, and its data types
* `extension`: the points where zarr v3 is extended beside its codecs: chunk grids, key encodings, data types
* `zarr2`: zarr v2
* `n5`: N5
* `attributes`: groups, attributes, dimension names and missing-value marks in each format
* `stored_json`: fill values in JSON, and documents of other writers
"""
