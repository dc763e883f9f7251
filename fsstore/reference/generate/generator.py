"""Generators: many references described by one pattern, computed when asked for.

    {"key": "x/{{i}}.{{j}}", "url": "{{u}}_{{i}}", "offset": "{{j * 1000}}", "length": "1000",
     "dimensions": {"i": {"stop": 5}, "j": [0, 2, 4]}}

stands for the product of its dimensions.  Nothing is expanded: to look a key up, the key pattern is turned round into
a regular expression that reads the variables off the key, and the other fields are evaluated for them.  Where that
reading would be ambiguous (two expressions side by side, text that may hold the separator, an expression of two
variables) the keys are enumerated once into a dictionary, if they are few; else the document is refused.  One bound
holds for the dictionaries of all generators of a set.

A variable the key does not mention takes its last value, as it would if the product were written out in order.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fsstore.errors import DataLossError, JsonError
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.generate.template import Hole, Scope, Template, TemplateError, Templates, Value
from fsstore.reference.table.keys import check_key
from fsstore.reference.table.value import MAX_OFFSET, Located, plain_text
from fsstore.values.json_value import Fields, integer, obj, optional, show

__all__ = ["MAX_TABULATED", "Gen", "parse_gen"]

MAX_ENUMERATED = 100_000
MAX_TABULATED = 1_000_000
"""Texts of keys, and of parts of keys, that the generators of a set may keep."""

Axis = Sequence[Value]


@dataclass(frozen=True, slots=True)
class Gen:
    """A generator.  `offset` and `length` are both None for references to whole targets."""

    key: Template
    url: Template
    offset: Callable[[Scope], int] | None
    length: Callable[[Scope], int] | None
    axes: Mapping[str, Axis]
    reader: _Reader | None = None
    known: dict[str, dict[str, Value]] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """The number of references described."""
        return math.prod(len(axis) for axis in self.axes.values())

    @property
    def tabulated(self) -> int:
        """How many texts are kept, or will be, to find keys."""
        return len(self.known) if self.reader is None else self.reader.tabulated

    def find(self, key: str) -> Located | None:
        """Return the reference of a key, or None if the generator does not describe it."""
        scope = self.reader.scope(key) if self.reader is not None else self.known.get(key)
        if scope is None:
            return None
        if self.reader is not None and str(self.key.value(scope)) != key:
            return None
        return self.evaluate(key, scope)

    def evaluate(self, key: str, scope: Scope) -> Located:
        """Return the reference of one element of the product."""
        try:
            url = str(self.url.value(scope))
            if self.offset is None or self.length is None:
                return Located(url, 0, -1)
            return Located(url, self.offset(scope), self.length(scope))
        except TemplateError as error:
            raise DataLossError(f"Error generating reference {show(key)}: {error.message}") from error

    def scopes(self) -> Iterator[dict[str, Value]]:
        """Yield the variables of every element, the last dimension fastest."""
        names = tuple(self.axes)
        for values in itertools.product(*self.axes.values()):
            yield dict(zip(names, values, strict=True))

    def names(self) -> Iterator[str]:
        """Yield every key, in order; a key described twice comes twice."""
        return (str(self.key.value(scope)) for scope in self.scopes())

    @property
    def is_distinct(self) -> bool:
        """Whether every element of the product surely has a key of its own."""
        plain = {part.name for part in self.key.parts if not isinstance(part, str)}
        texts = (axis for axis in self.axes.values() if not isinstance(axis, range))
        return (
            self.reader is not None
            and plain == set(self.axes)
            and all(len(set(map(str, axis))) == len(axis) for axis in texts)
        )

    @property
    def is_numbered(self) -> bool:
        """Whether every key surely ends in a digit."""
        last = self.key.parts[-1]
        if isinstance(last, str):
            return last[-1:].isdecimal()
        return last.name is not None and isinstance(self.axes.get(last.name), range)

    @property
    def prefix(self) -> str:
        """The common start of all keys."""
        first = self.key.parts[0]
        return first if isinstance(first, str) else ""

    def may_hold(self, keys: KeyRange) -> bool:
        """Return whether the beginning of the key pattern leaves room for keys in the range."""
        own = KeyRange.prefix(self.prefix)
        low = max(own.inclusive_min, keys.inclusive_min)
        return all(not end or low < end for end in (own.exclusive_max, keys.exclusive_max))


def _number(template: Template) -> Callable[[Scope], int]:
    """Return the function that evaluates an offset or length."""

    def checked(value: Value) -> int:
        if isinstance(value, str):
            if not value.strip().isdecimal() or len(value) > 40:
                raise TemplateError(
                    f"Expected a non-negative integer, but {template.text!r} gives {value[:80]!r}"
                )
            value = int(value)
        if not 0 <= value < MAX_OFFSET:
            raise TemplateError(f"Expected a non-negative integer, but {template.text!r} gives {value}")
        return value

    only = template.parts[0] if len(template.parts) == 1 else None
    if isinstance(only, str):
        constant = checked(only)
        return lambda _: constant
    run = template.value if only is None else only.evaluate
    return lambda scope: checked(run(scope))


def _axis(value: Any) -> Axis:
    """Parse the values of a dimension: an array, or start, stop and step."""
    if isinstance(value, list | tuple):
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int | str):
                raise JsonError(f"Expected integers or strings, but received: {show(item)}")
            if isinstance(item, str):
                plain_text(item)
        return tuple(value)
    fields = Fields(value)
    bound = integer(-(2**62), 2**62)
    stop = fields.require("stop", bound)
    start = fields.take("start", bound, default=0)
    step = fields.take("step", bound, default=1)
    if step == 0:
        fields.problem("The step of a dimension must not be 0")
    fields.finish()
    axis = range(start, stop, step)
    if axis and (max(abs(axis[0]), abs(axis[-1]), abs(stop - start)) >= 2**62):
        raise JsonError("The dimension is too long")
    return axis


def _text(value: Any) -> str:
    """Parse a template; integers stand for themselves."""
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else plain_text(value)


def parse_gen(value: Any, named: Templates, *, room: int = MAX_TABULATED) -> Gen:
    """Return the generator of one entry of `gen`, or raise `JsonError` with all that is wrong.

    It may keep as many texts as there is `room` for.
    """
    fields = Fields(value)
    key = fields.require("key", plain_text)
    url = fields.require("url", plain_text)
    offset = fields.take("offset", optional(_text))
    length = fields.take("length", optional(_text))
    dimensions = fields.require("dimensions", obj)
    if (offset is None) != (length is None):
        fields.problem("offset and length must be given together")
    axes = {}
    for name, axis in (dimensions or {}).items():
        fields_name = f"Error parsing dimension {show(name)}"
        try:
            axes[name] = _axis(axis)
        except JsonError as error:
            fields.problem(error.within(fields_name).message)
        if name in named:
            fields.problem(f"{fields_name}: a template has the same name")
    fields.finish()
    texts = [named.compile(text).folded() for text in (key, url)]
    numbers = [None if text is None else _number(named.compile(text).folded()) for text in (offset, length)]
    return _checked(Gen(texts[0], texts[1], numbers[0], numbers[1], axes), room)


def _checked(gen: Gen, room: int) -> Gen:
    """Return the generator able to find its keys; the first and the last are tried."""
    key, axes = gen.key, gen.axes
    if any(not axis for axis in axes.values()):
        return gen
    for corner in (0, -1):
        scope = {name: axis[corner] for name, axis in axes.items()}
        name = str(key.value(scope))
        why = check_key(name)
        if why is not None:
            raise JsonError(f"Error in reference {show(name)}: {why}")
        try:
            gen.evaluate(name, scope)
        except DataLossError as error:
            raise JsonError(error.message) from error
    names = [
        item for axis in axes.values() if isinstance(axis, tuple) for item in axis if isinstance(item, str)
    ]
    if any(check_key(item) for item in names):
        raise JsonError("The values of a dimension make keys that climb out of the set")
    reader = _reader(key, axes)
    if reader is not None and reader.tabulated <= room:
        return replace(gen, reader=reader)
    if reader is not None or MAX_ENUMERATED >= gen.count > room:
        raise JsonError("The generators of the set keep more texts to find their keys than are allowed")
    if gen.count > MAX_ENUMERATED:
        raise JsonError(
            f"The key {key.text!r} cannot be read back unambiguously; write its {gen.count} references out"
        )
    return replace(gen, known={str(key.value(scope)): scope for scope in gen.scopes()})


class _Reader:
    """Reads the variables off a key."""

    def __init__(
        self, pattern: re.Pattern[str], holes: list[tuple[Hole, str]], axes: Mapping[str, Axis]
    ) -> None:
        self._pattern = pattern
        self._holes = holes
        self._axes = axes
        self._last = {name: axis[-1] for name, axis in axes.items()}
        self._tables: dict[int, dict[str, list[Value]]] = {}
        self.tabulated = sum(len(axes[name]) for hole, name in holes if not _counts(hole, axes[name]))

    def scope(self, key: str) -> dict[str, Value] | None:
        """Return the variables that would make `key`, or None."""
        match = self._pattern.fullmatch(key)
        if match is None:
            return None
        scope = dict(self._last)
        fixed: dict[str, Sequence[Value]] = {}
        for number, (hole, name) in enumerate(self._holes):
            values = self._values(number, hole, name, match[number + 1])
            before = fixed.get(name)
            fixed[name] = values if before is None else [value for value in before if value in values]
            if not fixed[name]:
                return None
            scope[name] = fixed[name][-1]
        return scope

    def _values(self, number: int, hole: Hole, name: str, text: str) -> Sequence[Value]:
        axis = self._axes[name]
        if _counts(hole, axis):
            value = int(text) if re.fullmatch(r"-?[0-9]{1,19}", text) else None
            return [value] if value is not None and value in axis and str(value) == text else []
        if number not in self._tables:
            table: dict[str, list[Value]] = {}
            for item in axis:
                table.setdefault(str(hole.evaluate({name: item})), []).append(item)
            self._tables[number] = table
        return self._tables[number].get(text, [])


def _counts(hole: Hole, axis: Axis) -> bool:
    """Return whether the text of a hole is a number that need not be looked up."""
    return hole.name is not None and isinstance(axis, range)


def _reader(key: Template, axes: Mapping[str, Axis]) -> _Reader | None:
    """Return the reader of a key pattern, or None when reading could be ambiguous or costly."""
    pattern, holes = "", []
    for position, part in enumerate(key.parts):
        if isinstance(part, str):
            pattern += re.escape(part)
            continue
        if len(part.names) != 1:
            return None
        name = next(iter(part.names))
        follow = key.parts[position + 1] if position + 1 < len(key.parts) else None
        if name not in axes or not _separable(part, axes[name], follow):
            return None
        pattern += "(.*)" if follow is None else f"([^{re.escape(str(follow)[0])}]*)"
        holes.append((part, name))
    return _Reader(re.compile(pattern, re.DOTALL), holes, axes)


def _separable(hole: Hole, axis: Axis, follow: str | Hole | None) -> bool:
    """Return whether the text of a hole cannot contain the character that follows it."""
    if isinstance(follow, Hole) or (len(axis) > MAX_TABULATED and not _counts(hole, axis)):
        return False
    if follow is None:
        return True
    letters = set("0123456789-")
    if isinstance(axis, tuple):
        letters |= {letter for item in axis for letter in str(item)}
    elif hole.name is not None and isinstance(axis, range) and min(axis[0], axis[-1]) >= 0:
        letters.remove("-")
    return follow[0] not in letters
