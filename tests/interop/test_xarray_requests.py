"""How the xarray engine asks: each document once, all coordinates together, and the loop of the caller goes on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import numpy as np
import pytest
import xarray as xr

import fsstore as ts
from fsstore import references

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")


def a_dataset():
    """Return a dataset with four indexes, times that are none, and values."""
    times = np.arange("2020-01-01", "2020-01-07", dtype="M8[D]").astype("M8[ns]")
    return xr.Dataset(
        {"temp": (("time", "lat", "lon", "height"), np.arange(360.0).reshape(6, 5, 4, 3))},
        {"time": times, "lat": np.arange(5.0), "lon": np.arange(4.0), "height": np.arange(3), "begun": ("time", times)},
    )


@pytest.fixture(params=[2, 3])
def remote(request, tmp_path, object_server):
    """Put the dataset, consolidated, on the web server; give its URL."""
    a_dataset().to_zarr(tmp_path / "d", zarr_format=request.param, consolidated=True)
    for path in (tmp_path / "d").rglob("*"):
        if path.is_file():
            object_server.put(f"d/{path.relative_to(tmp_path / 'd')}", path.read_bytes())
    return f"{object_server.url}/d/"


def test_a_remote_dataset_opens_in_three_rounds(remote, object_server):
    """The metadata are read once, by detection; then all coordinates are asked for before one is answered."""
    coordinates = threading.Barrier(5)

    def together(handler, path, body):
        coordinates.wait(60)  # which breaks if one is waited for before the next is asked for
        handler.serve(path, {}, body)

    for name in ("time", "lat", "lon", "height", "begun"):
        object_server.fail(f"/d/{name}/", together)
    opened = xr.open_dataset(remote, engine="fsstore")
    asked = Counter(path for _, path, _ in object_server.log)
    assert max(asked.values()) == 1
    chunks = [path for path in asked if path.count("/") > 2 and "/refs/" not in path]
    assert len(chunks) == 5, "no document below the root is read"
    begun = len(object_server.log)
    xr.testing.assert_equal(opened.load(), a_dataset())
    assert len(object_server.log) == begun + 1, "of what was read, nothing is read again"


@pytest.mark.parametrize("slash", ["", "/"])
def test_rounds_of_requests(remote, object_server, slash):
    """Where each answer takes long, opening takes three of them at most: two, and one to see that it is no file."""
    spans, lock = [], threading.Lock()

    def slowly(handler, path, body):
        begin = time.monotonic()
        time.sleep(0.1)
        with lock:
            spans.append((begin, time.monotonic()))
        handler.serve(path, {}, body)

    object_server.fail("/d", *[slowly] * 100)
    xr.open_dataset(remote.rstrip("/") + slash, engine="fsstore")
    rounds = []
    for begin, end in sorted(spans):  # a request is of the round after the last that had ended when it came
        rounds.append((1 + max((number for number, ended in rounds if ended <= begin), default=0), end))
    assert max(number for number, _ in rounds) == (2 if slash else 3)
    assert len(rounds) <= 11 + (0 if slash else 2)


def test_values_are_awaited(remote):
    """`load_async` reads while the loop of the caller goes on, coordinates included."""
    opened = xr.open_dataset(remote, engine="fsstore")

    async def load():
        ticks = []

        async def tick():
            while True:
                ticks.append(1)
                await asyncio.sleep(0)

        ticking = asyncio.ensure_future(tick())
        loaded = await opened.load_async()
        ticking.cancel()
        return loaded, len(ticks)

    loaded, ticks = asyncio.run(load())
    xr.testing.assert_equal(loaded, a_dataset())
    assert ticks > 1


def test_groups_and_reference_sets_are_datasets(tmp_path):
    """A `Group`, `References` and a `KvStore` open as they are, and the engine is found for what only it opens."""
    a_dataset().to_zarr(tmp_path / "d", zarr_format=2, consolidated=False)
    group = ts.open_group(tmp_path / "d").result()
    files = [path for path in (tmp_path / "d").rglob("*") if path.is_file()]
    refs = references.open({str(path.relative_to(tmp_path / "d")): [str(path)] for path in files})
    refs.save(tmp_path / "refs.json")
    for place in (group, refs, group.kvstore, tmp_path / "refs.json", str(tmp_path / "refs.json")):
        xr.testing.assert_equal(xr.open_dataset(place).load(), a_dataset())
    assert not xr.backends.list_engines()["fsstore"].guess_can_open(str(tmp_path / "d.nc"))
