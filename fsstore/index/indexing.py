"""`view[key]`, and the base of everything that is indexed: domains, transforms, specs, schemas and stores.

A class takes part by one hook, `_apply(change, *arguments)`, which returns the same object with its transform replaced
by `change(transform, *arguments)`.  `DomainView` has the operations on all dimensions, which raise plain `StoreError`s,
as TensorStore does; `Indexable` adds `[...]`, `oindex` and `vindex`, which raise `IndexError`s.  Stores also implement
`_assign` for `view[key] = value`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import EllipsisType
from typing import Any, ClassVar, Generic, NoReturn, Protocol, Self, SupportsIndex, TypeAlias, TypeVar

from numpy.typing import NDArray

from fsstore.errors import InvalidIndexError, OutOfRangeError, StoreError
from fsstore.index import operation
from fsstore.index.compose import compose, effective
from fsstore.index.dim_expression import DimExpression, DimSelectionLike, parse_selection
from fsstore.index.interval import INT64, dim_text
from fsstore.index.numpy_index import index_advanced, index_basic, narrow, parse_index
from fsstore.index.operation import indexing_error
from fsstore.index.value import DomainValue, TransformValue, check_labels
from fsstore.values.json_value import quote

T = TypeVar("T", bound=TransformValue)
_PLAIN = {int, type(None), EllipsisType}
_SLICED = {int, type(None)}


def _basic(terms: tuple[Any, ...]) -> bool:
    """Return whether `terms` need no parsing: plain ints, None, `...` and slices of plain ints."""
    for term in terms:
        if type(term) is slice:
            if type(term.start) not in _SLICED or type(term.stop) not in _SLICED or type(term.step) not in _SLICED:
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


def within_bounds(change: Callable[..., T], transform: T, *arguments: Any) -> T:
    """Return a view of a view; errors about positions say what to type where the index has another common meaning."""
    try:
        return change(transform, *arguments)
    except (OutOfRangeError, InvalidIndexError) as error:
        failed = error
    begins, back = transform.domain.inclusive_min, _from_the_end(arguments[0] if arguments else None)
    if back and min(begins) >= 0:
        raise failed.within(
            f"{back[0]} does not count from the end of {transform.domain}; use store.shape[{back[1]}] - {-back[0]}, or"
            " fsstore.sync"
        )
    if any(begins):
        raise failed.within(
            f"This view has the positions {transform.domain} of its array; view.translate_to[0] has them from 0 on"
        )
    raise failed.but(f"the domain is {transform.domain}") if "inf)" in failed.message else failed


def _from_the_end(key: Any) -> tuple[int, int] | None:
    """Return the first negative position of an index and the number of its dimension, negative after `...`."""
    keys = key if isinstance(key, tuple) else (key,)
    for at, each in enumerate(keys):
        for position in (each.start, each.stop) if isinstance(each, slice) else (each,):
            if isinstance(position, int) and position < 0:
                return position, at - len(keys) if any(before is ... for before in keys[:at]) else at
    return None


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


# The base of domains, transforms, specs, schemas and stores: operations on all dimensions, and indexing.

NumpyIndexTerm: TypeAlias = (
    SupportsIndex
    | slice
    | EllipsisType
    | NDArray[Any]
    | Sequence[SupportsIndex]
    | Sequence[Sequence[SupportsIndex]]
    | None
)
"""The types of a term between the commas of `view[...]`, before it is parsed."""
NumpyIndexingSpec: TypeAlias = NumpyIndexTerm | tuple[NumpyIndexTerm, ...]
"""The types of an index in the brackets of `view[...]`, in NumPy's notation."""
V = TypeVar("V", bound="DomainView")
W = TypeVar("W", bound="Indexable")
IndexKey: TypeAlias = NumpyIndexingSpec | DimExpression | DomainValue | TransformValue
"""The types of an index in the brackets of `view[...]`."""


class TransformChange(Protocol):
    """A function that makes a transform of another one of the same class."""

    def __call__(self, transform: T, /, *arguments: Any) -> T:
        """Return the changed transform."""
        ...


class Subscript(Generic[V]):
    """`view.name`, to be followed by `[argument]`."""

    __slots__ = ("_view",)
    _name = ""

    def __init__(self, view: V) -> None:
        self._view = view

    def __repr__(self) -> str:
        return f"{self._view!r}.{self._name}"

    def __iter__(self) -> NoReturn:
        """Raise: subscripting with 0, 1, ... is not iteration."""
        raise TypeError(f"{self._name} is not iterable")


class _Label(Subscript[V]):
    _name = "label"

    def __getitem__(self, labels: str | Iterable[str]) -> V:
        """Return the view with its dimensions labelled."""
        names = operation.labels_argument(labels)
        return self._view._apply(operation.label, None, names)


class _Translate(Subscript[V]):
    _move: ClassVar[TransformChange]

    def __getitem__(self, offsets: int | Iterable[int | None] | None) -> V:
        """Return the view moved; one number applies to every dimension, None leaves a dimension alone."""
        return self._view._apply(self._move, None, operation.vector_argument(offsets))


class _TranslateTo(_Translate[V]):
    _name = "translate_to"
    _move = staticmethod(operation.translate_to)


class _TranslateBy(_Translate[V]):
    _name = "translate_by"
    _move = staticmethod(operation.translate_by)


class _TranslateBackwardBy(_Translate[V]):
    _name = "translate_backward_by"
    _move = staticmethod(operation.translate_backward_by)


class _MarkBoundsImplicit(Subscript[V]):
    _name = "mark_bounds_implicit"

    def __getitem__(self, implicit: bool | slice | None) -> V:
        """Return the view with its bounds marked; `lower:upper` marks the sides apart, None leaves a side alone."""
        lower, upper = operation.implicit_argument(implicit)
        return self._view._apply(operation.mark_bounds_implicit, None, lower, upper)


class DomainView:
    """A value with a domain that can be labelled, moved and transposed as a whole."""

    __slots__ = ()

    def _apply(self, change: TransformChange, *arguments: Any) -> Self:
        """Return the same object with `change` applied to its transform and the arguments."""
        raise NotImplementedError  # the hook that each class with this mixin defines

    @property
    def label(self) -> _Label[Self]:
        """`label["x", "y"]`: the view with new labels for all dimensions."""
        return _Label(self)

    @property
    def translate_to(self) -> _TranslateTo[Self]:
        """`translate_to[10, None]`: the view with a new origin."""
        return _TranslateTo(self)

    @property
    def translate_by(self) -> _TranslateBy[Self]:
        """`translate_by[10, None]`: the view moved by offsets."""
        return _TranslateBy(self)

    @property
    def translate_backward_by(self) -> _TranslateBackwardBy[Self]:
        """`translate_backward_by[10, None]`: the view moved by negated offsets."""
        return _TranslateBackwardBy(self)

    @property
    def mark_bounds_implicit(self) -> _MarkBoundsImplicit[Self]:
        """`mark_bounds_implicit[True]`, `[False]` or `[lower:upper]`: the view with its bounds marked."""
        return _MarkBoundsImplicit(self)

    def transpose(self, axes: DimSelectionLike | None = None) -> Self:
        """Return the view with its dimensions in the order `axes`, by number or label; None reverses them."""
        specs = None if axes is None else parse_selection(axes)
        return self._apply(operation.permute, specs)

    @property
    def T(self) -> Self:  # noqa: N802  # numpy's name
        """The view with its dimensions reversed."""
        return self.transpose()


class _ArrayIndex(Subscript[W]):
    def __getitem__(self, key: NumpyIndexingSpec) -> W:
        """Return the view indexed in this mode."""
        return self._view._apply(index_transform, key, self._name)

    def __setitem__(self, key: NumpyIndexingSpec, value: Any) -> None:
        """Assign to the view indexed in this mode."""
        self._view._assign(value, index_transform, key, self._name)


class _Oindex(_ArrayIndex[W]):
    _name = "oindex"


class _Vindex(_ArrayIndex[W]):
    _name = "vindex"


class Indexable(DomainView):
    """A value that can be indexed like a TensorStore: by `[...]`, `oindex`, `vindex` and the other properties."""

    __module__ = "fsstore"
    __slots__ = ()

    def _assign(self, value: Any, change: TransformChange, *arguments: Any) -> None:
        """Write `value` to the view that `change` selects; only stores can."""
        del value, change, arguments
        raise TypeError(f"{type(self).__name__!r} object does not support item assignment")

    def __getitem__(self, key: IndexKey) -> Self:
        """Return the view selected by `key`.

        `key` is a numpy-style index with literal coordinates, an `IndexDomain`, an `IndexTransform` or a dimension
        expression (`d["x"].stride[2]`).
        """
        return self._apply(index_transform, key)

    def __setitem__(self, key: IndexKey, value: Any) -> None:
        """Write `value` to the view selected by `key`."""
        self._assign(value, index_transform, key)

    def __iter__(self) -> NoReturn:
        """Raise: subscripting with 0, 1, ... is not iteration."""
        raise TypeError(f"{type(self).__name__!r} object is not iterable")

    @property
    def oindex(self) -> _Oindex[Self]:
        """`oindex[[1, 2], [3, 4, 5]]`: index arrays apply to their dimensions independently."""
        return _Oindex(self)

    @property
    def vindex(self) -> _Vindex[Self]:
        """`vindex[[1, 2], :, [3, 4]]`: index arrays apply jointly, their dimensions come first."""
        return _Vindex(self)
