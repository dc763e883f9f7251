"""The contract of key-value store drivers, and the values that cross it.

Start with `driver`; `kind` is what a store registers; ranges, batches of answers and limits have a module each.

* `answer_columns`: answers to a batch as columns: each is a part of one of a few larger ones
* `byte_range`: byte ranges of a value, checked against its size
* `coalesce`: merging of byte ranges: many small requests for one key become few larger ones
* `commit_queue`: writers wait here while a commit runs, and go into the next one together
* `key_range`: half-open ranges of keys, compared as bytes
* `modified`: the times of last modification, which some stores can tell
* `value_limit`: how large a whole value may be that somebody is about to read
"""
