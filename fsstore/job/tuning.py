"""The numbers that tune jobs, each with what it trades."""

# of a piece of a job that copies keys, of which a task takes as many as fill its time: short notes of what is finished,
# against a slow store on which a piece alone takes long
PIECE_KEYS = 256
PIECE_BYTES = 16 * 1024 * 1024  # of a piece that copies keys, for the same reason
KEYS_ASKED = 1000  # whose size is asked together: a page of a listing
COPIED_COPIES = 2  # of each chunk that is read or written, when memory is shared out: encoded and decoded
MEMORY_OF_TASKS = 0.65  # of what a job may take: threads keep the rest, memory that was freed, to use again
VERIFIED_COPIES = 4  # of a box that are in memory: both arrays, and what comparing them takes
READS_BEFORE_STAGING = 2.0  # times that a chunk may be read before copying by way of a staged file is cheaper
MAPPED_FROM_BYTES = 1 << 20  # of a file that is mapped; a smaller one is read sooner than it is mapped
UNPACKED_BYTES = 64 << 20  # that are unpacked at once: memory against passes over the file
REPAIR_ROUNDS = 100  # of repairs, each of as many findings as are reported
PARTS_TOGETHER = 64  # of a box that are read together: of many small ones more would only take memory
MOVED_AT_ONCE = 64  # values under way while a tree is moved: requests in flight against memory
MANY_CHUNKS = 1 << 16  # of a checked box: so many that a request each for their shards is cheap
