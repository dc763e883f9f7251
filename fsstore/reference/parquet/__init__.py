"""Reference sets in parquet: their files are read when a key of theirs is asked for.

* `document`: writing to a parquet set: every file of it is replaced by itself, whole, and only if nobody else
  replaced it
* `files`: the files <array>/refs.<k>.parq of a parquet set, loaded when they are asked for and kept up to a budget
* `metadata`: the .zmetadata of a parquet set: every metadata document, and the number of references in a file
* `read`: one parquet file of references, read into columns
* `refs`: reference sets in parquet: a directory with .zmetadata and <array>/refs.<k>.parq
* `taking`: taking a copy into a parquet set in one step: new arrays, or new references of one array in one file
* `write`: writing a set as a parquet directory, readable by fsspec, kerchunk and VirtualiZarr
"""
