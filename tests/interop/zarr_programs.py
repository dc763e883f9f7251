"""Random programs over zarr arrays, run through fsstore and TensorStore side by side on two stores, in memory or in files.

Run as a program, `zarr_programs.py FIRST COUNT` works through seeds and prints one JSON line for each disagreement and
a summary at the end; before each seed it prints the seed, so that the caller can go on after a crash of TensorStore.
Left out on purpose: what the documents say otherwise than TensorStore does (repeated dimension names), what TensorStore
writes and then refuses (`"order": "F"` with fewer than two dimensions), reading and writing nothing (TensorStore stores
chunks then), reversed views of empty implicit dimensions, statistics of shards, float8_e8m0fnu (TensorStore reads 1 as
2**-64), and values that the small floats cannot hold.

A program creates an array from random metadata, reads, writes, resizes and reopens it through random views, and at the
end both libraries read both stores, and zarr-python reads them and writes to one.
"""

import base64
import json
import math
import random
import sys
import tempfile

import ml_dtypes
import numpy as np
import zarr_third

INTEGERS = "int8 uint8 int16 uint16 int32 uint32 int64 uint64".split()
FLOATS = "float16 float32 float64".split()
SMALL_FLOATS = (
    "float8_e3m4 float8_e4m3fn float8_e4m3fnuz float8_e4m3b11fnuz float8_e5m2 float8_e5m2fnuz float4_e2m1fn bfloat16"
).split()
COMPLEX = ["complex64", "complex128"]
ODD = ["bool", "int2", "int4"]
V2_NAMES = (
    "|b1 |i1 |u1 <i2 >i2 <u2 >u2 <i4 >i4 <u4 >u4 <i8 >i8 <u8 >u8 <f2 >f2 <f4 >f4 <f8 >f8 <c8 >c8 <c16 >c16 bfloat16 "
    "int2 int4 float8_e3m4 float8_e4m3fn float8_e4m3fnuz float8_e4m3b11fnuz float8_e5m2 float8_e5m2fnuz"
).split()


def dtype_name(rng):
    pool = rng.choices([INTEGERS, FLOATS, SMALL_FLOATS, COMPLEX, ODD], [5, 4, 2, 2, 2])[0]
    return rng.choice(pool)


def integer_range(name):
    if name in ("int2", "int4"):
        bits = int(name[3:])
        return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    info = np.iinfo(name)
    return int(info.min), int(info.max)


def float_fill(rng, bits, *, hexadecimal=True, infinite=True):
    kind = rng.random()
    if not infinite and 0.35 <= kind < 0.6:
        return "NaN"
    if kind < 0.35:
        return rng.choice([0, 1, -2, 0.5, 1.5, -0.0, 3])
    if kind < 0.6:
        return rng.choice(["NaN", "Infinity", "-Infinity"])
    if kind < 0.8 and hexadecimal:
        digits = rng.choice([bits // 4, bits // 4, max(1, bits // 8)])
        text = f"{rng.getrandbits(4 * digits):0{digits}x}"
        return "0x" + rng.choice([text, text.upper()])
    return rng.choice([0, 0.0, 2.0])


def fill_v3(rng, name):
    if name == "bool":
        return rng.random() < 0.5
    if name.startswith(("int", "uint")):
        low, high = integer_range(name)
        return rng.choice([0, 1, low, high, rng.randint(low, high)])
    if name.startswith("complex"):
        return [float_fill(rng, int(name[7:]) // 2) for _ in range(2)]
    if name == "float4_e2m1fn":
        return rng.choice([1, 2.0, 1.0, 2])
    bits = {"bfloat16": 16}.get(name) or (8 if name.startswith(("float8", "float4")) else int(name[5:]))
    return float_fill(rng, bits, infinite=not name.endswith(("fn", "fnuz")))


def divisor(rng, size):
    return rng.choice([d for d in range(1, size + 1) if size % d == 0])


def compressors(rng, itemsize):
    out = []
    for _ in range(rng.choice([0, 0, 1, 1, 2])):
        kind = rng.choice(["gzip", "zstd", "blosc", "crc32c"])
        if kind == "gzip":
            out.append(rng.choice([{"name": kind, "configuration": {"level": rng.randint(0, 9)}}, kind]))
        elif kind == "zstd":
            configuration = {"level": rng.randint(-3, 6)}
            if rng.random() < 0.5:
                configuration["checksum"] = rng.random() < 0.5
            out.append({"name": kind, "configuration": configuration})
        elif kind == "blosc":
            configuration = {
                "cname": rng.choice("blosclz lz4 lz4hc snappy zlib zstd".split()),
                "clevel": rng.randint(0, 9),
            }
            if rng.random() < 0.5:
                configuration["shuffle"] = rng.choice(["noshuffle", "shuffle", "bitshuffle"])
            if rng.random() < 0.3:
                configuration["typesize"] = rng.randint(1, 16)
            out.append({"name": kind, "configuration": configuration})
        else:
            out.append({"name": kind})
    return out


def permutation(rng, rank):
    order = list(range(rank))
    rng.shuffle(order)
    return order


def chain(rng, shape, depth=0):
    """Return a codec chain for chunks of a shape, perhaps partial, perhaps sharded."""
    out, shape = [], list(shape)
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
        order = permutation(rng, len(shape))
        named = rng.random()
        if named < 0.15:
            out.append({"name": "transpose", "configuration": {"order": "F"}})
            order = list(range(len(shape)))[::-1]
        elif named < 0.25:
            out.append({"name": "transpose", "configuration": {"order": "C"}})
            order = list(range(len(shape)))
        else:
            out.append({"name": "transpose", "configuration": {"order": order}})
        shape = [shape[i] for i in order]
    if rng.random() < (0.45, 0.35, 0)[depth]:
        sub = [divisor(rng, size) for size in shape]
        configuration = {"chunk_shape": sub}
        if rng.random() < 0.8:
            configuration["codecs"] = chain(rng, sub, depth + 1)
        if rng.random() < 0.5:
            configuration["index_location"] = rng.choice(["start", "end"])
        if rng.random() < 0.5:
            configuration["index_codecs"] = rng.choice(
                [
                    [{"name": "bytes", "configuration": {"endian": "little"}}],
                    [{"name": "bytes", "configuration": {"endian": "big"}}, {"name": "crc32c"}],
                    ["crc32c"],
                    [{"name": "bytes"}, {"name": "crc32c"}],
                ]
            )
        out.append({"name": "sharding_indexed", "configuration": configuration})
        return out
    if rng.random() < 0.6:
        endian = rng.choice([{}, {"endian": "little"}, {"endian": "big"}])
        out.append({"name": "bytes", "configuration": endian} if endian else {"name": "bytes"})
    return out + compressors(rng, 1)


def shapes(rng):
    rank = rng.choices([0, 1, 2, 3, 4], [1, 4, 6, 4, 1])[0]
    shape = [rng.choice([0, 1, 3, 5, 7, 8, 10, 13, 20]) if rank < 3 else rng.randint(1, 7) for _ in range(rank)]
    if rng.random() < 0.9:
        shape = [max(1, size) for size in shape]
    chunks = [rng.choice([1, 2, 3, 4, 6, 8, 12]) if rank < 4 else rng.randint(1, 4) for _ in range(rank)]
    return shape, chunks


def names(rng, rank):
    return [rng.choice([None, "", f"d{i}", f"été{i}"]) for i in range(rank)]


def units(rng, rank):
    return [rng.choice([None, "nm", "4 nm", "", "2.5 um", "1e3 s"]) for _ in range(rank)]


def zarr3_spec(rng):
    shape, chunks = shapes(rng)
    name = dtype_name(rng)
    metadata = {"shape": shape, "data_type": name}
    spec = {"driver": "zarr3", "metadata": metadata}
    metadata["chunk_grid"] = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    if rng.random() < 0.85:
        metadata["codecs"] = chain(rng, chunks)
    elif rng.random() < 0.5:
        spec["schema"] = {"codec": {"driver": "zarr3", "codecs": chain(rng, chunks)}}
    elif rng.random() < 0.7:
        del metadata["chunk_grid"]
        spec["schema"] = {"chunk_layout": layout(rng, chunks)}
    if rng.random() < 0.8:
        metadata["fill_value"] = fill_v3(rng, name)
    if rng.random() < 0.4:
        encoding = rng.choice(["default", "v2"])
        metadata["chunk_key_encoding"] = rng.choice(
            [{"name": encoding}, {"name": encoding, "configuration": {"separator": rng.choice("./")}}]
        )
    if rng.random() < 0.2:
        metadata["dimension_names"] = names(rng, len(shape))
    if rng.random() < 0.3:
        metadata["attributes"] = {"a": rng.choice([1, "x", None, [1.5], {"b": True}])}
        if rng.random() < 0.5:
            metadata["attributes"]["dimension_units"] = units(rng, len(shape))
    if rng.random() < 0.1:
        metadata["extension"] = {"must_understand": False, "k": 1}
    if rng.random() < 0.15:
        spec["field"] = struct_v3(rng, metadata)
        spec.pop("schema", None)
    return spec


def struct_v3(rng, metadata):
    """Make the elements structures, for which TensorStore wants a byte order; return the field to open."""
    pack = {"name": "bytes", "configuration": {"endian": rng.choice(["little", "big"])}}
    metadata["codecs"] = [pack, *compressors(rng, 1)]
    if "chunk_grid" in metadata and rng.random() < 0.4:
        parts = [divisor(rng, size) for size in metadata["chunk_grid"]["configuration"]["chunk_shape"]]
        shard = {"chunk_shape": parts, "codecs": metadata["codecs"]}
        metadata["codecs"] = [{"name": "sharding_indexed", "configuration": shard}]
    kinds = {f"f{i}": rng.choice(INTEGERS + FLOATS) for i in range(rng.randint(2, 3))}
    fields = [{"name": name, "data_type": kind} for name, kind in kinds.items()]
    metadata["data_type"] = {"name": "struct", "configuration": {"fields": fields}}
    if "fill_value" in metadata:
        metadata["fill_value"] = {name: fill_v3(rng, kind) for name, kind in kinds.items()}
    return rng.choice(list(kinds))


def layout(rng, chunks):
    out = {"write_chunk": {"shape": chunks}, "read_chunk": {"shape": [divisor(rng, size) for size in chunks]}}
    if rng.random() < 0.5:
        out[rng.choice(["inner_order", "inner_order_soft_constraint"])] = permutation(rng, len(chunks))
    return out


def compressor_v2(rng):
    return rng.choice(
        [
            None,
            {"id": "zlib", "level": rng.randint(0, 9)},
            {"id": "gzip"},
            {"id": "bz2", "level": rng.randint(1, 9)},
            {"id": "zstd", "level": rng.randint(-20, 5)},
            {"id": "blosc"},
            {
                "id": "blosc",
                "cname": rng.choice("blosclz lz4 lz4hc zlib zstd".split()),
                "clevel": rng.randint(0, 9),
                "shuffle": rng.randint(-1, 2),
                "blocksize": rng.choice([0, 1, 5, 100]),
            },
        ]
    )


def fill_v2(rng, name):
    if rng.random() < 0.35:
        return None
    kind = np.dtype(name).kind if name[0] in "<>|" else ""
    if name.startswith("int"):
        low, high = integer_range(name)
        return rng.randint(low, high)
    if kind in ("i", "u"):
        info = np.iinfo(np.dtype(name))
        return rng.choice([0, 1, int(info.min), int(info.max)])
    if kind == "b":
        return rng.random() < 0.5
    part = rng.choice([0, 1.5, "NaN", "Infinity", "-Infinity", "2.5", 0.1, -0.0])
    if name.endswith(("fn", "fnuz")) and part in ("Infinity", "-Infinity"):
        part = "NaN"
    return [part, rng.choice([0.0, "NaN", 1])] if kind == "c" else part


def struct_v2(rng):
    fields = []
    for i in range(rng.randint(1, 3)):
        field = [f"f{i}", rng.choice([*V2_NAMES, "<u1", ">b1"])]
        if rng.random() < 0.4:
            field.append([rng.randint(1, 3) for _ in range(rng.randint(0, 2))])
        fields.append(field)
    return fields


def struct_fill_v2(rng, fields):
    """Return null, or the bytes of an element that are valid for every type."""
    if rng.random() < 0.3:
        return None
    sizes = [native_v2(name).itemsize * math.prod(*(shape or [()])) for _, name, *shape in fields]
    return base64.b64encode(bytes(rng.choice([0, 1]) for _ in range(sum(sizes)))).decode()


def native_v2(name):
    return np.dtype(name) if name[0] in "<>|" else np.dtype(getattr(ml_dtypes, name))


def zarr2_spec(rng):
    shape, chunks = shapes(rng)
    metadata = {"shape": shape, "chunks": chunks}
    spec = {"driver": "zarr", "metadata": metadata}
    if rng.random() < 0.25:
        metadata["dtype"] = struct_v2(rng)
        if len(metadata["dtype"]) > 1 or rng.random() < 0.5:
            spec["field"] = rng.choice(metadata["dtype"])[0]
        if rng.random() < 0.7:
            metadata["fill_value"] = struct_fill_v2(rng, metadata["dtype"])
    else:
        metadata["dtype"] = rng.choice(V2_NAMES)
        if rng.random() < 0.8:
            metadata["fill_value"] = fill_v2(rng, metadata["dtype"])
    if rng.random() < 0.7:
        metadata["compressor"] = compressor_v2(rng)
    if rng.random() < 0.6:
        metadata["order"] = rng.choice("CF") if len(shape) > 1 else "C"
    if rng.random() < 0.5:
        metadata["dimension_separator"] = rng.choice("./")
    return spec


def interval(rng, low, high):
    """Return a slice as text within `[low, high)`, perhaps strided or backwards."""
    if high <= low or rng.random() < 0.3:
        return rng.choice([":", ":", "::-1" if high > low else ":"])
    a, b = sorted((rng.randint(low, high), rng.randint(low, high)))
    step = rng.choice([1, 1, 1, 2, 3, -1, -2])
    if step > 0:
        return f"{a}:{b}" if step == 1 else f"{a}:{b}:{step}"
    return f"{b - 1}:{a - 1}:{step}" if b > a else ":"


def listed(rng, low, high, count, *, distinct):
    if distinct:
        picks = rng.sample(range(low, high), min(count, high - low))
    else:
        picks = [rng.randrange(low, high) for _ in range(count)]
    return "[" + ",".join(map(str, picks)) + "]"


def view_step(rng, low, high, *, distinct):
    """Return one indexing operation, as a suffix of Python text, for a view of the given bounds."""
    rank = len(low)
    empty = any(a >= b for a, b in zip(low, high))
    kind = rng.random()
    if kind < 0.5 or empty or not rank:
        terms = []
        for a, b in zip(low, high):
            terms.append(str(rng.randrange(a, b)) if rng.random() < 0.15 and b > a else interval(rng, a, b))
        return "[" + ",".join([*terms[: rng.randint(0, rank)], "..."]) + "]"
    if kind < 0.65:
        terms = [
            listed(rng, a, b, rng.randint(1, 5), distinct=distinct) if rng.random() < 0.5 else interval(rng, a, b)
            for a, b in zip(low, high)
        ]
        return ".oindex[" + ",".join(terms) + "]"
    if kind < 0.78:
        count = rng.randint(1, 6)
        used = sorted(rng.sample(range(rank), rng.randint(1, rank)))
        count = min([count, *(high[d] - low[d] for d in used)])
        terms = [
            listed(rng, low[d], high[d], count, distinct=distinct) if d in used else interval(rng, low[d], high[d])
            for d in range(rank)
        ]
        return rng.choice([".vindex[", "["]) + ",".join(terms) + "]"
    if kind < 0.88:
        return f".transpose({permutation(rng, rank)})"
    if kind < 0.94:
        return f".translate_to[{','.join(str(rng.randint(-3, 3)) for _ in range(rank))},]"
    return rng.choice(["[None]", ".T", "[...,None]"])


def elements(rng, native, shape, fill):
    """Return values of a dtype: any bits, few different ones, or the fill value."""
    count = int(np.prod(shape, dtype=object))
    kind = rng.random()
    if kind < 0.25 and fill is not None:
        return np.full(shape, fill, native)
    bits = np.random.default_rng(rng.getrandbits(32))
    if native.kind == "b":
        return bits.integers(0, 2, count).astype(bool).reshape(shape)
    if native.name in ("int2", "int4"):
        low, high = integer_range(native.name)
        return bits.integers(low, high + 1, count).astype(np.int8).astype(native).reshape(shape)
    if kind < 0.6:
        small = bits.integers(0, 3, count)
        return small.astype(np.float32).astype(native).reshape(shape)
    top = 16 if native.name == "float4_e2m1fn" else 256
    raw = bits.integers(0, top, count * native.itemsize, dtype=np.uint8)
    return raw.view(native).reshape(shape)


def for_tensorstore(values):
    """Return the values as TensorStore holds them: small integers with their sign in all bits."""
    if np.asarray(values).dtype.name not in ("int2", "int4"):
        return values
    return values.astype(np.int8).view(values.dtype)


class Disagreement(Exception):
    """The two libraries did different things."""


class Pair:
    """One array in both libraries."""

    def __init__(self, fs, ts, log):
        self.fs, self.ts, self.log = fs, ts, log

    def both(self, what, run, *, fs=None, ts=None):
        """Run on both; both succeed or both fail.  Return the results, or None when both failed."""
        out, errors = [], []
        for module, store in ((self.fs[0], fs or self.fs[1]), (self.ts[0], ts or self.ts[1])):
            try:
                out.append(run(module, store))
                errors.append(None)
            except Exception as error:  # noqa: BLE001  # any failure is a result here
                out.append(None)
                errors.append(f"{type(error).__name__}: {str(error)[:400]}")
        if (errors[0] is None) != (errors[1] is None):
            raise Disagreement(f"{what}: fsstore {errors[0]!r}, tensorstore {errors[1]!r}")
        return None if errors[0] is not None else out

    def same_json(self, what, run):
        """Run on both and compare the resulting JSON values."""
        out = self.both(what, run)
        if out is not None and (found := list(differences(*out))):
            raise Disagreement(f"{what}: " + "; ".join(found))

    def same(self, what, run, **stores):
        """Run on both and compare the results."""
        out = self.both(what, run, **stores)
        if out is not None and out[0] != out[1]:
            raise Disagreement(f"{what}: fsstore {out[0]!r}, tensorstore {out[1]!r}")
        return out


def json_of(value):
    return json.dumps(value, sort_keys=True, default=str)


def differences(left, right, path=""):
    """Yield where two JSON values differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        for name in sorted({*left, *right}):
            yield from differences(left.get(name, "<absent>"), right.get(name, "<absent>"), f"{path}.{name}")
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        for number, (a, b) in enumerate(zip(left, right)):
            yield from differences(a, b, f"{path}[{number}]")
    elif json_of(left) != json_of(right):
        yield f"{path}: fsstore {json_of(left)}, tensorstore {json_of(right)}"


def bits(array):
    array = np.asarray(array)
    if array.dtype.name in ("int2", "int4"):  # the unused bits of a byte are nobody's business
        array = array.astype(np.int8)
    return (array.shape, array.dtype.name, np.ascontiguousarray(array).tobytes())


def make_view(rng, pair, *, distinct):
    """Return a random view in both libraries, or None when both refuse it."""
    text, views = "s", [pair.fs[1], pair.ts[1]]
    for _ in range(rng.randint(0, 3)):
        domain = views[0].domain
        low, high = list(domain.inclusive_min), list(domain.exclusive_max)
        if domain.rank > 5 or any(abs(b) > 10**6 for b in (*low, *high)):
            break
        suffix = view_step(rng, low, high, distinct=distinct)
        pair.log.append(f"view {text}{suffix}")
        text += suffix
        views = pair.both(
            f"view {text}",
            lambda module, store, suffix=suffix: eval(f"v{suffix}", {"v": store, "np": np, "ts": module}),
            fs=views[0],
            ts=views[1],
        )
        if views is None:
            return None
        pair.same("domain", lambda _, store: str(store.domain), fs=views[0], ts=views[1])
    return text, views


def write_step(rng, pair):
    made = make_view(rng, pair, distinct=True)
    if made is None:
        return
    text, (fs, ts) = made
    if 0 in fs.domain.shape:  # TensorStore stores chunks for some of these
        return
    fill = fs.fill_value
    native = fs.dtype.numpy_dtype
    fill = None if fill is None or np.ndim(fill) else fill
    values = elements(rng, native, fs.domain.shape, fill)
    if rng.random() < 0.15 and values.size and values.ndim:
        values = values[:1] if rng.random() < 0.5 else values.reshape(-1)[0]
    pair.log.append(f"write {text} {native} {np.shape(values)}")

    def run(module, store):
        store.write(for_tensorstore(values) if store is ts else values).result()

    pair.both(f"write {text}", run, fs=fs, ts=ts)


def read_step(rng, pair):
    made = make_view(rng, pair, distinct=False)
    if made is None:
        return
    text, (fs, ts) = made
    if 0 in fs.domain.shape:  # TensorStore complains of missing chunks for some of these
        return
    pair.log.append(f"read {text}")
    order = rng.choice("CF")
    pair.same(f"read {text}", lambda _, store: bits(store.read(order=order).result()), fs=fs, ts=ts)


def resize_step(rng, pair):
    shape = list(pair.fs[1].domain.exclusive_max)
    new = [rng.choice([None, None, max(0, size + rng.randint(-6, 6))]) for size in shape]
    options = {}
    if rng.random() < 0.15:
        options[rng.choice(["resize_metadata_only", "expand_only", "shrink_only", "resize_tied_bounds"])] = True
    pair.log.append(f"resize {new} {options}")
    out = pair.both(f"resize {new}", lambda _, store: store.resize(exclusive_max=new, **options).result())
    if out is not None:
        pair.fs[1], pair.ts[1] = out
        pair.same("domain after resize", lambda _, store: str(store.domain))


def statistics_step(rng, pair):
    if "sharding_indexed" in json_of(pair.fs[1].codec.to_json()):  # TensorStore crashes on some of these views
        return
    made = make_view(rng, pair, distinct=True)
    if made is None:
        return
    text, (fs, ts) = made
    pair.log.append(f"statistics {text}")

    def run(_, store):
        found = store.storage_statistics(query_not_stored=True, query_fully_stored=True).result()
        return found.not_stored, found.fully_stored

    pair.same(f"statistics {text}", run, fs=fs, ts=ts)


STEPS = [write_step, write_step, write_step, read_step, read_step, resize_step, statistics_step]


def place(rng, folder):
    """Return the store of the array, by library: memory, or now and then files."""
    if rng.random() < 0.9:
        return lambda _: {"driver": "memory"}
    return lambda module: {"driver": "file", "path": f"{folder}/{module.__name__}/", "file_io_sync": False}


def stored(module, context, kvstore):
    """Return every key and value."""
    store = module.KvStore.open(kvstore, context=context).result()
    return {key.decode(): store.read(key).result().value for key in store.list().result()}


def compare_files(pair, contexts, where):
    """Compare keys, and metadata as JSON."""
    modules = (pair.fs[0], pair.ts[0])
    fs, ts = (stored(module, context, where(module)) for module, context in zip(modules, contexts))
    if set(fs) != set(ts):
        raise Disagreement(
            f"files: only fsstore {sorted(set(fs) - set(ts))}, only tensorstore {sorted(set(ts) - set(fs))}"
        )
    for key in fs:
        if key.endswith(("zarr.json", ".zarray")):
            found = list(differences(json.loads(fs[key]), json.loads(ts[key])))
            if found:
                raise Disagreement(f"{key}: " + "; ".join(found))
    return fs, ts


def cross_read(pair, spec, files):
    """Both libraries read the files of the other."""
    expected = bits(pair.fs[1].resolve().result().read().result())
    for module, other in ((pair.fs[0], files[1]), (pair.ts[0], files[0])):
        if read_by(module, spec, other) != expected:
            raise Disagreement(f"{module.__name__} reads other data from the other's files")


def read_by(module, spec, files):
    """Return the bits that a library reads from some files."""
    context = module.Context()
    store = module.KvStore.open({"driver": "memory"}, context=context).result()
    for key, value in files.items():
        store.write(key, value).result()
    opening = {name: spec[name] for name in ("driver", "field") if name in spec}
    return bits(module.open({**opening, "kvstore": "memory://"}, context=context).result().read().result())


def third_library(pair, spec, files, tally):
    """zarr-python reads both libraries' files alike, and both read what it writes into fsstore's."""
    expected = bits(pair.fs[1].resolve().result().read().result())
    found = [zarr_third.read(each, spec, bits) for each in files]
    if found[0] != found[1]:
        raise Disagreement(f"zarr-python reads {found[0]!r} from fsstore's files, {found[1]!r} from tensorstore's")
    if found[0][0] != expected[0] or found[0][2:] != expected[2:]:
        return
    tally["read by zarr-python"] += 1
    written = zarr_third.write(files[0], spec, len(files[0]))
    if written is None:
        return
    seen = [zarr_third.read(written, spec, bits), *(read_by(m, spec, written) for m in (pair.fs[0], pair.ts[0]))]
    if len({each[::2] for each in seen}) > 1:
        raise Disagreement(f"after zarr-python wrote: it, fsstore and tensorstore read {seen!r}")
    tally["written by zarr-python"] += 1


def run_program(seed, fsstore, tensorstore, folder, tally):
    """Run one program; return (disagreement or None, log)."""
    rng = random.Random(seed)
    spec = rng.choice([zarr3_spec, zarr3_spec, zarr2_spec])(rng)
    options = {}
    if rng.random() < 0.15:
        options["store_data_equal_to_fill_value"] = True
    if rng.random() < 0.05:
        options["fill_missing_data_reads"] = False
    spec = {**spec, **options}
    where = place(rng, folder)
    log = [json_of(spec)]
    contexts = [fsstore.Context(), tensorstore.Context()]
    pair = Pair([fsstore, None], [tensorstore, None], log)
    try:
        out = pair.both(
            "create",
            lambda module, store: module.open(
                {**spec, "kvstore": where(module)},
                create=True,
                context=contexts[0] if module is fsstore else contexts[1],
            ).result(),
        )
        if out is None:
            return "refused", log
        pair.fs[1], pair.ts[1] = out
        compare_files(pair, contexts, where)
        pair.same_json("schema", lambda _, store: store.schema.to_json())
        if where(fsstore) == where(tensorstore):
            pair.same_json("spec", lambda _, store: store.spec().to_json())
        for _ in range(rng.randint(3, 9)):
            rng.choice(STEPS)(rng, pair)
        pair.same("final", lambda _, store: bits(store.resolve().result().read().result()))
        files = compare_files(pair, contexts, where)
        if "fill_missing_data_reads" not in options:
            cross_read(pair, spec, files)
            if "snappy" not in log[0]:  # which numcodecs cannot decompress
                third_library(pair, spec, files, tally)
    except Disagreement as error:
        return str(error), log
    return None, log


def main():
    """Work through seeds."""
    import tensorstore

    import fsstore

    first, count = int(sys.argv[1]), int(sys.argv[2])
    tally = dict.fromkeys(("agreed", "refused", "disagreed", "read by zarr-python", "written by zarr-python"), 0)
    for seed in range(first, first + count):
        print(f"seed {seed}", flush=True)
        with tempfile.TemporaryDirectory() as folder:
            problem, log = run_program(seed, fsstore, tensorstore, folder, tally)
        kind = "agreed" if problem is None else "refused" if problem == "refused" else "disagreed"
        tally[kind] += 1
        if kind == "disagreed":
            print(json.dumps({"seed": seed, "problem": problem, "log": log}), flush=True)
    print(json.dumps({"done": tally}), flush=True)


if __name__ == "__main__":
    main()
