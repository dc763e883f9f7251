"""Index spaces: domains, transforms and every way of indexing.

Pure functions over immutable values; no I/O, no knowledge of stores.  Views of stores are transforms, indexing is
composition.

* values: `interval`, `dim`, `output_map`, and under domains and transforms `value`; `wire` is their JSON;
* for users: `domain` and `transform`;
* `view[key]`: `indexing` decides, `term` parses, `basic` and `advanced` apply; `indexable` brings it to stores,
  specs and schemas;
* `dim_expression`: `operation` on a `selection` of dimensions;
* `compose` puts one transform on another.
"""

from __future__ import annotations

from fsstore.index.compose import check_values, compose, propagate_bounds
from fsstore.index.dim import Dim
from fsstore.index.dim_expression import DimExpression, DimSelection, DimSelectionLike, d
from fsstore.index.domain import IndexDomain
from fsstore.index.indexable import DomainView, Indexable
from fsstore.index.indexing import index_transform
from fsstore.index.interval import INF as inf  # noqa: N811  # TensorStore's name
from fsstore.index.output_map import (
    ARRAY,
    CONSTANT,
    SINGLE,
    OutputIndexMap,
    OutputIndexMaps,
    OutputIndexMethod,
    OutputMap,
)
from fsstore.index.term import NumpyIndexingSpec, NumpyIndexTerm
from fsstore.index.transform import IndexTransform, identity

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
