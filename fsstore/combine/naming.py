"""Variables under other names, left out, or made coordinates.

With a variable that places files its dimension is renamed, wherever it stands: among the dimensions of other variables,
and in the attributes that name variables.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fsstore.combine.scan.facts import FileBatch, Form
from fsstore.errors import NotFoundError, StoreError
from fsstore.reference.table.keys import check_key
from fsstore.values.json_value import quote

__all__ = ["Naming"]

_NAMING = ("coordinates", "bounds", "climatology", "ancillary_variables", "grid_mapping")
_LABELS = "_ARRAY_DIMENSIONS"


@dataclass(frozen=True, slots=True)
class Naming:
    """The names of variables in the whole; `coordinates` are those that readers are told to be coordinates."""

    names: Mapping[str, str | None] = field(default_factory=dict)
    coordinates: Sequence[str] = ()

    @classmethod
    def of_json(cls, names: Any, coordinates: Any) -> Naming:
        """Return what is kept with a dataset; raises `StoreError` for what cannot be."""
        names, coordinates = names or {}, coordinates or []
        if not isinstance(names, dict) or not isinstance(coordinates, list):
            raise StoreError("The dataset does not say what its variables are called in files")
        texts = [*names, *coordinates, *(new for new in names.values() if new is not None)]
        if not all(isinstance(each, str) for each in texts):
            raise StoreError("The dataset does not say what its variables are called in files")
        return cls(names, coordinates)

    def in_files(self, dims: Sequence[str]) -> tuple[str, ...]:
        """Return what dimensions of the whole are called in files."""
        old = {_last(new): _last(path) for path, new in self.names.items() if new is not None}
        return tuple(old.get(dim, dim) for dim in dims)

    def apply(self, batch: FileBatch, *, are_all: bool = True) -> FileBatch:
        """Return the batch with variables under their names; all that are named must be there if files `are_all`."""
        missing = [name for name in self.names if name not in batch.variables]
        if are_all and missing:
            raise NotFoundError(
                f"There is no variable {quote(missing[0])}; there are {', '.join(map(quote, batch.variables))}"
            )
        out: dict[str, Any] = {}
        for path, columns in batch.variables.items():
            new = self.names.get(path, path)
            if new is None:
                continue
            if new in out or check_key(f"{new}/.zarray") is not None:
                raise StoreError(f"{quote(path)} cannot be called {quote(new)}")
            out[new] = columns
        words = self._words(batch)
        forms = [_renamed(form, words) for form in batch.forms] if words else batch.forms
        groups = self._groups(replace(batch, variables=out), words, are_all=are_all)
        return replace(batch, variables=out, forms=forms, groups=groups)

    def _words(self, batch: FileBatch) -> dict[str, str]:
        """Return the other names of variables, if they are no paths, and of dimensions that are called like them."""
        renamed = {_last(path): _last(new) for path, new in self.names.items() if new is not None}
        words = {old: new for old, new in renamed.items() if old != new}
        dims = {dim for form in batch.forms for dim in form.dims}
        for old, new in words.items():
            if new in dims and old in dims:
                raise StoreError(f"The dimension {quote(old)} cannot be called {quote(new)}, as another is")
        return words

    def _groups(
        self, batch: FileBatch, words: Mapping[str, str], *, are_all: bool
    ) -> dict[str, Mapping[str, Any]]:
        groups: dict[str, Mapping[str, Any]] = {
            path: _in_texts(dict(said), words) for path, said in batch.groups.items()
        }
        for path in self.coordinates:
            if are_all and path not in batch.variables:
                raise NotFoundError(
                    f"There is no variable {quote(path)}; there are {', '.join(map(quote, batch.variables))}"
                )
            group, _, name = path.rpartition("/")
            said = groups.setdefault(group, {})
            listed = str(said.get("coordinates", "")).split()
            groups[group] = {**said, "coordinates": " ".join(dict.fromkeys([*listed, name]))}
        return groups


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _renamed(form: Form, words: Mapping[str, str]) -> Form:
    """Return a form whose dimensions, and whose attributes that name variables, have the other names."""
    parsed, attributes = json.loads(form.document), json.loads(form.attributes)
    if isinstance(parsed.get("dimension_names"), list):
        parsed["dimension_names"] = [words.get(dim, dim) for dim in parsed["dimension_names"]]
    if isinstance(attributes.get(_LABELS), list):
        attributes[_LABELS] = [words.get(dim, dim) for dim in attributes[_LABELS]]
    text = json.dumps(parsed, sort_keys=True, separators=(",", ":"))
    said = json.dumps(_in_texts(attributes, words), separators=(",", ":"))
    return Form(form.version, text, form.shape, tuple(words.get(dim, dim) for dim in form.dims), said)


def _in_texts(attributes: dict[str, Any], words: Mapping[str, str]) -> dict[str, Any]:
    for name in _NAMING:
        text = attributes.get(name)
        if isinstance(text, str):
            attributes[name] = " ".join(words.get(word, word) for word in text.split())
    return attributes
