"""The numbers that tune virtual datasets, each with what it trades."""

KEYS_OF_A_PAGE = 4096  # of a listing that are made at once: columns of keys against memory
FINGERPRINT_ELEMENTS = 2**16  # at once: what is made of them stays in the cache of a processor
DATASET_ATTEMPTS = 50  # against other processes that write the document
