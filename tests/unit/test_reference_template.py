"""Templates and generators: the language, its bounds, and computing references on demand."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time

import pytest

from fsstore.errors import DataLossError, JsonError, ResourceExhaustedError
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.json_document import from_json
from fsstore.reference.table.generator import parse_gen, written_out
from fsstore.reference.table.table import Located
from fsstore.reference.table.template import TemplateError, Templates, render

SPECIFICATION = """{
"version": 1,
"templates": {"u": "server.domain/path", "f": "{{c}}"},
"gen": [{"key": "gen_key{{i}}", "url": "http://{{u}}_{{i}}", "offset": "{{(i + 1) * 1000}}",
         "length": "1000", "dimensions": {"i": {"stop": 5}}}],
"refs": {
  "key0": "data",
  "key1": ["http://target_url", 10000, 100],
  "key2": ["http://{{u}}", 10000, 100],
  "key3": ["http://{{f(c='text')}}", 10000, 100]
}}"""
EXPANDED = {
    "key0": b"data",
    "key1": Located("http://target_url", 10000, 100),
    "key2": Located("http://server.domain/path", 10000, 100),
    "key3": Located("http://text", 10000, 100),
    "gen_key0": Located("http://server.domain/path_0", 1000, 1000),
    "gen_key1": Located("http://server.domain/path_1", 2000, 1000),
    "gen_key2": Located("http://server.domain/path_2", 3000, 1000),
    "gen_key3": Located("http://server.domain/path_3", 4000, 1000),
    "gen_key4": Located("http://server.domain/path_4", 5000, 1000),
}


def listed(found):
    """Return every key of a set with its reference."""
    return {
        name: page.value(position) for names, page in found.batches(KeyRange()) for position, name in enumerate(names)
    }


def gen(**members):
    """Return a generator without templates."""
    return parse_gen(members, Templates({}))


def test_the_specifications_example_expands_to_its_version_0_equivalent():
    """The example of the specification is what the specification says it is (other readers cannot open it)."""
    found = from_json(SPECIFICATION.encode())
    assert listed(found) == EXPANDED
    resolved = found.find(list(EXPANDED))
    assert [resolved.value(position) for position in range(len(EXPANDED))] == list(EXPANDED.values())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{{u}}/y", "http://h/y"),
        ("{{ u }}", "http://h"),
        ("{{u}}/{b}", "http://h/{b}"),
        ("{{f(c='x')}}", "<x>"),
        ('{{f(c="x", d=3)}}', "<x>"),
        ("{{f(c=n*2)}}", "<14>"),
        ("{{n + 2 * 3}}", "13"),
        ("{{(n + 2) * 3}}", "27"),
        ("{{n // 2}}-{{n % 2}}", "3-1"),
        ("{{-n // 2}}", "-4"),
        ("{{10 - 3 - 2}}", "5"),
        ("{{nested}}", "http://h/deep"),
        ("plain", "plain"),
        ("}} odd", "}} odd"),
    ],
)
def test_expressions(text, value):
    """Names, integers, Python's integer operators, parentheses, and calls with keyword arguments."""
    templates = Templates({"u": "http://h", "f": "<{{c}}>", "nested": "{{u}}/deep"})
    assert str(templates.compile(text).value({"n": 7})) == value


@pytest.mark.parametrize(
    "text",
    [
        "{{u.__class__}}", "{{u[0]}}", "{{u:>40}}", "{{u|upper}}", "{{u + 'z'}}", "{{u * 1000}}", "{{1/2}}",
        "{{2**9}}", "{% for i in x %}", "{# c #}", "{{missing}}", "{{u", "{{}}", "{{1 2}}", "{{f('x')}}",
        "{{u(c='x')(c='y')}}", "{{1 // 0}}", "{{1 % 0}}", "{{9223372036854775807 + 1}}", "{{a}}", "{{loop}}",
        "{{9223372036854775807 * 9223372036854775807}}", "{{" + "(" * 1000 + "1" + ")" * 1000 + "}}",
        "{{" + "-" * 1000 + "1}}", "{{" + "+".join(["1"] * 10000) + "}}", "x" * 100_000, "{{missing(c=1)}}",
        "{{f(c=1}}", "{{f(c 1)}}", "{{lambda: 0}}", "{{__import__('os')}}", "{{'text'}}",
    ],
)  # fmt: skip
def test_everything_else_is_refused(text):
    """Attributes, items, formats, filters, blocks, unknown names and overgrown expressions are errors, at once."""
    templates = Templates({"u": "http://h", "f": "{{c}}", "a": "{{b}}", "b": "{{a}}", "loop": "{{loop}}"})
    begin = time.process_time()
    with pytest.raises(TemplateError):
        templates.compile(text).value({})
    assert time.process_time() - begin < 2


def test_nested_templates_cannot_blow_up():
    """Ten levels of doubling stop at the length cap, in bounded time: no billion laughs."""
    texts = {f"t{n}": "{{t%d}}" % (n + 1) * 30 for n in range(10)} | {"t10": "x" * 100}
    begin = time.process_time()
    with pytest.raises(TemplateError):
        render(Templates(texts), "{{t0}}")
    assert time.process_time() - begin < 5


@pytest.mark.parametrize("bottom", ["", "x", "{{c}}"])
def test_templates_that_name_each_other_end_soon(bottom):
    """Thirty evaluations at each of fifteen levels are refused when they are read, also where they make no text."""
    texts = {f"t{n}": "{{t%d(c='')}}" % (n + 1) * 30 for n in range(15)} | {"t15": bottom}
    for text in ("{{t0}}", "{{t0(c='')}}"):
        begin = time.process_time()
        with pytest.raises(TemplateError, match="tokens"):
            render(Templates(texts), text)
        assert time.process_time() - begin < 5


def test_a_long_chain_of_templates_is_refused_however_it_is_reached():
    """Templates that were read before, one after another, are as deep as if they were read together."""
    named = Templates({f"t{n}": "{{t%d}}" % (n - 1) for n in range(1, 100)} | {"t0": "end"})
    assert [render(named, "{{t%d}}" % n) for n in range(15)] == ["end"] * 15
    for n in (15, 16, 99):
        with pytest.raises(TemplateError, match="deep"):
            render(named, "{{t%d}}" % n)


def test_urls_that_grow_out_of_proportion_are_refused():
    """A text of 60 kB in each of two thousand URLs is not kept; in a few it is."""
    document = {
        "version": 1,
        "templates": {"t": "a" * 60_000},
        "refs": {f"x/{n}": ["{{t}}%d" % n] for n in range(2000)},
    }
    begin = time.process_time()
    with pytest.raises(ResourceExhaustedError, match="2000 URLs"):
        from_json(json.dumps(document).encode())
    assert time.process_time() - begin < 5
    document["refs"] = {"x/0": ["{{t}}0"], "x/1": ["{{t}}1"]}
    assert len(from_json(json.dumps(document).encode()).find(["x/1"]).value(0).url) == 60_001


def test_generators_share_what_they_may_keep():
    """Keys that must be remembered to be found are counted for all generators of a set together."""
    entry = {"url": "u", "dimensions": {"i": {"stop": 300}, "j": {"stop": 300}}}
    document = {"version": 1, "gen": [{"key": f"g{n}/{{{{i}}}}{{{{j}}}}", **entry} for n in range(14)]}
    with pytest.raises(JsonError, match="position 12") as caught:
        from_json(json.dumps(document).encode())
    assert len(caught.value.problems) == 2
    entry["dimensions"] = {"i": {"stop": 300_000}}
    document["gen"] = [{"key": f"g{n}/{{{{i * 2}}}}", **entry} for n in range(4)]
    with pytest.raises(JsonError, match="position 3"):
        from_json(json.dumps(document).encode())
    del document["gen"][3]
    assert from_json(json.dumps(document).encode()).find(["g2/7", "g2/8"]).rows.url.tolist() == [-1, 0]


def test_a_thousand_generators_are_not_tried_one_by_one():
    """A generator for each of a thousand arrays: looking up and listing cost what the keys cost, not their product."""
    dimensions = {"i": {"stop": 10}, "j": {"stop": 10}}
    gens = [{"key": f"a{n}/{{{{i}}}}.{{{{j}}}}", "url": f"u{n}", "dimensions": dimensions} for n in range(1000)]
    found = from_json(json.dumps({"version": 1, "gen": gens}).encode())
    begin = time.process_time()
    assert len(listed(found)) == 100_000
    resolved = found.find([f"a{n}/3.4" for n in range(1000)])
    assert [resolved.value(n).url for n in range(1000)] == [f"u{n}" for n in range(1000)]
    assert time.process_time() - begin < 10


def test_overlapping_generators_list_each_key_once():
    """Whatever their patterns have in common, a key is listed once, with the reference of the last that describes it."""
    one = {"dimensions": {"i": {"stop": 12}}}
    gens = [
        {"key": "x/{{i}}", "url": "a{{i}}", **one},
        {"key": "x/1{{i}}", "url": "b{{i}}", **one},
        {"key": "{{i}}", "url": "c{{i}}", **one},
        {"key": "x/{{i % 3}}", "url": "d{{i}}", "dimensions": {"i": {"stop": 10_000}}},
        {"key": "y/{{i}}", "url": "e{{i}}", **one},
    ]
    expected = {f"x/{n}": f"a{n}" for n in range(12)} | {f"x/1{n}": f"b{n}" for n in range(12)}
    expected |= {str(n): f"c{n}" for n in range(12)} | {"x/0": "d9999", "x/1": "d9997", "x/2": "d9998"}
    expected |= {f"y/{n}": f"e{n}" for n in range(12)}
    found = from_json(json.dumps({"version": 1, "gen": gens}).encode())
    names = [name for names, _ in found.batches(KeyRange()) for name in names]
    assert sorted(names) == sorted(expected)
    assert {name: place.url for name, place in listed(found).items()} == expected
    assert sorted(listed_keys(found, "x/1")) == sorted(name for name in expected if name.startswith("x/1"))


def written(made):
    """Yield the references of a generator one by one."""
    return (pair for batch in written_out(made) for pair in batch.pairs())


def test_ten_thousand_generated_keys_expand_quickly():
    """10 000 generated keys take some tens of milliseconds (another reader: 11 s); the bound is loose for busy machines."""
    members = {
        "key": "gen_key{{i}}", "url": "http://{{u}}_{{i}}", "offset": "{{(i + 1) * 1000}}", "length": "1000",
        "dimensions": {"i": {"stop": 10000}},
    }  # fmt: skip
    made = parse_gen(members, Templates({"u": "server.domain/path"}))
    best = min(_timed(lambda: sum(len(batch.names) for batch in written_out(made))) for _ in range(5))
    assert best < 0.5


@pytest.mark.parametrize(
    ("members", "templates"),
    [
        ({"offset": "{{(i * 100 + j) * 1000}}", "length": "{{j % 7 + 5 // (i + 1)}}"}, {}),
        ({"offset": "{{100000 - i * 3}}", "length": "{{-(0 - j)}}"}, {}),
        ({"url": "{{f}}_{{j}}"}, {"f": "file_{{i}}"}),
        ({"url": "{{f}}"}, {"f": "file_{{i}}"}),
        ({"url": "{{f(k=i)}}"}, {"f": "file_{{k}}"}),
        ({"url": "{{f(c='x')}}{{j}}", "offset": "{{n}}", "length": "1"}, {"f": "{{c}}/", "n": "{{i}}0"}),
        ({"key": "x/{{i * 2}}.{{j - 1}}", "offset": "7", "length": "{{i}}"}, {}),
        ({"key": "{{i}}/{{s}}.{{j}}", "dimensions": {"s": ["a", "b"], "i": [5, 3], "j": {"stop": 3}}}, {}),
        ({"offset": "{{i * 23000000000000000 * 2 // 4}}", "length": "1"}, {}),
        (
            {
                "key": "{{s}}/{{i}}",
                "url": "{{f(a=s, b=i)}}",
                "dimensions": {"s": ["a", "%s", "b"], "i": {"stop": 3000}},
            },
            {"f": "s3://{{a}}{{g}}", "g": "-{{b + 1}}%d"},
        ),
        ({"key": "{{m}}.{{i}}.{{j}}", "dimensions": {"m": ["a", 3], "i": {"stop": 60}, "j": {"stop": 50}}}, {}),
    ],
)
def test_references_written_out_in_columns_are_those_computed_one_by_one(members, templates):
    """Arithmetic on whole columns gives each reference as if it were computed alone, across batches."""
    members = {
        "key": "x/{{i}}.{{j}}",
        "url": "u_{{i}}",
        "dimensions": {"i": {"start": 1, "stop": 200}, "j": {"start": 1, "stop": 60, "step": 2}},
        **members,
    }
    made = parse_gen(members, Templates(templates))
    found = list(written(made))
    assert found == [(str(made.key.value(scope)), made.evaluate("", scope)) for scope in made.scopes()]
    assert len(found) == made.count


@pytest.mark.parametrize("text_axis", [False, True])
def test_only_what_is_listed_is_written_out(text_axis):
    """A part of the keys comes with the references that all of them have; nothing is computed for the others."""
    members = {"key": "x/{{i}}.{{j}}", "url": "u_{{i}}_{{j}}", "offset": "{{i}}", "length": "1"}
    numbers = [f"n{number}" for number in range(9)] if text_axis else {"stop": 9}
    made = parse_gen({**members, "dimensions": {"i": {"stop": 2000}, "j": numbers}}, Templates({}))
    whole = dict(written(made))
    part = [pair for batch in written_out(made, lambda name: name.startswith("x/7")) for pair in batch.pairs()]
    assert len(whole) == 18000 and len(part) == 111 * 9
    assert all(whole[name] == place for name, place in part)
    without = dataclasses.replace(made, url=None)  # which would be needed
    assert list(written_out(without, lambda _: False)) == []


def test_integers_that_outgrow_64_bits_are_an_error_in_columns_too():
    """The reference at which a number becomes too large, or is divided by zero, is named."""
    members = {
        "key": "x/{{i}}", "url": "u", "offset": "{{i * 9000000000000000000}}", "length": "1",
        "dimensions": {"i": [0, 1, 0]},
    }  # fmt: skip
    with pytest.raises(JsonError, match="64 bits|non-negative"):
        parse_gen({**members, "dimensions": {"i": [0, 2]}}, Templates({}))
    made = parse_gen(members, Templates({}))
    with pytest.raises(DataLossError, match='"x/1"'):
        list(written(made))
    divided = parse_gen({**members, "offset": "{{5 // (i - 1)}}", "dimensions": {"i": [2, 1, 3]}}, Templates({}))
    with pytest.raises(DataLossError, match="divides by zero"):
        list(written(divided))


def _timed(run):
    begin = time.process_time()
    run()
    return time.process_time() - begin


@pytest.mark.parametrize(
    ("key", "dimensions"),
    [
        ("x/{{i}}.{{j}}", {"i": {"stop": 3}, "j": [0, 2, 4]}),
        ("x/{{i}}/{{j}}", {"i": {"start": 5, "stop": 0, "step": -2}, "j": {"stop": 2}}),
        ("{{v}}/{{i}}.0", {"v": ["temp", "salt"], "i": {"stop": 4}}),
        ("x/{{i*2}}.{{i}}", {"i": {"stop": 4}}),
        ("x/{{i // 2}}", {"i": {"stop": 5}}),
        ("x{{i}}{{j}}", {"i": {"stop": 12}, "j": {"stop": 12}}),
        ("x/{{i+j}}", {"i": {"stop": 3}, "j": {"stop": 3}}),
        ("x/{{i}}-{{j}}", {"i": {"start": -2, "stop": 2}, "j": {"start": -1, "stop": 2}}),
        ("x/0", {"i": {"stop": 3}}),
        ("x/0", {}),
        ("x/{{i}}", {"i": {"stop": 0}}),
        ("x/{{i}}", {"i": [3, 3, 1]}),
    ],
)
def test_lookup_is_the_inverse_of_expansion(key, dimensions):
    """Every key found by lookup has the reference that writing the product out gives it, the last one winning."""
    names = list(dimensions)
    url = "u" + "".join("-{{%s}}" % name for name in names)
    made = gen(key=key, url=url, offset="0", length="1", dimensions=dimensions)
    expected = dict(written(made))
    assert {name: made.find(name) for name in expected} == expected
    others = [f"x/{a}{s}{b}" for a, b, s in itertools.product(range(-3, 7), range(-3, 7), "./-")] + ["x/", "", "x/00"]
    assert all(made.find(name) is None for name in others if name not in expected)


def test_a_product_of_ten_to_the_twelve_is_neither_expanded_nor_listed():
    """Opening and looking up are instant; listing such a set is refused."""
    document = {
        "version": 1,
        "gen": [{"key": "x/{{i}}.{{j}}", "url": "http://h/{{i}}", "offset": "{{j*8}}", "length": "8",
                 "dimensions": {"i": {"stop": 10**6}, "j": {"stop": 10**6}}}],
    }  # fmt: skip
    found = from_json(json.dumps(document).encode())
    assert found.find(["x/999999.5"]).value(0) == Located("http://h/999999", 40, 8)
    assert found.find(["x/1000000.5"]).value(0) is None
    assert listed_keys(found, "y/") == []
    with pytest.raises(ResourceExhaustedError):
        listed(found)


def listed_keys(found, prefix):
    """Return the keys with a prefix."""
    return [name for names, _ in found.batches(KeyRange.prefix(prefix)) for name in names]


def test_generated_references_win_over_explicit_ones():
    """A key that is generated and written out has the generated reference, once."""
    document = {"version": 1, "refs": {"x/0": "old", "x/9": "kept"},
                "gen": [{"key": "x/{{i}}", "url": "u{{i}}", "dimensions": {"i": {"stop": 2}}}]}  # fmt: skip
    found = from_json(json.dumps(document).encode())
    assert listed(found) == {"x/9": b"kept", "x/0": Located("u0", 0, -1), "x/1": Located("u1", 0, -1)}
    assert found.find(["x/0"]).value(0) == Located("u0", 0, -1)


@pytest.mark.parametrize(
    "change",
    [
        {"dimensions": {"i": 5}}, {"dimensions": {"i": {"end": 5}}}, {"dimensions": {"i": {"stop": 5, "step": 0}}},
        {"dimensions": None}, {"offset": "{{i*1000/2}}"}, {"offset": "1.5"}, {"offset": "-1"}, {"offset": None},
        {"offset": "x"}, {"dimensions": {"u": {"stop": 3}}}, {"key": "../{{i}}"}, {"url": "{{nobody}}"},
        {"dimensions": {"i": {"stop": 2**70}}}, {"dimensions": {"i": [1.5]}}, {"extra": 1}, {"key": 5},
        {"key": "a/{{i}}{{j}}", "dimensions": {"i": {"stop": 1000}, "j": {"stop": 1000}}},
        {"key": "{{i}}", "dimensions": {"i": ["a", "../b"]}, "offset": "0"},
    ],
)  # fmt: skip
def test_malformed_generators_are_refused_with_their_position(change):
    """A generator that cannot be what its writer meant is refused when the set is opened."""
    entry = {"key": "x/{{i}}", "url": "{{u}}", "offset": "{{i}}", "length": "1", "dimensions": {"i": {"stop": 3}}}
    document = {"version": 1, "templates": {"u": "http://h"}, "gen": [{**entry}, {**entry, **change}]}
    with pytest.raises(JsonError, match="position 1"):
        from_json(json.dumps(document).encode())


HALF = {"key": "x/{{i}}", "url": "u", "dimensions": {"i": {"stop": 3}}}


@pytest.mark.parametrize(
    "members",
    [
        {"gen": [{**HALF, "key": "x/\ud800{{i}}"}]}, {"gen": [{**HALF, "url": "u\ud800"}]}, {"gen": [{**HALF, "\ud800": 1}]},
        {"gen": [{**HALF, "dimensions": {"\ud800": {"stop": 1}}}]}, {"gen": [{**HALF, "dimensions": {"i": ["\ud800"]}}]},
        {"gen": [{**HALF, "url": "u\nv"}]}, {"gen": [{**HALF, "offset": "\ud800", "length": "1"}]},
        {"templates": {"u": "\ud800"}}, {"templates": {"u": "a\nb"}}, {"templates": {"\ud800": 5}},
    ],
)  # fmt: skip
def test_templates_and_generators_make_no_url_that_a_reference_may_not_have(members):
    """Halves of characters and control characters are refused where they stand, also when they are only named."""
    document = {"version": 1, "refs": {"x/9": ["{{u}}"]}, **members}
    with pytest.raises(JsonError, match=next(iter(members))) as caught:
        from_json(json.dumps(document).encode())
    str(caught.value).encode()


def test_overrides_replace_and_add_templates():
    """`templates` given by the caller win over the document's, and are rendered even where it has none."""
    document = b'{"version": 1, "templates": {"u": "s3://old"}, "refs": {"a": ["{{u}}/x"], "b": ["{{v}}/y"]}}'
    found = from_json(document, overrides={"u": "file:///new", "v": "/data"})
    assert [found.find(["a", "b"]).value(n).url for n in (0, 1)] == ["file:///new/x", "/data/y"]
    assert from_json(b'{"a": ["{{u}}/x"]}', overrides={"u": "/n"}).find(["a"]).value(0).url == "/n/x"
    assert from_json(b'{"a": ["{{u}}/x"]}').find(["a"]).value(0).url == "{{u}}/x"
