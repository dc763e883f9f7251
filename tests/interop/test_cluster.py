"""Jobs on a real cluster of dask.distributed: workers that die, schedulers that go, directories that differ."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import dask
import distributed
import numpy as np
import pytest
import xarray as xr

import fsstore as ts
from fsstore.task.runner import Task, reporter_of, run_tasks

VALUES = np.random.default_rng(2).integers(1, 1000, (64, 40, 20)).astype("i4")
SCHEMA = {"chunks": [64, 4, 4]}

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the cluster, which closes sockets when it likes


def new_cluster(workers):
    return distributed.LocalCluster(
        n_workers=workers, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    )


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Return a client of a cluster whose workers know neither our directory nor our environment."""
    folder = tmp_path_factory.mktemp("dask")
    patient = dask.config.set({"distributed.comm.timeouts.connect": "120s", "temporary_directory": str(folder)})
    with patient, new_cluster(2) as cluster, distributed.Client(cluster, timeout=120) as client:
        client.run(os.chdir, "/")
        client.run(os.environ.pop, "HOME", None)
        yield client


@pytest.fixture
def array(tmp_path):
    group = ts.open_group(tmp_path / "a", mode="w").result()
    found = group.create_array("a", shape=VALUES.shape, dtype="i4", chunks=[4, 40, 20]).result()
    found[:] = VALUES
    return found


def read(path):
    return ts.open(f"file://{path}/").result().read().result()


@pytest.mark.parametrize("schema", [{}, SCHEMA], ids=["untouched", "rechunked"])
def test_a_copy_on_a_cluster(client, array, tmp_path, monkeypatch, schema):
    """Places that are given relative to the caller's directory are the same for workers that run elsewhere."""
    monkeypatch.chdir(tmp_path)
    with client.get_executor() as executor:
        ts.copy("a/a", "b", schema=schema, executor=executor, max_memory="100kB").result(timeout=120)
        assert ts.verify("b", array, executor=executor).result(timeout=60)
    assert np.array_equal(read(tmp_path / "b"), VALUES)


def test_a_worker_that_is_killed(client, array, tmp_path):
    """A worker that dies in the middle loses its tasks to others, and nothing is lost."""
    killed = []

    def kill(_state):
        if not killed:
            pids = client.run(os.getpid)
            killed.append(next(iter(pids.values())))
            os.kill(killed[0], signal.SIGKILL)

    with client.get_executor() as executor:
        ts.copy(array, tmp_path / "b", schema=SCHEMA, executor=executor, max_memory="60kB", progress=kill).result(
            timeout=120
        )
    assert killed
    assert np.array_equal(read(tmp_path / "b"), VALUES)
    assert [path for path in (tmp_path / "b").iterdir() if "fsstore" in path.name] == []


def test_another_scheduler_continues(client, array, tmp_path):
    """A job that ended with its cluster is continued on another one, which does only what is left."""

    class _GoneError(Exception):
        pass

    def stop(state):
        if state.tasks:
            raise _GoneError

    options = {"schema": SCHEMA, "max_memory": "60kB"}
    with client.get_executor() as executor, pytest.raises(_GoneError):
        ts.copy(array, tmp_path / "b", executor=executor, progress=stop, **options).result(timeout=120)
    with new_cluster(1) as cluster, distributed.Client(cluster, timeout=120) as other, other.get_executor() as executor:
        report = ts.copy(array, tmp_path / "b", executor=executor, **options).result(timeout=120)
    assert report.resumed >= 1
    assert np.array_equal(read(tmp_path / "b"), VALUES)


_COPYING = """
import sys, distributed, fsstore as ts
address, source, target = sys.argv[1:]
with distributed.Client(address, timeout=120) as client, client.get_executor() as executor:
    tell = lambda state: print(state.tasks, flush=True)
    ts.copy(source, target, schema={"chunks": [64, 4, 4]}, max_memory="60kB", executor=executor, progress=tell).result()
"""


def test_a_client_that_is_killed(client, array, tmp_path):
    """Tasks of a client that died are over, or write what they would have written; another client ends the copy."""
    address = client.scheduler_info()["address"]
    source, target = tmp_path / "a/a", tmp_path / "b"
    command = [sys.executable, "-c", _COPYING, address, str(source), str(target)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as copying:
        assert copying.stdout is not None
        assert copying.stdout.readline()
        copying.kill()
    assert not (target / "zarr.json").exists()
    with client.get_executor() as executor:
        ts.copy(source, target, schema=SCHEMA, executor=executor, max_memory="60kB").result(timeout=120)
    assert np.array_equal(read(target), VALUES)
    assert [path for path in target.iterdir() if "fsstore" in path.name] == []


def test_secrets_reach_workers_where_the_context_says_so(client, array, tmp_path, object_server):
    """Workers read behind a token with `share_secrets`, and without it the job says what to do."""
    for path in (tmp_path / "a/a").rglob("*"):
        if path.is_file():
            object_server.put(f"/s/{path.relative_to(tmp_path / 'a/a')}", path.read_bytes())
    base = {"driver": "http", "base_url": object_server.url, "path": "/s/", "headers": ["Authorization: Bearer s3cr3t"]}
    spec = {"driver": "zarr3", "kvstore": base}
    with client.get_executor() as executor:
        source = ts.open(spec, read=True).result()
        with pytest.raises(ts.errors.PermissionDeniedError, match=r"share_secrets\(\)"):
            ts.copy(source, tmp_path / "b", schema=SCHEMA, executor=executor).result(timeout=60)
        source = ts.open(spec, read=True, context=ts.Context().share_secrets()).result()
        object_server.headers_seen.clear()
        ts.copy(source, tmp_path / "c", schema=SCHEMA, executor=executor).result(timeout=60)
    assert {each.get("Authorization") for each in object_server.headers_seen} == {"Bearer s3cr3t"}
    assert np.array_equal(read(tmp_path / "c"), VALUES)
    assert not (tmp_path / "b/zarr.json").exists()


def _copied(source, target):
    report = ts.copy(source, target, schema=SCHEMA, max_memory="100kB").result()
    return report.tasks


def test_a_copy_inside_a_task(client, array, tmp_path):
    """A task of the cluster may itself copy."""
    tasks = client.submit(_copied, str(tmp_path / "a/a"), str(tmp_path / "b")).result(timeout=120)
    assert tasks > 1
    assert np.array_equal(read(tmp_path / "b"), VALUES)


def test_one_commit_from_many_workers(client, array, tmp_path):
    """Workers of a cluster write into databases of their own, and one commit takes all."""
    target = f"file://{tmp_path}/db/|ocdbt:x/"
    with client.get_executor() as executor:
        ts.copy(array, target, schema=SCHEMA, atomic=True, executor=executor, max_memory="100kB").result(timeout=120)
    assert np.array_equal(ts.open(f"{target}|zarr3:").result().read().result(), VALUES)
    assert len([each for each in ts.ocdbt.versions(f"file://{tmp_path}/db/|ocdbt:").result() if each.num_keys]) == 1


def _failing_once(mark):
    """Answer the second time."""
    if not os.path.exists(mark):  # noqa: PTH110  # a text that went to a worker
        with open(mark, "w", encoding="utf-8"):  # noqa: PTH123
            raise OSError("the first time")
    return 5


def test_a_second_attempt_is_another_call(client, tmp_path):
    """Dask answers equal calls once; a task that failed is done again, and so is one of another run."""
    answers = []

    async def run():
        with client.get_executor() as executor:
            tasks = (Task((number,), _failing_once, (str(tmp_path / str(number)),)) for number in range(3))
            reporter = reporter_of(None, "tasks", 3, 0)
            await run_tasks(tasks, executor, reporter, lambda _task, answer: answers.append(answer))

    asyncio.run(run())
    assert answers == [5, 5, 5]
    for number in range(3):
        (tmp_path / str(number)).unlink()
    asyncio.run(run())
    assert answers == [5] * 6
    assert all((tmp_path / str(number)).exists() for number in range(3))


def unaligned(kill=""):
    """Return a dataset whose blocks fit to no chunk; one of them may end its worker, once."""
    blocks = xr.Dataset({"v": (("z", "y", "x"), VALUES)}).chunk(z=9, y=7, x=20)

    def pass_on(block, block_info=None):
        if kill and block_info[0]["chunk-location"] == (3, 2, 0) and not os.path.exists(kill):
            open(kill, "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        return block

    return blocks.assign(
        v=blocks.v.copy(data=blocks.v.data.map_blocks(pass_on, dtype="i4", meta=np.empty((0, 0, 0), "i4")))
    )


@pytest.mark.parametrize("memory", ["100MB", 1000])
@pytest.mark.parametrize("kill", [False, True])
def test_a_dataset_is_written_by_workers(client, tmp_path, monkeypatch, memory, kill):
    """Blocks share chunks across workers, of which one dies, and nothing is lost; progress counts all of it."""
    monkeypatch.chdir(tmp_path)
    told = []
    schema = {"chunks": {"z": 10, "y": 16, "x": 5}}
    mark = str(tmp_path / "killed") if kill else ""
    ts.write_dataset(unaligned(mark), "w.zarr", schema=schema, max_memory=memory, progress=told.append)
    assert np.array_equal(xr.open_dataset("w.zarr", engine="fsstore").v, VALUES)
    assert told[-1].nbytes == VALUES.nbytes
    assert os.path.exists("killed") == kill


def test_a_failing_block_of_a_dataset_ends_the_write(client, tmp_path):
    """When the caller hears of it no worker writes any more, and there is no dataset."""
    wrong = unaligned()
    wrong["v"] = wrong.v.copy(
        data=wrong.v.data.map_blocks(lambda block: 1 // 0, dtype="i4", meta=np.empty((0, 0, 0), "i4"))
    )
    with pytest.raises(ZeroDivisionError):
        ts.write_dataset(wrong, tmp_path / "w.zarr", schema={"chunks": {"z": 10}})
    assert not any(client.processing().values())
    with pytest.raises(FileNotFoundError):
        xr.open_dataset(tmp_path / "w.zarr", engine="fsstore")
