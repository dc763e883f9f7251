"""The specs and URLs that pages show in passing are such: each parses, and means the same when it is written again."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import fsstore as ts
from fsstore.errors import StoreError

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^( *)```.*?^\1```", re.MULTILINE | re.DOTALL)
CODE = re.compile(r"`([^`\n]+)`")
LEFT_OUT = ("…", " ", "PIPELINE", "fsstore://")
"""What says that something is no place: parts that are left out, and what only fsspec opens."""


def places(text: str) -> list[object]:
    """Return the specs and URLs among the code in sentences and tables."""
    found: list[object] = []
    for span in CODE.findall(FENCE.sub("", text)):
        shown = span.replace("\\|", "|")
        if shown.startswith('{"driver"') and "…" not in shown:
            found.append(json.loads(shown))
        elif re.match(r"[a-z][a-z0-9+]*:", shown) and "//" in shown:
            if not shown.endswith("://") and not any(mark in shown for mark in LEFT_OUT):
                found.append(shown)
    return found


def parsed(place: object) -> ts.Spec | ts.KvStore.Spec:
    """Return the spec of an array or of a store."""
    try:
        return ts.KvStore.Spec(place)
    except StoreError:
        return ts.Spec(place)


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_places_parse(page):
    """A reader who opens what a page shows gets no further than the network, but that far."""
    for place in places(page.read_text(encoding="utf-8")):
        spec = parsed(place)
        assert type(spec)(spec.to_json()) == spec


def test_places_are_found():
    """Specs and URLs are told from other code."""
    page = (
        '`{"driver": "file", "path": "/a"}` or `s3://b/\\|zarr3:`\n```\n`a://b`\n```\n`s3://` `a: b` `{"a": 1}` `x://…`'
    )
    assert places(page) == [{"driver": "file", "path": "/a"}, "s3://b/|zarr3:"]
    assert sum(len(places(page.read_text(encoding="utf-8"))) for page in PAGES) > 50


def test_a_wrong_place_fails():
    """What does not parse is an error."""
    with pytest.raises(StoreError):
        parsed("abfs://container@me.dfs.core.windows.net/")
