"""A file holds what cannot be shown: users see its name and the reason wherever they look, never only in a log."""

from __future__ import annotations

import json

import h5py
import numpy as np
import pytest
import xarray as xr

import fsstore as ts
from fsstore.command.main import main
from fsstore.errors import UnimplementedError

EMPTY = "it has no values, not even a scalar"


@pytest.fixture
def url(tmp_path):
    """Return the URL of a file of which two arrays and a link are left out."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["shown"] = np.arange(3)
        file["empty"] = h5py.Empty("f4")
        file["group/shown"] = np.arange(4)
        file["group/empty"] = h5py.Empty("f4")
        file["alias"] = h5py.SoftLink("/group")
    return f"{tmp_path}/a.h5|hdf5:"


@pytest.mark.parametrize("path", ["empty", "group/empty"])
def test_opening_it_says_why(path, url):
    """It is no missing array: the error names the file, the object and the reason."""
    with pytest.raises(UnimplementedError, match=f'"{path}" of HDF5 file .* is left out: {EMPTY}'):
        ts.open(url + path).result()


def test_opening_it_in_a_group_says_why(url):
    """So does a member of an open group, and one behind a link to a group; what nobody knows is not found."""
    group = ts.open_group(url).result()
    with pytest.raises(UnimplementedError, match=EMPTY):
        group["group/empty"]
    with pytest.raises(UnimplementedError, match="it is a link to the group 'group', which is shown there"):
        group["alias/shown"]
    with pytest.raises(KeyError):
        group["nothing"]
    assert ("empty" in group, "alias/shown" in group, "shown" in group) == (False, False, True)


def test_a_group_names_it(url):
    """In its words, its tree and its page; a group inside names its own."""
    group = ts.open_group(url).result()
    assert all(name in repr(group) for name in ("alias", '"empty"', "group/empty"))
    assert f"  empty is left out: {EMPTY}" in group.tree().splitlines()
    assert f"    empty is left out: {EMPTY}" in group.tree().splitlines()
    assert group._repr_html_().count(EMPTY) == 2
    inside = group["group"]
    assert 'without "empty"' in repr(inside)
    assert inside.tree().splitlines()[1:] == [f"  empty is left out: {EMPTY}", "  shown <i8 (4) in chunks of (4)"]


def test_listings_name_it(url):
    """`list_arrays` warns of each, and `tree` shows it."""
    with pytest.warns(UserWarning, match="is left out") as warned:
        found = ts.list_arrays(url)
    assert [each.path for each in found] == ["group/shown", "shown"]
    assert {str(each.message).partition(" ")[0] for each in warned} == {'"empty"', '"group/empty"', '"alias"'}
    assert ts.tree(url).count(EMPTY) == 2


@pytest.mark.parametrize("verb", ["info", "tree", "ls"])
def test_the_command_line_names_it(verb, url, capsys):
    """In the words of all three, and in the JSON of those that have a place for it."""
    assert main([verb, url]) == 0
    assert EMPTY in capsys.readouterr().out
    if verb != "ls":
        assert main([verb, url, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["left_out"]["group/empty"] == EMPTY


def test_xarray_warns_of_it(url):
    """The engine warns of what the group lacks, and not of other groups or of what is dropped."""
    with pytest.warns(UserWarning, match=f'"empty" is left out: {EMPTY}|"alias" is left out') as warned:
        found = xr.open_dataset(url, engine="fsstore", drop_variables=["alias"])
    assert list(found) == ["shown"]
    assert [str(each.message) for each in warned] == [f'"empty" is left out: {EMPTY}']
