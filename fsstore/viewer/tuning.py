"""The numbers that tune the viewer."""

# values of a series or a coordinate that are sent, and twice the pixels of a picture's side: more than a screen shows
POINTS = 4096
MAPPED_CHUNKS = 1024  # chunks of one map; each may cost a request
READS_AT_ONCE = 4  # questions that read; the others wait, so that memory stays bounded
