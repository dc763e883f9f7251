"""The page about fsspec says of each protocol what the code takes for granted, and no more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fsstore.kvstore.client.promise import NOTHING, PROMISES
from fsstore.kvstore.client.s3 import S3Engine
from fsstore.kvstore.client.web import HttpEngine

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "fsspec.md"


def _rows() -> dict[str, list[str]]:
    table = PAGE.read_text(encoding="utf-8").split("## What a filesystem promises")[1].split("\n\n")[1]
    found = {}
    for line in table.splitlines()[2:]:
        names, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        for name in re.findall(r"`(\w+)`", names) or [names]:
            found[name] = cells
    return found


ROWS = _rows()
CLOUDS = {"gs", "gcs", "abfs", "az", "abfss"}  # an object is replaced as one, by what a bucket is


def test_every_protocol_that_is_known_has_a_row():
    """And each row is one of those, or of a protocol with a client of its own."""
    assert set(ROWS) == {*PROMISES, "s3", "http", "https", "any other"}


@pytest.mark.parametrize("protocol", sorted({*PROMISES, "any other"}))
def test_a_row_says_what_the_code_takes_for_granted(protocol):
    """Writing, renaming, creating and versions are those of the table of promises."""
    promise = PROMISES.get(protocol, NOTHING)
    writes, whole, creates, versions, known = ROWS[protocol]
    assert bool(writes) == promise.features.writable
    assert bool(whole) == (promise.renames or protocol in CLOUDS or protocol == "memory")
    assert bool(creates) == promise.features.create_only
    assert bool(versions) == bool(promise.traits)
    assert known and not promise.features.conditional_write


@pytest.mark.parametrize(("protocol", "engine"), [("s3", S3Engine), ("http", HttpEngine)])
def test_the_rows_of_clients_say_what_they_promise(protocol, engine):
    """S3 writes under conditions; the web is read."""
    writes, _, creates, versions, _ = ROWS[protocol]
    features = engine.features
    assert (bool(writes), bool(creates), bool(versions)) == (features.writable, features.create_only, True)


def test_the_adapter_is_read_in_one_go():
    """The module that the page names first is at most 300 lines."""
    (name,) = re.findall(r"The adapter is one module, `([\w/.]+)`", PAGE.read_text(encoding="utf-8"))
    assert len((PAGE.parents[2] / name).read_text(encoding="utf-8").splitlines()) <= 300
