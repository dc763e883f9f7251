"""The meaning of `view[key]`: every kind of key, applied to a transform."""

from __future__ import annotations

from types import EllipsisType
from typing import Any, TypeVar

from fsstore.errors import OutOfRangeError, StoreError
from fsstore.index.advanced import index_advanced
from fsstore.index.basic import index_basic, narrow
from fsstore.index.compose import compose, effective
from fsstore.index.dim import dim_text
from fsstore.index.dim_expression import DimExpression
from fsstore.index.interval import INT64
from fsstore.index.selection import indexing_error
from fsstore.index.term import parse_index
from fsstore.index.value import DomainValue, TransformValue, check_labels
from fsstore.values.json_value import quote

__all__ = ["index_transform", "restrict"]

T = TypeVar("T", bound=TransformValue)
_PLAIN = {int, type(None), EllipsisType}
_SLICED = {int, type(None)}


def _basic(terms: tuple[Any, ...]) -> bool:
    """Return whether `terms` need no parsing: plain ints, None, `...` and slices of plain ints."""
    for term in terms:
        if type(term) is slice:
            if (
                type(term.start) not in _SLICED
                or type(term.stop) not in _SLICED
                or type(term.step) not in _SLICED
            ):
                return False
        elif type(term) not in _PLAIN or (type(term) is int and not -INT64 <= term < INT64):
            return False
    return terms.count(Ellipsis) < 2


def index_transform(transform: T, key: Any, mode: str = "default") -> T:
    """Return `transform` indexed by `key`, a numpy-style index, domain, transform or dimension expression.

    `mode` is `default`, `oindex` or `vindex` and concerns index arrays.  Raises `IndexError`s.
    """
    try:
        terms = key if type(key) is tuple else (key,)
        if _basic(terms):
            return index_basic(transform, terms)
        if mode == "default":
            if isinstance(key, DimExpression):
                return key.apply(transform)
            if isinstance(key, DomainValue):
                return restrict(transform, key)
            if isinstance(key, TransformValue):
                return compose(key, transform)
        index = parse_index(key)
        if _basic(index.terms):
            return index_basic(transform, index.terms)
        return index_advanced(transform, index, mode)[0]
    except StoreError as error:
        raise indexing_error(error) from error.__cause__


def restrict(transform: T, box: DomainValue) -> T:
    """Return `transform` with its domain cut down to `box`, whose bounds become explicit.

    Dimensions are matched by label where both sides have labels, else by position.
    """
    domain = transform._domain
    dims = _matching(domain, box)
    lows, highs, labels = list(domain._low), list(domain._high), list(domain._labels)
    implicit_low, implicit_high = list(domain._implicit_low), list(domain._implicit_high)
    for i, dim in enumerate(dims):
        low, high = box._low[i], box._high[i]
        limits = effective(domain, dim)
        if not (limits[0] <= low and high <= limits[1]) and low != high:
            mine, theirs = (dim_text(side.bounds(n), side.labels[n]) for side, n in ((domain, dim), (box, i)))
            raise OutOfRangeError(
                f"Cannot slice target dimension {dim} {{{mine}}} with index domain dimension {i} {{{theirs}}}"
            )
        lows[dim], highs[dim], implicit_low[dim], implicit_high[dim] = low, high, False, False
        labels[dim] = labels[dim] or box._labels[i]
    if labels != [*domain._labels]:
        check_labels(labels)
    flags = tuple(implicit_low), tuple(implicit_high)
    return narrow(transform, domain._of(tuple(lows), tuple(highs), *flags, tuple(labels)))


def _matching(domain: DomainValue, box: DomainValue) -> list[int]:
    """Return the dimension of `domain` that each dimension of `box` restricts."""
    if not any(box.labels) or not any(domain.labels):
        if box.rank != domain.rank:
            raise StoreError(
                f"Rank of index domain ({box.rank}) must match rank of slice target ({domain.rank}) "
                "when the index domain or slice target is unlabeled"
            )
        return list(range(domain.rank))
    unlabeled = iter([dim for dim, label in enumerate(domain.labels) if not label])
    dims = []
    for label in box.labels:
        if label and label not in domain.labels:
            names = ", ".join(map(quote, domain.labels))
            raise StoreError(f"Label {quote(label)} does not match one of {{{names}}}")
        dim = domain.labels.index(label) if label else next(unlabeled, -1)
        if dim < 0:
            raise StoreError(
                "Number of unlabeled dimensions in index domain exceeds number of unlabeled dimensions in slice target"
            )
        dims.append(dim)
    if not all(box.labels) and box.rank != domain.rank:
        raise StoreError(
            f"Rank ({box.rank}) of index domain containing unlabeled dimensions must equal slice target rank "
            f"({domain.rank})"
        )
    return dims
