"""The numbers that tune array drivers."""

# elements of two pieces at once: one is reduced, a sixteenth at a time in the core's cache, while the next is read
DOWNSAMPLED_ELEMENTS = 1 << 22
LISTED_FOR_ONE = 16  # entries of a listing that cost as much as asking for one key
