"""The chunk engine: one way to read and write chunked arrays, whatever their format.

* `plan` cuts a request into cells, says where the bytes of chunks come from, and moves elements into their places;
* `shard` says where in shards the sub-chunks lie that a request touches, and reads them;
* `read` fetches and decodes windows of cells, of one request or of many small ones together;
* `write` encodes chunks and stores them, under conditions where a chunk is changed in part;
* `cache` keeps decoded chunks, under the byte budget of a cache pool.
* `tuning`: the numbers that tune it, each with what it trades

A request is an index transform; a plan is a few numbers a dimension; memory is bounded by what is in flight.
"""
