"""How a new scale is sharded, and what shape the shards of a scale have: arithmetic over bits of chunk numbers.

Shards are boxes of chunks where a chunk's number is not hashed and has no more bits than the sharding looks at.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from fsstore.errors import StoreError
from fsstore.format.precomputed.info import chunk_bits
from fsstore.schema.constraint import Vector

__all__ = ["box_bits", "choose_sharding", "shard_chunks", "values_in"]

_PRESHIFT = 9  # bits of a number within a minishard, TensorStore's


def box_bits(bits: Sequence[int], count: int) -> list[int]:
    """Return how the lowest `count` bits of a chunk's number fall to the dimensions."""
    taken = [0, 0, 0]
    for bit in range(64):
        for axis in range(3):
            if bit < bits[axis] and sum(taken) < count:
                taken[axis] += 1
    return taken


def shard_chunks(scale: Mapping[str, Any], chunk: Sequence[int]) -> list[int] | None:
    """Return how many chunks a shard has along x, y and z; None where shards are no boxes."""
    sharding = scale["sharding"]
    bits = chunk_bits(scale["size"], chunk)
    within = sharding["preshift_bits"] + sharding["minishard_bits"]
    if sharding["hash"] != "identity" or sum(bits) > within + sharding["shard_bits"]:
        return None
    taken = box_bits(bits, min(within, sum(bits)))
    grid = [-(-size // step) for size, step in zip(scale["size"], chunk, strict=True)]
    return [min(cells, 1 << own) for cells, own in zip(grid, taken, strict=True)]


def values_in(scale: Mapping[str, Any], chunk: Sequence[int], shard: int) -> int | None:
    """Return how many chunks of the volume are in a shard; None where shards are no boxes."""
    shape = shard_chunks(scale, chunk)
    if shape is None:
        return None
    bits = chunk_bits(scale["size"], chunk)
    within = scale["sharding"]["preshift_bits"] + scale["sharding"]["minishard_bits"]
    order = [(axis, bit) for bit in range(64) for axis in range(3) if bit < bits[axis]][within:]
    corner = [0, 0, 0]
    for place, (axis, bit) in enumerate(order):
        corner[axis] |= (shard >> place & 1) << bit
    grid = [-(-size // step) for size, step in zip(scale["size"], chunk, strict=True)]
    sides = [
        max(0, min(first + length, cells) - first)
        for first, length, cells in zip(corner, shape, grid, strict=True)
    ]
    return int(math.prod(sides))


def _cost(current: Sequence[int], wanted: Vector[int], whole: Sequence[int]) -> float:
    total = 0.0
    for axis, size in enumerate(current):
        bound = None if wanted is None else wanted[axis]
        if bound is None:
            continue
        target, is_hard = bound
        target = whole[axis] if target == -1 else target
        if target != size and is_hard:
            return math.inf
        total += abs(size - target) / target
    return total


def choose_sharding(
    size: Sequence[int], chunk: Sequence[int], elements: int, wanted: Vector[int], codec: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return the sharding of a new scale, None for none.

    `elements` and `wanted` are what is asked of write chunks; `codec` is the codec spec of the scale.
    """
    bits = chunk_bits(size, chunk)
    volume = math.prod(chunk)
    count = (elements + volume // 2) // volume
    target = 0
    while target < sum(bits) and 1 << target < count:
        target += 1
    if target and (1 << target) - count > count - (1 << (target - 1)):
        target -= 1
    whole = [step << own for step, own in zip(chunk, bits, strict=True)]
    current, taken = list(chunk), 0
    best, chosen = _cost(current, wanted, whole), 0
    for bit in range(64):
        for axis in range(3):
            if bit >= bits[axis]:
                continue
            current[axis], taken = current[axis] * 2, taken + 1
            cost = _cost(current, wanted, whole)
            if cost < best or (cost == best and taken <= target):
                best, chosen = cost, taken
    if best == math.inf:
        raise StoreError("Cannot satisfy write chunk shape constraint")
    encoding = codec.get("shard_data_encoding")
    if not chosen and encoding is None:
        return None
    preshift = min(chosen, _PRESHIFT)
    usual = "raw" if codec["encoding"] in ("jpeg", "png") else "gzip"
    return {
        "@type": "neuroglancer_uint64_sharded_v1",
        "preshift_bits": preshift,
        "hash": "identity",
        "minishard_bits": chosen - preshift,
        "shard_bits": sum(bits) - chosen,
        "data_encoding": encoding or usual,
        "minishard_index_encoding": "gzip",
    }
