"""The numbers that tune OCDBT."""

MANIFESTS_KEPT = 128  # of a numbered database; older ones are deleted, and a slow reader may miss them
COLUMN_LETTERS = 64  # letters of keys that are compared letter by letter, as columns; longer ones one by one
