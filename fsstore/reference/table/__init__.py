"""The columnar table of a reference set, and how it is built: about twenty bytes a reference.

* `builder`: making the table: references in document order, sorted into blocks and loose keys
* `families`: the families of keys that stand in a text, found in bulk: keys.split_one for thousands at once
* `grid`: chunk grids of zarr arrays, read off their metadata: which keys an array may have, and their numbers
* `inline`: inline values: those a document holds in bulk stay in one piece of text, encoded, until somebody asks
  for one
* `keys`: chunk-like keys: a prefix and trailing integers, taken apart in bulk
* `table`: the columnar table: every reference of a set in about twenty bytes
* `text`: A text read at many places at once
* `value`: the value of one reference, as documents write it: checked, and made a row or bytes
"""
