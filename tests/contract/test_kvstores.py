"""Every key-value store that stands on its own keeps the promises of the contract."""

from __future__ import annotations

import itertools

import pytest

from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.local.stage import Protocol
from fsstore.kvstore.memory import MemoryDriver
from fsstore.testing.doubles import Recording, Slow
from fsstore.testing.kvstore_suite import CHECKS, filled

LOCAL = {
    "file": LocalDriver(),
    "file-nosync": LocalDriver(Protocol(sync=False)),
    "file-memmap": LocalDriver(Protocol(sync=False), mapped=True),
    "file-lockfile": LocalDriver(Protocol("lockfile")),
    "file-lockfile-nosync": LocalDriver(Protocol("lockfile", sync=False)),
    "file-none": LocalDriver(Protocol("none")),
    "file-none-nosync": LocalDriver(Protocol("none", sync=False)),
    "file-non-atomic": LocalDriver(Protocol("non_atomic", sync=False)),
}
MEMORY = {
    "memory": lambda: MemoryDriver(),
    "memory-not-atomic": lambda: MemoryDriver(atomic=False),
    "recording": lambda: Recording(MemoryDriver()),
    "slow": lambda: Slow(MemoryDriver()),
}
# The user asked for these modes by name: conditions are tested but not guarded, so partial writes still work.
TESTED_NOT_GUARDED = {"no_lost_update": ("file-none", "file-none-nosync", "file-non-atomic")}
# Writing in place is what the mode is for: readers may see half a value.
IN_PLACE = {"whole_values": ("file-non-atomic",)}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("name", LOCAL)
def test_local_files(check, name, tmp_path):
    """Local files keep the contract in every locking mode, synced or not, mapped or not."""
    if name in TESTED_NOT_GUARDED.get(check.__name__, ()) or name in IN_PLACE.get(check.__name__, ()):
        return
    numbers = itertools.count()
    check(lambda contents: filled(KvPrefix(LOCAL[name], f"{tmp_path}/{next(numbers)}/"), contents))


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("name", MEMORY)
def test_memory(check, name):
    """The memory store, and doubles around it, keep the contract."""
    check(lambda contents: filled(KvPrefix(MEMORY[name](), "p/"), contents))


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_path_without_slash(check, tmp_path):
    """A path is a prefix of keys and not a directory: the contract holds below `dir/pre`."""
    numbers = itertools.count()
    driver = LocalDriver(Protocol(sync=False))
    check(lambda contents: filled(KvPrefix(driver, f"{tmp_path}/{next(numbers)}/pre"), contents))
