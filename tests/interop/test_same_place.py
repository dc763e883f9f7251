"""A source and a target are told apart before anything is written, whatever they are called."""

from __future__ import annotations

import json
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

import fsstore as ts
from fsstore.dataset.place import store_spec
from fsstore.errors import FailedPreconditionError
from fsstore.kvstore.same_place import relation
from fsstore.kvstore.spec_parse import open_kv
from fsstore.runtime import execution


class _Quiet(SimpleHTTPRequestHandler):
    """Serves files without telling."""

    def log_message(self, *_):
        """Say nothing."""


VALUES = np.arange(600, dtype="i4").reshape(20, 30)


@pytest.fixture
def folder(tmp_path):
    """A group with an array, and a link to it."""
    group = ts.open_group(tmp_path / "g", mode="w").result()
    group.create_array("a", shape=VALUES.shape, dtype="i4", chunks=[5, 30]).result()[:] = VALUES
    (tmp_path / "l").symlink_to(tmp_path / "g")
    return tmp_path


def stored(folder):
    """Return all files with what is in them."""
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def opened(place, context=None):
    """Return a place as a store."""
    return execution.start(open_kv(store_spec(place), context or ts.Context())).result()


@pytest.mark.parametrize(
    ("one", "two", "found"),
    [
        ("{}/g/a", "{}/l/a/", "is"),
        ("file://{}/g/%61/", "{}/g/a", "is"),
        ("local://{}/g/a", "{}/g", "lies in"),
        ("simplecache::file://{}/g/a", "{}/g/a", "is"),
        ("{}/g", "{}/l/a", "holds"),
        ("{}/g", "{}/g/new", "holds"),
        ("{}/g/a", "{}/g/b", None),
        ("file://{}/d/|ocdbt:a/", "file://{}/d/|ocdbt:b/", None),
        ("file://{}/d/|ocdbt:a/", "file://{}/d/|ocdbt:a/b/", "holds"),
        ("file://{}/d/|ocdbt:a/", "file://{}/d/", "lies in"),
        ("file://{}/g/a/", "file://{}/|ocdbt:a/", None),
        ("s3://bucket-a/x", "https://bucket-a.s3.amazonaws.com/x/", "is"),
        ("s3://bucket-a/x", "https://s3.eu-west-1.amazonaws.com/bucket-a/x/y", "holds"),
        ("s3://bucket-a/x", "s3://bucket-b/x", None),
    ],
)
def test_places_are_compared_by_what_they_are(folder, one, two, found):
    """Links, encodings, protocols, caches and databases do not hide that a place is another one."""
    assert relation(opened(one.format(folder)), opened(two.format(folder))) == found


@pytest.mark.parametrize("if_exists", ["raise", "skip", "replace", "update"])
@pytest.mark.parametrize(("source", "target"), [("g/a", "g"), ("g", "l/a"), ("g", "g/new"), ("g/a", "l/a/c")])
def test_a_target_in_or_around_the_source_is_refused(folder, source, target, if_exists):
    """Nothing is written or deleted before the error."""
    before = stored(folder)
    with pytest.raises(FailedPreconditionError, match="what is read"):
        ts.copy(str(folder / source), folder / target, if_exists=if_exists).result()
    assert stored(folder) == before


@pytest.mark.parametrize("if_exists", ["raise", "skip", "update"])
@pytest.mark.parametrize("view", [False, True])
def test_a_target_that_is_the_source_is_refused(folder, if_exists, view):
    """Unless it is to be replaced; the error says that this is the way."""
    array, before = ts.open(str(folder / "g/a")).result(), stored(folder)
    source = array[::-1] if view else array
    with pytest.raises(FailedPreconditionError, match='if_exists="replace"'):
        ts.copy(source, folder / "l/a", if_exists=if_exists).result()
    assert stored(folder) == before


def test_a_reference_set_that_points_into_the_target_is_its_source(folder):
    """What is read are the files that it refers to."""
    before = stored(folder / "g")
    entries = {f"c/{n}/0": [f"file://{folder}/g/a/c/{n}/0"] for n in range(4)}
    entries["zarr.json"] = (folder / "g/a/zarr.json").read_text()
    (folder / "set.json").write_text(json.dumps({"version": 1, "refs": entries}))
    source = ts.open(f"file://{folder}/set.json|reference:").result()
    assert np.array_equal(source.read().result(), VALUES)
    with pytest.raises(FailedPreconditionError, match="what is read"):
        ts.copy(source, folder / "l/a", if_exists="replace").result()
    assert stored(folder / "g") == before


def test_a_web_server_in_front_of_the_target_is_found_out(folder):
    """The claim of the target shows at the source, which its name does not tell."""
    handler = partial(_Quiet, directory=str(folder))
    before = stored(folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            source = ts.open(f"http://127.0.0.1:{server.server_port}/l/a/|zarr3:").result()
            with pytest.raises(FailedPreconditionError, match="is the source itself"):
                ts.copy(source, folder / "g/a", if_exists="replace").result()
        finally:
            server.shutdown()
            thread.join()
    assert stored(folder) == before


def test_a_level_of_a_pyramid_is_not_its_base(folder):
    """A base that is called as a level would be is not written over."""
    group = ts.open_group(folder / "p", mode="w").result()
    group.create_array("1", shape=VALUES.shape, dtype="i4").result()[:] = VALUES
    with pytest.raises(FailedPreconditionError, match="is the source itself"):
        ts.build_pyramid(group, "1", factors=[2, 2], levels=2, if_exists="replace").result()
    assert np.array_equal(group.open("1").result().read().result(), VALUES)


def test_a_memory_is_another_one_in_another_context():
    """The same name in two contexts is two places."""
    first, second = ts.Context(), ts.Context()
    one, two = (opened("memory://a/", context) for context in (first, second))
    again = opened("memory://a/b/", first)
    assert relation(one, two) is None
    assert relation(again, one) == "lies in"


def test_mounts_are_the_directories_that_they_show(tmp_path):
    """A directory that has two paths without a link is one place: `/proc/self/root` shows all of the system."""
    other = f"/proc/self/root{tmp_path}"
    assert Path(other).is_dir()
    (tmp_path / "a").mkdir()
    assert relation(opened(f"{other}/a"), opened(f"{tmp_path}/a")) == "is"
