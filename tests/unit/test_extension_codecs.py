"""Codecs of the registry of zarr v3 extensions: bytes of worked examples, values by exact arithmetic, refusals."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import fsstore
from fsstore.codec.chain import CodecChain
from fsstore.codec.contract import ChunkSpec
from fsstore.errors import StoreError

_LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}


def _bound(values: Any, *codecs: tuple[str, dict[str, Any]], fill: Any = None, pack: bool = True) -> Any:
    entries: list[Any] = [{"name": name, "configuration": given} for name, given in codecs]
    chain = CodecChain.from_json(entries + [_LITTLE] * pack)
    return chain.bind(ChunkSpec(values.dtype, values.shape, fill))


@pytest.mark.parametrize(
    ("dtype", "values", "given", "expected"),
    [
        ("f4", [5, 15, 25.5], {"offset": 5, "scale": 0.1}, "000000000000803f33330340"),
        ("i1", [1, 2, 3], {"offset": 2, "scale": -1}, "0100ff"),
        ("u1", [1, 2, 3], {}, "010203"),
    ],
)
def test_scale_offset_computes_in_the_type_of_the_array(
    dtype: str, values: list[float], given: dict[str, Any], expected: str
) -> None:
    """The worked examples have the bytes that other implementations write, and decode to the values."""
    array = np.array(values, dtype)
    bound = _bound(array, ("scale_offset", given))
    assert bytes(bound.encode(array)).hex() == expected
    np.testing.assert_allclose(bound.decode(bound.encode(array)), array)


def test_scale_offset_refuses_what_an_integer_cannot_hold() -> None:
    """Overflow, underflow of the fill value, a remainder and a scale of zero or of a fraction are errors."""
    array = np.array([0, 200], "u1")
    with pytest.raises(StoreError, match="outside the range"):
        _bound(array, ("scale_offset", {"scale": 2})).encode(array)
    with pytest.raises(StoreError, match="outside the range"):
        _bound(array.astype("u2"), ("scale_offset", {"offset": 1000}), fill=0)
    with pytest.raises(StoreError, match="non-zero remainder"):
        _bound(array, ("scale_offset", {"scale": 3})).decode(b"\x00\x04")
    for scale in (0, 0.1):
        with pytest.raises(StoreError):
            _bound(array.astype("i2"), ("scale_offset", {"scale": scale}))


_ROUNDED = {
    "nearest-even": "00020200fe0102fffe",
    "towards-zero": "00010200ff0101ffff",
    "towards-positive": "01020300ff0202ffff",
    "towards-negative": "000102fffe0101fefe",
    "nearest-away": "010203fffe0102fffe",
}


@pytest.mark.parametrize("mode", _ROUNDED)
def test_cast_value_rounds_as_asked(mode: str) -> None:
    """Halves and others round to the bytes of the worked example."""
    array = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1.4, 1.6, -1.4, -1.6])
    bound = _bound(array, ("cast_value", {"data_type": "int8", "rounding": mode}))
    assert bytes(bound.encode(array)).hex() == _ROUNDED[mode]


_TYPES = ("int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "float32", "float64", "bfloat16")


def _samples(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        some = [info.min, info.max, info.max - 1, info.max // 2, info.max // 3, 0, 1, 127, 128, 255, 100]
        some = [value for value in some if value <= info.max]
        return np.array([*some, *rng.integers(info.min, info.max, 20, dtype).tolist()], dtype)
    some = [0.0, -0.0, 0.5, 1.5, -2.5, 127.5, 255.5, 1e-8, 6e-8, 65519.0, 65520.0, 3.4e38, 16777217.0, 1 / 3]
    with np.errstate(over="ignore"):
        drawn = np.array([*some, *(rng.normal(0, 1e5, 20))]).astype(dtype)
    return drawn[np.isfinite(drawn.astype(float))]


def _round(value: Fraction, mode: str) -> int:
    floor = math.floor(value)
    rest = value - floor
    if rest == 0 or mode == "towards-negative":
        return floor
    if mode == "towards-positive":
        return floor + 1
    if mode == "towards-zero":
        return floor if value > 0 else floor + 1
    if rest != Fraction(1, 2):
        return floor + (rest > Fraction(1, 2))
    up = floor % 2 == 1 if mode == "nearest-even" else value > 0
    return floor + up


def _exact(value: Any, target: np.dtype[Any], mode: str, out: str | None) -> Any:
    """Return the cast of one number by fractions, None where it must be refused."""
    number = Fraction(int(value)) if isinstance(value, int | np.integer) else Fraction(float(value))
    if target.kind in "iu":
        info = np.iinfo(target)
        whole = _round(number, mode)
        if info.min <= whole <= info.max:
            return whole
        if out == "clamp":
            return info.max if whole > 0 else info.min
        return (whole - int(info.min)) % 2 ** (8 * target.itemsize) + int(info.min) if out == "wrap" else None
    if number == 0:
        return float(value)
    known = ml_dtypes.finfo(target)
    exponent = math.floor(math.log2(abs(number)))
    while Fraction(2) ** exponent > abs(number):
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= abs(number):
        exponent += 1
    quantum = Fraction(2) ** max(exponent - known.nmant, int(known.minexp) - known.nmant)
    rounded = _round(number / quantum, mode) * quantum
    if abs(rounded) > Fraction(float(known.max)):
        return None if out is None else math.copysign(math.inf, rounded)
    return float(rounded)


@pytest.mark.parametrize("target", _TYPES)
@pytest.mark.parametrize("mode", _ROUNDED)
def test_cast_value_is_exact_arithmetic(target: str, mode: str) -> None:
    """Every number of every type is cast as fractions say, whatever the rounding and the way out of range."""
    kind = np.dtype(getattr(ml_dtypes, target, target))
    for out in (None, "clamp", "wrap") if kind.kind in "iu" else (None, "clamp"):
        given = {"data_type": target, "rounding": mode} | ({"out_of_range": out} if out else {})
        for source in _TYPES:
            samples = _samples(np.dtype(getattr(ml_dtypes, source, source)))
            bound = _bound(samples[:1], ("cast_value", given))
            for value in samples:
                array = np.array([value])
                expected = _exact(value, kind, mode, out)
                try:
                    found = np.frombuffer(bytes(bound.encode(array)), kind)[0]
                except StoreError:
                    assert expected is None, (source, value, out)
                    continue
                assert expected is not None, (source, value, out, found)
                assert (int(found) if kind.kind in "iu" else float(found)) == expected, (source, value, out)


def test_cast_value_maps_scalars_first() -> None:
    """NaN goes where the map sends it and comes back; without a map it is refused."""
    array = np.array([math.nan, 1, 2])
    maps = {"encode": [["NaN", 0], ["NaN", 9]], "decode": [[0, "NaN"]]}
    bound = _bound(array, ("cast_value", {"data_type": "uint8", "scalar_map": maps}))
    assert bytes(bound.encode(array)) == b"\0\1\2"
    np.testing.assert_array_equal(bound.decode(b"\0\1\2"), array)
    with pytest.raises(StoreError, match="NaN"):
        _bound(array, ("cast_value", {"data_type": "uint8", "out_of_range": "clamp"})).encode(array)


def test_reshape_keeps_the_order_of_elements() -> None:
    """The worked example of the registry has its bytes; shapes that would change the order are refused."""
    array = np.arange(24, dtype="u1").reshape(2, 3, 4)
    bound = _bound(array, ("reshape", {"shape": [[0, 1], [2]]}), ("transpose", {"order": [1, 0]}))
    assert bytes(bound.encode(array))[:8].hex() == "0004080c10140105"
    np.testing.assert_array_equal(bound.decode(bound.encode(array)), array)
    for shape in ([[0, 2], 3], [5, -1], [[1, 0], [2]], [-1, -1], [[0], [3]]):
        with pytest.raises(StoreError):
            _bound(array, ("reshape", {"shape": shape}))


def test_bitround_has_the_bytes_of_the_registry() -> None:
    """Integers round to their highest bits; floats as numcodecs does, but NaN stays."""
    from numcodecs import BitRound

    array = np.array([0, 1, 10, 11, 100, 123, 200, 208, 209, 255], "u1")
    assert bytes(_bound(array, ("bitround", {"keepbits": 3})).encode(array)).hex() == "00010a0c6080c0c0e0e0"
    for dtype in ("f2", "f4", "f8"):
        floats = np.random.default_rng(0).normal(0, 9, 100).astype(dtype)
        for keep in (1, 5, 10):
            found = np.frombuffer(bytes(_bound(floats, ("bitround", {"keepbits": keep})).encode(floats)), dtype)
            np.testing.assert_array_equal(found, BitRound(keep).encode(floats).view(dtype))
    nan = np.array([0x7F800001, 0x7FFFFFFF], "u4").view("f4")
    assert bytes(_bound(nan, ("bitround", {"keepbits": 2})).encode(nan)) == nan.tobytes()


@pytest.mark.parametrize(
    ("dtype", "values", "given", "expected"),
    [
        ("bool", [1, 0, 1, 1, 0, 0, 0, 1, 1, 1], {}, "8d03"),
        ("bool", [1, 0, 1, 1, 0, 0, 0, 1, 1, 1], {"padding_encoding": "first_byte"}, "068d03"),
        ("bool", [1, 0, 1, 1, 0, 0, 0, 1, 1, 1], {"padding_encoding": "last_byte"}, "8d0306"),
        ("uint4", [1, 2, 15, 7, 9], {}, "217f09"),
        ("int4", [1, -1, -8, 7, 0], {}, "f17800"),
        ("uint2", [0, 1, 2, 3, 3], {}, "e403"),
        ("uint8", [10, 6, 15], {"first_bit": 1, "last_bit": 3}, "dd01"),
    ],
)
def test_packbits_has_the_bytes_of_other_implementations(
    dtype: str, values: list[int], given: dict[str, Any], expected: str
) -> None:
    """Elements are packed lowest bit first, and come back where no bit was left out."""
    array = np.array(values).astype(getattr(ml_dtypes, dtype, dtype))
    bound = _bound(array, ("packbits", given), pack=False)
    data = bytes(bound.encode(array))
    assert data.hex() == expected
    if "first_bit" not in given:
        np.testing.assert_array_equal(bound.decode(data).astype(int), array.astype(int))
    with pytest.raises(StoreError):
        bound.decode(data + b"\0")


@pytest.mark.parametrize("prefix", ["", "numcodecs."])
@pytest.mark.parametrize(
    ("name", "given"),
    [("shuffle", {"elementsize": 4}), ("fletcher32", {}), ("zlib", {"level": 1}), ("bz2", {"level": 1})],
)
def test_codecs_of_numcodecs_have_two_names(prefix: str, name: str, given: dict[str, Any]) -> None:
    """A codec of numcodecs is known with and without its prefix, makes the same bytes, and is stored as it was named."""
    values = np.arange(100, dtype="i4").reshape(10, 10)
    codecs = [_LITTLE, {"name": prefix + name, "configuration": given}]
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": {"codecs": codecs}, "create": True}
    array = fsstore.open(spec, dtype="int32", shape=[10, 10]).result()
    array[...] = values
    assert array.spec().to_json()["metadata"]["codecs"][1]["name"] == prefix + name
    np.testing.assert_array_equal(array.read().result(), values)


def test_an_array_stores_what_its_chain_of_extensions_makes() -> None:
    """Floats scaled, cast to a byte and packed take a byte each in the store, and read back within the rounding."""
    codecs = [
        {"name": "scale_offset", "configuration": {"offset": -10, "scale": 0.1}},
        {"name": "cast_value", "configuration": {"data_type": "uint8", "out_of_range": "clamp"}},
        {"name": "packbits"},
    ]
    context = fsstore.Context()
    spec = {"driver": "zarr3", "kvstore": "memory://", "metadata": {"codecs": codecs}, "create": True}
    array = fsstore.open(spec, dtype="float64", shape=[4], context=context).result()
    array[...] = [0, 2540, 5, 10]
    store = fsstore.KvStore.open("memory://", context=context).result()
    assert store[b"c/0"].hex() == "01ff0202"
    np.testing.assert_allclose(array.read().result(), [0, 2540, 10, 10])
