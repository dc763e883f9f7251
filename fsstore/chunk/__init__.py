"""The chunk engine: one way to read and write chunked arrays, whatever their format.

* `model`: a stored array for the engine: chunk boundaries, keys, codecs, fill value
* `request`: index transforms as requests of the engine, listed positions by chunk, and the arrays of results
* `planner`: from a request to cells: the touched chunks, and the elements of each
* `columns`: cells and boxes in bulk, as columns of integers
* `place`: moving elements between chunks and the array of a request
* `open_chunks`: the chunks of an open array: the source of their bytes, and their cache
* `shard_source`: the grid of sub-chunks of shards, and shards as a source of chunks
* `shard_entries`: the sub-chunks that a request touches
* `read`: fetches, decodes and places windows of cells
* `write`: encodes chunks and stores them, under conditions where a chunk is changed in part
* `regions`: boxes and slabs of whole chunks, for copies that are bounded in memory

A request is an index transform; a plan is a few numbers for each dimension; memory is bounded by the work in flight.
"""
