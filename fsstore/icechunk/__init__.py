"""Icechunk repositories, read-only: the keys of the zarr hierarchy in a snapshot.

* `driver`: the store: members, URLs, and the driver over one branch, tag or snapshot
* `repository`: where documents are read and kept, the names of versions, what a key names, and virtual chunks
* `document`: root, snapshots and manifests, from their bytes
* `encoding`: flatbuffers, frames, names of objects and the configuration
"""

from __future__ import annotations

from fsstore.values.detection import Detection

DETECT = Detection("icechunk", "store", files=("repo",), title="an Icechunk repository")
"""Format version 2: the root document."""

DETECT_FIRST = Detection("icechunk", "store", files=("refs/branch.main/ref.json",), title="an Icechunk repository")
"""Format version 1: the branch `main` cannot be deleted.  A migrated repository may have both."""
