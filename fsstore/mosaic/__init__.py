"""Virtual datasets: one document that makes many files one zarr hierarchy, also where they differ.

* `decoding`: how the stored values of a source become those of the whole
* `detect`: telling a virtual dataset by its first bytes
* `document`: a virtual dataset as a header and columns, and back, checked
* `driver`: the key-value store that shows it
* `fingerprint`: whether large arrays of different files are equal, without keeping either
* `kind`: its JSON, its URL, and how it is opened
* `pieces`: which piece of an array holds what, found in microseconds
* `saved`: the saved document of a dataset: read, and replaced in one step by one that refers to what was copied into it
* `stored`: the two stored forms, parquet and JSON
* `tuning`: the numbers that tune it, each with what it trades
* `value`: the dataset as a value
"""
