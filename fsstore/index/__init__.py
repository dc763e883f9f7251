"""Index spaces: domains, transforms and every way of indexing.

Pure functions over immutable values; no I/O, no knowledge of stores.  Views of stores are transforms, indexing is
composition.

* values: `interval` (and dimensions), `output_map`, and under domains and transforms `value`, with their JSON;
* for users: `transform`, which has domains too;
* `view[key]`: `indexing` decides, `numpy_index` parses and applies; stores, specs and schemas are indexed by the same
  base;
* `dim_expression`: `operation` on selected dimensions;
* `compose` puts one transform on another.
"""

from __future__ import annotations

from fsstore.index.compose import compose, propagate_bounds
from fsstore.index.dim_expression import DimExpression, DimSelection, DimSelectionLike, d
from fsstore.index.indexing import DomainView, Indexable, NumpyIndexingSpec, NumpyIndexTerm, index_transform
from fsstore.index.interval import INF as inf  # noqa: N811  # TensorStore's name
from fsstore.index.interval import Dim
from fsstore.index.output_map import (
    ARRAY,
    CONSTANT,
    SINGLE,
    OutputIndexMap,
    OutputIndexMaps,
    OutputIndexMethod,
    OutputMap,
    check_values,
)
from fsstore.index.transform import IndexDomain, IndexTransform, identity

newaxis = None
"""Inserts a new dimension of size 1 in an indexing expression."""

__all__ = [
    "ARRAY",
    "CONSTANT",
    "SINGLE",
    "Dim",
    "DimExpression",
    "DimSelection",
    "DimSelectionLike",
    "DomainView",
    "IndexDomain",
    "IndexTransform",
    "Indexable",
    "NumpyIndexTerm",
    "NumpyIndexingSpec",
    "OutputIndexMap",
    "OutputIndexMaps",
    "OutputIndexMethod",
    "OutputMap",
    "check_values",
    "compose",
    "d",
    "identity",
    "index_transform",
    "inf",
    "newaxis",
    "propagate_bounds",
]
