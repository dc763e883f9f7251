"""The numbers that tune encoding and decoding, each with what it trades."""

# Chains and shards (`codec.chain`)
# of a chunk that is encoded in pieces, which saves memory; that of zstd takes 1.08 of the time
PIECES_FROM_BYTES = 8 << 20
ENCODED_RUN_BYTES = 1 << 18  # of small chunks encoded together: what stays in the cache after it was copied
RUN_PART_BYTES = 1 << 18  # decoding several at once gains nothing for chunks larger than this
# nor does joining larger ones that are not encoded: 220 KB alone take 0.82 of the time
RUN_COPIED_BYTES = 1 << 17
RUN_BYTES = 1 << 20  # decoded together: what stays in a processor's cache until it is copied
# sub-chunks of a shard that is worth every core; fewer are encoded sooner than threads wake
SHARED_SHARD_ENTRIES = 16
# that zstd decodes as soon as such a shard: of smaller ones each core takes one, and they are encoded in fewer steps
SHARED_SHARD_BYTES = 1 << 18
# encoded while what came before is written, by threads that share a shard: overlap against memory
SHARD_AHEAD_BYTES = 16 << 20
SHARD_PORTION_BYTES = 1 << 20  # written at once, while what follows is encoded: system calls against overlap
SHARD_PORTION_PARTS = 512  # written at once; a system call takes 1,024
DIRECT_BYTES = 1 << 15  # smaller results are made and copied sooner than a stream writes them to their place

# Copying (`codec.element_copy`)
# elements, and rows; to look at how fewer lie takes as long as copying them one by one
ROWS_COPIED_FROM = 1024
ROW_BYTES = 512  # of a row that is copied as one element; NumPy copies longer ones as quickly itself
# of a transposed copy that goes in strips: a smaller one stays in the cache, and strips only cost calls
STRIPS_FROM_BYTES = 1 << 17
# rows that lie a multiple of this apart share the lines of a cache, of which there are a power of two
ALIASED_BYTES = 512
# of a strip: fewer cost more calls, and more leave the cache before they are used
STRIP_ELEMENTS = 16

# Memory (`codec`)
# of an array that is compared with its fill value at once; larger ones go block by block, and stop early
COMPARED_BYTES = 1 << 20
SCRATCH_BLOCK_BYTES = 2 << 20  # of memory that is a block of its own; less is kept by each thread for itself
# of blocks that are kept for the next caller: memory against clearing pages again
SCRATCH_SPARE_BYTES = 32 << 20
# of input that is decompressed at a time: of larger ones libraries leave more behind than they give
STREAM_PIECE_BYTES = 1 << 18
# of output that is taken at a time; larger steps would hold more than is allowed before it is counted
STREAM_STEP_BYTES = 1 << 20
# given to a member behind the first, then twice as many and so on: what it does not need is copied
STREAM_FEED_BYTES = 4 << 10
STREAM_LARGEST_FEED_BYTES = 1 << 18  # where that doubling ends
# texts whose bytes are counted together, while they are in the cache: an eighth of decoding them
VLEN_TOGETHER = 4096
ZSTD_PIECE_BYTES = 1 << 18  # of output in pieces: each is handed on while the next is made
ZSTD_REUSED_BYTES = 384 << 10  # decoded; of larger frames, making a decompressor for each is nothing

# Filters (`codec.numcodecs`, `codec.precomputed`)
# that become text at once; of more it is put together in memory that is used again
BASE64_BLOCK_BYTES = 3 << 16
# elements: what the steps of a filter make of them stays in the cache, and each block costs some calls
ELEMENTWISE_BLOCK = 1 << 15
SHUFFLE_MANY = 2**15  # bytes from which on Blosc puts elements together sooner than NumPy
SHUFFLE_BLOCK_BYTES = 2**16  # that Blosc puts together at once: they stay in the cache between two copies
SHUFFLE_BLOCKS = 16  # of one call of Blosc: more would leave the cache, and fewer cost calls
SEGMENTATION_AT_ONCE = 1 << 18  # voxels decoded together: what stays in the cache
SEGMENTATION_BLOCKS = 256  # blocks encoded together: a megabyte of the usual ones
SEGMENTATION_COMPARED = 16  # values of a block up to which comparing with each is faster than searching
