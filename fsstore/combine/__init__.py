"""Many files as one dataset: each is scanned once, placed by its coordinates, and put together by arithmetic.

Files become columns, columns become one dataset, and the dataset is a value that is saved, read and added to.  Where
files differ, arrays become layers instead of wrong numbers: a *virtual dataset* (mosaic) is one document that shows
the files as one zarr hierarchy.  Users reach all of it through `fsstore.references` and the command line.

Scanning files into columns:

* `calendar`: times of the CF conventions as integers, and changes between units
* `facts`: what is known of many files, as columns, how batches become one, and the report of how they agree
* `source_file`: one file: documents, references, the bytes of its chunks, fingerprints of its values
* `scanning`: scanning files into a batch
* `many`: scanning many files on an executor, with a journal

Putting columns together:

* `agreement`: how files differ: in form, in decoding, in values that several of them hold
* `order`: where files lie along a dimension: gaps, overlaps and doubles found, times made comparable
* `layers`: tables of references for files that are alike, layers of pieces for others
* `assembly`: from a batch of files to the whole

The virtual dataset:

* `mosaic`: the dataset as a value
* `mosaic_document`: its document, saved and replaced in one step
* `mosaic_stored`: the stored forms, parquet and JSON
* `mosaic_driver`: the key-value store that shows it

The verbs:

* `combined`: the result of combining: read, inspected, checked, moved and saved
* `verbs`: combine, append, replace, drop, and ask which files changed
"""
