"""The documents of reference sets: JSON, read in bulk and written piece by piece, and parquet directories.

* `json_document`: versions 0 and 1 of the JSON document, read into a table and written
* `json_run`: members of a JSON object that look alike, proved and taken as columns
* `json_scan`: scanning a JSON object of references without building it
* `parquet_change`: writing to a parquet set: every file is replaced as a whole, if no other writer replaced it
* `parquet_file`: the files of a parquet set, and its `.zmetadata`
* `parquet_set`: the directory of a parquet set, read and written
"""
