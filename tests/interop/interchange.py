"""A library of arrays that is written by one implementation and read by another, and the page that says how that went.

A case is a stored document and the values of its array.  The document is put in place; one side opens it and writes the
values, the other opens it and reads them, bit for bit.  So chunks, shards and checksums are those of the writer.  A
library that does not open the document refuses it, which is an answer too; anything else that goes wrong is a failure.

`python tests/interop/interchange.py` writes `docs/reference/compatibility.md`.  cloud-volume brings more packages than
all others together, so it has an environment of its own, of what `CLOUD_VOLUME` names and the test dependencies: there
`python tests/interop/interchange.py cloud-volume` exchanges volumes with it and writes down what it did, which the page
repeats.
"""

from __future__ import annotations

import itertools
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import tensorstore
import zarr

import fsstore

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "compatibility.md"
RECORD = Path(__file__).parents[1] / "data" / "interchange" / "cloud_volume.json"
VERSIONS = {"tensorstore": ("0.1.86",), "zarr": ("3.1.6", "3.4.2"), "zarrs": ("0.2.3",)}
"""What the page speaks of: it is the same with each of these, as the test finds on every interpreter that it runs on."""
FILES = Path(__file__).parents[1] / "data" / "interchange" / "files.md"
"""The part of the page that says what `python -m tests.strangers` found in files of other repositories."""
CLOUD_VOLUME = ("cloud-volume", "pyspng-seunglab")
LAYOUTS = (((7, 5), (3, 2)), ((9,), (4,)), ((3, 4, 5), (2, 4, 3)), ((4, 6), (4, 6)), ((1, 8), (1, 3)))
"""Shapes and chunks; the first alone is tried with everything."""


class Case(NamedTuple):
    """An array: its format, the rows of the page it counts for, the documents, the values, and where they are."""

    format: str
    codec: str
    type: str
    documents: dict[str, Any]
    values: np.ndarray[Any, Any]
    shown: bool
    """Whether it is one of those that the page is made of, and the usual run tries."""

    @property
    def name(self) -> str:
        """What messages call it."""
        return f"{self.format} {self.codec} {self.type} {self.values.shape}"


# --- the cases

_NUMBERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")
_CORE = ("bool", *_NUMBERS, "float16", "complex64", "complex128")
_SMALL = ("bfloat16", "float8_e5m2", "float8_e4m3fn", "int4", "uint4", "float6_e2m3fn")


def _values(kind: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return odd values of a type: all bits, NaN and both zeros among them."""
    rng = np.random.default_rng(len(kind) + 31 * sum(shape))
    count = int(np.prod(shape))
    if kind == "bool":
        values = rng.integers(0, 2, count).astype(bool)
    elif kind in ("string", "U5", "S5"):
        words = ["", "a", "zürich"[: 5 if kind == "U5" else 9], "x" * 5]
        values = np.array([words[n] for n in rng.integers(0, 4, count)], object)
        values = values.astype(kind) if kind == "U5" else values
        values = np.array([w.encode()[:5] for w in values], "S5") if kind == "S5" else values
    elif kind in ("int4", "uint4", "float6_e2m3fn"):
        native = np.dtype(getattr(ml_dtypes, kind))
        values = np.arange(count).astype("i1") % 8
        values = values.astype(native)
    else:
        native = np.dtype(getattr(ml_dtypes, kind)) if kind in _SMALL else np.dtype(kind)
        values = np.frombuffer(rng.bytes(count * native.itemsize), native).copy()
        if native.kind == "f" or kind in _SMALL:
            values[: min(3, count)] = np.array([np.nan, -0.0, 1.0]).astype(native)[: min(3, count)]
            with np.errstate(invalid="ignore"):  # some NaN are signaling ones
                values[np.isnan(values.astype("f8"))] = np.array(np.nan).astype(native)
        if native.kind == "c":
            values = (rng.integers(-9, 9, count) + 1j * rng.integers(-9, 9, count)).astype(native)
    return values.reshape(shape)


def _codec(name: str, **configuration: Any) -> dict[str, Any]:
    return {"name": name, "configuration": configuration} if configuration else {"name": name}


def _packs(wide: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    return (_codec("bytes", endian="little"), _codec("bytes", endian="big")) if wide else (_codec("bytes"),) * 2


def _chains(itemsize: int, rank: int, chunks: tuple[int, ...]) -> Iterator[tuple[str, list[Any], tuple[int, ...]]]:
    """Yield chains of zarr v3 by name, and the chunks that go with them."""
    little, big = _packs(itemsize > 1)
    index = [_codec("bytes", endian="little"), _codec("crc32c")]
    zstd, gzip = _codec("zstd", level=3, checksum=False), _codec("gzip", level=5)
    blosc = {"cname": "lz4", "clevel": 5, "shuffle": "shuffle", "typesize": itemsize, "blocksize": 0}
    turned = _codec("transpose", order=list(range(rank))[::-1])
    doubled = tuple(2 * size for size in chunks)

    def shard(inner: list[Any], **more: Any) -> dict[str, Any]:
        return _codec("sharding_indexed", chunk_shape=list(chunks), codecs=inner, index_codecs=index, **more)

    yield "bytes", [little], chunks
    yield "bytes, big endian", [big], chunks
    yield "transpose", [turned, little], chunks
    yield "gzip", [little, gzip], chunks
    yield "zstd", [little, zstd], chunks
    yield "blosc", [little, _codec("blosc", **blosc)], chunks
    yield (
        "blosc zstd, bitshuffle",
        [little, _codec("blosc", **{**blosc, "cname": "zstd", "shuffle": "bitshuffle"})],
        chunks,
    )
    yield "crc32c", [little, _codec("crc32c")], chunks
    yield "gzip, crc32c", [little, gzip, _codec("crc32c")], chunks
    yield "sharding_indexed", [shard([little], index_location="end")], doubled
    yield (
        "sharding_indexed, zstd, index at the start",
        [shard([turned, little, zstd], index_location="start")],
        doubled,
    )
    if itemsize > 1:
        yield "numcodecs.shuffle", [little, _codec("numcodecs.shuffle", elementsize=itemsize)], chunks
    yield "numcodecs.zlib", [little, _codec("numcodecs.zlib", level=5)], chunks
    yield "numcodecs.bz2", [little, _codec("numcodecs.bz2", level=5)], chunks
    yield "packbits", [_codec("packbits")], chunks


def _v3(kind: str, codecs: list[Any], shape: tuple[int, ...], chunks: tuple[int, ...], fill: Any) -> dict[str, Any]:
    keys = _codec("default", separator="/") if shape[0] % 2 else _codec("v2", separator=".")
    return {
        "zarr.json": {
            "zarr_format": 3, "node_type": "array", "shape": shape, "data_type": kind, "fill_value": fill,
            "chunk_grid": _codec("regular", chunk_shape=chunks), "chunk_key_encoding": keys, "codecs": codecs,
            "attributes": {},
        }
    }  # fmt: skip


def _zarr3() -> Iterator[Case]:
    for place, (shape, chunks) in enumerate(LAYOUTS):
        for kind in (*_CORE, *_SMALL):
            values = _values(kind, shape)
            fill: Any = [0.0, 0.0] if kind.startswith("complex") else False if kind == "bool" else 0
            for codec, chain, grid in _chains(values.itemsize, len(shape), chunks):
                if codec == "packbits" and kind in ("complex64", "complex128"):
                    continue
                shown = place == 0 and (
                    kind in ("int32", "bool") or codec in ("bytes", "sharding_indexed, zstd, index at the start")
                )
                yield Case("zarr v3", codec, kind, _v3(kind, chain, shape, grid, fill), values, shown)
        for kind, packs in (("string", "vlen-utf8"), ("bytes", "vlen-bytes")):
            text = _values("string", shape)
            values = (
                text if kind == "string" else np.array([each.encode() for each in text.flat], object).reshape(shape)
            )
            for stage in ([], [_codec("zstd", level=1, checksum=False)]):
                kind3 = kind if kind == "string" else "variable_length_bytes"
                document = _v3(kind3, [_codec(packs), *stage], shape, chunks, "")
                yield Case("zarr v3", packs, kind3, document, values, place == 0 and not stage)


def _zarr2() -> Iterator[Case]:
    compressors: dict[str, Any] = {
        "none": None, "zlib": {"id": "zlib", "level": 5}, "gzip": {"id": "gzip", "level": 5}, "bz2": {"id": "bz2", "level": 5},
        "zstd": {"id": "zstd", "level": 3},
        "blosc": {"id": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
        "lz4": {"id": "lz4", "acceleration": 1}, "lzma": {"id": "lzma", "format": 1, "check": -1, "preset": 1, "filters": None},
    }  # fmt: skip
    for place, (shape, chunks) in enumerate(LAYOUTS):
        for kind, (codec, compressor), order, big in itertools.product(
            (*_CORE, "S5", "U5"), compressors.items(), "CF", (False, True)
        ):
            values = _values(kind, shape)
            name = values.dtype.newbyteorder(">" if big else "<").str
            if big and name[0] == "|":
                continue
            fill: Any = (
                ""
                if kind in ("S5", "U5")
                else [0.0, 0.0]
                if kind.startswith("complex")
                else False
                if kind == "bool"
                else 0
            )
            document = {
                ".zarray": {
                    "zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": name, "compressor": compressor,
                    "fill_value": fill, "order": order, "filters": None, "dimension_separator": "./"[place % 2],
                }
            }  # fmt: skip
            row = f"{codec}, order F" if order == "F" else codec
            shown = place == 0 and (kind == "int32" or (codec == "none" and order == "C"))
            yield Case("zarr v2", row, ("big endian " if big else "") + kind, document, values, shown)


def _n5() -> Iterator[Case]:
    compressions = (
        {"type": "raw"}, {"type": "gzip", "level": 5, "useZlib": False}, {"type": "gzip", "level": 5, "useZlib": True},
        {"type": "bzip2", "blockSize": 9}, {"type": "xz", "preset": 6}, {"type": "zstd", "level": 3},
        {"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
    )  # fmt: skip
    for place, (shape, chunks) in enumerate(LAYOUTS):
        for kind, compression in itertools.product(_NUMBERS, compressions):
            document = {"dimensions": shape, "blockSize": chunks, "dataType": kind, "compression": compression}
            codec = str(compression["type"]) + (" (zlib)" if compression.get("useZlib") else "")
            shown = place == 0 and (kind == "int32" or codec == "raw")
            yield Case("N5", codec, kind, {"attributes.json": document}, _values(kind, shape), shown)


def _precomputed() -> Iterator[Case]:
    sharding = {
        "@type": "neuroglancer_uint64_sharded_v1", "preshift_bits": 1, "hash": "identity", "minishard_bits": 1,
        "shard_bits": 1, "data_encoding": "raw", "minishard_index_encoding": "raw",
    }  # fmt: skip
    hashed = {**sharding, "hash": "murmurhash3_x86_128", "data_encoding": "gzip", "minishard_index_encoding": "gzip"}
    kinds = ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "float32")
    for place, (size, chunk, channels) in enumerate((((7, 5, 4), (3, 2, 4), 1), ((9, 4, 3), (4, 4, 2), 2))):
        for kind, encoding, (row, shards) in itertools.product(
            kinds,
            ("raw", "png", "compressed_segmentation"),
            (("", None), (", sharded", sharding), (", sharded, hash, gzip", hashed)),
        ):
            if (encoding == "png" and kind not in ("uint8", "uint16")) or (
                encoding == "compressed_segmentation" and kind not in ("uint32", "uint64")
            ):
                continue
            scale: dict[str, Any] = {
                "key": "s", "size": size, "resolution": [4, 4, 40], "voxel_offset": [1, 2, 3], "chunk_sizes": [chunk],
                "encoding": encoding,
            }  # fmt: skip
            scale |= {"sharding": shards} if shards else {}
            scale |= {"compressed_segmentation_block_size": [2, 2, 2]} if encoding[0] == "c" else {}
            info = {
                "@type": "neuroglancer_multiscale_volume", "type": "image", "data_type": kind, "num_channels": channels,
                "scales": [scale],
            }  # fmt: skip
            values = _values(kind, (*size, channels))
            yield Case("precomputed", encoding + row, kind, {"info": info}, values, place == 0)


def cases() -> list[Case]:
    """Return all cases."""
    return [*_zarr3(), *_zarr2(), *_n5(), *_precomputed()]


# --- the libraries

_DRIVERS = {"zarr v3": "zarr3", "zarr v2": "zarr", "N5": "n5", "precomputed": "neuroglancer_precomputed"}


_NOT_BY_ZARRS = ("ZarrsCodecPipeline", "Non-native byte order", "must be a C contiguous array")
"""What zarrs says of arrays that it leaves to zarr-python, or cannot take."""


class RefusedError(Exception):
    """A library does not open a document."""


def _store(library: Any, case: Case, place: Path) -> Any:
    spec = {"driver": _DRIVERS[case.format], "kvstore": {"driver": "file", "path": f"{place}/"}}
    context = library.Context({"file_io_sync": False})
    try:
        return library.open(spec, context=context, open=True).result()
    except ValueError as error:
        raise RefusedError(str(error)) from error


def _values_for(store: Any, values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return values in the type of a store: TensorStore has |S5 as characters, for one."""
    if store.dtype.name == "char" and values.dtype.kind == "S" and values.dtype.itemsize > 1:
        raise RefusedError("characters one by one")
    return values


def by_tensorstore(case: Case, place: Path, values: Any = None) -> Any:
    """Read by TensorStore, or write."""
    store = _store(tensorstore, case, place)
    if values is None:
        return _values_for_reading(store, case)
    store.write(_values_for(store, values)).result()
    return None


def _values_for_reading(store: Any, case: Case) -> Any:
    _values_for(store, case.values)
    return store.read().result()


def by_fsstore(case: Case, place: Path, values: Any = None) -> Any:
    """Read by fsstore, or write."""
    store = _store(fsstore, case, place)
    return store.read().result() if values is None else store.write(values).result()


def by_zarr(case: Case, place: Path, values: Any = None) -> Any:
    """Read by zarr-python, or write."""
    with warnings.catch_warnings():
        return _by_zarr(case, place, values)


def _by_zarr(case: Case, place: Path, values: Any) -> Any:
    for kind in (zarr.errors.ZarrUserWarning, zarr.errors.UnstableSpecificationWarning):
        warnings.filterwarnings("ignore", category=kind)
    warnings.filterwarnings("error", message=".*ZarrsCodecPipeline.*")
    if not case.format.startswith("zarr"):
        raise RefusedError("no zarr")
    try:
        array = zarr.open_array(str(place), mode="r" if values is None else "r+")
    except (ValueError, TypeError, KeyError, NotImplementedError) as error:
        raise RefusedError(str(error)) from error
    if values is None:
        return array[...]
    array[...] = values
    return None


def by_zarrs(case: Case, place: Path, values: Any = None) -> Any:
    """Read by zarrs below zarr-python, or write; where it leaves an array to zarr-python, it refuses."""
    if case.codec == "bytes, big endian" and case.type.startswith("complex"):
        raise RefusedError(
            "zarrs 0.2.3 takes the real and the imaginary part of these for one number of twice the size"
        )
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}), warnings.catch_warnings():
        try:
            return _by_zarr(case, place, values)
        except (UserWarning, RuntimeError, ValueError) as error:
            if not any(reason in str(error) for reason in _NOT_BY_ZARRS):
                raise
            raise RefusedError(str(error)) from error


_NOT_BY_CLOUD_VOLUME = (
    "did not all correspond to the same shard",  # it writes shards one by one, where they are boxes
    "cannot reshape array",  # images of 16 bits
    "byte width are unsupported",
    "cannot select an axis to squeeze",  # segmentations of several channels
)


def by_cloud_volume(case: Case, place: Path, values: Any = None) -> Any:
    """Read by cloud-volume, or write."""
    from cloudvolume import CloudVolume
    from cloudvolume.exceptions import AlignmentError

    if case.codec.startswith("png") and case.values.shape[3] > 1 and values is None:
        raise RefusedError("cloud-volume 12 mixes up the channels of images when it decodes them")
    volume = CloudVolume(f"file://{place}", compress=False, progress=False, non_aligned_writes=True)
    try:
        if values is None:
            return np.asarray(volume[:, :, :])
        volume[:, :, :] = values
    except (AlignmentError, TypeError, ValueError) as error:
        if not any(reason in str(error) for reason in _NOT_BY_CLOUD_VOLUME):
            raise
        raise RefusedError(str(error)) from error
    return None


LIBRARIES: dict[str, Callable[..., Any]] = {"tensorstore": by_tensorstore, "zarr": by_zarr, "zarrs": by_zarrs}


def same(found: Any, wanted: np.ndarray[Any, Any]) -> bool:
    """Return whether two arrays have the same elements, bit for bit."""
    found = np.asarray(found)
    if wanted.dtype.kind in "OUS":
        return bool(found.tolist() == wanted.tolist())
    return found.shape == wanted.shape and found.astype(wanted.dtype.newbyteorder("=")).tobytes() == wanted.tobytes()


def _placed(case: Case, directory: Path, name: str) -> Path:
    place = directory / name
    place.mkdir()
    for key, document in case.documents.items():
        (place / key).write_text(json.dumps(document))
    return place


def exchanged(case: Case, library: str, directory: Path) -> str:
    """Exchange an array with a library both ways; return what it does: `reads and writes`, `reads`, `writes`, `refuses`."""
    act, does = {**LIBRARIES, "cloud-volume": by_cloud_volume}[library], []
    try:
        place = _placed(case, directory, f"{library}-ours")
        by_fsstore(case, place, case.values)
        assert same(by_fsstore(case, place), case.values), f"{case.name}: fsstore does not read what it wrote"
        assert same(act(case, place), case.values), f"{case.name}: {library} does not read what fsstore wrote"
        does.append("reads")
    except RefusedError:
        pass
    try:
        place = _placed(case, directory, f"{library}-theirs")
        act(case, place, case.values)
        assert same(by_fsstore(case, place), case.values), f"{case.name}: fsstore does not read what {library} wrote"
        does.append("writes")
    except RefusedError:
        pass
    return " and ".join(does) or "refuses"


# --- the page

_USUAL = {1: {"bytes", "none", "raw"}, 2: {"int32"}}
"""The codecs with which types are compared, and the type with which codecs are, where there is such a case."""


def record(directory: Path) -> dict[str, Any]:
    """Exchange volumes with cloud-volume; return its version, and what it did with each codec and type."""
    said: dict[str, dict[str, str]] = {}
    for number, case in enumerate(case for case in cases() if case.format == "precomputed"):
        own = directory / str(number)
        own.mkdir()
        done = exchanged(case, "cloud-volume", own)
        if case.shown:
            said.setdefault(case.codec, {})[case.type] = done
    return {"version": version("cloud-volume"), "precomputed": said}


def with_record(results: dict[tuple[str, str, str, str], str]) -> dict[tuple[str, str, str, str], str]:
    """Return results with a column for cloud-volume, as it was recorded; it knows no other format."""
    known = json.loads(RECORD.read_text(encoding="utf-8"))["precomputed"]
    out = dict(results)
    for kind, codec, name, _ in results:
        if kind == "precomputed":
            out[kind, codec, name, "cloud-volume"] = known[codec][name]
        else:
            out[kind, codec, name, "cloud-volume"] = "refuses"
    return out


def page(results: dict[tuple[str, str, str, str], str]) -> str:
    """Return the page of results by format, codec, type and library."""
    columns = [*LIBRARIES, "cloud-volume"]
    results = with_record(results)
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))["version"]
    versions = [*(f"{name} {' and '.join(VERSIONS[name])}" for name in LIBRARIES), f"cloud-volume {recorded}"]
    lines = [
        "# Compatibility",
        "",
        "What other libraries do with arrays of each format, codec and type, and fsstore with theirs.",
        "The page is made by `tests/interop/interchange.py`, which exchanges an array of each kind both ways, bit for bit; a test",
        "checks that it says what the libraries do.",
        f"Versions: {', '.join(versions)}; what the last does was recorded in an environment of its own.",
        "",
        "A library *reads* what fsstore wrote, and *writes* what fsstore reads.",
        "It *refuses* what it does not open, or what it leaves to another library.  Codecs are compared with `int32` where they take it,",
        "types with no compression.",
        "fsstore reads and writes all of it.",
    ]
    for title, at in (("Codecs", 1), ("Types", 2)):
        lines += ["", f"## {title}", "", f"| format | {title[:-1].lower()} | " + " | ".join(columns) + " |"]
        lines.append("|---|---|" + "---|" * len(columns))
        cells: dict[tuple[str, str], dict[str, set[str]]] = {}
        usual = {(key[0], key[at]) for key in results if key[3 - at] in _USUAL[3 - at]}
        for key, said in results.items():
            if key[3 - at] in _USUAL[3 - at] or (key[0], key[at]) not in usual:
                cells.setdefault((key[0], key[at]), {}).setdefault(key[3], set()).add(said)
        for (kind, name), by_library in cells.items():
            told = [_told(by_library[library]) for library in columns]
            lines.append(f"| {kind} | {name} | " + " | ".join(told) + " |")
    return "\n".join(lines) + "\n\n" + FILES.read_text(encoding="utf-8")


_DONE = ("refuses", "reads", "writes", "reads and writes")


def _told(said: set[str]) -> str:
    """Return what is said of a row: the most that is done, and that some cases are refused."""
    most = max(said, key=_DONE.index)
    return most if len(said) == 1 or most == "refuses" else f"{most}, or refuses"


def run(chosen: list[Case], directory: Path) -> dict[tuple[str, str, str, str], str]:
    """Exchange cases with all libraries."""
    results = {}
    for number, case in enumerate(chosen):
        for library in LIBRARIES:
            own = directory / str(number)
            own.mkdir(exist_ok=True)
            results[case.format, case.codec, case.type, library] = exchanged(case, library, own)
    return results


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        if sys.argv[1:] == ["cloud-volume"]:
            written = RECORD
            RECORD.write_text(json.dumps(record(Path(made)), indent=2, sort_keys=True) + "\n")
        else:
            written = PAGE
            PAGE.write_text(page(run([case for case in cases() if case.shown], Path(made))))
    sys.stdout.write(f"{written} is written\n")
