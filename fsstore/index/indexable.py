"""`[...]`, `oindex` and `vindex`, shared by transforms, specs, schemas and stores.

A class joins by the hook of `DomainView`, `_apply`; stores also implement `_assign` for `view[key] = value`.
Malformed and out-of-range expressions raise `IndexError`s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

from fsstore.index.indexing import index_transform
from fsstore.index.mixin import DomainView, Subscript

if TYPE_CHECKING:
    from fsstore.index.transform import IndexTransform

__all__ = ["Indexable"]

W = TypeVar("W", bound="Indexable")


class _ArrayIndex(Subscript[W]):
    def __getitem__(self, key: Any) -> W:
        """Return the view indexed in this mode."""
        return self._view._indexed(key, self._name)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Assign to the view indexed in this mode."""
        self._view._assign(lambda transform: index_transform(transform, key, self._name), value)


class _Oindex(_ArrayIndex[W]):
    _name = "oindex"


class _Vindex(_ArrayIndex[W]):
    _name = "vindex"


class Indexable(DomainView):
    """Something that can be indexed as a TensorStore can: `[...]`, `oindex`, `vindex` and the rest."""

    __slots__ = ()

    def _assign(self, change: Callable[[IndexTransform], IndexTransform], value: Any) -> None:
        """Write `value` to the view that `change` selects; only stores can."""
        del change, value
        raise TypeError(f"{type(self).__name__!r} object does not support item assignment")

    def _indexed(self, key: Any, mode: str) -> Self:
        return self._apply(lambda transform: index_transform(transform, key, mode))

    def __getitem__(self, key: Any) -> Self:
        """Return the view selected by `key`.

        `key` is a numpy-style index with literal coordinates, an `IndexDomain`, an `IndexTransform` or a dimension
        expression (`d["x"].stride[2]`).
        """
        return self._indexed(key, "default")

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write `value` to the view selected by `key`."""
        self._assign(lambda transform: index_transform(transform, key), value)

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
