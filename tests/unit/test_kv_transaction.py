"""Transactions over key-value stores."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from fsstore.errors import AbortedError, NotFoundError, StoreError, TransactionCancelledError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvPrefix, Read, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.ledger import PendingChanges
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.local.stage import Protocol
from fsstore.kvstore.memory import MemoryDriver
from fsstore.kvstore.transaction import Transaction, TransactionalDriver
from fsstore.runtime import execution
from fsstore.runtime import future as futures
from fsstore.runtime.execution import drive
from fsstore.testing.doubles import Faulty, Recording, Slow
from fsstore.testing.kvstore_reading import filled, keys_of, read, run, value, write
from fsstore.testing.kvstore_suite import CHECKS

# Conditions on stored values are decided at commit, and results are answered with pending generations.
DECIDED_AT_COMMIT = {
    "conditions",
    "conditional_deletion",
    "creation_only",
    "one_creator",
    "no_lost_update",
    "generations_differ",
}


def local(tmp_path):
    return KvPrefix(LocalDriver(Protocol(sync=False)), f"{tmp_path}/")


@pytest.fixture(params=["memory", "memory-not-atomic", "file", "slow"])
def base(request, tmp_path):
    """A store of each sort: with atomic writes and without, waiting and not."""
    makers = {
        "memory": lambda: KvPrefix(MemoryDriver()),
        "memory-not-atomic": lambda: KvPrefix(MemoryDriver(atomic=False)),
        "file": lambda: local(tmp_path),
        "slow": lambda: KvPrefix(Slow(MemoryDriver())),
    }
    return filled(makers[request.param](), {"k": b"1", "d/x": b"x", "d/y": b"y"})


def inside(store, transaction):
    return KvPrefix(TransactionalDriver(store.driver, transaction.ledger), store.path)


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_contract_inside_a_transaction(check, tmp_path):
    """Seen from inside, a store keeps the contract, but for conditions, which are decided at commit."""
    if check.__name__ in DECIDED_AT_COMMIT:
        return
    numbers = itertools.count()
    kinds = (lambda: KvPrefix(MemoryDriver()), lambda: local(tmp_path / str(next(numbers))))
    for make in kinds:
        check(lambda contents, make=make: filled(inside(make(), Transaction()), contents))
        check(lambda contents, make=make: inside(filled(make(), contents), Transaction()))


def test_isolated_until_committed(base):
    """Changes are seen inside at once, outside only after the commit."""
    transaction = Transaction()
    view = inside(base, transaction)
    write(view, Write("k", b"2"), Write("new", b"n"), Write("d/x", None))
    run(view, view.delete_range(KeyRange("d/", "d0")))
    write(view, Write("d/z", b"z"))
    assert keys_of(view) == {"k", "new", "d/z"}
    assert (value(view, "k"), value(view, "d/y"), value(view, "d/z")) == (b"2", None, b"z")
    assert keys_of(base) == {"k", "d/x", "d/y"}
    transaction.commit_sync()
    assert keys_of(base) == {"k", "new", "d/z"}
    assert value(base, "k") == b"2"


def test_abort_leaves_nothing(base):
    """After an abort nothing has changed, and the transaction says so."""
    transaction = Transaction()
    view = inside(base, transaction)
    write(view, Write("k", b"2"))
    transaction.abort()
    assert value(base, "k") == b"1"
    assert (transaction.open, transaction.commit_started, transaction.aborted) == (False, False, True)
    with pytest.raises(TransactionCancelledError, match="CANCELLED: Transaction aborted"):
        transaction.commit_sync()
    with pytest.raises(StoreError, match=r"Transaction not open \(aborted\)"):
        value(view, "k")


def test_conditions_hold_at_commit(base):
    """A condition on what is stored is checked when the transaction commits, and later writes do not lift it."""
    generation = run(base, base.read("k")).generation
    good, bad = Transaction(), Transaction()
    write(inside(base, good), Write("k", b"good", generation), Write("new", b"n", NO_VALUE))
    assert write(inside(base, bad), Write("k", b"bad", generation))[0].generation != UNKNOWN
    write(inside(base, bad), Write("k", b"worse"))
    good.commit_sync()
    with pytest.raises(AbortedError, match=r'ABORTED: Error writing .*k": Generation mismatch'):
        bad.commit_sync()
    assert value(base, "k") == b"good"


def test_conditions_on_pending_values():
    """A pending value has a generation of its own; a condition on another one dooms the transaction."""
    base = filled(KvPrefix(MemoryDriver()), {"k": b"1"})
    transaction = Transaction()
    view = inside(base, transaction)
    first = write(view, Write("k", b"2"))[0].generation
    assert run(view, view.read("k")).generation == first
    write(view, Write("k", b"3", first))
    write(view, Write("gone", None), Write("gone", b"back", NO_VALUE))
    transaction.commit_sync()
    assert (value(base, "k"), value(base, "gone")) == (b"3", b"back")
    doomed = Transaction()
    view = inside(base, doomed)
    write(view, Write("k", b"4"), Write("other", b"o"))
    write(view, Write("k", b"5", first))
    with pytest.raises(AbortedError):
        doomed.commit_sync()
    assert (value(base, "k"), value(base, "other")) == (b"3", None)


def append(text):
    async def function(old):
        return bytes(old.value) + text

    return function


def test_changes_by_function_merge(base):
    """Two transactions that change the same value by functions both take effect."""
    first, second = Transaction(), Transaction()
    inside(base, first).driver.modify(base.path + "k", append(b"a"))
    view = inside(base, second)
    view.driver.modify(base.path + "k", append(b"b"))
    view.driver.modify(base.path + "k", append(b"c"))
    view.driver.modify(base.path + "fresh", append(b"d"))
    assert (value(view, "k"), value(view, "fresh")) == (b"1bc", b"d")
    assert keys_of(view) == {"k", "fresh", "d/x", "d/y"}
    first.commit_sync()
    assert value(view, "k") == b"1abc"
    second.commit_sync()
    assert (value(base, "k"), value(base, "fresh")) == (b"1abc", b"d")


@pytest.mark.parametrize("changed", [False, True])
def test_what_a_changed_value_is_made_of_belongs_to_its_generation(base, changed):
    """Ranges read one after the other tell whether they are of one version, and conditions hold until the commit."""
    transaction = Transaction()
    view = inside(base, transaction)
    view.driver.modify(base.path + "k", append(b"+"))
    first = run(view, view.read("k"))
    write(base, Write("k", b"22"))
    second = run(view, view.read("k", 0, 3))
    assert (bytes(first.value), bytes(second.value)) == (b"1+", b"22+")
    assert first.generation != second.generation
    assert read(view, Read("k", if_not_equal=second.generation))[0].state == "unspecified"
    write(view, Write("k", bytes(second.value) + b"!", second.generation))
    if changed:
        write(base, Write("k", b"333"))
        with pytest.raises(AbortedError):
            transaction.commit_sync()
    else:
        transaction.commit_sync()
    assert value(base, "k") == (b"333" if changed else b"22+!")


def test_function_on_a_pending_value(base):
    """A function applies to what the transaction wrote or deleted before."""
    transaction = Transaction()
    view = inside(base, transaction)
    write(view, Write("k", b"x"))
    view.driver.modify(base.path + "k", append(b"y"))
    run(view, view.delete_range(KeyRange("d/", "d0")))
    view.driver.modify(base.path + "d/x", append(b"z"))
    assert (value(view, "k"), value(view, "d/x")) == (b"xy", b"z")
    transaction.commit_sync()
    assert (value(base, "k"), value(base, "d/x"), value(base, "d/y")) == (b"xy", b"z", None)


def test_function_runs_again_when_somebody_was_faster():
    """A commit whose input changed while it computed computes again."""
    base = filled(KvPrefix(MemoryDriver()), {"k": b""})
    meddlings = iter([b"1", b"2", b"3"])

    async def function(old):
        text = next(meddlings, None)
        if text is not None:
            await base.write("k", bytes(old.value) + text)
        return bytes(old.value) + b"!"

    for atomic in (True, False):
        transaction = Transaction(atomic=atomic)
        inside(base, transaction).driver.modify("k", function)
        transaction.commit_sync()
    assert value(base, "k") == b"123!!"


def test_function_may_delete(base):
    """A function that returns None deletes the key."""

    async def nothing(_old):
        return None

    transaction = Transaction()
    view = inside(base, transaction)
    view.driver.modify(base.path + "k", nothing)
    assert value(view, "k") is None
    assert "k" not in keys_of(view)
    transaction.commit_sync()
    assert value(base, "k") is None


def test_no_update_is_lost_by_many_transactions(tmp_path):
    """Counters raised by functions in transactions of several threads lose nothing."""
    base = filled(local(tmp_path), {"n": b"0"})

    async def increment(old):
        return b"%d" % (int(bytes(old.value)) + 1)

    def work(_):
        for _ in range(10):
            with Transaction() as transaction:
                inside(base, transaction).driver.modify(base.path + "n", increment)

    execution.map_blocking(work, range(4), kind="compute", limit=4)
    assert value(base, "n") == b"40"


def test_all_or_nothing_where_the_store_can():
    """On a store with atomic writes a failed condition keeps all keys, of non-atomic transactions too."""
    base = filled(KvPrefix(MemoryDriver()), {"k": b"1"})
    for atomic in (True, False):
        transaction = Transaction(atomic=atomic)
        write(inside(base, transaction), Write("a", b"x"), Write("k", b"2", NO_VALUE), Write("z", b"x"))
        with pytest.raises(AbortedError, match='"k"'):
            transaction.commit_sync()
        assert keys_of(base) == {"k"}


def test_atomic_transaction_commits_in_one_step():
    """No reader sees half of an atomic transaction."""
    base = filled(KvPrefix(MemoryDriver()), {f"k{n}": b"0" for n in range(20)})
    reads = [Read(f"k{n}") for n in range(20)]

    def work(number):
        for round_ in range(20):
            if number == 0:
                with Transaction(atomic=True) as transaction:
                    write(inside(base, transaction), *(Write(f"k{n}", b"%d" % round_) for n in range(20)))
            seen = {bytes(result.value) for result in drive(base.read_many(reads))}
            assert len(seen) == 1, seen

    execution.map_blocking(work, range(3), kind="compute", limit=3)


def test_atomic_is_refused_where_the_store_cannot(tmp_path):
    """A second key in an atomic transaction on files fails at once and aborts it; one key is fine."""
    base = local(tmp_path)
    with Transaction(atomic=True) as transaction:
        write(inside(base, transaction), Write("p", b"1"))
        write(inside(base, transaction), Write("p", b"2"))
    assert value(base, "p") == b"2"
    transaction = Transaction(atomic=True)
    write(inside(base, transaction), Write("p", b"3"))
    message = r'Cannot read/write local file ".*/p" and read/write local file ".*/q" as single atomic transaction'
    with pytest.raises(StoreError, match=message):
        write(inside(base, transaction), Write("q", b"3"))
    with pytest.raises(StoreError, match=message):
        transaction.commit_sync()
    assert (value(base, "p"), value(base, "q")) == (b"2", None)


def test_what_is_only_read_is_not_made(tmp_path):
    """A commit leaves alone what was read inside: a database or a set of references that does not exist stays so."""
    stores = [KvStore.open(f"file://{tmp_path}/{url}:").result() for url in ("db/|ocdbt", "refs.json|reference")]
    for repeatable in (False, True):
        transaction = Transaction(repeatable_read=repeatable)
        assert stores[0].with_transaction(transaction).read("k").result().state == "missing"
        with pytest.raises(NotFoundError, match="There is no reference set"):
            stores[1].with_transaction(transaction).read("k").result()
        write(inside(local(tmp_path), transaction), Write("other", b"1"))
        transaction.commit_sync()
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    with pytest.raises(NotFoundError, match="There is no reference set"):
        stores[1].read("k").result()


def test_atomic_across_stores_is_refused():
    """Two stores cannot be written in one step."""
    one, two = KvPrefix(MemoryDriver()), KvPrefix(MemoryDriver())
    transaction = Transaction(atomic=True)
    write(inside(one, transaction), Write("a", b""))
    with pytest.raises(StoreError, match='Cannot read/write "a" and read/write "b" as single atomic transaction'):
        write(inside(two, transaction), Write("b", b""))


@pytest.mark.parametrize("missing", [True, False])
def test_repeatable_read(base, missing):
    """What was read must still be stored at the commit; a second read that differs fails at once."""
    key = "none" if missing else "k"
    quiet = Transaction(repeatable_read=True)
    value(inside(base, quiet), key)
    write(inside(base, quiet), Write("j", b"1"))
    quiet.commit_sync()
    transaction = Transaction(repeatable_read=True)
    view = inside(base, transaction)
    value(view, key)
    write(view, Write("j", b"2"))
    write(base, Write(key, b"changed"))
    with pytest.raises(AbortedError, match="Generation mismatch in repeatable_read transaction"):
        value(view, key)
    with pytest.raises(AbortedError, match="Generation mismatch in repeatable_read transaction"):
        transaction.commit_sync()
    assert value(base, "j") == b"1"


def test_one_view_per_store():
    """Two handles of one store share pending changes; two stores do not."""
    driver = MemoryDriver()
    transaction = Transaction()
    write(inside(KvPrefix(driver), transaction), Write("p/k", b"1"))
    again = KvPrefix(MemoryDriver(driver.storage), "p/")
    assert value(inside(again, transaction), "k") == b"1"
    assert value(inside(KvPrefix(MemoryDriver()), transaction), "p/k") is None


def test_several_stores_commit_together(tmp_path):
    """A transaction that is not atomic writes to all stores it changed, waiting and not."""
    stores = [KvPrefix(Slow(MemoryDriver())), local(tmp_path), KvPrefix(MemoryDriver())]
    with Transaction() as transaction:
        for number, store in enumerate(stores):
            write(inside(store, transaction), Write("k", b"%d" % number))
    assert [value(store, "k") for store in stores] == [b"0", b"1", b"2"]


def test_commit_waits_for_running_operations():
    """An operation begun before the commit was asked for belongs to it; a later one is refused."""
    base = KvPrefix(MemoryDriver())
    transaction = Transaction()
    operation = futures.pending()
    assert transaction.ledger.track(lambda: operation) is operation
    future = transaction.commit_async()
    assert transaction.commit_started
    assert not future.done()
    with pytest.raises(StoreError, match=r"Transaction not open \(commit already started\)"):
        transaction.ledger.track(futures.pending).result(timeout=10)
    write(inside(base, transaction), Write("k", b"late"))
    futures.resolve(operation, None)
    future.result(timeout=10)
    assert value(base, "k") == b"late"
    with pytest.raises(StoreError, match=r"Transaction not open \(commit already started\)"):
        write(inside(base, transaction), Write("k", b"too late"))
    transaction.abort()
    assert not transaction.aborted


def test_waiting_for_the_future_commits():
    """The result of a transaction is what its commit gives."""
    base = KvPrefix(MemoryDriver())
    transaction = Transaction()
    write(inside(base, transaction), Write("k", b"v"))
    assert transaction.future.result() is None
    assert value(base, "k") == b"v"


def test_context_managers():
    """Leaving the block commits; an exception aborts and passes on; `async with` does not block."""
    base = KvPrefix(Slow(MemoryDriver()))
    with pytest.raises(KeyError), Transaction() as transaction:
        write(inside(base, transaction), Write("k", b"v"))
        raise KeyError
    assert transaction.aborted
    assert value(base, "k") is None

    async def use():
        async with Transaction() as transaction:
            await inside(base, transaction).write("k", b"w")
        with pytest.raises(KeyError):
            async with Transaction() as other:
                raise KeyError
        assert other.aborted

    asyncio.run(use())
    assert value(base, "k") == b"w"


def test_failed_writes_surface():
    """An error of the store while committing is the error of the transaction."""
    driver = Faulty(MemoryDriver(), lambda operation, key: StoreError("full") if operation == "write" else None)
    transaction = Transaction()
    write(inside(KvPrefix(driver), transaction), Write("k", b"v"))
    with pytest.raises(StoreError, match="full"):
        transaction.commit_sync()


def test_number_of_requests():
    """A commit of values is one batch; of functions, one batch of reads and one of writes."""
    driver = Recording(MemoryDriver())
    base = KvPrefix(driver)
    transaction = Transaction()
    view = inside(base, transaction)
    write(view, *(Write(f"v{n}", b"v") for n in range(50)))
    for n in range(50):
        view.driver.modify(f"f{n}", append(b"x"))
    transaction.commit_sync()
    assert driver.calls == {"read": 1, "write": 2, "delete_range": 0, "scan": 0}
    assert (len(driver.reads), len(driver.writes)) == (50, 100)


def test_empty_commit_asks_nothing():
    """A transaction without changes commits without a request."""
    driver = Recording(MemoryDriver())
    transaction = Transaction()
    value(inside(KvPrefix(driver), transaction), "k")
    transaction.commit_sync()
    assert driver.calls["read"] == 1
    assert driver.calls["write"] == 0


def test_a_deleted_key_is_never_seen_as_it_is_stored():
    """Who reads while a range is deleted sees the pending value or none, and never that of the store."""
    seen = []

    class Watched(dict):
        def pop(self, key, default=None):
            value = super().pop(key, default)
            seen.append(overlay.find(key))
            return value

    overlay = PendingChanges(plain=Watched(), by_key=Watched())
    for key in "abc":
        overlay.put(key, b"new", UNKNOWN)
    overlay.delete(KeyRange("a", "c"))
    assert {(change.stored, change.value) for change in seen} == {(False, None)}
    assert overlay.find("c").value == b"new"


def test_a_key_changed_again_is_never_seen_as_it_is_stored():
    """Who reads while a pending value is replaced sees the one or the other; each has a generation of its own."""
    seen = []

    class Watched(dict):
        def pop(self, key, default=None):
            seen.append(overlay.find(key).value)
            value = super().pop(key, default)
            seen.append(overlay.find(key).value)
            return value

    overlay = PendingChanges(plain=Watched())
    generations = [overlay.put("a", value, UNKNOWN) for value in (b"1", b"2", b"3")]
    assert seen == [b"1", b"2", b"3", b"3"]
    assert len(set(generations)) == 3
    assert overlay.find("a").generation == generations[-1]
    assert overlay.keys_in(KeyRange()) == ["a"]
    overlay.delete(KeyRange())
    assert overlay.put("a", b"4", UNKNOWN) not in generations
    assert overlay.writes() == [Write("a", b"4")]
