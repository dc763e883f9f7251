"""Raise a counter by conditional writes until it was raised COUNT times.  Run by test_local_faults.

local_increment.py LIBRARY DIRECTORY MODE COUNT
"""

from __future__ import annotations

import sys


def open_store(library, path, mode):
    spec = {
        "driver": "file",
        "path": path + "/",
        "file_io_locking": {"mode": mode, "acquire_timeout": "60s"},
        "file_io_sync": False,
    }
    if library == "tensorstore":
        import tensorstore

        return tensorstore.KvStore.open(spec).result()
    from fsstore.kvstore.kv_store import KvStore

    return KvStore.open(spec).result()


def main(library, path, mode, count):
    store = open_store(library, path, mode)
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(int(count)):
        done = False
        while not done:
            found = store.read("n").result()
            new = store.write("n", b"%d" % (int(found.value) + 1), if_equal=found.stamp.generation).result()
            done = new.generation != b""


if __name__ == "__main__":
    main(*sys.argv[1:])
