"""The numbers that tune work in many pieces."""

from fsstore.runtime.tuning import MOMENT_S

# notes of one run that become one: files to read at the next start against writing notes again
MERGED_NOTES = 64
PROGRESS_S = 5 * MOMENT_S  # seconds between two lines of text, and for tasks that are stopped by Ctrl-C
# tasks a worker that are handed over before it asks: with two, distributed is idle half of the time, and with four
# one that does nothing took 2.4 ms of the caller's processor time instead of 1.7 (and 1.5 if they are all handed over)
TASKS_AHEAD = 8
TASK_THREADS = 2  # tasks under way in this process: one reads while the other writes
# of what earlier tasks took, at each that ends: steady against following a store that changes
PACE_MEMORY = 0.8
# times as long as others that a task may take before its worker gives it up: waiting against doing it again
SLOW = 4
TASK_PAUSE_S = 0.2  # seconds before a task that failed is tried again; it doubles
BEAT_S = 10.0  # seconds between two writes of a claim: requests against how soon its job is seen to be alive
# seconds after which a silent job elsewhere is over: waiting for it against ousting a slow one
LEASE_S = 6 * BEAT_S
