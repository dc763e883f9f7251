"""Array drivers: from a spec to an opened array.  Each is found by its name in `fsstore.values.registry`.

* `array`: a NumPy array in memory as a store
* `attributes`: the attributes of an array or a group as a mapping, read at once and written under a condition
* `auto`: the driver that finds out what stands in a store, and opens that
* `cast`: an array shown with another data type, converted as it is read and written
* `chunked`: the driver of chunked arrays in a key-value store, whatever the format: kinds, options, opening
* `chunked_array`: an open chunked array: reading, writing, and what it says of itself
* `chunked_options`: how a chunked array is used once it is open: caching, missing chunks, concurrency
* `collected`: keeping consolidated metadata true when one array below them changes
* `contract`: the contracts of array drivers: the static kind that parses and opens specs, and the opened driver
* `convert`: conversions between data types, element by element, as cast does them
* `downsample`: an array at a lower resolution, computed from its base as it is read
* `downsample_grid`: the geometry of downsample: which elements below belong to which element of the view
* `image`: an image file as a read-only array of rank 3: rows, columns, channels
* `json_element`: a JSON document, or a part of one, as a store of rank 0 whose element is the value
* `json_pointer`: JSON pointers: finding and replacing a part of a JSON value (RFC 6901)
* `layer_parts`: which layer serves which part of a request to a stack of layers
* `metadata_entry`: the metadata of one stored array, shared by every handle of a context
* `plain_kind`: what kinds of array drivers have in common that do not say otherwise
* `precomputed`: the driver of Neuroglancer precomputed volumes: each array is one scale of a volume
* `reduce_blocks`: reducing blocks of elements to one: the methods of downsample, on arrays
* `resize`: changing the shape of a chunked array, through a view of it
* `resize_target`: what a resize through a view asks of the array below: new extents, and what must not be changed
  unseen
* `stack`: arrays laid over each other in one index space, later ones on top
* `stored`: how much of a region of a chunked array is stored
* `trim_chunks`: deleting the chunks that a smaller shape has left outside an array, once the smaller shape is
  stored
* `tuning`: the numbers that tune it, each with what it trades
* `virtual_chunked`: an array whose chunks functions of the caller read and write
* `write_source`: what may be written to a store: arrays that cast safely, and Python values that convert
"""
