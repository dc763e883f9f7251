"""Local files: read by position, written atomically under locks that other processes respect.

A write goes into the lock file of its key (`stage`), is synced, and takes the key's name in one step.

* `driver`: the file key-value store, and copies inside the kernel
* `file`: keys as paths of local files, and reading them: open, fstat, pread
* `lock`: the lock of a key on local disk: a file beside it, into which the new value is written
* `stage`: one write of a local file, its way to the disk, and the space of the replaced file
* `write`: batches of writes, whose order loses no update at any crash, and listing and deleting ranges of keys
"""
