"""The numbers that tune jobs, each with what it trades."""

TASK_KEYS = 256  # of a task that copies keys: handing it over against doing it again after a kill
COPY_TASK_BYTES = 128 * 1024 * 1024  # of a task: seconds of work, and little to do again after a kill
# of a task that only reads, and leaves nothing behind when it is killed
VERIFY_TASK_BYTES = 256 * 1024 * 1024
KEYS_ASKED = 1000  # whose size is asked together: a page of a listing
COPIED_COPIES = 2  # of each chunk that is read or written, when memory is shared out: encoded and decoded
MEMORY_OF_TASKS = (
    0.75  # of what a job may take: the rest is what threads keep of memory that was freed, to use again
)
VERIFIED_COPIES = 4  # of a box that are in memory: both arrays, and what comparing them takes
READS_BEFORE_STAGING = 2.0  # times that a chunk may be read before copying by way of a staged file is cheaper
MAPPED_FROM_BYTES = 1 << 20  # of a file that is mapped; a smaller one is read sooner than it is mapped
UNPACKED_BYTES = 64 << 20  # that are unpacked at once: memory against passes over the file
REPAIR_ROUNDS = 100  # of repairs, each of as many findings as are reported
PARTS_TOGETHER = 64  # of a box that are read together: of many small ones more would only take memory
