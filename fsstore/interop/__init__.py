"""Adapters for other libraries: `xarray`, `dask`, `zarr`, `virtualizarr`, `icechunk`, `napari` and `torch`.

Each is imported only by programs that use that library.
`virtual_chunks` turns the arrays of a reference set into their virtual chunks.  `zarr_url` makes places of fsstore
known to the URL pipelines of zarr-python.  `training` reads samples in an order that can be continued, without
knowing who trains.

Datasets of xarray are written by `dataset_write`, which asks `dataset_draft` what xarray would write and
where it belongs, has `dataset_blocks` write the values, and `dataset_commit` make them visible.
"""
