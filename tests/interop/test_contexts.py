"""Context specs, generated, read by fsstore and tensorstore 0.1.86: accepted or refused alike, with one normal form."""

from __future__ import annotations

import random

import pytest
import tensorstore

import fsstore

NUMBERS = [0, 1, 7, -1, 5.0, 2.5, "shared", "5", None, True, [], {}]
MEMBERS = {
    "cache_pool": ["total_bytes_limit", "limit"],
    "data_copy_concurrency": ["limit", "foo"],
    "file_io_concurrency": ["limit"],
    "file_io_locking": ["mode"],
    "memory_key_value_store": ["x"],
}
MODES = ["os", "lockfile", "none", "x", 5]


def random_value(rng, kind):
    """Return a value of a context member: inline, a reference, null, or nonsense."""
    choice = rng.random()
    if choice < 0.15:
        return rng.choice([None, 5, "foo", [], "cache_pool", kind + "#a", kind])
    if kind == "file_io_sync":
        return rng.choice([True, False, 0, "x", {}])
    if choice < 0.35:
        return {}
    member = rng.choice(MEMBERS[kind])
    return {member: rng.choice(MODES if member == "mode" else NUMBERS)}


def random_spec(rng):
    """Return the JSON of a context of up to three members."""
    spec = {}
    for _ in range(rng.randint(0, 3)):
        kind = rng.choice([*MEMBERS, "file_io_sync"])
        key = kind + rng.choice(["", "", "#a", "#b"]) if rng.random() < 0.95 else "foo"
        spec[key] = random_value(rng, kind)
    return spec


def outcome(library, spec):
    """Return the normal form of a spec, with and without defaults, or that it is refused."""
    try:
        return library.Context.Spec(spec).to_json()
    except ValueError:
        return "refused"


@pytest.mark.parametrize("seed", range(20))
def test_context_specs_agree(seed):
    """Two thousand context specs, a hundred a seed, have one meaning in both libraries."""
    rng = random.Random(seed)
    for _ in range(100):
        spec = random_spec(rng)
        assert outcome(fsstore, spec) == outcome(tensorstore, spec), spec
