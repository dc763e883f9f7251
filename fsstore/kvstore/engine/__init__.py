"""One driver over one contract for every store that a client library reaches.

* `contract`: the promises of an engine, the meaning of failures, and when requests are retried
* `driver`: the key-value store over an engine, and conditions checked in this process ("single_writer": true)
* `cached`: reads answered by a cache on disk that processes share
* `secret`: credentials in options, headers and URLs, which must not be shown
* `turns`: the number of requests of an engine under way, and single reads made by the waiting thread
"""
