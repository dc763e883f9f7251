"""Reference sets, whatever is in them: scanning agrees with a JSON parser, saving is the inverse of opening."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fsstore.errors import StoreError
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference import json_scan
from fsstore.reference import json_scan as json_batch
from fsstore.reference.json_document import encode, from_json, from_mapping
from fsstore.reference.kind import decompress
from fsstore.reference.table.keys import check_key, split_keys
from fsstore.reference.table.set_state import State
from fsstore.reference.table.table import Located, decode_text, decode_value, encode_text
from fsstore.runtime import execution
from fsstore.values.detection import method_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBER = st.integers(0, 12).map(str) | st.sampled_from(["00", "-1", "", "c", "1e3", "999999999999999999", "9" * 19])
PATH = st.sampled_from(["x", "temp2", "g/deep", "level", "", "é", "a.b", "x/c", "7", "a\nb"])
SEPARATOR = st.sampled_from("./")
CHUNK = st.builds(
    lambda path, numbers, first, rest: path + (first if path else "") + rest.join(numbers),
    PATH, st.lists(NUMBER, min_size=1, max_size=4), SEPARATOR, SEPARATOR,
)  # fmt: skip
KEY = (CHUNK | TEXT | st.sampled_from([".zgroup", "x/.zarray", "x/", "x"])).filter(lambda key: check_key(key) is None)
URL = st.sampled_from(["s3://b/k", "u", "file:///a b", "http://h/é?q=1", "/abs", "a\\b", 'q"q', "{{u}}"])
OFFSET = st.integers(0, 100) | st.integers(0, 2**61)
VALUE = st.one_of(
    TEXT.filter(lambda text: not text.startswith("base64:")),
    st.binary(max_size=9).map(lambda data: encode_text(b"base64:" + data)),
    st.tuples(URL).map(list),
    st.tuples(URL, OFFSET, OFFSET).map(list),
    st.none(),
    st.dictionaries(st.text(st.characters(codec="ascii"), max_size=3), st.integers(), max_size=2),
)
ENTRIES = st.lists(st.tuples(KEY, VALUE), max_size=40)
STYLE = st.sampled_from(
    [{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}, {"separators": (" , ", " : ")}]
)


def listed(found):
    """Return every key of a set with its reference."""
    return {
        name: page.value(position) for names, page in found.batches(KeyRange()) for position, name in enumerate(names)
    }


@given(ENTRIES, STYLE, st.sampled_from(["", "version 1", "version last"]))
@example([("version", ["u"])], {}, "version 1")
@settings(max_examples=150, deadline=None)
def test_scanning_agrees_with_parsing(entries, style, form):
    """Any document, in any style, with duplicates, means what a JSON parser and the rules of values say."""
    dump = lambda value: json.dumps(value, **style)  # noqa: E731
    members = ", ".join(f"{dump(key)}: {dump(value)}" for key, value in entries)
    if form == "":
        entries = [(key, value) for key, value in entries if key not in ("version", "refs", "gen", "templates")]
        members = ", ".join(f"{dump(key)}: {dump(value)}" for key, value in entries)
    text = {"": "{%s}", "version 1": '{"version": 1, "refs": {%s}}', "version last": '{"refs": {%s}, "version": 1}'}[
        form
    ]
    found = from_json((text % members if members else text.replace("%s", "")).encode())
    model = {}
    for key, value in entries:
        model[key] = json.dumps(value, **style).encode() if isinstance(value, dict) else decode_value(value)
    assert listed(found) == {key: value for key, value in model.items() if value is not None}
    keys = [*model, "nowhere/0", "x/99.99"]
    resolved = found.find(keys)
    assert [resolved.value(n) for n in range(len(keys))] == [model.get(key) for key in keys]
    for key in keys:
        assert found.find([key]).value(0) == model.get(key)


@given(ENTRIES, st.sampled_from([0, 1]), st.sampled_from([None, "zstd", "gzip", "bz2", "xz"]))
@settings(max_examples=80, deadline=None)
def test_saving_is_the_inverse_of_opening(entries, version, compression):
    """Any set, saved in either version and any compression, opens as the same set, byte for byte."""
    document = {key: value for key, value in entries if key not in ("version", "refs", "gen", "templates")}
    found = from_mapping(document)

    async def saved():
        return b"".join([piece async for piece in encode(State(found), version=version, compression=compression)])

    data = execution.call(saved())
    assert method_of(data) == compression
    again = listed(from_json(decompress(data)))
    assert again == listed(found)
    assert all(isinstance(value, bytes | Located) for value in again.values())


@given(st.binary(max_size=30))
@example(b"base64:AAAA")
def test_inline_bytes_survive_as_text(data):
    """Whatever the bytes, the text written for them stands for exactly them, through JSON too."""
    assert decode_text(json.loads(json.dumps(encode_text(data)))) == data


@given(st.lists(CHUNK | TEXT.filter(lambda text: "\0" not in text), min_size=1, max_size=20))
@settings(max_examples=150, deadline=None)
def test_splitting_keys_loses_none(keys):
    """Every key lands in one group or among the loose ones, and joining a group gives its keys back."""
    from fsstore.reference.table.keys import join

    groups, loose = split_keys([key.encode() for key in keys])
    back = {position: keys[position] for position in loose}
    for group in groups:
        positions = (
            list(range(len(keys)))[group.positions] if isinstance(group.positions, slice) else group.positions.tolist()
        )
        back.update(zip(positions, join(group.family, group.coords), strict=True))
    assert back == dict(enumerate(keys))


SIMILAR = st.tuples(
    st.sampled_from(["x", "x/1", "a.b", "", "c", "x1"]),
    st.lists(st.sampled_from(["0", "7", "12", "05", "", "9" * 18, "9" * 19]), max_size=3),
)


@given(st.lists(SIMILAR, min_size=1, max_size=6), st.sampled_from("./"))
@settings(max_examples=400, deadline=None)
def test_keys_of_one_family_are_split_as_each_alone(parts, separator):
    """A batch, nearly all of which is of one family as a rule, is split as every key by itself would be."""
    from fsstore.reference.table.keys import split_one

    keys = [separator.join([lead, *numbers]).encode() for lead, numbers in parts]
    groups, loose = split_keys(keys)
    found = dict.fromkeys(loose)
    for group in groups:
        positions = range(len(keys))[group.positions] if isinstance(group.positions, slice) else group.positions
        found.update((int(at), (group.family, row)) for at, row in zip(positions, group.coords.tolist(), strict=True))
    assert found == {position: split_one(key) for position, key in enumerate(keys)}


@given(st.binary(max_size=60) | st.text(max_size=60).map(str.encode) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["version", "refs", "gen", "templates", "a/0", "key", "url", "dimensions"]), inner, max_size=4),
    max_leaves=12).map(lambda value: json.dumps(value).encode()))  # fmt: skip
@settings(max_examples=300, deadline=2000)
def test_rubbish_is_refused_and_nothing_else_happens(data):
    """Arbitrary bytes and arbitrary JSON open as a set or raise an error of this library."""
    try:
        found = from_json(decompress(data))
    except StoreError:
        return
    for names, page in found.batches(KeyRange()):
        for position in range(len(names)):
            page.value(position)


def value_of(rng, kind, number):
    """Return a reference, or now and then something else."""
    kind = rng.choice([kind] * 50 + ["odd"])
    if kind == "odd":
        return rng.choice([["u", -1, 0], {"a": [number]}, ["u", 1.5, 1], 7, "base64:A", "\ud800", [], ["", 1, 2]])
    return {
        "range": [f"s3://b/file_{number // rng.randrange(1, 9)}.nc", number * rng.randrange(1, 10**6), number],
        "whole": [f"é{number // 4}" if number % 5 else "/a/../b"],
        "null": None,
        "text": ["plain", "", f'{{"a": "\\\\{number}/"}}', "é\n", "base64:"][number % 5],
        "base64": encode_text(b"\xff" + rng.randbytes(number % 5)),
    }[kind]


def uniform(rng):
    """Return a document of references of few kinds and arrays, with some odd ones and a few bytes changed."""
    style = rng.choice(
        [{}, {"indent": 1}, {"separators": (",", ":")}, {"ensure_ascii": False}, {"separators": (" ,", " : ")}]
    )
    key = rng.choice(
        ["x/%d", "x/%d.%d", "%d", "a%d/c/%d/%d", "loose%dz", "é/%d", "a/0%d", "x..y/%d", "../%d", "%d/v/%d.0"]
    )
    kinds = rng.choices(["range", "whole", "null", "text", "base64"], [4, 1, 1, 3, 3], k=rng.randrange(1, 4))
    refs = {}
    for number in range(rng.randrange(1, 60)):
        for kind in kinds:
            name = key.replace("%d", str(rng.choice([number, number * 10 ** rng.randrange(18)])))
            refs[rng.choice(["", "", "g" * (number % 9)]) + name] = value_of(rng, kind, number)
    text = json.dumps({"version": 1, "refs": refs} if rng.random() < 0.5 else refs, **style)
    data = bytearray(text.replace("/", rng.choice(["/", "\\/"])).encode("utf-8", "surrogatepass"))
    for _ in range(rng.choice([0, 1, 1, 1, 2, 3])):
        at = rng.randrange(len(data))
        data[at : at + rng.randrange(3)] = bytes(
            rng.choices(b'"\\{}[],:0123456789 .-/\n\tnul\xc3\xa9\x80\xfe\xff=', k=rng.randrange(3))
        )
    return bytes(data)


def outcome(data):
    """Return what opening a document gives: its references, or the error with all its problems."""
    try:
        return listed(from_json(data))
    except StoreError as error:
        return type(error), str(error)


@pytest.mark.parametrize("seed", range(12))
def test_members_read_as_columns_are_those_read_one_by_one(seed, monkeypatch):
    """Whatever bytes are changed, a run holds what its members hold, and damage is found at the same byte."""
    rng = random.Random(seed)
    documents = [uniform(rng) for _ in range(100)]
    together = [outcome(data) for data in documents]
    monkeypatch.setattr(json_scan, "take", lambda *_: None)
    for data, found in zip(documents, together, strict=True):
        assert outcome(data) == found, data
    monkeypatch.setattr(json_batch, "take", lambda *_: None)
    assert [outcome(data) for data in documents] == together
    assert 10 < sum(isinstance(found, dict) for found in together) < 90
