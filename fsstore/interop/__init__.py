"""Adapters for other libraries: `xarray` and `dask`.  Each is imported only by those who use that library.

`group` is a group of arrays as they show it, `numpy_index` how they index.
"""
