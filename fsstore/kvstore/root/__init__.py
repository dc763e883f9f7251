"""Roots: specs of stores that hold bytes themselves, and how they are opened.

* `chain_url`: chains of fsspec filesystems as root URLs: simplecache::s3://bucket/a/b
* `cloud`: the kinds of roots behind storage libraries: fsspec (any protocol), s3, gcs, http, abfs
* `live`: live objects as stores: fsspec filesystems, mappings, paths, and stores of zarr-python
* `open_engine`: the engine for an fsspec filesystem
* `option`: members and resources of cloud roots as options of client libraries; the environment and profiles of S3
* `web`: the http root: {"driver": "http", "base_url": ..., "headers": [...], "path": ...}, and its drivers
"""
