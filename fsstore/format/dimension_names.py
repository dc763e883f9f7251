"""Names of dimensions as stored: in `dimension_names` of zarr v3, in the attribute `_ARRAY_DIMENSIONS` beside zarr v2.

Both become the labels of a domain.  Labels must be distinct; names that are not leave all dimensions unlabeled, and so
does an attribute that does not name every dimension: it belongs to the user, and says nothing about the data.
"""

from __future__ import annotations

from collections.abc import Sequence

from fsstore.errors import DataLossError
from fsstore.values.json_value import loads

__all__ = ["ARRAY_DIMENSIONS", "labels_of", "labels_of_attributes"]

ARRAY_DIMENSIONS = "_ARRAY_DIMENSIONS"
"""The attribute in which xarray names the dimensions of arrays of zarr v2."""


def labels_of(names: Sequence[str | None]) -> tuple[str, ...]:
    """Return names as labels, one a dimension; names that occur twice leave all dimensions unlabeled."""
    labels = tuple(name or "" for name in names)
    named = [label for label in labels if label]
    return labels if len(set(named)) == len(named) else ("",) * len(labels)


def labels_of_attributes(attributes: bytes | None, rank: int) -> tuple[str, ...]:
    """Return the labels that an attributes document gives to `rank` dimensions; none where it gives none."""
    try:
        value = None if attributes is None else loads(attributes, lenient=True)
    except DataLossError:
        return ()
    names = value.get(ARRAY_DIMENSIONS) if isinstance(value, dict) else None
    if not isinstance(names, list) or len(names) != rank or not all(isinstance(name, str) for name in names):
        return ()
    labels = labels_of(names)
    return labels if any(labels) else ()
