"""The numbers that tune reading and writing, each with what it trades."""

# Planning (`chunk.plan`)
# of a line of the processor's cache, at which large arrays begin: this much memory for whole copies
CACHE_LINE_BYTES = 64
# of an array that begins at such a line; aligning a smaller one costs more than it gains
ALIGNED_FROM_BYTES = 1 << 20
# decoded together, that are copied as boxes; to find the boxes of fewer takes as long as copying them
BOXED_CELLS = 8
# planned as boxes, each with a view of where it goes; of more, the placement of a run of cells is sooner made
FEW_BOXES = 8
FEW_CELLS = 32  # columns for fewer cells cost more than the cells
# cells of batches of few; more at once are quicker, but between large chunks, which fill the caches, they take longer
CELLS_MADE_TOGETHER = 128
# of a request in memory beside its result: with what is freed and not given back, a third more, it makes 64 MB
WINDOW_BYTES = 40 * 1024 * 1024
# reads and writes that touch more are made by themselves, in windows: waiting for others costs memory and gains nothing
JOINT_BYTES = 64 * 1024 * 1024
# boxes along a dimension that are looked at one by one; columns of them take longer for fewer
SUMMED_BOXES = 256
# that a box of a copy grows by one by one; trying all remainders finds better boxes, and takes longer for many
CHUNKS_ADDED_ALONE = 16
# of a sub-chunk that is worth a worker: waking one takes as long as copying this much
SHARED_ENTRY_BYTES = 1 << 18
SHARD_READ_ATTEMPTS = 20  # at a shard that is rewritten while it is read, before the read fails
ENTRY_COLUMNS_FROM = 24  # entries of shards; fewer are answered one by one in less time
# from this share of a shard's entries on, one read of all of it is cheaper than reading them apart
WHOLE_SHARD_SHARE = 0.5

# Reading (`chunk.read`)
KEPT_CHUNK_BYTES = 256  # that a chunk in the cache is said to take beside its elements
# decoded, of chunks that are fetched together for a read queue: fewer requests against memory
QUEUE_FETCH_BYTES = 32 * 1024 * 1024
QUEUE_LIMIT = 4096  # reads; when so many wait they are made unasked, because each holds a plan
BOX_COLUMNS_FROM = 8  # boxes; fewer are planned one by one, which takes as long
# of a chunk that is worth a worker of its own; smaller ones are decoded many at a time
LARGE_CHUNK_BYTES = 256 * 1024
# of a shard that is read at once over a store that waits: fewer requests against memory
FAR_SHARD_BYTES = 32 * 1024 * 1024
# of a chunk whose bytes are its elements, that are spared if a part of it is read: the read of each part costs as much
NEAR_PART_BYTES = 8 * 1024
# the same where the store waits: a request for each part instead of one for many chunks
FAR_PART_BYTES = 256 * 1024
# that a request spares so: planning it in parts takes as long as to copy these
PARTS_FROM_BYTES = 128 * 1024
# of a shard that is read at once over a store that never waits, where parts cost little
NEAR_SHARD_BYTES = 4 * 1024 * 1024
NEAR_SHARDS_BYTES = 16 * 1024 * 1024  # of the shards that all threads read at once over such a store
# of a window: planning a window costs the same for few, and more would hold up the workers
READ_WINDOW_CELLS = 512
# of each of many small sub-chunks: so few are gathered in less time than a slice of each is copied
GATHERED_ELEMENTS = 512
# of a window of a store that never waits: it is still in the processor's cache when it is decoded
NEAR_WINDOW_BYTES = 1024 * 1024
# windows a worker where decoding takes long: more share the work better, and cost more Python
SLOW_WINDOWS = 8
SLOW_WINDOW_BYTES = 16 * 1024 * 1024  # of such a window at most: its Python costs more than cold caches do
TOGETHER_BYTES = 128 * 1024  # larger chunks, decoded as fast as zstd or faster, are windows of their own
TURN_S = 0.005  # that a worker waits for its turn to fetch before it fetches beside the others
FEW_LARGE_CELLS = 16  # of so many cells, which are large, fetching is reading, and needs no turns
INLINE_READ_BYTES = 4 * 1024 * 1024  # read on the thread that asks: as long as waking the workers a few times
THREAD_WORTH_BYTES = 448 * 1024  # of zstd: decoding takes 0.4 ms, of which waking a worker takes 0.1
COPIED_IN_FLIGHT_BYTES = 32 * 1024 * 1024  # of what is only copied: more in flight fills the line, and memory
FAR_WINDOW_BYTES = 4 * 1024 * 1024  # far stores answer many small windows sooner than a few large ones
# of a window that the event loop may copy itself; copying more would hold up other requests
LOOP_COPY_BYTES = 2 * 1024 * 1024
# of zstd, that the event loop decodes itself: other requests wait as long as a worker takes to wake up
LOOP_DECODE_BYTES = 128 * 1024
WINDOW_COST_BYTES = 256 * 1024  # bytes that weigh as much as the tasks and requests of a window
# of the parts in which a large shard is fetched far away: overlap with decoding against requests
FAR_SHARD_PART_BYTES = 8 * 1024 * 1024
SPAN_SHARE = 0.8  # of a chunk: decoding more takes as long as all of it, by the ways there are for all
# of zstd, to decode a chunk: less takes no longer than the Python around it, for which threads wait for each other
SHARED_CHUNK_BYTES = 64 * 1024
# bytes read from the page cache while zstd decodes one: how much reading counts beside decoding
COPIED_PER_DECODED = 5

# Writing (`chunk.write`)
# of a shard that is made in one piece: all of it is touched, whatever is needed of it
SHARD_AT_ONCE_BYTES = 32 << 20
# of an encoding whose parts are joined when all are there: memory for them twice against clearing it for all of a chunk
JOINED_BYTES = 4 << 20
# that a write names; 4,096 take half a millisecond, and writes of more stand for every chunk
LISTED_CHUNKS = 1 << 18
RECENT_BYTES = 8 << 20  # elements and encodings of a process: memory against decoding what was just encoded
LARGEST_RECENT_BYTES = RECENT_BYTES // 2  # of a chunk that is kept: a larger one would drive out all others
# of a chunk that is kept: zstd decodes it in eight times as long as it takes to be kept and found
SMALLEST_RECENT_BYTES = 32 << 10
RECENT_TAIL_BYTES = 16  # by which an encoding is looked for: they are compressed, or a checksum
# whose files a worker has synced together: syncs against how long the first waits for the last
WRITE_WINDOW_CELLS = 64
INLINE_WRITE_BYTES = 256 * 1024  # of a request that is encoded sooner than a thread is woken
# of a request to memory, as bytes that zstd decodes meanwhile: two cores would encode it sooner, and wake later
INLINE_EFFORT_BYTES = 512 * 1024
FAR_WRITE_BYTES = 4 * 1024 * 1024  # far stores take many small windows sooner than a few large ones
# of a request to a far store: encoding some while others are sent, against steps between threads
FAR_WRITE_WINDOWS = 8
# blocks of a stored shard, and what is written at once: what a write in part weighs in memory
STORED_SHARD_BYTES = 12 * 1024 * 1024
DISK_WORKERS = 4  # waiting for the disk is part of a write, so more workers than two cores
WRITE_WINDOWS = 32  # of a request that can be cut into so many: even shares against what each window costs
# of a request that is one window: cutting it would cost more than a second worker gains
ONE_WINDOW_BYTES = 8 * 1024 * 1024
SMALL_BATCH_CHUNKS = 512  # of a batch of small writes, whose first waits for its last
# of the chunks that small writes change at once, which are in memory together
SMALL_BATCH_BYTES = 8 * 1024 * 1024
# of small writes that wait; a caller that begins more helps to make them
SMALL_WAITING_BYTES = 16 * 1024 * 1024
# that small writes wait for the next one unless somebody asks for them: larger batches against how soon they are stored
SMALL_GATHER_S = 0.01
SMALL_GATHER_TURNS = 10  # that they wait so, at most
SMALL_WRITE_BYTES = 4096  # that a small write is taken to hold beside its values
# of a stored shard that are read at once while it is rewritten: reads against memory
STORED_BLOCK_BYTES = 2 * 1024 * 1024
# that zstd decodes as soon as a chunk is encoded that is worth a worker: of less, most is Python
SHARED_WRITE_BYTES = 2 * 1024
STORED_BLOCKS_KEPT = 4  # blocks of a stored shard: threads that encode are ahead of each other
# large writes that are made together; the changes of all are planned at once, which takes memory
GATHERED_WRITES = 512
GATHERED_CHUNKS = 64  # of one of them: planning more again costs less than the memory for all
LATE_BYTES = 1024 * 1024  # of a chunk that is encoded while it is written; smaller ones lose 0.04 by it
LATE_CHUNKS = 16  # smaller ones that are encoded while others are written; 64 take 1.15 of the time so
WRITE_ATTEMPTS = 10_000  # at a chunk that others write: one of them gets on each time
