"""The numbers that tune scan, each with its unit and what it trades."""

TRUSTED_S = 1.0  # how long a far file is taken for what it was: requests against seeing a change late
ROWS_AT_ONCE = 16384  # references that are sorted, read or listed together: calls of NumPy against memory
FEW_KEYS = 8  # keys that are looked up one by one, which is quicker than as columns then
FORMAT_HEAD_BYTES = 8192  # that tell the format of a file: one request for most
MADE_AT_ONCE = 64  # chunks that no range says, which are made together: memory
# a chunk of a long run has at most: requests against what a small read fetches in vain
RUN_CHUNK_BYTES = 4 * 2**20
# of a variable that is shown although the file ends before it: what is there against listing keys for minutes
CUT_OFF_CHUNKS = 2**20
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
