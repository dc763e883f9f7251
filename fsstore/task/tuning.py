"""The numbers that tune work in many pieces, each with what it trades."""

MERGED_NOTES = 64  # of one run that become one: files to read at the next start against writing notes again
PROGRESS_S = 0.5  # between two lines of text
# tasks a worker that are handed over before it asks: with two, distributed is idle half of the time, and with four
# one that does nothing took 2.4 ms of the caller's processor time instead of 1.7 (and 1.5 if they are all handed over)
TASKS_AHEAD = 8
TASK_THREADS = 2  # tasks under way in this process: one reads while the other writes
UNKNOWN_WIDTH = 64  # tasks under way on an executor that does not say how many workers it has
TASKS_UNDER_WAY = 4096  # at most, however many workers there are: each is held by this process
TASK_S = 2.2  # of a task, between 1 and 5: long against handing it over, and little to do again after a kill
PACE_MEMORY = (
    0.8  # of what earlier tasks took, at each that ends: steady against following a store that changes
)
TASK_ATTEMPTS = 3  # at a task that fails, before the job fails
STOPPED_S = 0.5  # for tasks that are stopped by Ctrl-C
TASK_PAUSE_S = 0.2  # before a task that failed is tried again; it doubles
BEAT_S = (
    10.0  # between two writes of a claim: requests against how long it takes to see that its job is alive
)
LEASE_S = 60.0  # without such a write before a job elsewhere is over: waiting for it against taking a slow one's place
