"""Writing out a generator in columns: thousands of its references at once.

Most generators count: their expressions are arithmetic on dimensions of integers.  Such an expression is evaluated
once a batch, with a `_Column` in place of each integer; one by one, it costs a microsecond an operator.  Text made of
columns is a column too, `_Texts`.  Where that will not do (an integer that may not fit 64 bits, arithmetic on text) the
column raises `TemplateError`, and from there on references are computed one by one, which also says exactly what is
wrong.
"""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fsstore.errors import DataLossError, JsonError
from fsstore.kvstore.contract.request import KeyRange
from fsstore.reference.table.keys import check_key
from fsstore.reference.table.table import MAX_OFFSET, Located, plain_text
from fsstore.reference.table.template import MAX_TEXT, Hole, ManyTexts, Scope, Template, TemplateError, Templates, Value
from fsstore.runtime.tuning import ROWS_AT_ONCE
from fsstore.values.json_value import Fields, integer, obj, optional, show

# Generators: many references described by one pattern, computed when asked for.

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
                raise TemplateError(f"Expected a non-negative integer, but {template.text!r} gives {value[:80]!r}")
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
    names = [item for axis in axes.values() if isinstance(axis, tuple) for item in axis if isinstance(item, str)]
    if any(check_key(item) for item in names):
        raise JsonError("The values of a dimension make keys that climb out of the set")
    reader = _reader(key, axes)
    if reader is not None and reader.tabulated <= room:
        return replace(gen, reader=reader)
    if reader is not None or MAX_ENUMERATED >= gen.count > room:
        raise JsonError("The generators of the set keep more texts to find their keys than are allowed")
    if gen.count > MAX_ENUMERATED:
        raise JsonError(f"The key {key.text!r} cannot be read back unambiguously; write its {gen.count} references out")
    return replace(gen, known={str(key.value(scope)): scope for scope in gen.scopes()})


class _Reader:
    """Reads the variables off a key."""

    def __init__(self, pattern: re.Pattern[str], holes: list[tuple[Hole, str]], axes: Mapping[str, Axis]) -> None:
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


Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

_SURE = 2.0**62  # below this a float tells for sure that an integer fits 64 bits


class _Many:
    """A name in expressions for the values of a batch."""

    __slots__ = ()

    def listed(self) -> list[Any]:
        """Return the values as objects."""
        raise NotImplementedError  # each kind of batch has one

    def __str__(self) -> str:
        """Refuse: the template renders each of the values."""
        raise ManyTexts(self)

    def rendered(self, pattern: str, values: Sequence[Any]) -> _Texts:
        """Return the texts of a pattern, in which some of `values` are one for all."""
        count = len(self.listed())
        columns = [each.listed() if isinstance(each, _Many) else [each] * count for each in values]
        texts = [pattern % row for row in zip(*columns, strict=True)]
        if max(map(len, texts)) > MAX_TEXT:
            raise TemplateError("A text of a column is too long")
        return _Texts(texts)


class _Texts(_Many):
    """The texts that a variable or template has in a batch."""

    __slots__ = ("texts",)

    def __init__(self, texts: list[Any]) -> None:
        self.texts = texts

    def listed(self) -> list[Any]:
        """Return the texts; of a dimension of both texts and integers, both."""
        return self.texts

    def _refuse(self, _other: Any) -> _Texts:
        raise TemplateError("A column of texts cannot be calculated with")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse


class _Column(_Many):
    """The values that a variable or expression has in a batch; in expressions it stands for each of them.

    Comparing asks about all values, except `==`, which asks about any: that is how bounds and divisors are checked.
    """

    __slots__ = ("values",)
    __hash__ = None  # type: ignore[assignment]  # equality is no equivalence here

    def __init__(self, values: Ints) -> None:
        self.values = values

    def _with(self, other: Any, apply: Callable[[Any, Any], Any], *, swapped: bool = False) -> _Column:
        """Return the result for each value; a calculation in floating point shows whether NumPy's integers wrapped."""
        if isinstance(other, _Texts):
            raise TemplateError("A column of texts cannot be calculated with")
        right = other.values if isinstance(other, _Column) else np.int64(other)
        pair = (right, self.values) if swapped else (self.values, right)
        if np.abs(apply(*(np.float64(side) for side in pair))).max() >= _SURE:
            raise TemplateError("The integers of a column may not fit 64 bits")
        return _Column(apply(*pair))

    def __add__(self, other: Any) -> _Column:
        """Return the sums."""
        return self._with(other, operator.add)

    __radd__ = __add__

    def __sub__(self, other: Any) -> _Column:
        """Return the differences."""
        return self._with(other, operator.sub)

    def __rsub__(self, other: Any) -> _Column:
        """Return the differences."""
        return self._with(other, operator.sub, swapped=True)

    def __mul__(self, other: Any) -> _Column:
        """Return the products."""
        return self._with(other, operator.mul)

    __rmul__ = __mul__

    def __floordiv__(self, other: Any) -> _Column:
        """Return the quotients."""
        return self._with(other, operator.floordiv)

    def __rfloordiv__(self, other: Any) -> _Column:
        """Return the quotients."""
        return self._with(other, operator.floordiv, swapped=True)

    def __mod__(self, other: Any) -> _Column:
        """Return the remainders."""
        return self._with(other, operator.mod)

    def __rmod__(self, other: Any) -> _Column:
        """Return the remainders."""
        return self._with(other, operator.mod, swapped=True)

    def __eq__(self, other: object) -> bool:
        """Return whether any value is `other`."""
        return bool((self.values == other).any())

    def __ge__(self, other: int) -> bool:
        """Return whether no value is below `other`."""
        return bool((self.values >= other).all())

    def __lt__(self, other: int) -> bool:
        """Return whether all values are below `other`."""
        return bool((self.values < other).all())

    def listed(self) -> list[Any]:
        """Return the integers."""
        listed: list[Any] = self.values.tolist()
        return listed


class Written(NamedTuple):
    """References written out: their keys, the numbers of their URLs among `urls`, offsets, lengths (-1: all)."""

    names: list[str]
    urls: list[str]
    where: Ints
    offset: Ints
    length: Ints

    @classmethod
    def of(cls, pairs: Sequence[tuple[str, Located]]) -> Written:
        """Return references computed one by one."""
        names, places = zip(*pairs, strict=True)
        urls, offsets, lengths = zip(*places, strict=True)
        count = np.arange(len(pairs))
        return cls(list(names), list(urls), count, np.array(offsets, np.int64), np.array(lengths, np.int64))

    def pairs(self) -> Iterator[tuple[str, Located]]:
        """Yield the references one by one."""
        urls = [self.urls[number] for number in self.where.tolist()]
        return zip(self.names, map(Located, urls, self.offset.tolist(), self.length.tolist()), strict=True)


def written_out(gen: Gen, wanted: Callable[[str], bool] | None = None) -> Iterator[Written]:
    """Yield every key that is wanted with its reference, in batches: in columns as far as they go, then one by one."""
    done = 0
    for batch in _in_columns(gen, wanted):
        done += ROWS_AT_ONCE
        if batch is not None:
            yield batch
    rest = itertools.islice(gen.scopes(), done, None) if done < gen.count else iter(())
    while scopes := list(itertools.islice(rest, ROWS_AT_ONCE)):
        named = [(str(gen.key.value(scope)), scope) for scope in scopes]
        pairs = [(name, gen.evaluate(name, scope)) for name, scope in named if wanted is None or wanted(name)]
        if pairs:
            yield Written.of(pairs)


def _in_columns(gen: Gen, wanted: Callable[[str], bool] | None) -> Iterator[Written | None]:
    """Yield the references of a generator in order, None for a batch of none, as far as columns can tell."""
    sizes = tuple(len(axis) for axis in gen.axes.values())
    for start in range(0, gen.count if sizes else 0, ROWS_AT_ONCE):
        numbers = np.arange(start, min(start + ROWS_AT_ONCE, gen.count))
        places = dict(zip(gen.axes, np.unravel_index(numbers, sizes), strict=True))
        try:
            batch = _batch(gen, places, len(numbers), wanted)
        except (TemplateError, OverflowError):
            return
        yield batch


def _batch(gen: Gen, places: Mapping[str, Ints], count: int, wanted: Callable[[str], bool] | None) -> Written | None:
    scope: Any = {name: _many(axis, places[name]) for name, axis in gen.axes.items()}
    names = _texts(gen.key, scope, count)
    if wanted is not None:
        kept = [position for position, name in enumerate(names) if wanted(name)]
        if not kept:
            return None
        if len(kept) < count:
            return _batch(gen, {name: each[kept] for name, each in places.items()}, len(kept), None)
    urls, where = _urls(gen, places, count)
    if gen.offset is None or gen.length is None:
        return Written(names, urls, where, np.zeros(count, np.int64), np.full(count, -1))
    offset, length = (_numbers(bound(scope), count) for bound in (gen.offset, gen.length))
    return Written(names, urls, where, offset, length)


def _numbers(value: Any, count: int) -> Ints:
    if isinstance(value, _Texts):
        raise TemplateError("A column of texts is no column of integers")
    return value.values if isinstance(value, _Column) else np.full(count, value, np.int64)


def _many(axis: Sequence[Value], places: Ints) -> _Many:
    if isinstance(axis, range):
        return _Column(axis.start + axis.step * places.astype(np.int64))
    if all(isinstance(item, int) for item in axis):
        return _Column(np.array(axis, np.int64)[places])
    return _Texts([axis[place] for place in places.tolist()])


def _texts(template: Template, scope: Any, count: int) -> list[str]:
    value: Any = template.value(scope)
    return list(map(str, value.listed())) if isinstance(value, _Many) else [str(value)] * count


def _urls(gen: Gen, places: Mapping[str, Ints], count: int) -> tuple[list[str], Ints]:
    """Return the URLs, one for each combination of the variables it mentions, and which of them is whose."""
    used = [name for name in gen.axes if name in gen.url.names]
    if not used:
        return [str(gen.url.value({}))], np.zeros(count, np.int64)
    sizes = [len(gen.axes[name]) for name in used]
    linear = np.ravel_multi_index([places[name] for name in used], sizes)
    numbers, where = np.unique(linear, return_inverse=True)
    chosen = dict(zip(used, np.unravel_index(numbers, sizes), strict=True))
    return _texts(gen.url, {name: _many(gen.axes[name], chosen[name]) for name in used}, len(numbers)), where
