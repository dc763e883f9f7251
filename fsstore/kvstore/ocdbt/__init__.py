"""OCDBT: a versioned key-value store kept as a B+tree in a directory of another key-value store.

The bytes are TensorStore's; either library reads and continues what the other wrote.

* `answer`: from entries of leaves to answers: of reads, and of listings
* `cache`: the cache of decoded nodes
* `commit`: making a version: read the newest, apply the requests, store the data, replace the manifest if nobody
  was faster
* `detect`: how an OCDBT database is recognised, for automatic detection
* `driver`: the key-value store over an OCDBT database
* `format`: the stored structures of an OCDBT database: bytes to values and back, without input or output
* `history`: finding one of many versions: by generation number or by commit time
* `kind`: the static side of the ocdbt store: its members, its URLs, how it is opened
* `leaf_merge`: merging of changes into a leaf, by column: 10,000 writes into 100,000 entries are a few array
  operations
* `mutation`: what a commit changes: requests of callers, and the changes that result from those whose conditions
  hold
* `options`: the JSON members of the ocdbt store: their parsing, canonical form, and what they mean for opening
* `rebuild`: applying changes to a tree: copy on write, from the leaves up
* `sink`: the data files of one commit: values as they come, then B+tree nodes, then version tree nodes, back to
  back
* `source`: where a database is read: its manifests, and the nodes that references lead to
* `split`: building of nodes: how entries are divided into nodes, encoded, and told to the level above
* `tools`: tools for whole databases: list versions, verify, compact, dump
* `tree`: looking keys up in a version, and listing them
"""
