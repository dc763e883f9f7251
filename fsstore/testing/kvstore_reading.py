"""Promises of a key-value store driver about reading and listing, as checks; see `kvstore_suite`."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar

from fsstore.errors import OutOfRangeError, StoreError, UnimplementedError
from fsstore.kvstore.contract.driver import NO_VALUE, UNKNOWN, Entry, KvPrefix, Read, ReadResult, Stamp, Write
from fsstore.kvstore.contract.request import KeyRange, key_bytes, key_text
from fsstore.runtime import execution

__all__ = [
    "READING",
    "Check",
    "Factory",
    "fails",
    "filled",
    "keys_of",
    "read",
    "refuses",
    "run",
    "scan",
    "value",
    "write",
]

# The verbs in which the checks of key-value store drivers are written: run, read, write, list, expect a
# failure.

T = TypeVar("T")
Factory: TypeAlias = Callable[[Mapping[str, bytes]], KvPrefix]
Check: TypeAlias = Callable[[Factory], None]


def filled(store: KvPrefix, contents: Mapping[str, bytes]) -> KvPrefix:
    """Return `store` after writing `contents` to it."""
    run(store, store.write_many([Write(key, value) for key, value in contents.items()]))
    return store


def run(store: KvPrefix, coroutine: Coroutine[Any, Any, T]) -> T:
    """Run to the end; where the driver says it never waits, a coroutine that suspends fails here."""
    return execution.call(coroutine, waits=store.driver.features.waits)


def read(store: KvPrefix, *reads: Read) -> list[ReadResult]:
    """Return the answers to a batch of reads."""
    return list(run(store, store.read_many(reads)))


def write(store: KvPrefix, *writes: Write) -> list[Stamp]:
    """Return the stamps of a batch of writes."""
    return run(store, store.write_many(writes))


def scan(store: KvPrefix, keys: KeyRange | None = None) -> list[Entry]:
    """Return everything a listing yields."""

    async def collect() -> list[Entry]:
        return [entry async for batch in store.scan(keys) for entry in batch]

    return run(store, collect())


def keys_of(store: KvPrefix, keys: KeyRange | None = None) -> set[str]:
    """Return the keys a listing yields."""
    return {entry.key for entry in scan(store, keys)}


def value(store: KvPrefix, key: str) -> bytes | None:
    """Return the value of a key, or None when it is missing."""
    result = read(store, Read(key))[0]
    return bytes(result.value) if result.state == "value" else None


def fails(kind: type[Exception], call: Callable[[], object]) -> Exception:
    """Return the error that `call` raises, which must be of that kind."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} expected, but nothing was raised")


def refuses(call: Callable[[], object]) -> None:
    """Insist that `call` is declared impossible."""
    fails(UnimplementedError, call)


_SAMPLE = {"a": b"0123456789", "b/c": b"", "b/d": bytes(range(256)) * 8, "e": b"e"}


def missing_key(make: Factory) -> None:
    """A missing key is `state="missing"`, never an exception."""
    store = make(_SAMPLE)
    for request in (Read("nothing"), Read("b/nothing", 3, 5), Read("x/y/z", -4), Read("q", if_not_equal=NO_VALUE)):
        result = read(store, request)[0]
        assert result.state == "missing", result
        assert (result.value, result.generation) == (b"", NO_VALUE), result


def order_of_batch(make: Factory) -> None:
    """One answer a request, in order; repeated, missing and ranged requests may mix."""
    store = make(_SAMPLE)
    reads = [Read("e"), Read("none"), Read("a", 2, 4), Read("b/d"), Read("e"), Read("a")]
    values = [bytes(result.value) for result in read(store, *reads)]
    assert values == [b"e", b"", b"23", _SAMPLE["b/d"], b"e", b"0123456789"], values
    assert read(store) == []


def single_read(make: Factory) -> None:
    """A driver that offers `read_now` answers one read with it as `read_many` does."""
    store = make(_SAMPLE)
    read_now = getattr(store.driver, "read_now", None)
    if read_now is None:
        return
    assert not store.driver.features.waits
    for key, start, stop in (("a", 0, None), ("a", 2, 5), ("a", -3, None), ("b/d", 1, 2000), ("none", 0, 4)):
        request = Read(key, start, stop)
        now, later = read_now(request._replace(key=store.path + key)), read(store, request)[0]
        assert (*now[:1], bytes(now[1]), now[2]) == (*later[:1], bytes(later[1]), later[2]), (request, now)
        same = read_now(Read(store.path + key, if_not_equal=now.generation))
        assert same == read(store, Read(key, if_not_equal=now.generation))[0]._replace(time=same.time), same
    fails(OutOfRangeError, lambda: read_now(Read(store.path + "a", 8, 99)))


def whole_values(make: Factory) -> None:
    """A driver that offers `read_whole` answers keys with it as `read_many` does."""
    store = make(_SAMPLE)
    read_whole = getattr(store.driver, "read_whole", None)
    if read_whole is None:
        return
    for keys in (["a"], ["b/d", "none", "a", "a", "b/c"], ["none"], []):
        found = list(run(store, read_whole([store.path + key for key in keys])))
        expected = read(store, *map(Read, keys))
        for key, now, later in zip(keys, found, expected, strict=True):
            assert (*now[:1], bytes(now[1]), now[2]) == (*later[:1], bytes(later[1]), later[2]), (key, now)


def empty_value(make: Factory) -> None:
    """A key with an empty value is not missing."""
    result = read(make(_SAMPLE), Read("b/c"))[0]
    assert (result.state, bytes(result.value)) == ("value", b""), result


def byte_ranges(make: Factory) -> None:
    """`[start, stop)`, an open end, a suffix, and empty ranges inside the value."""
    store = make(_SAMPLE)
    text = _SAMPLE["a"]
    cases = {(2, 5): text[2:5], (0, 10): text, (7, None): text[7:], (-3, None): text[-3:], (-10, None): text}
    cases |= {(4, 4): b"", (10, 10): b"", (10, None): b"", (0, 0): b""}
    for (start, stop), want in cases.items():
        result = read(store, Read("a", start, stop))[0]
        assert bytes(result.value) == want, (start, stop, result)
        assert result.state == "value"


def size_of_value(make: Factory) -> None:
    """An answer that says how large the whole value is says the truth, whatever part of it was asked for.

    With the feature `reads_parts` it says it.
    """
    store = make(_SAMPLE)
    unknown = () if store.driver.features.reads_parts else (None,)
    for key, data in _SAMPLE.items():
        parts = [(0, 0), (0, None)] + ([(0, 1), (len(data) - 1, len(data)), (-1, None)] if data else [])
        for start, stop in parts:
            size = read(store, Read(key, start, stop))[0].size
            assert size in (*unknown, len(data)), (key, start, stop, size)
    assert read(store, Read("nothing", 0, 0))[0].size is None


def range_outside(make: Factory) -> None:
    """A byte range that reaches outside the value raises `OutOfRangeError`."""
    store = make(_SAMPLE)
    for start, stop in ((8, 99), (11, 12), (11, None), (-11, None), (11, 11)):
        fails(OutOfRangeError, partial(read, store, Read("a", start, stop)))
    fails(OutOfRangeError, lambda: read(store, Read("e"), Read("a", 0, 1), Read("a", 0, 11)))


def many_ranges_of_one_key(make: Factory) -> None:
    """Ranges of one key in one batch: overlapping, adjacent, far apart, in any order."""
    data = bytes(i % 251 for i in range(300_000))
    store = make({"k": data, "l": b"l"})
    spans = [(200_000, 200_010), (0, 5), (5, 9), (3, 7), (100, 100), (299_999, 300_000), (0, 300_000), (9, 10)]
    results = read(store, *(Read("k", low, high) for low, high in spans), Read("l"), Read("k", -2))
    for (low, high), result in zip(spans, results, strict=False):
        assert bytes(result.value) == data[low:high], (low, high)
    assert bytes(results[-1].value) == data[-2:]
    assert len({result.generation for result in results[: len(spans)]}) == 1


def unchanged_value(make: Factory) -> None:
    """`if_not_equal` equal to the current generation answers `state="unspecified"` without the value."""
    store = make(_SAMPLE)
    generation = read(store, Read("a"))[0].generation
    if generation == UNKNOWN:  # a store without generations always sends the value
        assert read(store, Read("a", if_not_equal=b"\0x"))[0].state == "value"
        return
    for request in (Read("a", if_not_equal=generation), Read("a", 1, 3, generation)):
        result = read(store, request)[0]
        assert (result.state, result.value, result.generation) == ("unspecified", b"", generation), result
    both = read(store, Read("a", 0, 1, generation), Read("a", 0, 1))
    assert [result.state for result in both] == ["unspecified", "value"]
    assert bytes(read(store, Read("a", if_not_equal=b"\0other"))[0].value) == _SAMPLE["a"]


def large_values_and_batches(make: Factory) -> None:
    """Values of megabytes and batches of a hundred keys."""
    contents = {f"d/{number:03}": b"%d" % number for number in range(100)}
    contents["large"] = bytes(range(256)) * 10_000
    store = make(contents)
    results = read(store, *(Read(key) for key in contents))
    assert {key: bytes(result.value) for key, result in zip(contents, results, strict=True)} == contents
    assert len(read(store, Read("large", 1_000_000, 2_000_000))[0].value) == 1_000_000


def unusual_keys(make: Factory) -> None:
    """Keys are text: spaces, percent signs, and letters of any script are nothing special."""
    contents = {"a b": b"1", "100%25": b"2", "é/ü#?&": b"3", "日本/語": b"4", "it's": b"5", "...": b"6", "|": b"7"}
    store = make(contents)
    assert {key: value(store, key) for key in contents} == contents
    if store.driver.features.listable:
        assert {entry.key for entry in scan(store)} == set(contents)


def keys_of_bytes(make: Factory) -> None:
    """Bytes that are not UTF-8 travel as surrogate escapes."""
    key = key_text(b"x/\xff\x80y")
    store = make({key: b"v"})
    assert value(store, key) == b"v"
    if store.driver.features.listable:
        assert [entry.key for entry in scan(store)] == [key]


def errors_name_the_key(make: Factory) -> None:
    """A failure names the key; `describe_key` holds its last part."""
    store = make(_SAMPLE)
    assert "c" in store.describe("b/c")
    error = fails(StoreError, lambda: read(store, Read("a", 5, 500)))
    assert store.describe("a") in str(error), str(error)


def spec_is_json(make: Factory) -> None:
    """`spec` is JSON."""
    json.dumps(dict(make({}).driver.spec()))


def listing(make: Factory) -> None:
    """`scan` yields each key of the range once, and sizes only if they are right."""
    store = make(_SAMPLE)
    if not store.driver.features.listable:
        refuses(lambda: scan(store))
        return
    ranges = (
        KeyRange(),
        KeyRange("b/", "b0"),
        KeyRange.prefix("b/d"),
        KeyRange("a\0", "e"),
        KeyRange("e"),
        KeyRange("", "b"),
        KeyRange("f"),
        KeyRange("z", "a"),
        KeyRange("b/c", "b/c"),
    )
    for keys in ranges:
        found = scan(store, keys)
        names = [entry.key for entry in found]
        assert sorted(names) == [key for key in sorted(_SAMPLE) if keys.contains(key)], (keys, names)
        assert all(entry.size in (None, len(_SAMPLE[entry.key])) for entry in found), found


def sorted_listing(make: Factory) -> None:
    """With `sorted_scan` the keys come sorted as bytes."""
    keys = ["b", "a/b", "a", "é", "a.b", key_text(b"\xff"), "\U00010000", "B", "a/"]
    if not make({}).driver.features.sorted_scan:
        return
    names = [entry.key for entry in scan(make(dict.fromkeys(keys, b"v")))]
    assert names == sorted(keys, key=key_bytes), names


def read_only(make: Factory) -> None:
    """A driver that cannot write refuses, and what is stored stays."""
    store = make(_SAMPLE)
    if store.driver.features.writable:
        return
    for request in (Write("a", b"new"), Write("a", None), Write("n", b"", NO_VALUE)):
        refuses(partial(write, store, request))
    refuses(lambda: run(store, store.delete_range(KeyRange())))
    assert value(store, "a") == _SAMPLE["a"]


READING: Mapping[str, Check] = {
    check.__name__: check
    for check in (
        missing_key,
        order_of_batch,
        single_read,
        whole_values,
        empty_value,
        byte_ranges,
        size_of_value,
        range_outside,
        many_ranges_of_one_key,
        unchanged_value,
        large_values_and_batches,
        unusual_keys,
        keys_of_bytes,
        errors_name_the_key,
        spec_is_json,
        listing,
        sorted_listing,
        read_only,
    )
}
"""The checks that need no writing."""
