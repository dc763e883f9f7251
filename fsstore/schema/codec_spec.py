"""`CodecSpec`: how the elements of chunks should be encoded, as a constraint of a schema.

A value of one driver's JSON, such as `{"driver": "zarr3", "codecs": [...]}`.  The meaning of the members, and how two
of them merge, is the business of that driver's codecs, imported when a spec is made.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

from fsstore.errors import JsonError, StoreError
from fsstore.values.argument import WrittenAsJson, as_flag, json_like, pretty
from fsstore.values.json_value import Json, dumps, expected, obj, quote

_ALIASES: Final = {"zarr2": "zarr", "neuroglancer-precomputed": "neuroglancer_precomputed"}
_MERGERS: Final = {
    "zarr": "fsstore.codec.numcodecs.compressor_v2:merge_specs",
    "zarr3": "fsstore.codec.chain_spec:merge_specs",
    "n5": "fsstore.codec.numcodecs.compressor_v2:merge_n5_specs",
    "neuroglancer_precomputed": "fsstore.codec.precomputed:merge_specs",
}
_MISSING: Any = object()

Merger = Callable[[Json, Json], dict[str, Json]]


def _merger(driver: Any) -> Merger:
    """Return the function of a driver that merges the JSON of two of its specs."""
    if driver is _MISSING:
        problem = JsonError("Expected string, but member is missing")
    elif not isinstance(driver, str):
        problem = expected("string", driver)
    elif driver not in _MERGERS:
        problem = JsonError(f"{quote(driver)} is not registered")
    else:
        module, _, name = _MERGERS[driver].partition(":")
        merge: Merger = getattr(import_module(module), name)
        return merge
    raise problem.within('Error parsing object member "driver"')


class CodecSpec(WrittenAsJson):
    """A constraint on encoding, from its JSON.  Immutable.

    `driver` is `zarr`, `zarr3`, `n5` or `neuroglancer_precomputed`.  Parameters that are left out are left open.

    >>> CodecSpec({"driver": "zarr", "compressor": None})
    CodecSpec({'compressor': None, 'driver': 'zarr', 'filters': None})
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__", "_json")

    _json: dict[str, Json]

    def __init__(self, json: Any) -> None:
        """Take the JSON form, or another spec.  Raises `JsonError` with every problem."""
        if isinstance(json, CodecSpec):
            self._json = json._json
            return
        members = obj(json_like(json))
        driver = members.get("driver", _MISSING)
        if isinstance(driver, str):
            members["driver"] = driver = _ALIASES.get(driver, driver)
        merged = _merger(driver)(members, {"driver": driver})
        self._json = dict(sorted(merged.items()))

    @property
    def driver(self) -> str:
        """The driver whose chunks this is for."""
        driver = self._json["driver"]
        assert isinstance(driver, str)
        return driver

    def to_json(self, include_defaults: bool = False) -> dict[str, Json]:
        """Return the JSON form, as a copy of the top level; nothing has defaults."""
        as_flag("include_defaults", include_defaults)
        return dict(self._json)

    def __eq__(self, other: object) -> bool:
        """Return whether the driver and all members are the same."""
        return self._json == other._json if isinstance(other, CodecSpec) else NotImplemented

    def __hash__(self) -> int:
        """Return a hash that agrees with equality."""
        return hash(self.driver)

    def __repr__(self) -> str:
        """Return `CodecSpec({...})`."""
        return pretty("CodecSpec", self._json)

    def __reduce__(self) -> tuple[type[CodecSpec], tuple[dict[str, Json]]]:
        """Pickle by JSON."""
        return (CodecSpec, (self._json,))


def merge_codecs(existing: CodecSpec | None, new: CodecSpec | None) -> CodecSpec | None:
    """Return the spec that grants both; None grants anything.

    Raises `StoreError` for different drivers and for parameters that conflict.
    """
    if existing is None or new is None:
        return existing or new
    if existing.driver != new.driver:
        raise StoreError(f"Cannot merge codec spec {dumps(existing._json)} with {dumps(new._json)}")
    return CodecSpec(_merger(existing.driver)(existing._json, new._json))
