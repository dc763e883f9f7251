"""Parquet sets against a dictionary: any sequence of writes by two writers leaves what the model says."""

from __future__ import annotations

import json
from math import prod

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fsstore.errors import FailedPreconditionError
from fsstore.kvstore.contract.driver import KvPrefix, Read, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.memory import MemoryDriver
from fsstore.reference.kind import open_reference
from fsstore.reference.parquet_file import format_metadata
from fsstore.runtime import execution

chunk = st.tuples(st.integers(0, 4), st.integers(0, 3))
shape = st.tuples(st.integers(0, 5), st.integers(0, 4))
value = st.none() | st.binary(max_size=5)
step = st.tuples(
    st.integers(0, 1),
    st.one_of(
        st.tuples(st.just("chunks"), st.dictionaries(chunk, value, max_size=6)),
        st.tuples(st.just("shape"), shape),
        st.tuples(st.just("both"), shape, st.dictionaries(chunk, st.binary(max_size=3), max_size=3)),
        st.tuples(st.just("drop")),
        st.tuples(st.just("attributes"), st.integers(0, 9)),
        st.tuples(st.just("range"), chunk, chunk),
    ),
)


def key(coords):
    """Return the key of a chunk."""
    return f"x/{coords[0]}.{coords[1]}"


def metadata(grid):
    """Return the `.zarray` of a grid."""
    return json.dumps({"zarr_format": 2, "shape": grid, "chunks": [1, 1]}).encode()


class Model:
    """The set as a dictionary of chunks, and the shape of its one array."""

    def __init__(self):
        self.grid, self.chunks, self.attributes = None, {}, None

    def fits(self, coords):
        """Return whether there is such a chunk."""
        return self.grid is not None and all(at < size for at, size in zip(coords, self.grid, strict=True))

    def moves(self, grid):
        """Return whether a shape gives other numbers to chunks, or the number of one to another."""
        if self.grid is None:
            return False
        common = range(min(prod(self.grid), prod(grid)))
        return any(np.unravel_index(n, self.grid) != np.unravel_index(n, grid) for n in common)

    def reshape(self, grid):
        """Change the shape; chunks outside are gone."""
        self.grid = grid
        self.chunks = {coords: value for coords, value in self.chunks.items() if self.fits(coords)}

    def write(self, changes):
        """Change chunks."""
        merged = {**self.chunks, **changes}
        self.chunks = {coords: value for coords, value in merged.items() if value is not None}

    def keys(self):
        """Return every key with its value."""
        found = {key(coords): value for coords, value in self.chunks.items()}
        if self.grid is not None:
            found["x/.zarray"] = metadata(self.grid)
        if self.attributes is not None:
            found["x/.zattrs"] = self.attributes
        return found


def put(store, changes):
    """Write values by key."""
    execution.call(store.write_many([Write(name, value) for name, value in changes.items()]))


def apply(store, base, model, what):
    """Do one step to the store and to the model."""
    match what:
        case "chunks", changes:
            changes = {coords: value for coords, value in changes.items() if value is None or model.fits(coords)}
            put(store, {key(coords): value for coords, value in changes.items()})
            model.write(changes)
        case ("shape", grid) | ("both", grid, _) if model.moves(grid) and model.chunks:
            try:
                put(store, {"x/.zarray": metadata(grid)})
            except FailedPreconditionError:
                return
            raise AssertionError(f"rows moved from {model.grid} to {grid}")
        case "shape", grid:
            put(store, {"x/.zarray": metadata(grid)})
            model.reshape(grid)
        case "both", grid, changes:
            model.reshape(grid)
            changes = {coords: value for coords, value in changes.items() if model.fits(coords)}
            put(store, {**{key(coords): value for coords, value in changes.items()}, "x/.zarray": metadata(grid)})
            model.write(changes)
        case ("drop",):
            put(store, {"x/.zarray": None})
            model.reshape((0, 0))
            model.grid = None
        case "attributes", number:
            model.attributes = b'{"a":%d}' % number
            put(store, {"x/.zattrs": model.attributes})
        case "range", low, high:
            execution.call(opened(base).delete_range(KeyRange(key(low), key(high))))
            inside = [coords for coords in model.chunks if KeyRange(key(low), key(high)).contains(key(coords))]
            model.write(dict.fromkeys(inside))


def opened(base):
    """Return the store over a set, opened now."""
    return execution.call(open_reference(base, {}))


def contents(store):
    """Return every key and value, found by listing and by asking."""

    async def everything():
        names = [entry.key async for batch in store.scan(KeyRange()) for entry in batch]
        return dict(zip(names, await store.read_many([Read(name) for name in names]), strict=True))

    return {name: bytes(result.value) for name, result in execution.call(everything()).items()}


@given(st.lists(step, max_size=14), st.integers(1, 7))
def test_any_sequence_of_writes(steps, record_size):
    """Two stores over one set, files of a few rows: what is stored is what the model says, after every step.

    A store sees what it wrote; of what the other wrote it need not know more than it comes across.
    """
    base = KvPrefix(MemoryDriver(), "r.parq")
    execution.call(base.write("/.zmetadata", format_metadata({}, record_size)))
    stores = [opened(base) for _ in range(2)]
    model = Model()
    for who, what in steps:
        apply(stores[who], base, model, what)
        if what[0] in ("chunks", "both"):
            names = [key(coords) for coords in what[-1]]
            found = execution.call(stores[who].read_many([Read(name) for name in names]))
            got = {name: bytes(one.value) for name, one in zip(names, found, strict=True) if one.state == "value"}
            assert got == {name: value for name, value in model.keys().items() if name in names}
        assert contents(opened(base)) == model.keys()
