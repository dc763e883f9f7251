"""The format of Icechunk repositories, pure: bytes in, values out, no I/O.

* `config`: where virtual chunks lie by name, in both forms of the configuration
* `envelope`: the header and the compressed frame around every document
* `flatbuffer`: tables and vectors read in place, every offset checked
* `identifier`: names of objects: base 32 of their bytes
* `manifest`: where the chunks of arrays are, looked up in place or as columns
* `repo`: branches, tags and snapshots of format version 2
* `snapshot`: groups and arrays, and which manifests hold their chunks
"""
