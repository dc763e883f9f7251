"""What reading references in bulk rests on: numbers and families found in a text, base64 checked, values in pieces."""

from __future__ import annotations

import itertools
import random
import re

import numpy as np
import pytest

from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.json_run import Plain, meant
from fsstore.reference.table.keys import LONGEST, Text, families, families_of, hashes_of, split_one
from fsstore.reference.table.refset import TableBuilder
from fsstore.reference.table.table import ABSENT, Inline, Piece, Row, Rows, base64_sizes, decode_text


def test_numbers_are_read_backwards_from_any_place():
    """Before every place of a text stands the number that its digits say, or none that is canonical."""
    rng = random.Random(1)
    words = [
        "".join(rng.choices("0123456789", k=rng.randrange(27))) + rng.choice(["", *'a.":/;\x80']) for _ in range(2000)
    ]
    data = "x".join(words).encode()
    values, starts, good = Text(data).number(np.arange(len(data) + 1))
    for end, (value, start, is_number) in enumerate(zip(values.tolist(), starts.tolist(), good.tolist(), strict=True)):
        digits = re.search(rb"[0-9]*\Z", data[max(0, end - 40) : end])[0]
        assert end - start == min(len(digits), LONGEST)
        assert is_number == bool(re.fullmatch(rb"0|[1-9][0-9]{0,17}", digits))
        assert not is_number or value == int(digits)


def test_parts_of_a_text_are_found_and_cut_out():
    """Where something stands is said of any place, also outside of the text; what is cut out is what stands there."""
    text = Text(b"one, two, three")
    assert text.has(np.arange(-3, 20), b", t").nonzero()[0].tolist() == [3 + 3, 3 + 8]
    assert text.has(np.arange(-9, 24), b"e").nonzero()[0].tolist() == [9 + 2, 9 + 13, 9 + 14]
    assert text.has(np.arange(-9, 24), b"o").nonzero()[0].tolist() == [9, 9 + 7]
    assert text.parts(np.array([0, 5, 15]), np.array([3, 8, 15])) == b"onetwo"
    assert [word.tobytes() for word in text.words(np.array([0, 5]), np.array([3, 10]))] == [
        b"one".ljust(8, b"\0") + b"two, thr",
        b"".ljust(8, b"\0") + b"ee".ljust(8, b"\0"),
    ]


PARTS = [
    "x",
    "",
    "g1",
    "x/1",
    "a.b",
    "é",
    "0",
    "7",
    "05",
    "12",
    "9" * 18,
    "9" * 19,
    "1" * 30,
    "prefix of nineteen",
    "c",
]


@pytest.mark.parametrize("seed", range(20))
def test_keys_in_a_text_are_of_the_families_they_are_of_alone(seed):
    """Every key that is read lands in a group of its family, in order, or is loose; what is not read is said."""
    rng = random.Random(seed)
    parts = rng.sample(PARTS, rng.randrange(2, 9))
    keys = [
        "".join(rng.choice(parts) + rng.choice("/.") for _ in range(rng.randrange(5))) + rng.choice(parts)
        for _ in range(200)
    ]
    keys = [key.encode() for key in keys if key and not key.startswith("/")]
    start = np.cumsum([0, *(len(key) + 2 for key in keys)])
    found = families(Text(b'"%b"' % b'""'.join(keys)), start[:-1], start[1:] - 1)
    _check_families(found, keys[: found.read])
    assert found.read == len(keys) or b"1" * 30 in keys[found.read]


def _check_families(found, keys):
    """Check that keys are sorted as they are taken apart alone."""
    assert sorted(found.order.tolist()) == list(range(len(keys)))
    alone = dict(enumerate(map(split_one, keys)))
    for group in found.groups:
        positions = found.order[group.positions].tolist()
        assert positions == sorted(positions)
        for position, row in zip(positions, group.coords.tolist(), strict=True):
            assert alone.pop(position) == (group.family, row)
    assert list(alone) == sorted(found.order[found.grouped :].tolist())
    ungrouped = {one[0] for one in alone.values() if one is not None}
    assert not ungrouped & {group.family for group in found.groups}
    hashes = dict(zip(ungrouped, hashes_of(ungrouped).tolist(), strict=True))
    behind = zip(found.order[found.grouped :].tolist(), found.hashes.tolist(), strict=True)
    assert dict(behind) == {at: 0 if one is None else hashes[one[0]] for at, one in alone.items()}


@pytest.mark.parametrize("seed", range(20))
def test_a_list_of_keys_has_the_families_of_its_keys(seed):
    """So it is too with quotes and line breaks in keys, and with numbers that are read from no text."""
    rng = random.Random(seed)
    parts = rng.sample([*PARTS[:-3], 'a"b', 'q"'], 8) + rng.choice([[], ["a\nb"], ["1" * 30], ["0.0" * 45]])
    keys = ["".join(rng.choice(parts) + rng.choice("/.") for _ in range(3)) + "2" for _ in range(60)]
    keys = [key.encode() for key in keys if not key.startswith("/")]
    found = families_of(keys)
    assert found.read == len(keys)
    _check_families(found, keys)


def test_families_of_any_size_have_hashes():
    """A family with more numbers than a text is searched for has none, and those of others stay what they are."""
    long, short = (b"/x", b"." * 60), (b"/x", b"./")
    assert hashes_of([]).tolist() == []
    assert hashes_of([long]).tolist() == []
    assert hashes_of([long, short, (b"", b"/")]).tolist()[:1] == hashes_of([short]).tolist()


def test_keys_of_a_family_come_together_from_anywhere():
    """Keys alone in their batch join those of other batches, and of equal keys the last of the document stays."""
    rng = random.Random(3)
    builder, expected = TableBuilder(), {}
    for batch in range(300):
        rows = []
        for _ in range(rng.choice([1, 3, 40])):
            key = f"{rng.choice('abcdefgh' * 8 + 'ijklmnop')}{rng.choice('0001')}/{rng.randrange(60)}.0"
            rows.append((key.encode(), Row(0, batch, len(expected))))
            expected[key] = rows[-1][1]
        builder.add_rows([key for key, _ in rows], Rows.of([row for _, row in rows]))
    builder.url_ids([b"u"])
    table = builder.finish()
    assert {key: table.find_one(key) for key in expected} == expected
    found = table.find([*expected, "a0/99.0"])
    assert [found.row(at) for at in range(len(expected))] == list(expected.values())
    assert found.url[-1] == ABSENT
    assert len(table) == len(expected)
    scanned = [(key, rows.row(at)) for keys, rows in table.scan(KeyRange()) for at, key in enumerate(keys)]
    assert dict(scanned) == expected
    assert len(scanned) == len(expected)
    assert table.loose
    assert table.blocks
    for family in table.blocks:
        assert not [key for key in table.loose if split_one(key.encode())[0] == family]


def test_base64_is_checked_as_it_is_decoded():
    """Of all short texts, one by one and together, those are base64 that decode, and of the size that is said."""
    texts = [
        "".join(text) for size in range(9) for text in itertools.product("AB=!"[: 4 if size < 6 else 3], repeat=size)
    ]
    sizes = {}
    for text in texts:
        try:
            sizes[text.encode()] = len(decode_text("base64:" + text))
        except ValueError:
            assert base64_sizes(text.encode(), np.array([len(text)])) is None, text
    for good, size in sizes.items():
        assert base64_sizes(good, np.array([len(good)])).tolist() == [size]
    lengths = np.array([len(good) for good in sizes])
    assert base64_sizes(b"".join(sizes), lengths).tolist() == list(sizes.values())
    assert base64_sizes(b"".join(sizes) + b"AAAA=AAA", np.append(lengths, [5, 3])) is None
    assert base64_sizes(b"AA=A" + b"AAA=", np.array([4, 4])) is None


def test_inline_values_are_numbered_in_the_order_they_came():
    """Single values and pieces, encoded or not, are one sequence."""
    values = Inline()
    assert values.append(b"a") == 0
    assert (
        values.extend([Piece.of(b"AAECAw==", np.array([4, 0, 4]), encoded=True), Piece.of(b"bcd", np.array([1, 2]))])
        == 1
    )
    assert values.append(b"base64:") == 6
    assert list(values) == [b"a", b"\0\1\2", b"", b"\3", b"b", b"cd", b"base64:"]
    assert values[-2] == b"cd"
    assert values[1:3] == [b"\0\1\2", b""]
    with pytest.raises(IndexError):
        values[7]


@pytest.mark.parametrize("text", [b'"a"', b'"a\\/b\\/"', b'"\\\\/\\"\\/\\\\\\\\\\"\\n"', b'"\\u00e9\\\\\\/"'])
def test_escapes_come_back_when_strings_are_parsed(text):
    """Without escaped quotes every quote is a boundary; a string means what it meant, and places are those it had."""
    import json

    plain = Plain.of(text + b', "next')
    assert plain.data.count(b'"') == 3
    stop = plain.data.index(b'", "') + 1
    assert plain.parse(np.array([0]), np.array([stop])) == [json.loads(text)]
    assert plain.place(np.array(stop)) == len(text)
    assert plain.is_text(stop)


@pytest.mark.parametrize("seed", range(10))
def test_any_escapes_are_put_out_of_the_way(seed):
    """Whatever backslashes stand side by side: quotes left are boundaries, and text of marks means what it meant."""
    import json

    rng = random.Random(seed)
    strings = ["".join(rng.choices('\\\\"/ax\né', k=rng.randrange(12))) for _ in range(50)]
    dumped = [json.dumps(one, ensure_ascii=False).replace("/", rng.choice(["/", "\\/"])) for one in strings]
    plain = Plain.of(", ".join(dumped).encode() + b"\\")
    assert plain.data.endswith(b"\\")
    quotes = np.flatnonzero(np.frombuffer(plain.data, np.uint8) == ord('"'))
    start, stop = quotes[::2], quotes[1::2] + 1
    assert plain.parse(start, stop) == strings
    texts = [at for at, one in enumerate(strings) if "\n" not in one]
    data, lengths = meant(Text(plain.data).parts(start[texts] + 1, stop[texts] - 1), (stop - start - 2)[texts])
    assert data.decode() == "".join(strings[at] for at in texts)
    assert lengths.tolist() == [len(strings[at].encode()) for at in texts]
