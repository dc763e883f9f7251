"""The numbers that tune the house: the costs of a machine, what follows from them, what packages share and what one
package uses.

Each says its unit and what it trades.
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

# Chunks
# bytes that are read by the thread that asks: decoding them takes as long as waking the workers a few times
INLINE_READ_BYTES = 32 * HOP_BYTES
# bytes of a write to memory, counted as decoding: two cores would encode them sooner, and wake later
INLINE_EFFORT_BYTES = 4 * HOP_BYTES
# seconds that a small write waits for the next one unless its result is asked for: larger batches against a late start
SMALL_GATHER_S = 0.01
# bytes of a request in memory beside its result: freed memory that is not given back makes it a third more, 64 MB
WINDOW_BYTES = 40 << 20
# bytes beyond which a request is made by itself, in windows: waiting for others costs memory and gains nothing
JOINT_BYTES = 2 * FLIGHT_BYTES
# bytes that reading raw chunks in parts spares at least: planning the parts takes as long as copying these
PARTS_FROM_BYTES = 16 * GAP_BYTES
# bytes of a stored shard read at once while it is rewritten: reads against memory
STORED_BLOCK_BYTES = 2 << 20
SPAN_SHARE = 0.8  # of a chunk: decoding a larger part takes as long as decoding the whole chunk
WINDOW_CELLS = 512  # chunks of a window: planning costs the same for fewer, and more hold up the workers
WINDOWS = 8  # windows a worker, or a far write: more share the work better, and cost more Python
FEW_LARGE_CELLS = 16  # large chunks, of which so few are fetched as they are decoded, without taking turns
# elements of each of many sub-chunks: so few are gathered in less time than a slice of each is copied
GATHERED_ELEMENTS = 512

# Key-value stores
WRITERS = 8  # threads for writes that sync; more of them only compete for the interpreter
# requests under way to a far server, or keys of a commit: memory against rounds of waiting
FAR_REQUESTS = 256
# threads that start a batch, and least requests to a server that refuses some: speed against load
FEWEST_REQUESTS = 4
# seconds of the quickest answer of a far server; a nearer one gains nothing from more requests
FAR_S = 0.004
# seconds of the last answer up to which the waiting thread makes the next request itself: it spares a hop
SOON_S = 0.025
# moments that such a thread waits for an answer at that pace: one hop less against receiving it twice
MOMENTS = 10
CONNECTION_KEPT_S = 15.0  # seconds: servers close idle connections, and a late request may meet a closing one
CONNECTIONS_KEPT = 128  # idle connections: files of the process against connecting again
# seconds that the addresses of a name are cached: repeated look-ups against missing a move
NAMES_KEPT_S = 10.0
SILENT_S = 30.0  # seconds for connecting, or for an answer of SFTP: slow lines against waiting for a dead host
SLOWEST_ANSWER = 1024  # bytes a second, averaged over an answer, below which a server counts as dead
SLOWEST_LINE = 32 * 1024  # bytes a second of one of several requests, below which a line counts as dead
# seconds after an answer that fills the system's buffers: more of it may still arrive
WIRE_REST_S = 0.01
CREDENTIAL_EARLY_S = 60.0  # seconds before credentials expire at which new ones are requested
# seconds before a refused request is signed anew: obstore renews credentials after a tenth of a second
CREDENTIAL_KEPT_S = 0.15
# seconds before the second and the third attempt after a refused connection: a starting server against a late error
REFUSED_PAUSES_S = (0.05, 0.2)
# seconds by which clocks of machines may differ: unknown outcomes against a write that takes effect twice
CLOCKS_DIFFER_S = 2.0

# Work in many pieces
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
# of the tasks under way after a store wanted fewer requests: room for others against a store that idles
FEWER = 0.7
# of the tasks under way that come on top for each round of them that ended well: soon full again against more refusals
MORE = 0.05
BEAT_S = 10.0  # seconds between two writes of a claim: requests against how soon its job is seen to be alive
# seconds after which a silent job elsewhere is over: waiting for it against ousting a slow one
LEASE_S = 6 * BEAT_S
