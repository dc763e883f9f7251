"""The numbers that tune jobs, each with what it trades."""

# keys of a piece of a job, of which a task takes as many as fill its time: short notes of what is finished, against a
# slow store on which a piece alone takes long
PIECE_KEYS = 256
MEMORY_OF_TASKS = 0.65  # of what a job may take: threads keep the rest, memory that was freed, to use again
READS_BEFORE_STAGING = 2.0  # times that a chunk may be read before copying by way of a staged file is cheaper
