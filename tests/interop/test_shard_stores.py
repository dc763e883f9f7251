"""Stores of many values to a file, and stacks of stores, against TensorStore 0.1.86: the same files and answers."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import pytest
import tensorstore

import fsstore

LIBRARIES: tuple[Any, ...] = (tensorstore, fsstore)


def _files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("seed", range(30))
def test_values_by_number_are_the_same_files(tmp_path: Path, seed: int) -> None:
    """Values by number, written in a transaction and alone, are the same files, and each reads the other's."""
    rng = random.Random(seed)
    metadata = {
        "@type": "neuroglancer_uint64_sharded_v1",
        "preshift_bits": rng.choice([0, 1, 3, 64]),
        "hash": rng.choice(["identity", "murmurhash3_x86_128"]),
        "minishard_bits": rng.randint(0, 4),
        "shard_bits": rng.randint(0, 5),
        "data_encoding": rng.choice(["raw", "gzip"]),
        "minishard_index_encoding": rng.choice(["raw", "gzip"]),
    }
    numbers = [rng.choice([rng.randrange(2**63), rng.randrange(40)]) for _ in range(rng.randint(2, 20))]
    values = {number.to_bytes(8, "big"): rng.randbytes(rng.randint(0, 30)) for number in numbers}
    first, last = next(iter(values)), list(values)[-1]
    for library, name in zip(LIBRARIES, "tf", strict=True):
        base = {"driver": "file", "path": f"{tmp_path}/{name}"}
        spec = {"driver": "neuroglancer_uint64_sharded", "base": base, "metadata": metadata}
        store = library.KvStore.open(spec).result()
        with library.Transaction() as transaction:
            inside = store.with_transaction(transaction)
            for key, value in values.items():
                inside[key] = value
        del store[first]
        store[last] = b"new"
    values.pop(first)
    values[last] = b"new"
    theirs, ours = _files(tmp_path / "t"), _files(tmp_path / "f")
    assert theirs.keys() == ours.keys()
    if "gzip" not in metadata.values():
        assert theirs == ours
    for library in LIBRARIES:
        for name in "tf":
            base = {"driver": "file", "path": f"{tmp_path}/{name}/"}
            spec = {"driver": "neuroglancer_uint64_sharded", "base": base, "metadata": metadata}
            store = library.KvStore.open(spec).result()
            assert {key: store[key] for key in store.list().result()} == values
            assert store.read(first).result().state == ("value" if first in values else "missing")


def _answers(library: Any, spec: Any, steps: list[tuple[Any, ...]]) -> list[Any]:
    """Return what a library says to steps on a store in memory, and what lies there in the end."""
    context = library.Context()
    store = library.KvStore.open(spec, context=context).result()
    out: list[Any] = [json.dumps(store.spec().to_json(), sort_keys=True)]
    for verb, *given in steps:
        try:
            if verb == "write":
                store[given[0]] = given[1]
            elif verb == "delete":
                del store[given[0]]
            elif verb == "read":
                answer = store.read(given[0]).result()
                out.append((answer.state, bytes(answer.value) if answer.state == "value" else None))
            elif verb == "list":
                out.append(store.list(library.KvStore.KeyRange(*given)).result())
            else:
                store.delete_range(library.KvStore.KeyRange(*given)).result()
        except ValueError as error:
            out.append(str(error).split(" [source")[0].split(": ")[-1])
    memory = library.KvStore.open("memory://", context=context).result()
    return [*out, {key: memory[key] for key in memory.list().result()}]


@pytest.mark.parametrize("seed", range(60))
def test_the_entries_of_a_shard_are_the_same_file(seed: int) -> None:
    """Steps on the sub-chunks of a shard of zarr v3 have the same answers and leave the same bytes."""
    rng = random.Random(seed)
    grid = [rng.randint(1, 3) for _ in range(rng.randint(0, 3))]
    codecs: list[Any] = [{"name": "bytes", "configuration": {"endian": rng.choice(["little", "big"])}}]
    if rng.random() < 0.3:
        order = rng.sample(range(len(grid) + 1), len(grid) + 1)
        codecs.insert(0, {"name": "transpose", "configuration": {"order": order}})
    codecs += [{"name": "crc32c"}] * rng.randint(0, 2)
    spec = {
        "driver": "zarr3_sharding_indexed",
        "base": "memory://x/s",
        "grid_shape": grid,
        "index_codecs": codecs,
        "index_location": rng.choice(["start", "end"]),
    }
    steps: list[tuple[Any, ...]] = []
    for _ in range(15):
        key = struct.pack(f">{len(grid)}I", *[rng.randrange(size + (rng.random() < 0.05)) for size in grid])
        steps.append(
            rng.choice(
                [("write", key, b"x" * rng.randint(0, 5)), ("write", key, b"y"), ("read", key)]
                + [("delete", key), ("list", b"", b""), ("list", key, b"")]
            )
        )
    steps += [("delete_range", b"\0\0\0\1", b"")] * (seed % 4 == 0)
    assert _answers(tensorstore, spec, steps) == _answers(fsstore, spec, steps)


def _layer(rng: random.Random, number: int) -> dict[str, Any]:
    word = "".join(rng.choices("abc", k=rng.randint(1, 3)))
    selector = rng.choice(["exact", "prefix"])
    strip = {"strip_prefix": rng.randint(0, 1)} if rng.random() < 0.3 else {}
    return {"base": f"memory://b{number}/", selector: word, **strip}


@pytest.mark.parametrize("seed", range(60))
def test_stacks_route_keys_alike(seed: int) -> None:
    """Later layers hide earlier ones in the same way, and an open stack prints the same layers."""
    rng = random.Random(seed)
    layers = [{"base": "memory://b0/"}, *(_layer(rng, number) for number in range(1, rng.randint(1, 5)))]
    steps: list[tuple[Any, ...]] = []
    for _ in range(12):
        key = "".join(rng.choices("abc", k=rng.randint(1, 3))).encode()
        steps.append(
            rng.choice([("write", key, b"1"), ("read", key), ("delete", key), ("list", b"", b""), ("list", key, b"")])
        )
    steps += [("list", b"", b"")] + [("delete_range", b"a", b"b")] * (seed % 4 == 0)
    spec = {"driver": "kvstack", "layers": layers}
    assert _answers(tensorstore, spec, steps) == _answers(fsstore, spec, steps)


def test_keys_of_no_layer_are_missing_and_refused() -> None:
    """A key outside of all layers reads as missing; writing it is an error that names it."""
    spec = {"driver": "kvstack", "layers": [{"base": "memory://a/", "prefix": "a/"}]}
    steps = [("write", b"a/k", b"v"), ("read", b"zz"), ("write", b"zz", b"v"), ("read", b"a/k")]
    assert _answers(tensorstore, spec, steps) == _answers(fsstore, spec, steps)


def test_a_look_up_in_a_known_shard_reads_only_the_value(tmp_path: Path) -> None:
    """After the first look-up in a minishard the next reads one range of the file; a changed file is noticed."""
    from fsstore.kvstore.contract.driver import KvPrefix, Read
    from fsstore.precomputed.shard_layout import Sharding
    from fsstore.precomputed.shards import Uint64ShardedDriver, key_of
    from fsstore.runtime import execution
    from fsstore.testing.doubles import Recording

    sharding = Sharding(0, "identity", 0, 0)
    recording = Recording(fsstore.KvStore.open(f"file://{tmp_path}/").result().prefix.driver)
    driver = Uint64ShardedDriver(KvPrefix(recording, f"{tmp_path}/"), sharding)
    other = Uint64ShardedDriver(KvPrefix(recording, f"{tmp_path}/"), sharding)
    from fsstore.kvstore.contract.driver import Write

    execution.drive(driver.write_many([Write(key_of(n), b"%d" % n) for n in range(1000)]))
    assert execution.drive(driver.read_many([Read(key_of(5))]))[0].value == b"5"
    before = len(recording.reads)
    assert execution.drive(driver.read_many([Read(key_of(6))]))[0].value == b"6"
    assert len(recording.reads) - before == 1
    execution.drive(other.write_many([Write(key_of(7), b"changed and longer")]))
    assert execution.drive(driver.read_many([Read(key_of(7))]))[0].value == b"changed and longer"
