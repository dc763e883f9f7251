"""How files differ: in the form of a variable, in its decoding, and in values that several of them hold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fsstore.combine.calendar import is_time, unit_change
from fsstore.combine.facts import NONE, Difference, FileBatch, Form, Ints, VariableColumns, grouped
from fsstore.combine.mosaic import Decoding, attributes_decoding
from fsstore.combine.source_file import fingerprint_of
from fsstore.driver.chunked import ZARR2, ZARR3
from fsstore.errors import StoreError
from fsstore.format.attributes import MARK, mark_of
from fsstore.format.contract import WHOLE, decode_stored
from fsstore.values.dtypes import ATTRIBUTE_TYPES

# How the forms of one variable differ: in what, whether it can be reconciled, and how values are to be
# decoded.

PACKING = ("scale_factor", "add_offset", ATTRIBUTE_TYPES, "_FillValue", "missing_value", "_Unsigned")
"""Attributes that say how stored values are unpacked; pieces are unpacked by their own."""

OF_PACKED = (*PACKING, "valid_min", "valid_max", "valid_range", "actual_range")
"""Attributes that are no longer true of values that are unpacked."""

MEANING = (*PACKING, "units", "calendar", "dtype", "positive", "_Encoding")
"""Attributes that say what stored values mean."""
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


def stored_types(forms: Mapping[int, Form]) -> dict[int, np.dtype[Any]]:
    """Return the types of stored values; thousands of forms that differ in attributes alone have one document."""
    known: dict[tuple[int, str], np.dtype[Any]] = {}
    for form in forms.values():
        if (form.version, form.document) not in known:
            kind = ZARR2 if form.version == 2 else ZARR3
            document = form.document_for(form.shape)
            array = decode_stored(kind.format, document, {WHOLE: True})
            known[form.version, form.document] = array.dtype.numpy_dtype
    return {number: known[form.version, form.document] for number, form in forms.items()}


def compare(batch: FileBatch, path: str, growing: Set[str], *, is_placed: bool = False) -> Compared:
    """Return how the forms of a variable differ.

    Sizes of dimensions that are `growing` may differ, and all that is encoded may of a variable whose values are known
    (`is_placed`): it is written anew.
    """
    columns = batch.variables[path]
    forms = [number for number in dict.fromkeys(columns.form.tolist()) if number != NONE]
    listed = [batch.forms[number] for number in forms]
    encodings = _numbers([_encoding(form, growing) for form in listed])
    meanings = _numbers([meaning(form) for form in listed])
    differences = _differences(batch, columns, dict(zip(forms, listed, strict=True)), growing)
    obstacle = "" if is_placed else _obstacle(listed, growing)
    return Compared(tuple(forms), encodings, meanings, differences, bool((columns.form == NONE).any()), obstacle)


def _numbers(values: Sequence[Any]) -> tuple[int, ...]:
    known: dict[Any, int] = {}
    return tuple(known.setdefault(value, len(known)) for value in values)


def _sizes(form: Form, growing: Set[str]) -> dict[str, int]:
    return {dim: size for dim, size in zip(form.dims, form.shape, strict=True) if dim not in growing}


def _encoding(form: Form, growing: Set[str]) -> tuple[Any, ...]:
    return form.version, form.document, form.dims, tuple(_sizes(form, growing).items())


def meaning(form: Form) -> str:
    """Return what attributes say of what stored values mean, as a text."""
    said = {name: said_of(form, name) for name in MEANING if name in form.attrs}
    return json.dumps({name: value for name, value in said.items() if value is not None}, sort_keys=True)


def said_of(form: Form, name: str) -> Any:
    """Return an attribute that says what stored values mean, None if it says nothing: NaN is missing, marked or not.

    Marks are the same in every version of zarr, whether they are told as numbers or in base64.
    """
    value = form.attrs.get(name)
    if name != MARK or not isinstance(value, str | float):
        return value
    mark = mark_of(form.attrs, np.dtype("f8"), form.version)
    if mark is None:
        return value
    return None if np.isnan(mark) else float(mark)


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
            pairs = [(url, values[form]) for url, form in zip(urls, columns.form.tolist(), strict=True) if form != NONE]
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


def decoding_of(form: Form, stored: np.dtype[Any], wanted: str) -> Decoding:
    """Return how a piece of this form is decoded to the units `wanted`; raises `StoreError` if that cannot be."""
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
            number: (_encoding(batch.forms[number], growing), meaning(batch.forms[number]))
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


def holds_values(batch: FileBatch, columns: VariableColumns) -> bool:
    """Return whether all values of a variable are known, in the files that have it; a fingerprint is none."""
    have = columns.form != NONE
    pairs = set(zip(columns.value[have].tolist(), columns.form[have].tolist(), strict=True))
    return all(value != NONE and batch.values[value].shape == batch.forms[form].shape for value, form in pairs)


@dataclass(frozen=True, slots=True)
class Sharing:
    """How files that hold the same part of a variable agree in it.

    `kept` is one file for each part; `outvoted` are those whose values are not those of most files of their part.
    `unlike` are pairs of forms, of a file and of the one that is kept instead of it.
    """

    kept: Ints
    outvoted: Sequence[int] = ()
    unknown: bool = False
    unlike: Set[tuple[int, int]] = frozenset()


def sharing(columns: VariableColumns, cell: Ints, same: Ints) -> Sharing:
    """Return how files agree, by the part that each holds (`cell`) and the numbers of their values (`same`)."""
    have = np.flatnonzero(columns.form != NONE)
    order = have[np.argsort(cell[have], kind="stable")]
    begins = np.append(True, cell[order][1:] != cell[order][:-1])
    kept = order[begins]
    leader = kept[np.cumsum(begins) - 1]
    shared = leader != order
    if not shared.any():
        return Sharing(kept)
    unlike = set(zip(columns.form[leader].tolist(), columns.form[order].tolist(), strict=True))
    told = same[order] != same[leader]
    outvoted: list[int] = []
    for part in np.unique(cell[order[told]]).tolist():
        inside = order[cell[order] == part]
        usual = Counter(same[inside].tolist()).most_common(1)[0][0]
        outvoted += inside[same[inside] != usual].tolist()
    unknown = bool((same[order[shared]] == NONE).any() or (same[leader[shared]] == NONE).any())
    return Sharing(kept, outvoted, unknown, {pair for pair in unlike if pair[0] != pair[1]})


def shared_obstacle(
    batch: FileBatch, path: str, compared: Compared, found: Sharing, *, is_placed: bool
) -> tuple[str, Compared]:
    """Return why one file cannot stand for all that hold the same part, and what is to be said of it."""
    for one, other in [] if is_placed else sorted(found.unlike):
        what = _other_meaning(batch.forms[one], batch.forms[other])
        if what:
            return f"files of the same place have other values, by the attribute {what!r}", compared
    if found.unknown:
        return "its values could not be compared; leave it out with variables={...: None}", compared
    if not found.outvoted:
        return "", compared
    others = set(found.outvoted)
    have = np.flatnonzero(batch.variables[path].form != NONE).tolist()
    said = ["others" if at in others else "those of most files of their place" for at in have]
    values = grouped("values", [batch.files[at].url for at in have], said)
    why = "it has other values in some files of the same place, and lacks a dimension along which files are combined"
    return why, replace(compared, differences=(values, *compared.differences))


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
    why = "it has other values in some files, and none of the dimensions; leave it out, or repeat it with along={...}"
    return why, replace(compared, differences=(values, *compared.differences))


def _other_meaning(one: Form, other: Form) -> str:
    """Return the attribute by which equal stored values would mean something else, or nothing."""
    for name in MEANING:
        first, second = said_of(one, name), said_of(other, name)
        if json.dumps(first) == json.dumps(second):
            continue
        timed = is_time(one.attrs) or is_time(other.attrs)
        if name == "units" and not timed and unit_change(str(second or ""), str(first or "")) == (1.0, 0.0):
            continue
        return name
    return ""
