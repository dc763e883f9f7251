"""The numbers that tune threads, forks and caches, each with what it trades."""

REMEMBERED_GROUPS = 4096  # that were forgotten: as many keys as a few large writes have at most
IO_THREADS = 32  # which wait more than they work: requests in flight against threads
# for all locks together: two that are taken in another order elsewhere would wait for each other
FORK_PATIENCE_S = 0.1
FORK_TURN_S = 0.002  # for one lock, before the others that are held are tried again
KEPT_JOBS = 16  # that a worker serves by turns: their memory against making it again
LOOK_AGAIN_S = 0.25  # that a thread waits at a time: how late Ctrl-C may be, against waking for nothing
# between the beginning of a read and the question for its result, of a caller that will not do anything between them:
# steps between threads against reads that begin only when they are asked for
ASKED_SOON_S = 0.001
READ_ATTEMPTS = 20  # at something that others write while it is read, before the read fails
WRITE_ATTEMPTS = 10_000  # at something that others write: each time one of them has succeeded
LONGEST_PAUSE_S = 0.1  # before another attempt: fewer attempts in vain against waiting for nothing
