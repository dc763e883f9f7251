"""The style sheet, where a program can check it: how sentences begin, how long they are, how many are passive, and words.

Pages, the README and the changelog are read; code, tables and quoted messages are not sentences.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for path in [
        *(ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md")),
        *(ROOT / "docs").rglob("*.md"),
    ]
    if path.name != "style.md"
)
BLOCKS = (
    re.compile(r"\A---\n.*?^---\n", re.MULTILINE | re.DOTALL),  # tags
    re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL),
    re.compile(r"^\|.*$", re.MULTILINE),
    re.compile(r"^#.*$|^:::.*$|^!\[.*$|^<!--.*?-->$|^--8<--.*$", re.MULTILINE),
)
STARTS = re.compile(r"^(?:Who|Whoever|Whose|Whom|Of)\b")
WORDS = re.compile(
    r"\b(?:by nobody|by anybody|nobody who|whoever|Doors that|has no way to|in the manner of|of which one|strewn)\b",
    re.IGNORECASE,
)
PASSIVE = re.compile(
    r"\b(?:is|are|was|were|be|been|being)\s+(?:\w+ly\s+|not\s+|also\s+|then\s+)?"
    r"(?:\w{3,}ed|read|written|made|found|given|taken|known|kept|left|held|told|seen|shown|said|sent|put|cut|begun|done|meant)\b"
)
LONGEST_AVERAGE = 20
MEASUREMENTS = {"docs/benchmarks.md": 35}
"""A page that is a list of measurements has sentences made of figures."""
LARGEST_SHARE = 0.6


def sentences(text):
    """The sentences of a page, without code, tables and headings."""
    for block in BLOCKS:
        text = block.sub("\n\n", text)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)  # links read as their words
    text = re.sub(r"`[^`]*`", "code", text)
    text = re.sub(r"^(?: *[-*]| *\d\.| {4})\s+", "\n\n", text, flags=re.MULTILINE)
    found = [
        " ".join(sentence.split()).strip("*_ ")
        for paragraph in re.split(r"\n\s*\n", text)
        for sentence in re.split(r"(?<=[.?!:;])\s+(?=[A-Z*`(]|code)", " ".join(paragraph.split()))
    ]
    return [sentence for sentence in found if len(sentence.split()) > 3]


def findings(text, longest=LONGEST_AVERAGE):
    """What is wrong with a page: sentences that begin badly or use a word of the list, and its averages."""
    found = sentences(text)
    wrong = [sentence for sentence in found if STARTS.search(sentence) or WORDS.search(sentence)]
    if len(found) >= 8:
        average = sum(len(sentence.split()) for sentence in found) / len(found)
        passive = sum(bool(PASSIVE.search(sentence)) for sentence in found) / len(found)
        if average > longest:
            wrong.append(f"{average:.1f} words a sentence")
        if passive > LARGEST_SHARE:
            wrong.append(f"{passive:.0%} of the sentences are passive")
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_keeps_to_the_style_sheet(page):
    """No sentence begins with "Who" or "Of" or uses a banned word; sentences are short, and most of them active."""
    longest = MEASUREMENTS.get(str(page.relative_to(ROOT)), LONGEST_AVERAGE)
    assert not findings(page.read_text(encoding="utf-8"), longest)


def test_a_bad_page_is_found():
    """Each rule finds what it is there for."""
    assert findings("Who reads this page is surprised. It is waited for by nobody at all.") == [
        "Who reads this page is surprised.",
        "It is waited for by nobody at all.",
    ]
    assert findings("Of chunks only the parts are read. This one is short and fine.") == [
        "Of chunks only the parts are read."
    ]
    assert findings("The value is read by a server. " * 10) == ["100% of the sentences are passive"]
    assert findings(f"A {'word ' * 30}ends. " * 10)[-1].endswith("words a sentence")
    assert findings("```python\nWho = 1\n```\n| Who is in a table |\n") == []
