"""Tools for whole databases: list versions, verify, compact, dump.

* `compact`: copying one version into a new database, so that nothing but that version is left
* `dump`: the stored structures as JSON, and manifests and version tree nodes back from it: TensorStore's dump
  functions
* `verify`: checking a version: every node's checksum and place in the tree, the sums, and that every value is there
* `versions`: all versions of a database, as a list for people: when, how many keys, how many bytes
"""
