"""The numbers that tune the house: the costs of a machine, what follows from them, and what packages share.

Numbers of one package alone stand in the module `tuning` of that package.
"""

# Costs of a common machine with two cores, measured by loops of each step alone
# seconds to hand work to another thread: a round trip through a pool takes 0.02 ms idle, and 0.2 ms on busy cores
HOP_S = 1e-4
READ_S = 1.2e-6  # seconds of one more read from the page cache: `os.pread` takes half of it, Python the rest
DECODED_BYTES_S = 1.3e9  # bytes a second that zstd decodes on one core
COPIED_PER_DECODED = 5  # bytes read from the page cache while zstd decodes one

# Their consequences, rounded up to powers of two
# bytes that zstd decodes while a thread wakes: less work is done by the thread that asks
HOP_BYTES = 1 << int(HOP_S * DECODED_BYTES_S).bit_length()
# bytes copied in the time of one more read: smaller gaps are read through, and smaller slices copied
GAP_BYTES = 1 << int(READ_S * DECODED_BYTES_S * COPIED_PER_DECODED).bit_length()
# seconds between two calls of a caller that does nothing between them: hops against reads that begin only when asked
ASKED_SOON_S = 10 * HOP_S

# Bytes, from what a request may waste to what a process may hold
HEAD_BYTES = 8 << 10  # bytes that tell the format of most files: one request against bytes in vain
# bytes of a value below which another request, mapping, packet or thread costs more than the bytes
SMALL_BYTES = 64 << 10
# bytes that stay in a core's cache between two steps: calls against reading memory again
CACHE_BYTES = 256 << 10
# bytes handled at a time: calls against memory, and against overlap with what comes next
PIECE_BYTES = 1 << 20
# bytes of one request: fewer requests against what a small read fetches in vain; twice as much is no quicker
REQUEST_BYTES = 4 << 20
BATCH_BYTES = 8 << 20  # bytes that are changed, packed or written together: requests against memory
HELD_BYTES = 16 << 20  # bytes of one kind of work that waits or is done ahead: overlap against memory
FLIGHT_BYTES = 32 << 20  # bytes of the answers under way at once: rounds of waiting against memory
# bytes that a store keeps without a cache in its context, or one call holds: memory against doing it again
KEPT_BYTES = 64 << 20

# Counts
# keys or boxes handled one by one: the columns of NumPy cost as much as eight of them, as measured for both
FEW = 8
# numbers, ranges or cells from which on columns of NumPy are quicker than a loop: the two meet between 20 and 40
COLUMNS_FROM = 32
REQUESTS = 32  # requests under way, as in TensorStore: speed far away against the load on a server
AT_ONCE = 64  # small things read, written or waited for together: requests in flight against memory
KEPT = 64  # open files, engines or jobs that are kept: memory and descriptors against opening again
PAGE = 1000  # entries of a listing, or keys of a request (S3's limit): requests against what is made in vain
ENTRIES_KEPT = 4096  # small facts that are remembered: memory against finding them again
QUEUED = 4096  # reads or tasks that wait in this process, which holds a plan for each
ROWS_AT_ONCE = 16384  # rows sorted, listed or made together: calls of NumPy against memory
# chunks that are named one by one; of more the stored ones are found by a listing: 4,096 names take half a millisecond
MANY_CHUNKS = 1 << 18
DENSE_PLACES = 1.5  # places of a grid for each chunk up to which a column for all is smaller than an index
# threads that wait for a disk, each with `FEW` small files: more gain nothing where the disk has a journal, and ext4
# without one took 1.4 times as long with 128 files under way as with 32
DISK_THREADS = 4

# Seconds and attempts
# seconds that a thread waits before it looks again: how late Ctrl-C is heard, against waking in vain
MOMENT_S = 0.1
# seconds for which a fork waits for modules that other threads import: a late fork against a child that stands still
IMPORT_S = 10.0
# seconds for which something far away is taken as unchanged: requests against seeing a change late
TRUSTED_S = 1.0
# seconds between two notes that a value on disk was used: writes of metadata against knowing which was not
USED_S = 60.0
TASK_S = 2.2  # seconds of a task: handing one over costs milliseconds, and a killed one is done again
TRIES = 3  # attempts at a task, scan or signature that fails by itself: waiting against failing by accident
READ_ATTEMPTS = 20  # attempts at something that others write while it is read, before the read fails
WRITE_ATTEMPTS = 10_000  # attempts at something that others write: each time one of them has succeeded
