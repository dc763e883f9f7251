"""From a request to cells: which chunks are touched, which of their elements, and where these go.

Plans are values; nothing here writes.
* `allocation`: memory for elements, asked for in one place: what cannot be had is an error that names the shape and
  the bytes
* `box_parts`: many boxes of one array, cut into the parts that lie within one chunk, as columns of integers
* `boxed`: copying what a request selects of many chunks as few boxes
* `cell_run`: cells that follow each other in a plan, made when they are asked for
* `chunk_box`: boxes of elements, each within one chunk, that know by themselves where they go
* `grid`: how one dimension of an array is cut into chunks, and how a request along it falls into them
* `listed`: listed positions by chunk, as columns of integers
* `keys`: chunk keys: the numbers of a chunk along each dimension as one string
* `model`: what the engine knows of a stored array: its chunk boundaries, keys, codecs and fill value
* `open_chunks`: the chunks of one open array: what is constant from one read or write to the next
* `place`: moving elements between a chunk and the array of a request, cell by cell
* `planner`: from a request to cells: which chunks are touched, and which elements of each go where
* `regions`: cutting a domain into boxes of whole chunks that fit into memory
* `request`: from index transforms to the requests of the engine
* `slabs`: boxes cut into slabs: the pieces in which arrays are copied, a part of a box or several boxes at a time
* `source`: where the bytes of chunks come from
"""
