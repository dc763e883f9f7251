"""Array drivers: from a spec to an opened array.  Each is found by its name in `fsstore.values.registry`.

* `contract`: the contracts of array drivers: the static kind that parses and opens specs, and the opened driver
* `chunked`: the driver of chunked arrays in a key-value store, whatever the format: kinds, options, opening
* `chunked_array`: an open chunked array: reading, writing, and the properties it reports
* `metadata_entry`: the metadata of one stored array, shared by every handle of a context, and the resize of the array
* `attributes`: the attributes of an array or a group, and consolidated metadata above them
* `auto`: the driver that detects the format of a store and opens it; the arrays and groups below a place
* `probe`: one step of detection: its requests, its findings, and the message when nothing is found
* `json_element`: a JSON document, or a part of one, as an array of rank 0
* `array`: a NumPy array in memory as a store, and an image file as a read-only array
* `cast`: an array shown with another data type
* `stack`: arrays laid over each other in one index space
* `downsample`: an array at a lower resolution
* `virtual_chunked`: an array whose chunks functions of the caller read and write
"""
