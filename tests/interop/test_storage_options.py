"""`storage_options` and `context` mean the same at every door, and credentials come from where their owner says."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest

import fsstore as ts
from fsstore import references

ENGINES = ["obstore", "fsspec"]


def names_of(server, header):
    """Return the values of a header in all requests that the server has seen."""
    seen = [{name.lower(): value for name, value in each.items()} for each in server.headers_seen]
    return {each.get(header) for each in seen}


@pytest.fixture
def dataset(tmp_path, object_server):
    """Put a group with an array, and a reference set, on the server; give its URL."""
    group = ts.open_group(f"{tmp_path}/g", mode="w").result()
    group.create_array("a", shape=[4], dtype="i4", dimension_names=["x"]).result().write([1, 2, 3, 4]).result()
    group.consolidate().result()
    for path in (tmp_path / "g").rglob("*"):
        if path.is_file():
            object_server.put(f"/bkt/{path.relative_to(tmp_path)}", path.read_bytes())
    refs = {"a/k": "inline"}
    object_server.put("/bkt/refs.json", json.dumps({"version": 1, "refs": refs}).encode())
    return f"{object_server.url}/bkt"


def _dataset_of_xarray(url, **given):
    import xarray as xr

    return xr.open_dataset(f"{url}/g/", engine="fsstore", chunks=None, **given).a.load().values.tolist()


DOORS = {
    "open": lambda url, **given: ts.open(f"{url}/g/a/|zarr3:", **given).result().read().result().tolist(),
    "open_group": lambda url, **given: ts.open_group(f"{url}/g/", mode="r", **given).result()["a"].shape,
    "KvStore.open": lambda url, **given: ts.KvStore.open(f"{url}/g/", **given).result()["zarr.json"][:1],
    "list_arrays": lambda url, **given: [each.path for each in ts.list_arrays(f"{url}/g/", **given)],
    "tree": lambda url, **given: ts.tree(f"{url}/g/", **given),
    "get_mapper": lambda url, **given: ts.get_mapper(f"{url}/g/a/", **given)["zarr.json"][:1],
    "references.open": lambda url, **given: references.open(f"{url}/refs.json", **given)["a/k"],
    "references.inspect": lambda url, **given: references.inspect(f"{url}/refs.json", **given).arrays,
    "references.verify": lambda url, **given: bool(references.verify(f"{url}/refs.json", **given)),
    "xarray": _dataset_of_xarray,
}


@pytest.mark.parametrize("door", DOORS)
def test_options_reach_the_root_through_every_door(door, dataset, object_server):
    """Each door sends what the options say with every request, and takes a context beside them."""
    object_server.headers_seen.clear()
    context = ts.Context({"http_request_retries": {"max_retries": 1}})
    DOORS[door](dataset, storage_options={"headers": {"X-Mine": "yes"}}, context=context)
    assert names_of(object_server, "x-mine") == {"yes"}


@pytest.mark.parametrize("door", DOORS)
def test_unknown_options_are_refused_by_name_at_every_door(door, dataset):
    """A misspelt option is an error that names it and what was meant; nothing is read without it."""
    with pytest.raises(ts.errors.StoreError, match=r'no storage option "heders".*did you mean "headers"'):
        DOORS[door](dataset, storage_options={"heders": {}})
    with pytest.raises(ts.errors.JsonError, match="http_request_retrys"):
        DOORS[door](dataset, context={"http_request_retrys": {}})


@pytest.mark.parametrize(
    ("place", "options", "says"),
    [
        ("s3://bkt/", {"anonn": True}, 'no storage option "anonn".*did you mean "anon"'),
        ("file:///x/", {"anon": True}, 'store "file" has no storage options, but received: "anon"'),
        ({"a": b"1"}, {"anon": True}, "is open already"),
        ("gs://bucket/", {"credential_provider": "a.b:c"}, "for s3:// only; for gs:// the client renews .* token="),
        ("az://cont/", {"credential_provider": "a.b:c"}, "for s3:// only; for abfs:// .* tenant_id, client_id"),
        ("s3://bkt/a.zip|zip:", {"keyy": "x"}, 'no storage option "keyy"'),
    ],
)
def test_options_that_a_store_lacks_are_refused(place, options, says):
    """Stores without options, and those that are open already, say so; options below adapters are checked too."""
    with pytest.raises(ts.errors.StoreError, match=says):
        ts.KvStore.open(place, storage_options=options).result()


def test_options_that_are_no_mapping_are_refused():
    """A list in place of a mapping is a `TypeError`, and an array without a store has no use for options."""
    with pytest.raises(TypeError, match="storage_options must be a mapping"):
        ts.open("s3://bkt/|zarr3:", storage_options=["anon"])
    with pytest.raises(ts.errors.StoreError, match='a "array" array has none'):
        ts.open({"driver": "array", "array": [1], "dtype": "int32"}, storage_options={"anon": True})


def test_local_places_ignore_what_only_others_need(tmp_path):
    """`auto_mkdir` and the like are accepted of local files, which do that anyway."""
    store = ts.KvStore.open(f"file://{tmp_path}/", storage_options={"auto_mkdir": True, "file": {}}).result()
    store["a/b"] = b"1"
    assert (tmp_path / "a" / "b").read_bytes() == b"1"


@pytest.mark.parametrize("engine", ENGINES)
def test_both_clients_are_given_the_same(engine, dataset, object_server, monkeypatch):
    """Keys, endpoint, region and anonymity in s3fs's words reach obstore as well as s3fs."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of somebody else")
    spec = {"driver": "s3", "bucket": "bkt", "path": "g/", "engine": engine}
    signed = {"key": "MYKEY", "secret": "s", "client_kwargs": {"region_name": "eu-west-3"}}
    object_server.headers_seen.clear()
    store = ts.KvStore.open(spec, storage_options={**signed, "endpoint_url": object_server.url}).result()
    assert store["zarr.json"][:1] == b"{"
    [authorization] = names_of(object_server, "authorization")
    assert "Credential=MYKEY/" in authorization
    assert "/eu-west-3/" in authorization
    assert names_of(object_server, "x-amz-security-token") == {None}
    object_server.headers_seen.clear()
    options = {"s3": {"anon": True, "endpoint_url": object_server.url}}
    assert "a" in ts.open_group(spec, mode="r", storage_options=options).result()
    assert names_of(object_server, "authorization") == {None}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_environment_is_heeded(engine, dataset, object_server, monkeypatch, tmp_path):
    """`AWS_ENDPOINT_URL` over http, anonymity, and profiles with keys, region and endpoint, in both clients."""
    spec = {"driver": "s3", "bucket": "bkt", "path": "g/", "engine": engine}
    monkeypatch.setenv("AWS_ENDPOINT_URL", object_server.url)
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    object_server.headers_seen.clear()
    assert ts.KvStore.open(spec).result()["zarr.json"]
    assert names_of(object_server, "authorization") == {None}
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    monkeypatch.delenv("AWS_SKIP_SIGNATURE")
    settings = f"endpoint_url = {object_server.url}\nregion = ap-south-1\n"
    (tmp_path / "config").write_text(f"[profile lab]\n{settings}")
    (tmp_path / "keys").write_text("[lab]\naws_access_key_id = LAB\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "keys"))
    object_server.headers_seen.clear()
    for given in ({"storage_options": {"profile": "lab"}}, {"context": {"aws_credentials": {"profile": "lab"}}}):
        assert ts.KvStore.open(spec, **given).result()["zarr.json"]
    monkeypatch.setenv("AWS_PROFILE", "lab")
    assert ts.KvStore.open(spec).result()["zarr.json"]
    assert all(
        "Credential=LAB/" in each and "/ap-south-1/" in each for each in names_of(object_server, "authorization")
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_missing_credentials_are_one_sentence(engine, monkeypatch, tmp_path, object_server):
    """Without any credentials nothing is asked of the server, and the error says how to give some."""
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    spec = {"driver": "s3", "bucket": "bkt", "engine": engine, "endpoint": object_server.url}
    with pytest.raises(ts.errors.PermissionDeniedError) as error:
        ts.KvStore.open(spec).result().read("a").result()
    assert str(error.value).count(". ") == 0
    assert "storage_options={'anon': True}" in str(error.value)
    assert not object_server.log


@pytest.mark.parametrize("options", [{"anon": True}, {"key": "k", "secret": "s"}, {"credential_provider": "os:getcwd"}])
@pytest.mark.parametrize("engine", ENGINES)
def test_options_come_before_the_services_of_the_machine(engine, options, monkeypatch, object_server):
    """Where the caller said how to sign, nothing looks for other credentials: no profile, no metadata address."""
    import botocore.session

    def refuse(*_):
        raise AssertionError("looked for credentials elsewhere")

    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setattr(botocore.session.Session, "get_credentials", refuse)
    object_server.put("/bkt/a", b"1")
    spec = {"driver": "s3", "bucket": "bkt", "engine": engine, "endpoint": object_server.url}
    store = ts.KvStore.open(spec, storage_options=options).result()
    if "credential_provider" in options:
        with pytest.raises(ts.errors.PermissionDeniedError, match="has to return a mapping with access_key_id"):
            store.read("a").result()
    else:
        assert store["a"] == b"1"


ISSUER = """
import json, os
def issue():
    with open(os.environ["ISSUED"]) as file:
        known = json.load(file)
    with open(os.environ["ISSUED"] + ".asked", "a") as file:
        file.write("1")
    return {"AccessKeyId": "K", "SecretAccessKey": "S", "SessionToken": known["token"], "Expiration": known["until"]}
"""


class Issuer:
    """A service that gives tokens: which one is good now, until when, and how often it was asked."""

    def __init__(self, path, server):
        self.path, self.server = path, server
        self.say("one", None)

    def say(self, token, until, *, ended=()):
        """Issue another token from now on; the server refuses all others, unless those before have not ended."""
        self.good = {token} if ended == () else self.good - set(ended) | {token}
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps({"token": token, "until": until}))
        new.replace(self.path)

    @property
    def asked(self):
        """How often a token was asked for."""
        asked = self.path.with_suffix(".asked")
        return len(asked.read_text()) if asked.exists() else 0

    def guard(self, handler, path, body):
        """Answer a request whose token is good; S3 says 400 to one that has expired."""
        given = {name.lower(): value for name, value in handler.headers.items()}
        if given.get("x-amz-security-token") not in self.good:
            handler.reply(400, b"<Error><Code>ExpiredToken</Code></Error>", send_body=handler.command != "HEAD")
        else:
            handler.serve(path, parse_qs(urlsplit(handler.path).query, keep_blank_values=True), body)


@pytest.fixture
def issuer(tmp_path, monkeypatch, object_server):
    """Give the issuer of tokens that the server checks; `issuer_of_tokens:issue` is its function."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "issuer_of_tokens.py").write_text(ISSUER)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.setenv("ISSUED", str(tmp_path / "issued"))
    found = Issuer(tmp_path / "issued", object_server)
    object_server.fail("/bkt/", *[found.guard] * 1000)
    yield found
    sys.modules.pop("issuer_of_tokens", None)


def protected(server, engine, **more):
    """Return the spec of a bucket whose credentials the issuer gives."""
    context = {"aws_credentials": {"type": "provider", "provider": "issuer_of_tokens:issue"}}
    return {"driver": "s3", "bucket": "bkt", "engine": engine, "endpoint": server.url, "context": context, **more}


@pytest.mark.parametrize("engine", ENGINES)
def test_tokens_that_expire_are_renewed_in_the_middle_of_a_read(engine, issuer, object_server):
    """A token that ends before its time costs one refused request, not the read; nor the write, nor the listing."""
    store = ts.KvStore.open(protected(object_server, engine, path="d/")).result()
    spec = {"driver": "zarr3", "kvstore": store.spec(unbind_context=True), "dtype": "int32"}
    layout = ts.ChunkLayout(chunk_shape=[10])
    array = ts.open(spec, create=True, shape=[300], chunk_layout=layout).result()
    array.write(np.arange(300, dtype="i4")).result()
    before = issuer.asked
    served = []

    def expire_after_ten(handler, path, body):
        served.append(path)
        if len(served) == 10:
            issuer.say("two", None)
        issuer.guard(handler, path, body)

    object_server.faults.insert(0, ("/d/c/", None, __import__("collections").deque([expire_after_ten] * 40)))
    assert np.array_equal(array.read().result(), np.arange(300))
    # a request that was sent with the old token may be refused after the new one has come, and asks once more
    assert issuer.asked - before in (1, 2)
    issuer.say("three", None)
    assert b"zarr.json" in store.list().result()
    issuer.say("four", None)
    array[5].write(-1).result()
    assert array[5].read().result() == -1


@pytest.mark.parametrize("engine", ENGINES)
def test_tokens_are_renewed_before_they_expire(engine, issuer, object_server):
    """A function that names a time is asked again a minute before it, and not while what it gave is good."""
    object_server.put("/bkt/a", b"1")
    issuer.say("one", "2020-01-01T00:00:00Z")
    store = ts.KvStore.open(protected(object_server, engine)).result()
    assert store["a"] == b"1"
    issuer.say("two", "2099-01-01T00:00:00+00:00", ended=["none"])
    assert store["a"] == b"1"
    asked = issuer.asked
    assert store["a"] == b"1"
    assert issuer.asked == asked


def test_functions_for_credentials_go_to_workers_by_name(issuer, object_server):
    """A function stands in pickles and JSON by its name, and needs no shared secrets; others are refused."""
    import issuer_of_tokens

    object_server.put("/bkt/a", b"1")
    options = {"credential_provider": issuer_of_tokens.issue, "endpoint_url": object_server.url}
    store = ts.KvStore.open("s3://bkt/", storage_options=options).result()
    assert store.spec().to_json()["storage_options"]["credential_provider"] == "issuer_of_tokens:issue"
    code = "import pickle, sys; print(pickle.load(sys.stdin.buffer)['a'])"
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(store), capture_output=True, check=True, timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, cwd="/",
    )  # fmt: skip
    assert done.stdout.strip() == b"b'1'"
    for bad in (dict, "issue", print):
        with pytest.raises(ts.errors.StoreError, match="function|imported"):
            ts.KvStore.open("s3://bkt/", storage_options={"credential_provider": bad}).result()["a"]
