"""Every root that a storage library serves keeps the promises of the contract, whichever library it is."""

import asyncio
import functools
import gc
import itertools
import json
from collections import OrderedDict
from dataclasses import replace

import aiohttp
import fsspec
import pytest
import zarr
from fsspec.implementations.dirfs import DirFileSystem

import fsstore
from fsstore.errors import NotFoundError, PermissionDeniedError, StoreError, UnimplementedError
from fsstore.kvstore.client.credential import ProbedEngine
from fsstore.kvstore.client.object_store import bucket_engine
from fsstore.kvstore.client.web import HttpEngine
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, KvOpening, KvPrefix, Read, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.engine.contract import Retry
from fsstore.kvstore.engine.driver import SingleWriterDriver
from fsstore.kvstore.memory import MemoryDriver
from fsstore.kvstore.root.cloud import FSSPEC, HTTP, S3, GcsDriver
from fsstore.kvstore.root.live import from_live
from fsstore.kvstore.root.option import gcs_reach
from fsstore.kvstore.root.web import HttpDriver
from fsstore.kvstore.web.client import HttpClient
from fsstore.runtime import execution
from fsstore.testing.doubles import Slow
from fsstore.testing.kvstore_suite import CHECKS, filled

pytestmark = pytest.mark.usefixtures("s3_credentials")

RETRIES = {"s3_request_retries": {"initial_delay": "10ms", "max_retries": 5}}
NUMBERS = itertools.count()


def opened(kind, members, resources=None):
    """Return the driver of a kind."""
    return execution.call(kind.open(KvOpening(members, resources or {})))


def memory(tmp_path):
    """A protocol of fsspec by URL."""
    return KvPrefix(opened(FSSPEC, {"url": f"memory://m{next(NUMBERS)}/"}))


def local(tmp_path):
    """Local files through fsspec."""
    return KvPrefix(opened(FSSPEC, {"url": f"file://{tmp_path}/{next(NUMBERS)}/"}))


def wrapped(tmp_path):
    """A synchronous filesystem behind fsspec's asynchronous wrapper, living on fsspec's loop."""
    from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper

    filesystem = AsyncFileSystemWrapper(fsspec.filesystem("file"), asynchronous=False)
    return KvPrefix(from_live(filesystem).driver, f"{tmp_path}/{next(NUMBERS)}/".lstrip("/"))


def nested(tmp_path):
    """A filesystem with a root in another filesystem."""
    return KvPrefix(opened(FSSPEC, {"url": f"dir::memory://n{next(NUMBERS)}/"}))


def mapper(tmp_path):
    """An `FSMap`."""
    return from_live(fsspec.get_mapper(f"memory://f{next(NUMBERS)}"))


def nested_live(tmp_path):
    """A live filesystem with a root in another one, which has no coroutines."""
    (tmp_path / "below").mkdir(exist_ok=True)
    filesystem = DirFileSystem(str(tmp_path / "below"), fsspec.filesystem("file"))
    live = from_live(filesystem)
    assert f"/{live.path}" == f"{tmp_path}/below/"  # the driver itself is that of all local files
    return live._replace(path=f"{live.path}{next(NUMBERS)}/")


def rootless_mapper(tmp_path):
    """An `FSMap` of a whole filesystem that calls its root nothing."""
    (tmp_path / str(number := next(NUMBERS))).mkdir()
    return from_live(DirFileSystem(f"{tmp_path}/{number}", fsspec.filesystem("file")).get_mapper(""))


def dictionary(tmp_path):
    """A dictionary."""
    return from_live({})


def zarr_memory(tmp_path):
    """A memory store of zarr-python."""
    from zarr.storage import MemoryStore

    return from_live(MemoryStore())


def zarr_local(tmp_path):
    """A store of zarr-python over local files."""
    from zarr.storage import LocalStore

    return from_live(LocalStore(tmp_path / str(next(NUMBERS))))


def guarded_memory(tmp_path):
    """A protocol of fsspec by URL, whose user promises to be the only writer."""
    return KvPrefix(opened(FSSPEC, {"url": f"memory://g{next(NUMBERS)}/", "single_writer": True}))


def guarded_local(tmp_path):
    """Local files through fsspec, with a single writer: their own generations are too coarse."""
    return KvPrefix(opened(FSSPEC, {"url": f"file://{tmp_path}/{next(NUMBERS)}/", "single_writer": True}))


def guarded_dictionary(tmp_path):
    """A dictionary with a single writer."""
    return from_live({}, single_writer=True)


def guarded_zarr_memory(tmp_path):
    """A memory store of zarr-python with a single writer: a storage without generations."""
    from zarr.storage import MemoryStore

    return from_live(MemoryStore(), single_writer=True)


RACES = ("one_creator", "no_lost_update")  # moto compares and stores in two steps; the object server in one

LOCAL_STORES = (
    memory,
    local,
    wrapped,
    nested,
    nested_live,
    mapper,
    rootless_mapper,
    dictionary,
    zarr_memory,
    zarr_local,
    guarded_memory,
    guarded_local,
    guarded_dictionary,
    guarded_zarr_memory,
)

# What a storage system has no way of doing.  Each is a fact about the system, not about the engine.
NOT_EXPRESSIBLE = {
    "keys_of_bytes": (
        "s3",
        "zarr_memory",
        "zarr_local",
        "guarded_zarr_memory",
    )  # keys of S3 are UTF-8; zarr-python's stores are not made for others
}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("store", LOCAL_STORES)
def test_filesystems_and_mappings(check, store, tmp_path):
    """Filesystems of this process and live objects keep the contract."""
    if store.__name__ not in NOT_EXPRESSIBLE.get(check.__name__, ()):
        check(lambda contents: filled(store(tmp_path), contents))


@pytest.fixture(scope="module")
def drivers(moto_bucket):
    """Give a function that returns the driver of an engine over the moto bucket, opened once."""
    endpoint, name = moto_bucket

    @functools.cache
    def driver(engine):
        members = {"bucket": name, "endpoint": endpoint, "aws_region": "us-east-1", "engine": engine}
        return opened(S3, members, RETRIES)

    return driver


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_s3(check, engine, drivers, object_server):
    """S3 keeps the contract through s3fs and through obstore."""
    if "s3" in NOT_EXPRESSIBLE.get(check.__name__, ()):
        return
    if check.__name__ in RACES:
        members = {"bucket": "races", "endpoint": object_server.url, "aws_region": "us-east-1", "engine": engine}
        driver = opened(S3, members, RETRIES)
    else:
        driver = drivers(engine)
    check(lambda contents: filled(KvPrefix(driver, f"{engine}{next(NUMBERS)}/"), contents))


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_s3_refuses_what_it_cannot_do(engine, drivers):
    """A conditional deletion is refused, and a key that is not UTF-8 is an error."""
    store = KvPrefix(drivers(engine), "refuse/")
    execution.call(store.write("k", b"v"))
    with pytest.raises(UnimplementedError):
        execution.call(store.write_many([Write("k", None, b'"x"')]))
    with pytest.raises(StoreError):
        execution.call(store.read("x/\udcff"))
    assert bytes(execution.call(store.read("k")).value) == b"v"


@pytest.fixture
def google(object_server, tmp_path, monkeypatch):
    """Give the driver of a bucket of Google's cloud, through obstore."""
    account = {"gcs_base_url": object_server.url, "disable_oauth": True, "client_email": "", "private_key": ""}
    (tmp_path / "account.json").write_text(json.dumps({**account, "private_key_id": ""}))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
    make, retry = gcs_reach("bucket", {}, {}).store, Retry(max_retries=5, initial_delay_s=0.01)
    return GcsDriver(bucket_engine(make, "gs://bucket/", retry=retry, concurrency=None, plain=True), "")


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
def test_google_cloud_through_obstore(check, google):
    """Google's cloud keeps the contract; its conditions name versions instead of tags."""
    if check.__name__ == "keys_of_bytes":
        return
    check(lambda contents: filled(KvPrefix(google, f"g{next(NUMBERS)}/"), contents))


def test_a_missing_key_does_not_save_those_deleted_with_it(google, object_server):
    """Google's cloud and Azure say of a key that it is missing, and obstore then leaves the keys that follow."""
    store, keys = KvPrefix(google, "many/"), [f"k{number:02}" for number in range(60)]
    for key in keys[1:]:
        object_server.put(f"bucket/many/{key}", b"v")
    object_server.fail("many/k00", *[lambda handler, path, body: handler.reply(404)] * 9, method="DELETE")
    stamps = execution.call(store.write_many([Write(key, None) for key in keys]))
    assert {stamp.generation for stamp in stamps} == {NO_VALUE}
    assert not object_server.objects


@pytest.fixture
def bucket(object_server):
    """Give a function that opens a bucket of its own name on the object server."""
    name = f"conditions{next(NUMBERS)}"

    def open_bucket(engine, **members):
        given = {"bucket": name, "endpoint": object_server.url, "aws_region": "us-east-1", "engine": engine}
        return KvPrefix(opened(S3, given | members, RETRIES), "d/")

    return open_bucket


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_a_server_that_ignores_conditions_is_found_out(engine, bucket, object_server):
    """Its answer to a condition would be a plain write; the question leaves nothing behind, and nothing is lost."""
    object_server.heeds_conditions = False
    store = bucket(engine)
    old = execution.call(store.write("k", b"old")).generation
    for condition in (NO_VALUE, old):
        with pytest.raises(UnimplementedError, match="ignores conditions.*single_writer"):
            execution.call(store.write("k", b"new", condition))
    assert [key.rpartition("/")[2] for key in object_server.objects] == ["k"]
    assert bytes(execution.call(store.read("k")).value) == b"old"


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_an_unknown_server_is_asked_once_before_the_first_condition(engine, bucket, object_server):
    """One request more in the life of the process, and none for writes without conditions."""
    store = bucket(engine)
    execution.call(store.write("a", b"1"))
    assert object_server.count("PUT") == 1
    for number in range(3):
        execution.call(store.write(f"b{number}", b"1", NO_VALUE))
    assert object_server.count("PUT") == 5
    execution.call(bucket(engine, requester_pays=True).write("c", b"1", NO_VALUE))
    assert object_server.count("PUT") == 6
    assert sum("probe" in path for _, path, _ in object_server.log) == 1


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_the_user_may_vouch_for_a_server(engine, bucket, object_server):
    """With `use_conditional_write` true conditions are sent without a question."""
    store = bucket(engine, use_conditional_write=True)
    assert store.driver.features.conditional_write
    first = execution.call(store.write("k", b"1", NO_VALUE))
    assert execution.call(store.write("k", b"2", NO_VALUE)).generation == UNKNOWN
    assert execution.call(store.write("k", b"3", first.generation)).generation != UNKNOWN
    assert object_server.count("PUT") == 3


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_the_user_may_say_that_a_server_has_no_conditions(engine, bucket, object_server):
    """With `use_conditional_write` false they are refused without a request, and a single writer has his own."""
    store = bucket(engine, use_conditional_write=False)
    assert not store.driver.features.conditional_write
    with pytest.raises(UnimplementedError, match="use_conditional_write is false"):
        execution.call(store.write("k", b"1", NO_VALUE))
    assert object_server.log == []
    alone = bucket(engine, use_conditional_write=False, single_writer=True)
    assert execution.call(alone.write("k", b"1", NO_VALUE)).generation != UNKNOWN
    assert execution.call(alone.write("k", b"2", NO_VALUE)).generation == UNKNOWN


@pytest.mark.parametrize(("url", "asked"), [("", 0), ("https://s3.eu-north-1.amazonaws.com", 0), ("http://h:9000", 1)])
@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_amazons_own_servers_are_not_asked(engine, url, asked, monkeypatch):
    """They are known to check conditions; any other address is unknown."""
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    place = {"endpoint": url} if url else {}
    driver = opened(S3, {"bucket": "bucket", "aws_region": "us-east-1", "engine": engine} | place)
    assert isinstance(driver.engine, ProbedEngine) == bool(asked)


def test_use_conditional_write_is_printed_as_given():
    """Three states: true, false, and left out."""
    for given in ({}, {"use_conditional_write": True}, {"use_conditional_write": False}):
        spec = {"driver": "s3", "bucket": "bucket", **given}
        assert fsstore.KvStore.Spec(spec).to_json() == spec


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@pytest.mark.parametrize("engine", ["fsstore", "fsspec", "obstore"])
def test_http(check, engine, object_server):
    """Web servers keep the contract of a read-only store, through each client."""
    if check.__name__ == "keys_of_bytes" and engine == "obstore":
        return
    driver = opened(HTTP, {"base_url": object_server.url, "engine": engine})

    def make(contents):
        place = f"/h{next(NUMBERS)}/"
        for key, value in contents.items():
            object_server.objects[place + key] = value
        return KvPrefix(driver, place)

    check(make)


@pytest.mark.parametrize("engine", ["fsstore", "fsspec", "obstore"])
@pytest.mark.parametrize("base", ["/box", "/box/"])
def test_one_slash_stands_between_the_base_url_and_a_key(engine, base, object_server):
    """A key of a store whose URL ends with a slash must not be looked for behind two: it would read as missing."""
    object_server.put("box/k", b"0123")
    store = fsstore.KvStore.open({"driver": "http", "base_url": object_server.url + base, "engine": engine}).result()
    assert store["k"] == b"0123"
    assert [path for _, path, _ in object_server.log] == ["/box/k"]


@pytest.mark.parametrize(
    ("engine", "place"),
    [("fsstore", "http"), ("fsspec", "http"), ("obstore", "http"), ("fsspec", "s3"), ("obstore", "s3")],
)
@pytest.mark.parametrize(
    ("limits", "requests"),
    [({}, 1), ({"max_gap": 20}, 1), ({"max_gap": 19}, 50), ({"max_gap": 20, "max_size": 300}, 10)],
)
def test_ranges_of_a_batch_are_merged_as_the_context_says(engine, place, limits, requests, object_server):
    """Fifty ranges of 40 bytes, 20 bytes apart: one request, one each, or as many as fit into spans of 300 bytes."""
    data = bytes(range(256)) * 12
    object_server.put("box/k", data)
    spec = {"driver": place, "engine": engine}
    spec |= (
        {"base_url": f"{object_server.url}/box/"}
        if place == "http"
        else {"bucket": "box", "endpoint": object_server.url, "aws_region": "us-east-1"}
    )
    context = fsstore.Context({"range_coalescing": limits})
    store = fsstore.KvStore.open(spec, context=context).result()
    spans = [slice(start, start + 40) for start in range(0, 3000, 60)]
    with fsstore.Batch() as batch:
        futures = [store.read("k", byte_range=span, batch=batch) for span in spans]
    assert [future.result().value for future in futures] == [data[span] for span in spans]
    assert object_server.count() == requests


@pytest.mark.parametrize("key", ["a//b", "../a", "a/./b", "", "a\0", "a/"])
def test_ambiguous_keys_are_refused(key, tmp_path):
    """Keys that storage systems read in different ways are invalid everywhere."""
    for store in (memory(tmp_path), local(tmp_path)):
        with pytest.raises(StoreError, match="Invalid key"):
            execution.call(store.read(key))
        with pytest.raises(StoreError, match="Invalid key"):
            execution.call(store.write(key, b""))


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_deleting_what_must_be_missing_works_everywhere(engine, drivers):
    """A deletion under `NO_VALUE` changes nothing, and says whether the key was missing."""
    store = KvPrefix(drivers(engine), f"absent-{engine}/")
    execution.call(store.write("k", b"v"))
    writes = [Write("k", None, NO_VALUE), Write("n", b"new"), Write("none", None, NO_VALUE)]
    stamps = execution.call(store.write_many(writes))
    assert [stamps[0].generation, stamps[2].generation] == [UNKNOWN, NO_VALUE]
    assert stamps[1].generation == execution.call(store.read("n")).generation
    assert bytes(execution.call(store.read("k")).value) == b"v"


@pytest.mark.parametrize("make", [dict, OrderedDict])
def test_a_mapping_answers_whether_a_key_is_missing(make):
    """Mappings too: no lock is needed to delete nothing."""
    store = from_live(make(k=b"v"))
    stamps = execution.drive(store.write_many([Write("k", None, NO_VALUE), Write("none", None, NO_VALUE)]))
    assert [stamp.generation for stamp in stamps] == [UNKNOWN, NO_VALUE]
    assert bytes(execution.drive(store.read("k")).value) == b"v"
    with pytest.raises(UnimplementedError):
        execution.drive(store.write("k", None, b"\0x"))


@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_a_missing_bucket_is_an_error_not_a_missing_key(engine, moto_url):
    """Whoever mistypes the bucket must not read an empty store."""
    members = {"bucket": "no-such-bucket", "endpoint": moto_url, "aws_region": "us-east-1", "engine": engine}
    store = KvPrefix(opened(S3, members, RETRIES))

    async def collect():
        return [batch async for batch in store.scan()]

    for action in (lambda: store.read("k"), lambda: store.read("k", 2, 5), lambda: store.write("k", b""), collect):
        with pytest.raises(NotFoundError, match="no-such-bucket"):
            execution.call(action())


def test_many_threads_share_a_store(drivers):
    """A driver may be used from any thread at once."""
    store = KvPrefix(drivers("obstore"), "threads/")

    def work(number):
        for turn in range(5):
            execution.call(store.write(f"{number}", b"%d" % turn))
            assert bytes(execution.call(store.read(f"{number}")).value) == b"%d" % turn

    execution.map_blocking(work, range(6), kind="io")


def test_a_dropped_driver_closes_its_connections(object_server, monkeypatch):
    """Connections do not outlive their driver: nothing is left for the garbage collector to complain about."""
    object_server.put("d/x", b"0123")
    make_session, sessions = aiohttp.ClientSession, []
    monkeypatch.setattr(
        aiohttp, "ClientSession", lambda **options: sessions.append(make_session(**options)) or sessions[-1]
    )
    client = HttpClient({}, 5.0)
    plain = HttpDriver(HttpEngine(client), object_server.url)
    full = opened(FSSPEC, {"url": object_server.url, "storage_options": {"encoded": False}})
    for driver in (plain, full):
        assert bytes(execution.call(KvPrefix(driver, "/d/").read("x")).value) == b"0123"
    connections = list(client.kept)
    (session,) = sessions
    assert connections
    assert not session.closed
    del plain, full, driver, client
    gc.collect()

    async def closed():
        while not session.closed or any(connection.open for connection in connections):
            await asyncio.sleep(0)
        return True

    assert execution.call(closed())


def guarded_bucket(bucket, engine):
    """Return the driver of a bucket with a single writer."""
    endpoint, name = bucket
    members = {"bucket": name, "endpoint": endpoint, "aws_region": "us-east-1", "engine": engine}
    return opened(S3, members | {"single_writer": True}, RETRIES)


@pytest.mark.parametrize("check", ["conditional_deletion", "conditions"])
def test_s3_with_a_single_writer(check, moto_bucket):
    """What S3 itself cannot guard, a single writer can."""
    driver = guarded_bucket(moto_bucket, "obstore")
    CHECKS[check](lambda contents: filled(KvPrefix(driver, f"guarded{next(NUMBERS)}/"), contents))


def test_drivers_of_one_place_share_their_claims(tmp_path):
    """The same place opened twice loses no update: claims belong to the process, not to a driver."""
    url = f"memory://twice{next(NUMBERS)}/"
    stores = [KvPrefix(opened(FSSPEC, {"url": url, "single_writer": True})) for _ in range(2)]
    execution.call(stores[0].write("n", b"0"))

    async def count(store):
        for _ in range(20):
            stamp = None
            while stamp is None or stamp.generation == UNKNOWN:
                found = await store.read("n")
                stamp = await store.write("n", b"%d" % (int(bytes(found.value)) + 1), found.generation)

    async def both():
        await execution.gather([count(store) for store in stores * 2])

    execution.call(both())
    assert bytes(execution.call(stores[0].read("n")).value) == b"80"


class InPlace(MemoryDriver):
    """A storage that replaces values as many servers do: it empties them, and then receives."""

    def __init__(self):
        super().__init__()
        self.emptied, self.received = asyncio.Event(), asyncio.Event()
        self._features = replace(self._features, waits=True)

    async def write_many(self, writes):
        """Be half done for as long as the test wants."""
        await super().write_many([write._replace(value=b"") for write in writes])
        self.emptied.set()
        await self.received.wait()
        return await super().write_many(writes)


def test_a_read_beside_a_write_of_a_single_writer_is_old_or_new():
    """Where values are replaced in place, a read waits for the writes to its key, through any store of the place."""

    async def work():
        inner = InPlace()
        await MemoryDriver.write_many(inner, [Write("a", b"old"), Write("b", b"other")])
        writer, reader = SingleWriterDriver(inner), SingleWriterDriver(inner)
        writing = asyncio.ensure_future(writer.write_many([Write("a", b"new")]))
        await inner.emptied.wait()
        reading = asyncio.ensure_future(reader.read_many([Read("b"), Read("a", 0, 3)]))
        abandoned = asyncio.ensure_future(reader.read_many([Read("a")]))
        [other] = await reader.read_many([Read("b")])
        assert bytes(other.value) == b"other"
        assert not reading.done()
        abandoned.cancel()
        inner.received.set()
        await writing
        return [bytes(result.value) for result in await reading]

    assert execution.call(work()) == [b"other", b"new"]


def test_a_write_of_a_single_writer_waits_for_reads_that_have_begun():
    """A read that has begun ends before its value is replaced in place, and reads behind that write wait for it."""
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def pause(operation):
        if operation == "read" and not begun.is_set():
            begun.set()
            await go_on.wait()

    async def work():
        memory = MemoryDriver()
        await memory.write_many([Write("a", b"old")])
        driver = SingleWriterDriver(Slow(memory, pause))
        early = asyncio.ensure_future(driver.read_many([Read("a")]))
        await begun.wait()
        writing = asyncio.ensure_future(driver.write_many([Write("a", b"new")]))
        late = asyncio.ensure_future(driver.read_many([Read("a")]))
        await asyncio.sleep(0)
        assert not writing.done()
        go_on.set()
        await writing
        return [bytes(result.value) for [result] in (await early, await late)]

    assert execution.call(work()) == [b"old", b"new"]


def test_a_range_is_deleted_when_conditions_are_not_being_checked():
    """What is deleted while somebody writes it under a condition stays deleted: the deletion comes after the write."""
    checked, go_on = asyncio.Event(), asyncio.Event()

    async def pause(operation):
        if operation == "write" and not checked.is_set():
            checked.set()
            await go_on.wait()
        await asyncio.sleep(0)

    async def work():
        memory = MemoryDriver()
        [stamp] = await memory.write_many([Write("a", b"1")])
        driver = SingleWriterDriver(Slow(memory, pause))
        writing = asyncio.ensure_future(driver.write_many([Write("a", b"2", stamp.generation)]))
        await checked.wait()
        deleting = asyncio.ensure_future(driver.delete_range(KeyRange()))
        for _ in range(20):
            await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(writing, deleting)
        return (await driver.read_many([Read("a")]))[0].state

    assert asyncio.run(work()) == "missing"


class Refusing(dict):
    """A mapping over something that may not be listed or changed."""

    def __iter__(self):
        raise PermissionError("no")

    def pop(self, key, default=None):
        raise PermissionError("no")


@pytest.mark.parametrize(
    "operation", [lambda store: store.delete_range(KeyRange()), lambda store: store.write("k", None)]
)
def test_errors_of_a_mapping_are_errors_of_ours(operation):
    """Whatever was done when the mapping failed."""
    with pytest.raises(PermissionDeniedError, match="Error (listing|writing)"):
        execution.drive(operation(from_live(Refusing(k=b"v"))))


def test_parts_of_chunks_are_written_where_a_single_writer_is_promised():
    """A store without conditions refuses parts of chunks by a message that names the way out, which then works."""
    place = f"memory://part{next(NUMBERS)}/"
    spec = {"driver": "zarr3", "kvstore": {"driver": "fsspec", "url": place}}
    array = fsstore.open(spec, create=True, dtype="uint8", shape=[4]).result()
    with pytest.raises(UnimplementedError, match='"single_writer": true'):
        array[1:3].write([1, 2]).result()
    spec["kvstore"]["single_writer"] = True
    array = fsstore.open(spec).result()
    array[1:3].write([1, 2]).result()
    assert array.read().result().tolist() == [0, 1, 2, 0]
    assert array.spec().to_json()["kvstore"]["single_writer"] is True
    with pytest.raises(UnimplementedError):
        array.url


def test_a_live_object_with_a_single_writer():
    """The keyword of `KvStore.open` is for live objects only; arrays are opened over the store."""
    mapping = fsspec.get_mapper(f"memory://live{next(NUMBERS)}")
    store = fsstore.KvStore.open(mapping, single_writer=True).result()
    array = fsstore.open({"driver": "zarr3"}, kvstore=store, create=True, dtype="uint8", shape=[4]).result()
    array[1:3] = 7
    assert array.read().result().tolist() == [0, 7, 7, 0]
    with pytest.raises(StoreError, match="single_writer"):
        fsstore.KvStore.open("memory://", single_writer=True).result()


def test_a_directory_of_a_zarr_store_is_no_value(tmp_path):
    """Nor is what would be below a value, however it is asked for."""
    store = zarr_local(tmp_path)
    execution.call(store.write("d/k", b"v"))
    for key in ("d", "d/k/below", "d/no"):
        for read in (Read(key), Read(key, 0, 0), Read(key, 0, 1)):
            assert execution.call(store.read_many([read]))[0].state == "missing"
    [found] = execution.call(store.read_many([Read("d/k", 0, 0)]))
    assert (found.state, found.size) == ("value", 1)


@pytest.mark.parametrize("first", ["zarr-python", "fsstore"])
@pytest.mark.parametrize("place", ["http", "s3"])
def test_a_far_store_of_zarr_python_serves_both(first, place, object_server):
    """Its client belongs to the loop that uses it first; each has his own."""
    from zarr.storage import FsspecStore

    document = {"zarr_format": 3, "node_type": "array", "shape": [2], "data_type": "uint8", "fill_value": 0}
    document |= {
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "codecs": [{"name": "bytes"}],
    }
    document |= {"chunk_key_encoding": {"name": "default"}}
    object_server.put("d/a/zarr.json", json.dumps(document).encode())
    object_server.put("d/a/c/0", b"\x01\x02")
    if place == "http":
        alone = {"skip_instance_cache": True}
        source = FsspecStore.from_url(f"{object_server.url}/d/a", storage_options=alone)
    else:
        options = {
            "skip_instance_cache": True,
            "endpoint_url": object_server.url,
            "client_kwargs": {"region_name": "us-east-1"},
        }
        source = FsspecStore.from_url("s3://d/a", storage_options=options, read_only=True)

    def by_zarr():
        return zarr.open_array(source, mode="r")[:].tolist()

    def by_fsstore():
        return fsstore.open({"driver": "zarr3"}, kvstore=source).result().read().result().tolist()

    turns = [by_zarr, by_fsstore] * 2
    assert [turn() for turn in turns[first == "fsstore" :]] == [[1, 2]] * (4 - (first == "fsstore"))
    with pytest.raises(UnimplementedError, match="does not support writing"):
        execution.call(from_live(source).write("k", b"v"))

    async def close():
        await (await source.fs.set_session()).close()

    zarr.core.sync.sync(close())
