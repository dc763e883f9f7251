"""The numbers that tune array drivers, each with its trade."""

DOWNSAMPLED_ELEMENTS = 1 << 22  # of two pieces at once: one is reduced while the next is read
# at once: what passes over them again and again should find them in the cache of the core
REDUCED_ELEMENTS = 1 << 18
KEYS_AT_ONCE = 1024  # of chunks that are asked for or deleted together: requests against memory
LISTED_FOR_ONE = 16  # entries of a listing that cost what asking for a key does
# chunks; of more those that are stored are found in a listing, which is shorter than asking for each
LISTED_FROM = 100_000
