"""URL pipelines: the parser and its inverse, over random stores, paths and adapters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fsstore as ts
from fsstore.errors import UrlError
from fsstore.values.registry import decode_path, encode_path, join_pipeline, split_pipeline

paths = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)
names = st.lists(st.text(st.characters(exclude_characters="/\0.", exclude_categories=["Cs"]), min_size=1, max_size=6))


@given(paths)
def test_paths_survive_encoding(path):
    """Decoding undoes encoding, and what is encoded needs no further escapes."""
    encoded = encode_path(path)
    assert decode_path(encoded) == path
    assert encoded.isascii()
    assert not set(encoded) & set(" |?#%") - {"%"}


@given(st.binary(max_size=8))
def test_bytes_survive_encoding(data):
    """Paths that are not UTF-8 travel as surrogate escapes."""
    path = data.decode("utf-8", "surrogateescape")
    assert decode_path(encode_path(path)) == path


@given(st.lists(st.sampled_from(["file:///a", "zip:b", "zarr3", "cast:int8"]), min_size=1))
def test_components_join_to_what_was_split(parts):
    """Splitting a joined pipeline gives the components, each with its place in the text."""
    url = join_pipeline(parts)
    components = split_pipeline(url)
    assert [component.text for component in components] == parts
    assert all(url[c.position : c.position + len(c.text)] == c.text for c in components)


@given(names, st.lists(st.tuples(st.sampled_from(["zip", "ocdbt"]), names), max_size=2))
def test_store_specs_survive_their_url(root, adapters):
    """A key-value store spec is equal to the one parsed from its URL."""
    json = {"driver": "memory", "path": "/".join(root)}
    for driver, path in adapters:
        json = {"driver": driver, "base": json, "path": "/".join(path)}
    spec = ts.KvStore.Spec(json)
    again = ts.KvStore.Spec(spec.url)
    assert again == spec
    assert again.url == spec.url


@given(names, st.sampled_from(["zarr3", "zarr", "auto", "n5"]), st.lists(st.sampled_from(["int8", "float32"])))
def test_array_specs_survive_their_url(path, driver, casts):
    """An array spec that a URL can say is equal to the one parsed from it."""
    json = {"driver": driver, "kvstore": {"driver": "memory", "path": "/".join(path)}}
    spec = ts.Spec(json)
    for kind in casts:
        spec = ts.cast(spec, kind)
    assert ts.Spec(spec.url).to_json() == spec.to_json()


def test_long_chains_are_refused():
    """A URL cannot nest without end."""
    ts.Spec("memory://a|zarr3:" + "|cast:int8" * 60)
    with pytest.raises(UrlError, match="more than 64"):
        ts.Spec("memory://a|zarr3:" + "|cast:int8" * 1000)


@pytest.mark.parametrize("bad", ["%", "%z1", "a%4", "%%41"])
def test_malformed_escapes_are_refused(bad):
    """A percent sign without two hexadecimal digits is an error that points at it."""
    with pytest.raises(UrlError, match="Invalid percent-encoding") as caught:
        decode_path(bad)
    assert caught.value.position == bad.replace("%41", "___").index("%")
