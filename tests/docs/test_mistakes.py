"""Every line of the table of mistakes says what the library says, word for word."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.mistakes import made, place

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "mistakes.md"
ROW = re.compile(r"^\| `(?P<code>.+?)` \| `` (?P<said>.+) `` \|$", re.MULTILINE)
ROWS = [(row["code"].replace("\\|", "|"), row["said"].replace("\\|", "|")) for row in ROW.finditer(PAGE.read_text())]


@pytest.fixture(scope="module")
def names(tmp_path_factory):
    """Give the places and names that the mistakes are made with."""
    patch = pytest.MonkeyPatch()
    patch.chdir(tmp_path_factory.mktemp("mistakes"))
    yield place(Path.cwd())
    patch.undo()


def test_there_are_many():
    """The table has the mistakes that people make most, at least sixty of them."""
    assert len(ROWS) >= 60


@pytest.mark.parametrize(("code", "said"), ROWS, ids=[code for code, _ in ROWS])
def test_what_is_said(code, said, names):
    """The message is that of the page, in at most two sentences, and it is an error."""
    assert made(code, names) == said
    assert len(re.findall(r"[.?!] [A-Z]", said)) <= 1
