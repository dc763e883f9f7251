"""Every store that a client library reaches is one driver over one contract.

* `contract`: the promises of an engine, the meaning of failures, and when requests are tried again
* `driver`: the key-value store over an engine, and conditions on the word of the user ("single_writer": true)
* `cached`: reads that a cache on disk answers, for all processes that share it
* `secret`: credentials in options, headers and URLs, which must not be shown
* `turns`: how many requests of an engine are under way at once, and single reads made by the thread that waits
"""
