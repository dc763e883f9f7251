"""The numbers that tune the server."""

COMPRESSED_FROM_BYTES = 1400  # bytes of an answer; less fits into one packet anyway
CONNECTIONS = 1024  # at once: files and 64 KiB each, against clients that keep theirs open
PATIENCE_S = 10  # seconds for one client: slow lines against those who wait for a place
ANSWERS_AT_ONCE = 16  # answers made at once: far stores are asked for several against a value each in memory
