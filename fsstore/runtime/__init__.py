"""Threads, the event loop, futures, and the bookkeeping of memory that all caches share.

Nothing else in fsstore starts a thread or a loop.  `execution` owns the pools and runs coroutines; `future` and
`promise` are what users wait for; `ordered_map` and `fan_out` are the ways in which work is spread.

* `cache_pool`: one byte budget shared by every cache of a context
* `close_word`: words that people mean: what an error says of a name that is none
* `kept`: what a process keeps by name for work that is sent to it in many small pieces
* `observer`: what goes on: counters of operations, and who watches them one by one
* `first_touch`: those who want the same thing for the first time, at the same time, share one read of it
* `origin`: in which process something lives, for what is pickled
* `pool`: a pool of threads that always gives work to the thread that became idle last
* `together`: work that is begun one by one and made together: what its queues have in common
* `state`: what modules keep between calls, for the process or for each thread
* `fork`: the one registry of what a forked child has to begin anew, and the locks that are free there
* `wake`: waiting that Ctrl-C may interrupt at any moment
* `tuning`: the numbers that tune it, each with what it trades
"""
