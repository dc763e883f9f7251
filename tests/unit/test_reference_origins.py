"""Sets from remote places, saved on this machine: they read no more there than they could where they came from."""

from __future__ import annotations

import json
import pickle

import pytest

import fsstore as ts
from fsstore import references
from fsstore.command.main import main
from fsstore.errors import PermissionDeniedError, StoreError

ZARRAY = {
    "zarr_format": 2, "shape": [9], "chunks": [9], "dtype": "|u1", "compressor": None, "fill_value": 0, "order": "C",
    "filters": None,
}  # fmt: skip


@pytest.fixture
def secret(tmp_path):
    """A file of this machine."""
    (tmp_path / "secret").write_text("TOPSECRET")
    return tmp_path / "secret"


@pytest.fixture
def remote(object_server, secret):
    """The URL of a hostile set on a web server; beside it lies a chunk that it may read."""
    refs = {
        "a/.zarray": json.dumps(ZARRAY), "a/0": [f"file://{secret}", 0, 9],
        "b/.zarray": json.dumps(ZARRAY), "b/0": ["data", 0, 9],
    }  # fmt: skip
    object_server.put("set/refs.json", json.dumps({"version": 1, "refs": refs}).encode())
    object_server.put("set/data", b"012345678")
    return f"{object_server.url}/set/refs.json"


def values(place, path):
    """Return the bytes of an array of a set."""
    return bytes(ts.open(f"file://{place}|reference:{path}/").result().read().result())


def assert_held(place):
    """Assert that a saved set reads what it could, and nothing of this machine."""
    assert values(place, "b") == b"012345678"
    with pytest.raises(PermissionDeniedError, match="secret"):
        values(place, "a")


@pytest.mark.parametrize("name", ["s.json", "s.json.zst", "s.parq"])
def test_saved(remote, tmp_path, name):
    """Every form keeps the rules, and so does what is saved from it once more."""
    references.open(remote).save(tmp_path / name)
    assert_held(tmp_path / name)
    references.open(tmp_path / name).save(tmp_path / f"again-{name}")
    assert_held(tmp_path / f"again-{name}")


@pytest.mark.parametrize(
    "made",
    [
        lambda refs: refs.rename("a/", "a/"), lambda refs: refs.expand(), lambda refs: refs.rewrite({"file:///": "file:///"}),
        lambda refs: refs.merge(references.open({"c/0": "inline"})), lambda refs: references.open({"c/0": "inline"}).merge(refs),
        lambda refs: refs.merge(refs), lambda refs: references.open(refs),
    ],
    ids=["rename", "expand", "rewrite", "merge", "merged", "merge itself", "open"],
)  # fmt: skip
def test_made_of_it(remote, tmp_path, made):
    """Whatever is made of such a set keeps the rules."""
    made(references.open(remote)).save(tmp_path / "m.json")
    with pytest.raises(PermissionDeniedError, match="secret"):
        values(tmp_path / "m.json", "a")


def test_the_command(remote, tmp_path):
    """`refs convert` keeps the rules too, and lifts them by name."""
    assert main(["refs", "convert", remote, str(tmp_path / "c.json")]) == 0
    assert_held(tmp_path / "c.json")
    assert main(["refs", "convert", remote, str(tmp_path / "t.json"), "--trusted"]) == 0
    assert values(tmp_path / "t.json", "a") == b"TOPSECRET"


@pytest.mark.parametrize("name", ["w.json", "w.parq"])
def test_written_to(remote, tmp_path, name):
    """A write to such a set makes its document anew, with the rules."""
    references.open(remote).save(tmp_path / name)
    store = ts.KvStore.open(f"file://{tmp_path / name}|reference:").result()
    store.write("b/.zattrs", b"{}").result()
    assert store.read("b/.zattrs").result().value == b"{}"
    assert_held(tmp_path / name)


def test_lifted_by_name(remote, tmp_path):
    """`trusted` lifts the rules for good, `allow` for one who opens the set."""
    references.open(remote).save(tmp_path / "t.json", trusted=True)
    assert values(tmp_path / "t.json", "a") == b"TOPSECRET"
    references.open(remote).save(tmp_path / "s.json")
    kvstore = {"driver": "reference", "base": f"file://{tmp_path / 's.json'}", "allow": [f"file://{tmp_path}/"]}
    assert (
        bytes(ts.open({"driver": "zarr", "kvstore": {**kvstore, "path": "a/"}}).result().read().result())
        == b"TOPSECRET"
    )


def test_version_0_has_no_place_for_it(remote, tmp_path):
    """A form that cannot keep the rules is refused unless they are lifted."""
    with pytest.raises(StoreError, match="trusted"):
        references.open(remote).save(tmp_path / "v.json", version=0)
    references.open(remote).save(tmp_path / "v.json", version=0, trusted=True)


def test_nothing_is_gained_by_what_a_document_says(object_server, secret, tmp_path):
    """A remote set that says that it came from this machine, or from another host, may read no more by that."""
    document = {"version": 1, "origins": ["file:///", "http://127.0.0.1:1/"], "refs": {"x": [f"file://{secret}"]}}
    object_server.put("forged.json", json.dumps(document).encode())
    refs = references.open(f"{object_server.url}/forged.json")
    assert refs.origins == ()
    with pytest.raises(PermissionDeniedError):
        references.store(refs).read("x").result()
    refs.save(tmp_path / "f.json")
    with pytest.raises(PermissionDeniedError):
        ts.KvStore.open(f"file://{tmp_path / 'f.json'}|reference:").result().read("x").result()


def test_of_two_hosts(remote, secret, tmp_path):
    """Merged sets of two hosts may read from neither what only one of them may."""
    first, second = (references.open(remote), references.open({"version": 1, "origins": ["http://other/"], "refs": {}}))
    assert first.merge(second).origins == ()
    assert first.merge(first).origins == first.origins != ()
    assert references.open({"x": "y"}).origins is None
    assert pickle.loads(pickle.dumps(first.state.base)).origins == first.state.base.origins


def test_combined(remote):
    """A hostile set is refused where files are combined: the whole would be one of this machine."""
    with pytest.raises(StoreError, match="secret"):
        references.combine([remote]).result()


def test_sets_of_this_machine_stay_as_they_are(secret, tmp_path):
    """A local set has no such member, and reads what it names."""
    references.open({"a/.zarray": json.dumps(ZARRAY), "a/0": [f"file://{secret}", 0, 9]}).save(tmp_path / "l.json")
    assert b"origins" not in (tmp_path / "l.json").read_bytes()
    assert values(tmp_path / "l.json", "a") == b"TOPSECRET"
