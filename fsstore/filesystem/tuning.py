"""The numbers that tune the filesystems, each with its unit and what it trades."""

THREAD_HOP_S = 0.0002  # seconds that handing an operation to a thread takes, measured on a common machine
PAGE = 1000  # entries of a listing at a time: calls against what a reader that stops early has made in vain
TRUSTED_S = 1.0  # seconds for which a far array is taken as unchanged: requests against seeing a change late
SMALL_DOCUMENT_BYTES = 2**20  # of JSON, up to which a dictionary of references is made sooner than columns
