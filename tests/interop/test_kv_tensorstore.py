"""Key-value stores side by side with tensorstore 0.1.86: same files, same generations, same locks, same answers."""

from __future__ import annotations

import os
import shutil

import pytest
import tensorstore
from hypothesis import given
from hypothesis import strategies as st

import fsstore
from fsstore.context.context import Context
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.engine.contract import retry_from
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.local.driver import KIND, LocalDriver
from fsstore.kvstore.local.lock import hold
from fsstore.kvstore.local.stage import Protocol
from fsstore.kvstore.memory import MemoryDriver
from fsstore.kvstore.operation import Batch
from fsstore.kvstore.transaction import Transaction
from fsstore.runtime.execution import drive


class Ours:
    """The names under which both libraries are driven."""

    KvStore, Transaction, Batch = KvStore, Transaction, Batch


LIBRARIES = [Ours, tensorstore]


def both(path, **members):
    spec = {"driver": "file", "path": f"{path}/", "file_io_sync": False, **members}
    return KvStore.open(spec).result(), tensorstore.KvStore.open(spec).result()


def outcome(call):
    """Return what a call gives in a form both libraries share: no times, no generations, errors by their class."""
    try:
        found = call()
        found = found.result() if hasattr(found, "result") else found
    except (ValueError, NotImplementedError, KeyError) as error:
        return "unimplemented" if isinstance(error, NotImplementedError) else "error"
    if hasattr(found, "state"):
        return found.state, found.value
    if hasattr(found, "generation"):
        return "failed" if found.generation == b"" else "done"
    return sorted(found) if isinstance(found, list) else found


def tree(path):
    return sorted(
        os.path.relpath(os.path.join(root, name), path)
        for root, folders, files in os.walk(path)
        for name in [*folders, *files]
    )


def test_same_files_and_generations(tmp_path):
    """What one writes the other reads, with the generation the writer was given."""
    ours, theirs = both(tmp_path)
    for writer, reader in ((ours, theirs), (theirs, ours)):
        for key, value in (("a", b""), ("d/e/f", b"value"), ("d/g", os.urandom(100_000)), (b"\xff/\x80", b"bytes")):
            generation = writer.write(key, value).result().generation
            for store in (reader, writer):
                found = store.read(key).result()
                assert (found.value, found.stamp.generation) == (value, generation)
        assert sorted(reader.list().result()) == sorted(writer.list().result())


def test_conditions_across_libraries(tmp_path):
    """A generation read by one guards a write by the other."""
    ours, theirs = both(tmp_path)
    for one, other in ((ours, theirs), (theirs, ours)):
        old = one.write("k", b"1").result().generation
        new = other.write("k", b"2", if_equal=old).result().generation
        assert new not in (b"", old)
        assert one.write("k", b"3", if_equal=old).result().generation == b""
        assert one.read("k", if_not_equal=new).result().state == "unspecified"
        assert other.write("k", b"4", if_equal=b"\2").result().generation == b""
        assert one.write("k", None, if_equal=new).result().generation == b"\2"


KEYS = ["", "/a", "a/", "a//b", ".", "..", "a/./b", "../a", "a.__lock", "a.__lock/b", "x\0y", ".a", "..a", "a/...",
        "a.__locks", "x__lock", "a b", "é", b"\xff", "n" * 247, "n" * 256, "a/../b", "a/.b/..c"]  # fmt: skip


@pytest.mark.parametrize("key", KEYS)
def test_same_keys_are_valid(tmp_path, key):
    """Both accept and refuse the same keys for reading, writing and deleting."""
    stores = both(tmp_path)
    for call in (lambda s: s.read(key), lambda s: s.write(key, None), lambda s: s.write(key, b"v")):
        ours, theirs = (outcome(lambda call=call, store=store: call(store)) for store in stores)
        assert ours == theirs


@pytest.mark.parametrize(
    "bounds",
    [("x\0/", "x\x000"), ("x\0", "x\1"), ("x\0y", "x\0y\0"), ("x/\0y/", "x/\0y/z"), ("a\0", "z"), ("a", "a\0")],
)
def test_same_ranges_with_nul(tmp_path, bounds):
    """Where a range lies in a directory whose name would have a NUL both refuse it, elsewhere no key has one."""
    found = set()
    for store in both(tmp_path):
        store["a"], store["b/c"] = b"1", b"2"
        keys = type(store).KeyRange(*bounds)
        found.add(
            repr(
                [
                    outcome(lambda s=store: s.list(keys)),
                    outcome(lambda s=store: s.delete_range(keys)),
                    outcome(store.list),
                ]
            )
        )
    assert len(found) == 1


@pytest.mark.parametrize("start", [None, 0, 3, 10, 11, -3, -10, -11])
@pytest.mark.parametrize("stop", [None, 0, 3, 7, 10, 11, -1])
def test_same_byte_ranges(tmp_path, start, stop):
    """Both give the same bytes or the same refusal for every byte range, on files and in memory."""
    stores = [*both(tmp_path), KvStore.open("memory://").result(), tensorstore.KvStore.open("memory://").result()]
    stores[0]["k"] = stores[2]["k"] = stores[3]["k"] = b"0123456789"
    if start is not None and start < 0 and stop == 0:
        return  # the oracle takes `-3:0` for a suffix
    for key in ("k", "none"):
        found = {outcome(lambda s=s, key=key: s.read(key, byte_range=slice(start, stop))) for s in stores}
        assert len(found) == 1, found


PATHS = st.sampled_from(["a", "a/b", "a/b/c", "a/b/d", "a/c", "ab", "b", "b/a", "b/b/b", "c", "c.d", "c/d"])
BOUNDS = st.sampled_from(
    ["", "a", "a/", "a/b", "a/b/", "a/b/c", "a/b0", "a0", "ab", "b", "b/", "b/b/", "c", "c/", "c0", "d"]
)


def _fits(keys):
    return not any(other.startswith(key + "/") for key in keys for other in keys)


@given(st.sets(PATHS, max_size=8).filter(_fits), BOUNDS, BOUNDS)
def test_same_ranges(tmp_path_factory, keys, low, high):
    """Listing and deleting ranges agree key by key, and leave the same directories."""
    results = []
    for library in LIBRARIES:
        path = tmp_path_factory.mktemp("range")
        store = library.KvStore.open({"driver": "file", "path": f"{path}/", "file_io_sync": False}).result()
        for key in keys:
            store[key] = b"v"
        span = library.KvStore.KeyRange(low, high)
        listed = sorted(store.list(span).result())
        store.delete_range(span).result()
        results.append((listed, tree(path)))
        shutil.rmtree(path)
    assert results[0] == results[1]


def test_same_errors(tmp_path):
    """Refusals of the system are the same kind of error, and name the same path and reason."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").touch()
    calls = [
        lambda s: s.write("directory", b"v"),
        lambda s: s.write("file/below", b"v"),
        lambda s: s.write("directory", None),
        lambda s: s.read("n" * 300),
        lambda s: (s / "file/x/").list(),
        lambda s: (s / "file/").list(),
    ]
    for call in calls:
        messages = []
        for store in both(tmp_path):
            with pytest.raises(ValueError) as caught:
                call(store).result()
            messages.append(str(caught.value))
        ours, theirs = messages
        assert ours.split(":")[0] == theirs.split(":")[0], messages
        assert "[os_error_code=" not in ours or ours.split(" [os_error")[0].split(": ")[-1] in theirs, messages


def test_our_lock_holds_off_theirs(tmp_path):
    """While we hold the lock of a key, tensorstore waits; then it writes."""
    _, theirs = both(tmp_path)
    held = hold(os.fsencode(tmp_path / "k"), "os", 1, set())
    future = theirs.write("k", b"theirs")
    with pytest.raises(TimeoutError):
        future.result(timeout=0.2)
    os.write(held.fd, b"ours")
    os.rename(held.path, tmp_path / "k")
    held.let_go()
    future.result(timeout=30)
    assert (tmp_path / "k").read_bytes() == b"theirs"
    assert os.listdir(tmp_path) == ["k"]


@pytest.mark.parametrize("mode", ["os", "lockfile"])
def test_lock_files_of_both_are_the_same(tmp_path, mode):
    """A lock file left behind stops, or does not stop, both alike; afterwards nothing is left."""
    locking = {"mode": mode, "acquire_timeout": "10ms"}
    for store in both(tmp_path, file_io_locking=locking):
        (tmp_path / "k.__lock").touch()
        result = outcome(lambda store=store: store.write("k", b"v"))
        assert result == ("done" if mode == "os" else "error")
        assert os.path.exists(tmp_path / "k.__lock") == (mode == "lockfile")


def test_stale_lock_is_emptied_here_only(tmp_path):
    """A deliberate difference: tensorstore keeps the tail of a stale lock file as part of the value."""
    ours, _ = both(tmp_path)
    (tmp_path / "k.__lock").write_bytes(b"x" * 100)
    ours["k"] = b"v"
    assert (tmp_path / "k").read_bytes() == b"v"


def test_memory_generations():
    """Memory counts its writes in the same way."""
    generations = []
    for library in LIBRARIES:
        store = library.KvStore.open("memory://").result()
        generations.append([store.write(key, b"v").result().generation for key in ("a", "b", "a")])
    assert generations[0] == generations[1]


@pytest.mark.parametrize(
    "url", ["file:///tmp/a/../b", "file://localhost/x/y", "file:///a%2Fb/", "file:///", "file:////a//b/./", "file:///a b",
            "file:///a/.", "file:///a/..", "file:///%C3%A9", "memory://a@b", "memory://a/../b", "memory:///a"]
)  # fmt: skip
def test_same_urls(url):
    """URLs mean the same path and are printed alike."""
    spec = tensorstore.KvStore.Spec(url)
    ours = KvStore.Spec(url)
    assert (ours.path, ours.url) == (spec.path, spec.url)


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["write", "delete", "delete_range", "read", "list", "create", "guess", "outside"]),
        st.sampled_from("abcd"),
        st.sampled_from("abcd"),
    ),
    max_size=12,
)


@given(OPERATIONS, st.sampled_from(["commit", "abort"]))
def test_same_transactions(operations, end):
    """A random transaction shows the same inside at every step, and leaves the same behind."""
    logs = []
    for library in LIBRARIES:
        store = library.KvStore.open("memory://").result()
        store["a"], store["b"] = b"1", b"2"
        transaction = library.Transaction()
        bound = store.with_transaction(transaction)
        log = []
        for number, (operation, one, other) in enumerate(operations):
            value = b"%d" % number
            calls = {
                "write": lambda: bound.write(one, value),
                "delete": lambda: bound.write(one, None),
                "delete_range": lambda: bound.delete_range(
                    library.KvStore.KeyRange(min(one, other), max(one, other) + "x")
                ),
                "read": lambda: bound.read(one),
                "list": lambda: bound.list(),
                "create": lambda: bound.write(one, value, if_equal=b"\2") and None,
                "guess": lambda: bound.write(one, value, if_equal=store.read(one).result().stamp.generation) and None,
                "outside": lambda: store.write(one, value),
            }
            log.append(outcome(calls[operation]))
            log.append(outcome(bound.list))
        log.append(outcome(transaction.commit_sync if end == "commit" else transaction.abort))
        log.append([(key, store[key]) for key in store.list().result()])
        logs.append(log)
    assert logs[0] == logs[1]


def test_mixed_writers_keep_their_locks(tmp_path):
    """Conditional increments of one key from both libraries at once lose nothing."""
    spec = {"driver": "file", "path": f"{tmp_path}/", "file_io_sync": False}
    ours, theirs = KvStore.open(spec).result(), tensorstore.KvStore.open(spec).result()
    ours["n"] = b"0"
    for _ in range(30):
        reads = [store.read("n").result() for store in (ours, theirs)]
        futures = [
            store.write("n", b"%d" % (int(found.value) + 1), if_equal=found.stamp.generation)
            for store, found in zip((ours, theirs), reads, strict=True)
        ]
        won = [future.result().generation != b"" for future in futures]
        assert sum(won) == 1
    assert ours["n"] == b"30"


def test_spec_of_newer_tensorstore_opens():
    """The JSON that tensorstore 0.1.86 prints for a file store opens here."""
    printed = tensorstore.KvStore.open(
        {"driver": "file", "path": "/tmp/x/", "file_io_mode": {"mode": "memmap"}}
    ).result()
    json = printed.spec(retain_context=True).to_json()
    assert KvStore.Spec(json).path == "/tmp/x/"
    assert drive_open(json).mapped


def drive_open(json):
    return KvStore.open(json).result().prefix.driver


def test_kind_is_file():
    """The kind answers to the names tensorstore uses."""
    assert (KIND.id, KIND.schemes) == ("file", ("file",))
    assert drive(KvPrefix(LocalDriver(Protocol())).read("/nonexistent/file")).state == "missing"
    assert MemoryDriver.id == "memory"


@pytest.mark.parametrize(
    "name", ["s3_request_retries", "gcs_request_retries", "http_request_retries", "file_io_retries"]
)
@pytest.mark.parametrize(
    "value", [{}, {"max_retries": 0}, {"max_retries": 32}, {"initial_delay": "1s", "max_delay": "3s"}]
)
def test_same_retries(name, value):
    """Requests to servers are tried 32 times unless a resource says otherwise; an explicit zero is kept."""
    for defaults in (False, True):
        ours, theirs = (
            made({name: value}).spec.to_json(include_defaults=defaults) for made in (Context, tensorstore.Context)
        )
        assert ours == theirs


def test_retries_become_a_policy():
    """What a resource says is what a request does: none at an explicit zero, TensorStore's defaults otherwise."""
    policies = [
        retry_from({"r": Context({"http_request_retries": value})["http_request_retries"].value}, "r")
        for value in ({"max_retries": 0}, {}, {"initial_delay": "5ms"})
    ]
    assert [policy.max_retries for policy in policies] == [0, 32, 32]
    assert [policy.initial_delay_s for policy in policies] == [1.0, 1.0, 0.005]
    assert not list(policies[0].pauses())


def test_same_explicit_default_resources():
    """A member that names the default resource of its type is left out, whatever the member is called."""
    members = {"coordinator": "ocdbt_coordinator", "cache_pool": "cache_pool"}
    given = {"driver": "ocdbt", "base": {"driver": "memory", "path": "a/"}, **members}
    assert KvStore.Spec(given).to_json() == tensorstore.KvStore.Spec(given).to_json()
    assert KvStore.Spec(given).to_json(include_defaults=True)["coordinator"] == "ocdbt_coordinator"


def test_manifests_are_opened_in_the_context_of_their_store():
    """The store of the manifests shares the context of the database it belongs to."""
    spec = {"driver": "ocdbt", "base": "memory://a/", "manifest": "memory://m/"}
    for library in (KvStore, tensorstore.KvStore):
        context = (Context if library is KvStore else tensorstore.Context)()
        library.open(spec, context=context).result()["k"] = b"v"
        keys = library.open("memory://", context=context).result().list().result()
        assert b"m/manifest.ocdbt" in keys


def test_same_listing_of_a_database():
    """Keys of a database are listed as bytes, relative to the path, in a range, without their first bytes."""
    answers = []
    for library in (KvStore, tensorstore.KvStore):
        store = library.open("memory://|ocdbt:p/").result()
        for key in ("a", "b/x", "é"):
            store[key] = b"v"
        answers.append(
            [
                store.list().result(),
                store.list(strip_prefix_length=1).result(),
                store.list(library.KeyRange("b", "c")).result(),
                (store / "b/").list().result(),
            ]
        )
    assert answers[0] == answers[1]


@pytest.mark.parametrize(
    ("library", "found"), [(fsstore, b"new"), (tensorstore, b"new of a killed writer")], ids=["fsstore", "tensorstore"]
)
def test_the_lock_file_of_a_killed_writer(tmp_path, library, found):
    """It is emptied before it becomes the value; TensorStore 0.1.86 leaves what is longer than its own value."""
    (tmp_path / "k.__lock").write_bytes(b"old of a killed writer")
    store = library.KvStore.open({"driver": "file", "path": f"{tmp_path}/"}).result()
    store.write("k", b"new").result()
    assert (tmp_path / "k").read_bytes() == found
    assert os.listdir(tmp_path) == ["k"]
