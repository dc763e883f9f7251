"""The promises of a key-value store driver, as checks that run over any driver.

`CHECKS` maps names to functions.  Each takes a `Factory`: a function that returns a new store with exactly the given
contents, as a `KvPrefix`.  A driver that cannot write gets its contents some other way; for all others `filled` does
it.  A driver declares in `features` what it cannot do, and the checks then insist that it refuses.  With pytest:

    @pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
    def test_my_driver(check):
        check(lambda contents: filled(KvPrefix(MyDriver()), contents))

A check fails with `AssertionError`; its docstring is the sentence of `fsstore.kvstore.contract.driver` that it proves.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping
from typing import Any

from fsstore.errors import AbortedError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvPrefix, Read, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.runtime import execution
from fsstore.testing.kvstore_reading import (
    READING,
    Check,
    Factory,
    fails,
    filled,
    keys_of,
    read,
    refuses,
    run,
    value,
    write,
)

__all__ = ["CHECKS", "WRITING", "Check", "Factory", "filled"]

# Promises of a key-value store driver about writing, as checks; see `kvstore_suite`.

_ROUNDS, _WRITERS = 8, 4


def _writable(check: Check) -> Check:
    @functools.wraps(check)
    def run_if_writable(make: Factory) -> None:
        if make({}).driver.features.writable:
            check(make)

    return run_if_writable


@_writable
def write_then_read(make: Factory) -> None:
    """A write is visible to the next read, which has the generation that the write was answered with."""
    store = make({})
    for data in (b"one", b"", b"three" * 1000, b"1"):
        stamp = write(store, Write("k/x", data))[0]
        result = read(store, Read("k/x"))[0]
        assert bytes(result.value) == data
        assert stamp.generation in (UNKNOWN, result.generation), (stamp, result)
    assert value(store, "k") is None
    assert write(store) == []


@_writable
def order_of_stamps(make: Factory) -> None:
    """One stamp a write, in order, and every key has its own value."""
    store = make({"old": b"old"})
    stamps = write(store, Write("c", b"3"), Write("a", b"1"), Write("old", None), Write("b", b"2"))
    found = read(store, Read("c"), Read("a"), Read("old"), Read("b"))
    assert [bytes(result.value) for result in found] == [b"3", b"1", b"", b"2"]
    assert all(stamp.generation in (UNKNOWN, result.generation) for stamp, result in zip(stamps, found, strict=True))


@_writable
def generations_differ(make: Factory) -> None:
    """A key never has the same generation for two values written one after the other."""
    store = make({})
    if not store.driver.features.conditional_write:
        return
    seen = [write(store, Write("k", b"%d" % (number % 2)))[0].generation for number in range(50)]
    assert all(first != second for first, second in itertools.pairwise(seen)), seen


@_writable
def any_buffer(make: Factory) -> None:
    """Values may be any buffer, and belong to the caller again when the write is answered."""
    store = make({})
    source = bytearray(b"abcdef")
    write(store, Write("x", source), Write("y", memoryview(source)[1:3]), Write("z", memoryview(bytes(8)).cast("I")))
    source[:] = b"------"
    assert [value(store, key) for key in "xyz"] == [b"abcdef", b"bc", bytes(8)]


@_writable
def results_are_snapshots(make: Factory) -> None:
    """A value that was read stays what it was when the key is written or deleted."""
    store = make({"k": b"x" * 200_000})
    whole, part = read(store, Read("k"), Read("k", 10, 150_000))
    write(store, Write("k", b"y" * 200_000))
    write(store, Write("k", None))
    assert bytes(whole.value) == b"x" * 200_000
    assert bytes(part.value) == b"x" * 149_990


@_writable
def deletion(make: Factory) -> None:
    """`value=None` deletes; deleting a missing key is fine and answers `NO_VALUE`."""
    store = make({"k": b"v", "k2": b"w"})
    for _ in range(2):
        assert write(store, Write("k", None))[0].generation == NO_VALUE
        assert value(store, "k") is None
    assert write(store, Write("never/was/here", None))[0].generation == NO_VALUE
    assert value(store, "k2") == b"w"


@_writable
def deletion_of_ranges(make: Factory) -> None:
    """`delete_range` deletes the keys of the range and no other."""
    contents = dict.fromkeys(("a", "b/a", "b/b/c", "b0", "c/d", "d"), b"v")
    ranges = (
        KeyRange("b/", "b0"),
        KeyRange("b", "c"),
        KeyRange("c/d"),
        KeyRange("", "b"),
        KeyRange("x", "y"),
        KeyRange("d", "a"),
        KeyRange(),
    )
    for keys in ranges:
        store = make(contents)
        run(store, store.delete_range(keys))
        left = {key for key in contents if value(store, key) is not None}
        assert left == {key for key in contents if not keys.contains(key)}, (keys, left)
        if store.driver.features.listable:
            assert keys_of(store) == left
        write(store, Write("b/b/c", b"again"))
        assert value(store, "b/b/c") == b"again"


@_writable
def creation_only(make: Factory) -> None:
    """`if_equal=NO_VALUE` writes only if the key is missing."""
    store = make({"k": b"v"})
    features = store.driver.features
    if not (features.create_only or features.conditional_write):
        refuses(lambda: write(store, Write("new", b"x", NO_VALUE)))
        assert value(store, "new") is None
        return
    stamps = write(store, Write("k", b"x", NO_VALUE), Write("new", b"y", NO_VALUE))
    assert stamps[0].generation == UNKNOWN
    assert stamps[1].generation != UNKNOWN
    assert (value(store, "k"), value(store, "new")) == (b"v", b"y")


@_writable
def conditions(make: Factory) -> None:
    """A write whose `if_equal` does not hold changes nothing and answers the generation `UNKNOWN`."""
    store = make({"k": b"1", "other": b"o"})
    generation = read(store, Read("k"))[0].generation
    if not store.driver.features.conditional_write:
        refuses(lambda: write(store, Write("k", b"x", generation or b"\0x")))
        assert value(store, "k") == b"1"
        return
    new = write(store, Write("k", b"2", generation))[0].generation
    assert new not in (UNKNOWN, generation)
    for condition in (generation, NO_VALUE, b"\0nonsense"):
        stamps = write(store, Write("k", b"3", condition), Write("other", condition))
        assert stamps[0].generation == UNKNOWN, condition
        assert (value(store, "k"), value(store, "other")) == (b"2", condition)
    assert write(store, Write("missing", b"x", new))[0].generation == UNKNOWN
    assert value(store, "missing") is None


@_writable
def conditional_deletion(make: Factory) -> None:
    """A condition guards a deletion as it guards a write, or is refused where `features` say so."""
    store = make({"k": b"1"})
    if not store.driver.features.conditional_write:
        return
    generation = read(store, Read("k"))[0].generation
    if not store.driver.features.conditional_delete:
        refuses(lambda: write(store, Write("k", None, generation)))
        assert value(store, "k") == b"1"
        return
    assert write(store, Write("k", None, b"\0nonsense"))[0].generation == UNKNOWN
    assert write(store, Write("k", None, NO_VALUE))[0].generation == UNKNOWN
    assert value(store, "k") == b"1"
    assert write(store, Write("k", None, generation))[0].generation == NO_VALUE
    assert write(store, Write("k", None, generation))[0].generation == UNKNOWN
    assert write(store, Write("k", None, NO_VALUE))[0].generation == NO_VALUE


@_writable
def no_lost_update(make: Factory) -> None:
    """Conditional writes from several threads lose no update."""
    store = make({"n": b"0"})
    if not store.driver.features.conditional_write:
        return

    def count(_: int) -> None:
        for _ in range(_ROUNDS):
            done = False
            while not done:
                found = read(store, Read("n"))[0]
                stamp = write(store, Write("n", b"%d" % (int(bytes(found.value)) + 1), found.generation))[0]
                done = stamp.generation != UNKNOWN

    _together(count)
    assert value(store, "n") == b"%d" % (_ROUNDS * _WRITERS)


@_writable
def one_creator(make: Factory) -> None:
    """If several create the same key at once, one succeeds."""
    store = make({})
    if not store.driver.features.create_only:
        return
    wins: list[tuple[str, int]] = []

    def create(writer: int) -> None:
        for number in range(_ROUNDS):
            stamp = write(store, Write(f"k{number}", b"%d" % writer, NO_VALUE))[0]
            if stamp.generation != UNKNOWN:
                wins.append((f"k{number}", writer))

    _together(create)
    assert len(wins) == _ROUNDS, wins
    assert all(value(store, key) == b"%d" % writer for key, writer in wins)


@_writable
def whole_values(make: Factory) -> None:
    """A write is visible as a whole or not at all."""
    store = make({"k": b"0" * 50_000})

    def work(number: int) -> None:
        for _ in range(_ROUNDS):
            if number % 2:
                write(store, Write("k", b"%d" % number * (10_000 * number)))
            data = bytes(read(store, Read("k"))[0].value)
            digit = int(data[:1])
            assert data == data[:1] * (10_000 * digit or 50_000), (len(data), set(data))

    _together(work)


@_writable
def atomic_batches(make: Factory) -> None:
    """With `atomic_transactions`, `write_atomic` applies everything or nothing."""
    store = make({"a": b"1", "b": b"2", "r/1": b"", "r/2": b""})
    driver: Any = store.driver
    if not driver.features.atomic_transactions:
        return
    path = store.path
    first, second = (result.generation for result in read(store, Read("a"), Read("b")))

    def commit(
        *writes: Write, unchanged: Mapping[str, bytes] | None = None, deleted: KeyRange | None = None
    ) -> list[str]:
        guards = {path + key: generation for key, generation in (unchanged or {}).items()}
        ranges = [deleted.with_prefix(path)] if deleted else []
        full = [item._replace(key=path + item.key) for item in writes]
        failed: list[str] = run(store, driver.write_atomic(full, unchanged=guards, deleted=ranges))
        return [key.removeprefix(path) for key in failed]

    assert commit(Write("a", b"x", first), Write("b", b"", b"\0no"), deleted=KeyRange("r/", "r0")) == ["b"]
    fails(AbortedError, lambda: commit(Write("a", b"x"), unchanged={"b": first}))
    assert _contents(store) == {"a": b"1", "b": b"2", "r/1": b"", "r/2": b""}
    failed = commit(
        Write("a", b"x", first),
        Write("c", b"n", NO_VALUE),
        Write("r/2", b"kept"),
        unchanged={"b": second, "none": NO_VALUE},
        deleted=KeyRange("r/", "r0"),
    )
    assert failed == []
    assert _contents(store) == {"a": b"x", "b": b"2", "c": b"n", "r/2": b"kept"}


def _contents(store: KvPrefix) -> dict[str, bytes | None]:
    return {key: value(store, key) for key in keys_of(store)}


def _together(work: Any) -> None:
    execution.map_blocking(work, range(_WRITERS), kind="io")


WRITING: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        write_then_read,
        order_of_stamps,
        generations_differ,
        any_buffer,
        results_are_snapshots,
        deletion,
        deletion_of_ranges,
        creation_only,
        conditions,
        conditional_deletion,
        no_lost_update,
        one_creator,
        whole_values,
        atomic_batches,
    )
}
"""The checks that write."""

CHECKS: Mapping[str, Check] = {**READING, **WRITING}
"""Every check by name."""
