"""OCDBT: a versioned key-value store kept as a B+tree in a directory of another key-value store.

The bytes are TensorStore's; either library reads and continues what the other wrote.

* pure: `varint`, `envelope`, `data_file`, `config`, `version`, `manifest`, `version_tree`, `leaf`, `interior`,
  `node`, `split` turn bytes into values and back;
* reading: `source` finds manifests and nodes, `history` versions, `tree` keys;
* writing: `mutation` says what a commit changes, `rebuild` applies it to a tree, `commit` makes a version of it,
  `queue` gathers the writers that wait for the next one;
* doors: `driver` (the key-value store), `kind` (JSON and URLs), `versions`, `verify`, `compact`, `dump`.
"""
