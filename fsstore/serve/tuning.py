"""The numbers that tune the server, each with what it trades."""

COMPRESSED_FROM_BYTES = 1400  # of an answer; less fits into one packet anyway
SILENT_S = 30  # between two packets: slow clients against threads that wait for dead ones
CONNECTIONS = 512  # at once: each is a thread; others wait to be accepted
