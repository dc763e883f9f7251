"""The numbers that tune key-value stores, each with what it trades."""

# Memory and local files
# entries of a listing, or keys of one request (S3's limit): requests against what a reader that stops early leaves
PAGE = 1000
# a slice this small is copied: a view is larger, and would keep the whole value alive
COPIED_SLICE_BYTES = 4096
ATTEMPTS = 100  # at a directory that others remove, or a dictionary that others change
FIRST_LOCK_SLEEP_S = 0.001  # before a lock that is held is tried again; it doubles
LONGEST_LOCK_SLEEP_S = 1.0  # where that doubling ends: how late a free lock is seen against work in vain
MERGED_RANGES_FROM = 64  # ranges of one key; fewer are read one by one, 8 of them in 19 µs instead of 53
# that are read between two ranges: copying them costs about as much as another read
LOCAL_GAP_BYTES = 8 * 1024
LOCAL_SPAN_BYTES = 32 * 1024 * 1024  # read as one: what is wanted of them keeps them all in memory
SMALL_BYTES = 64 * 1024  # of a value: below this another mapping, thread or request costs more than the bytes
LARGE_VALUE_BYTES = (
    4 * 1024 * 1024
)  # from which NumPy asks the system for large pages: fewer faults, rounded up
READ_CALL_BYTES = 0x7FFFF000  # that one call reads, which is what Linux reads at most
# of replaced files whose space is given back later: disk space against waiting for it
HELD_SPACE_BYTES = 64 * 1024 * 1024
HELD_SPACE_FILES = 64  # of them: each is an open file
PIECE_BYTES = 1 << 20  # of a value that are read, copied or written on at a time: calls against memory
# that one call of the system writes or copies: how late Ctrl-C is heard; macOS refuses 2 GB
CALL_BYTES = 64 << 20
# and, with `SYNCED_FILES`, small files under way: more gain nothing where the disk has a journal, and ext4
# without one looks at every number that was given back in the last minutes (200 writes with 128 under way
# took 1.4 times as long as with 32)
SYNC_THREADS = 4
SYNCED_FILES = 8  # that a thread syncs together: each is open, and a lock that others wait for
SYNCED_BYTES = 8 * 1024 * 1024  # of such a group, so that the disk has something to do meanwhile
LARGE_FILE_BYTES = 1024 * 1024  # of a file that a thread is worth
LARGE_FILES = 12  # that are synced at once, beside those that are made: four take 1.05 to 1.12 of the time
FEW_FILES = 16  # of a batch that are published by one thread or another, each by itself
PUBLISHERS = 3  # of few files, beside their makers; one alone loses 0.03

# Stores as users hold them, and transactions
WRITERS = 8  # threads for writes that sync; more of them only fight for the interpreter
QUEUED_TOGETHER = 64  # writes of a batch: what finished early should not wait long for the others

# Web servers and clouds
CONNECTION_KEPT_S = 15.0  # servers close idle connections after some time; one used that late may be closing
# that a connection is kept to see what it is that came unasked: bytes, or only the end
CONNECTION_DOUBT_S = 0.05
ROUTES_KEPT = 1000  # servers whose way is remembered
CONNECTIONS_KEPT = 128  # idle connections: files of the process against connecting again
NAMES_KEPT_S = 10.0  # that the addresses of a name are remembered: asking again against missing a move
STAGGER_S = 0.25  # that one address is tried before the next is too
SILENT_S = 30.0  # that connecting or an answer of SFTP may take: slow lines against waiting for a dead host
SLOWEST_ANSWER = 1024  # bytes a second, on the average of an answer, below which a server is taken for dead
SLOWEST_LINE = 32 * 1024  # bytes a second of one of several requests, below which a line is taken for dead
# after an answer that fills the buffers of a system: what is sent behind it may still be on its way
WIRE_REST_S = 0.01
# that a value may inflate to whatever was sent: memory against small answers that hold zeros
UNASKED_CODING_BYTES = 64 << 20
UNASKED_CODING_RATIO = 100  # times what was sent: text seldom passes 50, zeros reach 1,000
CREDENTIAL_EARLY_S = 60.0  # before they expire, new credentials are asked for
CREDENTIAL_PULSE_S = 1.0  # how long obstore is told that credentials are good, so that it asks again soon
CREDENTIAL_KEPT_S = 0.15  # for a tenth of a second it does not ask again, whatever it was told
# of what was refused as expired: on a busy machine obstore may have begun to ask before, and keep what it got then
CREDENTIAL_REPEATS = 3
FEW_BEGINNERS = 4  # threads that begin a batch; more come where a server is not so near that few are enough
NEAR_S = 0.002  # that a near server takes for a few answers
REQUESTS = 32  # under way at once, as in TensorStore: speed far away against the load on a server
# under way at once where a server is far, or keys of a commit: memory against rounds of waiting
FAR_REQUESTS = 256
FAR_S = 0.004  # that the quickest answer of a far server takes: requests to a near one gain nothing
# that the last answer took, below which the thread that waits for the next asks for it itself: a step between
# threads less, where that counts
SOON_S = 0.025
# that it gives that answer, since Ctrl-C is heard only then: asking twice where it comes later
MOMENT_S = 0.1
# that it gives an answer from a web server which is under way, if as large a share of it has come after one: a thread
# that hears of nothing but Ctrl-C against receiving some of a value twice
MOMENTS = 10
FEWEST_REQUESTS = 4  # under way at once to a server that wants fewer: speed against being refused again
# of the answers that are under way beside more than the usual requests: memory against rounds of waiting
REQUESTS_FLIGHT_BYTES = 32 * 2**20
ENGINES_KEPT = 32  # engines, with their connections, used last
# before the second and the third try of a connection that is refused: a server that starts against an error
# that comes late
REFUSED_PAUSES_S = (0.05, 0.2)
# the second that storages round times to, and what clocks of machines may differ by: outcomes that are called
# unknown, against a write that takes effect twice
CLOCKS_DIFFER_S = 2.0

# Archives
KEPT_BYTES = 64 << 20  # kept by a store in whose context nothing is cached: memory against reading again
UNPACKED_HEAD_BYTES = 1 << 18  # of a value whose beginning alone is unpacked, as detection asks for it
ARCHIVE_PORTION_BYTES = 8 << 20  # of the old archive that are read at once: requests against memory
