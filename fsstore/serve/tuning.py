"""The numbers that tune the server, each with what it trades."""

COMPRESSED_FROM_BYTES = 1400  # of an answer; less fits into one packet anyway
CONNECTIONS = 1024  # at once: files and 64 KiB each, against clients that keep theirs open
BACKLOG = 128  # connections that wait to be accepted: bursts against a busy loop
HEAD_BYTES = 16 * 1024  # of a request: long names and tokens against memory
PATIENCE_S = 10  # with one client: slow lines against those who wait for a place
ANSWERS_AT_ONCE = 16  # that are made: far stores are asked for several against a value each in memory
ANSWERS_BYTES = 64 << 20  # of answers that are sent: throughput of slow readers against memory
PIECE_BYTES = 64 * 1024  # of an answer that a client must take in that time: calls against slow lines
