"""How the forms of one variable differ: in what, whether it can be reconciled, and how values are to be decoded.

Two things are compared apart: the *encoding* (document and sizes), which says how bytes become stored values, and the
attributes that say what stored values mean.  Where both agree, references of different files stand in one array.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fsstore.combine.calendar import is_time
from fsstore.combine.facts import NONE, FileBatch, Form, Ints, VariableColumns
from fsstore.combine.report import Difference, grouped
from fsstore.combine.unit_change import unit_change
from fsstore.driver.chunked import ZARR2, ZARR3
from fsstore.errors import StoreError
from fsstore.format.contract import decode_stored
from fsstore.format.field import WHOLE
from fsstore.mosaic.decoding import Decoding, attributes_decoding
from fsstore.mosaic.fingerprint import fingerprint_of

__all__ = [
    "PACKING",
    "Compared",
    "compare",
    "decoding_of",
    "minority",
    "same_values",
    "static_obstacle",
    "stored_type",
]

PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
"""Attributes that say how stored values are unpacked; pieces are unpacked by their own."""

_MEANING = (*PACKING, "units", "calendar", "dtype", "positive", "_Encoding")
_NAMES = {"dtype": "type", "data_type": "type", "chunks": "chunk grid", "chunk_grid": "chunk grid"}
_CODECS = ("filters", "compressor", "codecs")
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class Compared:
    """The forms of a variable, in order of their first file.

    `encodings` and `meanings` say which forms agree in each; `obstacle` is what cannot be reconciled, if anything.
    """

    forms: tuple[int, ...]
    encodings: tuple[int, ...]
    meanings: tuple[int, ...]
    differences: tuple[Difference, ...]
    missing: bool
    obstacle: str = ""

    @property
    def agrees(self) -> bool:
        """Whether one array of references can hold all of it."""
        return len(set(self.encodings)) == 1 and len(set(self.meanings)) == 1 and not self.obstacle


def stored_type(form: Form) -> np.dtype[Any]:
    """Return the type of stored values."""
    kind = ZARR2 if form.version == 2 else ZARR3
    found: np.dtype[Any] = decode_stored(
        kind.format, form.document_for(form.shape), {WHOLE: True}
    ).dtype.numpy_dtype
    return found


def compare(batch: FileBatch, path: str, growing: Set[str], *, is_placed: bool = False) -> Compared:
    """Return how the forms of a variable differ.

    Sizes of dimensions that are `growing` may differ, and all that is encoded may of a variable whose values are known
    (`is_placed`): it is written anew.
    """
    columns = batch.variables[path]
    forms = [number for number in dict.fromkeys(columns.form.tolist()) if number != NONE]
    listed = [batch.forms[number] for number in forms]
    encodings = _numbers([_encoding(form, growing) for form in listed])
    meanings = _numbers([_meaning(form) for form in listed])
    differences = _differences(batch, columns, dict(zip(forms, listed, strict=True)), growing)
    obstacle = "" if is_placed else _obstacle(listed, growing)
    return Compared(
        tuple(forms), encodings, meanings, differences, bool((columns.form == NONE).any()), obstacle
    )


def _numbers(values: Sequence[Any]) -> tuple[int, ...]:
    known: dict[Any, int] = {}
    return tuple(known.setdefault(value, len(known)) for value in values)


def _sizes(form: Form, growing: Set[str]) -> dict[str, int]:
    return {dim: size for dim, size in zip(form.dims, form.shape, strict=True) if dim not in growing}


def _encoding(form: Form, growing: Set[str]) -> tuple[Any, ...]:
    return form.version, form.document, form.dims, tuple(_sizes(form, growing).items())


def _meaning(form: Form) -> str:
    return json.dumps({name: form.attrs[name] for name in _MEANING if name in form.attrs}, sort_keys=True)


def _obstacle(forms: Sequence[Form], growing: Set[str]) -> str:
    """Return why the forms of a variable cannot be parts of one array."""
    first = forms[0]
    for form in forms[1:]:
        if form.dims != first.dims:
            return f"dimensions {first.dims} and {form.dims}"
        if _sizes(form, growing) != _sizes(first, growing):
            return f"dimension sizes {_sizes(first, growing)} and {_sizes(form, growing)}"
        one, other = str(first.attrs.get("units", "")), str(form.attrs.get("units", ""))
        if not is_time(first.attrs) and not is_time(form.attrs) and unit_change(other, one) is None:
            return f"units {one!r} and {other!r}, between which no conversion is known"
        if is_time(first.attrs) != is_time(form.attrs) or (is_time(first.attrs) and one != other):
            return f"units {one!r} and {other!r} of a variable too large to be converted"
        for name in ("positive", "dtype", "calendar"):
            if first.attrs.get(name) != form.attrs.get(name):
                return f"attribute {name!r}: {first.attrs.get(name)!r} and {form.attrs.get(name)!r}"
    return ""


def _differences(
    batch: FileBatch, columns: VariableColumns, forms: Mapping[int, Form], growing: Set[str]
) -> tuple[Difference, ...]:
    said = {number: _said(form, growing) for number, form in forms.items()}
    names = dict.fromkeys(name for each in said.values() for name in each)
    urls: list[str] = []
    out = []
    for name in names:
        values = {number: each.get(name, "none") for number, each in said.items()}
        if len(set(values.values())) > 1:
            urls = urls or [fact.url for fact in batch.files]
            pairs = [
                (url, values[form])
                for url, form in zip(urls, columns.form.tolist(), strict=True)
                if form != NONE
            ]
            out.append(grouped(name, [url for url, _ in pairs], [value for _, value in pairs]))
    if (columns.form == NONE).any():
        urls = urls or [fact.url for fact in batch.files]
        there = ["missing" if form == NONE else "present" for form in columns.form.tolist()]
        out.append(grouped("missing variable", urls, there))
    return tuple(out)


def _said(form: Form, growing: Set[str]) -> dict[str, str]:
    """Return everything a form says, as short texts by what a report calls it."""
    said: dict[str, str] = {}
    codecs = {name: form.parsed[name] for name in _CODECS if form.parsed.get(name)}
    said["codec"] = _short(codecs)
    for name, value in form.parsed.items():
        if name not in _CODECS and name not in ("zarr_format", "node_type", "dimension_names"):
            said[_NAMES.get(name, name.replace("_", " "))] = _short(value)
    said["dimensions"] = ", ".join(form.dims)
    said["dimension size"] = _short(_sizes(form, growing))
    for name, value in form.attrs.items():
        if name != "_ARRAY_DIMENSIONS":
            said[f"attribute {name}"] = _short(value)
    return said


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def decoding_of(form: Form, wanted: str) -> Decoding:
    """Return how a piece of this form is decoded to the units `wanted`; raises `StoreError` if that cannot be."""
    stored = stored_type(form)
    try:
        found = attributes_decoding(form.attrs, stored)
    except ValueError as error:
        raise StoreError(f"An attribute for unpacking is no number: {error}") from error
    change = unit_change(str(form.attrs.get("units", "")), wanted)
    if change is None or change == (1.0, 0.0):
        return found
    floats = found.floats or ("<f4" if stored.kind == "f" and stored.itemsize <= 4 else "<f8")
    return Decoding(floats, found.unsigned, found.missing, found.scale, found.offset, change[0], change[1])


def minority(batch: FileBatch, growing: Set[str], placed: Set[str]) -> dict[str, str]:
    """Return the files that differ from most others in how a variable is stored or meant, and in what."""
    out: dict[str, str] = {}
    for path, columns in batch.variables.items():
        if path in placed:
            continue
        keys = {
            number: (_encoding(batch.forms[number], growing), _meaning(batch.forms[number]))
            for number in set(columns.form.tolist())
            if number != NONE
        }
        each = [keys.get(form) for form in columns.form.tolist()]
        usual, _ = Counter(each).most_common(1)[0]
        for fact, key in zip(batch.files, each, strict=True):
            if key != usual:
                what = "lacks" if key is None else "has" if usual is None else "differs in"
                out.setdefault(fact.url, f'it {what} the variable "{path}"')
    return out


def same_values(batch: FileBatch, columns: VariableColumns) -> Ints:
    """Return a number for the values that each file has of a variable: equal ones for equal values, or NONE."""
    known: dict[Any, int] = {}
    numbers: dict[tuple[int, int], int] = {}
    for pair in zip(columns.value.tolist(), columns.form.tolist(), strict=True):
        if pair not in numbers and NONE not in pair:
            value, shape = batch.values[pair[0]], batch.forms[pair[1]].shape
            print_of = fingerprint_of(value) if value.shape == shape else value  # a large one has its own
            numbers[pair] = known.setdefault((shape, *print_of.tolist()), len(known))
    pairs = zip(columns.value.tolist(), columns.form.tolist(), strict=True)
    return np.array([numbers.get(pair, NONE) for pair in pairs], np.int64)


def static_obstacle(batch: FileBatch, path: str, compared: Compared) -> tuple[str, Compared]:
    """Return why one file cannot stand for all in a variable that does not grow, and what is to be said of it."""
    columns = batch.variables[path]
    forms = [batch.forms[number] for number in compared.forms]
    shapes = {form.shape for form in forms}
    if len(shapes) > 1:
        return f"it has the shapes {sorted(shapes)}", compared
    for form in forms[1:]:
        what = _other_meaning(forms[0], form)
        if what:
            return f"it has other values in some files, by the attribute {what!r}", compared
    have = np.flatnonzero(columns.form != NONE)
    same = same_values(batch, columns)[have]
    if len(have) > 1 and (same == NONE).any():
        return "its values could not be compared; leave it out with variables={...: None}", compared
    if (same == same[0]).all():
        return "", compared
    usual = int(np.bincount(same).argmax())
    said = ["those of most files" if each == usual else "others" for each in same.tolist()]
    values = grouped("values", [batch.files[at].url for at in have.tolist()], said)
    why = "it has other values in some files, and none of the dimensions"
    return why, replace(compared, differences=(values, *compared.differences))


def _other_meaning(one: Form, other: Form) -> str:
    """Return the attribute by which equal stored values would mean something else, or nothing."""
    for name in _MEANING:
        first, second = one.attrs.get(name), other.attrs.get(name)
        if json.dumps(first) == json.dumps(second):
            continue
        timed = is_time(one.attrs) or is_time(other.attrs)
        if name == "units" and not timed and unit_change(str(second or ""), str(first or "")) == (1.0, 0.0):
            continue
        return name
    return ""
