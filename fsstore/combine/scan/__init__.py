"""Scanning many files into columns: what each file says, in numbers.

* `calendar`: times of the CF conventions as integers: units, what they count from, and seven calendars
* `facts`: what is known of many files, as columns, and how batches become one
* `file_values`: values of one variable of one file: all of them, or their fingerprint
* `many`: scanning many files: places written out, batches on an executor
* `notes`: the journal of a scan
* `packing`: a batch of files in one compressed string
* `parts`: parts of a scan, and how they become one
* `scan_columns`: a batch of files as a header and columns, and back
* `scanning`: scanning files into a batch
* `source_file`: one file: documents, references, and the bytes of chunks that are wanted now
"""
