"""A process that writes its elements of one array, one by one: `concurrent_writer.py LIBRARY URL WORKER WORKERS`.

Each is the fill value in between, so that sub-chunks go and come back, and at times the only key of the array does.
"""

import sys
from importlib import import_module

library, path, worker, workers = import_module(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
store = library.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": path}}).result()
print("ready", flush=True)
sys.stdin.readline()
for index in range(worker, store.shape[0], workers):
    for value in (index + 1, 0, index + 1):
        store[index].write(value).result()
