"""Keyword arguments of `open`, `Spec.update` and `TensorStore.spec`, as types; the parsers accept the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from fsstore.arrays.spec_value import SpecValue
from fsstore.kvstore.spec.place import PlaceLike
from fsstore.schema.open_mode import ModeOptions
from fsstore.schema.schema import SchemaOptions

if TYPE_CHECKING:
    from fsstore.context.context import Context

__all__ = ["OpenOptions", "SpecLike", "UpdateOptions", "ViewSpecOptions"]

SpecLike: TypeAlias = PlaceLike | SpecValue
"""Ways to name an array: a spec or its JSON, a URL, or a place whose format is to be detected."""


class OpenOptions(SchemaOptions, ModeOptions, total=False):
    """The options that `open` adds to a spec."""

    kvstore: PlaceLike | None
    storage_options: Mapping[str, Any] | None
    mode: Literal["r", "r+", "a", "w", "w-"] | None
    chunks: Sequence[int] | None
    shards: Sequence[int] | None


class ViewSpecOptions(OpenOptions, total=False):
    """The options of `TensorStore.spec`, which change the spec it returns."""

    context: Context | None
    minimal_spec: bool | None
    strip_context: bool | None


class UpdateOptions(ViewSpecOptions, total=False):
    """The options of `Spec.update`."""

    unbind_context: bool | None
