"""Every example of the help is run: as it stands there, among files of the names that it uses."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import shlex
import shutil
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import fsstore as ts
from fsstore import references
from fsstore.command.main import COMMANDS, main

SERVING = ("serve", "view")
FSSTORE = [sys.executable, "-m", "fsstore"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A directory with files of the names that examples use."""
    place = tmp_path_factory.mktemp("examples")
    values = np.arange(12 * 10 * 10, dtype="i4").reshape(12, 10, 10)
    for name in ("data", "copy", "new", "old", "image"):
        group = ts.open_group(place / f"{name}.zarr", mode="w", zarr_format=3).result()
        array = "0" if name == "image" else "t"
        names = ["y", "x"] if name == "image" else ["time", "y", "x"]
        data = values[0] if name == "image" else values
        attributes = {"units": "degC", "old": 1}
        group.create_array(
            array, shape=data.shape, dtype="i4", chunks=data.shape, dimension_names=names, attributes=attributes
        ).result()[:] = data
    store = ts.open_group(f"file://{place}/data.zip|zip:", mode="w").result()
    store.create_array("t", shape=[4], dtype="i4").result()[:] = 1
    (place / "data").mkdir()
    for number, name in enumerate(("jan", "feb", "data/one", "data/two", "data", "data/tomorrow")):
        step = np.arange(2.0) + 2 * number
        xr.Dataset({"t": ("time", step * 10)}, {"time": step}).to_netcdf(place / f"{name}.nc", engine="h5netcdf")
    database = ts.KvStore.open(f"file://{place}/data.ocdbt|ocdbt:").result()
    for number in range(3):
        database[f"k{number}"] = b"value"
    (place / "data.bin").write_bytes(b"...." + np.arange(4, dtype="<i4").tobytes())
    zarray = {
        "zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<i4", "compressor": None, "filters": None,
        "fill_value": 0, "order": "C",
    }  # fmt: skip
    refs = {".zgroup": '{"zarr_format": 2}', "x/.zarray": json.dumps(zarray), "x/0": ["data.bin", 4, 16]}
    references.open({"version": 1, "refs": refs}).save(f"file://{place}/refs.json")
    return place


@pytest.fixture
def place(files, tmp_path, monkeypatch):
    """A copy of the directory, in which commands run."""
    shutil.copytree(files, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def _pointing(url: str) -> None:
    Path("refs.json").write_text(Path("refs.json").read_text().replace("data.bin", url))


def _combined(*files):
    """Combine files into the dataset of the examples."""
    assert main(["refs", "combine", "year.mosaic", *files, "--dim", "time"]) == 0


def _planned(*, done: bool):
    """Save the plan of the examples, and run its parts."""
    shutil.rmtree("copy.zarr")
    ts.plan_copy("data.zarr/t", "copy.zarr").result().save("copy.plan")
    if done:
        ts.run("copy.plan").result()


# what has to be there or not before an example is run
BEFORE = {
    "refs make": lambda: Path("refs.json").unlink(),
    "refs append": lambda: _combined("data/one.nc", "data/two.nc"),
    "refs replace": lambda: _combined("data/one.nc", "data/two.nc"),
    "refs drop": lambda: _combined("data/one.nc", "data/two.nc"),
    "refs combine": lambda: Path("data/tomorrow.nc").unlink(),
    "refs convert": lambda: _pointing("s3://old/data.bin"),
    "refs rewrite": lambda: _pointing("s3://old/data.bin"),
    "copy": lambda: shutil.rmtree("copy.zarr"),
    "run": lambda: _planned(done=False),
    "status": lambda: _planned(done=True),
    "finish": lambda: _planned(done=True),
}


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.name not in SERVING], ids=lambda each: each.name)
def test_the_example_of_a_command(command, place, capsys):
    """The example in the help of a command does what it shows, and ends with 0."""
    BEFORE.get(command.name, lambda: None)()
    capsys.readouterr()
    words = shlex.split(command.example.partition(" > ")[0])[1:]
    assert main(words) == 0, capsys.readouterr().err
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", [each for each in COMMANDS if each.name in SERVING], ids=lambda each: each.name)
def test_the_example_of_a_server(command, place):
    """The example of a command that serves prints an address that answers, and Ctrl-C ends it."""
    words = [re.sub(r"^8000$", "0", word) for word in shlex.split(command.example)[1:]]
    process = subprocess.Popen([*FSSTORE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("http://127.0.0.1:")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (130, "fsstore: interrupted\n")


def test_what_the_demo_tells_one_to_look_at():
    """The last line of the demo is a command, as it can be typed, that shows a page of the data beside it."""
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, str(root / "examples" / "demo.py")], capture_output=True, text=True, check=True, cwd=root
    )
    label, _, command = done.stdout.splitlines()[-1].partition(": ")
    words = shlex.split(command)
    assert (label, words[1:4]) == ("look at it", ["-m", "fsstore", "view"])
    process = subprocess.Popen([*words, "--no-browser"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    url = process.stdout.readline().strip()
    question = urllib.request.Request(f"{url}api/tree", headers={"Fsstore-View": "1"})
    with urllib.request.urlopen(question) as answer:
        assert "sst" in {each["path"] for each in json.load(answer)["members"]}
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)


def test_rechunking_and_converting(place, capsys):
    """`rechunk` copies with what its name says, or asks for it; `convert` to zarr version 3 where no format is named."""
    assert main(["rechunk", "data.zarr/t", "r.zarr", "--chunks", "4,5,2"]) == 0
    assert ts.open("file://r.zarr/").result().chunks == (4, 5, 2)
    assert main(["convert", "data.zip", "n5", "--zarr-format", "0"]) == 0
    assert ts.open_group("n5").result().zarr_format == 0
    capsys.readouterr()
    assert main(["rechunk", "data.zarr/t", "x"]) == 2
    assert "--chunks" in capsys.readouterr().err
    assert main(["convert", "n5", "three.zarr"]) == main(["convert", "three.zarr", "two.zarr|zarr2:"]) == 0
    assert [ts.open_group(each).result().zarr_format for each in ("three.zarr", "two.zarr")] == [3, 2]


def test_statistics_of_a_sample(place, capsys, tune):
    """`stats` reads a bounded sample of a large array, and says how many elements it is of; `--all` reads everything."""
    tune("command", SAMPLED_ELEMENTS=100)
    assert main(["stats", "data.zarr/t", "--json"]) == 0
    sample = json.loads(capsys.readouterr().out)
    assert 25 <= sample["elements"] <= 100
    assert sample["of"] == 1200
    assert main(["stats", "data.zarr/t", "--json", "--all"]) == 0
    whole = json.loads(capsys.readouterr().out)
    assert (whole["elements"], whole["min"], whole["max"], whole["mean"]) == (1200, 0, 1199, 599.5)
    assert sum(whole["histogram"]["counts"]) == 1200


def test_what_a_set_points_to(place, capsys):
    """`info` of a reference set tells the places that it points to, and `--allow` has nothing else be read."""
    assert main(["info", "refs.json", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["points_to"] == {"relative": "1 reference, 16 bytes"}
    assert main(["cat", "refs.json|reference:x/", "--allow", place.as_uri()]) == 0
    assert capsys.readouterr().out == "[0 1 2 3]\n"
    assert main(["cat", "refs.json|reference:x/", "--allow", "s3://bucket/"]) == 3
    assert "PERMISSION_DENIED" in capsys.readouterr().err
    assert main(["copy", "refs.json", "new", "--allow", "s3://bucket/"]) == 3


def test_detection_tells_its_requests(place, capsys):
    """`detect` tells what it found and every request that it made; what nobody knows is a no."""
    assert main(["detect", "data.zarr/t", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps"] == ["file", "zarr3"]
    assert [each for each in found["requests"] if "zarr.json" in each["place"] and each["bytes"] > 100]
    assert main(["detect", "data.bin"]) == 1
    out = capsys.readouterr().out
    assert "begins like no format" in out and "looked for: a file that begins" in out and "requests\n" in out


def _in_terminal(words: list[str]) -> tuple[int, str, str]:
    """Return the exit code of a command whose standard error is a terminal, and both streams."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    with subprocess.Popen([*FSSTORE, *words], stdout=subprocess.PIPE, stderr=theirs, stdin=theirs) as process:
        os.close(theirs)
        told = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            told += part
        out = process.stdout.read().decode()
    os.close(ours)
    return process.returncode, out, told.decode()


def test_progress_is_told_to_a_terminal_only(place):
    """A job shows progress on standard error if that is a terminal, unless JSON is asked for, and nowhere else."""
    code, out, told = _in_terminal(["copy", "data.zarr", "a.zarr"])
    assert code == 0
    assert "%" in told
    assert "%" not in out and "1 array" in out
    code, out, told = _in_terminal(["copy", "data.zarr", "b.zarr", "--json"])
    assert (code, told) == (0, "")
    json.loads(out)
    done = subprocess.run([*FSSTORE, "copy", "data.zarr", "c.zarr"], capture_output=True, text=True, check=True)
    assert done.stderr == ""


def test_names_cannot_steer_a_terminal(place):
    """Escape sequences in names and in what errors say of them reach no terminal as such, in progress neither."""
    group = ts.open_group("evil.zarr", mode="w").result()
    group.create_array("a\x1b]0;owned\x07b", shape=[4], dtype="i1").result()[:] = 1
    for words in (
        ["copy", "evil.zarr", "evil2.zarr"], ["verify", "evil.zarr"], ["info", "none\x1b[31m"],
        ["frob\x1b[31m"], ["cat", "evil.zarr", "--format", "\x1b[2J"],
    ):  # fmt: skip
        _, out, told = _in_terminal(words)
        assert "\x1b]0" not in out + told
        assert "\x1b[2J" not in out + told and "\x1b[31m" not in out + told


class _Silent(BaseHTTPRequestHandler):
    """Takes a request and answers nothing until the test ends."""

    def do_GET(self):
        self.server.asked.set()
        self.server.over.wait(60)

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


def test_an_interrupt_ends_what_waits_for_a_server():
    """Ctrl-C ends a command that waits for a server which does not answer, at once and without a traceback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Silent) as server:
        server.daemon_threads = True
        server.asked, server.over = threading.Event(), threading.Event()
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            words = ["cat", f"http://127.0.0.1:{server.server_port}/x.zarr"]
            process = subprocess.Popen([*FSSTORE, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            assert server.asked.wait(30)
            began = time.monotonic()
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=30)
            assert (process.returncode, out, error) == (130, "", "fsstore: interrupted\n")
            assert time.monotonic() - began < 10
        finally:
            server.over.set()
            server.shutdown()
            thread.join()


def test_a_dask_scheduler_as_executor(place, capsys):
    """`--executor tcp://...` has the workers of a scheduler do a copy and a verification."""
    distributed = pytest.importorskip("distributed", reason="dask.distributed is not installed: no scheduler is tried")
    options = {"n_workers": 1, "threads_per_worker": 2, "processes": False, "dashboard_address": ":0"}
    with distributed.LocalCluster(**options, protocol="tcp://", host="127.0.0.1") as cluster:
        address = cluster.scheduler_address
        assert address.startswith("tcp://127.0.0.1:")
        assert main(["copy", "data.zarr", "far.zarr", "--executor", address]) == 0, capsys.readouterr().err
        assert main(["verify", "far.zarr", "--against", "data.zarr", "--executor", address]) == 0
    assert ts.open("file://far.zarr/t/").result()[3, 4, 5].read().result() == 345


def test_processes_as_executor(place, capsys):
    """`--executor processes` has processes of this machine do a copy."""
    assert main(["copy", "data.zarr", "far.zarr", "--executor", "processes"]) == 0, capsys.readouterr().err
    assert ts.open("file://far.zarr/t/").result()[3, 4, 5].read().result() == 345


def test_secrets_of_options_are_not_told(place, capsys):
    """Credentials given as options, in URLs and in contexts stand in no output and in no error."""
    option = ["--storage-option", "secret=s3cret", "--storage-option", "key=AKIA"]
    for words in (
        ["spec", "s3://bucket/x", *option], ["spec", "https://user:s3cret@host/x?token=s3cret"],
        ["info", "https://user:s3cret@127.0.0.1:1/x?sig=s3cret"], ["spec", "s3://bucket/x|zip", *option],
        ["detect", "https://user:s3cret@127.0.0.1:1/x", "--debug"],
    ):  # fmt: skip
        main([*words, "--context", '{"http_request_retries": {"max_retries": 1}}'])
        out, err = capsys.readouterr()
        assert "s3cret" not in out + err


COMPLETED = {
    "bash": ("bash", "-c", """source comp; complete -p fsstore
        for words in "ver" "refs v" "copy --at" "frob"; do
            COMP_WORDS=(fsstore $words); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _fsstore; echo "<${COMPREPLY[*]}>"
        done"""),
    "fish": ("fish", "-N", "-c", """source comp; complete -C "fsstore ver"; echo "<>"
        complete -C "fsstore refs v"; complete -C "fsstore copy --at"; complete -C "fsstore frob" """),
}  # fmt: skip


@pytest.mark.parametrize("shell", ["bash", "fish"])
def test_completions_in_their_shell(shell, tmp_path):
    """What `completion` prints is read by its shell, which then completes commands, commands of families, and options."""
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed on this machine (make test installs it): completion in it is not tried")
    with (tmp_path / "comp").open("wb") as file:
        subprocess.run([*FSSTORE, "completion", shell], stdout=file, check=True)
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(COMPLETED[shell], capture_output=True, text=True, check=True, cwd=tmp_path, env=environment)
    assert done.stderr == ""
    words = re.findall(r"[\w-]+", done.stdout.partition("<")[2] if shell == "bash" else done.stdout)
    assert words == ["verify", "verify", "--atomic"]


def test_completions_in_zsh(tmp_path):
    """A zsh at a terminal completes a command, a command of a family, and an option."""
    if shutil.which("zsh") is None:
        pytest.skip("zsh is not installed on this machine (make test installs it): completion in it is not tried")
    with (tmp_path / "comp").open("wb") as file:
        subprocess.run([*FSSTORE, "completion", "zsh"], stdout=file, check=True)
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 24, 100, 0, 0))
    environment = {**os.environ, "HOME": str(tmp_path), "TERM": "xterm"}
    with subprocess.Popen(
        ["zsh", "-f", "-i"], stdin=theirs, stdout=theirs, stderr=theirs, cwd=tmp_path, env=environment, start_new_session=True
    ) as process:  # fmt: skip
        os.close(theirs)
        heard = _Heard(ours)
        try:
            shown = b'fsstore() { print "<$*>" }'
            os.write(ours, b"autoload -U compinit && compinit -u && source comp && " + shown + b" && print RE''ADY\n")
            heard.until(b"READY")
            for typed, rest, whole in (
                (b"ver", b"ify", b"<verify>"), (b"refs v", b"erify", b"<refs verify>"), (b"copy --at", b"omic", b"<copy --atomic>"),
            ):  # fmt: skip
                heard.until(b"\x1b[?2004h")  # the line editor listens
                os.write(ours, b"fsstore " + typed + b"\t")
                heard.until(rest)
                os.write(ours, b"\n")
                heard.until(whole)
        finally:
            process.kill()
    os.close(ours)


class _Heard:
    """What comes from a terminal, read up to one thing after the other."""

    def __init__(self, terminal: int) -> None:
        self._terminal, self._rest = terminal, b""

    def until(self, wanted: bytes) -> None:
        """Read until something comes, at most twenty seconds."""
        last = time.monotonic() + 20
        while wanted not in self._rest:
            ready, _, _ = select.select([self._terminal], [], [], max(0, last - time.monotonic()))
            assert ready, self._rest
            self._rest += os.read(self._terminal, 65536)
        self._rest = self._rest.partition(wanted)[2]
