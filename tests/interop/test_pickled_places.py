"""What is pickled opens the same data in another process, or refuses: it never shows other data or none."""

import json
import os
import pickle
import subprocess
import sys

import fsspec
import numpy as np
import pytest
import zarr

import fsstore as ts
from fsstore.interop.dask import from_tensorstore

_OTHER = """
import os, pickle, sys
os.chdir("/")
sent, action = pickle.load(sys.stdin.buffer)
try:
    answer = "value", eval(action, {"s": sent})
except Exception as error:
    answer = "error", error
sys.stdout.buffer.write(pickle.dumps(answer))
"""


def elsewhere(sent, action):
    """Return what `action` gives of what was sent, or its error, in another process with another directory."""
    done = subprocess.run(
        [sys.executable, "-c", _OTHER],
        input=pickle.dumps((sent, action)),
        capture_output=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    kind, value = pickle.loads(done.stdout)
    if kind == "error":
        raise value
    return value


def an_array(url):
    """Return a new array of ones."""
    array = ts.open(url, create=True, delete_existing=True, dtype="int32", shape=[4]).result()
    array.write(1).result()
    return array


MEMORY = {
    "memory": "memory://a/|zarr3:",
    "database": "memory://b|ocdbt:a/|zarr2:",
    "of fsspec": {"driver": "zarr3", "kvstore": {"driver": "fsspec", "url": "memory://pickled/a/"}},
}


@pytest.mark.parametrize("place", MEMORY.values(), ids=MEMORY)
@pytest.mark.parametrize("action", ["s.read().result().tolist()", "s[:2].write(7).result()"])
def test_memory_refuses_in_another_process(place, action):
    """A pickled array in memory neither reads as fill values nor swallows writes: it says what to do."""
    array = an_array(place)
    with pytest.raises(ts.errors.StoreError, match="pickled in another process.* file://"):
        elsewhere(array, action)
    assert array.read().result().tolist() == [1] * 4


@pytest.mark.parametrize("action", ["s.read('k').result()", "s.write('k', b'2').result()", "s.list().result()"])
def test_key_value_stores_in_memory_refuse_too(action):
    """The same of a `KvStore`: no key is missing there, and none is written."""
    store = ts.KvStore.open("memory://").result()
    store["k"] = b"1"
    with pytest.raises(ts.errors.StoreError, match="pickled in another process"):
        elsewhere(store, action)
    assert store["k"] == b"1"


@pytest.mark.parametrize("place", MEMORY.values(), ids=MEMORY)
def test_memory_is_itself_in_its_own_process(place):
    """A pickle that comes back, or never leaves, is the same store: what one writes the other reads."""
    array = an_array(place)
    again = pickle.loads(pickle.dumps(array))
    array.write(5).result()
    assert again.read().result().tolist() == [5] * 4
    home = pickle.loads(elsewhere(again, "__import__('pickle').dumps(s)"))
    home.write(6).result()
    assert array.read().result().tolist() == [6] * 4


def test_a_forked_child_is_another_process():
    """A child has a copy of the memory; a pickle from its parent does not pass that off as the parent's store."""
    store = ts.KvStore.open("memory://").result()
    store["k"] = b"1"
    sent = pickle.dumps(store)
    child = os.fork()
    if not child:
        try:
            pickle.loads(sent).read("k").result()
            os._exit(1)
        except ts.errors.StoreError:
            os._exit(0)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_pickle_of_what_is_gone_refuses():
    """A pickle does not keep contents alive; without them it refuses, and is not taken for an empty store."""
    store = ts.KvStore.open("memory://").result()
    store["k"] = b"1"
    sent = pickle.dumps(store)
    del store
    with pytest.raises(ts.errors.StoreError, match="or is gone since"):
        pickle.loads(sent).read("k").result()


def test_a_mean_of_an_array_in_memory_is_right_with_threads_and_refused_by_processes():
    """Dask computes the mean of an array in memory, or fails: it never is that of fill values."""
    array = an_array("memory://a/|zarr3:")
    mean = from_tensorstore(array, chunks=2).mean()
    assert mean.compute(scheduler="threads") == 1
    with pytest.raises(ts.errors.StoreError, match="pickled in another process"):
        mean.compute(scheduler="processes", num_workers=1)


def test_relative_paths_are_absolute_in_pickles(tmp_path, monkeypatch):
    """Arrays, stores and specs of relative paths mean the same files in a process with another directory."""
    monkeypatch.chdir(tmp_path)
    array = an_array("file://a.zarr/|zarr3:")
    assert elsewhere(array, "s.read().result().tolist()") == [1] * 4
    elsewhere(array, "s.write(3).result()")
    assert array.read().result().tolist() == [3] * 4
    store = ts.KvStore.open("file://a.zarr/").result()
    assert b"zarr.json" in elsewhere(store, "s.list().result()")
    plain = ts.KvStore.open({"driver": "file"}).result()
    assert b"a.zarr/zarr.json" in elsewhere(plain, "s.list().result()")
    chain = ts.KvStore.open({"driver": "fsspec", "url": "simplecache::file://a.zarr/"}).result()
    assert elsewhere(chain, "s.read('zarr.json').result().value") == store["zarr.json"]
    assert store.spec().to_json() == {"driver": "file", "path": "a.zarr/"}  # JSON stays as it was given


@pytest.mark.parametrize(
    "options",
    [
        {"fo": "a.zarr"},
        {"fo": "a.zarr", "target_protocol": "file"},
        {"fo": "file://a.zarr/"},
        {"fo": {"driver": "file", "path": "a.zarr/"}},
    ],
    ids=str,
)
def test_relative_paths_of_filesystems_are_absolute_in_pickles(tmp_path, monkeypatch, options):
    """The same of fsspec's filesystems over a relative path."""
    monkeypatch.chdir(tmp_path)
    zarr.create_array("a.zarr", data=np.arange(3), zarr_format=2)
    fs = fsspec.filesystem("zarr3", **options)
    assert elsewhere(fs, "s.ls('', detail=False)") == ["c", "zarr.json"]


def test_relative_paths_of_pipelines_are_absolute(tmp_path, monkeypatch):
    """A mapper of a pipeline with a relative root lists and reads the same files in another directory."""
    monkeypatch.chdir(tmp_path)
    zarr.create_array("a b.zarr", data=np.arange(3), zarr_format=2)
    mapper = fsspec.get_mapper("fsstore://file://a%20b.zarr|zarr3:")
    assert sorted(elsewhere(mapper, "list(s)")) == ["c/0", "zarr.json"]


def behind_a_token(object_server):
    """Return the spec of a store whose server wants a token, and the header that has it."""
    object_server.put("/a/zarr.json", b"{}")
    token = "Authorization: Bearer s3cr3t"
    return {"driver": "http", "base_url": object_server.url, "path": "/a/", "headers": [token]}


def test_secrets_stay_in_the_process_that_has_them(object_server):
    """Without a word from its owner a pickle holds no credentials; the worker refuses, and says what to do."""
    store = ts.KvStore.open(behind_a_token(object_server)).result()
    sent = pickle.dumps(store)
    assert b"s3cr3t" not in sent
    asked = len(object_server.log)
    with pytest.raises(ts.errors.PermissionDeniedError, match=r"stayed in the process.*share_secrets\(\)"):
        elsewhere(sent, "__import__('pickle').loads(s)")
    assert len(object_server.log) == asked
    again = pickle.loads(sent)  # at home nothing is missing
    assert again["zarr.json"] == b"{}"
    assert object_server.headers_seen[-1]["Authorization"] == "Bearer s3cr3t"


@pytest.mark.parametrize("again", [False, True], ids=["from here", "passed on by a worker"])
def test_secrets_are_shared_where_the_context_says_so(object_server, again):
    """With `share_secrets` workers open what the owner opens, and so do workers of workers."""
    context = ts.Context({"http_request_retries": {"max_retries": 1}}).share_secrets()
    store = ts.KvStore.open(behind_a_token(object_server), context=context).result()
    if again:
        store = pickle.loads(elsewhere(store, "__import__('pickle').dumps(s)"))
    object_server.headers_seen.clear()
    assert elsewhere(store, "s['zarr.json']") == b"{}"
    assert object_server.headers_seen[-1]["Authorization"] == "Bearer s3cr3t"
    assert "s3cr3t" not in repr(store) + str(store.spec().to_json())


def test_secrets_of_an_array_below_adapters_are_shared(tmp_path, object_server):
    """The choice reaches the store below archives and references, and the options of targets."""
    an_array(f"file://{tmp_path}/a.zarr/|zarr3:")
    for each in ("zarr.json", "c/0"):
        object_server.put(f"/a/{each}", (tmp_path / "a.zarr" / each).read_bytes())
    refs = {f"x/{each}": [f"{object_server.url}/a/{each}"] for each in ("zarr.json", "c/0")}
    object_server.put("/refs.json", json.dumps(refs).encode())
    headers = {"headers": {"Authorization": "Bearer s3cr3t"}}
    base = {"driver": "http", "base_url": object_server.url, "path": "/refs.json", "headers": ["X-Token: 7"]}
    targets = {f"{object_server.url}/a/": headers}
    kvstore = {"driver": "reference", "path": "x/", "base": base, "targets": targets}
    for shares in (True, False):
        context = ts.Context()
        context = context.share_secrets() if shares else context
        array = ts.open({"driver": "zarr3", "kvstore": kvstore}, context=context).result()
        if shares:
            object_server.headers_seen.clear()
            assert elsewhere(array, "s.read().result().tolist()") == [1] * 4
            seen = object_server.headers_seen
            assert {each.get("X-Token") for each in seen} >= {"7"}
            assert {each.get("Authorization") for each in seen} >= {"Bearer s3cr3t"}
        else:
            with pytest.raises(ts.errors.PermissionDeniedError, match="share_secrets"):
                elsewhere(pickle.dumps(array), "__import__('pickle').loads(s)")


def test_a_context_passes_its_choice_on():
    """Contexts below one that shares share too, and a pickled context remembers."""
    context = ts.Context().share_secrets()
    assert ts.Context({}, context).shares_secrets
    assert pickle.loads(pickle.dumps(context)).shares_secrets
    assert not ts.Context().shares_secrets
