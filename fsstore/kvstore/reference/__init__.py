"""Reference sets: keys that point into bytes stored elsewhere.

`table` is the one internal form; `json_refs` and `parquet_refs` fill it; `gen` and `template` compute what a set
only describes; `policy` decides what may be read; `driver` reads.
"""
