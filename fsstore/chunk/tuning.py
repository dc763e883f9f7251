"""The numbers that tune reading and writing chunks."""

from fsstore.runtime.tuning import FLIGHT_BYTES, GAP_BYTES, HOP_BYTES

# bytes that are read by the thread that asks: decoding them takes as long as waking the workers a few times
INLINE_READ_BYTES = 32 * HOP_BYTES
# bytes of a write to memory, counted as decoding: two cores would encode them sooner, and wake later
INLINE_EFFORT_BYTES = 4 * HOP_BYTES
# seconds that a small write waits for the next one unless its result is asked for: larger batches against a late start
SMALL_GATHER_S = 0.01
# bytes of a request in memory beside its result: freed memory that is not given back makes it a third more, 64 MB
WINDOW_BYTES = 40 << 20
# bytes beyond which a request is made by itself, in windows: waiting for others costs memory and gains nothing
JOINT_BYTES = 2 * FLIGHT_BYTES
# bytes that reading raw chunks in parts spares at least: planning the parts takes as long as copying these
PARTS_FROM_BYTES = 16 * GAP_BYTES
# bytes of a stored shard read at once while it is rewritten: reads against memory
STORED_BLOCK_BYTES = 2 << 20
SPAN_SHARE = 0.8  # of a chunk: decoding a larger part takes as long as decoding the whole chunk
WINDOW_CELLS = 512  # chunks of a window: planning costs the same for fewer, and more hold up the workers
WINDOWS = 8  # windows a worker, or a far write: more share the work better, and cost more Python
FEW_LARGE_CELLS = 16  # large chunks, of which so few are fetched as they are decoded, without taking turns
# elements of each of many sub-chunks: so few are gathered in less time than a slice of each is copied
GATHERED_ELEMENTS = 512
