"""Chunk indexes: where the chunks of a dataset are, for all six kinds, parsed in NumPy and in few rounds.

* `array`: the indexes that are arrays: fixed and extensible
* `load`: the index of a dataset, of whichever kind
* `tree`: the indexes that are B-trees of version 1 and 2
* `value`: what a chunk index is read with, and what it gives: chunks as columns
"""
