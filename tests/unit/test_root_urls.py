"""Root URLs that are chains of fsspec, other spellings of Azure's, and what errors of mistaken URLs advise."""

import zipfile
from pathlib import Path

import pytest

import fsstore as ts
from fsstore.errors import UnavailableError, UrlError
from fsstore.kvstore.engine.contract import Attempts, Retry
from fsstore.kvstore.root.chain_url import is_chain, join_chain, split_chain
from fsstore.kvstore.spec_parse import kv_spec, place_spec

CHAINS = [
    ("simplecache::s3://bucket/a/b", "simplecache::s3://bucket/", "a/b"),
    ("simplecache::s3://bucket", "simplecache::s3://bucket/", ""),
    ("zip://inner/c::file:///a.zip", "zip://::file:///a.zip", "inner/c"),
    ("simplecache::zip://c%20d::https://h/a.zip", "simplecache::zip://::https://h/a.zip", "c d"),
    ("zip::file:///a.zip", "zip://::file:///a.zip", ""),
    ("filecache::zip::https://h/a.zip", "filecache::zip://::https://h/a.zip", ""),
    ("ocdbt::file:///d", "ocdbt://::file:///d", ""),
]


@pytest.mark.parametrize(("text", "url", "path"), CHAINS)
def test_chains_split_and_join(text, url, path):
    """The path of a chain is that of the first link that is no cache; joining is the inverse of splitting."""
    assert is_chain(text)
    assert split_chain(text) == (url, path)
    assert split_chain(join_chain(url, path)) == (url, path)


def test_links_without_a_path_begin_at_their_root(tmp_path):
    """`zip::` and `ocdbt::` are the archive and the database, from their roots on, also where JSON says so."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a/b", b"value")
    url = f"zip::file://{tmp_path}/a.zip"
    spec = {"driver": "fsspec", "url": url, "path": "a/"}
    assert ts.KvStore.open(url).result()["a/b"] == b"value"
    assert ts.KvStore.open(spec).result()["b"] == b"value"
    assert ts.KvStore.Spec(spec).url == f"zip://a/::file://{tmp_path}/a.zip"
    ts.KvStore.open(f"file://{tmp_path}/d|ocdbt:").result()["k"] = b"v"
    assert ts.KvStore.open(f"ocdbt::file://{tmp_path}/d").result().list().result() == [b"k"]
    with pytest.raises(ValueError, match="Failed to detect"):
        ts.open(f"ocdbt::file://{tmp_path}/d").result()


def test_paths_with_colons_are_no_chains():
    """A root of ours keeps its path, whatever stands in it."""
    assert not is_chain("file:///a::b")
    spec = ts.KvStore.Spec("s3://bucket/a::memory://b").to_json()
    assert spec == {"driver": "s3", "bucket": "bucket", "path": "a::memory://b"}


def test_a_colon_pair_in_a_path_survives():
    """A key with `::` in a chain is escaped in the URL and found again."""
    url = join_chain("simplecache::memory://n/", "a::b")
    assert split_chain(url) == ("simplecache::memory://n/", "a::b")


def test_arrays_open_through_chains(tmp_path):
    """One URL opens an array through a cache and inside an archive that fsspec reads."""
    place = tmp_path / "array"
    ts.open(f"file://{place}|zarr3:", create=True, dtype="int16", shape=[4]).result()[...] = range(4)
    assert ts.open(f"simplecache::file://{place}/|zarr3:").result().read().result().tolist() == [0, 1, 2, 3]
    assert ts.open(f"simplecache::file://{place}/").result().dtype == ts.int16
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for file in place.rglob("*"):
            if file.is_file():
                archive.write(file, f"deep/{file.relative_to(place)}")
    found = ts.open(f"zip://deep/::file://{tmp_path}/a.zip|zarr3:").result()
    assert found.read().result().tolist() == [0, 1, 2, 3]
    assert found.kvstore.url == f"zip://deep/::file://{tmp_path}/a.zip"


def test_a_chain_ends_at_a_directory(tmp_path):
    """Keys stand below the last directory of a chain, with or without its slash in the spec."""
    (tmp_path / "k").write_bytes(b"v")
    store = ts.KvStore.open({"driver": "fsspec", "url": f"simplecache::file://{tmp_path}/"}).result()
    assert store.read("k").result().value == b"v"


@pytest.mark.parametrize(("url", "place"), [("dir::{}/", ""), ("dir://::{}", ""), ("dir://in/::{}/", "in/")])
def test_a_directory_is_a_root(tmp_path, url, place):
    """`dir` puts a path before others, over filesystems with coroutines and without."""
    store = ts.KvStore.open(url.format(f"file://{tmp_path}")).result()
    store["a/k"] = b"v"
    assert (tmp_path / place / "a" / "k").read_bytes() == b"v"
    assert store.list().result() == [b"a/k"]


@pytest.mark.parametrize("scheme", ["abfs", "abfss", "az"])
def test_azure_urls(scheme):
    """All schemes of Azure mean one driver, and the URL may name the account."""
    spec = ts.KvStore.Spec(f"{scheme}://box@mine.dfs.core.windows.net/a/")
    assert spec.to_json() == {"driver": "abfs", "container": "box", "account_name": "mine", "path": "a/"}
    assert spec.url == "abfs://box@mine.dfs.core.windows.net/a/"


def test_azure_accounts_of_other_hosts_are_refused():
    """Another host is no account: it would be asked with the credentials of one."""
    with pytest.raises(UrlError, match="Invalid Azure host name"):
        ts.KvStore.Spec("abfs://box@evil.example/a/")


ADVICE = [
    ("flie:///tmp/x", 'Did you mean "file"'),
    ("file:///tmp/x|zar3:", 'Did you mean "zarr3"'),
    ("file:///tmp/x|krchunk:", 'Did you mean "kerchunk"'),
    ("file:///tmp/x|zarr:", 'Did you mean "zarr2"'),
    ("reference::/tmp/x.json", r'Did you mean "file:///tmp/x\.json\|reference:"'),
]


@pytest.mark.parametrize(("url", "advice"), ADVICE)
@pytest.mark.parametrize("parse", [ts.Spec, ts.KvStore.Spec])
def test_mistaken_urls_get_advice(url, advice, parse):
    """An unknown scheme is answered with what was probably meant."""
    with pytest.raises(UrlError, match=advice):
        parse(url)


def test_chains_for_other_tools_get_advice():
    """A chain that shows an array to others is answered with the URL that opens it; a known name with nothing."""
    with pytest.raises(UrlError, match=r'Did you mean "s3://b/x\|zarr3:"'):
        ts.Spec("zarr3::s3://b/x")
    with pytest.raises(UrlError) as caught:
        ts.KvStore.Spec("file:///tmp/x|zarr3:")
    assert "Did you mean" not in str(caught.value)


def test_the_deadline_counts_from_the_first_try():
    """A first try that took the whole time leaves none for another."""
    attempts = Attempts(Retry(deadline_s=0.0))
    with pytest.raises(UnavailableError):
        attempts.pause_after(UnavailableError("gone"))


@pytest.mark.parametrize(
    ("text", "path"),
    [("/", "/"), ("a", "{}/a"), ("a/", "{}/a/"), ("./a", "{}/a"), ("/a//", "/a/"), ("../x/a", "{0.parent}/x/a")],
)
def test_paths_are_places(tmp_path, monkeypatch, text, path):
    """Doors for users who think of places take local paths, relative ones from the working directory."""
    monkeypatch.chdir(tmp_path)
    assert place_spec(text).to_json() == {"driver": "file", "path": path.format(tmp_path)}
    if "//" not in text:
        assert kv_spec(Path(text)).path.rstrip("/") == path.format(tmp_path).rstrip("/")


def test_a_path_object_opens_an_array(tmp_path):
    """A `Path` is a local path, and so is text that is no URL."""
    made = ts.open({"driver": "zarr3", "kvstore": tmp_path / "a"}, create=True, dtype="int8", shape=[2]).result()
    made.write([1, 2]).result()
    assert ts.open(tmp_path / "a").result().read().result().tolist() == [1, 2]
    assert ts.KvStore.open(tmp_path / "a/").result().spec().to_json()["path"] == f"{tmp_path}/a"
    assert [entry.shape for entry in ts.list_arrays(tmp_path)] == [(2,)]
    assert "zarr.json" in ts.get_mapper(tmp_path / "a")
    assert ts.open(str(tmp_path / "a")).result().shape == (2,)
