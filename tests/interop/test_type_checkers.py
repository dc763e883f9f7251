"""The public package as type checkers see it: they find a user's mistakes, and nothing where there is none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fsstore

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tests" / "data" / "typing" / "program.py"
WRONG = {
    number
    for number, line in enumerate(PROGRAM.read_text(encoding="utf-8").splitlines(), 1)
    if line.endswith("# wrong")
}


def pyright() -> Path | None:
    """Return the program's script, where npm has installed it and there is node to run it."""
    place = Path(os.environ.get("NODE_PREFIX") or ROOT / ".venv" / "node") / "node_modules" / "pyright" / "index.js"
    return place if place.exists() and shutil.which("node") else None


def test_program_has_ten_mistakes():
    """The comparison below is about at least ten mistakes."""
    assert len(WRONG) >= 10


def test_mypy_finds_the_mistakes():
    """mypy reports each line that holds a mistake, and no other."""
    pytest.importorskip("mypy", reason="mypy is not installed: it belongs to the group lint, which Python 3.11 has")
    command = [sys.executable, "-m", "mypy", "--output", "json", str(PROGRAM)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    errors = [each for each in found if each["severity"] == "error"]
    assert done.returncode == 1, done.stderr
    assert {each["line"] for each in errors} == WRONG, done.stdout
    assert {Path(each["file"]).name for each in errors} == {PROGRAM.name}


@pytest.mark.skipif(pyright() is None, reason="pyright is not installed, which takes npm; see docs/development.md")
def test_pyright_finds_the_mistakes():
    """Pyright, and with it the editors built on it, reports each line that holds a mistake, and no other."""
    command = ["node", str(pyright()), "--outputjson", "--pythonpath", sys.executable, str(PROGRAM)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    found = json.loads(done.stdout)["generalDiagnostics"]
    lines = {each["range"]["start"]["line"] + 1 for each in found if each["severity"] == "error"}
    assert lines == WRONG, done.stdout


def test_directory_is_public():
    """`dir(fsstore)` shows the public names, which can all be had, and nothing else."""
    assert set(dir(fsstore)) == {*fsstore.__all__, "__version__"}
    assert all(hasattr(fsstore, name) for name in dir(fsstore))
