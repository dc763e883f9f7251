"""Combining many files into one dataset: scanned once each, placed by their coordinates, put together by arithmetic.

Files become columns (`scanning`, `facts`), columns become one dataset (`assembly`), and that is a value that is saved,
read and added to (`combined`, `verbs`).  Where files differ, arrays become layers instead of wrong numbers.

* `assembly`: from a batch of files to the whole: each variable put together as far as files agree
* `calendar`: times of the CF conventions as integers: units, what they count from, and seven calendars
* `combined`: what combining makes: to be read, looked into, saved, and added to
* `differ`: how the forms of one variable differ, and how its values are to be decoded
* `facts`: what is known of many files, as columns, and how batches become one
* `layers`: arrays of pieces: sources for files that are encoded alike, and where each file lies
* `many`: scanning many files: places written out, batches on an executor, runs that continue
* `new_axis`: variables of files that have no dimension of the name: each file becomes one step of a new one
* `order`: where files lie along a dimension: coordinates sorted, and gaps, overlaps and doubles found
* `report`: what combining says of itself
* `scan_columns`: a batch of files as a header and columns, and back
* `scanning`: scanning files into a batch
* `source_file`: one file: documents, references, and the bytes of chunks that are wanted now
* `unit_change`: changes between units that are multiples of each other, or shifted
* `verbs`: combining, adding files to a saved dataset, replacing and dropping them, and checking whether they changed
* `whole`: making the tables of the whole
"""
