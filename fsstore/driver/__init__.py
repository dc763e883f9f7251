"""Array drivers: from a spec to an opened array.  Each is found by its name in `fsstore.registry`.

* `contract` says what a driver promises, `plain_kind` what kinds say that have nothing else to say;
* arrays in chunks, of every format: `chunked` opens them, `chunked_array` is an open one, with `chunked_options`, its
  `metadata_entry`, its `resize` (`resize_target`: what that asks for, `outside`: what it deletes), and what is
  `stored`;
* other places: `array`, `json` (with `json_pointer`), `image` (with `image_size`), `virtual_chunked`;
* over other drivers: `auto`, `cast` (with `convert`), `downsample` (with `downsample_grid` and `reduce_blocks`),
  `stack` (with `layer_parts`).
"""
