"""Malformed and excessive inputs: only errors of fsstore come of them, soon and cheaply.

Each table row is an input that once did otherwise.  The loop mutates documents, specs, answers of servers and images.
"""

from __future__ import annotations

import bz2
import gc
import json
import random
import time

import numpy as np
import pytest

import fsstore as ts
from fsstore import references
from fsstore.errors import DataLossError, ResourceExhaustedError, StoreError
from fsstore.kvstore.client.web import generation_of
from fsstore.kvstore.contract.driver import UNKNOWN
from fsstore.reference.parquet_file import read_partition
from fsstore.values.detection import expand, usual_limit
from fsstore.values.json_value import literal, pretty

V2 = {
    "zarr_format": 2,
    "shape": [4],
    "chunks": [4],
    "dtype": "<i4",
    "compressor": None,
    "fill_value": 0,
    "order": "C",
    "filters": None,
}
V3 = {
    "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "int32", "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
    "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}], "fill_value": 0,
}  # fmt: skip


def nested(value, depth, name=None):
    """Return a value inside so many lists, or objects with one member."""
    for _ in range(depth):
        value = [value] if name is None else {name: value}
    return value


def deep_text(depth):
    """Return JSON of so many levels, which need not fit what Python can write."""
    return "[" * depth + "]" * depth


@pytest.mark.parametrize("depth", [150, 900, 5000, 100_000])
@pytest.mark.parametrize("member", ["dtype", "fill_value", "filters", "attributes", "shape"])
def test_documents_nested_too_deeply_are_refused(depth, member):
    """No member of a document makes readers run out of calls."""
    text = json.dumps({**V2, member: "HERE"}).replace('"HERE"', deep_text(depth))
    with pytest.raises(StoreError):
        repr(ts.open({"driver": "zarr2"}, kvstore={".zarray": text.encode()}).result().schema)


@pytest.mark.parametrize("depth", [70, 500, 5000])
def test_specs_nested_too_deeply_are_refused(depth):
    """Specs, contexts and URLs of any depth are parsed, or refused by an error of fsstore."""
    base = {"driver": "memory"}
    for _ in range(depth):
        base = {"driver": "zip", "base": base}
    deep = nested(1, depth)
    for make in (
        lambda: ts.KvStore.Spec(base), lambda: ts.Spec({"driver": "zarr3", "kvstore": base}), lambda: ts.KvStore.Spec("memory://x" + "|zip:a" * depth),
        lambda: ts.Spec({"driver": "zarr3", "kvstore": "memory://", "metadata": {"attributes": {"a": deep}}}),
        lambda: ts.Context({"cache_pool": deep}), lambda: ts.IndexDomain(json=deep), lambda: ts.ChunkLayout({"inner_order": deep}),
    ):  # fmt: skip
        with pytest.raises(StoreError):
            repr(make())


def test_a_structure_of_many_fields_is_opened_in_proportion():
    """Sixteen times the fields take much less than 256 times the processor time."""

    def spent(count):
        document = {**V2, "dtype": [[f"f{number}", "<i4"] for number in range(count)], "fill_value": None}
        text, begun = json.dumps(document).encode(), time.process_time()
        ts.open({"driver": "zarr2"}, kvstore={".zarray": text}).result()
        return time.process_time() - begun

    spent(10)
    gc.disable()  # a collection goes through all that other tests have left
    try:
        assert spent(32_000) < 64 * max(min(spent(2_000), spent(2_000)), 0.01)
    finally:
        gc.enable()


def test_a_field_that_occurs_twice_is_named():
    """The message says which."""
    document = {**V2, "dtype": [["a", "<i4"], ["b", "<i4"], ["b", "<i2"]]}
    with pytest.raises(StoreError, match='Field name "b" occurs more than once'):
        ts.open({"driver": "zarr2"}, kvstore={".zarray": json.dumps(document).encode()}).result()


@pytest.mark.parametrize("dtype", ["<i" + "1" * 5000, "|S" + "1" * 5000, "<M8[" + "9" * 5000 + "s]"])
def test_a_type_of_thousands_of_digits_is_refused(dtype):
    """Python refuses to read such numbers with an error of its own."""
    with pytest.raises(StoreError, match="Unsupported zarr dtype"):
        ts.open({"driver": "zarr2"}, kvstore={".zarray": json.dumps({**V2, "dtype": dtype}).encode()}).result()


def test_groups_nested_deeply_are_shown(tmp_path):
    """The tree of a notebook and the tree as text stand 1,500 levels, at once."""
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    members = {"/".join("g" * depth): group for depth in range(1, 1500)}
    inline = {"kind": "inline", "must_understand": False, "metadata": members}
    (tmp_path / "zarr.json").write_text(json.dumps({**group, "consolidated_metadata": inline}))
    begun = time.process_time()
    page = ts.open_group(str(tmp_path)).result()._repr_html_()
    assert page.count("<details") == page.count("</details>") == 1499
    assert ts.tree(str(tmp_path)).count("g/") == 1499
    assert time.process_time() - begun < 10


def test_printing_takes_time_in_proportion():
    """Twenty levels around two hundred thousand entries print as fast as the entries do; what lies too deep is dots."""
    value = nested([[number] for number in range(200_000)], 20)
    begin = time.process_time()
    text = pretty("Spec", value)
    assert time.process_time() - begin < 10
    assert text.count("[199999]") == 1
    assert "..." in literal(nested(1, 5000)) and "..." in pretty("Spec", nested(1, 5000, "a"))
    assert literal({"a": [1, "b"], "c": {}}) == "{'a': [1, 'b'], 'c': {}}"


def test_objects_without_a_fill_value_are_refused():
    """A document of zarr v2 that lacks its fill value is malformed, whatever its elements are."""
    document = {name: value for name, value in V2.items() if name != "fill_value"}
    with pytest.raises(StoreError, match="fill_value"):
        ts.open(
            {"driver": "zarr2"},
            kvstore={".zarray": json.dumps({**document, "dtype": "|O", "filters": [{"id": "json2"}]}).encode()},
        ).result()


@pytest.mark.parametrize(
    "date", ["Mon, 01 Jan 99999999999 00:00:00 GMT", "x", "Mon, 01 Jan 2024 99:99:99 +99999999999", ""]
)
def test_malformed_dates_leave_a_value_readable(date):
    """A header that says no date says nothing about the generation, and no more."""
    good = "Mon, 01 Jan 2024 00:00:00 GMT"
    assert generation_of({"Last-Modified": date, "Date": good}) == UNKNOWN
    assert generation_of({"Last-Modified": good, "Date": date}) == UNKNOWN


def test_partitions_whose_paths_are_none_of_theirs_are_damaged(monkeypatch):
    """Numbers into the dictionary of URLs are checked before they are used."""
    from fsstore.reference import parquet_file

    columns = parquet_file._Columns(np.array([0, 7]), ["u"], np.zeros(2, "i8"), np.zeros(2, "i8"), None)  # noqa: SLF001
    monkeypatch.setattr(parquet_file, "_read", lambda _: columns)
    with pytest.raises(DataLossError, match="none of its 1 URLs"):
        read_partition(b"", lambda urls: np.zeros(len(urls), np.int32), "x")


def test_a_bomb_costs_no_more_than_the_least_limit():
    """Some hundred bytes of bzip2 that unfold to a gigabyte are given up after 32 MiB."""
    part = bz2.compress(bytes(100 << 20))
    assert len(part) < 1000
    with pytest.raises(ResourceExhaustedError):
        expand("bz2", part, usual_limit(len(part)))
    assert usual_limit(len(part)) == 1 << 25


def test_inspection_does_not_unfold_generators():
    """Of a set of millions of generated keys the first are looked at, and the report says so."""
    begin = time.process_time()
    report = references.inspect(
        {
            "version": 1,
            "gen": [{"key": "{{i}}", "url": "s3://b/{{i}}", "dimensions": {"i": {"stop": 40_000_000}}}],
            "refs": {"a": "b"},
        }
    )
    assert not report.complete
    assert 50_000 <= report.keys < 100_000
    assert set(report.places) == {"s3://b"}
    assert time.process_time() - begin < 5
    assert references.inspect({"a": ["s3://b/c", 0, 1]}).complete


ODD = (
    None,
    True,
    -1,
    0,
    2**31,
    2**63,
    10**30,
    1e300,
    float("nan"),
    "",
    "x",
    "\udc80",
    "0x",
    "NaN",
    [],
    {},
    [[1]],
    {"name": "x"},
    {"id": "x"},
    ["u", 0, 1],
    "<i4",
    "|O",
    "1" * 400,
    deep_text(10),
)


def mutated(chance, value):
    """Return JSON with one part replaced, removed or repeated."""
    if isinstance(value, dict) and value and chance.random() < 0.85:
        name = chance.choice(sorted(value))
        rest = {key: item for key, item in value.items() if key != name}
        return rest if chance.random() < 0.1 else {**rest, name: mutated(chance, value[name])}
    if isinstance(value, list) and value and chance.random() < 0.8:
        at = chance.randrange(len(value))
        return [*value[:at], *[mutated(chance, value[at])] * chance.choice((0, 1, 1, 2)), *value[at + 1 :]]
    if isinstance(value, int) and chance.random() < 0.5:
        return value + chance.choice((-1, 1, 2**31, 2**63, -(2**63)))
    return nested(chance.choice(ODD), chance.choice((0, 0, 0, 1, 5, 300)))


def one(chance):
    """Open one mutated input; return whether it passed or was refused."""
    kind = chance.choice(("zarr2", "zarr3", "spec", "refs"))
    refs = {
        "version": 1,
        "templates": {"u": "memory://t"},
        "gen": [{"key": "{{i}}", "url": "{{u}}", "offset": "{{i*2}}", "length": "2", "dimensions": {"i": {"stop": 5}}}],
        "refs": {"a": ["{{u}}", 0, 1]},
    }
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "http", "base_url": "http://127.0.0.1:1"},
        "metadata": V3,
        "schema": {"rank": 1, "chunk_layout": {"inner_order": [0]}},
    }
    value = {"zarr2": V2, "zarr3": V3, "spec": spec, "refs": refs}[kind]
    for _ in range(chance.choice((1, 1, 2, 4))):
        value = mutated(chance, value)
    try:
        if kind == "spec":
            repr(ts.Spec(value))
        elif kind == "refs":
            references.inspect(value)
        else:
            name = ".zarray" if kind == "zarr2" else "zarr.json"
            repr(ts.open({"driver": kind}, kvstore={name: json.dumps(value).encode()}).result())
    except (StoreError, TypeError) as error:
        if isinstance(error, TypeError) and kind in ("zarr2", "zarr3"):
            raise
        return "refused"
    return "passed"


def hammer(rounds, seed):
    """Open so many mutated inputs; return what came of them."""
    chance = random.Random(seed)  # noqa: S311  # reproducible, no secret
    outcomes = {"refused": 0, "passed": 0}
    for _ in range(rounds):
        begin = time.process_time()
        outcomes[one(chance)] += 1
        assert time.process_time() - begin < 5
    return outcomes


def test_mutated_inputs_are_opened_or_refused():
    """A few hundred inputs that nobody wrote by hand raise errors of fsstore only; some still open."""
    outcomes = hammer(400, 3)
    assert outcomes["refused"] > 50
    assert outcomes["passed"] > 5


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10))
def test_a_million_mutated_inputs_are_opened_or_refused(seed):
    """The same at length."""
    assert sum(hammer(100_000, 100 + seed).values()) == 100_000
