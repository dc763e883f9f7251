"""The battery of the codec contract over every built-in codec."""

from __future__ import annotations

import numpy as np
import pytest

from fsstore.codec.blosc import BloscCodec
from fsstore.codec.chain import CodecChain, find_codec
from fsstore.codec.contract import ByteSpec, ChunkSpec
from fsstore.codec.deflate import GzipCodec
from fsstore.codec.sharding import ShardingCodec
from fsstore.codec.zarr3 import BytesCodec, Crc32cCodec, TransposeCodec, VlenBytesCodec, VlenUtf8Codec
from fsstore.codec.zstd import ZstdCodec
from fsstore.testing.codec_suite import CHECKS, CodecCase
from fsstore.values import registry

RNG = np.random.default_rng(7)
TEXTURE = np.cumsum(RNG.integers(0, 3, 6000)).astype("u2").tobytes()
NOISE = RNG.bytes(12000)
BIG = {"name": "bytes", "configuration": {"endian": "big"}}
REVERSED = {"name": "transpose", "configuration": {"order": [2, 1, 0]}}
LITTLE = {"name": "bytes", "configuration": {"endian": "little"}}
INDEX = [LITTLE, {"name": "crc32c"}]


def chain(*codecs):
    return CodecChain.from_json(list(codecs))


def objects(*items):
    array = np.empty(len(items), object)
    array[:] = items
    return array


def bytes_cases():
    codecs = [
        GzipCodec(0), GzipCodec(1), GzipCodec(9), ZstdCodec(3), ZstdCodec(-5, True), ZstdCodec(19), Crc32cCodec(),
        BloscCodec("lz4", 5, "shuffle", 2, 0), BloscCodec("zstd", 1, "bitshuffle", 4, 0), BloscCodec("zlib", 3, "noshuffle", None, 0),
        BloscCodec("blosclz", 9, "shuffle", 7, 512), BloscCodec("lz4hc", 0, "shuffle", 3, 0),
    ]  # fmt: skip
    for name, configuration in (
        ("zlib", {"level": 2}), ("gzip", {"level": 1}), ("bz2", {"level": 1}), ("lzma", {"preset": 1}), ("lz4", {}), ("zstd", {"level": 1}),
        ("blosc", {"cname": "lz4", "clevel": 1}), ("shuffle", {"elementsize": 4}), ("crc32", {}), ("adler32", {}), ("crc32c", {}), ("fletcher32", {}), ("jenkins_lookup3", {}), ("base64", {}),
    ):  # fmt: skip
        codecs.append(find_codec("numcodecs." + name).from_json(configuration))
    for codec in codecs:
        yield CodecCase(codec, ByteSpec(12000, 2), (TEXTURE, NOISE, bytes(12000)))
        if not codec.name.startswith("numcodecs.shuffle"):
            yield CodecCase(codec, ByteSpec(None), (TEXTURE, b"x"))


def array_cases():
    a = np.arange(24, dtype="i4").reshape(2, 3, 4)
    yield CodecCase(TransposeCodec((2, 0, 1)), ChunkSpec(a.dtype, a.shape), (a,))
    yield CodecCase(TransposeCodec("F"), ChunkSpec(a.dtype, a.shape), (a,))
    for dtype in ("b1", "i1", "u1", "i2", "u4", "i8", "f2", "f4", "f8", "c8", "c16", "U3", "S3", "V5", "M8[ns]"):
        values = (RNG.bytes(6 * np.dtype(dtype).itemsize), bytes(6 * np.dtype(dtype).itemsize))
        values = (
            tuple(np.frombuffer(v, dtype).reshape(2, 3) for v in values)
            if dtype not in ("b1", "U3")
            else (np.ones((2, 3), dtype),)
        )
        for endian in ("little", "big"):
            yield CodecCase(BytesCodec(endian), ChunkSpec(np.dtype(dtype), (2, 3)), values)
    for inner in ([LITTLE], [LITTLE, {"name": "zstd", "configuration": {"level": 1, "checksum": False}}]):
        for location in ("start", "end"):
            codec = ShardingCodec((1, 3, 2), chain(*inner), chain(*INDEX), location)
            part = a.copy()
            part[0] = 0
            yield CodecCase(codec, ChunkSpec(a.dtype, a.shape, 0), (a, part, np.zeros_like(a)))
    nested = {
        "name": "sharding_indexed",
        "configuration": {"chunk_shape": [1, 1, 2], "codecs": [LITTLE], "index_codecs": INDEX},
    }
    yield CodecCase(ShardingCodec((1, 3, 2), chain(nested), chain(LITTLE)), ChunkSpec(a.dtype, a.shape, 3), (a,))
    yield CodecCase(VlenUtf8Codec(), ChunkSpec(np.dtype(object), (4,)), (objects("a", "", "bé\N{SNOWMAN}", "x" * 300),))
    yield CodecCase(VlenBytesCodec(), ChunkSpec(np.dtype(object), (3,)), (objects(b"a", b"", bytes(range(256))),))
    f = np.linspace(0, 10, 24).reshape(2, 3, 4)
    for name, configuration, value, lossy in (
        ("delta", {"dtype": "<i4"}, a, False), ("astype", {"encode_dtype": "<i2", "decode_dtype": "<i4"}, a, False), ("bitround", {"keepbits": 8}, f, True),
        ("fixedscaleoffset", {"offset": 0, "scale": 10, "dtype": "<f8", "astype": "<i2"}, f, True), ("quantize", {"digits": 2, "dtype": "<f8"}, f, True),
        ("packbits", {}, a % 3 == 0, False), ("pcodec", {}, a, False), ("pcodec", {"level": 2, "equal_pages_up_to": 5}, f, False),
        ("zfpy", {}, f, False), ("zfpy", {}, a, False), ("zfpy", {"mode": 4, "tolerance": 0.5}, f, True), ("zfpy", {"mode": 2, "rate": 8}, f, True),
        ("zfpy", {"mode": 3, "precision": 9}, f.astype("f4"), True),
    ):  # fmt: skip
        yield CodecCase(
            find_codec("numcodecs." + name).from_json(configuration),
            ChunkSpec(value.dtype, value.shape),
            (value,),
            lossy=lossy,
        )
    for name, configuration, value, lossy in (
        ("scale_offset", {"offset": 5, "scale": 2}, f, True), ("scale_offset", {"offset": -3, "scale": 1}, a, False),
        ("cast_value", {"data_type": "int64"}, a, False), ("cast_value", {"data_type": "float32"}, a, False),
        ("reshape", {"shape": [6, 4]}, a, False), ("bitround", {"keepbits": 8}, f, True), ("packbits", {}, a % 3 == 0, False),
        ("zfp", {"mode": "reversible"}, f, False), ("zfp", {"mode": "fixed_rate", "rate": 9}, f.astype("f4"), True),
        ("zfp", {"mode": "fixed_accuracy", "tolerance": 0.5}, f, True), ("zfp", {"mode": "fixed_precision", "precision": 9}, a, True),
        ("n5_default", {"codecs": [REVERSED, BIG]}, a, False), ("n5_default", {"codecs": [REVERSED, BIG, {"name": "crc32c"}]}, f, False),
    ):  # fmt: skip
        codec = find_codec(name).from_json(configuration)
        yield CodecCase(codec, ChunkSpec(value.dtype, value.shape), (value,), lossy=lossy)


CASES = [*bytes_cases(), *array_cases()]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_codec_contract(check):
    """Every built-in codec keeps each sentence of the contract."""
    for case in CASES:
        check(case)


def test_every_registered_codec_has_a_case():
    """No codec of the registry escapes the battery."""
    assert set(registry.codecs.names()) <= {case.codec.name for case in CASES}
