"""Neuroglancer precomputed volumes and TensorStore 0.1.86: the same documents, files, specs, layouts and refusals."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorstore

import fsstore

DRIVER = "neuroglancer_precomputed"
LIBRARIES: tuple[Any, ...] = (tensorstore, fsstore)
_TYPES = {
    "raw": ("uint8", "uint16", "uint32", "int8", "int16", "int32", "uint64", "float32"),
    "png": ("uint8", "uint16"),
    "jpeg": ("uint8",),
    "compressed_segmentation": ("uint32", "uint64"),
}


def _sharding(rng: random.Random) -> dict[str, Any]:
    return {
        "@type": "neuroglancer_uint64_sharded_v1",
        "preshift_bits": rng.randint(0, 5),
        "hash": rng.choice(["identity", "identity", "murmurhash3_x86_128"]),
        "minishard_bits": rng.randint(0, 4),
        "shard_bits": rng.randint(0, 6),
        "data_encoding": rng.choice(["raw", "gzip"]),
        "minishard_index_encoding": rng.choice(["raw", "gzip"]),
    }


def _volume(rng: random.Random) -> dict[str, Any]:
    """Return the spec of some volume."""
    encoding = rng.choice([*_TYPES])
    scale: dict[str, Any] = {
        "size": [rng.randint(1, 14) for _ in range(3)],
        "voxel_offset": [rng.randint(-20, 20) for _ in range(3)],
        "chunk_size": [rng.randint(1, 8) for _ in range(3)],
        "encoding": encoding,
        "resolution": [rng.choice([1, 4, 0.5]) for _ in range(3)],
        "key": rng.choice(["k", "a/b", "../x", "x/../y"]),
    }
    if encoding == "compressed_segmentation":
        scale["compressed_segmentation_block_size"] = [rng.randint(1, 6) for _ in range(3)]
    if rng.random() < 0.6:
        scale["sharding"] = _sharding(rng)
    head = {
        "type": "image",
        "data_type": rng.choice(_TYPES[encoding]),
        "num_channels": rng.choice([1, 3]) if encoding == "jpeg" else rng.randint(1, 4),
    }
    return {"driver": DRIVER, "multiscale_metadata": head, "scale_metadata": scale}


def _box(rng: random.Random, scale: dict[str, Any]) -> tuple[slice, ...]:
    ends = [(low, low + size) for low, size in zip(scale["voxel_offset"], scale["size"], strict=True)]
    if rng.random() < 0.4:
        return tuple(slice(low, high) for low, high in ends)
    lows = [rng.randint(low, high - 1) for low, high in ends]
    return tuple(slice(low, rng.randint(low + 1, end[1])) for low, end in zip(lows, ends, strict=True))


def _files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def _place(root: Path) -> dict[str, Any]:
    return {"driver": "file", "path": f"{root}/p/"}


def _comparable(array: Any) -> Any:
    spec = array.spec().to_json()
    return json.dumps([{**spec, "kvstore": 0}, array.schema.to_json(), repr(array.domain)], sort_keys=True)


def _check_volume(seed: int, root: Path) -> None:
    rng = random.Random(seed)
    spec = _volume(rng)
    scale, head = spec["scale_metadata"], spec["multiscale_metadata"]
    box = _box(rng, scale)
    shape = [part.stop - part.start for part in box] + [head["num_channels"]]
    limit = rng.choice([2, 5, 100])
    values = np.random.default_rng(seed).integers(0, limit, shape).astype(head["data_type"])
    roots, arrays = [root / "t", root / "f"], []
    for library, place in zip(LIBRARIES, roots, strict=True):
        array = library.open({**spec, "kvstore": _place(place), "create": True}).result()
        with library.Transaction() as transaction:
            array.with_transaction(transaction)[box] = values
        arrays.append(array)
    theirs, ours = map(_files, roots)
    assert theirs["p/info"] == ours["p/info"]
    assert theirs.keys() == ours.keys()
    if "gzip" not in json.dumps(scale) and scale["encoding"] != "png":
        assert theirs == ours
    assert _comparable(arrays[0]) == _comparable(arrays[1])
    expected = np.zeros([*scale["size"], head["num_channels"]], head["data_type"])
    moved = [slice(part.start - low, part.stop - low) for part, low in zip(box, scale["voxel_offset"], strict=True)]
    expected[tuple(moved)] = values
    for place in roots:
        reads = [
            library.open({"driver": DRIVER, "kvstore": _place(place)}).result().read().result() for library in LIBRARIES
        ]
        np.testing.assert_array_equal(*reads)
        if scale["encoding"] != "jpeg":
            np.testing.assert_array_equal(reads[0], expected)


@pytest.mark.parametrize("seed", range(40))
def test_volumes_are_the_same_files_and_read_alike(tmp_path: Path, seed: int) -> None:
    """Some volume, written by both, is the same files and spec, and each reads what the other wrote."""
    _check_volume(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(100, 1100))
def test_many_volumes_are_the_same_files_and_read_alike(tmp_path: Path, seed: int) -> None:
    """A thousand volumes, written by both, are the same files and specs, and each reads what the other wrote."""
    _check_volume(seed, tmp_path)


def _wish(rng: random.Random) -> dict[str, Any]:
    """Return a spec that leaves much of a new volume to be chosen."""
    low = [rng.randint(-5, 5) for _ in range(3)]
    high = [start + rng.choice([rng.randint(1, 40), rng.randint(1, 5000)]) for start in low]
    domain = {"inclusive_min": [*low, 0], "exclusive_max": [*high, rng.choice([1, 1, 2, 3])]}
    layout: dict[str, Any] = {}
    if rng.random() < 0.5:
        shape = [rng.choice([0, rng.randint(1, 64)]) for _ in range(3)]
        layout["read_chunk"] = {rng.choice(["shape", "shape_soft_constraint"]): [*shape, 0]}
    if rng.random() < 0.3:
        ratio = [rng.choice([0, 1, 2]) for _ in range(3)]
        layout.setdefault("read_chunk", {}).update(aspect_ratio=[*ratio, 0], elements=10_000)
    if rng.random() < 0.5:
        layout["write_chunk"] = {"elements": rng.choice([10**6, 10**7, 10**8])}
    codec: dict[str, Any] = {"driver": DRIVER}
    if rng.random() < 0.6:
        codec["encoding"] = rng.choice(["raw", "compressed_segmentation", "jpeg"])
    if rng.random() < 0.2:
        codec["shard_data_encoding"] = rng.choice(["raw", "gzip"])
    units = [rng.choice(["4nm", None, [1234567.0, "nm"], "0.5nm"]) for _ in range(3)]
    schema = {
        "domain": domain,
        "dtype": rng.choice(["uint8", "uint32", "uint64", "float32"]),
        "chunk_layout": layout,
        "codec": codec,
        "dimension_units": [*units, None],
    }
    return {"driver": DRIVER, "kvstore": "memory://", "schema": schema, "create": True}


@pytest.mark.parametrize("seed", range(0, 120, 20))
def test_what_is_left_open_is_chosen_alike(seed: int) -> None:
    """Chunk shape, blocks, sharding, key and type of a new scale are TensorStore's, or both refuse."""
    made = 0
    for number in range(seed, seed + 20):
        spec = _wish(random.Random(number))
        found: list[Any] = []
        for library in LIBRARIES:
            context = library.Context()
            try:
                array = library.open(spec, context=context).result()
            except ValueError:
                found.append(None)
                continue
            info = library.KvStore.open("memory://", context=context).result()[b"info"]
            found.append((info, json.dumps(array.schema.to_json(), sort_keys=True)))
        assert found[0] == found[1], spec
        made += found[0] is not None
    assert made > 2


_CASES: tuple[dict[str, Any], ...] = (
    {},
    {"scale_index": 1},
    {"scale_index": 3},
    {"scale_metadata": {"key": "zz"}},
    {"scale_metadata": {"resolution": [16, 16, 16]}},
    {"scale_metadata": {"encoding": "png"}},
    {"scale_metadata": {"chunk_size": [1, 1, 1]}},
    {"scale_metadata": {"chunk_sizes": [[1, 1, 1]]}},
    {"scale_metadata": {"size": [8, 8, 8]}},
    {"scale_metadata": {"sharding": None}},
    {"scale_metadata": {"encoding": "jxl"}},
    {"scale_metadata": {"jpeg_quality": 10}},
    {"scale_index": 1, "scale_metadata": {"png_level": 3}},
    {"multiscale_metadata": {"num_channels": 2}},
    {"multiscale_metadata": {"type": "x"}},
    {"multiscale_metadata": {"data_type": "uint16"}},
    {"dtype": "int64"},
    {"schema": {"dimension_units": ["7nm", None, None, None]}},
    {"schema": {"dimension_units": ["16um", None, None, None]}},
    {"schema": {"dimension_units": [None, None, None, "nm"]}},
    {"schema": {"fill_value": 0}},
    {"schema": {"domain": {"shape": [8, 8, 8, 1]}}},
    {"schema": {"codec": {"driver": DRIVER, "encoding": "png"}}},
    {"schema": {"codec": {"driver": DRIVER, "shard_data_encoding": "raw"}}},
    {"schema": {"chunk_layout": {"codec_chunk": {"shape": [8, 8, 8, 1]}}}},
    {"create": True, "open": True, "scale_metadata": {"key": "new"}},
    {"create": True, "open": False, "scale_metadata": {"resolution": [8, 8, 8], "size": [3, 3, 3]}},
    {"create": True, "scale_index": 9, "scale_metadata": {"size": [3, 3, 3]}},
    {"create": True, "open": False, "scale_index": 1, "scale_metadata": {"size": [3, 3, 3]}},
)


def _two_scales(library: Any) -> Any:
    context = library.Context()
    head = {"type": "image", "num_channels": 1, "data_type": "uint8"}
    first = {"size": [8, 8, 8], "voxel_offset": [1, 2, 3], "chunk_size": [4, 4, 4], "resolution": [8, 8, 8]}
    second = {"size": [4, 4, 4], "chunk_size": [4, 4, 4], "resolution": [16, 16, 16], "encoding": "png"}
    for scale in (first, second):
        spec = {"driver": DRIVER, "kvstore": "memory://v/", "multiscale_metadata": head, "create": True}
        library.open({**spec, "scale_metadata": scale}, context=context).result()
    return context


@pytest.mark.parametrize("case", _CASES, ids=json.dumps)
def test_scales_are_found_or_refused_in_the_same_words(case: dict[str, Any]) -> None:
    """A constraint opens the same scale, or both say the same about it."""
    said = []
    for library in LIBRARIES:
        spec = {"driver": DRIVER, "kvstore": "memory://v/", **case}
        try:
            array = library.open(spec, context=_two_scales(library)).result()
            said.append(json.dumps(array.spec().to_json(), sort_keys=True))
        except ValueError as error:
            said.append(str(error).split(" [tensorstore_spec")[0].split(" [source")[0])
    assert said[0] == said[1]


def test_a_volume_is_recognised_by_its_info(tmp_path: Path) -> None:
    """A directory with a volume opens without a driver, and from its URL."""
    spec = {"driver": DRIVER, "kvstore": _place(tmp_path), "create": True, "dtype": "uint8"}
    made = fsstore.open({**spec, "schema": {"domain": {"shape": [4, 4, 4, 1]}}}).result()
    made[...] = 7
    for url in (f"file://{tmp_path}/p/", f"file://{tmp_path}/p/|neuroglancer-precomputed:"):
        assert fsstore.open(url).result()[1, 1, 1, 0].read().result() == 7
    assert made.url == f"file://{tmp_path}/p/|neuroglancer-precomputed:"


def test_members_of_others_survive_a_new_scale() -> None:
    """What a document holds beyond the format is kept when a scale is added."""
    context = _two_scales(fsstore)
    store = fsstore.KvStore.open("memory://v/", context=context).result()
    document = json.loads(store[b"info"])
    store[b"info"] = json.dumps({**document, "mesh": "m", "scales": [{**document["scales"][0], "hidden": True}]})
    spec = {"driver": DRIVER, "kvstore": "memory://v/", "create": True, "dtype": "uint8"}
    scale = {"size": [2, 2, 2], "resolution": [64, 64, 64]}
    fsstore.open({**spec, "scale_metadata": scale}, context=context).result()
    stored = json.loads(store[b"info"])
    assert (stored["mesh"], stored["scales"][0]["hidden"], len(stored["scales"])) == ("m", True, 2)


def test_writers_of_one_shard_lose_nothing(tmp_path: Path) -> None:
    """Writes of single chunks of one shard, begun together through several contexts, are all stored."""
    sharding = {
        **_sharding(random.Random(0)),
        "preshift_bits": 3,
        "hash": "identity",
        "minishard_bits": 1,
        "shard_bits": 0,
    }
    scale = {"size": [16, 4, 4], "chunk_size": [4, 4, 4], "resolution": [1, 1, 1], "sharding": sharding}
    spec = {"driver": DRIVER, "kvstore": _place(tmp_path), "dtype": "uint16", "scale_metadata": scale}
    head = {"multiscale_metadata": {"num_channels": 1, "type": "image"}, "create": True, "open": True}
    arrays = [fsstore.open({**spec, **head}, context=fsstore.Context()).result() for _ in range(8)]
    for future in [arrays[n % 8][n : n + 1].write(n + 1) for n in range(16)]:
        future.result()
    read = tensorstore.open({"driver": DRIVER, "kvstore": _place(tmp_path)}).result().read().result()
    np.testing.assert_array_equal(read[:, 0, 0, 0], np.arange(1, 17))
    arrays[0][...] = 0
    assert [path.name for path in (tmp_path / "p").rglob("*") if path.is_file()] == ["info"]
