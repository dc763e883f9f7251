"""Reference documents in JSON, read in bulk into columns and written piece by piece.

* `json_batch`: members of a JSON object read many at a time by a JSON parser, where they do not look alike
* `json_form`: members of a JSON object that look alike, found and proved in bulk
* `json_plain`: JSON text with its escapes put out of the way, so that every quote in it is the boundary of a string
* `json_refs`: reference documents in JSON, versions 0 and 1, read into a table
* `json_run`: members of a JSON object in bulk, taken as columns
* `json_scan`: scanning a JSON object of references without building it
* `writer`: writing a set as a JSON document, byte-exact and piece by piece
"""
