"""Variables that do not grow and differ between files, such as when each was made: repeated along a dimension."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from fsstore.combine.agreement import holds_values
from fsstore.combine.differ import OF_PACKED, Compared
from fsstore.combine.order import extents
from fsstore.combine.report import CombineError
from fsstore.combine.scan.facts import NONE, FileBatch, Form
from fsstore.values.json_value import quote

__all__ = ["attributes_and_values", "with_repeated"]

_LABELS = "_ARRAY_DIMENSIONS"


def with_repeated(batch: FileBatch, along: Mapping[str, str]) -> FileBatch:
    """Return the batch in which variables have a dimension more, each file's value repeated for its steps of it."""
    forms, values, variables = list(batch.forms), list(batch.values), dict(batch.variables)
    for path, dim in along.items():
        columns = variables.get(path)
        if columns is None:
            raise CombineError(
                f"There is no variable {quote(path)}; there are {', '.join(map(quote, variables))}"
            )
        used = {forms[number] for number in set(columns.form.tolist()) if number != NONE}
        if all(dim in form.dims for form in used):
            continue
        if not holds_values(batch, columns):
            raise CombineError(f"The variable {quote(path)} is too large to be repeated along {quote(dim)}")
        sizes = np.maximum(extents(batch, dim), 1)
        form, value = columns.form.copy(), columns.value.copy()
        known: dict[tuple[int, int, int], tuple[int, int]] = {}
        for at in np.flatnonzero(columns.form != NONE).tolist():
            key = int(form[at]), int(value[at]), int(sizes[at])
            if key not in known:
                known[key] = len(forms), len(values)
                forms.append(_extended(forms[key[0]], dim, key[2]))
                values.append(np.repeat(values[key[1]][None], key[2], axis=0))
            form[at], value[at] = known[key]
        variables[path] = replace(columns, form=form, value=value)
    return replace(batch, forms=forms, values=values, variables=variables) if along else batch


def _extended(form: Form, dim: str, size: int) -> Form:
    document, attributes = json.loads(form.document), json.loads(form.attributes)
    dims = (dim, *form.dims)
    if form.version == 3:
        inner = document["chunk_grid"]["configuration"]
        inner["chunk_shape"], document["dimension_names"] = [1, *inner["chunk_shape"]], list(dims)
    else:
        document["chunks"], attributes[_LABELS] = [1, *document["chunks"]], list(dims)
    text = json.dumps(document, sort_keys=True, separators=(",", ":"))
    return Form(form.version, text, (size, *form.shape), dims, json.dumps(attributes, separators=(",", ":")))


def attributes_and_values(
    batch: FileBatch, path: str, compared: Compared
) -> tuple[dict[str, Any], dict[int, Any]]:
    """Return the attributes of a variable whose values are known, and these by file, as they are stored or meant."""
    columns, attributes = batch.variables[path], dict(batch.forms[compared.forms[0]].attrs)
    have = np.flatnonzero(columns.form != NONE).tolist()
    pairs = {at: (int(columns.value[at]), int(columns.form[at])) for at in have}
    if len(set(compared.meanings)) == 1 and len(have) == len(columns.form):
        return attributes, {at: batch.values[value] for at, (value, _) in pairs.items()}
    if len({str(batch.forms[form].attrs.get("units", "")) for _, form in pairs.values()}) > 1:
        raise CombineError(f"The variable {quote(path)} has several units, and is not repeated")
    plain = {name: value for name, value in attributes.items() if name not in OF_PACKED}
    return plain, {at: batch.decoded(*pair) for at, pair in pairs.items()}
