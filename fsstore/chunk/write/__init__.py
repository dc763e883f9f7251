"""Writing: chunks are encoded, or read and changed, and stored under conditions.

* `begun`: writes that were begun one by one and are made together: what they change of each chunk, in their order
* `changed_chunk`: stored chunks are decoded, to be changed, and what became of them is encoded
* `changed_shard`: the sub-chunks of a shard that requests change, each decoded and encoded once; the others keep
  their bytes
* `encode`: what is stored of a chunk that a request writes
* `gathered`: writes that wait for their turn are made together with those begun meanwhile
* `order`: writes that touch the same chunks are made in the order in which they were begun
* `recent_chunks`: what chunks decode to that were changed and encoded a moment ago
* `request`: writing a request: how its cells become windows, and what stores them (writer)
* `small_writes`: small writes made together: begun one by one, carried out in the order in which they were begun
* `stored_shard`: A stored shard of which a part is rewritten, read little by little: memory for all of it may not
  be there
* `written_boxes`: boxes that small writes put into one array: what they change of each chunk, from columns of integers
* `writer`: storing windows of changed chunks, again and again until no other writer comes between
"""
