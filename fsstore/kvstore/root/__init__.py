"""Roots: the specs of stores that hold bytes themselves, and how one is opened.

Each kind reads its JSON, its URLs and the options of its client.

* `aws`: what the caller, the environment and the profile files say about S3, for both client libraries
* `chain_url`: chains of fsspec filesystems as root URLs: simplecache::s3://bucket/a/b, zip://inner::file:///a.zip
* `cloud`: the kinds of roots that storage libraries serve: fsspec (any protocol), s3, gcs, http, abfs
* `live`: live objects as stores: fsspec filesystems, mappings, paths, and stores of zarr-python
* `open_engine`: which engine serves an fsspec filesystem, and how one is made: from a URL and options, or from a
  live object
* `option`: how the members and resources of cloud roots become options of obstore and of fsspec filesystems
* `web`: the http root: {"driver": "http", "base_url": ..., "headers": [...], "path": ...}, and its drivers
"""
