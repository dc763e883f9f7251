"""Random reference sets in every form, against fsspec's `ReferenceFileSystem`.

Values are inline text, base64, ranges, whole targets, templated targets and generated ones, in JSON of both versions and
in parquet; keys are asked for whether they exist or not, whole and in part.
"""

from __future__ import annotations

import base64
import json
import random
import warnings
from typing import Any

import fsspec
import pytest

import fsstore
from fsstore import references

_SEEDS = [pytest.param(seed, marks=[pytest.mark.long] if seed >= 12 else []) for seed in range(400)]
_ARRAY = """{"zarr_format": 2, "shape": [20, 20], "chunks": [1, 1], "dtype": "|u1", "order": "C", "compressor": null,
"filters": null, "fill_value": 0}"""
_PLAIN = "abc xyz09.,é{}"


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return some files by path."""
    folder, rng = tmp_path_factory.mktemp("targets"), random.Random(1)
    out = {}
    for name in ("a", "b.bin", "with space", "é"):
        data = rng.randbytes(rng.randint(20, 300))
        (folder / name).write_bytes(data)
        out[str(folder / name)] = data
    return out


def _value(rng: random.Random, targets: dict[str, bytes], templates: dict[str, str]) -> Any:
    """Return a reference."""
    path = rng.choice(list(targets))
    size = len(targets[path])
    offset = rng.randint(0, size - 1)
    url = path
    if templates and rng.random() < 0.5:
        url = "{{folder}}/" + path.rpartition("/")[2]
    return rng.choice(
        [
            "".join(rng.choices(_PLAIN, k=rng.randint(0, 9))),
            "base64:" + base64.b64encode(rng.randbytes(rng.randint(0, 12))).decode(),
            [url, offset, rng.randint(1, size - offset)],
            [url, 0, size],
            [url],
        ]
    )


def _document(rng: random.Random, targets: dict[str, bytes]) -> tuple[dict[str, Any], list[str]]:
    """Return a set and its keys."""
    version = rng.choice((0, 1))
    folder = next(iter(targets)).rpartition("/")[0]
    templates = {"folder": folder} if version and rng.random() < 0.5 else {}
    names = [
        f"{rng.choice(('x', 'y', 'g/z'))}/{rng.randint(0, 4)}.{rng.randint(0, 4)}" for _ in range(rng.randint(1, 25))
    ]
    refs: dict[str, Any] = {name: _value(rng, targets, templates) for name in names}
    refs |= {f"{name}/.zarray": _ARRAY for name in ("x", "y", "g/z", "gen")}
    refs |= {".zgroup": {"zarr_format": 2}, "g/.zattrs": json.dumps({"é": rng.random()})}
    if not version:
        return refs, list(refs)
    document: dict[str, Any] = {"version": 1, "refs": refs}
    if templates:
        document["templates"] = templates
    made = []
    if rng.random() < 0.5:
        step, count = rng.randint(1, 3), rng.randint(1, 5)
        url = "{{folder}}/a" if templates else f"{folder}/a"
        document["gen"] = [
            {
                "key": "gen/{{i}}.{{j}}",
                "url": url,
                "offset": "{{i * 2 + j}}",
                "length": "{{j + 1}}",
                "dimensions": {"i": {"stop": count, "step": step}, "j": [0, 3]},
            }
        ]
        made = [f"gen/{i}.{j}" for i in range(0, count, step) for j in (0, 3)]
    return document, [*refs, *made]


def _theirs(system: Any, key: str, start: int | None = None, end: int | None = None) -> bytes | None:
    try:
        data: bytes = system.cat_file(key, start=start, end=end)
    except FileNotFoundError:
        return None
    return data


def _is_metadata(key: str) -> bool:
    """Return whether the value is a JSON document, whose spaces parquet does not keep."""
    return key.rpartition("/")[2].startswith(".")


@pytest.mark.parametrize("seed", _SEEDS)
def test_random_sets_read_the_same(seed: int, targets: dict[str, bytes], tmp_path: Any) -> None:
    """Every key of a random set, whole and in part, holds what fsspec finds, however the set is stored; no other is there."""
    rng = random.Random(seed)
    document, keys = _document(rng, targets)
    path = tmp_path / "r.json"
    path.write_text(json.dumps(document))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        system = fsspec.filesystem(
            "reference",
            fo=json.loads(path.read_text()),
            simple_templates=False,
            remote_protocol="file",
            skip_instance_cache=True,
        )
        references.open(document).save(tmp_path / "r.parq")
        references.open(document).save(tmp_path / "again.json")
    stores = [
        fsstore.KvStore.open(f"file://{tmp_path}/{name}|reference:").result()
        for name in ("r.json", "r.parq", "again.json")
    ]
    stores.append(references.store(document))
    asked = sorted({*keys, "x/9.9", "x", "nowhere/0", "gen/99.0", "loos", "loose/0"})
    for key in asked:
        expected = _theirs(system, key)
        assert (expected is not None) == (key in keys)
        for store in stores:
            found = store.read(key).result()
            value = found.value if found.state == "value" else None
            assert value == expected or (_is_metadata(key) and json.loads(value) == json.loads(expected)), key
    for store in stores:
        assert sorted(key.decode() for key in store.list().result()) == sorted(set(keys))
        for key in rng.sample(sorted(set(keys) - {*filter(_is_metadata, keys)}), 1):
            size = len(store[key])
            low = rng.randint(0, size)
            high = rng.randint(low, size)
            part = store.read(key, byte_range=slice(low, high)).result()
            assert part.value == _theirs(system, key, low, high), (key, low, high)
