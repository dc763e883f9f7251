"""Write to a parquet reference set without pause, until killed.  Run by test_reference_parquet_crash.

    reference_kill_writer.py DIRECTORY NUMBER

Each batch changes a key of every file, to a value that holds the number of the batch, and every fifth the shape of the
array.  The number is reported once the batch is answered.
"""

from __future__ import annotations

import json
import os
import sys

from fsstore.kvstore.contract.driver import KvPrefix, Write
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.reference.kind import open_reference
from fsstore.runtime import execution


def main(path, number):
    store = execution.call(open_reference(KvPrefix(LocalDriver(), path), {}))
    while True:
        number += 1
        writes = [Write(f"x/{n}", b"%d:%d" % (n, number)) for n in range(0, 60, 7)]
        if number % 5 == 0:
            shape = [60 + number % 40]
            writes.append(Write("x/.zarray", json.dumps({"zarr_format": 2, "shape": shape, "chunks": [1]}).encode()))
        execution.call(store.write_many(writes))
        os.write(1, b"%d\n" % number)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
