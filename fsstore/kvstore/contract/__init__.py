"""The contract of key-value store drivers, and the values that cross it.

Start with `driver`; `kind` is what a store registers; ranges, batches of answers and limits have a module each.

* `ability`: what some drivers can do beyond the contract
* `answer_columns`: answers to a batch as columns: each is a part of one of a few larger ones
* `byte_range`: byte ranges of a value, checked against its size
* `coalesce`: merging of byte ranges: many small requests for one key become few larger ones
* `commit_queue`: writers wait here while a commit runs, and go into the next one together
* `entry_columns`: a batch of a listing as columns: keys, and sizes that are found out when somebody asks for them
* `key_range`: half-open ranges of keys, compared as bytes
* `key_texts`: keys as text and as bytes, thousands at once: joined, converted in one call, and cut again
* `late_count`: counting writes whose values are made while others are written
* `request`: what crosses the contract: requests and their answers
* `value_limit`: how large a whole value may be that somebody is about to read
"""
