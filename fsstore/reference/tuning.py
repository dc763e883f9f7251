"""The numbers that tune reference, each with its unit and what it trades."""

PARSED_LEAST_BYTES = 1024  # of members that are worth a call of the parser
URL_LOOK_AHEAD = 4  # times the text that may be looked at to find URLs that are equal in a row
LEAST_WINDOW_BYTES = 1 << 13  # of text that is looked at as columns; it grows where that goes well
MOST_WINDOW_BYTES = 1 << 20  # where that growth ends: memory
FEW_MEMBERS = 64  # that are parsed one by one before columns are tried again
MANY_MEMBERS = 4096  # where that patience ends
PARSED_BYTES = 1 << 16  # given to a parser at a time
LOADED_PIECE_BYTES = 4 * 2**20  # of a document that are read at a time: requests against memory
FILES_AT_ONCE = 64  # of a parquet set, or targets, under way together: requests in flight against memory
PARQUET_KEPT_BYTES = 64 * 2**20  # of files that are kept: memory against reading them again
DICTIONARY_FROM = 10  # references to each URL from which on the URLs are written as a dictionary
DENSE_PLACES = 1.5  # places of a grid for each reference; where there are more, rows have an index
# references that are made, sorted, read or listed together: calls of NumPy against memory
ROWS_AT_ONCE = 16384
FAMILY_FROM = 32  # keys that are worth a family of their own, whose grid takes memory
FEW_KEYS = 8  # keys that are looked up one by one, which is quicker than as columns then
PLACES_KEPT = 65536  # URLs whose place is remembered
