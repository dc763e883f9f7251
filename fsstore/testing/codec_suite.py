"""The battery over the codec contract (`fsstore.codec.contract`), for built-in and plug-in codecs alike.

A case is a codec, what it is bound to, and values of that kind.  Each function proves one sentence of the contract and
raises `AssertionError` naming the case.  With pytest:

    @pytest.mark.parametrize("check", CHECKS)
    def test_my_codec(check):
        check(CodecCase(MyCodec(3), ByteSpec(64), (bytes(64),)))
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import FrozenInstanceError, dataclass
from typing import Any

import numpy as np

from fsstore.codec.chain import find_codec
from fsstore.codec.contract import ByteSpec, ChunkSpec, Codec
from fsstore.errors import StoreError

__all__ = ["CHECKS", "CodecCase", "mutations", "same"]


@dataclass(frozen=True)
class CodecCase:
    """A codec, what it is bound to, and values that it encodes.

    `lossy` says that decoding gives something near what was encoded; `registered` that metadata can name the codec.
    """

    codec: Codec
    decoded: ChunkSpec | ByteSpec
    values: tuple[Any, ...]
    lossy: bool = False
    registered: bool = True

    def __str__(self) -> str:
        """Return the name and configuration, for messages and test ids."""
        return f"{self.codec.name}{self.codec.to_json() or ''} on {self.decoded}"


def as_bytes(value: Any) -> bytes:
    """Return the bytes of a buffer or of the elements of an array in C order."""
    return value.tobytes() if isinstance(value, np.ndarray) else bytes(value)


def same(left: Any, right: Any) -> bool:
    """Return whether two values of one kind agree: arrays in dtype, shape and bits, buffers in bytes."""
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        if left.dtype != right.dtype or left.shape != right.shape:
            return False
        if left.dtype.hasobject:
            return bool((left == right).all())
    return as_bytes(left) == as_bytes(right)


def mutations(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """Yield damaged copies of `data`: cut short, extended, and with bytes changed."""
    choose = random.Random(seed)
    yield b""
    yield data[:-1]
    yield data + b"\x00"
    yield data + b"junk"
    for _ in range(count):
        damaged = bytearray(data)
        for _ in range(choose.choice((1, 1, 1, 2, 5))):
            if damaged:
                damaged[choose.randrange(len(damaged))] = choose.choice((0, 1, 0x7F, 0x80, 0xFF, choose.randrange(256)))
        if choose.random() < 0.3:
            del damaged[choose.randrange(len(damaged) + 1) :]
        yield bytes(damaged)


def check_round_trip(case: CodecCase) -> None:
    """Decoding returns exactly what was encoded, every time."""
    bound = case.codec.bind(case.decoded)
    for value in case.values:
        encoded = bound.encode(value)
        for _ in range(2):
            decoded = bound.decode(encoded)
            assert case.lossy or same(decoded, value), f"{case}: decoded differs"


def check_json(case: CodecCase) -> None:
    """The configuration survives JSON, and equal configurations are equal codecs."""
    if not case.registered:
        return
    factory = find_codec(case.codec.name)
    again = factory.from_json(case.codec.to_json())
    assert again == case.codec, f"{case}: reading its JSON gives {again}"
    assert again.to_json() == case.codec.to_json(), f"{case}: JSON changes when read"
    assert again.kind == factory.kind, f"{case}: kinds differ"


def check_unknown_member(case: CodecCase) -> None:
    """A configuration with a member nobody knows is refused."""
    if not case.registered:
        return
    try:
        find_codec(case.codec.name).from_json({**case.codec.to_json(), "surprise": 1})
    except StoreError:
        return
    raise AssertionError(f"{case}: an unknown member was accepted")


def check_frozen(case: CodecCase) -> None:
    """Codecs cannot be changed, and survive pickling."""
    try:
        case.codec.surprise = 1  # type: ignore[attr-defined]  # the point of the check
    except (FrozenInstanceError, AttributeError, TypeError):
        pass
    else:
        raise AssertionError(f"{case}: the codec can be changed")
    assert pickle.loads(pickle.dumps(case.codec)) == case.codec, f"{case}: pickling changes it"  # noqa: S301  our own bytes


def check_encoded(case: CodecCase) -> None:
    """`encoded` tells the truth about what `encode` gives."""
    bound = case.codec.bind(case.decoded)
    for value in case.values:
        encoded, told = bound.encode(value), bound.encoded
        if isinstance(told, ChunkSpec):
            assert (encoded.dtype, encoded.shape) == (told.dtype, told.shape), f"{case}: encoded is not {told}"
        else:
            size = memoryview(encoded).nbytes
            assert told.size in (None, size), f"{case}: encoded has {size} bytes, not {told.size}"
            assert told.max_size is None or size <= told.max_size, f"{case}: encoded has {size} bytes"


def check_buffers(case: CodecCase) -> None:
    """Any kind of buffer is decoded."""
    bound = case.codec.bind(case.decoded)
    if isinstance(bound.encoded, ChunkSpec):
        return
    data = as_bytes(bound.encode(case.values[0]))
    wanted = bound.decode(data)
    for kind in (bytearray, memoryview, lambda raw: memoryview(b"." + raw)[1:]):
        assert same(bound.decode(kind(data)), wanted), f"{case}: another kind of buffer decodes differently"


def check_threads(case: CodecCase) -> None:
    """A bound codec may be used by several threads at once."""
    bound = case.codec.bind(case.decoded)
    encoded = [bound.encode(value) for value in case.values]
    wanted = [as_bytes(bound.decode(data)) for data in encoded] if not _objects(case) else None

    def work(_: int) -> bool:
        return wanted is None or [as_bytes(bound.decode(data)) for data in encoded] == wanted

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(work, range(12))), f"{case}: threads disturb each other"


def check_damage(case: CodecCase, *, count: int = 60) -> None:
    """Damaged bytes raise a `StoreError` or decode to a value of the right type and size."""
    bound = case.codec.bind(case.decoded)
    if isinstance(bound.encoded, ChunkSpec):
        return
    for value in case.values:
        for damaged in mutations(as_bytes(bound.encode(value)), count):
            try:
                decoded = bound.decode(damaged)
            except StoreError:
                continue
            _check_form(case, decoded)


def _objects(case: CodecCase) -> bool:
    return isinstance(case.decoded, ChunkSpec) and case.decoded.dtype.hasobject


def _check_form(case: CodecCase, decoded: Any) -> None:
    if isinstance(case.decoded, ChunkSpec):
        form = (decoded.dtype, decoded.shape)
        assert form == (case.decoded.dtype, case.decoded.shape), f"{case}: damaged bytes decode to {form}"
    elif case.decoded.size is not None:
        size = memoryview(decoded).nbytes
        assert size == case.decoded.size, f"{case}: damaged bytes decode to {size} bytes"


def check_wrong_input(case: CodecCase) -> None:
    """Binding to the other kind of input is refused."""
    other: ChunkSpec | ByteSpec = ByteSpec(8)
    if isinstance(case.decoded, ByteSpec):
        other = ChunkSpec(np.dtype("u1"), (8,))
    try:
        case.codec.bind(other)
    except StoreError:
        return
    raise AssertionError(f"{case}: was bound to {other}")


CHECKS: tuple[Callable[[CodecCase], None], ...] = (
    check_round_trip,
    check_json,
    check_unknown_member,
    check_frozen,
    check_encoded,
    check_buffers,
    check_threads,
    check_damage,
    check_wrong_input,
)
"""Every check of the battery."""
