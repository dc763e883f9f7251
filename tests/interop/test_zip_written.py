"""Archives that we write are read by Python, zarr-python and TensorStore 0.1.86, and change archives of others gently."""

from __future__ import annotations

import io
import random
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore
import zarr

import fsstore
from fsstore.errors import AlreadyExistsError
from fsstore.kvstore.zip_directory import find_end, parse_directory
from fsstore.kvstore.zip_writing import ArchivePlan


def place(file: Path, **members: Any) -> dict[str, Any]:
    """Return the spec of an archive in a file."""
    return {"driver": "zip", "base": f"file://{file}", **members}


def by_python(path: Path) -> dict[str, bytes]:
    """Return what Python's module reads, checksums included; every name is there once."""
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        found = archive.namelist()
        assert len(set(found)) == len(found)
        return {name: archive.read(name) for name in found if not name.endswith("/")}


def by_tensorstore(path: Path) -> dict[str, bytes]:
    """Return what TensorStore reads."""
    store = tensorstore.KvStore.open(place(path)).result()
    return {key.decode(): bytes(store.read(key).result().value) for key in store.list().result()}


_KEYS = ("zarr.json", "a/zarr.json", "a/c/0/0", "a/c/0/1", "é/ü", "b", "x" * 300)


@pytest.mark.parametrize("seed", range(6))
def test_random_changes(seed: int, tmp_path: Path):
    """After any batches of writes and deletions, in transactions and without, everybody reads what a dictionary holds."""
    choose, model, path = random.Random(seed), {"first": b""}, tmp_path / "a.zip"
    fsstore.KvStore.open(place(path)).result()["first"] = b""
    for _ in range(8):
        method = choose.choice(["store", "deflate", "zstd", "xz"])
        store = fsstore.KvStore.open(place(path, compression=method)).result()
        with fsstore.Transaction() as transaction:
            bound = store.with_transaction(transaction) if choose.random() < 0.7 else store
            for key in choose.sample(_KEYS, choose.randrange(1, 5)):
                value = None if choose.random() < 0.3 else choose.randbytes(choose.choice([0, 7, 5000]))
                bound.write(key, value).result()
                model.pop(key, None)
                model |= {} if value is None else {key: value}
        read = {key.decode(): store.read(key).result().value for key in store.list().result()}
        assert read == model == by_tensorstore(path)
        with zipfile.ZipFile(path) as archive:  # which does not know zstd and xz yet
            known = [each for each in archive.infolist() if each.compress_type in (0, 8)]
            assert all(archive.read(each) == model[each.filename] for each in known)
    plain = fsstore.KvStore.open("memory://copy.zip|zip:").result()
    for key, value in model.items():
        plain[key] = value
    assert {key.decode(): plain[key] for key in plain.list().result()} == model


def test_an_archive_is_made_in_one_go(tmp_path: Path):
    """All of an array that a transaction writes is one write of the archive, documents first, and the same each time."""
    values = np.arange(600, dtype="u2").reshape(20, 30)
    made = []
    for name in ("a.zip", "b.zip"):
        base = fsstore.KvStore.open(f"file://{tmp_path}/{name}").result()
        with fsstore.Transaction() as transaction:
            spec = {"driver": "zarr3", "kvstore": place(tmp_path / name, path="x/")}
            store = fsstore.open(
                spec, create=True, dtype="uint16", shape=[20, 30], transaction=transaction,
                chunk_layout=fsstore.ChunkLayout(chunk_shape=[8, 8]),
            ).result()  # fmt: skip
            store.write(values).result()
            store[3:5, ::2] = 9
            assert base.read("").result().state == "missing"
        made.append(base.read("").result().value)
    values[3:5, ::2] = 9
    assert made[0] == made[1]
    assert next(iter(by_python(tmp_path / "a.zip"))) == "x/zarr.json"
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
    url = f"file://{tmp_path}/a.zip|zip:x/|zarr3:"
    assert (tensorstore.open(url).result().read().result() == values).all()
    assert (fsstore.open(url).result().read().result() == values).all()
    by_zarr = zarr.open_array(zarr.storage.ZipStore(tmp_path / "a.zip", mode="r"), path="x", mode="r")
    assert (by_zarr[:] == values).all()


def test_what_others_put_into_an_archive_stays(tmp_path: Path):
    """Comments, directories, attributes, times, and bytes in front are as they were; replaced members are gone."""
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.comment = b'{"ome": {"version": "0.5"}}'
        archive.mkdir("empty")
        info = zipfile.ZipInfo("kept", (2001, 2, 3, 4, 5, 6))
        info.comment, info.external_attr, info.extra = b"mine", 0o100600 << 16, b"\x99\x99\x02\x00ab"
        archive.writestr(info, b"kept" * 100)
        archive.writestr("gone", b"gone" * 100)
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("gone", b"again" * 100)
    path.write_bytes(b"#!unpacker\n" + path.read_bytes())
    store = fsstore.KvStore.open(place(path)).result()
    with fsstore.Transaction() as transaction:
        bound = store.with_transaction(transaction)
        bound["new"] = b"n"
        bound["gone"] = b"once"
    with zipfile.ZipFile(path) as archive:
        assert archive.comment == b'{"ome": {"version": "0.5"}}'
        assert archive.namelist() == ["empty/", "kept", "gone", "new"]
        info = archive.getinfo("kept")
        assert (info.date_time, info.comment, info.external_attr >> 16) == ((2001, 2, 3, 4, 5, 6), b"mine", 0o100600)
        assert b"\x99\x99\x02\x00ab" in info.extra
        assert (archive.read("kept"), archive.read("gone")) == (b"kept" * 100, b"once")
    assert path.read_bytes().startswith(b"#!unpacker\n")
    assert path.read_bytes().count(b"again") == 0


def test_streamed_members_stay(tmp_path: Path):
    """Members whose sizes follow their data, and those that nobody can read, are kept as they are."""

    class Pipe(io.RawIOBase):
        def __init__(self) -> None:
            self.data = b""

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.data += bytes(data)
            return len(data)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"streamed" * 50)
        archive.writestr("b", b"other" * 50)
    (tmp_path / "a.zip").write_bytes(pipe.data)
    store = fsstore.KvStore.open(place(tmp_path / "a.zip")).result()
    store["c"] = b"3"
    store["b"] = None
    assert by_python(tmp_path / "a.zip") == {"a": b"streamed" * 50, "c": b"3"}


def test_archives_of_tensorstore(tmp_path: Path):
    """Both libraries change one archive in turns, and no key is lost."""
    path, model = tmp_path / "a.zip", {}
    for turn in range(6):
        library = (fsstore, tensorstore)[turn % 2]
        store = library.KvStore.open(place(path)).result()
        key, value = f"k{turn % 4}", bytes([turn]) * 1000
        store.write(key, value).result()
        model[key] = value
        assert by_python(path) == by_tensorstore(path) == model


def test_writers_lose_nothing(tmp_path: Path):
    """Threads with contexts of their own, and another process, each add keys of their own."""
    path = tmp_path / "a.zip"

    def work(name: str) -> None:
        store = fsstore.KvStore.open(place(path)).result()
        for number in range(12):
            store.write(f"{name}/{number}", name.encode()).result()

    other = (
        "import sys, fsstore\n"
        "store = fsstore.KvStore.open({'driver': 'zip', 'base': 'file://' + sys.argv[1]}).result()\n"
        "for n in range(12): store[f'p/{n}'] = b'p'\n"
    )
    process = subprocess.Popen([sys.executable, "-c", other, str(path)])
    threads = [threading.Thread(target=work, args=(name,)) for name in ("t0", "t1", "t2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert process.wait(60) == 0
    assert set(by_python(path)) == {f"{name}/{n}" for name in ("t0", "t1", "t2", "p") for n in range(12)}


def test_conditions(tmp_path: Path):
    """A member is created once, and changed under the generation of the archive."""
    store = fsstore.KvStore.open(place(tmp_path / "a.zip")).result()
    first = store.write("a", b"1", if_equal=b"\x02").result().generation
    assert store.write("a", b"2", if_equal=b"\x02").result().generation == b""
    assert store.write("a", b"2", if_equal=first).result().generation != b""
    assert store.write("a", b"3", if_equal=first).result().generation == b""
    assert by_python(tmp_path / "a.zip") == {"a": b"2"}


def test_more_members_than_two_bytes_count(tmp_path: Path):
    """An archive of 66,000 members is ZIP64, and takes one more."""
    store = fsstore.KvStore.open(place(tmp_path / "a.zip")).result()
    with fsstore.Transaction() as transaction:
        bound = store.with_transaction(transaction)
        for number in range(66_000):
            bound.write(str(number), b"")
    store["last"] = b"x"
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert len(archive.namelist()) == 66_001
        assert archive.read("last") == b"x"
    again = tensorstore.KvStore.open(place(tmp_path / "a.zip")).result()
    assert again.read("last").result().value == b"x"


@pytest.mark.parametrize("where", [2**32 - 2, 2**32 - 1, 2**32, 2**40])
def test_places_beyond_four_bytes(where: int):
    """The records of members beyond four gigabytes say where they are."""
    plan = ArchivePlan([(0, where)], b"comment", [("a", b"one"), ("b", b"two")], "store", [], where)
    body = b"".join(part for member in plan.new_members() for part in member)
    tail = body + plan.directory()
    end = find_end(tail)
    assert (end.entries, end.directory_offset, end.comment) == (2, where + len(body), b"comment")
    data = tail[len(body) : len(body) + end.directory_size]
    found = parse_directory(data, 2, shift=0, limit=where + len(body))
    assert [found.member(key).offset for key in ("a", "b")] == [where, where + len(body) // 2]


@pytest.fixture
def source(tmp_path: Path) -> Any:
    """Return a group of two arrays."""
    group = zarr.open_group(tmp_path / "g.zarr", mode="w", attributes={"k": 1})
    group.create_array("x/a", data=np.random.default_rng(0).random((40, 30)), chunks=(7, 9))
    group.create_array("b", data=np.arange(100), chunks=(10,), shards=(50,))
    return group


def test_copies_into_archives(source: Any, tmp_path: Path):
    """`copy` packs a hierarchy in one step; the archive verifies, and other zarrs read it."""
    target = f"{tmp_path}/g.zip|zip:"
    report = fsstore.copy(tmp_path / "g.zarr", target, verify="values").result()
    assert set(report.arrays) == {"x/a", "b"}
    found = zarr.open_group(zarr.storage.ZipStore(tmp_path / "g.zip", mode="r"), mode="r")
    for name in ("x/a", "b"):
        assert (found[name][:] == source[name][:]).all()
    assert dict(found.attrs) == {"k": 1}
    assert list(by_python(tmp_path / "g.zip"))[:4] == ["zarr.json", "b/zarr.json", "x/zarr.json", "x/a/zarr.json"]
    before = (tmp_path / "g.zip").read_bytes()
    with pytest.raises(AlreadyExistsError, match="g.zip") as caught:
        fsstore.copy(tmp_path / "g.zarr", target).result()
    assert "fsstore-" not in str(caught.value)  # the directory in which it is made
    assert (tmp_path / "g.zip").read_bytes() == before
    fsstore.copy(tmp_path / "g.zarr", target, if_exists="replace").result()
    assert (tmp_path / "g.zip").read_bytes() == before


def test_copies_beside_what_is_there(source: Any, tmp_path: Path):
    """A copy below a path of an archive leaves the rest of it."""
    store = fsstore.KvStore.open(place(tmp_path / "g.zip")).result()
    store["mine/x"] = b"1"
    fsstore.copy(tmp_path / "g.zarr" / "b", f"{tmp_path}/g.zip|zip:deep/b/|zarr3:").result()
    found = by_python(tmp_path / "g.zip")
    assert set(found) == {"mine/x", "deep/b/zarr.json", "deep/b/c/0", "deep/b/c/1"}
    assert fsstore.open(f"{tmp_path}/g.zip|zip:deep/b/|zarr3:").result().read().result().tolist() == list(range(100))


def test_a_copy_that_fails_leaves_nothing(source: Any, tmp_path: Path):
    """No archive is made of a source that cannot be read."""
    (tmp_path / "g.zarr" / "b" / "c" / "1").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="c/1"):
        fsstore.copy(tmp_path / "g.zarr", f"{tmp_path}/g.zip|zip:", schema={"chunks": (20,), "codec": None}).result()
    assert not (tmp_path / "g.zip").exists()
