"""Archives that are unusual, damaged or hostile: read right where possible, refused with an error otherwise."""

import bz2
import itertools
import lzma
import random
import tracemalloc
import zlib

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from fsstore.errors import DataLossError, OutOfRangeError, ResourceExhaustedError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import KvPrefix, Read, Write
from fsstore.kvstore.memory import MemoryDriver
from fsstore.kvstore.root.live import from_live
from fsstore.kvstore.zip_driver import ZipDriver
from fsstore.runtime import execution
from fsstore.testing.doubles import Recording
from fsstore.testing.kvstore_suite import filled

VALUE = bytes(range(256)) * 40


def opened(data, driver=None):
    """Return the store in an archive."""
    base = KvPrefix(driver or MemoryDriver(), "z.zip")
    call(base.write("", data))
    return KvPrefix(ZipDriver(base))


def call(coroutine):
    """Run a coroutine that never waits."""
    return execution.call(coroutine, waits=False)


def names(store):
    """Return the names of all members."""

    async def collect():
        return [entry.key async for batch in store.scan() for entry in batch]

    return call(collect())


def value(store, key="m", start=0, stop=None):
    """Return bytes of a member."""
    result = call(store.read(key, start, stop))
    assert result.state == "value", result
    return bytes(result.value)


def packed_lzma(data):
    """Return data as ZIP method 14 holds them."""
    raw = lzma.compress(data, lzma.FORMAT_ALONE)
    return b"\x09\x04\x05\x00" + raw[:5] + raw[13:]


METHODS = {
    0: lambda data: data,
    8: lambda data: zlib.compress(data, wbits=-15),
    12: bz2.compress,
    14: packed_lzma,
    20: zstandard.ZstdCompressor().compress,
    93: zstandard.ZstdCompressor().compress,
    95: lzma.compress,
}


@pytest.mark.parametrize("method", METHODS)
def test_methods(method, zip_builder):
    """Every compression method gives whole values and ranges."""
    options = {"method": method, "packed": METHODS[method](VALUE)}
    store = opened(
        zip_builder([("m", VALUE, options), ("empty", b"", {"method": method, "packed": METHODS[method](b"")})])
    )
    assert value(store) == VALUE
    assert value(store, "m", 300, 310) == VALUE[300:310]
    assert value(store, "m", -5) == VALUE[-5:]
    assert value(store, "empty") == b""
    with pytest.raises(OutOfRangeError):
        value(store, "m", 0, len(VALUE) + 1)


@pytest.mark.parametrize("method", [12, 93, 95])
def test_several_streams(method, zip_builder):
    """Compressed streams may follow each other within one member."""
    half = len(VALUE) // 2
    packed = METHODS[method](VALUE[:half]) + METHODS[method](VALUE[half:])
    assert value(opened(zip_builder([("m", VALUE, {"method": method, "packed": packed})]))) == VALUE


ARCHIVES = {
    "prefix": {"prefix": b"#!/bin/sh\n" + bytes(100)},
    "prefix-counted": {"prefix": b"#!" * 50, "shift": False},
    "long-prefix": {"prefix": b"x" * 200_000},
    "comment": {"comment": b"c" * 65535},
    "comment-with-signature": {"comment": b"PK\5\6" + bytes(30)},
    "zip64": {"zip64": True},
    "zip64-prefix-comment": {"zip64": True, "prefix": b"p" * 77, "comment": b"note"},
}


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("shape", ARCHIVES)
def test_archive_shapes(shape, large, zip_builder):
    """Prefixes, comments and ZIP64 records, with the archive inside the last bytes read and larger than them."""
    members = [("m", VALUE, {"method": 8}), ("s", VALUE, {}), *([("big", bytes(200_000), {})] if large else [])]
    members += [(f"k{n}", b"%d" % n, {}) for n in range(1500)] if large else []
    store = opened(zip_builder(members, **ARCHIVES[shape]))
    assert value(store) == value(store, "s") == VALUE
    if large:
        assert value(store, "k1499") == b"1499"
        assert value(store, "big", 100_000, 100_010) == bytes(10)


MEMBERS = {
    "streamed": {"streamed": True},
    "streamed-unsigned": {"streamed": True, "signed": False},
    "wide": {"wide": True},
    "extras": {"local_extra": b"\x99\x99\x04\0abcd" * 20, "central_extra": b"\x98\x98\2\0ab"},
    "long-local-extra": {"local_extra": b"\x99\x99\xf0\xff" + bytes(65520)},
    "odd-central-extra": {"central_extra": b"abc"},
}


@pytest.mark.parametrize("method", [0, 8])
@pytest.mark.parametrize("shape", MEMBERS)
def test_member_shapes(shape, method, zip_builder):
    """Streamed members, ZIP64 fields, and extra fields of any length on either side."""
    big = VALUE * 20
    members = [(f"{n}", big if n % 2 else VALUE, {"method": method, **MEMBERS[shape]}) for n in range(6)]
    store = opened(zip_builder(members))
    reads = [Read(f"{n}") for n in range(6)] + [Read("1", 100_000, 100_300), Read("0", 5, 9), Read("3", -9)]
    results = [bytes(result.value) for result in call(store.read_many(reads))]
    assert results[:6] == [VALUE, big] * 3
    assert results[6:] == [big[100_000:100_300], VALUE[5:9], big[-9:]]


def test_the_last_of_duplicates_counts(zip_builder):
    """Writers that can only append replace a member by adding it again."""
    store = opened(zip_builder([("m", b"old", {}), ("n", b"n", {}), ("m", b"new", {"method": 8})]))
    assert value(store) == b"new"
    assert names(store) == ["m", "n"]


def test_names_that_are_no_keys_are_hidden(zip_builder):
    """Directories, absolute names and names that climb are neither listed nor found."""
    hidden = ["d/", "/abs", "../up", "a/../b", "a\\..\\b", ".."]
    store = opened(zip_builder([*((name, b"x", {}) for name in hidden), ("a..b", b"", {}), ("a\\b", b"", {})]))
    assert names(store) == ["a..b", "a\\b"]
    assert all(call(store.read(name)).state == "missing" for name in hidden)


@pytest.mark.parametrize(
    "options", [{"flags": 1}, {"flags": 1 << 6}, {"flags": 1 << 13}, {"method": 9}, {"method": 99}]
)
def test_members_nobody_can_read_are_errors_not_missing(options, zip_builder):
    """Encrypted members and unknown methods exist: reading them is an error, never a missing key."""
    store = opened(zip_builder([("m", b"x", options), ("n", b"y", {})]))
    assert names(store) == ["m", "n"]
    with pytest.raises(UnimplementedError, match='"m" in "z.zip"'):
        value(store)
    assert value(store, "n") == b"y"


def test_checksums_are_verified(zip_builder):
    """A whole member with a wrong CRC is data loss, whatever its method."""
    for method in (0, 8):
        store = opened(zip_builder([("m", VALUE, {"method": method, "crc": 1})]))
        with pytest.raises(DataLossError, match="CRC"):
            value(store)


@pytest.mark.parametrize("padding", [0, 200_000])
@pytest.mark.parametrize("stop", [None, 5])
@pytest.mark.parametrize("method", [0, 8])
def test_a_member_called_otherwise_by_its_own_header_is_refused(method, stop, padding, zip_builder):
    """A damaged name in the directory gives an error, near the end of the file and far from it, never another value."""
    members = [("x/2", VALUE * 60, {"method": method}), ("x/3", VALUE, {}), ("z", bytes(padding), {})]
    data = zip_builder(members)
    at = data.index(b"x/2", data.index(b"PK\1\2"))
    with pytest.raises(DataLossError, match='calls a member "x/7", but its own header "x/2"'):
        value(opened(data[:at] + b"x/7" + data[at + 3 :]), "x/7", stop=stop)


def test_a_key_lost_to_a_damaged_name_is_not_missing(zip_builder):
    """In an archive whose end was read with its directory, all names are compared: a chunk is not taken for absent."""
    data = zip_builder([("x/3", VALUE, {})])
    at = data.index(b"x/3", data.index(b"PK\1\2"))
    with pytest.raises(DataLossError, match="get an intact copy"):
        call(opened(data[:at] + b"x//" + data[at + 3 :]).read("x/3"))


def test_members_that_share_bytes_are_refused(zip_builder):
    """Thousands of members in the same bytes unfold to nothing; a member beside them is read."""
    data = zip_builder([("a", VALUE, {"method": 8}), ("b", VALUE, {"method": 8}), ("c", VALUE * 10, {})])
    store = opened(_with_offset(data, 0))
    for key in "ab":
        with pytest.raises(DataLossError, match="overlaps"):
            value(store, key)
    assert value(store, "c") == VALUE * 10


BOMBS = {
    "zstd-undeclared": (93, zstandard.ZstdCompressor().compress(bytes(1 << 26)), 1000),
    "deflate-undeclared": (8, zlib.compress(bytes(1 << 26), wbits=-15), 1000),
    "xz-undeclared": (95, lzma.compress(bytes(1 << 24)), 1000),
    "bzip2-undeclared": (12, bz2.compress(bytes(1 << 24)), 1000),
    "declared": (93, zstandard.ZstdCompressor().compress(bytes(1 << 20)), 1 << 40),
    "ratio": (93, zstandard.ZstdCompressor().compress(bytes(1 << 26)), 1 << 31),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_bombs_are_refused_before_they_unfold(bomb, zip_builder):
    """A member that holds more than it declares, or declares more than it can hold, costs little memory."""
    method, packed, size = BOMBS[bomb]
    extra = {"wide": True} if size > 2**32 else {}
    store = opened(zip_builder([("m", b"", {"method": method, "packed": packed, "size": size, **extra})]))
    tracemalloc.start()
    with pytest.raises((DataLossError, ResourceExhaustedError)):
        value(store)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 12 << 20


def test_a_block_of_zeros_is_no_bomb(zip_builder):
    """An honest member that compresses extremely well is read."""
    data = bytes(8 << 20)
    assert value(opened(zip_builder([("m", data, {"method": 93, "packed": METHODS[93](data)})]))) == data


@pytest.mark.parametrize(
    "data", [b"", b"x", b"PK\5\6", b"PK\5\6" + bytes(17), b"PK\5\6" + b"\xff" * 18, bytes(70_000), b"PK\3\4" * 30_000]
)
def test_what_is_no_archive_is_data_loss(data):
    """Not an archive: an error that names the file, from reads and listings."""
    with pytest.raises(StoreError, match="z.zip"):
        value(opened(data))
    with pytest.raises(StoreError, match="z.zip"):
        names(opened(data))


def test_truncated_archives(zip_builder):
    """Cut anywhere, an archive is an error; cut in front, it is too."""
    data = zip_builder([("m", VALUE, {}), ("n", VALUE, {"method": 8})])
    for cut in range(0, len(data), 997):
        with pytest.raises(StoreError):
            value(opened(data[:cut]))
    for cut in (1, 30, 5000):
        with pytest.raises(StoreError):
            value(opened(data[cut:]))
    with pytest.raises(StoreError):
        value(opened(data + b"x"))


FUZZED = st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 255)), min_size=1, max_size=6)


@given(FUZZED, st.booleans())
def test_flipped_bytes_never_crash(zip_builder, flips, wide):
    """Damage gives the right bytes or an error of ours, quickly."""
    members = [("m", VALUE[:300], {"method": 8, "wide": wide}), ("n", VALUE[:50], {}), ("é", b"", {"streamed": True})]
    data = bytearray(zip_builder(members, comment=b"note", zip64=wide))
    for place, byte in flips:
        data[place % len(data)] = byte
    store = opened(bytes(data))
    for key, right in (("m", VALUE[:300]), ("n", VALUE[:50])):
        try:
            result = call(store.read(key))
        except StoreError:
            continue
        assert result.state == "missing" or bytes(result.value) == right


def test_a_replaced_archive_is_noticed(zip_builder):
    """Reads after a replacement see the new archive, and all of a batch the same one."""
    driver = MemoryDriver()
    store = opened(zip_builder([("m", b"one", {}), ("x", b"x", {})]), driver)
    assert value(store) == b"one"
    call(KvPrefix(driver, "z.zip").write("", zip_builder([("pad", VALUE, {}), ("m", b"two", {}), ("y", b"y", {})])))
    results = call(store.read_many([Read("m"), Read("x"), Read("y")]))
    assert [(result.state, bytes(result.value)) for result in results] == [
        ("value", b"two"), ("missing", b""), ("value", b"y"),
    ]  # fmt: skip
    call(KvPrefix(driver, "z.zip").write("", None))
    assert call(store.read("m")).state == "missing"
    assert names(store) == []


def test_writing_without_conditions_is_refused(zip_builder):
    """An archive in a store that cannot guard its replacement is read-only."""
    from zarr.storage import MemoryStore

    store = KvPrefix(ZipDriver(filled(from_live(MemoryStore()), {"z": zip_builder([("m", b"one", {})])}).join("z")))
    assert not store.driver.features.writable
    with pytest.raises(UnimplementedError, match="does not support writing.*conditions"):
        execution.call(store.write_many([Write("m", b"two")]), waits=True)


@pytest.mark.parametrize("name", ["", "/a", "a/", "a/../b", "..", "a\\..\\b", "x" * 70_000])
def test_names_that_no_archive_can_hold(name, zip_builder):
    """Keys that readers of the archive would not find are refused, and nothing is written."""
    store = opened(zip_builder([("m", b"one", {})]))
    with pytest.raises(StoreError, match="cannot hold a member"):
        call(store.write_many([Write("ok", b"1"), Write(name, b"two")]))
    assert names(store) == ["m"]


def _with_offset(data, offset):
    """Return an archive of which the last member but one is said to be elsewhere."""
    at = data.rindex(b"PK\1\2", 0, data.rindex(b"PK\1\2")) + 42
    return data[:at] + offset.to_bytes(4, "little") + data[at + 4 :]


@pytest.mark.parametrize("offset", [1, 40, 2**31, 2**32 - 2])
def test_members_that_overlap_are_not_rewritten(offset, zip_builder):
    """An archive whose directory points into other members or outside is not made anew out of them."""
    data = _with_offset(zip_builder([("a", b"one" * 9, {}), ("b", b"two" * 9, {})]), offset)
    store = opened(data)
    with pytest.raises(StoreError):
        call(store.write_many([Write("c", b"3")]))
    assert bytes(call(store.driver.base.read()).value) == data


def test_requests_are_few(zip_builder):
    """Opening costs two reads; a batch costs one batch of ranges; a stored range costs exactly its bytes."""
    members = [(f"c/{n}", VALUE, {"method": 8 * (n % 2)}) for n in range(50)] + [("big", VALUE * 100, {})]
    recording = Recording(MemoryDriver())
    store = opened(zip_builder(members), recording)
    batches = []
    inner = recording.read_many

    async def watched(reads):
        batches.append(list(reads))
        return await inner(reads)

    recording.read_many = watched
    call(store.read("c/0"))
    assert len(batches) == 3
    batches.clear()
    assert [bytes(r.value) for r in call(store.read_many([Read(f"c/{n}") for n in range(50)]))] == [VALUE] * 50
    assert [len(batch) for batch in batches] == [50]
    batches.clear()
    assert value(store, "big", 500_000, 500_100) == (VALUE * 100)[500_000:500_100]
    assert [read.stop - read.start for batch in batches for read in batch] == [33, 100]  # the header with its name
    batches.clear()
    assert value(store, "big", 7, 9) == VALUE[7:9]
    assert [read.stop - read.start for batch in batches for read in batch] == [2]


def test_archives_nest(zip_builder):
    """An archive in an archive is one more adapter."""
    inner = zip_builder([("q/m", VALUE, {"method": 8})])
    outer = opened(zip_builder([("pad", b"p", {}), ("in.zip", inner, {})]))
    assert value(KvPrefix(ZipDriver(outer.join("in.zip"))), "q/m", 1, 4) == VALUE[1:4]


def test_counting_members_is_fast(zip_builder):
    """A directory of many members is a table: sixty thousand open in well under a second."""
    import time

    data = zip_builder([(f"c/{n // 100}/{n % 100}", b"", {}) for n in range(60_000)])
    begun = time.process_time()
    store = opened(data)
    assert call(store.read("c/599/99")).state == "value"
    assert time.process_time() - begun < 1.5
    assert len(list(itertools.islice(names(store), 5))) == 5


def _changed(draw, data):
    """Return an archive with some bytes changed, mostly in its directory."""
    out = bytearray(data)
    directory = data.index(b"PK\1\2")
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = draw.randrange(directory, len(out)) if draw.random() < 0.8 else draw.randrange(len(out))
        out[at] = draw.choice((0, 1, 0xFF, draw.randrange(256)))
    return bytes(out)


def _contents(store):
    """Return what can be read of an archive, and the names of what cannot."""
    found, lost = {}, set()
    for name in names(store):
        try:
            found[name] = value(store, name)
        except StoreError:
            lost.add(name)
    return found, lost


def _rewritten(count, seed, zip_builder):
    """Add a member to damaged archives: it is refused and nothing changes, or all that could be read stays."""
    draw, outcomes = random.Random(seed), set()
    whole = zip_builder([("a", VALUE, {}), ("b/c", VALUE * 2, {"method": 8}), ("d", b"", {}), ("e", b"e" * 70_000, {})])
    for _ in range(count):
        data = _changed(draw, whole)
        store = opened(data)
        try:
            found, _ = _contents(store)
            call(store.write_many([Write("new", b"value")]))
        except StoreError:
            assert bytes(call(store.driver.base.read()).value) == data
            outcomes.add("refused")
            continue
        after, _ = _contents(KvPrefix(ZipDriver(store.driver.base)))
        assert after.pop("new") == b"value"
        assert {name: after.get(name) for name in found if name != "new"} == {
            name: one for name, one in found.items() if name != "new"
        }, data.hex()
        outcomes.add("written")
    return outcomes


def test_some_damaged_archives_are_rewritten(zip_builder):
    """What could be read of a damaged archive before a write can be read after it."""
    assert _rewritten(150, 1, zip_builder) == {"refused", "written"}


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_many_damaged_archives_are_rewritten(zip_builder):
    """The same at length."""
    assert _rewritten(200_000, 2, zip_builder) == {"refused", "written"}
