"""`KvStore`, the key-value store that users hold.

* `kv_store`: TensorStore's Python interface of a key-value store
* `operation`: reads and writes as users ask for them, their results, batches of reads, and the queue of writes
"""
