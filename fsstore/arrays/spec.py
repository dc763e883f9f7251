"""Where an array is and how it is opened: `Spec`, the face of the value that the library works with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

import numpy as np

from fsstore.arrays.options import SpecLike, UpdateOptions
from fsstore.arrays.spec_options import apply_options
from fsstore.arrays.spec_parse import array_spec
from fsstore.arrays.spec_value import SpecValue
from fsstore.errors import StoreError
from fsstore.index import Indexable, IndexTransform
from fsstore.kvstore.spec.kv_spec import KvSpec
from fsstore.schema.chunk_layout import ChunkLayout
from fsstore.schema.codec_spec import CodecSpec
from fsstore.values.units import Units

__all__ = ["Spec"]


class Spec(SpecValue, Indexable):
    """A parsed array specification: from JSON, a URL, or a key-value store to detect the format of.

    >>> Spec("memory://a/|zarr3:").to_json()
    {'driver': 'zarr3', 'kvstore': {'driver': 'memory', 'path': 'a/'}}
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__",)

    def __new__(cls, json: SpecLike) -> Spec:
        """Parse `json`."""
        return cls.showing(array_spec(json))

    @classmethod
    def showing(cls, value: SpecValue) -> Spec:
        """Return a spec that says what a value says; it may be changed, and the value stays."""
        self = object.__new__(cls)
        for name in SpecValue.__slots__:
            setattr(self, name, getattr(value, name))
        return self

    # --- what it says of the array

    ndim = SpecValue.rank

    @property
    def chunk_layout(self) -> ChunkLayout:
        """The constraints on the chunk layout."""
        return self.schema.chunk_layout

    @property
    def codec(self) -> CodecSpec | None:
        """The constraints on the codec, or None."""
        return self.schema.codec

    @property
    def fill_value(self) -> np.ndarray[Any, Any] | None:
        """The fill value, or None."""
        return self.schema.fill_value

    @property
    def dimension_units(self) -> Units | None:
        """The units of the dimensions, or None."""
        return self.schema.dimension_units

    @property
    def origin(self) -> tuple[int, ...]:
        """The first index of each dimension; raises if the rank is unknown."""
        return self._known_transform().input_origin

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each dimension; raises if the rank is unknown."""
        return self._known_transform().input_shape

    @property
    def size(self) -> int:
        """The number of elements; raises if the rank is unknown."""
        return self._known_transform().size

    @property
    def T(self) -> Spec:  # noqa: N802  # numpy's name
        """The spec with its dimensions reversed."""
        return self.transpose()

    def _known_transform(self) -> IndexTransform:
        transform = self.transform
        if transform is not None:
            return transform
        rank = self.rank
        if rank is None:
            raise StoreError("Cannot perform indexing operations on Spec with unspecified rank")
        return IndexTransform(rank)

    def _apply(self, change: Callable[..., IndexTransform], *arguments: Any) -> Spec:
        return self.replace(transform_=change(self._known_transform(), *arguments))

    # --- where it is

    @property
    def kvstore(self) -> KvSpec | None:
        """The key-value store, if the driver uses one, or the array below, and it is known."""
        if self._kvstore is None:
            return None if self.base_spec is None else Spec.showing(self.base_spec).kvstore
        return KvSpec.showing(self._kvstore)

    @property
    def base(self) -> Spec | None:
        """The array below an adapter, through the transform, or None where there is none or it has no view."""
        if self.base_spec is None:
            return None
        shown = Spec.showing(self.base_spec.replace(shows_transform=True))
        if self.transform_ is None:
            return shown
        below = self.kind.base_transform(self.members, self.transform_, shown.domain)
        return shown if below is None else shown[below]

    # --- changing it

    def copy(self) -> Spec:
        """Return a copy."""
        return self.replace()

    __copy__ = copy

    def update(self, **options: Unpack[UpdateOptions]) -> None:
        """Add constraints and change how the array is opened, in place.

        Takes the keyword arguments of `open`, and `minimal_spec`, `unbind_context`, `strip_context`.
        """
        new = apply_options(self, options)
        for name in SpecValue.__slots__:
            setattr(self, name, getattr(new, name))
