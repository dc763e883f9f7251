"""Chains of codecs: as they are wished for, as they are stored, and bound to the chunks of one array.

A shard is a chain inside a chain; `shard_layout` says where its sub-chunks lie.

* `bound_chain`: A chain of codecs bound to the chunks of one array: what the chunk engine calls
* `chain`: A chain of codecs as stored in zarr v3 metadata: array codecs, one codec that makes bytes, bytes codecs
* `chain_spec`: A chain of codecs as wished for in a spec: partial, mergeable, not yet bound to a type or shape
* `part`: parts of encoded chunks that are nothing but the bytes of their elements
* `resolve`: completing a wished-for chain for one type and shape: what creating an array stores
* `rows`: several small chunks encoded together: copied and compared in one step each, and given to the codecs one
  by one
* `shard_runs`: a shard as runs of sub-chunks, of which those that nobody changes are copied as one piece
* `sharding`: the sharding_indexed codec: a chunk cut into sub-chunks, encoded one by one and found through an index
* `steps`: how the codecs of a chain follow each other: what one gives the next one takes, forwards, backwards, or
  in pieces
* `working_size`: how much memory the chunks of a chain take on their way, which limits how many threads may work at
  once
"""
