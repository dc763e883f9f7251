"""How many requests look-ups in large shards take."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from fsstore.context.context import Context
from fsstore.kvstore.contract.driver import KvOpening, KvPrefix, Read, Write
from fsstore.kvstore.contract.request import key_text
from fsstore.kvstore.memory import MemoryDriver
from fsstore.precomputed.shards import KIND
from fsstore.runtime import execution
from fsstore.testing.doubles import Recording
from fsstore.values.json_value import Fields

COUNT = 1_000_000


def shard(bits: int, add: int) -> bytes:
    """Return a shard of a million values of eight bytes: each is its number and something added."""
    numbers = np.arange(COUNT, dtype="<u8")
    head, parts, at = [], [], 0
    for minishard in range(1 << bits):
        mine = numbers[minishard :: 1 << bits]
        index = np.zeros((3, len(mine)), "<u8")
        index[0], index[1, 0], index[2] = np.diff(mine, prepend=np.uint64(0)), at, 8
        parts += [(mine + np.uint64(add)).astype("<u8").tobytes(), index.tobytes()]
        at += mine.nbytes
        head += [at, at + index.nbytes]
        at += index.nbytes
    return np.array(head, "<u8").tobytes() + b"".join(parts)


@pytest.mark.parametrize("bits", [6, 14])
def test_look_ups_in_a_million_values(bits: int):
    """The first look-up takes three requests, others two at most, and one where the index of the minishard is known."""
    recording = Recording(MemoryDriver())
    base = KvPrefix(recording, "d/")
    execution.call(base.write_many([Write("0.shard", shard(bits, 0))]), waits=False)
    metadata = {
        "@type": "neuroglancer_uint64_sharded_v1", "preshift_bits": 0, "hash": "identity", "minishard_bits": bits,
        "shard_bits": 0,
    }  # fmt: skip
    members = KIND.members(Fields({"metadata": metadata}))
    context = Context()
    resources = {name: context[name].value for name in KIND.resources}
    driver: Any = execution.call(
        KIND.open(KvOpening(members=members, resources=resources, base=base, context=context)), waits=False
    )

    def look_up(number: int) -> tuple[int, int]:
        recording.reset()
        [answer] = execution.call(driver.read_many([Read(key_text(struct.pack(">Q", number)))]), waits=False)
        return struct.unpack("<Q", answer.value)[0] - number, recording.calls["read"]

    assert look_up(5) == (0, 3)
    for number in (6, 7 + 3 * (1 << bits), COUNT - 1, 40):
        assert look_up(number) == (0, 2)
    assert look_up(5 + (1 << bits)) == (0, 1)
    assert recording.bytes_read == 8
    execution.call(base.write_many([Write("0.shard", b"".join((shard(bits, 9),)))]), waits=False)
    assert look_up(5)[0] == look_up(41)[0] == look_up(6)[0] == 9
