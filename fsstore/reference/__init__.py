"""Reference sets: keys that point into bytes stored elsewhere.

A set is one table of columns, whatever document it comes from, and answers keys in batches.  A policy decides what it
may fetch, because a set is untrusted input.

* `collection`: reference sets as wholes: `References` for users, and sets inside live objects
* `detect`: telling a reference document by its first bytes, for automatic detection
* `document`: reference documents in JSON, read in bulk into columns and written piece by piece
* `driver`: the reference key-value store: an adapter that shows the keys of a reference set
* `generate`: templates and generators: references described by a pattern and computed when they are asked for
* `kind`: the reference kind: its JSON members, its URL (<base>|reference:<path>), and how it is opened
* `load`: opening a stored set: which form it has, decompressing it, parsing it
* `parquet`: reference sets in parquet: their files are read when a key of theirs is asked for
* `state`: a set as it is now: keys resolved in batches, and what was changed since it was stored
* `table`: the columnar table of a reference set, and how it is built: about twenty bytes a reference
* `taking`: taking copies into a reference set in one step: references to files beside it, with their documents
* `target`: the targets of references: which may be read, how they are opened, and how bytes are fetched from them
* `tools`: tools for whole sets: make one from files, verify it, report on it, move it
"""
