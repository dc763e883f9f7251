"""A reference set in memory: about twenty bytes a reference, keys resolved in batches, changes until they are saved.

* `generator`: many references described by one pattern, computed when they are asked for
* `keys`: chunk-like keys, taken apart in bulk, and the grids of arrays that they belong to
* `refset`: making the table of references in document order; a set as the driver sees it, whatever the document was
* `set_state`: writing to a set: conditions, several writers, and what stands in memory until it is saved
* `table`: the columnar table, and the values of references
* `template`: text with {{expression}} in it, evaluated without Jinja and without str.format
"""
