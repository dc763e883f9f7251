"""Scanning many files on processes and on a cluster: workers that die, files that kill them, runs that go on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import dask
import distributed
import numpy as np
import pytest
import xarray as xr

from fsstore import references
from fsstore.combine import many
from fsstore.combine.scanning import scan_files_here

sys.path.insert(0, str(Path(__file__).parent))

from many_files import FileOf, drifted, expected, write

sys.path.pop(0)

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the cluster, which closes sockets when it likes
COUNT = 24


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Give two dozen files, of which two drift, and what they hold."""
    folder = tmp_path_factory.mktemp("files")
    files = [FileOf(start=4 * number) for number in range(COUNT)]
    files = drifted(drifted(files, 5, scale=0.25), 17, zlib=False)
    paths = [folder / f"{number:02}.nc" for number in range(COUNT)]
    for path, of in zip(paths, files):
        write(path, of)
    return paths, expected(paths, files)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Give a client of a cluster of processes; it replaces the workers that dask gives up, if they die as they start."""
    folder = tmp_path_factory.mktemp("dask")
    patient = dask.config.set(
        {"distributed.comm.timeouts.connect": "120s", "temporary_directory": str(folder),
         "distributed.scheduler.allowed-failures": 0}
    )  # fmt: skip
    with (
        patient,
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
        ) as cluster,
        distributed.Client(cluster, timeout=120) as found,
    ):
        cluster.adapt(minimum=2, maximum=2)
        yield found


def _check(combined, folder, want):
    combined.save(folder / "all.mosaic")
    with xr.open_dataset(str(folder / "all.mosaic"), engine="fsstore") as found:
        np.testing.assert_array_equal(found["v"].values, want)


def _scan_or_die(urls, wanted):
    """Scan files; one that is called so kills the process that scans it."""
    if any("kills" in url for url in urls):
        os.kill(os.getpid(), signal.SIGKILL)
    return 0.01 * len(urls), scan_files_here(urls, wanted)


def _dying_once(urls, wanted):
    """Scan files; the first time the process is killed."""
    mark = Path(urls[0]).parent / "died"
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return 0.01, scan_files_here(urls, wanted)


def test_processes(made, tmp_path):
    """Processes give what this process gives, in batches whose size follows how long they take."""
    paths, want = made
    told = []
    with ProcessPoolExecutor(2) as executor:
        combined = references.combine(paths, "time", executor=executor, progress=told.append).result()
    _check(combined, tmp_path, want)
    assert told[-1].tasks == told[-1].total == COUNT


def test_a_process_that_is_killed(made, tmp_path, monkeypatch):
    """A pool that lost a process takes nothing more; what it had not finished is scanned here."""
    paths, want = made
    monkeypatch.setattr(many, "timed_scan", _dying_once)
    (paths[0].parent / "died").unlink(missing_ok=True)
    with ProcessPoolExecutor(2) as executor:
        combined = references.combine(paths, "time", executor=executor, batch=3).result()
    assert (paths[0].parent / "died").exists()
    _check(combined, tmp_path, want)


def test_a_cluster(client, made, tmp_path):
    """Workers of dask give what this process gives, and merge it."""
    paths, want = made
    with client.get_executor() as executor:
        combined = references.combine(paths, "time", executor=executor, batch=1).result(timeout=120)
    _check(combined, tmp_path, want)
    there = (tmp_path / "all.mosaic").read_bytes()
    references.combine(paths, "time").result().save(tmp_path / "all.mosaic", overwrite=True)
    assert (tmp_path / "all.mosaic").read_bytes() == there


# at 0, dask (2026.8.0) may lose an answer that it fetches from the dying worker, and then waits for ever
@pytest.mark.parametrize("kill_at", [pytest.param(0, marks=pytest.mark.long), 17])
def test_a_worker_of_a_cluster_that_is_killed(client, made, tmp_path, kill_at):
    """The batch of a worker that is killed is done again, and so are merges that it was at."""
    paths, want = made
    killed = []

    def kill(state):
        if not killed and state.tasks >= kill_at:
            killed.append(next(iter(client.run(os.getpid).values())))
            os.kill(killed[0], signal.SIGKILL)

    with client.get_executor() as executor:
        combined = references.combine(paths, "time", executor=executor, batch=1, progress=kill).result(timeout=120)
    assert killed
    _check(combined, tmp_path, want)


def test_a_file_that_kills_its_worker_is_named(client, made, tmp_path, monkeypatch):
    """Its batch is halved until it is alone; the others are combined."""
    paths, want = made
    killer = tmp_path / "kills.nc"
    killer.write_bytes(paths[0].read_bytes())
    monkeypatch.setattr(many, "timed_scan", _scan_or_die)
    with client.get_executor() as executor:
        combined = references.combine([*paths[:3], killer, *paths[3:]], "time", executor=executor, batch=4).result(
            timeout=120
        )
    assert list(combined.report.left_out) == [str(killer)]
    assert "failed 3 times" in combined.report.left_out[str(killer)]
    _check(combined, tmp_path, want)


SCRIPT = """
    import sys
    from fsstore import references
    from fsstore.combine import many

    plain = many.scan_files_here

    def told(urls, wanted):
        print(len(urls), flush=True)
        if int(sys.argv[3]) and many_done[0] == int(sys.argv[3]):
            sys.stdin.read()  # until it is killed
        many_done[0] += 1
        return plain(urls, wanted)

    many_done = [0]
    many.scan_files_here = told
    combined = references.combine(f"{sys.argv[1]}/*.nc", "time", batch=4, journal=sys.argv[2] + "/notes").result()
    combined.save(sys.argv[2] + "/all.mosaic")
"""


def _run(folder, made, stop):
    paths, _ = made
    command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(paths[0].parent), str(folder), str(stop)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_run_that_is_killed_goes_on(made, tmp_path):
    """A process that is killed in its fourth batch leaves three, which the next one does not scan, but if they changed."""
    paths, want = made
    with _run(tmp_path, made, 3) as killed:
        for _ in range(4):
            assert killed.stdout.readline().strip() == "4"
        killed.kill()
    os.utime(paths[1])
    with _run(tmp_path, made, 0) as again:
        counts = [int(line) for line in again.stdout]
    assert again.returncode == 0
    assert sum(counts) == COUNT - 11
    with xr.open_dataset(str(tmp_path / "all.mosaic"), engine="fsstore") as found:
        np.testing.assert_array_equal(found["v"].values, want)


def test_batches_follow_the_time_they_take(made, monkeypatch):
    """Files that take long come in small batches, and quick ones in large ones."""
    paths, _ = made
    seen = []

    def slow(urls, wanted):
        seen.append(len(urls))
        return len(urls) * 1.0, scan_files_here(urls, wanted)

    monkeypatch.setattr(many, "timed_scan", slow)
    references.combine(paths, "time", dry_run=True).result()
    assert seen == [8, *[2] * 8]
    seen.clear()
    monkeypatch.setattr(many, "timed_scan", lambda urls, wanted: (0.01, slow(urls, wanted)[1]))
    references.combine(paths, "time", dry_run=True).result()
    assert seen == [8, 16]


def _failing_once(urls, wanted):
    """Scan files; those of each batch fail the first time."""
    mark = Path(urls[0]).with_suffix(".tried")
    if not mark.exists():
        mark.touch()
        raise OSError("the disk was not there")
    return 0.01 * len(urls), scan_files_here(urls, wanted)


def test_a_second_attempt_is_made_by_a_cluster(client, made, tmp_path, monkeypatch):
    """Dask knows calls by their arguments; a file that failed once is scanned again all the same."""
    paths, want = made
    monkeypatch.setattr(many, "timed_scan", _failing_once)
    with client.get_executor() as executor:
        combined = references.combine(paths, "time", executor=executor, batch=1).result(timeout=120)
    assert not combined.report.left_out
    _check(combined, tmp_path, want)
