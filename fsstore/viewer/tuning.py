"""The numbers that tune the viewer, each with what it trades."""

# of a coordinate that are sent; of longer ones every n-th: what is labelled against the size of the answer
AXIS_VALUES = 4096
MAPPED_CHUNKS = 1024  # chunks of one map; each may cost a request
LEVELS = 32  # that are offered; images have about ten
PICTURE_PIXELS = 2048  # along one side of a picture: sharpness against memory and packing
SERIES_POINTS = 4096  # of a series: more than a screen has pixels
TABLE_ROWS = 64  # of a table of texts that is shown
TABLE_COLUMNS = 32  # of such a table
READS_AT_ONCE = 4  # questions that read; the others wait, so that memory stays bounded
KEPT_OPEN = 64  # arrays that stay open: opening again against what each holds
