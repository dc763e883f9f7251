"""Files that hold other files, or one other file: zip archives, and values compressed as a whole.

The directory of an archive is parsed without input or output; members are ranges of the file below.

* `compressed`: the gzip, zstd, bz2 and xz key-value stores: the values of any other store, decompressed, read-only
* `zip_directory`: the directory of a ZIP archive: bytes to a table, without I/O; kept as long as the file has the same
  generation
* `zip_driver`: the zip key-value store: the members of a ZIP archive in any other store
* `zip_writing`: writing ZIP archives: every change makes the archive anew, and replaces the old one under a condition
"""
