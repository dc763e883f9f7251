"""Stores against a dictionary: any sequence of operations leaves what the model says."""

from __future__ import annotations

import itertools
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsstore.errors import OutOfRangeError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvPrefix, Read, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.local.file import check_prefix, file_path, normalize
from fsstore.kvstore.local.stage import Protocol
from fsstore.kvstore.memory import MemoryDriver
from fsstore.kvstore.transaction import Transaction, TransactionalDriver
from fsstore.testing.kvstore_reading import keys_of, read, run, value, write

KEYS = ["a", "b/c", "b/d", "b/e/f", "é"]
key = st.sampled_from(KEYS)
data = st.binary(max_size=20)
bound = st.sampled_from(["", "a", "b", "b/", "b/d", "b/e", "b/e/", "b0", "c", "é"])
operation = st.one_of(
    st.tuples(st.just("put"), key, data),
    st.tuples(st.just("drop"), key),
    st.tuples(st.just("create"), key, data),
    st.tuples(st.just("swap"), key, data),
    st.tuples(st.just("stale"), key, data),
    st.tuples(st.just("clear"), bound, bound),
)


def apply(store, model, step, number):
    """Do one operation to the store and to the dictionary."""
    match step:
        case "put", name, content:
            write(store, Write(name, content))
            model[name] = content
        case "drop", name:
            assert write(store, Write(name, None))[0].generation == NO_VALUE
            model.pop(name, None)
        case "create", name, content:
            done = write(store, Write(name, content, NO_VALUE))[0].generation != UNKNOWN
            assert done == (name not in model)
            model.setdefault(name, content)
        case "swap", name, content:
            generation = read(store, Read(name))[0].generation
            assert write(store, Write(name, content, generation))[0].generation != UNKNOWN
            model[name] = content
        case "stale", name, content:
            assert write(store, Write(name, content, b"\0" + number.to_bytes(8, "big")))[0].generation == UNKNOWN
        case "clear", low, high:
            run(store, store.delete_range(KeyRange(low, high)))
            for name in [name for name in model if KeyRange(low, high).contains(name)]:
                del model[name]


def agree(store, model):
    assert {name: value(store, name) for name in KEYS} == {name: model.get(name) for name in KEYS}
    assert keys_of(store) == set(model)


@pytest.mark.parametrize("mode", ["memory", "os", "lockfile", "none"])
@given(steps=st.lists(operation, max_size=15))
def test_store_is_a_dictionary(tmp_path_factory, mode, steps):
    """Writes, conditions and deletions do to a store what they do to a dictionary."""
    path = tmp_path_factory.mktemp("model")
    driver = MemoryDriver() if mode == "memory" else LocalDriver(Protocol(mode, sync=False))
    store, model = KvPrefix(driver, f"{path}/"), {}
    for number, step in enumerate(steps):
        apply(store, model, step, number)
    agree(store, model)
    shutil.rmtree(path)


@given(
    before=st.dictionaries(key, data, max_size=4),
    steps=st.lists(operation.filter(lambda step: step[0] in ("put", "drop", "clear")), max_size=15),
    atomic=st.booleans(),
)
def test_transaction_is_a_dictionary(before, steps, atomic):
    """The same inside a transaction, and after its commit; the store itself is untouched until then."""
    base = KvPrefix(MemoryDriver(atomic=atomic))
    write(base, *(Write(name, content) for name, content in before.items()))
    transaction = Transaction()
    view, model = KvPrefix(TransactionalDriver(base.driver, transaction.ledger)), dict(before)
    for number, step in enumerate(steps):
        apply(view, model, step, number)
        agree(view, model)
    agree(base, before)
    transaction.commit_sync()
    agree(base, model)


@given(st.binary(max_size=50), st.lists(st.tuples(st.integers(-60, 60), st.integers(-1, 60)), max_size=12))
def test_ranges_are_slices(tmp_path_factory, content, ranges):
    """Any batch of ranges of one value gives its slices, or fails if one reaches outside."""
    path = tmp_path_factory.mktemp("ranges")
    for driver in (MemoryDriver(), LocalDriver(Protocol(sync=False)), LocalDriver(Protocol(sync=False), mapped=True)):
        store = KvPrefix(driver, f"{path}/")
        write(store, Write("k", content))
        reads = [Read("k", start, None if stop < 0 else stop) for start, stop in ranges]
        inside = [_expected(content, item) for item in reads]
        if None in inside:
            with pytest.raises(OutOfRangeError):
                read(store, *reads)
        else:
            assert [bytes(result.value) for result in read(store, *reads)] == inside
    shutil.rmtree(path)


def _expected(content, item):
    if item.start < 0:
        return content[item.start :] if item.stop is None and -item.start <= len(content) else None
    stop = len(content) if item.stop is None else item.stop
    return content[item.start : stop] if item.start <= stop <= len(content) else None


@given(st.text(st.sampled_from("a./\0é_\udc80"), max_size=8))
def test_keys_are_accepted_by_their_components(text):
    """The quick test of keys accepts what a test of each component accepts."""
    parts = text.removeprefix("/").split("/")
    fine = all(part not in ("", ".", "..") and not part.endswith(".__lock") and "\0" not in part for part in parts)
    try:
        accepted = file_path(text) is not None
    except ValueError:
        accepted = False
    assert accepted == fine


@given(st.lists(st.sampled_from(["a", "b", ".", "..", "", ".__lock", "c.__lock"]), max_size=7))
def test_normalised_paths_are_stable(parts):
    """Normalising twice is normalising once, and leaves only what may begin a key."""
    text = "/".join(parts)
    once = normalize(text)
    assert normalize(once) == once
    assert once.startswith("/") == text.startswith("/")
    if ".." not in once.split("/") and not any(part.endswith(".__lock") for part in parts):
        assert check_prefix(once) == once


def test_orders_of_batches():
    """Every order of a batch of writes gives stamps in that order."""
    for order in itertools.permutations(range(3)):
        store = KvPrefix(MemoryDriver())
        stamps = write(store, *(Write(f"k{n}", b"%d" % n) for n in order))
        assert [stamp.generation for stamp in stamps] == [read(store, Read(f"k{n}"))[0].generation for n in order]
