"""Random zarr v3 arrays of zarr-python 3.1.6: it and fsstore write boxes in turn, and each reads what the other wrote.

Data types, codecs and fill values that TensorStore has not, in every combination: strings and bytes of variable and
fixed length, times, raw bytes, structures, `numcodecs.*`; with shards, transposes, key encodings and missing chunks.
Left out is what zarr-python cannot do: shards of raw bytes, of structures and of times without a unit, whose fill values
it cannot hash; transposed strings of variable length, which it does not read back as it wrote them; shards without
dimensions; strings without dimensions, whose length it does not keep.
"""

import json
import random

import numpy as np
import pytest
import zarr
from zarr.codecs import numcodecs as named

import fsstore as ts

pytestmark = pytest.mark.filterwarnings("ignore")
STRUCT = [("a", "<i2"), ("b", "<f8"), ("c", "u1")]
PLAIN = "bool i1 u1 i2 u2 i4 u4 i8 u8 f2 f4 f8 c8 c16 M8[ns] M8[10us] M8[D] m8[s] U5 U1 S5 S1".split()
NO_SHARDS = ["V4", "V1", "m8", STRUCT]
OBJECTS = {
    "text": (zarr.dtype.VariableLengthUTF8(), ["", "a", "é☃", "long " * 10, "\0x"]),
    "octets": (zarr.dtype.VariableLengthBytes(), [b"", b"a", b"\0\xff", b"long" * 10]),
}
CODECS = "LZ4 BZ2 Zlib LZMA CRC32 Adler32 Fletcher32 JenkinsLookup3 Zstd GZip Blosc".split()


def elements(rng, kind, shape):
    """Return random elements of a data type: any bits, few different ones, words."""
    if isinstance(kind, str) and kind in OBJECTS:
        out = np.empty(shape, object)
        for at in np.ndindex(shape):
            out[at] = rng.choice(OBJECTS[kind][1])
        return out
    dtype, draw = np.dtype(kind), np.random.default_rng(rng.getrandbits(32))
    if dtype.kind in "US":
        return draw.choice(np.array(["", "a", "bb", "abcde"], dtype), shape).astype(dtype)
    top = 2 if dtype.kind == "b" or rng.random() < 0.4 else 256
    return draw.integers(0, top, (*shape, dtype.itemsize), np.uint8).view(dtype)[..., 0]


def compressors(rng):
    """Return none, one or two codecs from bytes to bytes."""
    blosc = {"cname": rng.choice(["lz4", "zstd"]), "shuffle": rng.choice(["noshuffle", "shuffle", "bitshuffle"])}
    choices = [
        zarr.codecs.GzipCodec(level=rng.randint(0, 9)),
        zarr.codecs.ZstdCodec(level=rng.choice([-5, 0, 3]), checksum=rng.random() < 0.5),
        zarr.codecs.BloscCodec(typesize=rng.choice([1, 2, 8]), **blosc),
        zarr.codecs.Crc32cCodec(),
        getattr(named, rng.choice(CODECS))(),
    ]
    return [rng.choice(choices) for _ in range(rng.choice([0, 1, 1, 2]))]


def array(rng):
    """Return the kind of elements and the options of a random array."""
    kind = rng.choice([*PLAIN, *NO_SHARDS, *OBJECTS, *OBJECTS])
    is_object = isinstance(kind, str) and kind in OBJECTS
    rank = rng.choice([1, 2, 2, 3] if is_object or str(kind)[0] in "US" else [0, 1, 2, 3])
    outer = tuple(rng.choice([1, 2, 4, 6, 8]) for _ in range(rank))
    options = {"shape": tuple(rng.choice([1, 2, 5, 7, 8]) for _ in range(rank)), "chunks": outer}
    options["dtype"] = OBJECTS[kind][0] if is_object else np.dtype(kind)
    options["config"] = {"write_empty_chunks": rng.random() < 0.3}
    if rank and kind not in NO_SHARDS and rng.random() < 0.5:
        parts = tuple(rng.choice([d for d in range(1, size + 1) if size % d == 0]) for size in outer)
        options |= {"shards": outer, "chunks": parts}
    if rng.random() < 0.5:
        options["fill_value"] = elements(rng, kind, (1,))[0]
    if str(kind)[:2] in ("M8", "m8") and rng.random() < 0.5:
        options["fill_value"] = np.array("NaT", kind)[()]
    if kind in ("i4", "f2", "c16", "U5", "M8[ns]") and rng.random() < 0.5:
        options["serializer"] = zarr.codecs.BytesCodec(endian="big")
    if not is_object and rng.random() < 0.3:
        options["filters"] = [zarr.codecs.TransposeCodec(order=tuple(rng.sample(range(rank), rank)))]
    if rng.random() < 0.8:
        options["compressors"] = compressors(rng)
    if rng.random() < 0.4:
        options["chunk_key_encoding"] = {"name": rng.choice(["default", "v2"]), "separator": rng.choice("./")}
    return kind, options


def same(left, right):
    """Return whether elements are equal bit by bit."""
    left, right = (np.asarray(each) for each in (left, right))
    if left.dtype.hasobject or right.dtype.hasobject:
        return left.shape == right.shape and left.tolist() == right.tolist()
    little = (np.ascontiguousarray(each.astype(each.dtype.newbyteorder("<"))) for each in (left, right))
    return left.shape == right.shape and len({each.tobytes() for each in little}) == 1


def run(seed, folder):
    """Write to an array of zarr-python, and to one that fsstore made of the same metadata."""
    rng = random.Random(seed)
    kind, options = array(rng)
    zarr.create_array(store=str(folder / "z"), zarr_format=3, **options)
    document = json.loads((folder / "z" / "zarr.json").read_text())
    spec = {"driver": "zarr3", "kvstore": f"file://{folder}/f/", "metadata": document}
    ts.open(spec, create=True).result()
    for name in "zf":
        mine = ts.open(f"file://{folder}/{name}/|zarr3:").result()
        theirs = zarr.open_array(str(folder / name), mode="r+")
        assert same(mine.read().result(), theirs[...])
        for step in range(4):
            ends = [sorted((rng.randint(0, size), rng.randint(0, size))) for size in mine.shape]
            box = tuple(slice(low, high) if low < high else slice(0, high + 1) for low, high in ends)
            box = tuple(slice(part.start, min(part.stop, n)) for part, n in zip(box, mine.shape, strict=True))
            shape = tuple(part.stop - part.start for part in box)
            values = elements(rng, kind, shape)
            if step % 2:
                mine[box].write(values).result()
            else:
                theirs[box or ...] = values
            found = mine[box].read().result()
            assert same(found, values), (name, step, box)
            assert same(mine.read().result(), theirs[...]), (name, step, box)


def test_random_arrays(tmp_path):
    """Forty of them; an error names the seed."""
    try_many(range(40), tmp_path)


@pytest.mark.long
def test_many_random_arrays(tmp_path):
    """A thousand."""
    try_many(range(1000, 2000), tmp_path)


def try_many(seeds, folder):
    """Run programs, each in a folder of its own."""
    for seed in seeds:
        try:
            run(seed, folder / str(seed))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
