"""Damaged chunks, shards and metadata of zarr arrays: an error that names what is damaged, never wrong data."""

import bz2
import gzip
import json
import lzma
import random
import subprocess
import sys
import zlib

import numpy as np
import pytest
import zstandard

import fsstore as ts
from fsstore.errors import StoreError
from tests.fault import stack_fuzz

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
SHARD = {"name": "sharding_indexed", "configuration": {"chunk_shape": [2]}}
INNER = {"name": "sharding_indexed", "configuration": {"chunk_shape": [1], "codecs": [LITTLE, "crc32c"]}}
NESTED = {"name": "sharding_indexed", "configuration": {"chunk_shape": [2], "codecs": [INNER]}}
AT_START = {"name": "sharding_indexed", "configuration": {"chunk_shape": [2], "index_location": "start"}}
CHAINS = {
    "bytes": [LITTLE],
    "crc32c": [LITTLE, "crc32c"],
    "gzip": [LITTLE, "gzip"],
    "zstd": [LITTLE, "zstd"],
    "blosc": [LITTLE, "blosc"],
    "numcodecs.zlib": [LITTLE, {"name": "numcodecs.zlib", "configuration": {}}],
    "numcodecs.lz4": [LITTLE, {"name": "numcodecs.lz4", "configuration": {}}],
    "shard": [SHARD],
    "shard in shard": [NESTED],
    "shard, index at start": [AT_START],
}
VALUES = np.arange(1, 9, dtype="<i4")


def array(codecs, **options):
    """Return an array of 8 elements in two chunks, in a memory store of its own."""
    metadata = {
        "shape": [8],
        "data_type": "int32",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
        "codecs": codecs,
    }
    spec = {"driver": "zarr3", "kvstore": {"driver": "memory"}, "metadata": metadata, **options}
    store = ts.open(spec, create=True).result()
    store.write(VALUES).result()
    return store


def damage(store, change, key="c/0"):
    """Replace the value of a key by what `change` makes of it."""
    store.kvstore.write(key, change(bytes(store.kvstore.read(key).result().value))).result()


def flip(position):
    """Return a change of one bit of a byte."""

    def change(data):
        at = position % len(data)
        return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]

    return change


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("keep", [0, 0.3, 0.5, -1], ids=str)
def test_truncated_chunk(name, keep):
    """A chunk that is cut off is an error that names its key, for reads and for writes of a part; others are intact."""
    store = array(CHAINS[name])
    damage(store, lambda data: data[: keep if keep == -1 else int(len(data) * keep)])
    with pytest.raises(StoreError, match=r'Error reading .*"c/0"'):
        store.read().result()
    with pytest.raises(StoreError, match=r'Error writing .*"c/0"'):
        store[1:2].write(7).result()
    assert store[4:].read().result().tolist() == [5, 6, 7, 8]
    store[0:4].write(VALUES[:4]).result()
    assert store.read().result().tolist() == VALUES.tolist(), "a whole chunk repairs"


@pytest.mark.parametrize("name", [name for name in CHAINS if "shard" not in name])
def test_damage_names_the_codec(name):
    """The message ends with the codec of the chain that cannot decode the chunk, whether all or one element is read."""
    store = array(CHAINS[name])
    damage(store, lambda data: data[:-6])
    for wanted in (store, store[1]):
        with pytest.raises(StoreError) as found:
            wanted.read().result()
        assert str(found.value).endswith(f'; in codec "{name}"')


@pytest.mark.parametrize("name", ["shard", "shard in shard", "shard, index at start"])
@pytest.mark.parametrize(("change", "codec"), [(flip(-1), "crc32c"), (lambda _: b"", "sharding_indexed")])
def test_damage_of_a_shard_names_the_codec(name, change, codec):
    """The codec nearest to the damage is named, once, whether all, one element, or a part to change is read."""
    store = array(CHAINS[name])
    damage(store, flip(3) if "start" in name and codec == "crc32c" else change)
    for begin in (store.read, store[1].read, lambda: store[1].write(7)):
        with pytest.raises(StoreError, match='"c/0"') as found:
            begin().result()
        assert str(found.value).endswith(f'; in codec "{codec}"')
        assert str(found.value).count("in codec") == 1


@pytest.mark.parametrize("name", ["zlib", "gzip", "bz2", "blosc", "zstd", "lz4", "lzma", None])
def test_damage_names_the_compressor(name):
    """The same for zarr v2."""
    metadata = {"chunks": [40000], "compressor": None if name is None else {"id": name}}
    spec = {"driver": "zarr", "kvstore": {"driver": "memory"}, "metadata": metadata}
    store = ts.open(spec, create=True, dtype="int32", shape=[40000]).result()
    store.write(np.arange(40000, dtype="int32")).result()
    damage(store, lambda data: data[:-6], key="0")
    with pytest.raises(StoreError, match='Error reading "0": ') as found:
        store.read().result()
    assert str(found.value).endswith(f'; in codec "{name or "bytes"}"')


@pytest.mark.parametrize("failing", ["fletcher32", "crc32"])
def test_damage_names_the_filter(failing):
    """Of several filters the one that cannot decode is named."""
    filters = [{"id": "delta", "dtype": "<i4"}, {"id": "fletcher32"}, {"id": "crc32"}]
    spec = {"driver": "zarr", "kvstore": "memory://", "metadata": {"compressor": None, "filters": filters}}
    store = ts.open(spec, create=True, dtype="int32", shape=[8]).result()
    store.write(np.arange(8, dtype="int32")).result()
    octets = bytearray(store.kvstore["0"])
    octets[10] ^= 1
    if failing == "fletcher32":
        octets[:4] = zlib.crc32(octets[4:]).to_bytes(4, "little")
    store.kvstore["0"] = bytes(octets)
    with pytest.raises(StoreError, match='Error reading "0": ') as found:
        store.read().result()
    assert str(found.value).endswith(f'; in filter "{failing}"')


@pytest.mark.parametrize("count", [64, 40_000])
@pytest.mark.parametrize("place", ["filters", "compressor"])
def test_damage_of_shuffled_and_deflated_chunks(count, place):
    """As HDF5 has them: cut, continued, flipped, of too few or too many elements; other chunks stay right."""
    shuffle, deflate = {"id": "shuffle", "elementsize": 4}, {"id": "zlib", "level": 1}
    codecs = {"filters": [shuffle], "compressor": deflate}
    if place == "filters":
        codecs = {"filters": [shuffle, deflate], "compressor": None}
    spec = {"driver": "zarr", "kvstore": "memory://", "metadata": {"chunks": [count], **codecs}}
    store = ts.open(spec, create=True, dtype="float32", shape=[3 * count]).result()
    values = np.random.default_rng(0).normal(size=3 * count).astype("f4")
    store.write(values).result()
    good = bytes(store.kvstore["1"])
    end = f'; in {"filter" if place == "filters" else "codec"} "zlib"'
    bad = [good[:-5], good[: len(good) // 2], b"", good + b"x", good + good[:9], flip(len(good) - 2)(good)]
    bad += [zlib.compress(bytes(size)) for size in (0, 4 * count - 4, 4 * count + 4, 1 << 28)]
    for data in bad:
        store.kvstore["1"] = data
        for wanted in (store, store[count + 1], store[:, None].T[...]):
            with pytest.raises(StoreError, match='Error reading "1": ') as found:
                wanted.read().result()
            assert str(found.value).endswith(end)
        assert (store[:count].read().result() == values[:count]).all()
    store.kvstore["1"] = good
    assert (store.read().result() == values).all()


@pytest.mark.parametrize("name", [name for name in CHAINS if "start" not in name])
def test_trailing_bytes(name):
    """Bytes after a chunk are an error; a shard that begins with its index may have gaps, also at its end."""
    store = array(CHAINS[name])
    damage(store, lambda data: data + b"x")
    with pytest.raises(StoreError, match=r'Error reading .*"c/0"'):
        store.read().result()


@pytest.mark.parametrize("position", range(20))
def test_flipped_bit_under_checksum(position):
    """Any flipped bit of a chunk with a checksum, or of the checksum, is found."""
    store = array(CHAINS["crc32c"])
    damage(store, flip(position))
    with pytest.raises(StoreError, match=r'DATA_LOSS: Error reading "c/0": Digest mismatch'):
        store[0].read().result()


@pytest.mark.parametrize("name", ["shard", "shard, index at start"])
@pytest.mark.parametrize("position", range(0, 36, 5))
def test_flipped_bit_of_shard_index(name, position):
    """Any flipped bit of the index of a shard is found, when one entry is read as well as when all are."""
    store = array(CHAINS[name])
    damage(store, flip(position if "start" in name else -1 - position))
    for wanted in (store[0], store):
        with pytest.raises(StoreError, match=r'DATA_LOSS: .*"c/0".*Digest mismatch'):
            wanted.read().result()


@pytest.mark.parametrize("position", range(0, 140, 3))
def test_flipped_bit_of_nested_shards(position):
    """Any flipped bit of elements and indexes, outer or inner, is found where it is read and stays out of the result."""
    store = array(CHAINS["shard in shard"])
    assert len(store.kvstore["c/0"]) == 2 * (2 * 8 + 36) + 36
    damage(store, flip(position))
    with pytest.raises(StoreError, match=r'DATA_LOSS: .*"c/0".*Digest mismatch'):
        store.read().result()
    read = []
    for place in range(4):
        try:
            read.append(int(store[place].read().result()))
        except StoreError as error:
            read.append(None if '"c/0"' in str(error) else str(error))
    assert all(value in (None, place + 1) for place, value in enumerate(read))
    assert None in read


def shard_with(rows):
    """Return a shard of 16 bytes of data whose index has the given rows, without a checksum."""
    index = np.array(rows, np.uint64).astype("<u8").tobytes()
    return lambda _: VALUES[:4].tobytes() + index


UNCHECKED = {"chunk_shape": [2], "index_codecs": [LITTLE], "codecs": [LITTLE]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 8), (8, 100)], "is invalid for shard of size|is cut off"),
        ([(0, 8), (2**64 - 1, 5)], "Invalid shard index entry 1"),
        ([(0, 8), (2**64 - 8, 16)], "Invalid shard index entry 1"),
        ([(0, 8), (8, 7)], "Not enough data"),
        ([(0, 8), (8, 9)], "End of data expected"),
    ],
)
def test_bad_rows_of_shard_index(rows, message):
    """Rows that point outside the shard, overflow or have the wrong size are errors that name the entry's shard."""
    store = array([{"name": "sharding_indexed", "configuration": UNCHECKED}])
    damage(store, shard_with(rows))
    for wanted in (store[2], store[0:4]):
        with pytest.raises(StoreError, match=message) as found:
            wanted.read().result()
        assert '"c/0"' in str(found.value)


def test_equal_entries_are_read():
    """Entries that share all their bytes are allowed: equal sub-chunks may be stored once."""
    store = array([{"name": "sharding_indexed", "configuration": UNCHECKED}])
    damage(store, shard_with([(0, 8), (0, 8)]))
    assert store[0:4].read().result().tolist() == [1, 2, 1, 2]


@pytest.mark.parametrize("rows", [[(0, 8), (4, 8)], [(4, 8), (0, 8)], [(0, 16), (8, 8)]], ids=str)
def test_overlapping_entries(rows):
    """Entries that share some of their bytes are damage (deliberate: TensorStore reads both), also for writes."""
    store = array([{"name": "sharding_indexed", "configuration": UNCHECKED}])
    damage(store, shard_with(rows))
    with pytest.raises(StoreError, match=r'Error reading .*"c/0".*Shard index entries .* overlap'):
        store[0:4].read().result()
    with pytest.raises(StoreError, match=r'Error writing .*"c/0".*Shard index entries .* overlap'):
        store[0].write(5).result()


@pytest.mark.parametrize("codec", ["gzip", "zstd", "blosc"])
def test_wrong_decoded_size(codec):
    """A chunk that decodes to fewer or more bytes than its shape has is an error."""
    for count in (3, 5):
        other = array([LITTLE, codec])
        metadata = other.spec().to_json()["metadata"]
        metadata["chunk_grid"]["configuration"]["chunk_shape"] = [count]
        spec = {"driver": "zarr3", "kvstore": {"driver": "memory"}, "metadata": metadata}
        made = ts.open(spec, create=True).result()
        made.write(VALUES).result()
        store = array([LITTLE, codec])
        damage(store, lambda _, made=made: bytes(made.kvstore.read("c/0").result().value))
        with pytest.raises(StoreError, match='Error reading "c/0"'):
            store.read().result()


def test_zstd_without_content_size():
    """A zstd frame need not say how long its content is."""
    store = array(CHAINS["zstd"])
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(VALUES[4:].tobytes())
    damage(store, lambda _: packed)
    assert store[:4].read().result().tolist() == [5, 6, 7, 8]


PEAK = """
import re
def peak():  # in KB; `ru_maxrss` would include what the parent had when it forked
    return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
"""
BOMB = """
import sys, json
import numpy as np
import fsstore as ts
kind = sys.argv[1]
store = ts.open({"driver": "zarr3", "kvstore": {"driver": "memory"}, "metadata": {"shape": [1000], "data_type": "int32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1000]}},
    "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, kind]}}, create=True).result()
store.write(np.arange(1000, dtype="i4")).result()
store.read().result()
store.kvstore.write("c/0", open(sys.argv[2], "rb").read()).result()
"""
READ_BOMB = """
before = peak()
try:
    store.read().result()
    print("read")
except ValueError as error:
    print(json.dumps([str(error), peak() - before]))
"""


ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")


@ON_LINUX
@pytest.mark.parametrize("kind", ["zstd", "gzip"])
def test_bombs_do_not_explode(kind, tmp_path):
    """A small chunk that says it holds hundreds of megabytes is refused without making room for them."""
    if kind == "zstd":
        bomb = zstandard.ZstdCompressor().compress(bytes(1 << 30))
    else:
        bomb = gzip.compress(bytes(1 << 26))
    assert len(bomb) < 1 << 17
    path = tmp_path / "bomb"
    path.write_bytes(bomb)
    done = subprocess.run(
        [sys.executable, "-c", PEAK + BOMB + READ_BOMB, kind, str(path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    message, grown_kb = json.loads(done.stdout)
    assert 'Error reading "c/0"' in message
    assert grown_kb < 32 * 1024


TEXT_BOMB = """
import sys, json
import fsstore as ts
compressor, text = json.loads(sys.argv[1])
metadata = {"shape": [100], "chunks": [100], "dtype": "|O", "filters": [{"id": text}], "compressor": {"id": compressor}}
store = ts.open({"driver": "zarr", "kvstore": {"driver": "memory"}, "metadata": metadata}, create=True).result()
store.write("some text").result()
store.read().result()
store.kvstore.write("0", open(sys.argv[2], "rb").read()).result()
"""
ZEROS = bytes(72 << 20)
TEXT_BOMBS = {
    "zlib": lambda: zlib.compress(ZEROS),
    "gzip": lambda: gzip.compress(ZEROS[: 40 << 20]) * 2,
    "bz2": lambda: bz2.compress(ZEROS),
    "lzma": lambda: lzma.compress(ZEROS, preset=0),
    "zstd": lambda: zstandard.ZstdCompressor(write_content_size=False).compress(ZEROS),
}


@ON_LINUX
@pytest.mark.parametrize("text", ["vlen-utf8", "json2"])
@pytest.mark.parametrize("compressor", TEXT_BOMBS)
def test_bombs_of_text_take_no_more_than_the_limit(compressor, text, tmp_path):
    """A chunk of no fixed size is refused at the limit of its codec, with little more memory than that."""
    path = tmp_path / "bomb"
    path.write_bytes(TEXT_BOMBS[compressor]())
    limit = max(64 << 20, 256 * path.stat().st_size)
    command = [sys.executable, "-c", PEAK + TEXT_BOMB + READ_BOMB, json.dumps([compressor, text]), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    message, grown_kb = json.loads(done.stdout)
    assert f"larger than the limit of {limit} bytes" in message
    assert grown_kb * 1024 < limit + (24 << 20)


@pytest.mark.parametrize("name", CHAINS)
def test_missing_chunks_are_said_to_be_missing(name):
    """Without leave to fill, a missing chunk is an error that names it."""
    store = array(CHAINS[name], fill_missing_data_reads=False)
    store.kvstore.write("c/1", None).result()
    assert store[:4].read().result().tolist() == [1, 2, 3, 4]
    for wanted in (store, store[5]):
        with pytest.raises(StoreError, match=r"NOT_FOUND: chunk \{[1-5]\} stored at .*c/1.* is missing"):
            wanted.read().result()


def test_missing_part_of_a_shard():
    """A sub-chunk that equals the fill value is missing, and named by shard and entry."""
    store = array([SHARD], fill_missing_data_reads=False)
    store[2:4].write(0).result()
    assert store[0:2].read().result().tolist() == [1, 2]
    with pytest.raises(StoreError, match=r'NOT_FOUND: chunk \{1\} stored at shard entry \{1\}/\{2\} in "c/0"'):
        store[0:4].read().result()


def test_a_directory_at_a_chunk_key(tmp_path):
    """A directory where a chunk should be reads as missing and cannot be written."""
    spec = {"driver": "zarr3", "kvstore": f"file://{tmp_path}/a/"}
    store = ts.open(spec, create=True, dtype="int32", shape=[4]).result()
    (tmp_path / "a" / "c" / "0").mkdir(parents=True)
    assert store.read().result().tolist() == [0, 0, 0, 0]
    with pytest.raises(StoreError, match="directory"):
        store.write([1, 2, 3, 4]).result()


GOOD = {
    "zarr_format": 3,
    "node_type": "array",
    "shape": [4],
    "data_type": "int32",
    "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4]}},
    "chunk_key_encoding": {"name": "default"},
    "codecs": [LITTLE],
    "fill_value": 0,
}
GOOD2 = {
    "zarr_format": 2,
    "shape": [4],
    "chunks": [4],
    "dtype": "<i4",
    "compressor": None,
    "fill_value": 0,
    "order": "C",
    "filters": None,
}


def opened(driver, document):
    """Open an array whose metadata document is the given text."""
    context = ts.Context()
    kvstore = ts.KvStore.open({"driver": "memory"}, context=context).result()
    kvstore.write("zarr.json" if driver == "zarr3" else ".zarray", document).result()
    return ts.open({"driver": driver, "kvstore": {"driver": "memory"}}, context=context)


@pytest.mark.parametrize(("driver", "good"), [("zarr3", GOOD), ("zarr", GOOD2)])
def test_every_member_is_required(driver, good):
    """A document without one of its members is refused by its name; the whole one is read."""
    assert opened(driver, json.dumps(good)).result().shape == (4,)
    for name in good:
        rest = {other: value for other, value in good.items() if other != name}
        with pytest.raises(StoreError, match=f'Error opening "{driver}" driver: Error reading .*"{name}"'):
            opened(driver, json.dumps(rest)).result()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\xff", '{"shape": NaN}', "[" * 100_000, '"' + "a" * 10])
@pytest.mark.parametrize("driver", ["zarr3", "zarr"])
def test_text_that_is_no_document(driver, text):
    """Text that is not JSON, or no object, is refused with the key of the document."""
    with pytest.raises(StoreError, match=f'Error opening "{driver}" driver: Error reading '):
        opened(driver, text.encode("latin-1")).result()


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [2**62]},
        {"shape": [-1]},
        {"shape": [1.5]},
        {"shape": [True]},
        {"shape": "4"},
        {"shape": [4] * 33},
        {"shape": [4, 4]},
        {"fill_value": None},
        {"fill_value": 2**31},
        {"fill_value": "0"},
        {"data_type": "int33"},
        {"data_type": {"name": "numpy.datetime64", "configuration": {}}},
        {"data_type": "r9999999999"},
        {"codecs": []},
        {"codecs": ["bytes"]},
        {"codecs": [{"name": "bytes"}]},
        {"codecs": [{"name": "nothing"}]},
        {"codecs": [LITTLE, LITTLE]},
        {"codecs": [{"name": "transpose", "configuration": {"order": [1]}}, LITTLE]},
        {"codecs": [{**SHARD, "configuration": {"chunk_shape": [3]}}]},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0]}}},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2**62]}}},
        {"chunk_grid": {"name": "odd", "configuration": {}}},
        {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "-"}}},
        {"node_type": "group"},
        {"zarr_format": 2},
        {"storage_transformers": [{"name": "x"}]},
        {"extension": {}},
        {"dimension_names": ["a", "b"]},
        {"attributes": {"dimension_units": ["nm", "nm"]}},
        {"attributes": []},
    ],
    ids=lambda change: json.dumps(change)[:60],
)
def test_bad_members(change):
    """Members of zarr v3 metadata with bad values are refused at opening."""
    with pytest.raises(StoreError, match=r'Error opening "zarr3" driver: '):
        opened("zarr3", json.dumps({**GOOD, **change})).result()


def test_largest_arrays_can_be_opened():
    """An array of 2**62 - 2 elements can be opened and its ends read; nothing is made for the rest."""
    huge = 2**62 - 2
    grid = {"name": "regular", "configuration": {"chunk_shape": [1000]}}
    store = opened("zarr3", json.dumps({**GOOD, "shape": [huge], "chunk_grid": grid})).result()
    store[huge - 2].write(5).result()
    assert store[huge - 3 : huge].read().result().tolist() == [0, 5, 0]


CHECKED = [LITTLE, {"name": "crc32c"}]
SHARD_FULL = {
    "name": "sharding_indexed",
    "configuration": {"chunk_shape": [2], "codecs": [LITTLE], "index_codecs": CHECKED, "index_location": "end"},
}
RECTILINEAR = {"name": "rectilinear", "configuration": {"kind": "inline", "chunk_shapes": [[1, [1, 2], 1]]}}
STRUCT = {"name": "struct", "configuration": {"fields": [{"name": "a", "data_type": "int8"}]}}
DOCUMENTS = [
    ("zarr3", {**GOOD, "codecs": [{"name": "transpose", "configuration": {"order": [0]}}, SHARD_FULL]}),
    ("zarr3", {**GOOD, "chunk_grid": RECTILINEAR, "dimension_names": ["x"], "attributes": {"dimension_units": ["nm"]}}),
    ("zarr3", {**GOOD, "data_type": STRUCT, "fill_value": {"a": 1}, "codecs": [{"name": "bytes"}]}),
    ("zarr3", {**GOOD, "data_type": "complex64", "fill_value": ["NaN", "0x7fc00001"]}),
    ("zarr3", {**GOOD, "data_type": "string", "fill_value": "", "codecs": [{"name": "vlen-utf8"}]}),
    ("zarr", {**GOOD2, "compressor": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1}}),
    ("zarr", {**GOOD2, "dtype": [["a", "<i2", [2]], ["b", "<f4"]], "fill_value": "AAAAAAAAAAA="}),
    ("zarr", {**GOOD2, "dtype": "|O", "filters": [{"id": "vlen-utf8"}], "fill_value": ""}),
    ("zarr", {**GOOD2, "filters": [{"id": "delta", "dtype": "<i4"}]}),
]
ODDITIES = (*stack_fuzz.ODDITIES, 2**62 - 2)


def mutated(rng, value):
    """Return a JSON value with one part replaced, removed or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        name = rng.choice(sorted(value))
        rest = {other: part for other, part in value.items() if other != name}
        return rest if rng.random() < 0.1 else {**rest, name: mutated(rng, value[name])}
    if isinstance(value, list) and value and rng.random() < 0.8:
        at = rng.randrange(len(value))
        part = [] if rng.random() < 0.1 else [mutated(rng, value[at])] * rng.choice([1, 1, 1, 2])
        return [*value[:at], *part, *value[at + 1 :]]
    return rng.choice(ODDITIES)


def try_mutations(seeds):
    """Open and read arrays of mutated documents; nothing but errors of the library may come out."""
    for seed in seeds:
        rng = random.Random(seed)
        driver, document = rng.choice(DOCUMENTS)
        for _ in range(rng.randint(1, 3)):
            document = mutated(rng, document)
        try:
            store = opened(driver, json.dumps(document)).result()
            low = store[tuple(slice(0, min(2, size)) for size in store.domain.exclusive_max)]
            if max([1, *(store.chunk_layout.read_chunk.shape or [1])]) < 10**4:
                low.read().result()
                store.spec().to_json()
        except StoreError:
            pass
        except Exception as error:
            error.add_note(f"seed {seed}: {driver} {json.dumps(document)}")
            raise


def test_mutated_documents():
    """Whatever is in a document, opening it works or fails with an error of the library."""
    try_mutations(range(1500))


@pytest.mark.long
def test_many_mutated_documents():
    """The same, more often."""
    try_mutations(range(10_000, 60_000))
