"""Writing out a generator in columns: thousands of its references at once.

Most generators count: their expressions are arithmetic on dimensions of integers.  Such an expression is evaluated
once a batch, with a `_Column` in place of each integer; one by one, it costs a microsecond an operator.  Text made of
columns is a column too, `_Texts`.  Where that will not do (an integer that may not fit 64 bits, arithmetic on text) the
column raises `TemplateError`, and from there on references are computed one by one, which also says exactly what is
wrong.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from fsstore.reference.generate.generator import Gen
from fsstore.reference.generate.template import MAX_TEXT, ManyTexts, Template, TemplateError, Value
from fsstore.reference.table.value import Located
from fsstore.reference.tuning import REFERENCES_AT_ONCE

__all__ = ["Written", "written_out"]

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
        """Return the result for each value; NumPy's integers wrap, so floating point tells whether they did."""
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
        done += REFERENCES_AT_ONCE
        if batch is not None:
            yield batch
    rest = itertools.islice(gen.scopes(), done, None) if done < gen.count else iter(())
    while scopes := list(itertools.islice(rest, REFERENCES_AT_ONCE)):
        named = [(str(gen.key.value(scope)), scope) for scope in scopes]
        pairs = [(name, gen.evaluate(name, scope)) for name, scope in named if wanted is None or wanted(name)]
        if pairs:
            yield Written.of(pairs)


def _in_columns(gen: Gen, wanted: Callable[[str], bool] | None) -> Iterator[Written | None]:
    """Yield the references of a generator in order, None for a batch of none, as far as columns can tell."""
    sizes = tuple(len(axis) for axis in gen.axes.values())
    for start in range(0, gen.count if sizes else 0, REFERENCES_AT_ONCE):
        numbers = np.arange(start, min(start + REFERENCES_AT_ONCE, gen.count))
        places = dict(zip(gen.axes, np.unravel_index(numbers, sizes), strict=True))
        try:
            batch = _batch(gen, places, len(numbers), wanted)
        except (TemplateError, OverflowError):
            return
        yield batch


def _batch(
    gen: Gen, places: Mapping[str, Ints], count: int, wanted: Callable[[str], bool] | None
) -> Written | None:
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
    """Return the values of a dimension at places in it."""
    if isinstance(axis, range):
        return _Column(axis.start + axis.step * places.astype(np.int64))
    if all(isinstance(item, int) for item in axis):
        return _Column(np.array(axis, np.int64)[places])
    return _Texts([axis[place] for place in places.tolist()])


def _texts(template: Template, scope: Any, count: int) -> list[str]:
    """Return the texts of a template."""
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
