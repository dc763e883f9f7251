"""`KvStore`, the key-value store that users hold, and what its operations return.

* `batch`: batches of reads: reads that wait until the batch is submitted, and are then made together
* `kv_store`: a key-value store as users see it, TensorStore's Python interface
* `operation`: one read or write as a user asks for it: its arguments checked, and begun in the cheapest way the
  driver allows
* `result`: what users get back from a KvStore: read results and stamped generations, as TensorStore shapes them
* `write_queue`: writes begun one by one and carried out together: what KvStore.write of a store with slow writes
  does
"""
