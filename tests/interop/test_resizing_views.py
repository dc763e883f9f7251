"""Resizing through views: the array, the stored keys and the view afterwards are what tensorstore makes of them."""

import itertools

import numpy as np
import pytest
import tensorstore

import fsstore

VIEWS = {
    "whole": lambda module, store: store,
    "explicit": lambda module, store: store[0:4, 0:4],
    "marked explicit": lambda module, store: store.mark_bounds_implicit[False],
    "first rows": lambda module, store: store[:3],
    "last rows": lambda module, store: store[1:],
    "middle rows": lambda module, store: store[1:3],
    "middle rows, marked implicit": lambda module, store: store[1:3].mark_bounds_implicit[True],
    "one row": lambda module, store: store[1],
    "every other row": lambda module, store: store[::2],
    "reversed": lambda module, store: store[:, ::-1],
    "transposed": lambda module, store: store.T,
    "moved": lambda module, store: store.translate_by[10, -3],
    "new dimension": lambda module, store: store[None],
    "diagonal": lambda module, store: store[module.d[0, 1].diagonal],
    "shifted diagonal": lambda module, store: store[:, 1:].translate_to[0, 0][module.d[0, 1].diagonal],
    "listed rows": lambda module, store: store[[0, 1]],
}


def outcome(module, view, changes, tied):
    """Resize a view by changes of its bounds; return what came of it, or the error."""
    layout = module.ChunkLayout(chunk_shape=[2, 2])
    spec = {"driver": "zarr3", "kvstore": "memory://"}
    store = module.open(spec, create=True, dtype=module.int32, shape=[4, 4], chunk_layout=layout, fill_value=9).result()
    store.write(np.arange(16, dtype="i4").reshape(4, 4)).result()
    shown = VIEWS[view](module, store)
    low, high = (
        [None if change is None else bound + change for change, bound in zip(part, bounds, strict=False)]
        for part, bounds in zip(changes, (shown.domain.inclusive_min, shown.domain.exclusive_max), strict=True)
    )
    padding = [None] * (shown.rank - 2)
    try:
        new = shown.resize(low + padding, high + padding, resize_tied_bounds=tied).result()
    except ValueError as error:
        return str(error).replace('Error writing "zarr.json": ', "").split(" [")[0]
    now = store.resolve().result()
    keys = sorted(store.kvstore.list().result())
    return str(new.domain), now.shape, now.read().result().tolist(), keys


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("view", VIEWS)
def test_upper_bounds(view, tied):
    """Upper bounds kept, repeated, lowered and raised in both dimensions, with and without leave to change hidden parts."""
    for high in itertools.product((None, -1, 0, 2), repeat=2):
        changes = ((None, None), high)
        assert outcome(fsstore, view, changes, tied) == outcome(tensorstore, view, changes, tied), high


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("view", VIEWS)
def test_lower_bounds(view, tied):
    """Lower bounds can be asked for where they are implicit; below them the array begins at zero."""
    for low in [(-2, None), (1, None), (None, -2), (None, 1), (None, 0)]:
        changes = (low, (None, None))
        assert outcome(fsstore, view, changes, tied) == outcome(tensorstore, view, changes, tied), low


def test_nothing_asked_for_writes_nothing():
    """A resize that keeps all bounds leaves the document as it is, byte for byte."""
    store = fsstore.open("memory://|zarr3:", create=True, dtype="int8", shape=[4]).result()
    spelled = store.kvstore["zarr.json"].replace(b",", b", ")
    store.kvstore["zarr.json"] = spelled
    store.resize().result()
    assert store.kvstore["zarr.json"] == spelled


@pytest.mark.parametrize("bound", [4.0, "4", [4]])
def test_bounds_are_integers(bound):
    """Other numbers and text are refused, as tensorstore refuses them."""
    for module in (fsstore, tensorstore):
        spec = {"driver": "zarr3", "kvstore": "memory://"}
        store = module.open(spec, create=True, dtype=module.int8, shape=[4]).result()
        with pytest.raises(TypeError):
            store.resize(exclusive_max=[bound])
