"""Operations on all dimensions, shared by domains, transforms, specs, schemas and stores: written once.

A class joins by one hook, `_apply(change)`: return the same object with its transform replaced by
`change(transform)`.  The operations raise plain `StoreError`s, as TensorStore does; only `[...]` raises `IndexError`s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from fsstore.index import operation

if TYPE_CHECKING:
    from fsstore.index.transform import IndexTransform

__all__ = ["DomainView", "Subscript"]

V = TypeVar("V", bound="DomainView")


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
        return self._view._apply(lambda t: operation.label(t, range(t.input_rank), names))


class _Translate(Subscript[V]):
    def __getitem__(self, offsets: int | Iterable[int | None] | None) -> V:
        """Return the view moved; one number applies to every dimension, None leaves a dimension alone."""
        vector = operation.vector_argument(offsets)
        move = getattr(operation, self._name)
        return self._view._apply(lambda t: move(t, range(t.input_rank), vector))


class _TranslateTo(_Translate[V]):
    _name = "translate_to"


class _TranslateBy(_Translate[V]):
    _name = "translate_by"


class _TranslateBackwardBy(_Translate[V]):
    _name = "translate_backward_by"


class _MarkBoundsImplicit(Subscript[V]):
    _name = "mark_bounds_implicit"

    def __getitem__(self, implicit: bool | slice | None) -> V:
        """Return the view with its bounds marked; `lower:upper` marks the sides apart, None leaves a side alone."""
        lower, upper = operation.implicit_argument(implicit)
        return self._view._apply(
            lambda t: operation.mark_bounds_implicit(t, range(t.input_rank), lower, upper)
        )


class DomainView:
    """Something with a domain that can be labelled, moved and transposed as a whole."""

    __slots__ = ()

    def _apply(self, change: Callable[[IndexTransform], IndexTransform]) -> Self:
        """Return the same object with `change` applied to its transform."""
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

    def transpose(self, axes: Any = None) -> Self:
        """Return the view with its dimensions in the order `axes`, by number or label; None reverses them."""
        return self._apply(lambda t: operation.permute(t, axes))

    @property
    def T(self) -> Self:  # noqa: N802  # numpy's name
        """The view with its dimensions reversed."""
        return self.transpose()
