"""Coordinates of files that are not in a variable of theirs: given one by one, told by their names or an attribute.

They are a column of the batch, so they stay with their files: some are dropped, others are added.  Rules are kept with
the dataset; for coordinates that were given by value, those of new files are given when they are added.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from fsstore.combine.report import CombineError
from fsstore.combine.scan.facts import NONE, FileBatch, Ints, value_key
from fsstore.errors import StoreError
from fsstore.values.json_value import quote

__all__ = ["Coordinates", "CoordinatesOf", "with_given_of"]

CoordinatesOf: TypeAlias = Sequence[Any] | re.Pattern[str] | str | Callable[[str], Any]
"""How files tell their coordinate: a value each, a pattern of their URLs, `attr:name`, or a function of the URL."""

_ATTRIBUTE = "attr:"
_DATE = ("year", "month", "day", "hour", "minute", "second")
_GIVEN = "given"


@dataclass(frozen=True, slots=True)
class Coordinates:
    """Where files lie along dimensions, by rules or by values."""

    rules: Mapping[str, CoordinatesOf]

    @classmethod
    def of(cls, coords: Mapping[str, CoordinatesOf] | None, dims: Sequence[str]) -> Coordinates:
        """Return what a caller asks for; raises `CombineError` for what cannot be."""
        for dim, rule in (coords or {}).items():
            if dim not in dims:
                raise CombineError(
                    f"Coordinates are given for {quote(dim)}, along which files are not combined"
                )
            if isinstance(rule, str) and not rule.startswith(_ATTRIBUTE):
                raise CombineError(
                    f"Coordinates of {quote(dim)} are values, a compiled pattern, a function or "
                    f'"attr:name", not {rule!r}'
                )
        return cls(dict(coords or {}))

    @property
    def attributes(self) -> list[str]:
        """The attributes of files that are needed."""
        found = [rule for rule in self.rules.values() if isinstance(rule, str)]
        return [rule.removeprefix(_ATTRIBUTE) for rule in found]

    def to_json(self) -> dict[str, Any]:
        """Return what is kept with a dataset: rules that can be written down."""
        return {dim: _rule_to_json(rule) for dim, rule in self.rules.items()}

    def for_more(self, kept: Any, dims: Sequence[str], *, keeps: bool) -> Coordinates:
        """Return the rules for files that are added: those that are kept with a dataset, and what is given now.

        Raises `CombineError` if the others were given by value, and those of the new files are not; files that are
        scanned again keep theirs (`keeps`).
        """
        rules = dict(self.rules)
        for dim, rule in (kept if isinstance(kept, Mapping) else {}).items():
            if dim in rules or (keeps and rule == _GIVEN):
                continue
            if rule == _GIVEN:
                raise CombineError(
                    f"Coordinates of {quote(dim)} were given; give those of the new files as `coords`"
                )
            rules[dim] = _rule_of_json(rule)
        for dim in rules:
            if not isinstance(kept, Mapping) or dim not in kept:
                raise CombineError(f"The files of the dataset have coordinates of {quote(dim)} of their own")
        return Coordinates.of(rules, dims)

    def put(self, batch: FileBatch, urls: Sequence[str]) -> FileBatch:
        """Return the batch with the coordinates of its files; `urls` are all that were to be scanned, in order."""
        values = list(batch.values)
        known: dict[Any, int] = {}
        given: dict[str, Ints] = {
            name: column for name, column in batch.given.items() if not name.startswith(_ATTRIBUTE)
        }
        for dim, rule in self.rules.items():
            column = []
            for value in self._values(dim, rule, batch, urls):
                key = value_key(value)
                if key not in known:
                    known[key] = len(values)
                    values.append(value)
                column.append(known[key])
            given[dim] = np.array(column, np.int64)
        return replace(batch, values=values, given=given)

    def _values(self, dim: str, rule: CoordinatesOf, batch: FileBatch, urls: Sequence[str]) -> list[Any]:
        files = [fact.url for fact in batch.files]
        if isinstance(rule, str):
            said = [_said(batch, rule, at) for at in range(len(files))]
            return _plain(dim, said, files)
        if isinstance(rule, re.Pattern):
            return _plain(dim, [_matched(dim, rule, url) for url in files], files)
        if callable(rule):
            return [_array(dim, rule(url), url) for url in files]
        if len(rule) != len(urls):
            raise CombineError(f"There are {len(rule)} coordinates of {quote(dim)} for {len(urls)} files")
        of = {
            url.rpartition("|")[0]: value for url, value in zip(urls, rule, strict=True)
        }  # of scanned files
        of.update(zip(urls, rule, strict=True))
        return [_array(dim, of[url], url) for url in files]


def with_given_of(batch: FileBatch, before: FileBatch) -> FileBatch:
    """Return the batch of files that were scanned again, with the coordinates that were given for them before."""
    at = {fact.url: number for number, fact in enumerate(before.files)}
    values, given = list(batch.values), dict(batch.given)
    for dim, column in before.given.items():
        if dim not in given:
            old = [int(column[at[fact.url]]) for fact in batch.files]
            given[dim] = np.arange(len(old)) + len(values)
            values += [before.values[value] for value in old]
    return replace(batch, values=values, given=given)


def _said(batch: FileBatch, rule: str, at: int) -> Any:
    number = int(batch.given[rule][at])
    if number == NONE:
        name = rule.removeprefix(_ATTRIBUTE)
        raise CombineError(f"{batch.files[at].url} has no attribute {quote(name)}")
    return batch.values[number].item()


def _matched(dim: str, rule: re.Pattern[str], url: str) -> Any:
    found = rule.search(url)
    if found is None or not found.groups():
        why = "has no group" if found else "does not fit"
        raise CombineError(f"The pattern {rule.pattern!r} of {quote(dim)} {why} {url}")
    named = found.groupdict()
    if "year" not in named:
        return found.group(1)
    part = {name: int(named.get(name) or (1 if name in _DATE[:3] else 0)) for name in _DATE}
    date = f"{part['year']:04d}-{part['month']:02d}-{part['day']:02d}"
    text = f"{date}T{part['hour']:02d}:{part['minute']:02d}:{part['second']:02d}"
    return _array(dim, np.datetime64(text, "s") if _is_time(text) else None, url)


def _is_time(text: str) -> bool:
    try:
        return not np.isnat(np.datetime64(text, "s"))
    except ValueError:
        return False


def _plain(dim: str, values: Sequence[Any], urls: Sequence[str]) -> list[Any]:
    """Return coordinates that were told as texts: as numbers or times, if all of them are."""
    if not all(isinstance(value, str) for value in values):
        return [_array(dim, value, url) for value, url in zip(values, urls, strict=True)]
    found: Sequence[Any] = values
    for read in (int, float, _time):
        try:
            found = [read(value) for value in values]
            break
        except ValueError:
            continue
    return [_array(dim, value, url) for value, url in zip(found, urls, strict=True)]


def _time(text: str) -> Any:
    plain = text.strip().removesuffix("Z")
    if not re.match(r"\d{4}-\d\d", plain):
        raise ValueError(text)
    return np.datetime64(plain, "s")


def _array(dim: str, value: Any, url: str) -> Any:
    found = np.atleast_1d(np.asarray(value))
    if found.dtype.kind not in "biufMSU" or found.ndim != 1:
        raise CombineError(f"The coordinate of {quote(dim)} of {url} is no number, time or text: {value!r}")
    return found


def _rule_to_json(rule: CoordinatesOf) -> Any:
    if isinstance(rule, str):
        return rule
    if isinstance(rule, re.Pattern) and isinstance(rule.pattern, str):
        return {"pattern": rule.pattern, "flags": rule.flags & re.IGNORECASE.value}
    return _GIVEN


def _rule_of_json(value: Any) -> CoordinatesOf:
    match value:
        case str():
            return value
        case {"pattern": str(pattern), "flags": int(flags)}:
            try:
                return re.compile(pattern, flags & re.IGNORECASE.value)
            except re.error as error:
                raise StoreError(f"The pattern that is kept for coordinates is none: {error}") from error
        case _:
            raise StoreError("The dataset does not say where its coordinates come from")
