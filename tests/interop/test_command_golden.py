"""A hundred command lines and everything they print, run by the installed command; and every command of the help.

The file `golden.txt` holds command lines behind `$ fsstore`, what they print, and their exit code if it is not 0.
`python tests/interop/test_command_golden.py` writes it anew; what changed is then to be read.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest

import fsstore as ts
from fsstore import references
from fsstore.command.main import COMMANDS

HERE = Path(__file__).parent
GOLDEN = HERE.parent / "data" / "command" / "golden.txt"
ELSEWHERE = {"serve", "view"}  # tests of their own run them
VARYING = (
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+(?:Z|[+-]\d\d:\d\d)?"), "TIME"),
    (re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)? (ms|s)\b"), r"N \1"),
    (re.compile(r"\([\d.]+ \w+/s\)"), "(SPEED)"),
    (re.compile(r'((?:commit_time_ns|_s)"?:? +)[\d.e+-]+'), r"\1N"),
    (re.compile(r"^ +\d+\.\d+(?:e-\d+)?$", re.MULTILINE), "    N"),
    (re.compile(r"\b[0-9a-f]{32}\b"), "UUID"),
    (re.compile(r"^! +\^+$", re.MULTILINE), "! ^^^"),
    (re.compile(r"what was looked for: a file that begins.*"), "WHAT WAS LOOKED FOR"),
)


def make_place(place: Path) -> None:
    """Put a hierarchy, an array of zarr v2, files of days, a reference set and a database into a directory."""
    group = ts.open_group(place / "d.zarr", mode="w").result()
    group.attrs.update({"title": "Sea", "levels": [1, 2]})
    values = np.arange(24, dtype="i4").reshape(2, 3, 4)
    array = group.create_array(
        "sea/t", shape=values.shape, dtype="i4", chunks=(1, 3, 4), codec=None, dimension_names=["time", "y", "x"],
        attributes={"units": "K"},
    ).result()  # fmt: skip
    array[:] = values
    group.create_array("names", shape=[2], dtype="ustring").result()[:] = np.array(["a", "b"], object)
    group.create_array("gap", shape=[4], dtype="f8", chunks=(2,), codec=None, fill_value=float("nan")).result()[:2] = (
        1.5
    )
    group.create_array("b\x1b[2Jd", shape=[1], dtype="i1", attributes={"\x1b]0;x\x07": "\x9b31m"}).result()
    old = ts.open_group(place / "old.zarr", mode="w", zarr_format=2).result()
    old.create_array("v", shape=[6], dtype="u1", chunks=(4,), codec=None).result()[:] = np.arange(6, dtype="u1")
    (place / "data.bin").write_bytes(b"...." + np.arange(4, dtype="<i4").tobytes())
    zarray = {
        "zarr_format": 2, "shape": [4], "chunks": [4], "dtype": "<i4", "compressor": None, "filters": None,
        "fill_value": 0, "order": "C",
    }  # fmt: skip
    refs = {".zgroup": '{"zarr_format": 2}', "x/.zarray": json.dumps(zarray), "x/0": ["data.bin", 4, 16]}
    references.open({"version": 1, "refs": refs}).save(f"file://{place}/refs.json")
    for number in range(4):
        day = ts.open_group(place / f"day{number}.zarr", mode="w", zarr_format=2).result()
        steps = 2 * number + np.arange(2.0)
        for name, values in (("time", steps), ("t", 10 * steps)):
            codec = {"id": "zlib", "level": 1} if (name, number) == ("t", 2) else None
            day.create_array(name, shape=[2], dtype="f8", chunks=(2,), codec=codec, dimension_names=["time"]).result()[
                :
            ] = values
    (place / "day4.zarr").mkdir()
    store = ts.KvStore.open(f"file://{place}/data.ocdbt|ocdbt:").result()
    for number in range(3):
        store[f"k{number}"] = b"value"


def run_all(lines: list[str], place: Path) -> list[tuple[int, str]]:
    """Return code and output, both streams, of each command line, with what varies taken out."""
    asked = "\n".join(json.dumps(shlex.split(line)) for line in lines)
    done = subprocess.run(
        [sys.executable, str(HERE / "command_golden.py")], cwd=place, input=asked, capture_output=True, text=True,
        check=True, timeout=240, env={**os.environ, "COLUMNS": "100"},
    )  # fmt: skip
    found = []
    for line in done.stdout.splitlines():
        code, out, err = json.loads(line)
        text = out + "".join(f"! {each}\n" for each in err.splitlines())
        for path in {str(place), str(place.resolve())}:
            text = text.replace(path, "PLACE")
        for pattern, instead in VARYING:
            text = pattern.sub(instead, text)
        found.append((code, "\n".join(each.rstrip() for each in text.splitlines())))
    return found


def parsed() -> list[tuple[str, str]]:
    """Return the command lines and what they print."""
    parts = re.split(r"^\$ fsstore ?(.*)$", GOLDEN.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return [(line, text.strip("\n")) for line, text in zip(parts[1::2], parts[2::2], strict=True)]


def shown(code: int, text: str) -> str:
    """Return what a command line did, as the file has it."""
    return text.strip("\n") + (f"\n(exit {code})" if code else "")


CASES = parsed() if GOLDEN.exists() else []


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What all command lines did, one after the other in one directory."""
    place = tmp_path_factory.mktemp("golden")
    make_place(place)
    return run_all([line for line, _ in CASES], place)


@pytest.mark.xdist_group("command_golden")
@pytest.mark.parametrize("number", range(len(CASES)), ids=[line[:60] for line, _ in CASES])
def test_it_prints_what_it_always_did(number, results):
    """A command line prints and returns what the file says."""
    line, expected = CASES[number]
    printed = shown(*results[number]).strip("\n")
    if line == "--help":  # whose columns Python 3.13 begins elsewhere
        assert printed.split() == expected.split()
    else:
        assert printed == expected


def test_every_command_of_the_help_is_run():
    """Every command that the help lists is run here, or by tests of its own; and there are a hundred lines."""
    run = {line for line, text in CASES if "--help" not in line and "(exit 2)" not in text}
    missing = [each.name for each in COMMANDS if not any(line.startswith(each.name) for line in run)]
    assert set(missing) == ELSEWHERE
    assert len(CASES) >= 100


def test_the_console_script():
    """The script that an installation makes is there and runs the same."""
    script = Path(sys.executable).parent / "fsstore"
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ts.__version__


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make_place(Path(folder))
        lines = [line for line, _ in parsed()]
        done = zip(lines, run_all(lines, Path(folder)), strict=True)
        GOLDEN.write_text(
            "\n\n".join(f"$ fsstore {line}\n{shown(*each)}".rstrip("\n") for line, each in done) + "\n",
            encoding="utf-8",
        )
