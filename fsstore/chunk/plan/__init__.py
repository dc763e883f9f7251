"""From a request to cells: which chunks are touched, which of their elements, and where these go.

Plans are values; nothing here reads or writes.  `source` says where the bytes of a chunk come from.
* `allocation`: memory for elements, asked for in one place: what cannot be had is an error that names the shape and
  the bytes
* `cell_run`: cells that follow each other in a plan, made when they are asked for
* `entry_run`: entries of shards as columns: which shard each lies in, and its number there
* `grid`: how one dimension of an array is cut into chunks, and how a request along it falls into them
* `keys`: chunk keys: the numbers of a chunk along each dimension as one string
* `model`: what the engine knows of a stored array: its chunk boundaries, keys, codecs and fill value
* `open_chunks`: the chunks of one open array: what is constant from one read or write to the next
* `place`: moving elements between a chunk and the array of a request, cell by cell
* `planner`: from a request to cells: which chunks are touched, and which elements of each go where
* `regions`: cutting a domain into boxes of whole chunks that fit into memory: the pieces in which arrays are copied
* `request`: from index transforms to the requests of the engine
* `shard_entries`: the sub-chunks of shards that a request touches: a second plan, over the grid of sub-chunks
* `shard_grid`: the grid of sub-chunks itself: what is true of all requests to an array
* `shard_source`: entries of shards as a source of chunks, over the source of the shards
"""
