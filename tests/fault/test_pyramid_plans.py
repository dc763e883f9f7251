"""Plans of pyramids: each level is a phase, which parts begin when the level before is done."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest

import fsstore as ts
from fsstore.errors import AbortedError, AlreadyExistsError, FailedPreconditionError

VALUES = np.random.default_rng(0).integers(0, 200, (64, 48)).astype("u1")


def image_at(place):
    """Return a group with an image."""
    group = ts.open_group(place, mode="w").result()
    names = {"dimension_names": ["y", "x"]}
    group.create_array("0", shape=VALUES.shape, dtype="u1", chunks=[8, 8], **names).result()[...] = VALUES
    return group


@pytest.fixture
def plan(tmp_path):
    """Save the plan of three levels, and return its place."""
    image_at(tmp_path / "image")
    ts.plan_pyramid(tmp_path / "image", levels=3).result().save(tmp_path / "plan.json")
    return tmp_path / "plan.json"


def check_made(plan):
    """See that levels and metadata are those of `build_pyramid`, and nothing is beside them."""
    other = plan.parent / "other"
    image_at(other)
    ts.build_pyramid(other, levels=3).result()
    made, wanted = (ts.open_group(place, context=ts.Context()).result() for place in (plan.parent / "image", other))
    assert made.attrs.asdict() == wanted.attrs.asdict()
    for level in ("1", "2"):
        assert np.array_equal(made[level].read().result(), wanted[level].read().result())
        assert made[level].spec().to_json()["metadata"] == wanted[level].spec().to_json()["metadata"]
    assert not [name for _, names, files in os.walk(plan.parent / "image") for name in names + files if "job" in name]


def test_levels_are_made_one_after_the_other(plan):
    """A part does its share of a level, says for how many tasks the rest waits, and goes on when it is run again."""
    assert ts.run(plan, (1, 2)).result().waits > 0
    told = str(ts.status(plan).result())
    assert "level 1 " in told
    assert "level 2 0 of " in told
    with pytest.raises(FailedPreconditionError, match="run these and finish again. First come those of level 1"):
        ts.finish(plan).result()
    assert ts.run(plan, (0, 2)).result().waits == 0
    assert not (plan.parent / "image/1/zarr.json").exists()
    with pytest.raises(FailedPreconditionError, match="First come those of level 2"):
        ts.finish(plan).result()
    assert ts.run(plan, (1, 2)).result().waits == 0
    assert ts.finish(plan, verify="values").result().tasks == 0
    check_made(plan)


def test_a_pyramid_keeps_others_away_and_is_given_up(plan):
    """Other jobs at its levels are refused, and giving up leaves the image alone."""
    ts.run(plan).result()
    image = plan.parent / "image"
    with pytest.raises(FailedPreconditionError, match=r"being changed by the plan .*plan\.json"):
        ts.copy(image / "0", image / "1").result()
    ts.finish(plan, give_up=True).result()
    left = {path.relative_to(image).parts[0] for path in image.rglob("*") if path.is_file()}
    assert left == {"0", "zarr.json"}
    assert np.array_equal(ts.open_group(image).result()["0"].read().result(), VALUES)


def test_what_is_wrong_is_told(plan):
    """A base that was written, a level that is there, an end beside nothing; and the plan says what it is of."""
    assert [member["phase"] for member in json.loads(plan.read_text())["members"]] == ["level 1", "level 2"]
    with pytest.raises(FailedPreconditionError, match="lower resolutions of .* no part was run yet"):
        ts.finish(plan).result()
    image = plan.parent / "image"
    ts.copy(image / "0", image / "2").result()
    with pytest.raises(AlreadyExistsError, match=r"already an array or a group at .*image/2/"):
        ts.run(plan).result()
    ts.delete(image / "2").result()
    ts.open(str(image / "0")).result()[:8] = 0
    with pytest.raises(AbortedError, match=r"driver downsample was written while it was copied to .*image/1/"):
        ts.run(plan).result()
    ts.build_pyramid(image, levels=3).result()
    with pytest.raises(AlreadyExistsError, match="has levels 1, 2 already"):
        ts.plan_pyramid(image).result()
