"""Variables of files that have no dimension of the name: each file becomes one step of a new one.

The bytes of a chunk stay what they are; its document gets a first dimension of one element.
"""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import replace
from typing import Any

import numpy as np

from fsstore.combine.differ import meaning
from fsstore.combine.order import coordinate_path
from fsstore.combine.report import CombineError
from fsstore.combine.scan.facts import NONE, FileBatch, Form, Ints, VariableColumns

__all__ = ["with_new_axes"]

_BOUND_TO_AXES = ("transpose", "sharding_indexed", "reshape", "vlen-utf8", "vlen-bytes")
_LABELS = "_ARRAY_DIMENSIONS"


def with_new_axes(batch: FileBatch, dims: Set[str]) -> FileBatch:
    """Return the batch with `dims`, which no file has, as first dimensions of what differs between files.

    Coordinates of other dimensions stay, and so does what is equal in all files, as far as its values are known.
    """
    if not dims:
        return batch
    forms, values = list(batch.forms), list(batch.values)
    variables, placing = dict(batch.variables), {coordinate_path(batch, dim) for dim in dims}
    for path, columns in batch.variables.items():
        name = path.rpartition("/")[2]
        used = [number for number in dict.fromkeys(columns.form.tolist()) if number != NONE]
        if path in placing or any(forms[number].dims == (name,) for number in used):
            continue
        known = columns.value[columns.form != NONE]
        meanings = {meaning(forms[number]) for number in used}
        if (known != NONE).all() and len(set(known.tolist())) == 1 and len(meanings) == 1:
            continue
        table = np.full(len(forms) + 1, NONE, np.int64)
        for number in used:
            forms.append(_extended(path, forms[number], sorted(dims)))
            table[number] = len(forms) - 1
        table[-1] = NONE
        value = _with_values(batch, columns, values, len(dims))
        variables[path] = replace(columns, form=table[columns.form], value=value)
    return replace(batch, forms=forms, values=values, variables=variables)


def _with_values(batch: FileBatch, columns: VariableColumns, values: list[Any], more: int) -> Ints:
    """Return the column of values of a variable that has more dimensions; `values` gets them, or their fingerprints."""
    known: dict[tuple[int, int], int] = {}
    out = columns.value.copy()
    for at in np.flatnonzero((columns.value != NONE) & (columns.form != NONE)).tolist():
        pair = int(columns.value[at]), int(columns.form[at])
        if pair not in known:
            value, shape = batch.values[pair[0]], batch.forms[pair[1]].shape
            known[pair] = len(values)
            values.append(value.reshape((1,) * more + shape) if value.shape == shape else value)
        out[at] = known[pair]
    return out


def _extended(path: str, form: Form, dims: list[str]) -> Form:
    parsed = json.loads(form.document)
    ones = [1] * len(dims)
    if form.version == 3:
        if any(each.get("name") in _BOUND_TO_AXES for each in parsed.get("codecs", ())):
            raise CombineError(f'The codecs of "{path}" do not allow a new dimension')
        inner = parsed["chunk_grid"]["configuration"]
        inner["chunk_shape"] = [*ones, *inner["chunk_shape"]]
        parsed["dimension_names"] = [*dims, *form.dims]
    else:
        parsed["chunks"] = [*ones, *parsed["chunks"]]
    attributes = json.loads(form.attributes)
    if _LABELS in attributes or form.version == 2:
        attributes[_LABELS] = [*dims, *form.dims]
    text = json.dumps(parsed, sort_keys=True, separators=(",", ":"))
    said = json.dumps(attributes, separators=(",", ":"))
    return Form(form.version, text, (*ones, *form.shape), (*dims, *form.dims), said)
