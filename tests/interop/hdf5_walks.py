"""What is parsed of an HDF5 file, compared with what h5py says of it."""

from __future__ import annotations

import dataclasses

import numpy as np

from fsstore.context.context import Context
from fsstore.kvstore.spec_parse import kv_spec, open_kv
from fsstore.runtime import execution
from fsstore.scan.contract import ScanSource
from fsstore.scan.hdf5 import walk
from fsstore.scan.hdf5.walk import OpenHdf5


def objects(path, *, parse):
    """Return what a walk through a file finds, and the paths of what h5py described."""
    described = []

    class Counted(walk.Walk):
        def _by_library(self, name, address):
            described.append(name)
            super()._by_library(name, address)

        def _visit(self, object_):
            if parse:
                super()._visit(object_)
            else:
                self._by_library(*object_)

    async def scan():
        place = (await open_kv(kv_spec(f"file://{path}"), Context())).prefix
        file = OpenHdf5(await ScanSource(place).begin())
        return await file.run(Counted(file).step)

    return execution.call(scan()), described


def plain(value):
    """Return a value that can be compared: NaN is NaN, and a dtype is how it is written."""
    if dataclasses.is_dataclass(value):
        compared = [each.name for each in dataclasses.fields(value) if each.compare]
        return {name: plain(getattr(value, name)) for name in compared}
    if isinstance(value, np.ndarray | np.generic):
        return [value.dtype.str, value.tobytes()]
    if isinstance(value, np.dtype):
        return [value.str, value.descr if value.names else None]
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    if isinstance(value, tuple) and hasattr(value, "values"):  # h5py gives sixteen values of a filter at most
        return [value.id, list(value.values[:16])]
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return value


def assert_same(path, unknown=()):
    """Check that both walks find the same, and h5py was asked for what is `unknown` only."""
    ours, described = objects(path, parse=True)
    theirs, _ = objects(path, parse=False)
    assert list(ours.datasets) == list(theirs.datasets)
    assert list(ours.groups) == list(theirs.groups)
    for name, dataset in theirs.datasets.items():
        assert plain(ours.datasets[name]) == plain(dataset), name
    for name, group in theirs.groups.items():
        assert plain(ours.groups[name]) == plain(group), name
    assert ours.notes.keys() == theirs.notes.keys()
    assert ours.links == theirs.links
    assert sorted(set(described)) == sorted(unknown)
    return ours
