"""Reference sets as wholes: resolving keys in batches, changing them, and `References` for users.

* `live_set`: reference sets inside live objects: fsspec's ReferenceFileSystem
* `references`: an opened reference set as a mapping, and what can be made of it
* `refset`: reference sets as the driver sees them: keys resolved in batches, whatever the document was
* `set_state`: writing to a reference set: conditions, several writers, and what stands in memory until it is saved
"""
