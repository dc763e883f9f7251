"""Reference sets: keys that point into bytes stored elsewhere.

A set is one table of columns, whatever document it comes from, and answers keys in batches.  A policy decides what it
may fetch, because a set is untrusted input.

* `detect`: telling a reference document by its first bytes, for automatic detection
* `kind`: the JSON members of the store, its URL (<base>|reference:<path>), and how it is opened
* `driver`: the reference key-value store, and taking copies into a set in one step
* `load`: opening a stored set, or one inside a live object
* `mapping`: `References`: an opened set as a mapping, and what can be made of it
* `report`: the cost of reading a set, and checking a set against its targets
* `rewrite`: sets made of others: smaller chunks, and relative targets of a set that is saved elsewhere
* `table`: the columnar table of a set, templates and generators, and changes that are not yet saved
* `document`: the documents of sets, in JSON and parquet
* `target`: the targets of references: which may be read, and how
"""
