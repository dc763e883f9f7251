"""The numbers that tune combining files, each with what it trades."""

KEYS_OF_A_PAGE = 4096  # of a listing that are made at once: columns of keys against memory
FINGERPRINT_ELEMENTS = 2**16  # that are hashed at once: intermediate results stay in the cache of a processor
# files whose size is asked together: requests in flight against the load on their server
CHECKED_AT_ONCE = 64
DOCUMENT_HEAD_BYTES = 256  # that tell whether a place holds a virtual dataset: one small request
# places of a grid for each chunk, up to which a column for all places is smaller than an index
DENSE_PLACES = 1.5
FINGERPRINT_BYTES = 4 * 2**20  # of chunks that a fingerprint reads at once: requests against memory
FINGERPRINT_CHUNKS = 64  # of such a group at most, where chunks are small
SCAN_ATTEMPTS = 3  # at a file whose worker dies, before it counts as failed
FIRST_TASK_FILES = 8  # files of the first tasks, which tell how long a file takes
TASK_S = 2.0  # what a task is to take: handing it over costs milliseconds, and a killed one is done again
TASK_FILES = 2000  # of a task at most: what it found is sent back as one piece
FINGERPRINT_READERS = 4  # files of which fingerprints are made at once: threads against what each holds
SCANS_AT_ONCE = 16  # files of a store that waits that are scanned together: requests in flight against memory
PAST_BLOCKS_BYTES = 2**20  # of chunks that are read past the blocks of the scan, which they would drive out
# of a variable that is compared, up to which its values are kept; of a larger one a fingerprint is
VALUES_KEPT_BYTES = 64 * 1024
FORMAT_HEAD_BYTES = 8192  # that tell the format of a file: one request for most
# packed parts of a scan that a task makes one, and at most so many are unpacked where the scan was called for
MERGED_PARTS = 16
# packed parts that are sent to be merged, some three million references: a message against work of the driver
MERGED_BYTES = 8 * 2**20
PACKING_LEVEL = 1  # of zlib: higher ones take longer than pickling does, for a tenth fewer bytes
PACKED_BYTES = 2**33  # of a batch that is unpacked, before it is taken for damaged
