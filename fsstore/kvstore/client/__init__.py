"""The clients through which object stores and other filesystems are reached, each behind the engine contract.

* `credential`: checks of answers and of conditions, and credentials that a function of the program gives
* `generic`: any other fsspec filesystem, through the verbs all of them have, and what is known of each protocol
* `login_files`: verbs in place of those of fsspec's FTP and SFTP filesystems
* `object_store`: S3, GCS, Azure and HTTP through obstore, the Rust object-store client
* `s3`: S3 through the client of an s3fs filesystem, request by request
* `web`: HTTP, strictly: through the client of fsstore, or the session of fsspec's HTTPFileSystem
"""
