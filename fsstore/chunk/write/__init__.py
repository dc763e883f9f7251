"""Writing: chunks are encoded, or read and changed, and stored under conditions.

* `request`: a write: its cells become windows, which are stored at once, by threads, or with other small writes
* `writer`: storing windows of changed chunks, until no other writer interferes
* `encode`: the encoding of a chunk or shard that a request writes, in full or in part
* `queue`: writes of the same chunks in the order of their calls; waiting ones are made together
"""
