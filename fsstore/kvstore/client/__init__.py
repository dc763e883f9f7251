"""The clients through which object stores and other filesystems are reached, each behind the engine contract.

* `credential`: checks of answers and of conditions, and credentials that a function of the program gives
* `generic`: any fsspec filesystem, through the verbs all of them have
* `promise`: the known facts of fsspec's filesystems by protocol, and verbs in place of theirs
* `object_store`: S3, GCS, Azure and HTTP through obstore, the Rust object-store client
* `s3`: S3 through the client of an s3fs filesystem, request by request
* `web`: HTTP, strictly: through the client of fsstore, or the session of fsspec's HTTPFileSystem
"""
