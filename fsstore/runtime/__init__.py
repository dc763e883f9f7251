"""Threads, the event loop, futures, and the bookkeeping of memory that all caches share.

Nothing else in fsstore starts a thread or a loop.

* `execution`: the event loop, the pools, and work spread over their threads
* `pool`: a pool of threads that gives work to the thread that became idle last
* `future`: futures and promises, and waiting that Ctrl-C may interrupt at any moment
* `together`: work that begins one by one and is carried out together, first users that share one read, and changes
  under a condition, tried again until no other writer comes between
* `fork`: what a forked child must reset, locks that are free there, and values that modules keep between calls
* `observer`: counters of operations, and observers that see each of them
* `cache`: one byte budget in memory for every cache of a context, and a directory of values that processes share
* `tuning`: the numbers that tune fsstore, each with what it trades
"""
