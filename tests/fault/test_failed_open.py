"""A failed open leaves nothing behind."""

from __future__ import annotations

import pytest

import fsstore as ts


@pytest.mark.parametrize(
    ("spec", "options", "why"),
    [
        ("|zarr3:", {"create": True, "shape": [3]}, "dtype must be specified"),
        ("|zarr3:", {"create": True, "dtype": "int8"}, "domain must be specified"),
        ("|zarr3:", {"create": True, "dtype": "json", "shape": [3]}, "Data type not supported"),
        ("|zarr2:", {"create": True, "dtype": "int8", "shape": [3], "dimension_units": ["nm"]}, "not supported"),
        ("|zarr3:", {}, "does not exist"),
        ("", {}, "There is nothing at"),
    ],
)
def test_nothing_is_created_by_a_failed_open(tmp_path, spec, options, why):
    """Neither a file nor a directory appears, and the error says why."""
    with pytest.raises(ValueError, match=why):
        ts.open(f"file://{tmp_path}/a{spec}", **options).result()
    assert list(tmp_path.iterdir()) == []
