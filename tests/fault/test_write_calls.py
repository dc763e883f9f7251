"""Every system call of a write to local files fails, one at a time: old or new chunks, no other error, nothing left over."""

import errno
import os
import threading
import types

import numpy as np
import pytest

import fsstore as ts
from fsstore.errors import StoreError
from fsstore.kvstore.local import lock as local_lock
from fsstore.kvstore.local import stage as local_stage
from fsstore.kvstore.local import write as local_write

CALLS = ("open", "write", "writev", "fsync", "fstat", "stat", "lstat", "rename", "ftruncate", "mkdir", "close")
TURNS = 3
SHARD = {
    "name": "sharding_indexed",
    "configuration": {"chunk_shape": [1, 1 << 17], "codecs": [{"name": "bytes"}, {"name": "gzip"}]},
}
LAYOUTS = {
    "encoded while written": ([{"name": "bytes"}, {"name": "blosc"}], (2, 1 << 20), np.s_[:]),
    "shards": ([SHARD], (2, 1 << 20), np.s_[:]),
    "parts of shards": ([SHARD], (2, 1 << 20), np.s_[:, 5:300_000]),
    "few small chunks": ([{"name": "bytes"}], (20, 100), np.s_[:]),
    "parts of many": ([{"name": "bytes"}], (100, 10), np.s_[:, 3:9]),
}


class Machine(types.SimpleNamespace):
    """What stands for `os`: call number `turn` of one name fails, and those of all others are made."""

    def __init__(self):
        """Begin without a fault."""
        super().__init__(**{name: getattr(os, name) for name in dir(os) if not name.startswith("__")})
        self.armed, self.made, self.lock = (None, 0), 0, threading.Lock()
        for name in CALLS:
            setattr(self, name, self._failing(name, getattr(os, name)))

    def _failing(self, name, real):
        def call(*arguments, **options):
            with self.lock:
                self.made += name == self.armed[0]
                fails = (name, self.made) == self.armed
            if fails:
                if name == "close":  # which closes, whatever it says
                    real(*arguments)
                self.armed = (None, 0)
                raise OSError(errno.EIO, "told so")
            return real(*arguments, **options)

        return call

    def arm(self, name, turn):
        """Let a call fail."""
        self.armed, self.made = (name, turn), 0


@pytest.fixture
def machine(monkeypatch):
    """Put a machine that fails below the writes."""
    machine = Machine()
    monkeypatch.setattr(local_stage, "os", machine)
    monkeypatch.setattr(local_write, "os", machine)
    monkeypatch.setattr(local_lock, "os", machine)
    return machine


def rows(array):
    """Return the rows of an array as bytes; each is a chunk."""
    return [row.tobytes() for row in array]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_call_may_fail(tmp_path, machine, layout):
    """A failed write says so, leaves whole chunks and no lock file or open file behind, and can be made again."""
    codecs, shape, where = LAYOUTS[layout]
    array = ts.open(
        {
            "driver": "zarr3",
            "kvstore": {"driver": "file", "path": f"{tmp_path}/a/"},
            "metadata": {
                "shape": shape,
                "data_type": "uint8",
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1, shape[1]]}},
                "codecs": codecs,
            },
            "create": True,
        }
    ).result()
    old = (np.arange(shape[0] * shape[1]) % 251 + 1).astype("u1").reshape(shape)
    new = old.copy()
    new[where] += 1
    array.write(old).result()
    failed = set()
    for name in CALLS:
        for turn in range(1, TURNS + 1):
            open_files = len(os.listdir("/dev/fd"))
            machine.arm(name, turn)
            try:
                array[where].write(new[where]).result()
            except StoreError:
                failed.add(name)
            machine.arm(None, 0)
            assert all(
                row in pair for row, pair in zip(rows(array.read().result()), zip(rows(old), rows(new)), strict=True)
            )
            array[where].write(new[where]).result()
            assert rows(array.read().result()) == rows(new)
            assert len(os.listdir("/dev/fd")) <= open_files
            assert not list(tmp_path.rglob("*__lock"))
            old, new = new, old
    assert failed >= {"open", "fsync", "fstat", "lstat", "rename", "close"}
    assert failed & {"write", "writev"}
