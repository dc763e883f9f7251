"""`ZarrStore` passes the tests that zarr-python has for stores, and both of its state machines."""

from __future__ import annotations

import asyncio
import functools
import inspect

import hypothesis
import numpy as np
import pytest
import zarr
import zarr.core.buffer
from hypothesis.stateful import run_state_machine_as_test
from zarr.core.sync import sync
from zarr.testing.stateful import ZarrHierarchyStateMachine, ZarrStoreStateMachine
from zarr.testing.store import StoreTests

import fsstore as ts
from fsstore.interop.zarr import ZarrStore

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def waited_for(cls):
    """Return a class whose coroutine tests run to their end: pytest does not await."""
    for name, function in inspect.getmembers(cls, inspect.iscoroutinefunction):
        if name.startswith("test_"):

            def run(self, *args, _function=function, **options):
                return asyncio.run(_function(self, *args, **options))

            wrapped = functools.wraps(function)(run)
            setattr(cls, name, wrapped)
    return cls


class StoreSuite(StoreTests):
    """What the tests of zarr-python want to know."""

    store_cls = ZarrStore
    buffer_cls = zarr.core.buffer.cpu.Buffer

    async def set(self, store, key, value):
        """Store a value past the store."""
        self.behind[key] = value.to_bytes()

    async def get(self, store, key):
        """Return a value past the store."""
        return self.buffer_cls.from_bytes(self.behind[key])

    @pytest.fixture
    def store(self, open_kwargs):
        """Give an open store."""
        return asyncio.run(self.store_cls.open(**open_kwargs))

    @pytest.fixture
    def store_not_open(self, store_kwargs):
        """Give a store that is not open yet."""
        return self.store_cls(**store_kwargs)

    def test_store_repr(self, store):
        """The place is shown."""
        assert repr(store).startswith("ZarrStore(")

    def test_store_supports_writes(self, store):
        """These stores can be written."""
        assert store.supports_writes

    def test_store_supports_listing(self, store):
        """And listed."""
        assert store.supports_listing


@waited_for
class TestLocal(StoreSuite):
    """Local files."""

    @pytest.fixture
    def store_kwargs(self, tmp_path):
        """Give a directory."""
        self.behind = ts.KvStore.open(f"file://{tmp_path}/s/").result()
        return {"place": f"file://{tmp_path}/s/"}


@waited_for
class TestDatabase(StoreSuite):
    """An OCDBT database in memory, given as it is open."""

    @pytest.fixture
    def store_kwargs(self):
        """Give a database."""
        self.behind = ts.KvStore.open("memory://d/|ocdbt:").result()
        return {"place": self.behind}


@pytest.mark.parametrize("machine", [ZarrStoreStateMachine, ZarrHierarchyStateMachine])
def test_the_state_machines_of_zarr(machine):
    """Random programs leave a store, and a hierarchy in it, as they leave zarr's own memory store."""
    settings = hypothesis.settings(
        max_examples=3, stateful_step_count=15, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
    )

    def make():
        store = ZarrStore(ts.KvStore.open("memory://").result())
        sync(store._ensure_open())
        return machine(store)

    run_state_machine_as_test(make, settings=settings)


def test_arrays_through_any_pipeline(tmp_path):
    """zarr-python writes and reads groups in an archive's neighbours, databases, and views of other formats."""
    group = zarr.open_group(ZarrStore(f"file://{tmp_path}/g|ocdbt:"), mode="w")
    group.create_array("a", data=np.arange(10))
    assert zarr.open_group(ZarrStore(f"file://{tmp_path}/g|ocdbt:"), mode="r")["a"][3:5].tolist() == [3, 4]
    ts.open(f"{tmp_path}/n5|n5:", mode="w", dtype="i4", shape=[6], chunks=[2]).result().write(7).result()
    shown = zarr.open_array(ZarrStore(f"file://{tmp_path}/n5|zarr3:", read_only=True), mode="r")
    assert shown[:].tolist() == [7] * 6
