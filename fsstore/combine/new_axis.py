"""Variables of files that have no dimension of the name: each file becomes one step of a new one.

The bytes of a chunk stay what they are; its document gets a first dimension of one element.
"""

from __future__ import annotations

import json
from collections.abc import Set
from dataclasses import replace

import numpy as np

from fsstore.combine.report import CombineError
from fsstore.combine.scan.facts import NONE, FileBatch, Form

__all__ = ["with_new_axes"]

_BOUND_TO_AXES = ("transpose", "sharding_indexed", "reshape", "vlen-utf8", "vlen-bytes")
_LABELS = "_ARRAY_DIMENSIONS"


def with_new_axes(batch: FileBatch, dims: Set[str]) -> FileBatch:
    """Return the batch with `dims`, which no file has, as first dimensions of what differs between files.

    Coordinates of other dimensions stay, and so does what is equal in all files, as far as its values are known.
    """
    if not dims:
        return batch
    forms = list(batch.forms)
    variables = dict(batch.variables)
    for path, columns in batch.variables.items():
        name = path.rpartition("/")[2]
        used = [number for number in dict.fromkeys(columns.form.tolist()) if number != NONE]
        if name in dims or any(forms[number].dims == (name,) for number in used):
            continue
        known = columns.value[columns.form != NONE]
        if (known != NONE).all() and len(set(known.tolist())) == 1:
            continue
        table = np.full(len(forms) + 1, NONE, np.int64)
        for number in used:
            forms.append(_extended(path, forms[number], sorted(dims)))
            table[number] = len(forms) - 1
        table[-1] = NONE
        form = table[columns.form]
        variables[path] = replace(columns, form=form, value=np.full_like(columns.value, NONE))
    return replace(batch, forms=forms, variables=variables)


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
