"""Adapters for other libraries: `xarray`, `dask` and `zarr`.  Each is imported only by those who use that library.

`group` is a group of arrays as they show it, `numpy_index` how they index.
"""
