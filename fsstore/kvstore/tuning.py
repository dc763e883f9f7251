"""The numbers that tune key-value stores, each with what it trades."""

# Memory and local files
MEMORY_PAGE = 1000  # entries of a listing at a time: how much a reader that stops early has made in vain
# a slice this small is copied: a view is larger, and would keep the whole value alive
COPIED_SLICE_BYTES = 4096
LOCK_ATTEMPTS = 100  # against a neighbour that keeps removing the directory
FIRST_LOCK_SLEEP_S = 0.001  # before a lock that is held is tried again; it doubles
LONGEST_LOCK_SLEEP_S = 1.0  # where that doubling ends: how late a free lock is seen against work in vain
MERGED_RANGES_FROM = 64  # ranges of one key; fewer are read one by one, 8 of them in 19 µs instead of 53
# that are read between two ranges: copying them costs about as much as another read
LOCAL_GAP_BYTES = 8 * 1024
LOCAL_SPAN_BYTES = 32 * 1024 * 1024  # read as one: what is wanted of them keeps them all in memory
MAPPED_FROM_BYTES = 64 * 1024  # below this a mapping costs more than a read
LARGE_VALUE_BYTES = (
    4 * 1024 * 1024
)  # from which NumPy asks the system for large pages: fewer faults, rounded up
READ_CALL_BYTES = 0x7FFFF000  # that one call reads, which is what Linux reads at most
LOCAL_PAGE = 1000  # entries of a listing at a time, over which calls of the pool are spread
SPACE_FROM_BYTES = 64 * 1024  # of a file whose space is worth a thread's while
# of replaced files whose space is given back later: disk space against waiting for it
HELD_SPACE_BYTES = 64 * 1024 * 1024
HELD_SPACE_FILES = 64  # of them: each is an open file
STAGED_STEP_BYTES = 1024 * 1024  # of a value that the disk begins to take while the next are made
STAGED_CALL_BYTES = 64 * 1024 * 1024  # that are written at once; macOS refuses 2 GB
TAKEN_STEP_BYTES = 64 * 1024 * 1024  # that the kernel is asked to copy at once: how late Ctrl-C is heard
TAKEN_PIECE_BYTES = 1024 * 1024  # in memory where the kernel does not copy
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
COMMIT_ATTEMPTS = 1000  # at a key that others write, before the commit fails
COMMITTED_AT_ONCE = 256  # keys that are written together: requests in flight against memory

# Web servers and clouds
CONNECTION_KEPT_S = 15.0  # servers close idle connections after some time; one used that late may be closing
# that a connection is kept to see what it is that came unasked: bytes, or only the end
CONNECTION_DOUBT_S = 0.05
ROUTES_KEPT = 1000  # servers whose way is remembered
CONNECTIONS_KEPT = 128  # idle connections: files of the process against connecting again
NAMES_KEPT_S = 10.0  # that the addresses of a name are remembered: asking again against missing a move
STAGGER_S = 0.25  # that one address is tried before the next is too
CONNECT_S = 30.0  # that connecting may take: slow lines against waiting for a dead host
SLOWEST_ANSWER = 1024  # bytes a second, on the average of an answer, below which a server is taken for dead
SLOWEST_LINE = 32 * 1024  # bytes a second of one of several requests, below which a line is taken for dead
# of a head, and of small values that come with it; larger ones get memory of their own
WIRE_SCRATCH_BYTES = 64 * 1024
# after an answer that fills the buffers of a system: what is sent behind it may still be on its way
WIRE_REST_S = 0.01
CREDENTIAL_EARLY_S = 60.0  # before they expire, new credentials are asked for
CREDENTIAL_PULSE_S = 1.0  # how long obstore is told that credentials are good, so that it asks again soon
CREDENTIAL_KEPT_S = 0.15  # for a tenth of a second it does not ask again, whatever it was told
# of what was refused as expired: on a busy machine obstore may have begun to ask before, and keep what it got then
CREDENTIAL_REPEATS = 3
LOGIN_SILENT_S = 30.0  # that a server of SFTP may be silent
LOGIN_PART_BYTES = 1 << 16  # that are received at once: calls against memory
MEMORY_FILE_ATTEMPTS = 100  # at a dictionary that others change
FEW_BEGINNERS = 4  # threads that begin a batch; more come where a server is not so near that few are enough
NEAR_S = 0.002  # that a near server takes for a few answers
REQUESTS = 32  # under way at once, as in TensorStore: speed far away against the load on a server
# under way at once where a server is far and answers are small: connections and threads against rounds of waiting
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
DELETED_AT_ONCE = 1000  # keys of a request to delete or write: S3's limit for one
ANSWER_PART_BYTES = 1 << 20  # that are read at once: calls against memory
ENGINES_KEPT = 32  # engines, with their connections, used last
# before the second and the third try of a connection that is refused: a server that starts against an error
# that comes late
REFUSED_PAUSES_S = (0.05, 0.2)
# the second that storages round times to, and what clocks of machines may differ by: outcomes that are called
# unknown, against a write that takes effect twice
CLOCKS_DIFFER_S = 2.0

# Archives and shards
# kept by a store in whose context nothing is cached: memory against unpacking again
UNPACKED_KEPT_BYTES = 64 << 20
UNPACKED_HEAD_BYTES = 1 << 18  # of a value whose beginning alone is unpacked, as detection asks for it
# a stored member up to this size is read whole rather than asked where its data start
SMALL_MEMBER_BYTES = 64 * 1024
ZIP_PAGE = 1000  # entries of a listing at a time
# that are unpacked on the thread that asks, which is sooner than waking another
INLINE_UNPACK_BYTES = 64 * 1024
CHANGED_ARCHIVE_ATTEMPTS = 8  # at an archive that changes while it is read
REWRITE_ATTEMPTS = 10_000  # at a file that others write: one of them gets on each time
ARCHIVE_PORTION_BYTES = 8 << 20  # of the old archive that are read at once: requests against memory
CHANGED_SHARD_ATTEMPTS = 100  # at a shard that others write while it is read
MINISHARDS_KEPT_BYTES = 64 << 20  # of indexes: memory against reading them again
SHARD_INDEX_BLOCK = 16384  # entries that are read together: 256 KiB
SHARD_INDEX_BLOCKS = 64  # of them that are kept

# OCDBT and Icechunk
# of nodes, by a store in whose context nothing is cached: memory against reading them again
NODES_KEPT_BYTES = 16 * 1024 * 1024
MANIFESTS_KEPT = 128  # of a numbered database; older ones are deleted, and a slow reader may miss them
TREE_PAGE = 8192  # entries of a listing at a time
COMPARED_KEY_BYTES = 4 * 1024 * 1024  # of keys that are compared at a time: calls of NumPy against memory
COLUMN_LETTERS = 64  # of keys that are compared letter by letter, as columns; longer ones one by one
SHORT_COLUMN = 24  # numbers; fewer are packed sooner one by one than by NumPy
# of a data file, from which on values begin at pages: space against reads of whole pages
PADDED_FROM_BYTES = 4 * 1024 * 1024
MANIFEST_ATTEMPTS = 100  # at manifests that are deleted while they are listed
COMPACTED_BYTES = 32 * 1024 * 1024  # of values that are moved together: requests against memory
TREE_WINDOW_BYTES = 32 * 1024 * 1024  # of nodes that are written together
TREE_WINDOW_NODES = 64  # of them: requests in flight against memory
VERIFIED_AT_ONCE = 64  # nodes or values: requests in flight against memory
# of snapshots and manifests, by a repository in whose context nothing is cached
SNAPSHOTS_KEPT_BYTES = 64 * 1024 * 1024
TRUSTED_S = 1.0  # how long a far file is taken for what it was: requests against seeing a change late

# Reference sets
PARSED_LEAST_BYTES = 1024  # of members that are worth a call of the parser
# references that are checked, made or listed together: calls of NumPy against memory
REFERENCES_AT_ONCE = 4096
URL_LOOK_AHEAD = 4  # times the text that may be looked at to find URLs that are equal in a row
LEAST_WINDOW_BYTES = 1 << 13  # of text that is looked at as columns; it grows where that goes well
MOST_WINDOW_BYTES = 1 << 20  # where that growth ends: memory
FEW_MEMBERS = 64  # that are parsed one by one before columns are tried again
MANY_MEMBERS = 4096  # where that patience ends
PARSED_BYTES = 1 << 16  # given to a parser at a time
LOADED_PIECE_BYTES = 4 * 2**20  # of a document that are read at a time: requests against memory
PARQUET_FILES_AT_ONCE = 32  # that are loaded together: requests in flight against memory
SET_ATTEMPTS = 50  # against other processes that write the set
PARQUET_KEPT_BYTES = 64 * 2**20  # of files that are kept: memory against reading them again
DICTIONARY_FROM = 10  # references to each URL from which on the URLs are written as a dictionary
PARQUET_WRITES = 64  # files that are in memory at once while a set is saved
DENSE_PLACES = 1.5  # places of a grid for each reference; where there are more, rows have an index
ROWS_AT_ONCE = 16384  # references that are sorted, read or listed together: calls of NumPy against memory
FAMILY_FROM = 32  # keys that are worth a family of their own, whose grid takes memory
FEW_KEYS = 8  # keys that are looked up one by one, which is quicker than as columns then
PLACES_KEPT = 65536  # URLs whose place is remembered
TARGETS_AT_ONCE = 64  # that are asked for: requests in flight against the load on their server

# Scanned files
FORMAT_HEAD_BYTES = 8192  # that tell the format of a file: one request for most
MADE_AT_ONCE = 64  # chunks that no range says, which are made together: memory
# a chunk of a long run has at most: requests against what a small read fetches in vain
RUN_CHUNK_BYTES = 4 * 2**20
# of a variable that is shown although the file ends before it: what is there against listing keys for minutes
CUT_OFF_CHUNKS = 2**20
CHANGED_FILE_ATTEMPTS = 8  # at a file that changes while it is read
SCAN_BLOCK_BYTES = 16 * 1024  # that a scan reads at a time: requests against bytes that it does not need
SCAN_HEAD_BYTES = 64 * 1024  # that the first request of a scan brings, where most formats begin
SCAN_KEPT_BYTES = 32 * 2**20  # of blocks that a scan holds: memory against reading them again
PAST_CACHE_BYTES = 2**20  # that do not go through the cache if they can be read at once
CACHED_SPAN_BYTES = 64 * 2**20  # of one span that goes through the cache
GRIB_STEP_BYTES = 256 * 1024  # that are searched for the next message at a time
GRIB_HEAD_BYTES = 1024  # of a message that its sections fit into, mostly
HEAP_AHEAD_BYTES = 4096  # of a collection, unless a value needs more
HEADER_AHEAD_BYTES = 512  # that a header usually does not exceed: a second request against bytes in vain
LINKS_AHEAD_BYTES = 328  # of eight links, as most files are made
OBJECT_AHEAD_BYTES = 2048  # of an object header that are fetched with the links to it
LONG_TEXT_BYTES = 2**20  # of a string from which on it is looked up, which takes requests, instead of read
LINKED_AT_ONCE = 32  # files or sources that are opened together: requests in flight against memory
LINKED_FILES_KEPT = 64  # open files; the blocks of each may take some megabytes
LINKED_DATASETS_KEPT = 4096  # whose description is kept
DIRECTORIES_AHEAD = 32  # that are fetched with one, where they seem to lie in steps
DIRECTORY_BYTES = 512  # of a directory that is fetched ahead
TIFF_PEEK_BYTES = 4096  # of the data of an image, which tell whether they have a header of JFIF
