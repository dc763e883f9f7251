"""A writer of a parquet set that stops at any moment leaves every key with its old or its new value.

The store below does one more write, or one more deletion, and then nothing any more, as if the process had died; local
files are replaced in one step, which `test_local_faults` proves by killing.  Then the set is read by fsstore and by
fsspec, opened afterwards, and by readers of both that had it open before: what they had read of it was its metadata.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.reference import LazyReferenceMapper

from fsstore import references
from fsstore.errors import UnavailableError
from fsstore.kvstore.contract.driver import KvPrefix, Read, Write
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.kvstore.local.stage import Protocol
from fsstore.reference.kind import open_reference
from fsstore.runtime import execution
from fsstore.testing.doubles import Recording

pytestmark = pytest.mark.filterwarnings("ignore:.*fastparquet.*engine is deprecated")
LOCAL = LocalDriver(Protocol(sync=False))
KEYS = [f"x/{n}" for n in range(14)] + [f"y/{n}.{m}" for n in range(3) for m in range(3)]


class Dying(Recording):
    """A store that makes `left` more single changes; those of a batch are made in the order given, or backwards."""

    def __init__(self, inner, left, *, backwards):
        super().__init__(inner)
        self.left, self.backwards = left, backwards

    async def write_many(self, writes):
        """Make changes one by one as long as there is life."""
        order = list(reversed(range(len(writes)))) if self.backwards else range(len(writes))
        stamps = {}
        for position in order:
            if not self.left:
                raise UnavailableError("the process is dead")
            self.left -= 1
            stamps[position] = (await super().write_many([writes[position]]))[0]
        return [stamps[position] for position in range(len(writes))]

    async def delete_range(self, keys):
        """Nothing here deletes ranges, which would be many changes at once."""
        raise AssertionError(keys)


def array(*shape):
    """Return the text of a `.zarray`."""
    return json.dumps({"zarr_format": 2, "shape": shape, "chunks": [1] * len(shape), "dtype": "|u1"}).encode()


def ours(store):
    """Return what a store of ours has for the keys."""
    results = execution.call(store.read_many([Read(key) for key in KEYS]))
    return {key: bytes(result.value) for key, result in zip(KEYS, results, strict=True) if result.state == "value"}


def theirs(mapper):
    """Return what fsspec's mapper has for the keys that its grids know; it gives rows of others to what lies outside."""
    found = {}
    for key in KEYS:
        path, _, chunk = key.partition("/")
        grid = mapper.zmetadata.get(f"{path}/.zarray", {"shape": [0] * 2})["shape"]
        if all(int(part) < size for part, size in zip(chunk.split("."), grid, strict=False)) and key in mapper:
            value = mapper[key]
            found[key] = value if isinstance(value, bytes) else bytes(range(value[1], value[1] + value[2]))
    return found


def readers(path):
    """Return functions that read the keys through stores opened now."""
    store = execution.call(open_reference(KvPrefix(LOCAL, str(path)), {}))
    mapper = LazyReferenceMapper(str(path), fsspec.filesystem("file"))
    return [lambda: ours(store), lambda: theirs(mapper)]


@pytest.fixture
def before(tmp_path):
    """Give the path of a set with references of all kinds, and a file of an array that is gone."""
    target = tmp_path / "t"
    target.write_bytes(bytes(range(256)))
    refs = {f"x/{n}": [str(target), n, 5] for n in range(8) if n != 4} | {"y/0.0": "in", "y/1.1": "line"}
    refs |= {"x/.zarray": array(10), "y/.zarray": array(2, 2), ".zgroup": "{}"}
    references.open(refs).save(tmp_path / "r.parq", record_size=3)
    references.open({"z/.zarray": array(9), **{f"z/{n}": "stale" for n in range(9)}}).save(
        tmp_path / "z.parq", record_size=3
    )
    for name in ("x", "y"):
        shutil.copy(tmp_path / "z.parq/z/refs.2.parq", tmp_path / "r.parq" / name / "refs.9.parq")
    return tmp_path / "r.parq"


def changed(path, batch):
    """Return whether the array x is the new one."""
    metadata = references.open(path)
    return "x/.zarray" in batch and metadata.get("x/.zarray") == batch["x/.zarray"]


def check(batch, old, found, *, gone):
    """Check values; with `gone` chunks of x may be those of an array that is gone, or smaller now."""
    for key in KEYS:
        values = {old.get(key), batch.get(key, old.get(key))}
        if gone and key.startswith("x") and "x/.zarray" in batch:
            values.add(None)
        assert found.get(key) in values, (key, found.get(key))


NEW = {f"x/{n}": f"new{n}".encode() for n in (0, 2, 4, 7, 9)}
BATCHES = {
    "values in several files": NEW,
    "values and deletions": {**NEW, "x/1": None, "x/6": None, "y/0.0": None, "y/1.1": None},
    "metadata and values": {**NEW, "x/.zattrs": b'{"a":1}', "y/1.0": b"new"},
    "a deleted array": {"x/.zarray": None, **{f"x/{n}": None for n in range(8)}},
    "a leading dimension grows": {"x/.zarray": array(14), "x/13": b"new", "x/8": b"new"},
    "it grows from the end of a file": {"x/.zarray": array(12), "x/11": b"new"},
    "a leading dimension shrinks": {"x/.zarray": array(4), "x/3": b"new"},
    "both arrays change": {"x/.zarray": array(2), "y/.zarray": array(3, 2), "y/2.1": b"new", "x/0": b"new"},
}


@pytest.mark.parametrize("backwards", [False, True], ids=["", "backwards"])
@pytest.mark.parametrize("name", BATCHES)
def test_each_key_is_old_or_new(before, tmp_path, name, backwards):
    """Whatever the moment and whoever reads, and the next writer finishes the work."""
    batch = BATCHES[name]
    writes = [Write(key, value) for key, value in batch.items()]
    old = ours(execution.call(open_reference(KvPrefix(LOCAL, str(before)), {})))
    for moment in itertools.count():
        path = tmp_path / f"{moment}.parq"
        shutil.copytree(before, path)
        earlier = readers(path)
        dying = Dying(LOCAL, moment, backwards=backwards)
        writer = execution.call(open_reference(KvPrefix(dying, str(path)), {}))
        try:
            execution.call(writer.write_many(writes))
        except UnavailableError:
            finished = False
        else:
            finished = True
        for read in earlier:
            check(batch, old, read(), gone=True)
        for read in readers(path):
            check(batch, old, read(), gone=changed(path, batch))
        again = execution.call(open_reference(KvPrefix(LOCAL, str(path)), {}))
        execution.call(again.write_many(writes))
        expected = {key: value for key, value in batch.items() if value is not None and "z" not in key}
        for read in readers(path):
            assert expected.items() <= read().items()
            assert not {key for key, value in batch.items() if value is None} & set(read())
        shutil.rmtree(path)
        if finished:
            break
    assert moment >= 2


def test_an_array_made_where_one_was(before, tmp_path):
    """Files that a dead writer left are cleared before an array of that path can reach them, at any moment."""
    text = json.loads((before / ".zmetadata").read_text())
    del text["metadata"]["x/.zarray"]
    (before / ".zmetadata").write_text(json.dumps(text))
    batch = {"x/.zarray": array(14), "x/5": b"new"}
    for moment in itertools.count():
        path = tmp_path / f"{moment}.parq"
        shutil.copytree(before, path)
        dying = Dying(LOCAL, moment, backwards=False)
        writer = execution.call(open_reference(KvPrefix(dying, str(path)), {}))
        try:
            execution.call(writer.write_many([Write(key, value) for key, value in batch.items()]))
        except UnavailableError:
            finished = False
        else:
            finished = True
        for read in readers(path)[: 2 if moment else 1]:
            assert {key: value for key, value in read().items() if key.startswith("x")}.items() <= {
                "x/5": b"new"
            }.items()
        if finished:
            break
    assert moment >= 5


def killed_writer(path, number, chance):
    """Return the last number a writer reported before it was killed."""
    program = Path(__file__).with_name("reference_kill_writer.py")
    command = [sys.executable, str(program), str(path), str(number)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        for _ in range(chance.randrange(1, 25)):
            last = writer.stdout.readline()
        time.sleep(chance.random() * 0.02)
        writer.kill()
        return int((last + writer.stdout.read()).split()[-1])


@pytest.mark.long
def test_killed_writers(tmp_path):
    """A writer killed at any moment leaves what it had answered, or a part of its next batch, for either reader."""
    refs = {"x/.zarray": {"zarr_format": 2, "shape": [60], "chunks": [1]}, **{f"x/{n}": ["t", n, 1] for n in range(60)}}
    references.open(refs).save(tmp_path / "r.parq", record_size=16)
    number, chance = 0, random.Random(5)
    for _ in range(60):
        answered = killed_writer(tmp_path / "r.parq", number, chance)
        mapper, ours = (
            LazyReferenceMapper(str(tmp_path / "r.parq"), fsspec.filesystem("file")),
            references.open(tmp_path / "r.parq"),
        )
        for n in range(mapper.zmetadata["x/.zarray"]["shape"][0]):
            found = mapper[f"x/{n}"] if f"x/{n}" in mapper else None
            value = ours.get(f"x/{n}")
            assert found == (list(value) if isinstance(value, tuple) else value)
            if n % 7 == 0 and n < 60:
                assert found in (b"%d:%d" % (n, answered), b"%d:%d" % (n, answered + 1))
            else:
                assert found == (["t", n, 1] if n < 60 else None)
        number = answered + 1
