"""OCDBT: a versioned key-value store kept as a B+tree in a directory of another key-value store.

The bytes are TensorStore's; either library reads and continues what the other wrote.

* pure: `varint`, `envelope`, `data_file`, `config`, `generation`, `version`, `manifest`, `version_tree`,
  `key_column`, `key_texts`, `leaf`, `interior`, `node`, `split` turn bytes into values and back;
* reading: `source` finds manifests and nodes and `cache` keeps them, `history` finds versions, `tree` keys, and
  `answer` makes answers of entries;
* writing: `mutation` says what a commit changes, `rebuild` applies it to a tree (`leaf_merge`: to a leaf), `sink`
  takes the data, `commit` makes a version of it;
* doors: `driver` (the key-value store), `kind` and `options` (JSON and URLs), `detect`, `versions`, `verify`,
  `compact`, `dump`.
"""
