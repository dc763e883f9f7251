"""The numbers that tune reading and writing, each with its trade.

Measured on two cores: waking a thread takes 0.1 ms, in which zstd decodes `HOP_BYTES`.
"""

HOP_BYTES = 128 * 1024  # that zstd decodes while a thread is woken: the price of handing anything over
# of a request to memory, as bytes that zstd decodes meanwhile: two cores would encode it sooner, and wake later
INLINE_EFFORT_BYTES = 512 * 1024
# bytes read from the page cache while zstd decodes one: the weight of reading beside decoding
COPIED_PER_DECODED = 5
DISK_WORKERS = 4  # waiting for the disk is part of a write, so more workers than two cores
TURN_S = 0.005  # that a worker waits for its turn to fetch before it fetches beside the others
# that small writes wait for the next one unless a caller asks for them: larger batches against how soon they are stored
SMALL_GATHER_S = 0.01

# Memory of requests
# of a request in memory beside its result: with what is freed and not given back, a third more, it makes 64 MB
WINDOW_BYTES = 40 * 1024 * 1024
# reads and writes that touch more are made by themselves, in windows: waiting for others costs memory and gains nothing
JOINT_BYTES = 64 * 1024 * 1024
# fetched together where requests are dear or nothing is decoded, against memory
FETCH_BYTES = 32 * 1024 * 1024
# of a shard that is read at once over a store that waits: fewer requests against memory
FAR_SHARD_BYTES = 32 * 1024 * 1024
# of one kind of work under way: windows that decode slowly, shards read by all threads, small writes that wait
HELD_BYTES = 16 * 1024 * 1024
# of chunks changed together, of parts of a far shard, of a write in one window, of chunks kept for the next write
BATCH_BYTES = 8 * 1024 * 1024
INLINE_READ_BYTES = 4 * 1024 * 1024  # read on the thread that asks: as long as waking the workers a few times
# of a shard that is read at once over a store that never waits, where parts cost little
NEAR_SHARD_BYTES = 4 * 1024 * 1024
FAR_WINDOW_BYTES = 4 * 1024 * 1024  # far stores answer many small windows sooner than a few large ones
# of a stored shard that are read at once while it is rewritten: reads against memory
STORED_BLOCK_BYTES = 2 * 1024 * 1024
# of a window of a store that never waits: it is still in the processor's cache when it is decoded
NEAR_WINDOW_BYTES = 1024 * 1024
# that a request spares if it reads parts of raw chunks: planning in parts takes as long as to copy these
PARTS_FROM_BYTES = 128 * 1024
# of a raw chunk that are spared if a part of it is read near by: the read of each part costs as much
NEAR_PART_BYTES = 8 * 1024
SPAN_SHARE = 0.8  # of a chunk: decoding more takes as long as all of it, by the ways there are for all

# Numbers of chunks
# of a window: planning a window costs the same for few, and more would hold up the workers
WINDOW_CELLS = 512
# whose files a worker has synced together: syncs against how long the first waits for the last
WRITE_WINDOW_CELLS = 64
WINDOWS = 8  # a worker, or a far write: more share the work better, and cost more Python
FEW_CELLS = 32  # columns for fewer cells cost more than the cells
FEW_LARGE_CELLS = 16  # of so many cells, which are large, fetching is reading, and needs no turns
# decoded together, that are copied as boxes; to find the boxes of fewer takes as long as copying them
FEW_BOXES = 8
# of each of many small sub-chunks: so few are gathered in less time than a slice of each is copied
GATHERED_ELEMENTS = 512
# that a write names; 4,096 take half a millisecond, and writes of more stand for every chunk
LISTED_CHUNKS = 1 << 18
QUEUE_LIMIT = 4096  # reads; when so many wait they are made unasked, because each holds a plan

# Attempts
