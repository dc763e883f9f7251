"""Sub-chunks of shards: which of them a request touches, where they lie, and their bytes as a source of chunks.

* `entry_run`: entries of shards as columns: which shard each lies in, and its number there
* `shard_entries`: the sub-chunks of shards that a request touches: a second plan, over the grid of sub-chunks
* `shard_grid`: the grid of sub-chunks itself: what is true of all requests to an array
* `shard_source`: entries of shards as a source of chunks, over the source of the shards
"""
