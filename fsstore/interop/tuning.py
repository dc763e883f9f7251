"""The numbers that tune what other libraries are given."""

DASK_BLOCKS = 16  # blocks of a large array at least: for a few workers with a few turns each
