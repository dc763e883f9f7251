"""Clients for object stores and other filesystems, each behind the engine contract.

* `credential`: checks of answers and conditions, and credentials from a function of the program
* `generic`: any fsspec filesystem, through the verbs that all of them have
* `promise`: the known facts of fsspec's filesystems by protocol, and replacements for their verbs
* `object_store`: S3, GCS, Azure and HTTP through obstore, the Rust object-store client
* `s3`: S3 through the client of an s3fs filesystem, request by request
* `web`: HTTP, strictly: through the client of fsstore, or the session of fsspec's HTTPFileSystem
"""
