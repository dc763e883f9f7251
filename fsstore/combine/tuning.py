"""The numbers that tune combining files."""

from fsstore.runtime.tuning import CACHE_BYTES

FINGERPRINT_ELEMENTS = CACHE_BYTES // 4  # elements hashed at once: intermediate results stay in the cache
TASK_FILES = 2000  # files of a task at most: its findings are sent back as one message
FINGERPRINT_READERS = 4  # files whose fingerprints are made at once: threads against what each holds
# packed parts of a scan merged by one task, or unpacked by the caller: tasks against memory
MERGED_PARTS = 16
