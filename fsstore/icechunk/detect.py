"""How an Icechunk repository is recognised, for automatic detection."""

from __future__ import annotations

from fsstore.values.detection import Detection

DETECT = Detection("icechunk", "store", files=("repo",), title="an Icechunk repository")
"""Format version 2: the root document."""

DETECT_FIRST = Detection(
    "icechunk", "store", files=("refs/branch.main/ref.json",), title="an Icechunk repository"
)
"""Format version 1: the branch `main` cannot be deleted.  A migrated repository may have both."""
