"""Arrays that another one replaces while they are open, against TensorStore 0.1.86."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorstore

import fsstore

OLD = ((8,), (4,), "int32")
NEW = {
    "narrower": ((8,), (4,), "int16"),
    "as wide": ((8,), (4,), "float32"),
    "chunks": ((8,), (2,), "int32"),
    "larger chunks": ((8,), (8,), "int32"),
    "rank": ((2, 4), (2, 2), "int32"),
    "shape": ((4,), (4,), "int32"),
    "values": ((8,), (4,), "int32"),
}


def _made(library: Any, driver: str, where: Any, context: Any, **layout: Any) -> Any:
    grid = {"name": "regular", "configuration": {"chunk_shape": layout["chunks"]}}
    chunks = {"zarr3": {"chunk_grid": grid}, "n5": {"blockSize": layout["chunks"]}}
    metadata = chunks.get(driver, {"chunks": layout["chunks"]})
    spec = {"driver": driver, "kvstore": where, "metadata": metadata}
    kind = getattr(library, layout["dtype"])
    store = library.open(
        spec, create=True, delete_existing=True, dtype=kind, shape=layout["shape"], context=context
    ).result()
    values = np.arange(np.prod(layout["shape"])).reshape(layout["shape"]) + 1 + layout["first"]
    store[...] = values.astype(layout["dtype"])
    return store


def _answers(library: Any, driver: str, where: Any, new: tuple[Any, Any, str]) -> list[Any]:
    context = library.Context({"cache_pool": {"total_bytes_limit": 10**6}})
    shape, chunks, dtype = OLD
    old = _made(library, driver, where, context, shape=shape, chunks=chunks, dtype=dtype, first=0)
    old.read().result()
    shape, chunks, dtype = new
    other = _made(library, driver, where, context, shape=shape, chunks=chunks, dtype=dtype, first=100)
    answers: list[Any] = []
    for use in (
        lambda: old.read().result().tolist(),
        lambda: old[1:3].read().result().tolist(),
        lambda: old[1:].write(7).result(),
        lambda: repr(old.resolve().result().domain),
        lambda: old.resize(exclusive_max=[5]).result().shape,
        lambda: other.read().result().tolist(),
    ):
        try:
            answers.append(use())
        except ValueError as error:
            answers.append(str(error).partition(":")[0])
            assert "Updated" in str(error)
    assert repr(old)
    return answers


@pytest.mark.parametrize("driver", ["zarr", "zarr3", "n5"])
@pytest.mark.parametrize("kvstore", ["memory", "file"])
@pytest.mark.parametrize("change", NEW)
def test_a_handle_of_a_replaced_array(tmp_path, driver: str, kvstore: str, change: str) -> None:
    """Of another layout it is an error to read or write through an old handle; of the same one, its values are seen."""
    ours, theirs = (
        _answers(
            library,
            driver,
            {"driver": kvstore, "path": f"{tmp_path}/{library.__name__}/" if kvstore == "file" else ""},
            NEW[change],
        )
        for library in (fsstore, tensorstore)
    )
    assert ours == theirs


@pytest.mark.parametrize("driver", ["zarr", "zarr3", "n5"])
def test_the_change_is_named(tmp_path, driver: str) -> None:
    """The error says what was and what is, also for a handle of another context that looks again."""
    where = {"driver": "file", "path": f"{tmp_path}/"}
    _made(fsstore, driver, where, None, shape=(8,), chunks=(4,), dtype="int16", first=0)
    looking = fsstore.open({"driver": driver, "kvstore": where, "recheck_cached_metadata": True}, open=True).result()
    _made(fsstore, driver, where, None, shape=(8,), chunks=(2,), dtype="int16", first=0)
    name = {"zarr": "chunks", "zarr3": "chunk_grid", "n5": "blockSize"}[driver]
    with pytest.raises(ValueError, match=rf'is incompatible with existing metadata: "{name}" was .*4.* and is .*2'):
        looking.read().result()


@pytest.mark.parametrize("driver", ["zarr", "zarr3", "n5"])
def test_a_resize_elsewhere_is_no_other_array(tmp_path, driver: str) -> None:
    """A handle of another context that looks again follows a resize, whatever its format calls the shape."""
    where = {"driver": "file", "path": f"{tmp_path}/"}
    one = _made(fsstore, driver, where, None, shape=(8,), chunks=(4,), dtype="int32", first=0)
    spec = {"driver": driver, "kvstore": where, "recheck_cached_metadata": True}
    other = fsstore.open(spec, context=fsstore.Context()).result()
    one.resize(exclusive_max=[6]).result()
    assert other.resolve().result().shape == (6,)
    assert other.resolve().result().read().result().tolist() == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("driver", ["zarr", "zarr3", "n5"])
@pytest.mark.parametrize("change", [name for name in NEW if name not in ("shape", "values")])
def test_a_replacement_nobody_looked_for(tmp_path, driver: str, change: str) -> None:
    """By another process, without recheck: chunks of another size are an error, as in TensorStore.

    Others are taken for what they were, and blocks of N5 may be smaller.  Chunks of other names are missing: fill values
    in TensorStore, an error here.
    """
    shape, chunks, dtype = OLD
    seen: list[Any] = []
    for library in (fsstore, tensorstore):
        where = {"driver": "file", "path": f"{tmp_path}/{library.__name__}/"}
        old = _made(library, driver, where, None, shape=shape, chunks=chunks, dtype=dtype, first=0)
        shape_now, chunks_now, dtype_now = NEW[change]
        apart = library.Context()
        new = _made(library, driver, where, apart, shape=shape_now, chunks=chunks_now, dtype=dtype_now, first=0)
        try:
            seen.append(old.read().result().tolist())
        except ValueError:
            seen.append("an error")
        looking = library.open(old.spec(), recheck_cached_metadata=True, context=apart)
        with pytest.raises(ValueError, match="FAILED_PRECONDITION"):
            looking.result()
        assert new.read().result().shape == shape_now
    if change == "rank":
        assert seen == ["an error", [0] * len(seen[1])]
        return
    assert seen[0] == seen[1]
    unnoticed = change == "as wide" or (change, driver) == ("chunks", "n5")
    assert (seen[0] == "an error") == (not unnoticed)
