"""The numbers that tune icechunk, each with its unit and what it trades."""

TREE_PAGE = 8192  # entries of a listing at a time
# of snapshots and manifests, by a repository in whose context nothing is cached
SNAPSHOTS_KEPT_BYTES = 64 * 1024 * 1024
TRUSTED_S = 1.0  # how long a far file is taken for what it was: requests against seeing a change late
