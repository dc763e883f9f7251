"""Filesystems of fsspec that fail: what they could not do is never taken for what is not there."""

import asyncio
import errno
from types import SimpleNamespace
from typing import ClassVar

import fsspec
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractFileSystem

from fsstore.errors import FailedPreconditionError, PermissionDeniedError, StoreError, UnavailableError
from fsstore.kvstore.client.generic import AsyncEngine, SyncEngine
from fsstore.kvstore.client.promise import Asked
from fsstore.kvstore.contract.driver import KvPrefix, Read, Write
from fsstore.kvstore.engine.contract import Retry, is_missing, status_of, translate
from fsstore.kvstore.engine.driver import EngineDriver, Home
from fsstore.kvstore.root.live import from_live
from fsstore.runtime import execution

FAST = Retry(max_retries=3, initial_delay_s=0.001, max_delay_s=0.002)
TREE = {"": ["a", "d"], "d": ["d/b", "d/e"], "d/e": ["d/e/c"]}


class Tree(AbstractFileSystem):
    """Files in directories, which can be listed unless an error is scripted for one."""

    protocol = "tree"
    cachable = False

    def __init__(self, **errors):
        super().__init__()
        self.errors = errors

    def ls(self, path, detail=True, **kwargs):
        """List a directory, or raise the next of its errors."""
        if self.errors.get(path):
            raise self.errors[path].pop(0)
        if path not in TREE:
            raise FileNotFoundError(path)
        return [self.info(name) for name in TREE[path]]

    def info(self, path, **kwargs):
        """Tell a directory from a file."""
        if path in TREE:
            return {"name": path, "size": 0, "type": "directory"}
        if any(path in names for names in TREE.values()):
            return {"name": path, "size": 1, "type": "file"}
        raise FileNotFoundError(path)


class AsyncTree(AsyncFileSystem):
    """The same with coroutines."""

    protocol = "tree"
    cachable = False

    def __init__(self, **errors):
        super().__init__(asynchronous=True)
        self.tree = Tree(**errors)

    async def _ls(self, path, detail=True, **kwargs):
        return self.tree.ls(path)

    async def _info(self, path, **kwargs):
        return self.tree.info(path)


@pytest.fixture(params=["plain", "with coroutines"])
def listed(request):
    """Give a function that lists a tree with scripted errors, through each engine."""

    async def keys(errors):
        if request.param == "plain":
            engine = SyncEngine(Tree(**errors), "tree", retry=FAST)
        else:
            engine = AsyncEngine(Home(None, AsyncTree(**errors)), "tree", retry=FAST)
        return sorted([entry.key async for batch in KvPrefix(EngineDriver(engine, "")).scan() for entry in batch])

    return lambda errors: execution.call(keys(errors))


def test_a_directory_that_may_not_be_listed_is_an_error(listed):
    """fsspec leaves it out of what it finds, so that half a store would pass for all of it."""
    with pytest.raises(PermissionDeniedError, match='Error listing "tree://"'):
        listed({"d": [PermissionError(errno.EACCES, "no")]})


def test_listing_is_tried_again(listed):
    """A failure that may pass is not the last word, wherever in the tree."""
    assert listed({"": [ConnectionResetError()], "d/e": [TimeoutError()]}) == ["a", "d/b", "d/e/c"]
    with pytest.raises(UnavailableError):
        listed({"d": [ConnectionResetError()] * 9})


def test_what_changes_while_it_is_listed_is_listed_again(listed):
    """A directory or file that goes away on the way does not take what is beside it along."""
    assert listed({"d": [FileNotFoundError()]}) == ["a", "d/b", "d/e/c"]


def test_a_directory_that_is_missing_holds_nothing(listed, monkeypatch):
    """And is no error."""
    monkeypatch.delitem(TREE, "")
    assert listed({}) == []


def test_a_write_that_fails_leaves_nothing(tmp_path):
    """The file in which a value was to be written goes with it."""
    (tmp_path / "k").mkdir()
    store = from_live(fsspec.filesystem("file"))
    with pytest.raises(StoreError):
        execution.call(store.write(f"{tmp_path}/k".lstrip("/"), b"v"))
    assert [path.name for path in tmp_path.iterdir()] == ["k"]


class Slow(Tree):
    """Files whose reading can be held up."""

    begun: ClassVar[list[str]] = []

    def cat_file(self, path, start=None, end=None, **kwargs):
        """Wait to be told."""
        self.begun.append(path)
        self.gate.result(30)
        return b"v"


def test_a_cancelled_batch_is_dropped_by_its_thread():
    """The read under way is ended, and the others are not begun."""
    filesystem = Slow()
    filesystem.gate = execution.futures.pending()
    engine = SyncEngine(filesystem, "slow")

    async def cancelled():
        task = asyncio.ensure_future(engine.read_many([Read(f"k{n}") for n in range(9)]))
        while not filesystem.begun:
            await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    execution.call(cancelled())
    execution.futures.resolve(filesystem.gate, None)
    for _ in range(64):  # every thread of the pool has been asked since
        execution.submit(bool, kind="io").result()
    assert filesystem.begun == ["k0"]


class Counted(AsyncFileSystem):
    """Google's cloud, as gcsfs shows it, with one object; `told` says whether answers tell its version."""

    protocol = "gs"
    cachable = False

    def __init__(self, told):
        super().__init__(asynchronous=True)
        self.told, self.asked = told, []

    def url(self, path):
        """Return the address of an object."""
        return f"https://host/{path}"

    async def _call(self, method, url, headers):
        self.asked.append("value")
        first, _, last = headers.get("Range", "bytes=0-3").removeprefix("bytes=").partition("-")
        return {"x-goog-generation": "17"} if self.told else {}, b"abcd"[int(first) : int(last) + 1]

    async def _info(self, path, **_):
        self.asked.append("info")
        return {"name": path, "size": 4, "type": "file", "generation": "17"}


@pytest.mark.parametrize(("told", "questions"), [(True, 1), (False, 3)])
def test_a_value_of_google_comes_with_its_version(told, questions):
    """One request brings both; where the answer does not tell the version, it is asked before the value."""
    cloud = Counted(told)
    engine = AsyncEngine(Home(None, cloud), "gs", retry=FAST)
    part, whole = execution.call(engine.read_many([Read("k", 1, 3)])) + execution.call(engine.read_many([Read("k")]))
    assert (part.value, whole.value) == (b"bc", b"abcd")
    assert part.generation == whole.generation == b"\0generation=17"
    assert cloud.asked == (["value"] * 2 if told else ["value", "info", "value"] * 2)
    assert len(cloud.asked) == 2 * questions
    (same,) = execution.call(engine.read_many([Read("k", if_not_equal=whole.generation)]))
    assert same.state == "unspecified"


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_a_value_that_is_replaced_between_two_questions_is_asked_for_again(protocol, tmp_path, monkeypatch):
    """The end of a value is that of one version: never bytes of the new one at the place of the old one's end."""
    filesystem, path = fsspec.filesystem(protocol), f"{tmp_path}/k"
    filesystem.makedirs(str(tmp_path), exist_ok=True)
    store = from_live(filesystem)
    engine, asked = store.driver.engine, []
    execution.call(engine.write_many([Write(path, b"old!")]))
    ask = Asked.__call__

    async def replacing(self, verb, *arguments):
        found = await ask(self, verb, *arguments)
        asked.append(verb)
        if asked == ["info"]:
            await ask(self, "rm_file", path)
            await ask(self, "pipe_file", path, b"a longer one")
        return found

    monkeypatch.setattr(Asked, "__call__", replacing)
    (end,) = execution.call(engine.read_many([Read(path, -2)]))
    assert bytes(end.value) == b"ne"
    assert asked == ["info", "read"] * 2


@pytest.mark.parametrize("protocol", ["file", "memory"])
def test_a_local_value_comes_with_its_version(protocol, tmp_path, monkeypatch):
    """A read is one question, and what it says of the version is what a write has said."""
    filesystem = fsspec.filesystem(protocol)
    filesystem.makedirs(str(tmp_path), exist_ok=True)
    engine = from_live(filesystem).driver.engine
    (stamp,) = execution.call(engine.write_many([Write(f"{tmp_path}/k", b"0123456789")]))
    monkeypatch.setattr(type(filesystem), "info", None)
    for part in ((0, None), (2, 5)):
        (found,) = execution.call(engine.read_many([Read(f"{tmp_path}/k", *part)]))
        assert (bytes(found.value), found.generation) == (b"0123456789"[slice(*part)], stamp.generation)
    assert stamp.generation.startswith(b"\0")


class HTTPError(OSError):
    """An error of `requests`: its response says what happened."""

    def __init__(self, status):
        super().__init__(f"{status} for url: https://host/a?token=s3cr3t")
        self.response = SimpleNamespace(status_code=status)


def test_the_response_of_an_error_says_what_it_is():
    """Filesystems over `requests` and `httpx` raise errors that carry the response."""
    assert status_of(HTTPError(503)) == 503
    assert isinstance(translate(HTTPError(503)), UnavailableError)
    assert isinstance(translate(HTTPError(403)), PermissionDeniedError)
    assert is_missing(HTTPError(404))
    assert not is_missing(HTTPError(403))
    assert "s3cr3t" not in str(translate(HTTPError(400)))
    assert isinstance(translate(HTTPError(400)), FailedPreconditionError)


@pytest.mark.parametrize("text", ["<Code>NoSuchBucket</Code>", "The specified container does not exist.",
                                  "ErrorCode:ContainerNotFound", "The specified bucket does not exist."])  # fmt: skip
def test_without_its_container_a_key_is_not_missing(text):
    """Clients raise the same for a missing container, in their words or in those of their cause."""
    assert not is_missing(FileNotFoundError(text))
    error = FileNotFoundError(errno.ENOENT, "No such file", "container/key")
    assert is_missing(error)
    error.__cause__ = RuntimeError(text)
    assert not is_missing(error)
