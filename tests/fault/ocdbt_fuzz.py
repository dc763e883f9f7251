"""Damage OCDBT structures, with every length and checksum repaired, and use what is left.  Run by test_ocdbt_damage.

    ocdbt_fuzz.py EXECUTIONS SEED DRIVER_SHARE

Structures come from databases of several shapes.  Where their fields lie is found by watching the decoder.  An
execution changes one structure (a field to a number at an edge, some bytes, a field to another's bytes, the tail to
that of another structure, the frame around it), decodes it, and, if it passes, uses and re-encodes it; the share
DRIVER_SHARE of the executions puts it into its database and opens, lists, reads, writes and verifies that instead.
Only errors of fsstore may come of it, and no execution may take long or much memory.  Prints what was done as JSON.
"""

from __future__ import annotations

import json
import random
import resource
import struct
import sys
import time
from collections import Counter
from dataclasses import dataclass, replace

import google_crc32c

from fsstore.errors import StoreError
from fsstore.kvstore.contract.driver import KvPrefix, Read, Write
from fsstore.kvstore.contract.request import KeyRange
from fsstore.kvstore.memory import MemoryDriver
from fsstore.ocdbt.change import merge
from fsstore.ocdbt.driver import open_database
from fsstore.ocdbt.encoding import BTREE_NODE, MANIFEST, VERSION_NODE, Cursor, DataFile, Location, encode, seal, unseal
from fsstore.ocdbt.manifest import (
    Config,
    decode_manifest,
    decode_version_node,
    encode_manifest,
    encode_version_node,
    manifest_number,
)
from fsstore.ocdbt.node import Builder, Leaf, decode_node
from fsstore.ocdbt.tool import verify
from fsstore.runtime.execution import drive

SMALL = {"max_decoded_node_bytes": 200, "max_inline_value_bytes": 4, "version_tree_arity_log2": 1}
SHAPES = (
    ({"compression": None, **SMALL}, 9, 6),  # interior nodes, version tree nodes, both kinds of value
    ({"manifest_kind": "numbered", **SMALL, "max_inline_value_bytes": 0}, 5, 4),
    ({"max_inline_value_bytes": 20}, 2, 100),  # long columns, in one leaf
    ({"max_decoded_node_bytes": 1, "version_tree_arity_log2": 2}, 6, 3),  # one entry a node
)
SAME_SORT = 8
"""How many structures of one sort are taken from a database."""
EDGES = (0, 1, 2, 127, 128, 255, 2**14, 2**16 - 1, 2**16, 2**20 + 1, 2**31, 2**32 - 1, 2**32)
EDGES += (2**62, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1)
TOO_LONG = (b"\xff" * 9 + b"\x02", b"\x80" * 10 + b"\x01", b"\xff" * 12, b"\x80")
SLOW_S = 5.0
HEADROOM = 1 << 30


@dataclass(eq=False)
class Structure:
    """A structure of a database, and where the fields in its body lie."""

    storage: dict
    key: str
    offset: int
    length: int
    magic: bytes
    body: bytes
    fields: list[tuple[int, int, bool]]  # start, stop, whether it is a varint

    @property
    def number(self) -> int:
        """The number in the name of a numbered manifest."""
        return manifest_number(self.key)


def database(config, commits, rows):
    """Return what a memory store with a small database holds."""
    base = KvPrefix(MemoryDriver())
    driver = open_database(base, {"config": config})
    for number in range(commits):
        drive(driver.write_many([Write(f"k{number}/{row}", b"x" * (row * 3 % 97)) for row in range(rows)]))
    return dict(base.driver.storage.values)


def decode(magic, data, number=0):
    """Decode a structure of any sort."""
    if magic == MANIFEST:
        return decode_manifest(data, number=number)
    if magic == VERSION_NODE:
        return decode_version_node(data, b"")
    return decode_node(data, b"")


def watched_fields(magic, body, number):
    """Decode a body and return its fields: each varint of a column for itself, and runs of bytes."""
    found = []
    originals = {name: getattr(Cursor, name) for name in ("take", "take_bytes", "take_column")}

    def watch(name, note):
        original = originals[name]

        def method(cursor, *arguments, **options):
            start, known = cursor.position, len(found)
            value = original(cursor, *arguments, **options)
            if cursor.data == body and cursor.position > start and len(found) == known:
                found.extend(note(start, cursor.position))
            return value

        return method

    def column(start, stop):
        ends = [at + 1 for at in range(start, stop) if body[at] < 128]
        return [(low, high, True) for low, high in zip([start, *ends], ends)]

    notes = {"take": column, "take_column": column, "take_bytes": lambda a, b: [(a, b, False)]}
    for name, note in notes.items():
        setattr(Cursor, name, watch(name, note))
    try:
        decode(magic, seal(magic, body, None), number)
    finally:
        for name, original in originals.items():
            setattr(Cursor, name, original)
    assert found[-1][1] == len(body)
    assert all(a[1] == b[0] for a, b in zip(found, found[1:])), "fields must follow each other"
    return found


def structures(storage):
    """Return some structures of each sort that a database holds."""
    found, sorts = [], Counter()
    for key, (value, _) in storage.items():
        for magic in (MANIFEST, VERSION_NODE, BTREE_NODE):
            at = value.find(magic)
            while at >= 0:
                length = int.from_bytes(value[at + 4 : at + 12], "little")
                body = unseal(magic, value[at : at + length], "x")
                # nodes of each height apart, small ones from large ones, and constant manifests from numbered ones
                sort = (magic, body[: 2 if magic == VERSION_NODE else 1] if magic != MANIFEST else key[:10])
                sorts[sort] += 1
                if sorts[sort] <= SAME_SORT:
                    fields = watched_fields(magic, body, manifest_number(key))
                    found.append(Structure(storage, key, at, length, magic, body, fields))
                at = value.find(magic, at + 1)
    return found


def sealed(magic, body, version=0, method=0):
    """Return any body in an envelope with a right length and checksum."""
    data = magic + struct.pack("<Q", len(body) + 18) + bytes((version, method)) + body
    return data + struct.pack("<I", google_crc32c.value(data))


class Fuzzer:
    """Changes structures; every field of every structure has its turn."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.structures = [one for shape in SHAPES for one in structures(database(*shape))]
        self.turns = [(one, field) for one in self.structures for field in one.fields]
        self.random.shuffle(self.turns)
        self.turn = 0
        self.changes = (
            *[self.field_to_edge] * 9,
            *[self.some_bytes] * 6,
            *[self.field_to_field] * 2,
            *[self.other_tail] * 2,
            self.frame,
        )

    def next(self):
        """Return a structure and what takes its place."""
        return self.random.choice(self.changes)()

    def field_to_edge(self):
        """Set the next field to a number at an edge, or one beside its own."""
        one, (start, stop, varint) = self.turns[self.turn % len(self.turns)]
        self.turn += 1
        body, chance = one.body, self.random.random()
        if not varint:  # runs of bytes keep their length
            at, run = self.random.randrange(stop - start), bytearray(body[start:stop])
            run[at] = self.random.choice((0, 1, 2, 127, 128, 255, run[at] ^ 1, self.random.randrange(256)))
            fresh = bytes(run) if chance < 0.7 else self.random.choice((b"\0", b"\xff")) * (stop - start)
        elif chance < 0.6:
            fresh = encode(self.random.choice(EDGES))
        elif chance < 0.85:
            value = Cursor(body, "x", start).take()
            fresh = encode(max(0, value + self.random.choice((-1, 1, -2, 2, len(body)))))
        elif chance < 0.95:
            fresh = bytes(byte | 128 for byte in body[start:stop]) + b"\0"  # the same number, longer
        else:
            fresh = self.random.choice(TOO_LONG)
        return one, sealed(one.magic, body[:start] + fresh + body[stop:])

    def some_bytes(self):
        """Change, insert, remove or repeat a few bytes."""
        one = self.random.choice(self.structures)
        return one, sealed(one.magic, self.mutated(one.body))

    def mutated(self, body):
        """Return a body with a few bytes changed."""
        data, draw = bytearray(body), self.random
        for _ in range(draw.choice((1, 1, 1, 2, 4))):
            at, action = draw.randrange(len(data) or 1), draw.random()
            if action < 0.5:
                data[at : at + 1] = bytes([draw.choice((0, 1, 127, 128, 255, draw.randrange(256)))])
            elif action < 0.65:
                data[at : at + 1] = b"\xff" * draw.randrange(1, 10) + bytes([draw.randrange(128)])
            elif action < 0.8:
                del data[at : at + draw.choice((1, 1, 2, 10))]
            else:
                data[at:at] = data[at : at + draw.choice((1, 2, 8, 40))]
        return bytes(data)

    def field_to_field(self):
        """Set a field to the bytes of another."""
        one = self.random.choice(self.structures)
        (start, stop, _), (low, high, _) = self.random.choice(one.fields), self.random.choice(one.fields)
        return one, sealed(one.magic, one.body[:start] + one.body[low:high] + one.body[stop:])

    def other_tail(self):
        """Let a structure go on as another does, from fields on."""
        one, two = self.random.choice(self.structures), self.random.choice(self.structures)
        start, low = self.random.choice(one.fields)[0], self.random.choice(two.fields)[0]
        return one, sealed(one.magic, one.body[:start] + two.body[low:])

    def frame(self):
        """Change magic, version, compression or the compressed frame."""
        one = self.random.choice(self.structures)
        chance = self.random.random()
        if chance < 0.6:
            frame = seal(one.magic, one.body, 0)[14:-4]
            return one, sealed(one.magic, self.mutated(frame), 0, 1)
        if chance < 0.8:
            return one, sealed(one.magic, one.body, *self.random.choices((0, 1, 2, 127, 128, 255), k=2))
        return one, sealed(self.random.choice((MANIFEST, VERSION_NODE, BTREE_NODE)), one.body)


def use(one, data):
    """Decode a structure; what passes can be used, and is the same when encoded and decoded again."""
    found = decode(data[:4], data, one.number if data[:4] == MANIFEST else 0)
    if data[:4] == MANIFEST:
        assert decode_manifest(encode_manifest(found), number=one.number) == found
    elif data[:4] == VERSION_NODE:
        assert decode_version_node(encode_version_node(found, None), b"") == found
    elif isinstance(found, Leaf):
        use_leaf(found)
    else:
        for row in range(len(found.keys)):
            child = found.child(row, b"p")
            assert child.prefix_length <= len(child.key)
        assert found.size_bytes > 0


def use_leaf(leaf):
    """Look every value up, and store the leaf again with one key more."""
    values = [leaf.value(row) for row in range(len(leaf.keys))]
    key = leaf.keys[0] + b"\0"
    changed = merge(leaf, b"", [key], [b"v"])
    nodes = []

    def place(data):
        nodes.append(data)
        return Location(DataFile(b"", b"f"), 0, len(data))

    Builder(Config(bytes(16), max_decoded_node_bytes=0, level=None), place).leaves(changed, may_be_root=True)
    again = decode_node(nodes[0], b"")
    wanted = dict(zip(leaf.keys, values, strict=True)) | {key: b"v"}
    assert {name: again.value(row) for row, name in enumerate(again.keys)} == wanted


def use_database(one, data):
    """Put a structure into its database, and open, list, read, write and verify that."""
    base = KvPrefix(MemoryDriver())
    storage = base.driver.storage
    storage.apply({key: value for key, (value, _) in one.storage.items()})
    value = one.storage[one.key][0]
    storage.put(one.key, value[: one.offset] + data + value[one.offset + one.length :])
    if one.magic == BTREE_NODE:  # it becomes the root of the newest versions
        key = max(one.storage, key=manifest_number)
        key = key if manifest_number(key) else "manifest.ocdbt"
        manifest = decode_manifest(one.storage[key][0], number=manifest_number(key))
        place = Location(DataFile(b"", one.key.encode()), one.offset, len(data))
        height = data[14] if data[13] == 0 and len(data) > 18 else one.body[0]
        versions = tuple(version._replace(root=place, height=height) for version in manifest.versions)
        storage.put(key, encode_manifest(replace(manifest, versions=versions)))
    errors = []
    for members in ({}, {"version": 3}):
        try:
            drive(everything(open_database(base, members), writing=not members))
        except StoreError as error:
            errors.append(error)
    if errors:
        raise errors[0]


async def everything(driver, *, writing):
    """List, look keys up, read values; then write, delete and verify."""
    entries = [entry async for batch in driver.scan(KeyRange()) for entry in batch][:200]
    some = [Read(entry.key) for entry in entries[:20]] + [Read("k3/5", 2, 4), Read("k"), Read("zz")]
    await driver.read_many(some)
    version, _ = await driver.version()
    if writing:
        await driver.write_many([Write("k1/3", b"new"), Write("k", None)])
        await driver.delete_range(KeyRange("k2", "k5"))
        await verify(driver.source, version)


def main(executions, seed, share):
    """Run, and print what came of it."""
    fuzzer = Fuzzer(seed)
    for one in fuzzer.structures:  # unchanged, all of them pass
        use(one, sealed(one.magic, one.body))
        use_database(one, one.storage[one.key][0][one.offset : one.offset + one.length])
    outcomes: Counter[str] = Counter()
    every = round(1 / share) if share else executions + 1
    used_bytes = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + HEADROOM, used_bytes + HEADROOM))
    before, slowest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0.0
    for number in range(executions):
        one, data = fuzzer.next()
        deep = number % every == every - 1
        start = time.thread_time()
        try:
            (use_database if deep else use)(one, data)
            outcome = "passed"
        except StoreError:
            outcome = "refused"
        except BaseException:
            print(f"seed {seed}, execution {number}, deep {deep}: {one.key} {data.hex()}", file=sys.stderr)
            raise
        slowest = max(slowest, time.thread_time() - start)
        assert slowest < SLOW_S, f"seed {seed}, execution {number}: {slowest} s for {data.hex()}"
        outcomes[outcome] += 1
        outcomes[f"{'database' if deep else 'structure'} {outcome}"] += 1
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    report = {
        **outcomes,
        "fields": len(fuzzer.turns),
        "turns": fuzzer.turn,
        "structures": len(fuzzer.structures),
        "slowest_s": slowest,
        "grown_mib": grown / 1024,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
