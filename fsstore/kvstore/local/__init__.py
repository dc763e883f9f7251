"""Local files: read by position, written atomically under locks that other processes respect.

A write goes into the lock file of its key (`stage`), is synced, and takes the key's name in one step.

* `driver`: the file key-value store: local files, read by position and written atomically
* `lock`: the lock of a key on local disk: a file beside it, in which the new value is written
* `path`: keys as paths of local files: which are allowed, and how failures on them are reported
* `read`: reading local files: open, fstat, pread
* `scan`: listing and deleting ranges of keys in a tree of directories
* `space`: the space of replaced files, given back behind the answer instead of inside the rename
* `take`: copying local files inside the kernel: their bytes never enter the process
* `write`: writing local files so that a key has its old or its new value, whatever happens, and no update is lost
* `writeback`: asking the system to begin to write a file to disk, without waiting for it, or to finish everything
"""
