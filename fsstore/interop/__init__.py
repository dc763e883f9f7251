"""Adapters for other libraries: `xarray`, `dask`, `zarr`, `virtualizarr` and `icechunk`.

Each is imported only by those who use that library.  `group` is a group of arrays as they show it, `numpy_index` how
they index, `virtual_chunks` the arrays of a reference set as they keep virtual chunks.
`zarr_url` gives the URL pipelines of zarr-python places of ours, and `torch` makes data sets of PyTorch out of arrays;
`tuning` has the numbers that tune what they are given.
"""
