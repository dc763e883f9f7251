"""Reference documents in JSON: every form of value, every malformed one, versions, compression, size and speed."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
import re
import subprocess
import sys
import time

import numpy as np
import pytest
import ujson
import zstandard

from fsstore.errors import AbortedError, DataLossError, JsonError, ResourceExhaustedError
from fsstore.kvstore.contract.driver import KvPrefix
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.local.driver import LocalDriver
from fsstore.reference.json_document import from_json, from_mapping
from fsstore.reference.json_scan import Scanner
from fsstore.reference.kind import Reading, decompress, load
from fsstore.reference.table.table import Located
from fsstore.runtime import execution


def listed(found):
    """Return every key of a set with its reference."""
    return {
        name: page.value(position) for names, page in found.batches(KeyRange()) for position, name in enumerate(names)
    }


def one(text):
    """Return the reference of key `k` of a document with one member."""
    return from_json(b'{"k": ' + text.encode() + b"}").find(["k"]).value(0)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"text"', b"text"),
        ('""', b""),
        ('"\\u00e9\\n\\"\\\\"', 'é\n"\\'.encode()),
        ('"é"', "é".encode()),
        ('"base64:AAEC"', b"\0\1\2"),
        ('"base64:"', b""),
        ('"base64:YmFzZTY0OmhlbGxv"', b"base64:hello"),
        ('{"a": [1, 2.50, {"b": "}]"}]}', b'{"a": [1, 2.50, {"b": "}]"}]}'),
        ('{"_FillValue":NaN}', b'{"_FillValue":NaN}'),
        ('"{\\"_FillValue\\":NaN}"', b'{"_FillValue":NaN}'),
        ('"1e10    "', b"1e10    "),
        ('["s3://b/k"]', Located("s3://b/k", 0, -1)),
        ('["s3://b/k", 1, 2]', Located("s3://b/k", 1, 2)),
        ('[ "s3://b/k\\u00e9" , 1 , 2 ]', Located("s3://b/ké", 1, 2)),
        ('["u", 5, 0]', Located("u", 5, 0)),
        ('["u", 0, 0]', Located("u", 0, 0)),
        ('["u", 4000000000000000000, 7]', Located("u", 4 * 10**18, 7)),
        ("null", None),
    ],
)
def test_values(text, value):
    """Every documented form of a value means what the specification says, byte for byte."""
    assert one(text) == value


@pytest.mark.parametrize(
    "text",
    [
        "5", "true", "false", "1.5", "NaN", "[]", '["u", 1]', '["u", 1, 2, 3]', '[["u", 1, 2]]', '["u", null, 1]',
        '["u", 1, null]', '["u", "1", 2]', '["u", 1.0, 2]', '["u", 1, 2.5]', '["u", -1, 2]', '["u", 1, -1]',
        '["u", true, 2]', '["u", 99999999999999999999999, 1]', '["", 0, 1]', "[null]", "[null, 0, 1]", "[5, 0, 1]",
        '"base64:!!!"', '"base64:AA"', '"base64:AA-_"', '"base64:AAAA\\n"', '"base64:AAAA="', '"base64:AAAA===="',
        '["a\\u0000b", 0, 1]', '"\\ud800"',
    ],
)  # fmt: skip
def test_malformed_values_are_refused_when_opened(text):
    """A value no reader agrees on is refused with its key and the byte where it stands."""
    with pytest.raises(JsonError, match='"k" at byte 6'):
        one(text)


def test_all_problems_are_reported_at_once():
    """Three mistakes between good references make one error of three sentences."""
    document = {"good/0": ["u", 0, 1], "a": [], "good/1": ["u", 1, 1], "b": 5, "c": "base64:!", "d": "fine"}
    with pytest.raises(JsonError) as caught:
        from_json(json.dumps(document).encode())
    assert [problem.split('"')[1] for problem in caught.value.problems] == ["a", "b", "c"]
    many = {str(n): 5 for n in range(1000)}
    with pytest.raises(JsonError) as caught:
        from_mapping(many)
    assert len(caught.value.problems) == 101
    assert "900 more" in caught.value.problems[-1]


@pytest.mark.parametrize("key", ["../x", "a/../b", "a/..", "..", "/abs", "a\\..\\b", "x\0y", "k" * 5000])
@pytest.mark.parametrize("value", ["inline", ["u", 0, 1], ["u"]])
def test_keys_that_climb_are_refused(key, value):
    """Keys that would leave a directory they are copied to are refused in every form."""
    with pytest.raises(JsonError):
        from_json(json.dumps({key: value, "z": "y"}).encode())
    with pytest.raises(JsonError):
        from_mapping({"version": 1, "refs": {key: value}})


def test_null_target_stands_in():
    """`[null, offset, length]` means the target given with the set."""
    found = from_json(b'{"a": [null, 1, 2], "b": [null]}', target="s3://b/k")
    assert listed(found) == {"a": Located("s3://b/k", 1, 2), "b": Located("s3://b/k", 0, -1)}


@pytest.mark.parametrize(
    ("document", "keys"),
    [
        ('{"a": "x"}', {"a"}),
        ('{"version": null, "a": "x"}', {"a"}),
        ('{"version": 1, "refs": {"a": "x"}, "other": [1]}', {"a"}),
        ('{"refs": {"a": "x"}, "version": 1.0}', {"a"}),
        ('{"refs": {"a": "x"}, "version": true}', {"a"}),
        ('{"version": 1}', set()),
        ('{"refs": {"a": "x"}}', {"a"}),
        ('{"refs": {"a": "x"}, "generationMetadata": {}}', {"a"}),
        ('{"refs": {"a": "x"}, "b": "y"}', {"refs", "b"}),
        ('{"refs": ["u", 0, 1], "templates": {"a": 1}, "gen": "x"}', {"refs", "templates", "gen"}),
        ("{}", set()),
        ("\ufeff {} \n", set()),
        ('{"version": 1, "refs": {"a": "x", "a": "y", "b/0": ["u", 0, 1], "b/0": ["u", 1, 1]}}', {"a", "b/0"}),
    ],
)
def test_versions(document, keys):
    """The version is told by `version`; a version 1 document without it is recognised by its members."""
    assert set(listed(from_json(document.encode()))) == keys


@pytest.mark.parametrize("version", ["2", "0", '"1"', "[1]", "{}", "1.5", "false"])
def test_unknown_versions_are_refused(version):
    """What is not understood is refused: a reader that guesses shows fill values."""
    with pytest.raises(JsonError, match="version"):
        from_json(('{"version": %s, "refs": {"a": "x"}}' % version).encode())


def test_the_last_of_equal_keys_wins():
    """Duplicates are resolved like every JSON reader does, also between inline values and columns."""
    parts = [f'"x/{n}": ["u", {n}, 1]' for n in range(100)]
    text = "{" + ", ".join([*parts, '"x/3": "inline"', '"x/4": null', '"x/5": ["v", 9, 9]', '"y": "a"', '"y": ["u"]'])
    found = from_json((text + "}").encode())
    keys = ["x/2", "x/3", "x/4", "x/5", "y"]
    resolved = found.find(keys)
    assert [resolved.value(n) for n in range(5)] == [
        Located("u", 2, 1),
        b"inline",
        None,
        Located("v", 9, 9),
        Located("u", 0, -1),
    ]
    assert len(listed(found)) == 100


@pytest.mark.parametrize(
    "text",
    [
        "", "   ", "[]", '[{"version": 1}]', '"text"', "{", '{"a"', '{"a":', '{"a": "x"', '{"a": "x",}', '{"a": "x"} y',
        '{"a": ["u", 0, 1],}', '{"a": ["u", 0, 1]', "{'a': 'x'}", '{"a": "x" "b": "y"}', '{"a" "x"}', '{"a": [1,}',
        '{"a": {"b": }}', '{"a": "\\x"}', '{"a": tru}', '{"a": ' + "[" * 200_000 + "}", '{"a": ' + '{"b":' * 200_000,
        '{"\\ud800": "x"}', '{"version": 1, "refs": 5}', '{"version": 1, "refs": {}, "gen": {}}', "\x1f\x8b broken",
        '{"version": 1, "refs": {}, "templates": {"u": 5}}', '{"version": 1, "refs": {}, "templates": []}',
    ],
)  # fmt: skip
def test_what_is_no_reference_document_is_refused(text):
    """Damage is an error of this library with a place, never a crash, a hang or an empty set."""
    begin = time.process_time()
    with pytest.raises((JsonError, DataLossError)):
        from_json(decompress(text.encode("latin-1")))
    assert time.process_time() - begin < 2


def test_bytes_that_are_not_utf_8_are_refused():
    """Latin-1 in a key, a URL or a value is damage, in the fast path as in the slow one."""
    for text in (b'{"\xe9/0": ["u", 0, 1], "b": "x"}', b'{"a/0": ["\xe9", 0, 1], "b": "x"}', b'{"a": "\xe9"}'):
        with pytest.raises(DataLossError):
            from_json(text)


@pytest.mark.parametrize(
    "pack",
    [gzip.compress, bz2.compress, lzma.compress, lambda data: zstandard.compress(data, 3), lambda data: data,
     lambda data: gzip.compress(data[:20]) + gzip.compress(data[20:]),
     lambda data: zstandard.compress(data[:20]) + zstandard.ZstdCompressor().compressobj().compress(b"") + zstandard.compress(data[20:])],
    ids=["gzip", "bz2", "xz", "zstd", "plain", "two gzip members", "two zstd frames"],
)  # fmt: skip
def test_compression_is_detected_by_content(pack):
    """Compressed documents are recognised by their first bytes, whatever they are called."""
    document = json.dumps({f"x/{n}": ["u", n, 1] for n in range(1000)}).encode()
    assert len(listed(from_json(decompress(pack(document))))) == 1000


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstandard.compress])
def test_damaged_and_exploding_compression_is_refused(pack):
    """Cut off, flipped, or growing past the limit: an error before the memory is gone."""
    data = pack(b'{"a": "' + bytes(range(48, 58)) * 200_000 + b'"}')
    with pytest.raises(ResourceExhaustedError):
        list(decompress(data, 100_000)())
    with pytest.raises(DataLossError):
        from_json(decompress(data[: len(data) // 2]))


def big_document(count):
    """Return a document of `count` references as kerchunk would write it."""
    refs = {".zgroup": '{"zarr_format":2}'}
    for n in range(count):
        refs[f"var{n // 100_000}/{n // 100 % 1000}.{n // 10 % 10}.{n % 10}"] = [
            f"s3://bucket/some/long/path/to/file_{n // 100 % 1000:05d}.nc", n * 7919, 1000 + n % 900_000,
        ]  # fmt: skip
    return ujson.dumps({"version": 1, "refs": refs}, escape_forward_slashes=False).encode(), refs


def test_a_large_document_costs_twenty_bytes_a_reference():
    """100 000 references take 2 MB of columns, and each is what the document says."""
    data, refs = big_document(100_000)
    found = from_json(data)
    assert found.table.nbytes == pytest.approx(2_000_000, rel=0.05)
    keys = list(refs)[1:]
    resolved = found.find(keys)
    assert all(tuple(resolved.value(n)) == tuple(refs[key]) for n, key in enumerate(keys))
    assert len(found.table) == 100_001


@pytest.mark.long
def test_a_million_references_fit_their_budget():
    """A million references: 1.5 times the time of parsing, 150 MB of memory above the document."""
    program = """
import sys, time, resource, ujson
sys.path.insert(0, %r)
from test_reference_json import big_document
from fsstore.reference.json_document import from_json
data, refs = big_document(1_000_000); del refs
import gc; gc.collect(); open("/proc/self/clear_refs", "w").write("5")
status = lambda name: int(next(l for l in open("/proc/self/status") if l.startswith(name)).split()[1]) / 1000
before = status("VmRSS"); start = time.process_time(); found = from_json(data); ours = time.process_time() - start
peak = status("VmHWM") - before
start = time.process_time(); parsed = ujson.loads(data); theirs = time.process_time() - start
print(peak, ours, theirs)
"""
    from pathlib import Path

    code = program % str(Path(__file__).parent)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    peak, ours, theirs = map(float, done.stdout.split())
    assert peak < 70
    assert ours < 1.5 * theirs


SLASHES = ["/", "\\/"]  # as it is, and as ujson writes it unless told otherwise
MIXED = {
    ".zgroup": '{"zarr_format": 2}',
    **{f"x/{n}.{n % 7}": [f"s3://b/file_{n // 90}.nc", n * 1000, n % 10**4] for n in range(700)},
    "x/.zattrs": '{"a": "\\" [1, 2], \\u00e9"}',
    **{f"y/{n}": [f"é{n}"] for n in range(200)},
    "object": {"a": [1, {"b": "}]}} of a string"}]},
    **{f"ends-{n}-": [f"]}}{n}", n, 1] for n in range(50)},
    **{f"loose-{n}-": ['/a,"[b]', n, 10**17 + n] for n in range(200)},
    **{f"back\\/{n}": [f"u\\/{n}", n, 1] for n in range(50)},
    **{f"z/c/{n}/0": ["u", n, 1] if n % 5 else None if n % 2 else "inline" for n in range(300)},
}


@pytest.mark.parametrize("version", [0, 1])
@pytest.mark.parametrize("style", [{}, {"indent": 1}, {"separators": (",", ":"), "ensure_ascii": False}])
@pytest.mark.parametrize("slash", SLASHES)
def test_a_document_in_pieces_is_the_document(version, style, slash):
    """However the bytes are cut into pieces, the set is the same: also in the middle of numbers, letters and escapes."""
    document = {"version": 1, "templates": {}, "refs": MIXED, "gen": []} if version else MIXED
    data = json.dumps(document, **style).replace("/", slash).encode()
    whole = listed(from_json(data))
    assert {k: list(v[:1] if v.length < 0 else v) for k, v in whole.items() if not isinstance(v, bytes)} == {
        k: v for k, v in MIXED.items() if isinstance(v, list)
    }
    for size in (1, 7, 100, 1009, 20_000):
        cut = [data[at : at + size] for at in range(0, len(data), size)]
        if size > 1 or len(data) < 60_000:
            assert listed(from_json(lambda cut=cut: cut)) == whole


@pytest.mark.parametrize("size", [64, 5000, 10**6])
@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('"x/77": ["u", 077, 1]', "Expecting ',' delimiter"),
        ('"x/77": ["u", 77, 1]]', "expected ',' or '}'"),
        ('"x/77": ["u" 77, 1]', "Expecting ',' delimiter"),
        ('"x/77" ["u", 77, 1]', "expected a member name"),
        ('"x/77": ["\udc80", 77, 1]', "not UTF-8"),
        ('"\udc80/77": ["u", 77, 1]', "not UTF-8"),
        ('"x/77": ["u", 77, 1}', "Expecting ',' delimiter"),
    ],
)
@pytest.mark.parametrize("slash", SLASHES)
def test_damage_among_references_that_look_alike_is_found(text, what, size, slash):
    """What is no JSON in the middle of a run is refused, with the byte where it stands, whatever the pieces."""
    before = "{" + "".join(f'"x/{n}": ["u", {n}, 1], ' for n in range(5000))
    after = "".join(f', "x/{n}": ["u", {n}, 1]' for n in range(6000, 9000)) + "}"
    before, text, after = (part.replace("/", slash) for part in (before, text, after))
    data = (before + text + after).encode("utf-8", "surrogateescape")
    with pytest.raises(DataLossError, match=re.escape(what)) as error:
        from_json(lambda: [data[at : at + size] for at in range(0, len(data), size)])
    place = int(re.search(r"at byte (\d+)", str(error.value))[1])
    assert len(before) <= place <= len(before) + len(text)


@pytest.mark.parametrize(
    ("member", "problem"),
    [
        ('"../77": ["u", 77, 1]', "'..'"),
        ('"x/../y/77": ["u", 77, 1]', "'..'"),
        ('"/x/77": ["u", 77, 1]', "starts with a slash"),
        ('"%s/77": ["u", 77, 1]' % ("x" * 4096), "longer than 4096"),
        ('"x/77": ["a\u0085b", 77, 1]', "control characters"),
        ('"x/77": ["", 77, 1]', "a URL as first element"),
        ('"x/77": ["u", 5000000000000000000, 1]', "offset as a non-negative integer"),
        ('"x/77": ["u", -1, 1]', "offset as a non-negative integer"),
        ('"x/77": ["u", 1.0, 1]', "offset as a non-negative integer"),
        ('"x/77": ["u", 77]', "[url, offset, length]"),
    ],
)
@pytest.mark.parametrize("slash", SLASHES)
@pytest.mark.parametrize("other", ['["u", 1, 1]', '"inline"', '["a\\u00e9"]'])
def test_bad_references_among_others_are_named(member, problem, slash, other):
    """A reference that is JSON but may not be is refused with its key and byte, all of them, wherever they stand."""
    members = [f'"x/{n}": ["u", {n}, 1]' if n % 3 else f'"x/{n}": {other}' for n in range(3000)]
    members[5] = members[1500] = members[-1] = member
    data = ("{" + ", ".join(members) + "}").replace("/", slash).encode()
    with pytest.raises(JsonError) as error:
        from_json(data)
    assert len(error.value.problems) == 3
    places = [int(re.search(r"at byte (\d+)", text)[1]) for text in error.value.problems]
    key = member.partition(":")[0].replace("/", slash).encode()
    assert [data.rfind(key, 0, place) + len(key) + 2 for place in places] == places
    assert all(problem in text for text in error.value.problems)


@pytest.mark.parametrize("slash", SLASHES)
def test_references_are_taken_together(monkeypatch, slash):
    """Of ten thousand members, alike or of two kinds, all but a few are taken without looking at each."""
    single = []
    take_member = Scanner._member
    monkeypatch.setattr(Scanner, "_member", lambda self, sink: single.append(1) or take_member(self, sink))
    refs = {f"x/{n}": [f"s3://bucket/{n % 9}.nc", n, 1] for n in range(10_000)}
    data = json.dumps(refs).replace("/", slash).encode()
    assert {key: list(value) for key, value in listed(from_json(data)).items()} == refs
    assert len(single) < 100
    single.clear()
    mixed = {key: value if number % 3 else f"inline {number}" for number, (key, value) in enumerate(refs.items())}
    found = listed(from_json(json.dumps({"version": 1, "refs": mixed}).replace("/", slash).encode()))
    assert {key: value.decode() if isinstance(value, bytes) else list(value) for key, value in found.items()} == mixed
    assert len(single) < 500


def test_a_large_local_document_is_read_piece_by_piece(tmp_path):
    """No piece of a local file larger than some megabytes is in memory; a small one is read at once."""
    data, refs = big_document(100_000)
    (tmp_path / "large.json").write_bytes(data)
    (tmp_path / "small.json").write_bytes(b'{"a/0": ["u", 1, 2]}')
    sizes = []

    class Watched(LocalDriver):
        async def read_many(self, reads):
            answers = await super().read_many(reads)
            sizes.append(sum(len(answer.value) for answer in answers))
            return answers

    state = execution.drive(load(KvPrefix(Watched(), f"{tmp_path}/large.json"), Reading()))
    assert sum(sizes) == len(data)
    assert max(sizes) <= 4 * 2**20
    assert len(state.base.table) == len(refs)
    sizes.clear()
    execution.drive(load(KvPrefix(Watched(), f"{tmp_path}/small.json"), Reading()))
    assert sizes == [20]


def test_a_document_that_changes_while_it_is_read_is_an_error(tmp_path):
    """Pieces of two versions of a file are never taken for one document."""
    data, _ = big_document(100_000)
    path = tmp_path / "large.json"
    path.write_bytes(data)

    class Changing(LocalDriver):
        async def read_many(self, reads):
            answers = await super().read_many(reads)
            if reads[0].start == 0 and len(answers[0].value) > 100:
                (tmp_path / "new").write_bytes(data)
                (tmp_path / "new").replace(path)
            return answers

    with pytest.raises(AbortedError, match="changed while it was being read"):
        execution.drive(load(KvPrefix(Changing(), str(path)), Reading()))


def test_awkward_shapes_of_sets_stay_linear():
    """Interleaved arrays, alternating forms and pyramids scan in bounded time and come back exactly."""
    documents = [
        {f"v{n % 500}/{n // 500}.0": ["u", n, 1] for n in range(20_000)},
        {f"x/{n}": ["u", n, 1] if n % 2 else "inline" for n in range(20_000)},
        {
            f"level/{level}/{n}.{m}": ["u", n, m]
            for level in range(5)
            for n in range(100 >> level)
            for m in range(100 >> level)
        },
        {f"x/{n * 10**15}.{n}": ["u", n, 1] for n in range(1000)},
        {f"x/{n}/{n}/{n}/{n}/{n}": [f"u{n}"] for n in range(5000)},
        {f"{n}": ["u", n, 1] for n in range(5000)},
        {f"a{n}b": ["u", n, 1] for n in range(5000)},
        {"a" * n + "/1" * (n % 7) + "x" * (n % 2): ["u", n, 1] for n in range(1, 1500)},
        {f"x/{n:03d}": ["u", n, 1] for n in range(500)} | {f"x/{n}": ["u", n, 2] for n in range(500)},
        {f"a\nb/{n}": ["u", n, 1] for n in range(50)} | {f"é/{n}": ["u", n, 1] for n in range(50)},
    ]
    for document in documents:
        begin = time.process_time()
        found = from_json(json.dumps(document, ensure_ascii=False).encode())
        got = listed(found)
        assert time.process_time() - begin < 8
        assert {k: v.decode() if isinstance(v, bytes) else v[:1] if v.length < 0 else v for k, v in got.items()} == {
            k: v if isinstance(v, str) else tuple(v) for k, v in document.items()
        }


@pytest.mark.parametrize(
    ("stored", "asked"), [("s/", "s/0"), ("s/", "s/c"), ("", "0"), ("n/0", "n/0.0"), ("n/0", "n/0/0"), ("s/", "s/")]
)
def test_only_chunks_are_found_under_the_keys_some_writers_use(stored, asked):
    """Scalars under `name/` and two-dimensional arrays under `name/0` are read, not shown as fill values."""
    found = from_mapping({"version": 1, "refs": {stored: "value", "zz": "other"}})
    assert found.find([asked]).value(0) == b"value"
    assert found.find(["n/1", "n/0.1", "s/1", "m/0"]).rows.url.tolist() == [-1] * 4


@pytest.mark.parametrize(
    "name", ["データ\u30001.nc", "a\u00a0b", "zero\u200bwidth", "private\ue000use", "new\U0001fae8", "a b"]
)
def test_urls_may_hold_any_character_that_a_name_may(name):
    """Spaces of other scripts and characters that Python does not know are parts of names, however they are written."""
    for escaped in (True, False):
        for style in ((", ", ": "), (",", ":")):
            document = {f"x/{n}": [f"s3://b/{name}", n, 1] for n in range(300)} | {"y": [f"/d/{name}"]}
            found = from_json(json.dumps(document, ensure_ascii=escaped, separators=style).encode())
            assert found.find(["x/299"]).value(0) == Located(f"s3://b/{name}", 299, 1)
            assert found.find(["y"]).value(0) == Located(f"/d/{name}", 0, -1)
    assert from_mapping(document).find(["y"]).value(0) == Located(f"/d/{name}", 0, -1)


@pytest.mark.parametrize("code", [0, 9, 10, 31, 127, 133, 159, 0xD800, 0xDFFF])
def test_urls_may_hold_no_control_characters(code):
    """Control characters and halves of characters in a URL are refused with the key, in a document and a mapping."""
    document = {f"x/{n}": [f"s3://b/{chr(code) if n == 200 else ''}", n, 1] for n in range(300)}
    with pytest.raises(JsonError, match='"x/200"'):
        from_json(json.dumps(document).encode())
    with pytest.raises(JsonError, match='"x/200"'):
        from_mapping(document)


def test_python_mappings_may_hold_integers_of_numpy():
    """Offsets computed with NumPy are integers; its floats and truth values are none."""
    found = from_mapping({"a": ["u", np.int64(3), np.uint8(4)], "b": ("u", 2**40, np.int32(0))})
    assert listed(found) == {"a": Located("u", 3, 4), "b": Located("u", 2**40, 0)}
    assert type(found.find(["a"]).value(0).offset) is int
    for wrong in (np.float64(3), np.bool_(True), np.int64(-1), np.array([1]), np.datetime64(1, "s")):
        with pytest.raises(JsonError, match='"a"'):
            from_mapping({"a": ["u", wrong, 4]})


def test_python_mappings_may_hold_bytes():
    """A mapping of a scanner that never saw JSON: bytes, tuples and dictionaries."""
    found = from_mapping({"a": b"\xff\0", "b": ("u", 0, 1), "c": {"x": 1.5}, "d": None, "e": b"base64:AAEC"})
    assert listed(found) == {"a": b"\xff\0", "b": Located("u", 0, 1), "c": b'{"x":1.5}', "e": b"\0\1\2"}
    with pytest.raises(JsonError):
        from_mapping({5: "x"})
    with pytest.raises(JsonError):
        from_mapping({"version": 7})


@pytest.mark.parametrize("odd", [b"\xff", ("v", np.int64(7), 1), None, {"x": 1}])
def test_long_mappings_are_taken_in_batches(odd):
    """Thousands of references, one of which JSON could not say, are all there; so is a key that is no text."""
    many = {f"x/{n}": [f"u{n % 7}", n, 1] if n % 5 else f"inline {n}" for n in range(10_000)}
    plain = listed(from_mapping(many))
    assert plain == listed(from_json(json.dumps(many).encode()))
    mixed = listed(from_mapping({**many, "x/6000": odd}))
    value = next(iter(listed(from_mapping({"a": odd})).values()), None)
    assert mixed.pop("x/6000", None) == value
    assert mixed == {key: value for key, value in plain.items() if key != "x/6000"}
    with pytest.raises(JsonError, match="5"):
        from_mapping({**many, 5: "x"})
