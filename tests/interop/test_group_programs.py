"""Random programs of what groups do, against a model in memory and what zarr-python reads of the same place."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import zarr

import fsstore as ts

FORMATS = (3, 2, 0)
NAMES = ("a", "b", "ab", "a.b", "é", " x")
HIDDEN = ("_ARRAY_DIMENSIONS", "axes")
STEPS = 14


class Program:
    """A group, the model of what is in it, and one random step after another."""

    def __init__(self, folder, version, seed):
        self.folder, self.version, self.draw = folder, version, random.Random(seed)
        self.group = ts.open_group(str(folder), mode="a", zarr_format=version).result()
        self.model: dict[str, tuple[dict, np.ndarray | None]] = {}
        self.count = 0

    def step(self):
        """Do one thing; where the model says that it must be refused, it must be."""
        self.count += 1
        path = "/".join(self.draw.choice(NAMES) for _ in range(self.draw.randint(1, 3)))
        names = (
            "array",
            "array",
            "new_group",
            "require",
            "attributes",
            "delete",
            "move",
            "resize",
            "write",
            "consolidate",
        )
        getattr(self, self.draw.choice(names))(path)

    def array(self, path):
        """Create an array, sometimes in place of what is there."""
        shape = (self.draw.randint(0, 7), self.draw.randint(1, 5))
        overwrite = self.draw.random() < 0.2
        made = self.group.create_array(
            path, shape=shape, dtype="i4", overwrite=overwrite, attributes={"n": self.count},
            chunks=(self.draw.randint(1, 4), self.draw.randint(1, 5)), dimension_names=["t", "x"],
        )  # fmt: skip
        if self.inside(path) or (path in self.model and not overwrite):
            return self.refused(made)
        values = np.arange(np.prod(shape), dtype="i4").reshape(shape) + self.count
        made.result().write(values).result()
        self.forget(path)
        self.made(path, {"n": self.count}, values)

    def new_group(self, path):
        """Create a group."""
        made = self.group.create_group(path, attributes={"k": self.count})
        if self.inside(path) or path in self.model:
            return self.refused(made)
        made.result()
        self.made(path, {"k": self.count}, None)

    def require(self, path):
        """Open a group, or make it."""
        made = self.group.require_group(path)
        if self.inside(path) or self.is_array(path):
            return self.refused(made)
        made.result()
        if path not in self.model:
            self.made(path, {}, None)

    def attributes(self, _):
        """Change an attribute."""
        if self.model:
            path = self.draw.choice(sorted(self.model))
            self.group[path].attrs["z"] = self.count
            self.model[path][0]["z"] = self.count

    def delete(self, path):
        """Delete something, or what is not there."""
        if self.model and self.draw.random() < 0.7:
            path = self.draw.choice(sorted(self.model))
        done = self.group.delete(path)
        if path not in self.model:
            return self.refused(done)
        done.result()
        self.forget(path)

    def move(self, target):
        """Move something."""
        if not self.model:
            return
        source = self.draw.choice(sorted(self.model))
        done = self.group.move(source, target)
        if self.inside(target) or target in self.model or f"{target}/".startswith(f"{source}/"):
            return self.refused(done)
        done.result()
        moved = {path: node for path, node in self.model.items() if f"{path}/".startswith(f"{source}/")}
        self.forget(source)
        self.made(target, *moved.pop(source))
        self.model |= {target + path[len(source) :]: node for path, node in moved.items()}

    def resize(self, _):
        """Let all arrays grow to one extent."""
        arrays = {path: node for path, node in self.model.items() if node[1] is not None}
        if arrays:
            size = max(len(values) for _, values in arrays.values()) + self.draw.randint(0, 2)
            self.group.resize(t=size).result()
            for path, (attributes, values) in arrays.items():
                more = np.zeros((size - len(values), values.shape[1]), "i4")
                self.model[path] = (attributes, np.concatenate([values, more]))

    def write(self, _):
        """Write one row of an array."""
        arrays = sorted(path for path, node in self.model.items() if node[1] is not None and len(node[1]))
        if arrays:
            path = self.draw.choice(arrays)
            row = self.draw.randrange(len(self.model[path][1]))
            self.group[path][row].write(np.int32(self.count * 100)).result()
            self.model[path][1][row] = self.count * 100

    def consolidate(self, _):
        """Collect the metadata in one document."""
        if self.version:
            self.group.consolidate().result()

    def refused(self, future):
        """Expect an error."""
        with pytest.raises(ts.errors.StoreError):
            future.result()

    def is_array(self, path):
        """Return whether the model has an array at a path."""
        return self.model.get(path, ({}, None))[1] is not None

    def inside(self, path):
        """Return whether a path lies inside an array."""
        return any(self.is_array(parent) for parent in parents(path))

    def made(self, path, attributes, values):
        """Note what was made, and the groups on the way to it."""
        for parent in parents(path):
            self.model.setdefault(parent, ({}, None))
        self.model[path] = (attributes, values)

    def forget(self, path):
        """Note that nothing is left at a path."""
        for each in [each for each in self.model if f"{each}/".startswith(f"{path}/")]:
            del self.model[each]

    def check(self):
        """Compare the model with what this group, new ones, and zarr-python show."""
        place = str(self.folder)
        for group in (self.group, ts.open_group(place).result(), ts.open_group(place, consolidated=False).result()):
            self.equal(shown(group))
        for consolidated in (None, False) if self.version else ():
            members = dict(zarr.open_group(place, mode="r", use_consolidated=consolidated).members(max_depth=None))
            self.equal(
                {
                    path: (dict(node.attrs), node[...] if isinstance(node, zarr.Array) else None)
                    for path, node in members.items()
                }
            )

    def equal(self, found):
        """Compare the model with members by path."""
        assert sorted(found) == sorted(self.model)
        for path, (attributes, values) in self.model.items():
            assert {key: value for key, value in found[path][0].items() if key not in HIDDEN} == attributes
            np.testing.assert_array_equal(found[path][1], values)


def parents(path):
    """Return the paths above a path."""
    parts = path.split("/")
    return ["/".join(parts[:depth]) for depth in range(1, len(parts))]


def shown(group, above=""):
    """Return the attributes and values of all members of a group by path."""
    found = {}
    for name, array in group.arrays():
        found[above + name] = (dict(array.attrs), array.read().result())
    for name, inner in group.groups():
        found[above + name] = (dict(inner.attrs), None)
        found |= shown(inner, f"{above}{name}/")
    return found


@pytest.mark.parametrize("seed", [*range(9), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(9, 400))])
@pytest.mark.filterwarnings("ignore:Object at")  # a directory that a deletion left empty
def test_random_programs(tmp_path, seed):
    """After every step all readers show what the model holds; what is refused changes nothing."""
    program = Program(tmp_path / "place", FORMATS[seed % 3], seed)
    for _ in range(STEPS):
        program.step()
        program.check()


@pytest.mark.parametrize(("version", "inner"), [(3, "a/c"), (3, "a/c/0"), (2, "a/0.0"), (0, "a/0")])
def test_nothing_is_made_or_deleted_inside_an_array(tmp_path, version, inner):
    """Keys of chunks are no members: nothing creates, moves or deletes at one, and the values stay."""
    group = ts.open_group(str(tmp_path / "place"), mode="a", zarr_format=version).result()
    array = group.create_array("a", shape=(4, 4), dtype="i4", chunks=(2, 2)).result()
    array.write(np.ones((4, 4), "i4")).result()
    for change in (
        lambda: group.create_array(inner, shape=(2,), dtype="i4", overwrite=True),
        lambda: group.create_group(inner),
        lambda: group.require_group(inner),
        lambda: group.require_array(inner, shape=(2,), dtype="i4"),
        lambda: group.delete(inner),
        lambda: group.move(inner, "z"),
        lambda: group.move("a", f"{inner}/z"),
    ):
        with pytest.raises(ts.errors.StoreError):
            change().result()
    assert inner not in group
    assert list(group) == ["a"]
    assert (group["a"].read().result() == 1).all()
    assert not (tmp_path / "place/z").exists()


def test_chunks_left_behind_are_not_taken_for_a_new_array(tmp_path):
    """An array is not created on top of chunks whose document is gone, unless it may delete them."""
    group = ts.open_group(str(tmp_path / "place"), mode="a").result()
    group.create_array("a", shape=(4,), dtype="i4").result().write(7).result()
    (tmp_path / "place/a/zarr.json").unlink()
    with pytest.raises(ts.errors.AlreadyExistsError):
        group.create_array("a", shape=(4,), dtype="i4").result()
    made = group.create_array("a", shape=(4,), dtype="i4", overwrite=True).result()
    assert (made.read().result() == 0).all()


def test_chunks_left_behind_in_a_set_are_seen(tmp_path):
    """Chunks of no array count in a reference set too, where an array is created or moved to."""
    refs = {".zgroup": '{"zarr_format":2}', "a/0": "base64:AAAA"}
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    group = ts.open_group(f"file://{tmp_path}/refs.json|reference:").result()
    group.create_array("b", shape=(4,), dtype="i4").result()
    with pytest.raises(ts.errors.AlreadyExistsError):
        group.create_array("a", shape=(4,), dtype="i4").result()
    again = ts.open_group(f"file://{tmp_path}/refs.json|reference:").result()
    with pytest.raises(ts.errors.AlreadyExistsError):
        again.move("b", "a").result()
