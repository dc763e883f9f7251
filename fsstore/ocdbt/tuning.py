"""The numbers that tune ocdbt, each with its unit and what it trades."""

# of nodes, by a store in whose context nothing is cached: memory against reading them again
NODES_KEPT_BYTES = 16 * 1024 * 1024
MANIFESTS_KEPT = 128  # of a numbered database; older ones are deleted, and a slow reader may miss them
COMPARED_KEY_BYTES = 4 * 1024 * 1024  # of keys that are compared at a time: calls of NumPy against memory
COLUMN_LETTERS = 64  # of keys that are compared letter by letter, as columns; longer ones one by one
SHORT_COLUMN = 24  # numbers; fewer are packed sooner one by one than by NumPy
# of a data file, from which on values begin at pages: space against reads of whole pages
PADDED_FROM_BYTES = 4 * 1024 * 1024
WINDOW_BYTES = 32 * 1024 * 1024  # of values or nodes that are written together: requests against memory
NODES_AT_ONCE = 64  # nodes or values read or written together: requests in flight against memory
