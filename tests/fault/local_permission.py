"""Try what the system forbids, as a user without rights, and print the errors.  Run by test_local_faults."""

from __future__ import annotations

import os
import sys

from fsstore.errors import PermissionDeniedError
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.runtime.execution import drive


def main(path):
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    store = KvPrefix(LocalDriver(), f"{path}/")

    async def listing():
        return [entry async for batch in store.scan() for entry in batch]

    calls = [store.read("secret"), store.write("new", b"v"), store.write("secret", None), listing()]
    for call in calls:
        try:
            drive(call)
        except PermissionDeniedError as error:
            print(error)
        else:
            print("allowed")


if __name__ == "__main__":
    main(*sys.argv[1:])
