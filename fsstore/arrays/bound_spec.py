"""The spec of an open array, which opens it again, with its resources bound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fsstore.arrays.open_spec import SpecLayer
from fsstore.arrays.spec_value import SpecValue
from fsstore.context.context import ContextResource
from fsstore.driver.contract import ArrayDriver
from fsstore.index import IndexTransform
from fsstore.schema.open_mode import OpenMode

__all__ = ["bound_spec"]

_THREADS = "data_copy_concurrency"


def bound_spec(driver: ArrayDriver, transform: IndexTransform) -> SpecValue:
    """Return the spec of a view of an open array."""
    kind, base = driver.kind, None
    if driver.base is not None:
        base = bound_spec(*driver.base)
        if kind.role == "adapter":  # which shares the transform of its base
            base = base.replace(transform_=None, shows_transform=False)
    used = driver.resources()
    members, shown = driver.seen(transform)
    return SpecValue.of(
        kind,
        members=dict(members),
        _kvstore=None if driver.kvstore is None else driver.kvstore.effective_spec(),
        base_spec=base,
        base_schema=driver.stated(),
        layers=tuple(_sharing(_layer(each), used) for each in driver.layers),
        transform_=shown,
        mode=_mode(driver) if kind.has_mode else OpenMode(),
        resources={
            name: used[name] for name in kind.resources if isinstance(used.get(name), ContextResource)
        },
    )


def _mode(driver: ArrayDriver) -> OpenMode:
    """Return the mode that opens an array again: as what exists, or on trust if that is how it was opened."""
    return OpenMode(open=True, assume_metadata=driver.mode.assume_metadata)


def _layer(layer: Any) -> SpecValue:
    """Return the spec of a layer: a spec already, or an open array."""
    return layer.spec if isinstance(layer, SpecLayer) else bound_spec(*layer.array)


def _sharing(spec: SpecValue, above: Mapping[str, ContextResource]) -> SpecValue:
    """Return the spec of a layer with the thread limit of the stack above, where both are alike."""
    own, common = spec.resources.get(_THREADS), above.get(_THREADS)
    if common is None or not isinstance(own, ContextResource) or own.config != common.config:
        return spec
    return spec.replace(resources={**spec.resources, _THREADS: common})
