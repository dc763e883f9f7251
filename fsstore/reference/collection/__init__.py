"""Reference sets as wholes: `References` for users, and sets inside live objects.

* `live_set`: reference sets inside live objects: fsspec's ReferenceFileSystem
* `references`: an opened reference set as a mapping, and what can be made of it
"""
