"""Icechunk repositories, read-only: the keys of the zarr hierarchy in a snapshot.

* `kind`: members, URLs, how it is opened
* `driver`: the key-value store over one branch, tag or snapshot
* `repository`: where documents are read and kept, the names of versions, and what a key names
* `virtual`: reading virtual chunks under the policy of reference sets
* `document`: root, snapshots and manifests, from their bytes
* `encoding`: flatbuffers, frames, names of objects and the configuration
* `detect`: how a repository is recognised
"""
