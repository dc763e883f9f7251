"""Damage one stored value of an array, in whatever it is contained, and use the array.  Run by test_stack_fuzz.

    stack_fuzz.py FIRST COUNT

Arrays of every format lie bare, in archives, in reference sets of both formats and in compressed files.  An execution
changes bytes of one value (documents, chunks, shards, directories, tables), or a member of a JSON document, then opens
the array by its URL and by detection, reads all of it and parts, changes a part, and lists what is there.  Only errors
of fsstore may come of it; a chunk under a checksum gives the right values or an error, never others; no execution may
take long or much memory.  Prints what was done as JSON.
"""

from __future__ import annotations

import io
import json
import random
import resource
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import fsstore as ts
from fsstore import references
from fsstore.errors import StoreError

LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
CHECKED = [LITTLE, {"name": "crc32c"}]
ZSTD = {"name": "zstd", "configuration": {"level": 1, "checksum": True}}
SHAPE, CHUNK = (10, 12), (4, 6)
VALUES = (np.arange(120).reshape(SHAPE) * 7 + 3).astype("<i4")
SLOW_S = 8.0
HEADROOM = 1 << 30
NUMBERS = (0, 1, 2, 127, 128, 255, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
ODDITIES = (None, True, -1, 0, 2**63, 1e300, 1.5, "", "x", "\udc80", [], {}, [None], [[1]], {"name": "x"}, [1, 2**61])


def sharded(*codecs, **more):
    """Return the configuration of shards."""
    configuration = {"chunk_shape": [2, 3], "codecs": list(codecs), "index_codecs": CHECKED, **more}
    return [{"name": "sharding_indexed", "configuration": configuration}]


ZARR3 = {
    "raw": ([LITTLE], False),
    "crc32c": (CHECKED, True),
    "gzip": ([LITTLE, "gzip"], True),
    "zstd": ([LITTLE, ZSTD], True),
    "blosc": ([LITTLE, "blosc"], False),
    "blosc, crc32c": ([LITTLE, "blosc", "crc32c"], True),
    "shard": (sharded(*CHECKED), True),
    "shard at start": (sharded(LITTLE, ZSTD, index_location="start"), True),
    "shard in shard": (sharded(*sharded(*CHECKED, chunk_shape=[1, 3])), True),
}
ZARR2 = {
    "raw": ({"compressor": None}, False),
    "zlib": ({"compressor": {"id": "zlib", "level": 1}}, True),
    "bz2": ({"compressor": {"id": "bz2", "level": 1}}, True),
    "lzma": ({"compressor": {"id": "lzma"}}, False),
    "lz4": ({"compressor": {"id": "lz4"}}, False),
    "blosc": ({"compressor": {"id": "blosc", "cname": "zstd", "shuffle": 2}}, False),
    "filters": ({"compressor": {"id": "gzip"}, "filters": [{"id": "delta", "dtype": "<i4"}]}, True),
    "fletcher32": ({"compressor": None, "filters": [{"id": "fletcher32"}]}, False),  # 0 and 65535 are one to it
    "crc32": ({"compressor": None, "filters": [{"id": "crc32"}]}, True),
}


@dataclass
class Case:
    """Stored values, the URL of the array above them, and which values are under a checksum."""

    name: str
    values: dict[str, bytes]
    url: str
    checked: set[str]
    writable: bool = True


def contents(store):
    """Return what is stored."""
    return {key.decode(): bytes(store.read(key).result().value) for key in store.list().result()}


def bare():
    """Yield arrays as they are."""
    for name, (codecs, checked) in ZARR3.items():
        grid = {"name": "regular", "configuration": {"chunk_shape": CHUNK}}
        metadata = {"shape": SHAPE, "data_type": "int32", "chunk_grid": grid, "codecs": codecs, "fill_value": -1}
        yield made(f"zarr3 {name}", "zarr3", metadata, checked=checked)
    for name, (more, checked) in ZARR2.items():
        metadata = {"shape": SHAPE, "chunks": CHUNK, "dtype": "<i4", "fill_value": -1, **more}
        yield made(f"zarr2 {name}", "zarr", metadata, checked=checked)
    metadata = {"dimensions": SHAPE, "blockSize": CHUNK, "dataType": "int32", "compression": {"type": "gzip"}}
    yield made("n5", "n5", metadata, checked=False)  # the header of a block is under no checksum


def made(name, driver, metadata, *, checked):
    """Return a case of an array."""
    store = ts.open({"driver": driver, "kvstore": "memory://a/", "metadata": metadata}, create=True).result()
    store.write(VALUES).result()
    values = contents(store.kvstore)
    documents = {key for key in values if not key[-1].isdigit()}
    scheme = {"zarr": "zarr2"}.get(driver, driver)
    return Case(
        name,
        {f"a/{key}": value for key, value in values.items()},
        f"memory://a/|{scheme}:",
        {f"a/{key}" for key in values.keys() - documents} if checked else set(),
    )


def contained(cases):
    """Yield some arrays in containers."""
    for case in cases:
        if case.name not in ("zarr3 raw", "zarr3 shard", "zarr2 raw", "zarr2 zlib"):
            continue
        scheme = case.url.rpartition("|")[2]
        for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            file = io.BytesIO()
            with zipfile.ZipFile(file, "w", method) as archive:
                for key, value in case.values.items():
                    archive.writestr(key, value)
            yield Case(
                f"zip of {case.name}", {"z.zip": file.getvalue()}, f"memory://z.zip|zip:a/|{scheme}", set(), False
            )
        yield from referred(case, scheme)


def referred(case, scheme):
    """Yield reference sets of both formats over one file with the chunks."""
    data, refs = b"", {}
    for key, value in case.values.items():
        name = key.removeprefix("a/")
        if not name[-1].isdigit():
            refs[f"v/{name}"] = value.decode()
        else:
            refs[f"v/{name}"] = ["data.bin", len(data), len(value)]
            data += value
    refs[".zgroup"] = '{"zarr_format": 2}'
    for document in ({"version": 1, "refs": refs}, refs):
        values = {"d/r.json": json.dumps(document).encode(), "d/data.bin": data}
        yield Case(f"references to {case.name}", values, f"memory://d/r.json|reference:v/|{scheme}", set(), False)
    if scheme == "zarr2:":
        with tempfile.TemporaryDirectory() as folder:
            references.open(refs).save(Path(folder) / "r.parq", record_size=4)
            root = Path(folder) / "r.parq"
            files = {
                f"d/r.parq/{path.relative_to(root)}": path.read_bytes() for path in root.rglob("*") if path.is_file()
            }
        yield Case(
            f"table of {case.name}",
            {**files, "d/data.bin": data},
            f"memory://d/r.parq/|reference:v/|{scheme}",
            set(),
            False,
        )


class Damage:
    """Changes values."""

    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.spliced = False

    def of(self, data, other):
        """Return damaged data."""
        chance = self.draw.random()
        if data[:1] in (b"{", b"[") and chance < 0.7:
            try:
                return json.dumps(self.member(json.loads(data))).encode("utf-8", "surrogatepass")
            except ValueError:
                pass
        return self.of_bytes(data, other)

    def of_bytes(self, data, other):
        """Return data with some bytes changed."""
        out, draw = bytearray(data), self.draw
        for _ in range(draw.choice((1, 1, 1, 2, 5))):
            at, action = draw.randrange(len(out) + 1), draw.random()
            if action < 0.4 and out:
                out[at % len(out)] ^= 1 << draw.randrange(8)
            elif action < 0.6:
                size = draw.choice((1, 2, 4, 8))
                number = draw.choice(NUMBERS) % 256**size
                out[at : at + size] = number.to_bytes(size, draw.choice(("little", "big")))
            elif action < 0.7:
                del out[at:]
            elif action < 0.8:
                del out[at : at + draw.choice((1, 4, 20))]
            elif action < 0.9:
                out[at:at] = out[: draw.choice((1, 8, 30))]
            else:
                out[at:] = other[draw.randrange(len(other) + 1) :]
                self.spliced = True  # the index of another shard has a right checksum too
        return bytes(out)

    def member(self, value):
        """Return a JSON value with one part replaced, removed or doubled, also within text that is JSON."""
        draw = self.draw
        if isinstance(value, dict) and value and draw.random() < 0.9:
            name = draw.choice(sorted(value))
            rest = {other: part for other, part in value.items() if other != name}
            return rest if draw.random() < 0.1 else {**rest, name: self.member(value[name])}
        if isinstance(value, list) and value and draw.random() < 0.85:
            at = draw.randrange(len(value))
            part = [] if draw.random() < 0.1 else [self.member(value[at])] * draw.choice((1, 1, 1, 2))
            return [*value[:at], *part, *value[at + 1 :]]
        if isinstance(value, str) and value.startswith("{") and draw.random() < 0.8:
            return json.dumps(self.member(json.loads(value)))
        if isinstance(value, int) and draw.random() < 0.6:
            return draw.choice((value + 1, value - 1, -value, value * 2, *NUMBERS))
        return draw.choice(ODDITIES)


def use(case, values):
    """Use an array; return what reading all of it gave, and the errors of everything."""
    context = ts.Context()
    base = ts.KvStore.open("memory://", context=context).result()
    for key, value in values.items():
        base.write(key, value).result()
    errors, found = [], None
    place = case.url.rpartition("|")[0]
    last = lambda: ts.Future(None)  # noqa: E731
    for step in (lambda: ts.open(case.url, context=context).result(), lambda: ts.open(place, context=context).result()):
        try:
            store = step()
            found = work(store, found)
        except StoreError as error:
            errors.append(error)
            continue
        if case.writable and small(store):
            corner = (0,) * store.rank
            last = lambda store=store, value=found[corner]: store[corner].write(value)  # noqa: E731
    for step in (last, lambda: ts.KvStore.open(place, context=context).result().list()):
        try:
            step().result()
        except StoreError as error:
            errors.append(error)
    return found, errors


def small(store):
    """Return whether so little is there that all of it may be made."""
    sizes = [*store.domain.shape, *(store.chunk_layout.write_chunk.shape or [1])]
    return all(0 < size < 10**3 for size in sizes) and np.prod(sizes, dtype=object) < 10**6


def work(store, found):
    """Read, and say what was there."""
    store.spec().to_json()
    if small(store):
        corner = store[(slice(0, 1),) * store.rank].read().result()
        whole = store.read().result()
        np.testing.assert_array_equal(whole[(slice(0, 1),) * store.rank], corner)
        boxes = [store[(slice(at, at + 1), ...)].read() for at in range(store.domain.shape[0])] if store.rank else []
        rows = [box.result() for box in boxes]
        if rows:
            np.testing.assert_array_equal(np.concatenate(rows), whole)
        return whole
    store[(slice(0, min(2, store.domain.shape[0])),)] if store.rank else store
    return found


def run(seed, cases):
    """Damage and use one; return the outcome."""
    damage = Damage(seed)
    case = damage.draw.choice(cases)
    key = damage.draw.choice(sorted(case.values))
    other = case.values[damage.draw.choice(sorted(case.values))]
    changed = damage.of(case.values[key], other)
    found, errors = use(case, {**case.values, key: changed})
    if changed == case.values[key]:
        assert not errors, errors
    if key in case.checked and not damage.spliced and found is not None:
        right = found == VALUES if found.shape == SHAPE else np.zeros(1)
        assert right.all(), f"other values than were written: {found[~right][:9]}"
    return case.name, "refused" if errors else "passed"


def main(first, count):
    """Run, and print what came of it."""
    warnings.simplefilter("ignore")
    cases = list(bare())
    cases += list(contained(cases))
    for case in cases:  # unchanged, all are read
        found, errors = use(case, case.values)
        assert not errors, (case.name, errors)
        np.testing.assert_array_equal(found, VALUES, case.name)
    used_bytes = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + HEADROOM, used_bytes + HEADROOM))
    outcomes: Counter[str] = Counter()
    slowest, bad = 0.0, 0
    for seed in range(first, first + count):
        begun = time.process_time()
        try:
            name, outcome = run(seed, cases)
            outcomes[outcome] += 1
            outcomes[f"{name.split()[0]} {outcome}"] += 1
        except Exception:  # noqa: BLE001  # all are told
            bad += 1
            print(f"seed {seed}: {traceback.format_exc(limit=-4)}", file=sys.stderr)
        spent = time.process_time() - begun
        if spent > SLOW_S:
            bad += 1
            print(f"seed {seed}: took {spent:.1f} s", file=sys.stderr)
        slowest = max(slowest, spent)
    print(json.dumps({**outcomes, "slowest_s": round(slowest, 3), "bad": bad}))
    sys.exit(bad > 0)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
