"""Index transforms: functions from one index space to another, on which every view rests.

A transform is a domain and one output map for each output dimension.  All indexing is composition of transforms;
nothing is read until the engine asks a transform which cells it touches.  For planners: `domain` with its tuples,
and `maps`, a tuple of light `OutputMap`s.

Values are immutable and may be shared between threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fsstore.errors import OutOfRangeError, StoreError
from fsstore.index import interval as iv
from fsstore.index.compose import check_index, effective
from fsstore.index.domain import IndexDomain, checked_vector, from_components
from fsstore.index.indexable import Indexable, TransformChange
from fsstore.index.output_map import (
    ARRAY,
    CONSTANT,
    SINGLE,
    OutputIndexMap,
    OutputMap,
    array_text,
)
from fsstore.index.value import TransformValue, checked_maps, identity_maps
from fsstore.index.wire import transform_from_json, transform_to_json
from fsstore.values.argument import WrittenAsJson
from fsstore.values.json_value import quote

__all__ = ["IndexTransform", "checked", "identity"]


class IndexTransform(TransformValue, Indexable, WrittenAsJson):
    """A function from an input domain to an output index space, immutable.

    `IndexTransform(3)` is the identity of rank 3; `IndexTransform(domain, output)`, `IndexTransform(json={...})` and
    `IndexTransform(input_shape=[3, 2], output=[...])` give the domain in the ways of `IndexDomain`, with names that
    start with `input_`, and a sequence of `OutputIndexMap`; without `output` the transform is the identity.

    >>> IndexTransform(2)[3, 5:8]
    Rank 1 -> 2 index space transform:
      Input domain:
        0: [5, 8)
      Output index maps:
        out[0] = 3
        out[1] = 0 + 1 * in[0]
    <BLANKLINE>
    """

    __module__ = "fsstore"
    __slots__ = ("__weakref__",)
    _domain: IndexDomain

    def __init__(
        self,
        input_rank: int | IndexDomain | Sequence[Any] | None = None,
        *positional: Any,
        output: Iterable[OutputIndexMap] | None = None,
        **components: Any,
    ) -> None:
        if "json" in components:
            value = components.pop("json")
            if input_rank is not None or positional or components or output is not None:
                raise TypeError("IndexTransform(json=...) takes no other argument")
            self._domain, self._maps = transform_from_json(IndexDomain, value)
            return
        if output is not None:  # before what it is put together with
            output = _listed_maps(output)
        domain, output = _parsed(input_rank, positional, output, components)
        self._domain = domain
        self._maps = (
            identity_maps(domain.rank) if output is None else checked_maps(domain, _output_maps(output))
        )

    @property
    def domain(self) -> IndexDomain:
        """The input domain."""
        return self._domain

    def _apply(self, change: TransformChange, *arguments: Any) -> IndexTransform:
        return change(self, *arguments)

    def __call__(self, indices: Iterable[int]) -> tuple[int, ...]:
        """Return the output point of an input point; see `apply`."""
        return self.apply(indices)

    def apply(self, point: Iterable[int]) -> tuple[int, ...]:
        """Return the output point of the input point `point`.

        `OutOfRangeError` when it lies outside an explicit bound, or an index array outside its range.
        """
        where = checked_vector("indices", point)
        if len(where) != self.input_rank:
            raise StoreError(
                f"input indices vector of length {len(where)} cannot be used with index transform with input rank "
                f"{self.input_rank}"
            )
        for dim, index in enumerate(where):
            low, high = effective(self._domain, dim)
            if not iv.contains(low, high, index):
                raise OutOfRangeError(
                    f"Index {index} is not contained in the domain {iv.interval_text(low, high)} "
                    f"for input dimension {dim}"
                )
        return tuple([self._image(dim, output, where) for dim, output in enumerate(self._maps)])

    def _image(self, dim: int, output: OutputMap, where: tuple[int, ...]) -> int:
        array = output.index_array
        if output.method == CONSTANT or (array is None and output.method != SINGLE):
            return output.offset
        if array is None:
            index = where[output.input_dimension]
        else:
            places = zip(where, self._domain.inclusive_min, array.shape, strict=True)
            index = int(array[tuple([0 if size == 1 else i - low for i, low, size in places])])
            try:
                check_index(index, output.index_range)
            except StoreError as error:
                place = f"Computing index for output dimension {dim}: Checking result of index array output index map"
                raise error.within(place) from None
        return iv.check_int64(
            output.offset + output.stride * index, f"output index for output dimension {dim}"
        )

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; an identity has no `output`."""
        return transform_to_json(self)

    def __repr__(self) -> str:
        """Return several lines: the domain, then each output map."""
        lines = [f"Rank {self.input_rank} -> {self.output_rank} index space transform:", "  Input domain:"]
        for dim, label in enumerate(self._domain.labels):
            low, high, first, last = self._domain.bounds(dim)
            text = iv.bounds_text(low, high, implicit_low=first, implicit_high=last)
            lines.append(f"    {dim}: {text}{' ' + quote(label) if label else ''}")
        lines.append("  Output index maps:")
        lines += [f"    out[{dim}] = {_formula(output)}" for dim, output in enumerate(self._maps)]
        return "\n".join(lines) + "\n"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle by value."""
        return _restore, (self._domain, self._maps)

    def __copy__(self) -> IndexTransform:
        """Return the same value; it cannot change."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> IndexTransform:
        """Return the same value; it cannot change."""
        return self


def _restore(domain: IndexDomain, maps: tuple[OutputMap, ...]) -> IndexTransform:
    for output in maps:
        if output.index_array is not None:
            output.index_array.flags.writeable = False
    return IndexTransform._of(domain, maps)


def identity(domain: IndexDomain) -> IndexTransform:
    """Return the transform that maps each point of `domain` to itself."""
    return IndexTransform._of(domain, identity_maps(domain.rank))


def _parsed(
    first: Any, rest: tuple[Any, ...], output: Any, components: dict[str, Any]
) -> tuple[IndexDomain, Iterable[OutputIndexMap] | None]:
    """Return the domain and the output maps that the arguments of `IndexTransform` mean."""
    if "domain" in components:
        rest, first = (first, *rest) if first is not None else rest, components.pop("domain")
        by_rank = False
    else:
        by_rank = first is None or hasattr(first, "__index__")
    if rest and (by_rank or len(rest) > 1 or output is not None):
        raise TypeError("IndexTransform takes (input_rank, ...) or (domain, output)")
    if not by_rank:
        if components:
            raise TypeError("IndexTransform(domain, output) takes no other argument")
        domain = first if isinstance(first, IndexDomain) else IndexDomain._of_dims(first)
        return domain, rest[0] if rest else output
    plain = {"implicit_lower_bounds", "implicit_upper_bounds"}
    if any(name not in plain and not name.startswith("input_") for name in components):
        raise TypeError(f"unexpected keyword argument(s): {', '.join(sorted(components))}")
    given = {name.removeprefix("input_"): value for name, value in components.items()}
    return from_components({"rank": first, **given}, "input_"), output


def _output_maps(output: Any) -> list[OutputMap]:
    return [item._map for item in _listed_maps(output)]


def _listed_maps(output: Any) -> list[OutputIndexMap]:
    if not isinstance(output, Iterable):
        raise TypeError(f"output must be a sequence of OutputIndexMap, not {type(output).__name__}")
    maps = list(output)
    if not all(isinstance(item, OutputIndexMap) for item in maps):
        raise TypeError("output must be a sequence of OutputIndexMap")
    return maps


def checked(domain: IndexDomain, maps: Sequence[OutputMap]) -> IndexTransform:
    """Return the transform of `domain` and `maps`; `StoreError` when they do not fit together."""
    return IndexTransform._of(domain, checked_maps(domain, maps))


def _formula(output: OutputMap) -> str:
    if output.method == CONSTANT:
        return str(output.offset)
    if output.method != ARRAY or output.index_array is None:
        return f"{output.offset} + {output.stride} * in[{output.input_dimension}]"
    limits = iv.interval_text(*output.index_range)
    return (
        f"{output.offset} + {output.stride} * bounded({limits}, array(in)), where array =\n"
        f"      {array_text(output.index_array)}"
    )
