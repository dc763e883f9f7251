"""The first changes of a contributor work as printed: each is made on a copy of the package, and its program run."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "contribute" / "first-changes.md"
BLOCK = re.compile(r'^```(?:python|diff) title="(?P<title>[^"]+)"\n(?P<code>.*?)^```', re.MULTILINE | re.DOTALL)
TRY = "try it"


@dataclass(frozen=True)
class Change:
    """A task: the files it makes, the lines it puts into others, and the program that shows it."""

    title: str
    blocks: list[tuple[str, str]]

    @property
    def files(self):
        """The files of the task."""
        return {title for title, _ in self.blocks if title != TRY}


def changes():
    """Return the tasks of the page that change something."""
    sections = re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    found = [
        Change(text.partition("\n")[0], [(m["title"], m["code"]) for m in BLOCK.finditer(text)]) for text in sections
    ]
    return [change for change in found if change.blocks]


def put(path: Path, code: str) -> None:
    """Make a file, or put the lines marked with + behind the line that stands before them."""
    if not code.startswith(" "):
        assert not path.exists()
        path.write_text(code, encoding="utf-8")
        return
    before, *added = code.splitlines(keepends=True)
    assert all(line.startswith("+") for line in added)
    text, old = path.read_text(encoding="utf-8"), before[1:]
    assert text.count(old) == 1, f"{path.name} holds {old!r} {text.count(old)} times"
    path.write_text(text.replace(old, old + "".join(line[1:] for line in added)), encoding="utf-8")


def test_three_tasks_of_at_most_three_files():
    """The page has a format, a codec and a store; none takes more than three files."""
    assert [change.title for change in changes()] == ["Add an array format", "Add a codec", "Add a key-value store"]
    assert all(1 < len(change.files) <= 3 for change in changes())


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.title)
def test_change_works_as_printed(change, tmp_path):
    """After the files are changed as the page says, its program runs."""
    shutil.copytree(ROOT / "fsstore", tmp_path / "fsstore", ignore=shutil.ignore_patterns("__pycache__"))
    programs = [code for title, code in change.blocks if title == TRY]
    for title, code in change.blocks:
        if title != TRY:
            put(tmp_path / title, code)
    assert len(programs) == 1
    command = [sys.executable, "-c", programs[0]]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("change", changes(), ids=lambda change: change.title)
def test_classes_have_names_of_their_own(change):
    """No class of a change is called like one that the package has, which the house tests would refuse."""
    known = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "fsstore").rglob("*.py"))
    made = [name for _, code in change.blocks for name in re.findall(r"^class (\w+)", code, re.MULTILINE)]
    assert made
    assert not [name for name in made if re.search(rf"^class {name}\b", known, re.MULTILINE)]


def test_places_of_the_search_exist():
    """Each step of the search names a file that holds the name it speaks of."""
    text = PAGE.read_text(encoding="utf-8").partition("## Find where")[2].partition("\n## ")[0]
    steps = re.findall(r"^\d\. `(fsstore/[^`]+)`: .*?`(\w+)`", text, re.MULTILINE)
    assert len(steps) == 3
    for place, name in steps:
        assert re.search(rf"\b{name}\b", (ROOT / place).read_text(encoding="utf-8"))
