"""How the codecs of a chain follow each other: what one gives the next one takes, forwards, backwards, or in pieces."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from fsstore.codec.ability import abilities_of
from fsstore.codec.contract import BoundCodec, ByteSpec
from fsstore.codec.scratch import scratch
from fsstore.codec.tuning import DIRECT_BYTES

__all__ = ["Steps", "decoders", "in_pieces", "scratch_decoders", "through"]

"""Decompressing less into memory that is there already costs more than a copy."""

Steps: TypeAlias = tuple[Callable[[Any], Any], ...]
"""Functions of which each takes what the one before it has given."""


def through(steps: Steps, data: Any) -> Any:
    """Return what becomes of `data`."""
    for step in steps:
        data = step(data)
    return data


def decoders(stages: Sequence[BoundCodec]) -> Steps:
    """Return how what stages have encoded is decoded."""
    return tuple(stage.decode for stage in reversed(stages))


def scratch_decoders(pack: BoundCodec, stages: Sequence[BoundCodec]) -> Steps:
    """Return decoders into memory of the thread where codecs can, but not of shards: their parts are decoded there."""
    if abilities_of(pack).shard is not None:
        return decoders(stages)
    made = (_scratch_decoder(*pair, step) for step, pair in enumerate(itertools.pairwise((pack, *stages)), 1))
    return tuple(made)[::-1]


def _scratch_decoder(before: BoundCodec, stage: BoundCodec, step: int) -> Callable[[Any], Any]:
    into = abilities_of(stage).decode_into
    size = before.encoded.size if isinstance(before.encoded, ByteSpec) else None
    if into is None or size is None or size < DIRECT_BYTES:
        return stage.decode

    def decode(data: Any) -> Any:
        out = scratch(size, step)
        return out.data if into(data, out) else stage.decode(data)

    return decode


def in_pieces(stages: Sequence[BoundCodec]) -> Steps:
    """Return how a chunk is encoded in pieces: the last step gives an iterator of them."""
    passing: list[Callable[[Any], Any]] = []
    *before, last = stages
    while before and (passes := abilities_of(last).pass_pieces) is not None:
        passing.insert(0, passes)
        last = before.pop()
    begin = abilities_of(last).encode_pieces or (lambda data: iter((last.encode(data),)))
    return (*[stage.encode for stage in before], begin, *passing)
