"""The plain way: stores, and arrays on them, keep their promises over fsspec's filesystems, whichever it is.

Filesystems that are served elsewhere in the suite (s3fs, gcsfs, adlfs, SFTP, FTP, WebDAV) keep the contract of stores in
`test_fs_stores`, `test_cloud_emulators` and `test_real_servers`; here the array programs run over them.
"""

from __future__ import annotations

import io
import itertools
import subprocess
import tarfile
import zipfile
from importlib.util import find_spec

import fsspec
import numpy as np
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.spec import AbstractFileSystem
from upath import UPath

import fsstore as ts
from fsstore.errors import StoreError, UnimplementedError
from fsstore.filesystem.place import live_kv
from fsstore.kvstore.client.generic import AsyncEngine, SyncEngine
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.engine.contract import Retry
from fsstore.kvstore.engine.driver import EngineDriver, Home
from fsstore.kvstore.kv_store import KvStore
from fsstore.kvstore.root.live import from_live
from fsstore.runtime import execution
from fsstore.testing.kvstore_reading import READING
from fsstore.testing.kvstore_suite import CHECKS, filled
from tests.servers.process import PASSWORD, USER

pytestmark = [
    pytest.mark.usefixtures("s3_credentials", "clients_gone"),
    pytest.mark.filterwarnings("ignore"),  # client libraries leave sockets open
]
NUMBERS = itertools.count()


# Two filesystems of a third party: a dictionary of files, with as few methods as fsspec asks for.


class Shelf(AbstractFileSystem):
    """A synchronous filesystem."""

    protocol, cachable = "shelf", False

    def __init__(self, **options):
        super().__init__(**options)
        self.files = {}

    def ls(self, path, detail=True, **_):
        """Return what is directly below a path, or the file."""
        found = below(self.files, self._strip_protocol(path))
        return found if detail else [each["name"] for each in found]

    def _open(self, path, mode="rb", **_):
        if mode == "rb":
            if path not in self.files:
                raise FileNotFoundError(path)
            return io.BytesIO(self.files[path])
        files = self.files

        class Filling(io.BytesIO):
            """A file that is there once it is closed."""

            def close(self):
                """Keep the bytes."""
                if not self.closed:
                    files[path] = self.getvalue()
                super().close()

        return Filling()

    def _rm(self, path):
        del self.files[path]

    def rm_file(self, path):
        """Delete a file."""
        if self._strip_protocol(path) not in self.files:
            raise FileNotFoundError(path)
        del self.files[self._strip_protocol(path)]


class FarShelf(AsyncFileSystem):
    """An asynchronous filesystem."""

    protocol, cachable = "farshelf", False

    def __init__(self, **options):
        super().__init__(**options)
        self.files = {}

    async def _cat_file(self, path, start=None, end=None, **_):
        if self._strip_protocol(path) not in self.files:
            raise FileNotFoundError(path)
        return self.files[self._strip_protocol(path)][start:end]

    async def _pipe_file(self, path, value, mode="overwrite", **_):
        self.files[self._strip_protocol(path)] = bytes(value)

    async def _rm_file(self, path, **_):
        if self.files.pop(self._strip_protocol(path), None) is None:
            raise FileNotFoundError(path)

    async def _ls(self, path, detail=True, **_):
        found = below(self.files, self._strip_protocol(path))
        return found if detail else [each["name"] for each in found]

    async def _info(self, path, **_):
        path = self._strip_protocol(path)
        if path in self.files:
            return {"name": path, "size": len(self.files[path]), "type": "file"}
        below(self.files, path)
        return {"name": path, "size": 0, "type": "directory"}


def below(files, path):
    """Return the descriptions of what is directly below a path."""
    lead = f"{path}/" if path else ""
    found = {}
    for name in list(files):
        if name == path:
            return [{"name": name, "size": len(files[name]), "type": "file"}]
        if name.startswith(lead):
            head, slash, _ = name[len(lead) :].partition("/")
            kind = {"size": 0, "type": "directory"} if slash else {"size": len(files[name]), "type": "file"}
            found[lead + head] = {"name": lead + head, **kind}
    if not found and path:
        raise FileNotFoundError(path)
    return list(found.values())


# Stores that can be written: each function returns a new, empty one.


def opened(spec, **options):
    """Return the store of a spec through fsspec, with conditions that this process checks."""
    return KvStore.open(spec, engine="fsspec", **options).result().prefix


def file(tmp_path, _server):
    """Local files, and fsspec's LocalFileSystem in the place of the native driver."""
    return opened({"driver": "file", "path": f"{tmp_path}/{next(NUMBERS)}/", "single_writer": True})


def memory(tmp_path, _server):
    """fsspec's MemoryFileSystem in the place of the native memory."""
    return opened({"driver": "memory", "path": f"matrix{next(NUMBERS)}/", "single_writer": True})


def directory(tmp_path, _server):
    """A DirFileSystem."""
    (tmp_path / (name := str(next(NUMBERS)))).mkdir()
    return from_live(DirFileSystem(f"{tmp_path}/{name}", fsspec.filesystem("file")).get_mapper(""), single_writer=True)


def upath(tmp_path, _server):
    """A path of universal_pathlib."""
    return from_live(UPath(f"memory://upath{next(NUMBERS)}/"), single_writer=True)


def third_party(tmp_path, _server):
    """A synchronous filesystem that fsstore has never heard of."""
    return from_live(Shelf(), single_writer=True)


def third_party_async(tmp_path, _server):
    """An asynchronous one."""
    return from_live(FarShelf(), single_writer=True)


def s3(tmp_path, server):
    """s3fs, over moto."""
    endpoint, bucket = server.getfixturevalue("moto_bucket")
    place = {"driver": "s3", "bucket": bucket, "endpoint": endpoint, "aws_region": "us-east-1"}
    return opened({**place, "path": f"matrix{next(NUMBERS)}/"})


def gcs(tmp_path, server):
    """gcsfs, over gcp-storage-emulator."""
    options = {"token": "anon", "endpoint_url": f"http://127.0.0.1:{server.getfixturevalue('real_server')('gcs')[0]}"}
    place = {"driver": "gcs", "bucket": "bucket", "single_writer": True, "path": f"matrix{next(NUMBERS)}/"}
    return opened(place, storage_options=options)


def abfs(tmp_path, server):
    """adlfs, over azurite."""
    import adlfs

    from tests.contract.test_cloud_emulators import ACCOUNT, KEY

    address = f"http://127.0.0.1:{server.getfixturevalue('real_server')('azure')[0]}/{ACCOUNT}"
    text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={address};"
    name = f"matrix{next(NUMBERS)}"
    adlfs.AzureBlobFileSystem(connection_string=text).mkdir(name)
    place = {"driver": "abfs", "container": name, "account_name": ACCOUNT, "single_writer": True}
    return opened(place, storage_options={"connection_string": text})


def sftp(tmp_path, server):
    """An SFTP server."""
    port = server.getfixturevalue("real_server")("sftp")[0]
    options = {"username": USER, "password": PASSWORD}
    place = {"driver": "fsspec", "url": f"sftp://127.0.0.1:{port}/matrix{next(NUMBERS)}/", "single_writer": True}
    return opened(place, storage_options=options)


def ftp(tmp_path, server):
    """An FTP server."""
    options = {"username": USER, "password": PASSWORD, "port": server.getfixturevalue("real_server")("ftp")[0]}
    place = {"driver": "fsspec", "url": f"ftp://127.0.0.1/matrix{next(NUMBERS)}/", "single_writer": True}
    return opened(place, storage_options=options)


def webdav(tmp_path, server):
    """A WebDAV server."""
    options = {"base_url": f"http://127.0.0.1:{server.getfixturevalue('real_server')('webdav')[0]}/"}
    place = {"driver": "fsspec", "url": f"webdav://matrix{next(NUMBERS)}/", "single_writer": True}
    return opened(place, storage_options=options)


# Stores that can only be read: each function returns one with the given contents.


def written(tmp_path, contents):
    """Return a new local directory with the contents."""
    home = tmp_path / str(next(NUMBERS))
    for key, value in contents.items():
        (home / key).parent.mkdir(parents=True, exist_ok=True)
        (home / key).write_bytes(value)
    home.mkdir(exist_ok=True)
    return home


def http(tmp_path, server, contents):
    """HTTPFileSystem, in the place of fsstore's own client."""
    objects, place = server.getfixturevalue("object_server"), f"matrix{next(NUMBERS)}/"
    for key, value in contents.items():
        objects.put(place + key, value)
    return opened(f"{objects.url}/{place}")


def zip_archive(tmp_path, _server, contents):
    """ZipFileSystem."""
    with zipfile.ZipFile(path := f"{tmp_path}/{next(NUMBERS)}.zip", "w") as archive:
        for key, value in contents.items():
            archive.writestr(key, value)
    return opened(f"zip::file://{path}")


def tar_archive(tmp_path, _server, contents):
    """TarFileSystem."""
    with tarfile.open(path := f"{tmp_path}/{next(NUMBERS)}.tar", "w") as archive:
        archive.add(written(tmp_path, contents), "")
    return opened(f"tar::file://{path}")


def simplecache(tmp_path, _server, contents):
    """Whole files kept in a cache."""
    return opened(f"simplecache::file://{written(tmp_path, contents)}/")


def filecache(tmp_path, _server, contents):
    """Whole files kept, and looked after."""
    return opened(f"filecache::file://{written(tmp_path, contents)}/")


def blockcache(tmp_path, _server, contents):
    """Blocks of files kept."""
    return opened(f"blockcache::file://{written(tmp_path, contents)}/")


def reference(tmp_path, _server, contents):
    """fsspec's ReferenceFileSystem, with values inline and in a file."""
    (tmp_path / (name := f"{next(NUMBERS)}.bin")).write_bytes(b"".join(contents.values()))
    refs, at = {}, 0
    for number, (key, value) in enumerate(contents.items()):
        refs[key] = [f"file://{tmp_path}/{name}", at, len(value)] if number % 2 else value
        at += len(value)
    return from_live(fsspec.filesystem("reference", fo=refs, remote_protocol="file", skip_instance_cache=True))


def cached_reference(tmp_path, server, contents):
    """The same behind a cache of files."""
    inner = fsspec.filesystem(
        "reference", fo={key: [str(written(tmp_path, contents) / key)] for key in contents}, remote_protocol="file"
    )  # fmt: skip
    cache = fsspec.filesystem("simplecache", fs=inner, cache_storage=f"{tmp_path}/cache{next(NUMBERS)}")
    return from_live(cache)


def git(tmp_path, _server, contents):
    """GitFileSystem, over a commit."""
    home = written(tmp_path, {**contents, "x": b""} if not contents else contents)
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "all"]):
        who = ["-c", "user.name=n", "-c", "user.email=e@x"]
        subprocess.run(["git", *who, *command], cwd=home, check=True)
    return from_live(fsspec.filesystem("git", path=str(home)))


WRITABLE = (file, memory, directory, upath, third_party, third_party_async)
SERVED = (s3, gcs, abfs, sftp, ftp, webdav)
READABLE = (http, zip_archive, tar_archive, simplecache, filecache, blockcache, reference, cached_reference)
READABLE += (git,) if find_spec("pygit2") else ()

# What a filesystem has no way of doing.
NOT_EXPRESSIBLE = {
    "keys_of_bytes": (  # names are text there, or are written to files by the names they have
        *("upath", "zip_archive", "tar_archive", "simplecache", "filecache", "blockcache"),
        *("reference", "cached_reference", "git", "http"),
    )
}


def able(check, store):
    """Return whether a filesystem can be asked for what a check is about."""
    return store.__name__ not in NOT_EXPRESSIBLE.get(check, ())


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("store", WRITABLE, ids=lambda store: store.__name__)
def test_stores_that_can_be_written(check, store, tmp_path, request):
    """The contract of stores holds over a filesystem that can be written."""
    if able(check, store):
        CHECKS[check](lambda contents: filled(store(tmp_path, request), contents))


@pytest.mark.parametrize("cache", ["simplecache", "filecache", "blockcache"])
def test_a_cache_over_the_web_is_looked_into(cache, object_server):
    """A value that was read through a cache of fsspec is not asked for again."""
    object_server.put("box/k", b"value" * 100)
    store = opened(f"{cache}::{object_server.url}/box/")
    assert [store_read(store, "k") for _ in range(4)] == [b"value" * 100] * 4
    assert sum(method == "GET" for method, *_ in object_server.log) <= 2  # one may be for the size


def store_read(store, key):
    """Return the value of a key."""
    return bytes(execution.call(store.read(key)).value)


@pytest.mark.parametrize("store", [s3, gcs, abfs], ids=lambda store: store.__name__)
def test_keys_below_a_key_are_listed(store, tmp_path, request):
    """Where a name is a key, what is listed below it are the keys that begin with it and a slash."""
    home = KvStore.of(live_kv(store(tmp_path, request)))
    home["a"], home["a/b"] = b"1", b"2"
    listed = [sorted((home / below).list().result()) for below in ("a/", "a/b/", "")]
    assert listed == [[b"b"], [], [b"a", b"a/b"]]


# git's fails with an AttributeError there, which is told as an error of its
@pytest.mark.parametrize("store", [each for each in READABLE if each is not git], ids=lambda store: store.__name__)
def test_a_directory_has_no_value(store, tmp_path, request):
    """Where keys lie below a name, the name itself is missing, whatever the filesystem raises."""
    opened_store = store(tmp_path, request, {"d/x": b"1"})
    for part in ((0, None), (0, 1)):
        assert execution.call(opened_store.read("d", *part)).state == "missing"


@pytest.mark.parametrize("store", [zip_archive, tar_archive], ids=lambda store: store.__name__)
def test_archives_are_not_written(store, tmp_path, request):
    """fsspec opens archives to read them; writing is refused before anything is tried."""
    with pytest.raises(UnimplementedError, match="does not support writing"):
        execution.call(store(tmp_path, request, {"a": b"1"}).write("b", b"2"))


@pytest.mark.parametrize("check", READING)
@pytest.mark.parametrize("store", READABLE, ids=lambda store: store.__name__)
def test_stores_that_can_be_read(check, store, tmp_path, request):
    """The contract of reading holds over a filesystem that cannot be written."""
    if able(check, store):
        READING[check](lambda contents: store(tmp_path, request, contents))


# Sixty array programs: five steps on each of twelve arrays.


SHAPE, CHUNKS, GROWN = [7, 10], [3, 4], [9, 11]
FORMATS = {
    "zarr2": ("zarr2", {"compressor": {"id": "zlib", "level": 1}}),
    "zarr3": ("zarr3", {}),
    "sharded": (
        "zarr3",
        {
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [6, 8]}},
            "codecs": [{"name": "sharding_indexed", "configuration": {"chunk_shape": CHUNKS}}],
        },
    ),
    "n5": ("n5", {"compression": {"type": "gzip"}}),
}
DTYPES = ("uint8", "int32", "float64")
ARRAYS = [(name, dtype) for name in FORMATS for dtype in DTYPES]


def values(dtype, shape=tuple(SHAPE)):
    """Return numbers that differ."""
    return (np.arange(np.prod(shape)) % 251).astype(dtype).reshape(shape)


def made(store, name, dtype):
    """Create an array and fill it."""
    driver, metadata = FORMATS[name]
    spec = {"driver": driver, "metadata": metadata}
    layout = {} if name == "sharded" else {"chunk_layout": ts.ChunkLayout(chunk_shape=CHUNKS)}
    array = ts.open(spec, kvstore=store, create=True, dtype=dtype, shape=SHAPE, **layout).result()
    array.write(values(dtype)).result()
    return array


READS = {
    "a strided box": lambda array, known: (array[1:6, 2:9:3].read().result(), known[1:6, 2:9:3]),
    "index arrays": lambda array, known: (
        array.oindex[[5, 0, 2], [9, 9, 1]].read().result(),
        known[np.ix_([5, 0, 2], [9, 9, 1])],
    ),
    "one row, transposed": lambda array, known: (array.T[:, 4].read().result(), known.T[:, 4]),
    "a mask": lambda array, known: (array[known > 40].read().result(), known[known > 40]),
    "everything": lambda array, known: (array.read().result(), known),
}


def wrong_reads(array, known):
    """Return the names of reads whose values are not NumPy's."""
    return [name for name, read in READS.items() if not np.array_equal(*read(array, known))]


def write_part(array, known):
    """Write a part of chunks."""
    known[2:5, 1:8] = 9
    array[2:5, 1:8] = 9
    return array, known


def write_points(array, known):
    """Write single elements."""
    known[[0, 6, 3], [9, 0, 3]] = [1, 2, 3]
    array.vindex[[0, 6, 3], [9, 0, 3]] = np.array([1, 2, 3], known.dtype)
    return array, known


def grow(array, known):
    """Resize, and fill what is new."""
    grown = np.zeros(GROWN, known.dtype)
    grown[: SHAPE[0], : SHAPE[1]] = known
    return array.resize(exclusive_max=GROWN).result(), grown


def shrink(array, known):
    """Make it smaller: chunks are deleted."""
    return array.resize(exclusive_max=[4, 4], resize_metadata_only=False).result(), known[:4, :4].copy()


def rewrite(array, known):
    """Write all of it at once."""
    array[...] = known[::-1].copy()
    return array, known[::-1].copy()


STEPS = (write_part, write_points, grow, rewrite, shrink)


def _turn(store, array):
    """Return a parameter, which takes long where a server answers slowly."""
    marks = [pytest.mark.long] if store in SERVED and array != ("sharded", "int32") else []
    return pytest.param(store, array, marks=marks, id="-".join((store.__name__, *array)))


@pytest.mark.parametrize(("store", "array"), [_turn(*pair) for pair in itertools.product((*WRITABLE, *SERVED), ARRAYS)])
def test_programs_on_filesystems_that_can_be_written(store, array, tmp_path, request):
    """Five programs, each going on with the array of the one before, leave what they leave in NumPy."""
    prefix = store(tmp_path, request)
    place = KvStore.of(live_kv(prefix))
    handle, known = made(place, *array), values(array[1])
    for step in STEPS:
        handle, known = step(handle, known)
        again = ts.open({"driver": FORMATS[array[0]][0], "kvstore": place}).result()
        assert np.array_equal(again.read().result(), known), step.__name__


@pytest.fixture(scope="module")
def stored():
    """Give the keys of twelve arrays."""
    contents = {}
    for name, dtype in ARRAYS:
        made(KvStore.of(live_kv(from_live(home := {}, single_writer=True))), name, dtype)
        contents |= {f"{name}-{dtype}/{key}": value for key, value in home.items()}
    return contents


@pytest.mark.parametrize("store", READABLE, ids=lambda store: store.__name__)
def test_programs_on_filesystems_that_can_be_read(store, stored, tmp_path, request):
    """Five programs on each of twelve arrays read what they read in NumPy."""
    place = KvStore.of(live_kv(store(tmp_path, request, stored)))
    wrong = {}
    for name, dtype in ARRAYS:
        spec = {"driver": FORMATS[name][0], "kvstore": place / f"{name}-{dtype}/"}
        if found := wrong_reads(ts.open(spec).result(), values(dtype)):
            wrong[name, dtype] = found
    assert wrong == {}


# The three ways to ask for the plain way.


def engine_name(store):
    """Return the class of the filesystem that serves a store."""
    engine = store._open.driver.engine
    while hasattr(engine, "engine"):  # checks and credentials stand before it
        engine = engine.engine
    return type(engine).__name__


@pytest.mark.parametrize("way", ["keyword", "member", "environment"])
@pytest.mark.parametrize("scheme", ["file", "memory", "s3", "abfs", "http"])
def test_the_engine_may_be_asked_for_in_three_ways(scheme, way, monkeypatch, tmp_path):
    """A keyword, a member of the spec and the environment lead to the filesystem of fsspec."""
    members = {
        "file": {"path": f"{tmp_path}/"},
        "memory": {},
        "s3": {"bucket": "bucket", "aws_region": "us-east-1"},
        "abfs": {"container": "container", "account_name": "a"},
        "http": {"base_url": "http://127.0.0.1:9"},
    }[scheme]
    spec, options = {"driver": scheme, **members}, {}
    if way == "keyword":
        options = {"engine": "fsspec"}
    elif way == "member":
        spec |= {"engine": "fsspec"}
    else:
        monkeypatch.setenv("FSSTORE_ENGINE", "fsspec")
    expected = {"s3": "S3Engine", "http": "HttpEngine", "abfs": "AsyncEngine"}.get(scheme, "SyncEngine")
    assert engine_name(KvStore.open(spec, **options).result()) == expected


def test_arrays_take_the_engine_for_their_store(tmp_path):
    """`ts.open` hands the keyword on, below adapters too, and the spec of the array says it."""
    array = ts.open(f"file://{tmp_path}/a/|zarr3:", engine="fsspec", create=True, dtype="int8", shape=[2]).result()
    array.write([1, 2]).result()
    assert array.spec().to_json()["kvstore"]["engine"] == "fsspec"
    assert ts.open(f"file://{tmp_path}/a/|zarr3:").result().read().result().tolist() == [1, 2]


def test_an_engine_that_a_store_does_not_have_is_refused(monkeypatch):
    """The error names the store and its engines; a name in the environment that is none is an error too."""
    with pytest.raises(StoreError, match='The store "file" has no engine "obstore": "fsstore", "fsspec"'):
        KvStore.open("file:///tmp/", engine="obstore").result()
    with pytest.raises(StoreError, match="open already"):
        KvStore.open({"a": b""}, engine="fsspec").result()
    monkeypatch.setenv("FSSTORE_ENGINE", "obstore")
    with pytest.raises(StoreError, match='FSSTORE_ENGINE is "fsspec" or not set'):
        KvStore.open("memory://").result()


def test_the_memory_of_fsspec_has_no_url_and_stays_in_its_process():
    """A URL would name another memory."""
    store = KvStore.open("memory://a/", engine="fsspec").result()
    store["k"] = b"v"
    assert fsspec.filesystem("memory").cat_file("/a/k") == b"v"
    with pytest.raises(UnimplementedError, match="explicit engine"):
        _ = store.url


# Filesystems that behave badly.


class Liar(Shelf):
    """A filesystem whose answers are not what was asked for; `fault` says how."""

    protocol = "liar"

    def __init__(self, fault, **options):
        super().__init__(**options)
        self.fault, self.files = fault, {"k": b"0123456789", "d/x": b"1"}

    def cat_file(self, path, start=None, end=None, **_):
        """Return too little, or raise an error of its own."""
        if self.fault == "raises":
            raise LookupError(f"error 17 at {path}")
        value = self.files[path][start:end]
        return value[:-1] if self.fault == "short" else value + b"?" if self.fault == "long" else value

    def pipe_file(self, path, value, **_):
        """Raise an error of its own."""
        raise LookupError(f"error 17 at {path}")

    def rm_file(self, path):
        """Raise one, too."""
        raise LookupError(f"error 17 at {path}")

    def ls(self, path, detail=True, **_):
        """Return what there is, twice."""
        if self.fault == "raises":
            raise LookupError(f"error 17 at {path}")
        found = super().ls(path, detail) * (2 if self.fault == "twice" else 1)
        return [{**each, "size": 12} for each in found] if self.fault == "size" and detail else found


@pytest.mark.parametrize(
    ("fault", "part"), [("short", (2, 5)), ("long", (2, 5)), ("raises", (2, 5)), ("raises", (0, None))]
)
def test_a_wrong_answer_is_an_error_that_names_protocol_and_key(fault, part):
    """Nothing is filled in, cut off or called missing."""
    filesystem = Liar(fault)
    engine = SyncEngine(filesystem, "liar", retry=Retry(max_retries=1, initial_delay_s=0.001))
    with pytest.raises(StoreError, match='Error reading "liar://k": .*(error 17|sent . bytes for bytes)'):
        execution.call(KvPrefix(EngineDriver(engine, "")).read("k", *part))


class AsyncLiar(FarShelf):
    """The same with coroutines."""

    protocol = "liar"

    def __init__(self, fault, **options):
        super().__init__(asynchronous=True, **options)
        self.inner = Liar(fault)

    async def _cat_file(self, path, start=None, end=None, **_):
        return self.inner.cat_file(path, start, end)

    async def _ls(self, path, detail=True, **_):
        return self.inner.ls(path, detail)

    async def _pipe_file(self, path, value, **_):
        return self.inner.pipe_file(path, value)

    async def _rm_file(self, path, **_):
        return self.inner.rm_file(path)

    async def _info(self, path, **_):
        return self.inner.info(path)


@pytest.mark.parametrize("kind", [Liar, AsyncLiar])
@pytest.mark.parametrize("fault", ["short", "long", "raises"])
def test_nothing_is_made_of_a_wrong_answer(kind, fault):
    """A read, a write, a deletion and a listing that go wrong each name the protocol, the key, and what was done."""
    retry = Retry(max_retries=1, initial_delay_s=0.001)
    filesystem = kind(fault)
    engine = (
        SyncEngine(filesystem, "liar", retry=retry)
        if kind is Liar
        else AsyncEngine(Home(None, filesystem), "liar", retry=retry)
    )
    place = KvPrefix(EngineDriver(engine, ""))
    with pytest.raises(StoreError, match='Error reading "liar://k"'):
        execution.call(place.read("k", 2, 5))
    if fault != "raises":
        return
    for value in (b"v", None):
        with pytest.raises(StoreError, match='Error writing "liar://k": .*error 17 at k'):
            execution.call(place.write("k", value))

    async def listed():
        return [entry async for batch in place.scan() for entry in batch]

    with pytest.raises(StoreError, match='Error listing "liar://".*error 17'):
        execution.call(listed())


def test_a_size_that_is_wrong_is_an_error():
    """What is asked for by the size that a filesystem claims must come."""
    engine = SyncEngine(Liar("size"), "liar", retry=Retry(max_retries=1, initial_delay_s=0.001))
    with pytest.raises(StoreError, match='Error reading "liar://k": .*sent 2 bytes for bytes'):
        execution.call(KvPrefix(EngineDriver(engine, "")).read("k", -4))


def test_what_is_listed_twice_is_there_once():
    """A listing may tell of a file again, as those of changing directories do."""
    store = KvStore.of(live_kv(from_live(Liar("twice"))))
    assert sorted(store.list().result()) == [b"d/x", b"k"]


def test_names_in_the_place_of_a_listing_are_an_error():
    """Some filesystems list names where details were asked for."""

    class Namer(Shelf):
        """Names files, and no more."""

        def find(self, path, **_):
            """Return names."""
            return ["k", "d/x"]

    with pytest.raises(StoreError, match='Error listing ".*": .*TypeError'):
        KvStore.of(live_kv(from_live(Namer()))).list().result()


def test_a_protocol_that_is_not_installed_is_named():
    """With what is missing."""
    missing = "git" if find_spec("pygit2") is None else "dropbox"
    with pytest.raises(UnimplementedError, match=f'The filesystem "{missing}" is not available: .*nstall'):
        KvStore.open({"driver": "fsspec", "url": f"{missing}://x/"}).result()


@pytest.mark.parametrize(
    ("url", "protocol"),
    [
        ("memory://x/", "memory"),
        ("file:///x/", "file"),
        ("zip::file:///a.zip", "zip"),
        ("zip::file:///a.zip", "file"),
        ("simplecache::memory://x/", "simplecache"),
        ("gs://bucket/x/", "gs"),
        ("abfs://container@account.dfs.core.windows.net/x/", "abfs"),
        ("ftp://127.0.0.1:9/x/", "ftp"),
        ("https://127.0.0.1:9/x/", "https"),
        ("simplecache::http://127.0.0.1:9/x/", "http"),
    ],
)
def test_an_option_that_the_filesystem_does_not_know_is_named(url, protocol):
    """Also where its class would take it, and do nothing with it; the error says whose options there are."""
    options = {protocol: {"nope": 1}} if "::" in url else {"nope": 1}
    spec = {"driver": "fsspec", "url": url, "storage_options": options}
    with pytest.raises(StoreError, match=f'There is no storage option "nope" for {protocol}://; its options'):
        KvStore.open(spec).result()


def test_an_option_that_a_client_does_not_know_is_named():
    """Filesystems that hand options on tell what their client says of them."""
    spec = {"driver": "fsspec", "url": "sftp://127.0.0.1:9/x/", "storage_options": {"nope": 1}}
    with pytest.raises(StoreError, match='Cannot open the filesystem "sftp": .*nope'):
        KvStore.open(spec).result()
