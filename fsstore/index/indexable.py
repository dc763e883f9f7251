"""The base of domains, transforms, specs, schemas and stores: operations on all dimensions, and indexing.

A class joins by one hook, `_apply(change, *arguments)`: return the same object with its transform replaced by
`change(transform, *arguments)`.  `DomainView` has the operations on all dimensions, which raise plain `StoreError`s,
as TensorStore does; `Indexable` adds `[...]`, `oindex` and `vindex`, which raise `IndexError`s.  Stores also implement
`_assign` for `view[key] = value`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Generic, NoReturn, Protocol, Self, TypeAlias, TypeVar

from fsstore.index import operation
from fsstore.index.dim_expression import DimExpression, DimSelectionLike, parse_selection
from fsstore.index.indexing import index_transform
from fsstore.index.term import NumpyIndexingSpec
from fsstore.index.value import DomainValue, TransformValue

__all__ = ["DomainView", "Indexable", "Subscript", "TransformChange"]

T = TypeVar("T", bound=TransformValue)
V = TypeVar("V", bound="DomainView")
W = TypeVar("W", bound="Indexable")
IndexKey: TypeAlias = NumpyIndexingSpec | DimExpression | DomainValue | TransformValue
"""The types of an index in the brackets of `view[...]`."""


class TransformChange(Protocol):
    """A function that makes one transform of another, of the same class."""

    def __call__(self, transform: T, /, *arguments: Any) -> T:
        """Return the changed transform."""
        ...


class Subscript(Generic[V]):
    """`view.name`, waiting for its `[argument]`."""

    __slots__ = ("_view",)
    _name = ""

    def __init__(self, view: V) -> None:
        self._view = view

    def __repr__(self) -> str:
        """Return the text of the view and the name."""
        return f"{self._view!r}.{self._name}"

    def __iter__(self) -> NoReturn:
        """Refuse: subscripting with 0, 1, ... is not iteration."""
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
    """Something with a domain that can be labelled, moved and transposed as a whole."""

    __slots__ = ()

    def _apply(self, change: TransformChange, *arguments: Any) -> Self:
        """Return the same object with `change` applied to its transform and the arguments."""
        raise NotImplementedError  # the hook each class with this mixin provides

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
    """Something that can be indexed as a TensorStore can: `[...]`, `oindex`, `vindex` and the rest."""

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
        """Refuse: subscripting with 0, 1, ... is not iteration."""
        raise TypeError(f"{type(self).__name__!r} object is not iterable")

    @property
    def oindex(self) -> _Oindex[Self]:
        """`oindex[[1, 2], [3, 4, 5]]`: index arrays apply to their dimensions independently."""
        return _Oindex(self)

    @property
    def vindex(self) -> _Vindex[Self]:
        """`vindex[[1, 2], :, [3, 4]]`: index arrays apply jointly, their dimensions come first."""
        return _Vindex(self)
