"""What is parsed of an HDF5 file, compared with what h5py says of it."""

from __future__ import annotations

import dataclasses

import numpy as np
from hdf5_library import object_at

from fsstore.context.context import Context
from fsstore.kvstore.spec_parse import kv_spec, open_kv
from fsstore.runtime import execution
from fsstore.scan.contract import ScanSource
from fsstore.scan.hdf5 import walk
from fsstore.scan.hdf5.parsed import ParsedGroup
from fsstore.scan.hdf5.walk import OpenHdf5


def objects(path, *, parse):
    """Return what a walk through a file finds, as we parse it or as h5py describes it."""

    class ByLibrary(walk.Walk):
        def _visit(self, object_):
            path, address = object_
            found = object_at(self._file.library(), path, address)
            if isinstance(found, ParsedGroup):
                self._group(path, found)
            elif found is not None:
                self.found.datasets[path] = found

    async def scan():
        place = (await open_kv(kv_spec(f"file://{path}"), Context())).prefix
        file = OpenHdf5(await ScanSource(place).begin())
        return await file.run((walk.Walk if parse else ByLibrary)(file).step)

    return execution.call(scan())


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


def assert_same(path):
    """Check that what we parse is what h5py describes."""
    ours, theirs = objects(path, parse=True), objects(path, parse=False)
    assert list(ours.datasets) == list(theirs.datasets)
    assert list(ours.groups) == list(theirs.groups)
    for name, dataset in theirs.datasets.items():
        assert plain(ours.datasets[name]) == plain(dataset), name
    for name, group in theirs.groups.items():
        assert plain(ours.groups[name]) == plain(group), name
    assert ours.notes.keys() == theirs.notes.keys()
    assert ours.links == theirs.links
    return ours
