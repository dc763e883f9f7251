"""The clients through which object stores and other filesystems are reached, each behind the engine contract.

Answers of servers are checked here: their length, its range, and whether a condition was really judged.

* `bucket`: the engine of a bucket: an obstore store with the options that a root gives it
* `condition_check`: who decides about conditions on a server that speaks the protocol of S3
* `credential`: credentials that a program gives by a function: asked before they expire, and after a refusal
* `generic`: any other fsspec filesystem, through the verbs all of them have: info, cat_file, pipe_file, rm_file, ls
* `object_copy`: copies that an object store makes by itself, inside one bucket, for a request each
* `login_files`: what stands in for the verbs of fsspec's FTP and SFTP filesystems, which say too little of what went
  wrong
* `memory_files`: fsspec's memory filesystem, asked without walks over all its files and while others change it
* `object_option`: reads and policies in the terms of obstore, which is told to try each request once: see
  object_store
* `object_store`: S3, GCS, Azure and HTTP through obstore, the Rust object-store client: a tenth of the client work
  of s3fs
* `object_write`: writes of an object store through obstore: objects with marks, under conditions, and
  deletions
* `range_answer`: byte ranges as HTTP and object stores speak them: what to ask for, and whether the answer fits
* `s3`: S3 through the client of an s3fs filesystem, request by request
* `web`: HTTP, strictly: through the client of fsstore, or the session of fsspec's HTTPFileSystem
"""
