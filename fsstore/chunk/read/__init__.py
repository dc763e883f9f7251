"""Reading: windows of cells are fetched, decoded and put in their places.

* `box_columns`: planning many small boxes of one array at once, by columns of integers
* `gather`: reading listed positions, one gather for many chunks
* `joint_reads`: small reads of one array that are made together: each chunk is fetched and decoded once for all of them
* `parts`: reading a part of chunks whose bytes are their elements
* `read_ahead`: reads of boxes that lie one behind the other, and the chunks that are fetched for the next ones
* `read_queue`: small reads of one array that have begun and wait for others
* `reader`: reading a request: it is cut into windows of cells, and these are handed to whom they suit
* `shard_window`: the windows of a read of shards: whole shards where these are small, parts of large ones
* `window`: cells of a read that are fetched together, decoded, and put in their places
"""
