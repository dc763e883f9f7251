"""The command line: what each command prints, which code it ends with, and how it fails."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fsstore as ts
from fsstore import references
from fsstore.command.main import COMMANDS, main, parser
from fsstore.command.show import plotted
from fsstore.command.terminal import selection

VALUES = np.arange(24, dtype="i4").reshape(2, 3, 4)


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A directory with a small hierarchy, a reference set and a database, in which commands run."""
    monkeypatch.chdir(tmp_path)
    group = ts.open_group("d.zarr", mode="w").result()
    group.attrs["title"] = "Sea"
    array = group.create_array(
        "sea/t", shape=VALUES.shape, dtype="i4", chunks=(1, 3, 4), dimension_names=["time", "y", "x"],
        attributes={"units": "K"},
    ).result()  # fmt: skip
    array[:] = VALUES
    return tmp_path


def run(capsys, *arguments):
    """Return the exit code, and what was printed on both streams."""
    code = main(list(arguments))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["info", "d.zarr"], ["kind        group", "members     sea", "title: Sea"]),
        (["info", "d.zarr/sea/t"], ["shape       2, 3, 4", "dtype       int32", "chunks      1, 3, 4", "units: K"]),
        (["info", "d.zarr/sea/t", "--sizes"], ["stored_chunks  2 of 2", "ratio"]),
        (["ls", "d.zarr"], ["sea\n"]),
        (["ls", "d.zarr", "--keys"], ["/sea/t/c/0/0/0\n", "/zarr.json\n"]),
        (["tree", "d.zarr"], ["/\n  sea/\n    t int32 (2, 3, 4) in chunks of (1, 3, 4)"]),
        (["tree", "d.zarr/sea/t"], ["kind        array"]),
        (["cat", "d.zarr/sea/t", "1, 2, :"], ["[20 21 22 23]"]),
        (["cat", "d.zarr/sea/t", "..., 0"], ["[[ 0  4  8]\n [12 16 20]]"]),
        (["cat", "d.zarr/sea/t", "0, [0, 2], ::2", "--format", "csv"], ["0,2\n8,10\n"]),
        (["cat", "d.zarr/sea/t", "0, 0", "--format", "json"], ["[\n  0,\n  1,\n  2,\n  3\n]"]),
        (["cat", "d.zarr/sea/t", "1, 1, 1"], ["17"]),
        (["cat", "d.zarr/sea/t", "0", "--plot"], [" is 0, '@' is 11"]),
        (["stats", "d.zarr/sea/t"], ["elements   24", "min        0", "max        23", "mean       11.5"]),
        (["stats", "d.zarr/sea/t", "--all"], ["elements   24"]),
        (["verify", "d.zarr"], ["nothing is wrong"]),
        (["detect", "d.zarr/sea/t"], ["file | zarr3"]),
        (["detect", "d.zarr"], ["file | zarr3 group"]),
        (["ls", "."], ["d.zarr"]),
        (["attrs", "get", "d.zarr/sea/t", "units"], ["K\n"]),
        (["attrs", "get", "d.zarr"], ['"title": "Sea"']),
        (["copy", "d.zarr/sea/t", "e.zarr", "--plan"], ["move untouched"]),
        (["copy", "d.zarr/sea/t", "e.zarr", "--plan", "--chunks", "2,1,1"], ["one pass", "boxes of"]),
        (["copy", "d.zarr", "e.zarr"], ["1 array, "]),
        (["spec", "d.zarr"], ['"driver": "file"']),
        (["spec", "d.zarr/sea/t", "--open"], ['"driver": "zarr3"', '"shape": [']),
        (["completion", "bash"], ["complete -o filenames -F _fsstore fsstore"]),
        (["completion", "zsh"], ["#compdef fsstore"]),
        (["completion", "fish"], ["complete -c fsstore"]),
        (["--version"], ["0."]),
        (["--help"], ["copy, convert or rechunk"]),
    ],
    ids=lambda value: " ".join(value) if value and isinstance(value, list) else None,
)
def test_what_is_printed(place, capsys, arguments, printed):
    """Every command that looks prints what is there, on standard output alone."""
    code, out, err = run(capsys, *arguments)
    for text in printed:
        assert text in out, out
    assert err == ""
    assert code == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["frob"], 2, "invalid choice"),
        (["info"], 2, "the following arguments are required: PLACE"),
        (["info", "none.zarr"], 3, "There is nothing at"),
        (["cat", "d.zarr"], 2, "is a group; name one of the arrays in it: sea"),
        (["cat", "d.zarr/sea/t", "q"], 2, "no part of a selection"),
        (["cat", "d.zarr/sea/t", "__import__('os')"], 2, "no part of a selection"),
        (["cat", "d.zarr/sea/t", "9"], 3, "OUT_OF_RANGE|outside|out of"),
        (["cat", "d.zarr/sea/t", "0, 0", "--format", "xml"], 2, "invalid choice"),
        (["ls", "d.zarr/sea/t"], 2, "is an array; `fsstore ls --keys`"),
        (["attrs", "get", "d.zarr", "none"], 1, ""),
        (["attrs", "set", "d.zarr", "oops"], 2, "no change of an attribute"),
        (["delete", "d.zarr"], 2, "say --yes if that is meant"),
        (["cat", "d.zarr/sea/t", "2:1"], 2, "'2:1' is no slice"),
        (["copy", "d.zarr/sea/t", "e.zarr", "--region", "2:1"], 2, "'2:1' is no slice"),
        (["copy", "d.zarr/sea/t", "e.zarr", "--chunks", "0,1,1"], 3, "chunks are positive integers"),
        (["copy", "d.zarr/sea/t", "e.zarr", "--chunks", "1,1"], 3, "chunks are positive integers"),
        (["copy", "d.zarr/sea/t", "e.zarr", "--chunks", "1,1,2", "--shards", "1,1,3"], 3, "whole chunks"),
        (["delete", "none.zarr", "--yes"], 3, "There is no array or group"),
        (["copy", "d.zarr/sea/t", "e", "--chunks", "1,a"], 2, "--chunks is integers"),
        (["copy", "d.zarr/sea/t", "e", "--max-memory", "lots"], 3, "no number of bytes"),
        (["copy", "d.zarr/sea/t", "e", "--executor", "magic"], 2, "threads, processes, or the address"),
        (["copy", "d.zarr/sea/t", "d.zarr/sea/t"], 3, "is the source itself"),
        (["copy", "d.zarr", "e", "--region", "0"], 3, "A region is of one array"),
        (["info", "d.zarr", "--storage-option", "x"], 2, "NAME=VALUE"),
        (["info", "d.zarr", "--context", "{"], 2, "--context is JSON"),
        (["completion", "tcsh"], 2, "invalid choice"),
        (["refs", "inspect", "none.json"], 3, "none.json"),
        (["ocdbt", "versions", "d.zarr"], 3, "OCDBT|manifest"),
        (["info", "d.zarr|zarr4:"], 3, "zarr4"),
        (["info", "frob://x/y"], 3, "frob"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_how_it_fails(place, capsys, arguments, code, message):
    """Errors are a short text on standard error, with a code that says whose fault it is, and no traceback."""
    import re

    got, out, err = run(capsys, *arguments)
    assert got == code, err
    assert re.search(message, err), err
    assert "Traceback" not in err
    assert out == ""


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "d.zarr"], ["info", "d.zarr/sea/t", "--sizes"], ["ls", "d.zarr"], ["tree", "d.zarr"],
        ["cat", "d.zarr/sea/t", "0, 0"], ["stats", "d.zarr/sea/t"], ["verify", "d.zarr"], ["detect", "d.zarr/sea/t"],
        ["attrs", "get", "d.zarr"], ["copy", "d.zarr", "e.zarr"], ["spec", "d.zarr"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_json_for_machines(place, capsys, arguments):
    """With --json every command prints one JSON value and nothing else."""
    code, out, err = run(capsys, *arguments, "--json")
    json.loads(out)
    assert (code, err) == (0, "")


def test_attributes_are_changed(place, capsys):
    """Attributes are set as JSON or text, and removed."""
    assert run(capsys, "attrs", "set", "d.zarr/sea/t", "units-", "valid=[0, 300]", "name=sea water")[0] == 0
    assert dict(ts.open("file://d.zarr/sea/t/").result().attrs) == {"valid": [0, 300], "name": "sea water"}
    assert run(capsys, "attrs", "set", "d.zarr", "version=2")[0] == 0
    assert dict(ts.open_group("d.zarr").result().attrs) == {"title": "Sea", "version": 2}


def test_copies_and_verification(place, capsys):
    """A copy is converted, compared, damaged and found out, and deleted."""
    assert run(capsys, "copy", "d.zarr", "e.zarr", "--zarr-format", "2", "--codec", "gzip")[0] == 0
    assert run(capsys, "verify", "e.zarr", "--against", "d.zarr")[0] == 0
    assert run(capsys, "verify", "d.zarr", "e.zarr")[0] == 0
    (place / "e.zarr/sea/t/0.0.0").write_bytes(b"damaged")
    code, out, _ = run(capsys, "verify", "e.zarr", "--json")
    assert code == 1
    assert json.loads(out)["findings"][0]["array"] == "sea/t"
    code, out, _ = run(capsys, "verify", "d.zarr", "e.zarr", "--json")
    assert [each["kind"] for each in json.loads(out)["findings"]] == ["damaged"]  # in the second, which is the copy
    assert run(capsys, "verify", "d.zarr", "e.zarr", "--repair")[0] == 2
    assert run(capsys, "verify", "d.zarr", "e.zarr", "--against", "d.zarr")[0] == 2
    assert run(capsys, "copy", "d.zarr/sea/t", "f.zarr", "--region", "0, :, ::2", "--dtype", "float64")[0] == 0
    assert np.array_equal(ts.open("file://f.zarr/").result().read().result(), VALUES[0, :, ::2])
    assert run(capsys, "delete", "e.zarr", "--yes")[0] == 0
    assert not (place / "e.zarr/sea").exists()


def test_jobs(place, capsys):
    """A copy in one commit, an update, a repair, an append and a pyramid are a command each."""
    assert run(capsys, "copy", "d.zarr/sea/t", "x.ocdbt|ocdbt:t/", "--atomic", "--verify", "values")[0] == 0
    assert run(capsys, "copy", "d.zarr/sea", "e.zarr")[0] == 0
    assert run(capsys, "copy", "d.zarr/sea/t", "e.zarr/t", "--if-exists", "update")[0] == 0
    chunk = next(path for path in sorted(Path("e.zarr/t").rglob("*")) if path.is_file() and path.name != "zarr.json")
    chunk.write_bytes(b"")
    assert run(capsys, "verify", "e.zarr/t", "--level", "sizes")[0] == 1
    assert run(capsys, "verify", "e.zarr/t", "--repair")[0] == 2
    code, out, _ = run(capsys, "verify", "e.zarr/t", "--against", "d.zarr/sea/t", "--repair")
    assert (code, "1 repaired" in out) == (0, True)
    assert run(capsys, "append", "e.zarr/t", "d.zarr/sea/t", "--dimension", "0")[0] == 0
    code, out, _ = run(capsys, "pyramid", "e.zarr", "--base", "t", "--levels", "2", "--json")
    assert (code, json.loads(out)["arrays"]) == (0, ["1"])


def test_reference_sets(place, capsys):
    """Sets are inspected, converted, pointed elsewhere and verified."""
    chunk = np.arange(4, dtype="<i4").tobytes()
    (place / "data.bin").write_bytes(b"...." + chunk)
    zarray = {
        "zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<i4", "compressor": None, "filters": None,
        "fill_value": 0, "order": "C",
    }  # fmt: skip
    refs = {".zgroup": '{"zarr_format": 2}', "x/.zarray": json.dumps(zarray), "x/0": ["data.bin", 4, 16]}
    references.open({"version": 1, "refs": refs}).save(f"file://{place}/refs.json")
    assert json.loads(run(capsys, "cat", "refs.json|reference:x/|zarr2:", "--json")[1]) == [0, 1, 2, 3]
    code, out, _ = run(capsys, "refs", "inspect", "refs.json")
    assert (code, "relative: " in out, "arrays" in out) == (0, True, True)
    assert run(capsys, "refs", "verify", "refs.json", "--decode")[0] == 0
    assert run(capsys, "refs", "convert", "refs.json", "refs.parq")[0] == 0
    assert run(capsys, "ls", "refs.parq")[1] == "x\n"
    (place / "data.bin").write_bytes(b"short")
    assert run(capsys, "refs", "verify", "refs.json")[0] == 1


def test_databases(place, capsys):
    """Databases are listed by version, verified, compacted and dumped."""
    store = ts.KvStore.open(f"file://{place}/data.ocdbt|ocdbt:").result()
    for number in range(3):
        store[f"k{number}"] = b"v"
    code, out, _ = run(capsys, "ocdbt", "versions", "data.ocdbt|ocdbt:", "--json")
    assert (code, [each["num_keys"] for each in json.loads(out)][-3:]) == (0, [1, 2, 3])
    assert run(capsys, "ocdbt", "verify", "data.ocdbt|ocdbt:")[0] == 0
    assert run(capsys, "ocdbt", "dump", "data.ocdbt/")[0] == 0
    assert run(capsys, "ocdbt", "compact", "data.ocdbt|ocdbt:", "small.ocdbt|ocdbt:")[0] == 0
    assert len(json.loads(run(capsys, "ocdbt", "versions", "small.ocdbt|ocdbt:", "--json")[1])) == 1


def test_escapes_in_names_do_not_reach_the_terminal(place, capsys):
    """Control characters in names and attributes are printed as escapes."""
    group = ts.open_group("evil.zarr", mode="w").result()
    group.create_array("a\x1b[2Jb", shape=[1], dtype="i1", attributes={"\x1b]0;owned\x07": "\x9b31m"}).result()
    for arguments in (
        ["tree", "evil.zarr"],
        ["ls", "evil.zarr"],
        ["info", "evil.zarr/a\x1b[2Jb"],
        ["cat", "evil.zarr"],
    ):
        _, out, err = run(capsys, *arguments)
        assert not {"\x1b", "\x07", "\x9b"} & set(out + err)
    assert "a\\x1b[2Jb" in run(capsys, "ls", "evil.zarr")[1]


def test_a_name_with_line_ends_is_one_line(place, capsys):
    """A name that contains a line end looks like one name, in lists and in trees."""
    group = ts.open_group("lines.zarr", mode="w").result()
    group.create_array("a\nb", shape=[1], dtype="i1").result()
    assert run(capsys, "ls", "lines.zarr")[1] == "a\\nb\n"
    assert run(capsys, "tree", "lines.zarr")[1].splitlines()[1:] == ["  a\\nb int8 (1) in chunks of (1)"]


def test_json_has_names_for_numbers_that_it_lacks(place, capsys):
    """Infinite numbers and NaN are printed as zarr calls them, so that any reader of JSON takes the output."""
    array = ts.open_group("n.zarr", mode="w").result().create_array(
        "v", shape=[4], dtype="f4", fill_value=float("nan"), attributes={"least": float("-inf")}
    ).result()  # fmt: skip
    array[1:3] = np.array([1.5, np.inf], "f4")
    refuse = {"parse_constant": lambda name: pytest.fail(f"{name} is no JSON")}
    assert json.loads(run(capsys, "cat", "n.zarr/v", "--json")[1], **refuse) == ["NaN", 1.5, "Infinity", "NaN"]
    told = json.loads(run(capsys, "info", "n.zarr/v", "--json")[1], **refuse)
    assert (told["fill_value"], told["attributes"]) == ("NaN", {"least": "-Infinity"})


@pytest.mark.parametrize(
    ("shell", "code", "out", "err"),
    [
        ("PYTHONIOENCODING=ascii {} ls names.zarr", 0, "\\xe9\n", ""),
        ("{} ls names.zarr >&-", 0, "", ""),
        ("{} info missing.zarr 2>&-", 3, "", ""),
        ("{} ls names.zarr > /dev/full", 3, "", "fsstore: [Errno 28] No space left on device\n"),
        ("{} cat names.zarr/é --format raw > /dev/full", 3, "", "fsstore: [Errno 28] No space left on device\n"),
    ],
)
def test_output_that_cannot_be_written_as_it_is(place, shell, code, out, err):
    """Locales without a letter print its escape, a closed stream takes nothing, and a full disk is a failure."""
    group = ts.open_group("names.zarr", mode="w").result()
    group.create_array("é", shape=[10], dtype="i1").result()
    command = shell.format(f"{sys.executable} -m fsstore")
    done = subprocess.run(["sh", "-c", command], capture_output=True, check=False, text=True, env=os.environ | {
        "PYTHONPATH": str(Path(ts.__file__).parents[1])
    })  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (code, out, err)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda each: each.name)
def test_help_has_an_example_that_parses(command, capsys):
    """The help of each command says what it is for, and its example is a command line of it."""
    import shlex

    assert main([*command.name.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert command.summary in out
    words = shlex.split(command.example.partition(" > ")[0])
    assert words[0] == "fsstore"
    assert parser().parse_args(words[1:]).run == command.run


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("", ...), ("5, 5:9", (5, slice(5, 9))), ("..., -1", (..., -1)), ("[1, 2, -3], ::2", ([1, 2, -3], slice(None, None, 2))),
        ("-5:-1:2", slice(-5, -1, 2)), ("None, 0", (None, 0)),
    ],
    ids=str,
)  # fmt: skip
def test_selections(text, index):
    """Selections are read as Python reads what stands between brackets."""
    if text == "None, 0":
        with pytest.raises(ValueError, match="no part of a selection"):
            selection(text)
    else:
        assert selection(text) == index


def test_pictures_show_what_is_missing():
    """A picture of characters marks NaN, and refuses three dimensions."""
    assert "?" in plotted(np.array([[0, np.nan], [1, 2]]))
    with pytest.raises(ValueError, match="one or two dimensions"):
        plotted(np.zeros((2, 2, 2)))


def test_binary_output(place):
    """`--format npy` and raw write the values themselves to standard output."""
    command = [sys.executable, "-m", "fsstore", "cat", "d.zarr/sea/t", "1"]
    npy = subprocess.run([*command, "--format", "npy"], capture_output=True, check=True).stdout
    assert np.array_equal(np.load(io.BytesIO(npy)), VALUES[1])
    raw = subprocess.run([*command, "--format", "raw"], capture_output=True, check=True).stdout
    assert np.array_equal(np.frombuffer(raw, "<i4").reshape(3, 4), VALUES[1])


def test_a_reader_that_has_seen_enough(place):
    """`| head` ends a command without a word."""
    ts.open_group("many.zarr", mode="w").result().create_array("a", shape=[200_000], dtype="i4").result()
    shell = f"{sys.executable} -m fsstore cat many.zarr/a --format csv | head -n 1"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", shell], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_an_interrupt_ends_it(place):
    """Ctrl-C ends a command with one line and the shell's code for it."""
    code = "import fsstore.command.main as m, time; m._run = lambda parsed: (print('on', flush=True), time.sleep(60)); m.sys.exit(m.main(['ls', '.']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "on\n"
    began = time.monotonic()
    os.kill(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, "fsstore: interrupted\n")
    assert time.monotonic() - began < 10


def test_an_interrupt_of_the_parser_ends_it(place, capsys, monkeypatch):
    """Ctrl-C while the arguments are read says the same."""

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("argparse.ArgumentParser.parse_args", interrupted)
    assert run(capsys, "ls", ".") == (130, "", "fsstore: interrupted\n")


def test_debug_shows_where(place, capsys):
    """`--debug` prints the traceback of a failure."""
    code, _, err = run(capsys, "info", "none.zarr", "--debug")
    assert code == 3
    assert "Traceback" in err
