"""The numbers that tune encoding and decoding, each with its trade, measured on two cores of 256 KiB of cache."""

# bytes that stay in the cache of a core between two steps: more are read from memory again, fewer cost calls
CACHE_BYTES = 1 << 18
STEP_BYTES = 1 << 20  # handled at once: calls for each byte against memory, and against overlap with writing
DIRECT_BYTES = 1 << 15  # smaller results are made and copied sooner than a stream writes them to their place
# of a chunk that is encoded in pieces, which saves memory and takes 1.08 of the time
PIECES_FROM_BYTES = 8 << 20
# of memory that is a block of its own, shared by threads; less is kept by each thread for itself
SCRATCH_BLOCK_BYTES = 2 << 20
SCRATCH_SPARE_BYTES = 32 << 20  # of blocks kept for the next caller: memory against clearing pages again
# encoded while what came before is written, by threads that share a shard: overlap against memory
SHARD_AHEAD_BYTES = 16 << 20
SHARD_PORTION_PARTS = 512  # sub-chunks written at once; a system call takes 1,024
# sub-chunks of a shard that is worth every core; fewer are encoded sooner than threads wake
SHARED_SHARD_ENTRIES = 16
# elements, and rows: to look at the layout of fewer takes as long as copying them one by one
ROWS_COPIED_FROM = 1024
ROW_BYTES = 512  # of a row that is copied as one element; NumPy copies longer ones as quickly itself
# columns of a strip of a transposed copy: fewer cost more calls, and more leave the cache before they are used
STRIP_ELEMENTS = 16
