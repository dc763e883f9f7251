"""Listings: batches as columns, and memory stores that keep their keys in order while keys come and go."""

from __future__ import annotations

import random

import pytest
import tensorstore

import fsstore
from fsstore.context.resource_kinds import MemoryStorage
from fsstore.kvstore.contract.request import Entry, EntryColumns, key_text, merged
from fsstore.kvstore.memory import MemoryDriver
from fsstore.runtime import execution

KEYS = [b"a/", b"a/\n", b"a/b\nc", "a/é".encode(), b"a/\xff\xfe"]
ENTRIES = [Entry(key_text(key), size) for size, key in enumerate(KEYS)]


def _forms():
    """Yield the same batch in every form that a driver may give it."""
    sizes = list(range(len(KEYS)))
    yield EntryColumns(list(KEYS), sizes=lambda: sizes)
    yield EntryColumns(names=[key_text(key) for key in KEYS], sizes=lambda: sizes)
    yield EntryColumns.of(ENTRIES)


@pytest.mark.parametrize("batch", list(_forms()), ids=["bytes", "text", "entries"])
def test_a_batch_is_the_sequence_of_its_entries(batch):
    """Whichever form keys have, entries, parts, and keys without a path or their first bytes are the same."""
    assert list(batch) == ENTRIES
    assert len(batch) == len(ENTRIES)
    assert batch[2] == ENTRIES[2]
    assert list(batch[1:4]) == ENTRIES[1:4]
    assert batch.keys == KEYS
    assert list(batch.below("a/")) == [Entry(key[2:], size) for key, size in ENTRIES]
    assert batch.below("") is batch
    assert batch.keys_from(1) == [key[1:] for key in KEYS]
    assert list(batch.without({"a/", key_text(KEYS[3])})) == [ENTRIES[1], ENTRIES[2], ENTRIES[4]]
    assert list(batch.without({"other"})) == ENTRIES


def test_sizes_are_asked_for_once_and_only_when_wanted():
    """The keys of a batch, cut and filtered, need no sizes; the first size asked for finds out all."""
    asked = []

    def sizes():
        asked.append(True)
        return [3, 4]

    batch = EntryColumns([b"p/x", b"p/y"], sizes=sizes)
    below = batch.below("p/").without({"x"})
    assert below.keys == [b"y"]
    assert not asked
    assert list(below) == [Entry("y", 4)]
    assert list(batch.below("p/")) == [Entry("x", 3), Entry("y", 4)]
    assert len(asked) == 1


def test_batches_are_merged_in_order_of_their_bytes():
    """Keys that are not UTF-8 stand among the others by their bytes, each with its own size."""
    first = EntryColumns([b"a", b"\xee"], sizes=lambda: [1, None])
    second = EntryColumns.of([Entry(key_text(b"\xf0\x9f\x98\x80"), 2), Entry("b", 3)])
    assert [(entry.key, entry.size) for entry in merged([first, second])] == [
        ("a", 1), ("b", 3), (key_text(b"\xee"), None), ("\U0001f600", 2),
    ]  # fmt: skip


@pytest.mark.parametrize("seed", range(40))
def test_keys_stay_in_order_while_they_come_and_go(seed):
    """Whatever happens between two listings, a storage lists what is in it, sorted as bytes."""
    dice = random.Random(seed)
    storage = MemoryStorage()
    names = [key_text(bytes(dice.choices(b"ab/\xc3\xa9\xff", k=dice.randint(0, 4)))) for _ in range(60)]
    for _ in range(60):
        for name in dice.sample(names, dice.choice((0, 1, 2, 30))):
            if dice.random() < 0.2:
                storage.apply(dict.fromkeys(dice.sample(names, 3), dice.choice((None, b"v"))))
            storage.put(name, dice.choice((None, b"v")))
        expected = sorted(name.encode("utf-8", "surrogateescape") for name in storage.values)
        assert storage.keys_in(b"", b"") == expected
        assert storage.keys_in(b"a", b"b") == [key for key in expected if b"a" <= key < b"b"]


def test_a_listing_of_memory_is_of_the_moment_it_began():
    """Keys that come later are not in it; those that went have no size."""
    driver = MemoryDriver()
    driver.storage.apply({"a": b"1", "b": b"22"})

    async def keys():
        pages = driver.scan(fsstore.KvStore.KeyRange())
        page = await anext(pages)
        driver.storage.apply({"a": None, "c": b"3"})
        return [*page, *[entry async for more in pages for entry in more]]

    assert execution.call(keys(), waits=False) == [Entry("a", None), Entry("b", 2)]


def _program(library, seed):
    """Write, delete and list at random, within a transaction and without; return what the listings said."""
    dice = random.Random(seed)
    store = library.KvStore.open("memory://base/").result()
    said = []
    for _ in range(3):
        transaction = library.Transaction() if dice.random() < 0.7 else None
        bound = store if transaction is None else store.with_transaction(transaction)
        for _ in range(12):
            step, key = dice.random(), f"{dice.choice('abc')}/{dice.choice(['', 'é', 'x', 'yz'])}"
            low, high = sorted(dice.choices(["", "a", "a/x", "b", "c/", "d"], k=2))
            keys = library.KvStore.KeyRange(low, high)
            if step < 0.5:
                bound[key] = b"v" * dice.randint(0, 3)
            elif step < 0.6:
                bound[key] = None
            elif step < 0.7 and transaction is None:  # tensorstore 0.1.86 ends the process when it lists after it
                bound.delete_range(keys).result()
            else:
                strip = dice.choice((0, 0, 2)) if transaction is None else 0
                said.append(sorted(bound.list(keys, strip_prefix_length=strip).result()))
                said.append(store.list().result())
        if transaction is not None:
            transaction.commit_sync()
    return said


@pytest.mark.parametrize("seed", range(60))
def test_listings_are_those_of_tensorstore(seed):
    """Programs of writes, deletions and transactions list the same keys; within a transaction tensorstore lists the
    changed ones first, and two that are equal once they are cut only once."""
    assert _program(fsstore, seed) == _program(tensorstore, seed)
