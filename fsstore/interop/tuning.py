"""The numbers that tune what other libraries are given, each with what it trades."""

DASK_BLOCKS = 16  # at least, of a large array: for a few workers with a few turns each
DASK_SMALL_BYTES = 4 * 2**20  # of a block that takes dask longer to schedule than us to read
ICECHUNK_TOGETHER = 10_000  # references that are handed over in one call: calls against memory
XARRAY_INDEX_BYTES = 64 * 2**20  # of an index that is read ahead, which xarray keeps in memory anyway
XARRAY_TIME_BYTES = 2**20  # of other times that are read ahead, of which it looks at the ends
BLOCK_PAUSE_S = (
    0.01  # between looks whether workers are still at a block after a failure: a moment against requests
)
