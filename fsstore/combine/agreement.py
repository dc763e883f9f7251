"""Whether files agree in values: in a variable that does not grow, and where several hold the same part of one.

One of the files that hold the same part is used, so all must hold the same values.  These are compared as stored,
by values that the scan has kept or by their fingerprints, and so are the attributes that say what they mean.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fsstore.combine.differ import MEANING, Compared, said_of
from fsstore.combine.report import grouped
from fsstore.combine.scan.calendar import is_time
from fsstore.combine.scan.facts import NONE, FileBatch, Form, Ints, VariableColumns
from fsstore.combine.unit_change import unit_change
from fsstore.mosaic.fingerprint import fingerprint_of

__all__ = ["Sharing", "holds_values", "same_values", "shared_obstacle", "sharing", "static_obstacle"]


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
    return all(
        value != NONE and batch.values[value].shape == batch.forms[form].shape for value, form in pairs
    )


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
