"""Icechunk repositories, read-only: the keys of the zarr hierarchy in a snapshot.

* `chunk_reader`: reading chunks that lie outside the documents
* `checksum`: whether the object behind a virtual chunk is still the one that was referred to
* `detect`: how a repository is recognised
* `driver`: the key-value store over one branch, tag or snapshot
* `format`: the format, without I/O
* `keys`: which array and which chunk a key names
* `kind`: members, URLs, how it is opened
* `listing`: the chunks of an array that exist
* `location`: the URL of a virtual chunk as it is asked for
* `repository`: where documents are read and kept
* `selector`: the name of a branch, tag or snapshot
* `virtual`: reading virtual chunks under the policy of reference sets
"""
