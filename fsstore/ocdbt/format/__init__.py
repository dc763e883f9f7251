"""The stored structures of an OCDBT database: bytes to values and back, without input or output.

* `config`: the configuration of a database: its stored form, its JSON, and what a user may ask of it
* `data_file`: names of data files, the table of them in every structure, and places in them
* `envelope`: the frame around manifests and nodes: magic, length, version, compression, body, CRC-32C
* `generation`: storage generations of entries: opaque bytes that change when a value does
* `interior`: interior nodes of the B+tree: the first key of every child, its place and the sums over its subtree,
  by column
* `key_column`: the keys of a node: stored as what each does not share with the one before it
* `leaf`: leaves of the B+tree: keys with their values, inline or as places in data files, held by column
* `manifest`: the manifest: the configuration, the newest versions, and references to the nodes that hold the older
  ones
* `node`: decoding of B+tree nodes of either sort
* `varint`: variable-length integers (unsigned LEB128), one by one and by column, and a cursor that reads them
* `version`: versions: which tree, of which generation, committed when
* `version_tree`: the version tree: nodes that hold older versions, and the arithmetic that says where a generation
  belongs
"""
