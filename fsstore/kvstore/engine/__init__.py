"""Every store that a client library reaches is one driver over one contract.

`contract` says what a client must do; `driver` makes a key-value store of it; `retry`, `fault` and `secret` say when to
try again, what a failure means, and what must not be shown.

* `lost_answer`: a write whose answer was lost: it may have been carried out, and overwritten since
* `single_writer`: conditions for stores that have none, on the word of the user that no other process writes:
  "single_writer": true
* `soon`: single reads that the thread which waits for them makes itself, while a server answers soon
* `turns`: how many requests of an engine are under way at once, and the requests of a batch in their turns
"""
