"""Icechunk repositories: what icechunk wrote is read as icechunk reads it, at a stated number of requests."""

import asyncio
import base64
import datetime as dt
import hashlib
import json
import os
import random
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import icechunk
import numpy as np
import pytest
import zarr
from zarr.core.buffer import cpu, default_buffer_prototype

import fsstore
from fsstore import references
from fsstore.errors import (
    DataLossError,
    FailedPreconditionError,
    NotFoundError,
    PermissionDeniedError,
    StoreError,
    UnimplementedError,
)
from fsstore.icechunk.driver import KIND
from fsstore.kvstore.contract.driver import KvOpening, KvPrefix, Read
from fsstore.kvstore.memory import MemoryDriver
from fsstore.runtime.execution import drive
from fsstore.testing.doubles import Recording

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "icechunk" / "version2.json").read_text())
SPARSE = {"zarr_format": 3, "node_type": "array", "data_type": "uint8", "fill_value": 0}


def files_of(name):
    """Return the files of a golden repository."""
    return {key: base64.b64decode(text) for key, text in GOLDEN[name]["files"].items()}


def restored(name, path):
    """Write a golden repository to a directory; return its URL."""
    for key, data in files_of(name).items():
        (path / key).parent.mkdir(parents=True, exist_ok=True)
        (path / key).write_bytes(data)
    return f"file://{path}/"


FROM_2 = hasattr(icechunk, "SpecVersion")
"""Whether this is icechunk 2, which writes version 2 of the format unless told, and wants a word for files."""
VERSION_1 = {"spec_version": 1} if FROM_2 else {}


def new(path, *, options=MappingProxyType({}), **config):
    """Return a new repository in a directory, of the version that icechunk takes unless `options` say another one."""
    return icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(path)), config=icechunk.RepositoryConfig(**config), **options
    )


def over(files, recording=None, **members):
    """Return the driver over files in memory, and what records its requests."""
    memory = MemoryDriver()
    drive(KvPrefix(memory).write_many([_write(key, data) for key, data in files.items()]))
    recording = Recording(memory)
    opened = KIND.open(KvOpening(members, base=KvPrefix(recording)))
    return drive(opened), recording


def _write(key, data):
    from fsstore.kvstore.contract.driver import Write

    return Write(key, data)


def directory(path):
    """Return the files below a directory."""
    return {str(each.relative_to(path)): each.read_bytes() for each in path.rglob("*") if each.is_file()}


def store_of(url, **members):
    """Open a repository as a key-value store."""
    return fsstore.KvStore.open({**fsstore.KvStore.Spec(url).to_json(), **members}).result()


def keys_of(store):
    """Return the keys that a store lists."""
    return sorted(key.decode() for key in store.list().result())


def theirs(session, keys):
    """Return what icechunk answers for keys: bytes, None for missing, or that there was an error."""

    async def get(key):
        try:
            found = await session.store.get(key, default_buffer_prototype())
        except Exception:  # noqa: BLE001  # a class of its own for every failure
            return "error"
        return None if found is None else found.to_bytes()

    async def listed():
        return sorted([key async for key in session.store.list()])

    async def run():
        return await listed(), [await get(key) for key in keys]

    return asyncio.run(run())


def put(session, key, data):
    """Set a key of an icechunk session as it is."""
    asyncio.run(session.store.set(key, cpu.Buffer.from_bytes(data)))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A repository of every shape of array, with three commits, two branches and tags; its path and the library's."""
    path = tmp_path_factory.mktemp("corpus") / "repo"
    repo = new(path, inline_chunk_threshold_bytes=64)
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="w", attributes={"title": "x"})
    root.create_array("a", shape=(50, 33), chunks=(7, 5), dtype="f4")[:] = np.arange(1650).reshape(50, 33)
    root.create_array("a-b", shape=(0, 3), chunks=(2, 2), dtype="i4")
    root.create_array("ab/c", shape=(), dtype="i8")[...] = -5
    root.create_array("c/c", shape=(9,), chunks=(2,), dtype="u1")[2:7] = 3
    root.create_array("unwritten", shape=(6, 6), chunks=(2, 2), dtype="f8", fill_value=1.5)
    root.create_array("ünï/côde", shape=(4, 4, 4), chunks=(1, 2, 3), dtype="i2")[:] = 8
    sparse = root.create_array("sparse", shape=(1000, 1000), chunks=(1, 1), dtype="u1")
    for index in random.Random(1).sample(range(10**6), 30):
        sparse[divmod(index, 1000)] = 1 + index % 250
    root.create_array("sharded", shape=(64, 64), chunks=(4, 4), shards=(16, 32), dtype="i4")[:40] = 2
    root.create_array("text", shape=(3,), chunks=(2,), dtype="str")[:] = ["a", "bb", "ccc"]
    first = session.commit("one")
    repo.create_branch("dev β", first)
    repo.create_tag("v1", first)
    repo.create_tag("gone", first)
    repo.delete_tag("gone")
    session = repo.writable_session("main")
    root = zarr.open_group(session.store)
    root["a"][:10] = 0
    del root["c/c"]
    root["sharded"].resize((20, 64))
    second = session.commit("two")
    session = repo.writable_session("dev β")
    zarr.open_group(session.store)["ab/c"][...] = 6
    session.commit("three")
    refs = {
        "": {"branch": "main"},
        "@tag.v1/": {"tag": "v1"},
        "@branch.dev%20%CE%B2/": {"branch": "dev β"},
        f"@{first}/": {"snapshot_id": first},
        f"@{second}/": {"snapshot_id": second},
    }
    return path, repo, refs


WRONG = [
    *("a/c/0/9", "a/c/99/0", "a/c/0", "a/zarr", ".zgroup", "a/.zarray", "nothing/zarr.json"),
    *("unwritten/c/0/0", "a-b/c/0/0", "sparse/c/999/999", "a/c/0/0/zarr.json"),
]


def test_every_key_of_every_ref_is_what_icechunk_answers(corpus):
    """Listings and values of branches, tags and snapshots agree, key for key; what is missing there is missing here."""
    path, repo, refs = corpus
    for selector, which in refs.items():
        store = store_of(f"file://{path}|icechunk:{selector}")
        session = repo.readonly_session(**which)
        keys = keys_of(store)
        listed, values = theirs(session, [*keys, *WRONG])
        assert keys == listed
        assert len(keys) > 100
        assert store.read("a/c/00/0").result().state == "missing"  # icechunk takes it for `a/c/0/0`
        for key, value in zip([*keys, *WRONG], values, strict=True):
            found = store.read(key).result()
            expected = None if value == "error" else value
            assert (bytes(found.value) if found.state == "value" else None) == expected, key


def test_every_array_is_what_zarr_reads(corpus):
    """Arrays read through fsstore equal those that zarr-python reads through icechunk, part by part too."""
    path, repo, refs = corpus
    for selector, which in refs.items():
        group = zarr.open_group(repo.readonly_session(**which).store, mode="r")
        for name, array in group.members(max_depth=None):
            if not isinstance(array, zarr.Array) or name == "text":
                continue
            opened = fsstore.open(f"file://{path}|icechunk:{selector}{name.replace('é', '%C3%A9')}").result()
            if array.nchunks < 1000:
                np.testing.assert_array_equal(opened.read().result(), array[...])
            if array.ndim == 2 and array.size:
                np.testing.assert_array_equal(opened[3:6, 1:].read().result(), array[3:6, 1:])


def test_a_repository_is_detected(corpus):
    """The URL of a repository needs no adapter: groups and arrays are found in either version."""
    path, _, _ = corpus
    names = fsstore.list_arrays(f"file://{path}/")
    assert {"a", "ab/c", "sparse", "ünï/côde"} <= {str(each.path) for each in names}
    assert fsstore.open(f"file://{path}|icechunk:a").result().shape == (50, 33)


@pytest.mark.parametrize("name", ["basic", "split"])
def test_version_2_is_what_icechunk_answered(name, tmp_path):
    """Repositories of version 2 list the keys and give the bytes that icechunk gave, for each ref."""
    url = restored(name, tmp_path)
    for selector, answers in GOLDEN[name]["answers"].items():
        store = store_of(f"{url}|icechunk:@{selector.replace('/', '%2F')}")
        keys = keys_of(store)
        assert keys == sorted(answers)
        found = {key: hashlib.sha256(store.read(key).result().value).hexdigest() for key in keys}
        assert found == answers


def test_unknown_refs_are_errors_that_list_the_known_ones(tmp_path, corpus):
    """A branch, tag or snapshot that is not there is never an empty store; deleted tags are not there."""
    url = restored("basic", tmp_path)
    with pytest.raises(NotFoundError, match='no branch "x".*there are: "dev/x", "main"'):
        keys_of(store_of(f"{url}|icechunk:@branch.x"))
    for where in (url, f"file://{corpus[0]}/"):
        for selector in ("@tag.gone", "@tag.never", "@branch.v1"):
            with pytest.raises(NotFoundError, match="There is no"):
                keys_of(store_of(f"{where}|icechunk:{selector}"))
        with pytest.raises(DataLossError, match="does not exist"):
            keys_of(store_of(f"{where}|icechunk:@{'0' * 20}"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match="no Icechunk repository"):
        keys_of(store_of(f"file://{tmp_path}/empty|icechunk:"))


def test_a_branch_is_followed_and_a_tag_is_not(tmp_path):
    """A store over a branch shows the newest commit; one over a tag or a snapshot stays where it is."""
    repo = new(tmp_path / "r")
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="w").create_array("a", shape=(2,), chunks=(2,), dtype="i4")[:] = 1
    snapshot = session.commit("one")
    repo.create_tag("t", snapshot)
    stores = [store_of(f"file://{tmp_path}/r|icechunk:{each}") for each in ("", "@tag.t", f"@{snapshot}")]
    before = [store.read("a/c/0").result().value for store in stores]
    session = repo.writable_session("main")
    zarr.open_group(session.store)["a"][:] = 2
    session.commit("two")
    after = [store.read("a/c/0").result().value for store in stores]
    assert [a == b for a, b in zip(before, after, strict=True)] == [False, True, True]


def test_requests_are_as_few_as_stated():
    """Documents and listings of them cost the root and the snapshot; chunks one manifest an array, then ranges."""
    driver, recording = over(files_of("basic"))

    async def documents():
        from fsstore.kvstore.contract.request import KeyRange

        return [entry.key async for batch in driver.documents(KeyRange()) for entry in batch]

    names = drive(documents())
    assert len(names) == 10
    assert len(drive(driver.read_many([Read(name) for name in names]))) == len(names)
    asked = [read.key for read in recording.reads]
    assert asked[0] == "repo"
    assert [key for key in asked if key != "repo"] == [next(key for key in asked if "snap" in key)]
    recording.reset()
    keys = [f"a/c/{row}/{column}" for row in range(3) for column in range(3)]
    found = drive(driver.read_many([Read(key, staleness_bound=0) for key in keys]))
    assert all(each.state == "value" for each in found)
    kinds = [read.key.partition("/")[0] for read in recording.reads]
    assert kinds == ["manifests", *["chunks"] * sum(kind == "chunks" for kind in kinds)]
    assert recording.calls["read"] <= 2
    recording.reset()
    drive(driver.read_many([Read("a/c/0/0", 1, 3, staleness_bound=0)]))
    drive(driver.read_many([Read("a/c/9/9", staleness_bound=0), Read("a-b/c/0/0", staleness_bound=0)]))
    assert [read[1:3] for read in recording.reads] in ([], [(1, 3)])
    recording.reset()
    drive(driver.read_many([Read("a/zarr.json")]))
    assert [(read.key, bool(read.if_not_equal)) for read in recording.reads] == [("repo", True)]


def test_of_a_split_array_only_the_manifest_of_the_chunk_is_read():
    """An array whose chunks are in several manifests costs those that the chunks asked for lie in."""
    driver, recording = over(files_of("split"))
    found = drive(driver.read_many([Read("a/c/0/0"), Read("a/c/1/2"), Read("a/c/9/7")]))
    assert [bytes(each.value) for each in found] == [b"\1", b"\x0b", b"\x50"]
    assert sum(read.key.startswith("manifests/") for read in recording.reads) == 2


MEMORY = """
import sys
from pathlib import Path
import fsstore

def most():
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024

url, reads = sys.argv[1], [int(each) for each in sys.argv[2].split(",") if each]
array = fsstore.open(url + "v").result()
fsstore.open(url + "small").result().read().result()
before = most()
for at in reads:
    assert array[at].read().result() == at % 200
print(most() - before, before)
"""


def _referred(path, count, step):
    """Write a repository of `count` virtual chunks of a file, `step` of them a manifest; return its URL."""
    (path / "x.bin").write_bytes(bytes(range(200)))
    config = icechunk.RepositoryConfig()
    config.set_virtual_chunk_container(
        icechunk.VirtualChunkContainer(f"file://{path}/", icechunk.local_filesystem_store(str(path)))
    )
    every = {icechunk.ManifestSplitCondition.AnyArray(): {icechunk.ManifestSplitDimCondition.Any(): step}}
    config.manifest = icechunk.ManifestConfig(splitting=icechunk.ManifestSplittingConfig.from_dict(every))
    repo = icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(path / "r")),
        config=config,
        authorize_virtual_chunk_access={
            f"file://{path}/": icechunk.credentials.LocalFileSystemAccess if FROM_2 else None
        },
    )
    session = repo.writable_session("main")
    group = zarr.open_group(session.store, mode="w")
    raw = {"chunks": (1,), "dtype": "u1", "compressors": None, "filters": None}
    group.create_array("v", shape=(count,), **raw)
    group.create_array("small", shape=(2,), **raw)[:] = 1
    specs = [icechunk.VirtualChunkSpec([at], f"file://{path}/x.bin", at % 200, 1) for at in range(count)]
    session.store.set_virtual_refs("v", specs, validate_containers=False)
    session.commit("v")
    return f"file://{path}/r/|icechunk:"


def _grown(url, reads):
    """Return by how many bytes a process grows that reads single chunks, and how large it was before."""
    command = [sys.executable, "-c", MEMORY, url, ",".join(map(str, reads))]
    environment = {**os.environ, "PYTHONPATH": str(Path(fsstore.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, env=environment)
    grown, before = done.stdout.split()
    return int(grown), int(before)


@pytest.mark.parametrize("count", [40_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_memory_is_that_of_what_is_read(count, tmp_path):
    """Opening a large repository, and reading chunks of some of its manifests, takes the memory of these only."""
    step = count // 20
    url = _referred(tmp_path, count, step)
    one, opened = _grown(url, [5])
    half, _ = _grown(url, range(5, count // 2, step))
    whole, _ = _grown(url, range(5, count, step))
    (tmp_path / "other").mkdir()
    assert opened - _grown(_referred(tmp_path / "other", 100, 20), [])[1] < 4 * 2**20
    assert one < 3 * 2**20 + 200 * step
    assert half < 3 * 2**20 + 150 * count // 2
    assert whole < 3 * 2**20 + 150 * count
    assert one < whole / 3


def test_version_1_costs_a_look_for_the_root_once():
    """A version 1 repository is one request for `repo`, once, then the ref and the snapshot."""
    pytest.importorskip("icechunk")
    driver, recording = over(_version_1())
    drive(driver.read_many([Read("zarr.json")]))
    first = [read.key.partition("/")[0] for read in recording.reads]
    recording.reset()
    drive(driver.read_many([Read("zarr.json")]))
    assert (first, [read.key for read in recording.reads]) == (
        ["repo", "refs", "snapshots"],
        ["refs/branch.main/ref.json"],
    )


def _version_1():
    import tempfile

    with tempfile.TemporaryDirectory() as path:
        repo = new(Path(path) / "r", options=VERSION_1)
        session = repo.writable_session("main")
        zarr.open_group(session.store, mode="w").create_array("a", shape=(4000,), chunks=(2000,), dtype="i4")[:] = (
            1 + np.arange(4000)
        )
        session.commit("one")
        return directory(Path(path) / "r")


def test_damaged_objects_are_errors_that_name_them():
    """A chunk that is missing or short, and a document that is missing, cut off or of another, is never `missing`."""
    files = _version_1()
    chunk = next(key for key in files if key.startswith("chunks/"))
    manifest = next(key for key in files if key.startswith("manifests/"))
    snapshot = json.loads(files["refs/branch.main/ref.json"])["snapshot"]
    damages = [
        (chunk, None, "does not exist"),
        (chunk, files[chunk][:-3], "cut off|valid for value"),
        (manifest, None, "does not exist"),
        (manifest, files[manifest][:-3], "cut off"),
        (f"snapshots/{snapshot}", None, "does not exist"),
        (f"snapshots/{snapshot}", files[manifest], "Expected a snapshot.*offset 37"),
        ("refs/branch.main/ref.json", b"{}", "no JSON with a member"),
        ("refs/branch.main/ref.json", b'{"snapshot": 3}', "no string"),
        ("refs/branch.main/ref.json", b'{"snapshot": "x"}', "20 characters"),
    ]
    for key, data, message in damages:
        changed = {name: value for name, value in {**files, key: data}.items() if value is not None}
        driver, _ = over(changed)
        with pytest.raises(StoreError, match=message) as raised:
            drive(driver.read_many([Read("a/c/0"), Read("a/c/1")]))
        assert key.rpartition("/")[2] in str(raised.value)


def test_changed_documents_give_values_or_errors():
    """Repositories with random bytes changed answer as before, or with errors of ours."""
    files, rng = _version_1(), random.Random(3)
    wrong = 0
    for _ in range(150):
        key = rng.choice(sorted(key for key in files if not key.startswith("transactions")))
        data = bytearray(files[key])
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        driver, _ = over({**files, key: bytes(data)})
        try:
            drive(driver.read_many([Read("a/zarr.json"), Read("a/c/0"), Read("a/c/1")]))
        except StoreError:
            wrong += 1
    assert wrong > 20


@pytest.fixture
def virtual(tmp_path):
    """A repository with virtual chunks in a file; its URL, the file, and the session they were written in."""
    target = tmp_path / "target"
    target.mkdir()
    file = target / "x y.bin"
    file.write_bytes(bytes(range(200)))
    container = icechunk.VirtualChunkContainer(f"file://{target}/", icechunk.local_filesystem_store(str(target)))
    config = icechunk.RepositoryConfig()
    config.set_virtual_chunk_container(container)
    repo = icechunk.Repository.create(
        icechunk.local_filesystem_storage(str(tmp_path / "r")),
        config=config,
        authorize_virtual_chunk_access={
            f"file://{target}/": icechunk.credentials.LocalFileSystemAccess if FROM_2 else None
        },
    )
    session = repo.writable_session("main")
    group = zarr.open_group(session.store, mode="w")
    group.create_array("v", shape=(12,), chunks=(2,), dtype="u1", compressors=None, filters=None)
    return f"file://{tmp_path}/r|icechunk:", file, repo, session


def _refer(session, file, number, offset, checksum=None, name=None):
    location = f"file://{file.parent}/{name or 'x%20y.bin'}"
    session.store.set_virtual_ref(
        f"v/c/{number}", location, offset=offset, length=2, checksum=checksum, validate_container=False
    )


def _time(file, shift):
    return dt.datetime.fromtimestamp(int(file.stat().st_mtime) + shift, dt.UTC)


def test_virtual_chunks_are_read_as_icechunk_reads_them(virtual):
    """Ranges of files give the bytes that icechunk gives; what it refuses for a checksum or a size is an error here."""
    url, file, _, session = virtual
    status = file.stat()
    _refer(session, file, 0, 10)
    _refer(session, file, 1, 40, _time(file, 10))
    _refer(session, file, 2, 50, _time(file, -100))
    _refer(session, file, 3, 60, f"{status.st_ino:x}-{status.st_mtime_ns // 1000:x}-{200:x}")
    _refer(session, file, 4, 70, "other")
    _refer(session, file, 5, 199)
    session.commit("v")
    _, expected = theirs(session, [f"v/c/{number}" for number in range(6)])
    store = store_of(url)
    if FROM_2:  # which refuses all tags of local files, also the one that its version 1 took for right
        assert expected[3] == "error"
        expected[3] = bytes([60, 61])
    for number, value in enumerate(expected):
        if value == "error":
            with pytest.raises(DataLossError, match="has changed since|bytes at offset 199") as raised:
                store.read(f"v/c/{number}").result()
            assert "x y.bin" in str(raised.value)
        else:
            assert bytes(store.read(f"v/c/{number}").result().value) == value
    assert fsstore.open(f"{url}v").result()[:4].read().result().tolist() == [10, 11, 40, 41]
    careless = store_of(url, checksums=False)
    assert bytes(careless.read("v/c/4").result().value) == bytes([70, 71])


def test_a_target_that_changes_after_it_was_read_is_noticed(virtual):
    """The time of a file is kept by its generation, so a file that is written again is asked for it again."""
    url, file, _, session = virtual
    _refer(session, file, 0, 10, _time(file, 5))
    session.commit("v")
    store = store_of(url)
    assert bytes(store.read("v/c/0").result().value) == bytes([10, 11])
    os.utime(file, (0, file.stat().st_mtime + 100))
    with pytest.raises(DataLossError, match="has changed since"):
        store.read("v/c/0").result()


def test_the_policy_of_reference_sets_decides_what_is_read(virtual):
    """The repository grants nothing: `allow` refuses what lies outside it, `rewrite` and `targets` lead elsewhere."""
    url, file, _, session = virtual
    _refer(session, file, 0, 10)
    _refer(session, file, 1, 10, name="../other.bin")
    session.commit("v")
    with pytest.raises(PermissionDeniedError, match="lies outside the prefixes"):
        store_of(url, allow=["s3://nothing/"]).read("v/c/0").result()
    assert bytes(store_of(url, allow=[f"file://{file.parent}/"]).read("v/c/0").result().value) == b"\n\x0b"
    with pytest.raises(StoreError):
        store_of(url, allow=[f"file://{file.parent}/"]).read("v/c/1").result()
    moved = file.parent.parent / "moved"
    moved.mkdir()
    (moved / "x y.bin").write_bytes(bytes(20) + bytes([7] * 20))
    found = store_of(url, rewrite={f"file://{file.parent}/": f"file://{moved}/"}).read("v/c/0").result()
    assert bytes(found.value) == b"\0\0"


def test_a_repository_from_elsewhere_reads_nothing_of_this_machine(virtual, tmp_path):
    """Virtual chunks in local files are refused when the repository came over the network."""
    import http.server
    import threading
    from functools import partial

    _, file, _, session = virtual
    _refer(session, file, 0, 10)
    session.commit("v")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=tmp_path / "r"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/|icechunk:"
        assert fsstore.open(f"{url}v").result().shape == (12,)
        with pytest.raises(PermissionDeniedError, match="nothing of this machine"):
            store_of(url).read("v/c/0").result()
    finally:
        server.shutdown()
        server.server_close()


def test_locations_of_version_2_are_found(tmp_path):
    """Locations compressed with a dictionary, and those that name a container, are the URLs that icechunk lists."""
    refs = references.open(f"{restored('virtual', tmp_path)}|icechunk:")
    *single, many = GOLDEN["virtual"]["locations"]
    few = [refs[f"few/c/{number}"] for number in range(4)]
    assert sorted(each.url.replace(" ", "%20") for each in few) == sorted(
        url if "vcc" not in url else url for url in single
    )
    assert (few[0].offset, few[2].offset) == (3, 2**40)
    found = [refs[f"many/c/{number}"] for number in range(1200)]
    assert [each.url for each in found] == [
        f"https://data.example/pre/file-{number // 7:05d}.nc" for number in range(1200)
    ]
    assert len(found) == many
    assert [each.offset for each in found] == [3 * number for number in range(1200)]


def test_a_snapshot_is_saved_as_a_reference_set(corpus, tmp_path):
    """A set made of a snapshot, saved as JSON and as parquet, gives the same arrays without Icechunk."""
    path, _, _ = corpus
    refs = references.open(f"file://{path}|icechunk:@tag.v1")
    for name in ("set.json", "set.parq"):
        refs.save(f"file://{tmp_path}/{name}")
        for array in ("a", "sparse", "sharded"):
            mine = fsstore.open(f"file://{tmp_path}/{name}|reference:{array}").result()
            same = fsstore.open(f"file://{path}|icechunk:@tag.v1/{array}").result()
            np.testing.assert_array_equal(mine[:50, :33].read().result(), same[:50, :33].read().result())
    below = references.open(f"file://{path}|icechunk:@tag.v1/ab/")
    assert sorted(name for names, _ in below.batches() for name in names) == ["c/c", "c/zarr.json", "zarr.json"]


def test_a_regridded_array_does_not_show_chunks_of_its_old_grid(tmp_path):
    """References whose index has another rank than the array are not chunks of it."""
    repo = new(tmp_path / "r")
    session = repo.writable_session("main")
    group = zarr.open_group(session.store, mode="w")
    group.create_array("a", shape=(8,), chunks=(2,), dtype="u1", compressors=None)[:] = 1
    session.commit("one")
    session = repo.writable_session("main")
    document = {
        **SPARSE,
        "shape": [8, 2],
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 2]}},
        "chunk_key_encoding": {"name": "default"},
        "codecs": [{"name": "bytes"}],
    }
    put(session, "a/zarr.json", json.dumps(document).encode())
    session.commit("two")
    store = store_of(f"file://{tmp_path}/r|icechunk:")
    assert keys_of(store) == ["a/zarr.json", "zarr.json"]
    assert store.read("a/c/0").result().state == "missing"
    assert not fsstore.open(f"file://{tmp_path}/r|icechunk:a").result().read().result().any()


def test_nothing_can_be_written(corpus):
    """The store refuses writes and says so."""
    store = store_of(f"file://{corpus[0]}|icechunk:")
    with pytest.raises(UnimplementedError, match="does not support writing"):
        store.write("x", b"1").result()


def test_a_store_that_tells_no_time_is_refused_unless_told_otherwise():
    """A checksum that cannot be compared is an error that names the option, not data."""
    files = files_of("virtual")
    driver, _ = over(files, targets={"https://data.example/": "memory://"})
    with pytest.raises((FailedPreconditionError, DataLossError)):
        drive(driver.read_many([Read("few/c/1")]))


@pytest.mark.usefixtures("s3_credentials")
@pytest.mark.parametrize("engine", ["fsspec", "obstore"])
def test_checksums_of_objects_are_enforced(engine, moto_bucket, tmp_path):
    """In S3 the right tag and a later time give the bytes; another tag and an earlier time are errors, not data."""
    endpoint, bucket = moto_bucket
    root = {"driver": "s3", "bucket": bucket, "endpoint": endpoint, "aws_region": "us-east-1", "engine": engine}
    place = fsstore.KvStore.open(root).result()
    place.write(f"virtual-{engine}/t.bin", bytes(range(100))).result()
    tag = hashlib.md5(bytes(range(100))).hexdigest()  # noqa: S324  # what S3 calls the value
    container = icechunk.VirtualChunkContainer(f"s3://{bucket}/", icechunk.s3_store(region="us-east-1"))
    config = icechunk.RepositoryConfig()
    config.set_virtual_chunk_container(container)
    repo = icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "r")), config=config)
    session = repo.writable_session("main")
    group = zarr.open_group(session.store, mode="w")
    group.create_array("v", shape=(12,), chunks=(2,), dtype="u1", compressors=None, filters=None)
    now = dt.datetime.now(dt.UTC)
    day = dt.timedelta(days=1)
    checksums = [None, tag, f'"{tag}"', "0" * 32, now + day, now - day]
    for number, checksum in enumerate(checksums):
        session.store.set_virtual_ref(
            f"v/c/{number}", f"s3://{bucket}/virtual-{engine}/t.bin", offset=10 * number, length=2, checksum=checksum
        )
    session.commit("v")
    store = store_of(f"file://{tmp_path}/r|icechunk:", targets={f"s3://{bucket}/": {**root, "path": ""}})
    for number in (0, 1, 2, 4):
        assert bytes(store.read(f"v/c/{number}").result().value) == bytes([10 * number, 10 * number + 1])
    for number in (3, 5):
        with pytest.raises(DataLossError, match="has changed since the virtual chunk was written"):
            store.read(f"v/c/{number}").result()
