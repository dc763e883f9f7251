"""Compressed files as stores: the contract, what is refused, what is kept, and what is asked of the base."""

import bz2
import gzip
import lzma
import os
import random

import pytest
import zstandard

import fsstore as ts
from fsstore.errors import DataLossError, ResourceExhaustedError
from fsstore.kvstore.compressed import CompressedDriver
from fsstore.kvstore.contract.driver import KvPrefix, Read, Write
from fsstore.kvstore.memory import MemoryDriver
from fsstore.kvstore.root.live import from_live
from fsstore.runtime import execution
from fsstore.runtime.cache import CachePool
from fsstore.testing.doubles import Recording, Slow
from fsstore.testing.kvstore_suite import CHECKS, filled
from fsstore.values import registry
from fsstore.values.detection import MAGIC, beginning, expand, method_of

PACK = {"gzip": gzip.compress, "zstd": zstandard.compress, "bz2": bz2.compress, "xz": lzma.compress}
METHODS = pytest.mark.parametrize("method", PACK)
BASES = {"memory": MemoryDriver, "slow": lambda: Slow(MemoryDriver()), "no-generations": lambda: None}


@pytest.mark.parametrize("check", CHECKS.values(), ids=CHECKS)
@METHODS
@pytest.mark.parametrize("base", BASES)
def test_the_contract(check, method, base):
    """Compressed values keep the contract of a read-only store, over stores of all manners."""

    def make(contents):
        if base == "no-generations":
            from zarr.storage import MemoryStore

            below = from_live(MemoryStore())
        else:
            below = KvPrefix(BASES[base]())
        packed = {key: PACK[method](value) for key, value in contents.items()}
        return KvPrefix(CompressedDriver(method, filled(below, packed)))

    check(make)


@METHODS
@pytest.mark.parametrize("value", [b"", b"a", b"abc" * 100_000, bytes(3_000_000)], ids=["0", "1", "300k", "3M"])
def test_values_of_one_and_of_many_members(method, value):
    """A file is what its members decompress to, one after the other."""
    packed = PACK[method](value)
    assert method_of(packed) == method
    assert expand(method, packed, 10**7) == value
    assert expand(method, packed + PACK[method](b"x") + packed, 10**7) == value + b"x" + value


@METHODS
def test_values_of_random_bytes(method):
    """What cannot be compressed is stored in blocks, of which there may be many."""
    value = random.Random(3).randbytes(2_000_000)
    packed = PACK[method](value)
    assert expand(method, packed, len(value)) == value
    if method != "bz2":  # whose blocks are larger than what is looked at
        assert beginning(method, packed[: (1 << 18) + (1 << 17)], 1 << 18) == value[: 1 << 18]


def test_frames_without_a_size_and_frames_to_skip():
    """Streamed zstd frames state no size; frames of other contents are left out."""
    value = bytes(range(256)) * 5000
    stream = zstandard.ZstdCompressor(write_content_size=False, write_checksum=True).compressobj()
    packed = stream.compress(value) + stream.flush()
    other = bytes.fromhex("532a4d18 05000000") + b"hello"
    assert expand("zstd", packed + other + packed, 10**7) == value + value
    with pytest.raises(DataLossError, match="cut off"):
        expand("zstd", packed + other[:-1], 10**7)


@METHODS
def test_what_is_cut_off_or_continued_is_refused(method):
    """A file that ends early, or goes on with something else, is an error and never a shorter value."""
    packed = PACK[method](b"some text " * 1000)
    wrong = [packed[:-1], packed[:-5], packed[: len(packed) // 2], packed[:4], b"", packed + b"x", packed + packed[:5]]
    wrong += [packed + b"\0\0x", b"\0" + packed, b"plain"]
    if method in ("zstd", "bz2"):
        wrong.append(packed + b"\0" * 512)
    else:  # whose tools pad files with zeros
        assert expand(method, packed + b"\0" * 512, 10**7) == b"some text " * 1000
    for data in wrong:
        with pytest.raises(DataLossError, match=method):
            expand(method, data, 10**7)


@METHODS
def test_flipped_bits_never_hang_or_crash(method):
    """A damaged file is an error, or what its format cannot tell from an undamaged one."""
    randomly = random.Random(5)
    packed = PACK[method](randomly.randbytes(300) + b"abc" * 300)
    for at in range(len(packed)):
        data = bytearray(packed)
        data[at] ^= 1 << randomly.randrange(8)
        try:
            assert len(expand(method, data, 10**5)) <= 10**5
        except (DataLossError, ResourceExhaustedError):
            continue


@METHODS
def test_bombs_are_refused_while_they_inflate(method):
    """The limit holds to the byte, whatever the file says of its size."""
    packed = PACK[method](bytes(5_000_000))
    assert len(expand(method, packed, 5_000_000)) == 5_000_000
    with pytest.raises(ResourceExhaustedError, match="limit of 4999999 bytes"):
        expand(method, packed, 4_999_999)


def _url(tmp_path, method, value):
    (tmp_path / "x").write_bytes(PACK[method](value))
    return f"file://{tmp_path}/x|{method}:"


@METHODS
def test_the_url_and_the_json_name_the_same_store(tmp_path, method):
    """`base|gzip:` is a value; JSON has the limit too, which no URL can say."""
    url = _url(tmp_path, method, b"0123456789" * 100)
    store = ts.KvStore.open(url).result()
    assert store[""] == b"0123456789" * 100
    assert store.url == url
    assert ts.KvStore.open(store.spec()).result().read("", byte_range=slice(3, 5)).result().value == b"34"
    directory = ts.KvStore.open(f"file://{tmp_path}/|{method}:x").result()
    assert directory[""] == store[""]
    json = {"driver": method, "base": f"file://{tmp_path}/x", "size_limit": 999}
    small = ts.KvStore.open(json).result()
    assert small.spec().to_json()["size_limit"] == 999
    with pytest.raises(ResourceExhaustedError, match="limit of 999 bytes"):
        small.read("").result()
    with pytest.raises(NotImplementedError, match="size_limit"):
        small.url  # noqa: B018  # the property raises
    with pytest.raises(ValueError, match="size_limit"):
        ts.KvStore.Spec({**json, "size_limit": -1})
    for refused in (f"{method}://x", f"file://{tmp_path}/x|{method}:?a"):
        with pytest.raises(ValueError):
            ts.KvStore.Spec(refused)


def test_errors_say_where(tmp_path):
    """The file and what was done to it stand in the message."""
    (tmp_path / "x").write_bytes(b"plain text")
    with pytest.raises(DataLossError, match=r'Error reading local file ".*x" decompressed by gzip: Data are not'):
        ts.KvStore.open(f"file://{tmp_path}/x|gzip:").result()[""]


def _recorded(value, **options):
    recording = Recording(MemoryDriver())
    execution.drive(recording.write_many([Write("k", gzip.compress(value))]))
    return recording, CompressedDriver("gzip", KvPrefix(recording), **options)


def _read(driver, *reads):
    return [bytes(answer.value) for answer in execution.call(driver.read_many(reads))]


@pytest.mark.parametrize("pool", [None, CachePool(), CachePool(10**7)], ids=["none", "empty", "large"])
def test_a_value_is_decompressed_once(pool):
    """Ranges of a value cost one reading of it, and a question whether it is current each later time."""
    value = random.Random(1).randbytes(600_000)
    recording, driver = _recorded(value, pool=pool)
    assert _read(driver, Read("k", 500_000, 500_010), Read("k", -3)) == [value[500_000:500_010], value[-3:]]
    assert len(recording.reads) == 1
    first = recording.bytes_read
    assert _read(driver, Read("k", 10, 20), Read("k")) == [value[10:20], value]
    assert (len(recording.reads), recording.bytes_read) == (2, first)
    execution.drive(recording.write_many([Write("k", gzip.compress(b"new"))]))
    assert _read(driver, Read("k"), Read("k", 0, 1)) == [b"new", b"n"]


def test_a_value_larger_than_the_cache_is_served():
    """A value that is not kept is decompressed again, and is right."""
    value = os.urandom(5000)
    _, driver = _recorded(value, pool=CachePool(100))
    for _ in range(2):
        assert _read(driver, Read("k", 4000, 4010)) == [value[4000:4010]]


def test_the_beginning_costs_the_beginning():
    """The first bytes of a large value cost a bounded part of the base, and whether it exists costs none."""
    value = random.Random(2).randbytes(3_000_000)
    recording, driver = _recorded(value)
    assert _read(driver, Read("k", 0, 32)) == [value[:32]]
    assert recording.bytes_read < 2**18
    recording.reset()
    assert execution.call(driver.read_many([Read("k", 0, 0), Read("none", 0, 0)]))[1].state == "missing"
    assert recording.bytes_read == 0


def test_every_method_is_registered():
    """The names of the stores are those of the methods."""
    assert set(PACK) == set(MAGIC)
    assert all(name in registry.kvstores.names() for name in MAGIC)
