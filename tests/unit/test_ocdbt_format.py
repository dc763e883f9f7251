"""The stored form of OCDBT: the worked examples of the format, round trips, limits, and refusals."""

import random
import struct

import google_crc32c
import numpy as np
import pytest
import zstandard

from fsstore.errors import DataLossError, FailedPreconditionError, JsonError, ResourceExhaustedError, StoreError
from fsstore.kvstore.contract.request import key_text, keys_bytes, keys_texts
from fsstore.ocdbt import encoding
from fsstore.ocdbt.change import leaf_of
from fsstore.ocdbt.encoding import (
    U16,
    Cursor,
    DataFile,
    Location,
    decode_files,
    encode,
    encode_column,
    encode_files,
    encode_keys,
    key_lengths,
    shared_prefixes,
    take_keys,
    value_generation,
)
from fsstore.ocdbt.manifest import (
    EMPTY,
    Config,
    Manifest,
    TreeStatistics,
    Version,
    decode_manifest,
    encode_manifest,
    manifest_number,
    numbered_key,
    parse_constraints,
    ranges_below,
)
from fsstore.ocdbt.node import INLINE, Builder, decode_node
from fsstore.ocdbt.source import format_time, parse_time, parse_version

MANIFEST = bytes.fromhex(
    "0cdb3a2a8600000000000000000000112233445566778899aabbccddeeff0004808080040400020000220000642f6536"
    "39623339343037643038373665393032663932643431343832643034333502010200000001ffffffffffffffffff0106"
    "ffffffffffffffffff0159000300590006fb8d4185e7bee918d3097f85e7bee91800936bee23"
)
LEAF = bytes.fromhex(
    "0cdb20de5900000000000000000000012200642f65363962333934303764303837366539303266393264343134383264"
    "303433350302000505066170706c657269636f7462616e616e610102060000010000313232466e860e"
)
INTERIOR = bytes.fromhex(
    "0cdb20de5400000000000000000001012200642f33386530323338323833353363353062653562666466633165393234"
    "37306461020407030606696d672f302f61312f61000000202020020220200000f16b0fc9"
)
FILE = DataFile(b"", b"d/e69b39407d0876e902f92d41482d0435")


def test_manifest_of_the_description():
    """The manifest of the format description decodes to its meaning and encodes to its bytes."""
    manifest = decode_manifest(MANIFEST)
    uuid = bytes.fromhex("00112233445566778899aabbccddeeff")
    assert manifest.config == Config(uuid, max_inline_value_bytes=4, level=None)
    first, second = manifest.versions
    assert first == Version(1, 0, None, EMPTY, 1795175828066242043)
    assert second == Version(2, 0, Location(FILE, 6, 89), TreeStatistics(3, 89, 6), 1795175828070271443)
    assert encode_manifest(manifest) == MANIFEST


def test_leaf_of_the_description():
    """The leaf of the format description decodes, and the builder writes the same bytes."""
    leaf = decode_node(LEAF, b"")
    assert leaf.keys == [b"apple", b"apricot", b"banana"]
    assert [leaf.value(row) for row in range(3)] == [b"1", b"22", Location(FILE, 0, 6)]
    written = []

    def place(data):
        written.append(data)
        return Location(FILE, 6, len(data))

    builder = Builder(decode_manifest(MANIFEST).config, place)
    root = builder.root(builder.leaves(leaf, may_be_root=True), 0)
    assert written == [LEAF]
    assert root == (0, Location(FILE, 6, 89), TreeStatistics(3, 89, 6))


def test_interior_node_of_the_description():
    """The tree of the format description comes out byte for byte: two leaves without `img/0/`, and their parent."""
    keys = [b"img/0/a", b"img/0/b", b"img/1/a", b"img/1/b"]
    leaf = leaf_of(keys, [bytes([49 + number]) for number in range(len(keys))])
    file = DataFile(b"", b"d/38e023828353c50be5bfdfc1e92470da")
    written = []

    def place(data):
        offset = sum(map(len, written))
        written.append(data)
        return Location(file, offset, len(data))

    builder = Builder(Config(bytes(16), max_decoded_node_bytes=50, level=None), place)
    builder.root(builder.leaves(leaf, may_be_root=True), 0)
    assert [len(data) for data in written] == [32, 32, 84]
    assert written[2] == INTERIOR
    node = decode_node(INTERIOR, b"")
    assert node.child(1, b"p/") == (b"p/img/1/a", 8, Location(file, 32, 32), TreeStatistics(2, 32, 0))


@pytest.mark.parametrize("count", [1, 5, 23, 24, 25, 3000])
def test_varint_columns(count):
    """Columns of varints of any length decode to what was encoded, by loop and by array alike."""
    generator = np.random.default_rng(count)
    numbers = generator.integers(0, 2**63, count, np.uint64) >> generator.integers(0, 64, count).astype(np.uint64)
    numbers[0] = 2**64 - 1
    data = encode_column(numbers)
    assert data == b"".join(encode(int(number)) for number in numbers)
    cursor = Cursor(data, "numbers")
    assert cursor.take_column(count).tolist() == numbers.tolist()
    cursor.finish()
    assert Cursor(data, "numbers").take_list(count) == numbers.tolist()


@pytest.mark.parametrize("count", [1, 30])
@pytest.mark.parametrize("tail", [b"\x80", b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01", b"\xff" * 20, b""], ids=repr)
def test_malformed_varints(count, tail):
    """A varint that is cut off, too long or too large is damage."""
    cursor = Cursor(b"\x01" * (count - 1) + tail, "numbers")
    with pytest.raises(DataLossError):
        cursor.take_column(count)


def test_varints_may_be_longer_than_needed():
    """Over-long forms are accepted, and limits apply to the value."""
    assert Cursor(b"\x85\x80\x00", "n").take(U16) == 5
    assert Cursor(b"\x85\x80\x00" * 30, "n").take_column(30, U16).tolist() == [5] * 30
    for count in (1, 30):
        with pytest.raises(DataLossError, match="exceeds 65535"):
            Cursor(b"\x80\x80\x04" * count, "n").take_column(count, U16)


def test_envelope():
    """Every byte of an envelope matters, compressed or not; nothing may be missing or follow."""
    for level in (None, 0, 5):
        data = encoding.seal(encoding.BTREE_NODE, b"body" * 20, level)
        assert encoding.unseal(encoding.BTREE_NODE, data, "x") == b"body" * 20
        for place in range(len(data)):
            broken = bytearray(data)
            broken[place] ^= 1
            with pytest.raises(DataLossError):
                encoding.unseal(encoding.BTREE_NODE, bytes(broken), "x")
        for broken in (data[:-1], data + b"\0", b"", data[:3], data[:17]):
            with pytest.raises(DataLossError):
                encoding.unseal(encoding.BTREE_NODE, broken, "x")


def sealed(body: bytes, method: int = 1, version: int = 0) -> bytes:
    """Return an envelope with a right length and checksum around any body."""
    head = encoding.BTREE_NODE + struct.pack("<Q", len(body) + 18) + bytes((version, method)) + body
    return head + struct.pack("<I", google_crc32c.value(head))


def test_envelope_of_other_writers():
    """A frame without its size and one with a checksum are read; two frames, junk and other methods are not."""
    streaming = zstandard.ZstdCompressor(write_checksum=True).compressobj()
    frame = streaming.compress(b"ab" * 100_000) + streaming.flush()
    assert zstandard.frame_content_size(frame) == -1
    assert encoding.unseal(encoding.BTREE_NODE, sealed(frame), "x") == b"ab" * 100_000
    sized = zstandard.compress(b"ab")
    bad = [frame * 2, frame + b"x", frame[:-5], sized * 2, sized + b"x", sized[:-1], b"", b"abc"]
    for body in bad:
        with pytest.raises(DataLossError):
            encoding.unseal(encoding.BTREE_NODE, sealed(body), "x")
    for method, version in ((2, 0), (0, 1)):
        with pytest.raises(DataLossError):
            encoding.unseal(encoding.BTREE_NODE, sealed(b"", method, version), "x")


def test_decompression_bombs(tune):
    """A body that unfolds beyond the limit is refused, whether or not it says so."""
    tune("ocdbt", BODY_LIMIT=10_000_000)
    streaming = zstandard.ZstdCompressor().compressobj()
    silent = streaming.compress(bytes(20_000_000)) + streaming.flush()
    for frame in (silent, zstandard.compress(bytes(20_000_000))):
        assert len(frame) < 2000
        with pytest.raises(ResourceExhaustedError):
            encoding.unseal(encoding.BTREE_NODE, sealed(frame), "x")


def test_key_bombs():
    """Prefix lengths that stand for gigabytes of keys are refused before the keys are built."""
    count = 100_000
    data = encode_column([30_000] * (count - 1)) + encode_column([30_000] + [1] * (count - 1))
    with pytest.raises(ResourceExhaustedError):
        take_keys(Cursor(data + bytes(30_000 + count - 1), "bomb"), count, subtrees=False)


def test_shared_prefixes():
    """Shared prefixes are those of adjacent keys, NUL bytes and keys that continue others included."""
    keys = sorted(
        {b"", b"a", b"a\0", b"a\0\0", b"a\0b", b"ab", b"abc" * 1000, b"abc" * 1000 + b"\0", b"\xff", b"b\0", b"b"}
    )

    def common(a, b):
        return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))

    wanted = [common(a, b) for a, b in zip(keys, keys[1:])]
    assert shared_prefixes(keys, key_lengths(keys)).tolist() == wanted


def test_shared_prefixes_in_blocks(tune):
    """Keys are compared in blocks; the seams do not show."""
    tune("ocdbt", REQUEST_BYTES=20)
    keys = [b"%05d" % number for number in range(0, 99999, 7)]
    wanted = [next(i for i in range(5) if a[i] != b[i]) for a, b in zip(keys, keys[1:])]
    assert shared_prefixes(keys, key_lengths(keys)).tolist() == wanted


def _key_column(keys, at_most=2**16):
    """Return the stored form of keys, of which none shares more than so many letters with the one before."""
    lengths = key_lengths(keys)
    shared = np.minimum(shared_prefixes(keys, lengths), at_most)
    return Cursor(b"".join(encode_keys(keys, shared, lengths)), "keys")


@pytest.mark.parametrize("letters", [b"ab", b"0123456789/\n", bytes(range(1, 256)), bytes(range(256))])
@pytest.mark.parametrize(("count", "longest"), [(1, 0), (20, 8), (3000, 8), (3000, 70)])
@pytest.mark.parametrize("at_most", [0, 2, 2**16])
def test_keys_are_rebuilt(letters, count, longest, at_most):
    """Keys come back, few or many, short or long, with zeros or without, and shared as little as the writer liked."""
    choice = random.Random(count)
    keys = sorted({bytes(choice.choices(letters, k=choice.randint(0, longest))) for _ in range(count)})
    cursor = _key_column(keys, at_most)
    assert take_keys(cursor, len(keys), subtrees=False)[0] == keys
    cursor.finish()


@pytest.mark.parametrize("count", [3, 3000])
@pytest.mark.parametrize("key", [b"00001", b"00000", b"0000", b""])
def test_keys_must_rise(count, key):
    """A key that is not greater than the one before is damage, in a small node and in a large one."""
    keys = [b"%05d" % number for number in range(count)]
    keys[2] = key
    with pytest.raises(DataLossError, match="not strictly increasing"):
        take_keys(_key_column(keys), count, subtrees=False)


def test_data_file_table():
    """Tables keep their files, share prefixes only as readers accept them, and apply the context."""
    files = sorted(
        {
            DataFile(base, b"d/" + name)
            for base in (b"", b"s/", b"s/t/", b"st/")
            for name in (b"", b"a", b"ab", b"b" * 300)
        }
    )
    cursor = Cursor(encode_files(files), "table")
    assert decode_files(cursor, b"") == files
    cursor.finish()
    grafted = decode_files(Cursor(encode_files(files), "table"), b"up/")
    assert grafted == [DataFile(b"up/" + base, name) for base, name in files]


@pytest.mark.parametrize("path", [b"../x", b"d/../../x", b".."])
def test_data_files_stay_in_their_directory(path):
    """A path that climbs out of the database directory is damage."""
    with pytest.raises(DataLossError, match="out of the database"):
        decode_files(Cursor(encode_files([DataFile(b"", path)]), "table"), b"")


def test_manifest_names():
    """Numbered manifests have 16 lower-case digits and are not number zero."""
    assert numbered_key(255) == "manifest.00000000000000ff"
    assert manifest_number(numbered_key(2**64 - 1)) == 2**64 - 1
    for name in (
        "manifest.ocdbt",
        "manifest.00000000000000FF",
        "manifest.0",
        "manifest." + "0" * 16,
        "manifest.-000000000000001",
    ):
        assert manifest_number(name) == 0


def test_numbered_manifests():
    """The constant manifest has no versions; numbered ones must carry the number in their name."""
    config = Config(bytes(16), "numbered")
    assert decode_manifest(encode_manifest(Manifest(config))) == Manifest(config)
    manifest = Manifest(config, (Version(7, 0, None, EMPTY, 1),))
    assert decode_manifest(encode_manifest(manifest), number=7) == manifest
    for data, number in ((encode_manifest(manifest), 8), (encode_manifest(Manifest(config)), 7)):
        with pytest.raises(DataLossError):
            decode_manifest(data, number=number)


def test_version_ranges():
    """With four versions a node, 71 generations hang below the manifest as the format describes."""
    assert list(ranges_below(71, 2)) == [(1, 65, 68), (2, 1, 64)]
    assert list(ranges_below(4, 2)) == []


CONFIGS = [
    ({"foo": 1}, 'Object includes extra members: "foo"'),
    ({"max_inline_value_bytes": 2_000_000}, r"Expected integer in the range \[0, 1048576\], but received: 2000000"),
    ({"version_tree_arity_log2": 0}, r"Expected integer in the range \[1, 16\], but received: 0"),
    ({"compression": {"id": "gzip"}}, 'No matching value binder: Expected null, but received: .*Expected "zstd"'),
    ({"compression": {"id": "zstd", "level": 50}}, r"Expected integer in the range \[-131072, 22\], but received: 50"),
    ({"uuid": "xyz"}, 'Expected string with 32 hex digits, but received: "xyz"'),
    ({"manifest_kind": "foo"}, 'Expected one of "single", "numbered", but received: "foo"'),
]


@pytest.mark.parametrize(("value", "message"), CONFIGS)
def test_bad_configurations(value, message):
    """What is wrong with a `config` member is said in TensorStore's words."""
    with pytest.raises(JsonError, match=message):
        parse_constraints(value)


def test_constraints():
    """Every member of a configuration that was given must agree; the message has both values."""
    config = Config(bytes(16))
    parse_constraints({"compression": {"id": "zstd"}, "uuid": "00" * 16}).check(config)
    for given, message in (
        (
            {"max_inline_value_bytes": 5},
            "Configuration mismatch on max_inline_value_bytes: expected 5 but received 100",
        ),
        ({"compression": None}, r'Configuration mismatch on compression: expected null but received \{"id":"zstd"'),
        ({"manifest_kind": "numbered"}, 'expected "numbered" but received "single"'),
        ({"uuid": "11" * 16}, f'expected "{"11" * 16}" but received "{"00" * 16}"'),
    ):
        with pytest.raises(FailedPreconditionError, match=message):
            parse_constraints(given).check(config)


def test_commit_times():
    """Times in specs and URLs are UTC with up to nine digits; anything else is refused."""
    for text in ("1970-01-01T00:00:00Z", "2025-01-01T00:00:00.5Z", "2026-11-20T13:42:49.925613113Z"):
        assert format_time(parse_time(text)) == text
    assert format_time(parse_time("2025-01-01T00:00:00.1234567899Z")) == "2025-01-01T00:00:00.123456789Z"
    for text in (
        "v5",
        "2025-01-01",
        "2025-01-01T00:00:00",
        "2025-01-01T00:00:00+01:00",
        "1969-12-31T23:59:59Z",
        "2025-02-30T00:00:00Z",
        "",
    ):
        with pytest.raises(StoreError, match="Invalid OCDBT commit time"):
            parse_time(text)


def test_versions_in_urls():
    """`v` and a number is a generation."""
    assert parse_version("v05") == 5
    for text in ("v0", "V5", "5", "latest", "", "v99999999999999999999", "v" + "1" * 10000):
        with pytest.raises(StoreError, match="Invalid OCDBT version"):
            parse_version(text)


def test_generations_tell_values_apart():
    """Equal inline values have equal generations; a short value, a hash and a missing value never have the same."""
    values = [None, *(b"x" * size for size in (0, 1, 18, 19, 20, 21, 500)), b"\2", b"\0"]
    values += [Location(FILE, 0, 6), Location(FILE, 6, 0), Location(DataFile(b"d/", FILE.relative_path[2:]), 0, 6)]
    generations = [value_generation(value) for value in values]
    assert len(set(generations)) == len(values)
    assert b"" not in generations
    digest = value_generation(b"x" * 500)[1:]  # a value that looks like a hash is one byte shorter, or hashed itself
    assert value_generation(digest) != value_generation(b"x" * 500)
    assert value_generation(bytes(bytearray(b"x" * 19))) == value_generation(b"x" * 19)


@pytest.mark.parametrize("keys", [[], [b""], [b"a", b"b/c", "é".encode()], [b"a\nb", b"c"], [b"\xff", b"a"]], ids=repr)
def test_keys_as_text(keys):
    """Keys converted together are those converted one by one, whatever is in them."""
    texts = keys_texts(keys)
    assert texts == [key_text(key) for key in keys]
    assert keys_bytes(texts) == keys


def test_split_of_empty_and_oversized_entries():
    """An entry larger than a node gets a node of its own, and one key makes one node."""
    written = []

    def place(data):
        written.append(data)
        return Location(FILE, 1000 * len(written), len(data))

    builder = Builder(Config(bytes(16), max_decoded_node_bytes=100, level=None), place)
    assert builder.root([], 0) == (0, None, EMPTY)
    leaf = leaf_of([b"a", b"b", b"c"], [b"x" * 500, b"", b"y" * 500])
    assert leaf.file_ids.tolist() == [INLINE] * 3
    root = builder.root(builder.leaves(leaf, may_be_root=True), 0)
    assert root.height > 0
    assert root.statistics.num_keys == 3
    assert root.statistics.num_tree_bytes == sum(map(len, written))


def test_leaves_kept_by_a_writer():
    """The leaf that a writer keeps in place of a written node is what decoding that node gives."""
    written, kept = {}, {}

    def place(data):
        location = Location(FILE, 10_000 * len(written), len(data))
        written[location] = data
        return location

    keys = [b"key/%03d" % number for number in range(100)]
    values = [
        b"x" * number if number % 3 else Location(DataFile(b"", b"d/%d" % (number % 5)), number, 7)
        for number in range(100)
    ]
    builder = Builder(Config(bytes(16), max_decoded_node_bytes=500), place, kept.__setitem__)
    builder.root(builder.leaves(leaf_of(keys, values), may_be_root=True), 0)
    assert len(kept) > 10
    for location, leaf in kept.items():
        node = decode_node(written[location], b"")
        assert leaf.keys == node.keys
        assert leaf.payload == node.payload
        assert [leaf.value(row) for row in range(len(leaf.keys))] == [node.value(row) for row in range(len(node.keys))]
        assert list(leaf.files) == list(node.files)
