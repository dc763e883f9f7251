"""Random cells of what people do with arrays: formats, stores, types, shapes, chunks, codecs, shards and accesses.

* `cell`: what one cell is, and how a seed draws it
* `access`: the ways of reading and writing, as each library says them
* `place`: the array of a cell as it is stored, and the libraries that open it there
* `bucket`: a bucket of moto, for cells on S3
* `report`: ratios by kind of access, format and store, and the worst cells with their seeds
* `watched`: cells measured in a process of their own, which is ended when one hangs
* `run`: the command
"""
