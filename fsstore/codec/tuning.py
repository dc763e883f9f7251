"""The numbers that tune encoding and decoding, measured on two cores of 256 KiB of cache."""

from fsstore.runtime.tuning import CACHE_BYTES

# bytes of a result: smaller ones are made and copied sooner than a stream writes them to their place
DIRECT_BYTES = CACHE_BYTES // 8
SHARD_PORTION_PARTS = 512  # sub-chunks written at once: half of what a system call takes
# elements or rows: looking at the layout of fewer takes as long as copying them one by one
ROWS_COPIED_FROM = 1024
ROW_BYTES = 512  # bytes of a row that is copied as one element; NumPy copies longer rows as quickly itself
# columns of a strip of a transposed copy: fewer cost more calls, more leave the cache before they are used
STRIP_ELEMENTS = 16
