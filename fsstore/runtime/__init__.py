"""Threads, the event loop, futures, and the bookkeeping of memory that all caches share.

Nothing else in fsstore starts a thread or a loop.  `execution` owns the pools and runs coroutines; users wait for
`future` and `promise`; `ordered_map` and `fan_out` distribute work over threads.

* `cache_pool`: one byte budget shared by every cache of a context
* `close_word`: words that people mean: what an error says of a name that is none
* `kept`: values that a process keeps by name, for work that arrives in many small pieces
* `observer`: counters of operations, and observers that see each of them
* `first_touch`: callers that first need the same thing at the same time share one read of it
* `origin`: the process in which an object lives, for pickling
* `pool`: a pool of threads that always gives work to the thread that became idle last
* `together`: the common part of queues of work that begins one by one and is carried out together
* `state`: values that modules keep between calls, for the process or for each thread
* `fork`: the one registry of everything that a forked child must reset, and of locks that are free there
* `wake`: waiting that Ctrl-C may interrupt at any moment
* `tuning`: the numbers that tune it, each with what it trades
"""
